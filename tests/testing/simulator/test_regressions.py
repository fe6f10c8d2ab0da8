"""Seeds that once were bad, each with what was wrong."""

from __future__ import annotations

from raftlog.testing.simulator.scenario import Scenario, run


def test_a_follower_learns_where_the_log_starts_though_nothing_is_appended() -> None:
    """It learned of deleted records with the next ones only, and would have shown them again."""
    verdict = run(Scenario.draw(15, brokers=3))
    assert verdict.is_good, verdict.violations[:10]
