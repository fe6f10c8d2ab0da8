"""What spoils a run leaves its records alone: no other kind of anomaly comes of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from raftlog.testing.checker.judge import judge
from tests.testing.checker import mutations_of_runs as runs
from tests.testing.checker.history_editor import HistoryEditor
from tests.testing.checker.synthetic import history

GOOD = tuple(history(8))


@pytest.mark.parametrize(
    ("mutate", "kinds", "trouble"),
    [
        (runs.stop_for_a_while, {"UNAVAILABLE"}, ""),
        (runs.refuse_most, {"UNAVAILABLE"}, ""),
        (runs.break_off, set(), "did not complete"),
        (runs.read_nothing_at_the_end, set(), "was not read at the end"),
        (runs.acknowledge_nothing, set(), "no append was acknowledged"),
        (runs.claim_a_fault, set(), "without an effect"),
        (runs.inject_nothing, set(), "was injected"),
        (runs.be_in_trouble, set(), "?"),
        (runs.send_a_value_twice, set(), "that another append sends"),
    ],
)
def test_only_the_run_is_spoiled(
    mutate: Callable[[HistoryEditor], None], kinds: set[str], trouble: str
) -> None:
    tape = HistoryEditor(GOOD, Random(1))
    mutate(tape)
    verdict = judge(tape.entries)
    assert verdict.kinds == kinds
    if trouble:
        assert any(trouble in text for text in verdict.troubles)
    else:
        assert not verdict.troubles
