"""How long a link waits before it dials again. What else a link does is in ``test_links``."""

from __future__ import annotations

import pytest

from raftlog.server.peers.links import BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN, backoff_seconds


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"),
    [
        (0, 0.0, 0.05),
        (0, 0.999_999, 0.05),
        (1, 0.0, 0.05),
        (1, 0.5, 0.075),
        (2, 0.5, 0.15),
        (3, 0.0, 0.2),
        (4, 0.0, 0.25),
        (4, 0.5, 0.375),
        (1_000_000, 0.0, 0.25),
        (1_000_000, 1.0, 0.5),
    ],
)
def test_the_pause_doubles_up_to_a_bound_and_is_spread(
    failures: int, chance: float, seconds: float
) -> None:
    assert backoff_seconds(failures, chance) == pytest.approx(seconds)
    assert BACKOFF_SECONDS_MIN <= backoff_seconds(failures, chance) <= BACKOFF_SECONDS_MAX
