"""Which settings go together."""

from __future__ import annotations

import pytest

from raftlog.consensus.settings import ConsensusSettings


def test_the_defaults_go_together() -> None:
    assert ConsensusSettings().election_timeout_ms == 3_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tick_ms", 0),
        ("propose_timeout_ms", -1),
        ("heartbeat_ms", 1_001),  # a third of the election timeout at most
        ("heartbeat_ms", 49),  # at least a tick
        ("suspect_timeout_ms", 3_001),
        ("seal_after_entries", 9),
        ("command_bytes_max", 2_000_000),
    ],
)
def test_values_that_do_not_go_together_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        ConsensusSettings(**{name: value})
