"""Ratios to the floor, compared with the recorded ones."""

from __future__ import annotations

from tests.bench_check import verdicts


def test_a_benchmark_fails_if_all_rounds_are_worse_than_recorded() -> None:
    rounds = [
        {"rate": (0.4, False), "p50": (3.0, True)},
        {"rate": (0.5, False), "p50": (3.4, True)},
    ]
    assert verdicts(rounds, {"rate": 0.5, "p50": 3.0}) == {"rate": True, "p50": True}
    assert verdicts(rounds, {"rate": 0.51, "p50": 2.9}) == {"rate": False, "p50": False}
    assert verdicts(rounds, {}) == {"rate": True, "p50": True}
