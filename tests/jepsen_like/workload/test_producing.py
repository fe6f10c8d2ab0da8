"""When a producer sends, how much, and what it does about what came of it."""

from __future__ import annotations

from random import Random

import pytest

from raftlog_jepsen.plan import ProducerShape
from raftlog_jepsen.workload.append import draw_padding, pause_s

STEADY = ProducerShape()
BURSTS = ProducerShape(bursts=True)


@pytest.mark.parametrize(
    ("shape", "now", "due_at", "wanted"),
    [
        (STEADY, 10.0, 10.5, 0.5),
        (STEADY, 11.0, 10.5, 0.0),
        (BURSTS, 10.25, 10.5, 0.25),
        (BURSTS, 10.25, 9.0, 0.0),
        (BURSTS, 11.25, 9.0, 0.75),
        (BURSTS, 11.25, 12.5, 1.25),
    ],
)
def test_a_pause_lasts_until_the_next_is_due_and_a_burst_begins(
    shape: ProducerShape, now: float, due_at: float, wanted: float
) -> None:
    assert pause_s(shape, now, due_at) == pytest.approx(wanted)


def test_paddings_are_small_as_often_as_large(seed: int) -> None:
    random = Random(seed)
    drawn = [draw_padding(random, 10_000) for _ in range(2_000)]
    assert min(drawn) == 0
    assert 5_000 < max(drawn) <= 10_000
    assert 800 < sum(padding < 100 for padding in drawn) < 1_200
    assert {draw_padding(random, 0) for _ in range(50)} == {0}
