"""Keeping a rate. What is fed to a producer is ``test_produce.py``'s."""

from __future__ import annotations

import time

import pytest

from raftlog.cli.feed import Pacer

LINES = [b"x"] * 100


def test_without_a_rate_all_goes_at_once() -> None:
    assert list(Pacer(None).slices(LINES)) == [LINES]


@pytest.mark.parametrize(("rate", "size"), [(10_000.0, 100), (1_000.0, 50), (200.0, 10)])
def test_slices_are_a_twentieth_of_a_second(rate: float, size: int) -> None:
    parts = list(Pacer(rate).slices(LINES))
    assert [line for part in parts for line in part] == LINES
    assert {len(part) for part in parts} == {min(size, len(LINES))}


def test_the_rate_holds_over_calls() -> None:
    pacer, began = Pacer(500.0), time.monotonic()
    for _ in range(10):
        assert list(pacer.slices([b"x"] * 10))
    assert time.monotonic() - began >= 90 / 500


def test_slow_rates_send_one_by_one() -> None:
    assert [len(part) for part in Pacer(100.0).slices([b"x"] * 3)] == [3]
    assert [len(part) for part in Pacer(15.0).slices([b"x"] * 3)] == [1, 1, 1]
