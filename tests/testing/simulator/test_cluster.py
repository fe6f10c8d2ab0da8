"""Whole clusters: seeds meet faults of many kinds, and a broken build is caught within a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from raftlog.record.compaction import Mask, Original, Rewriter
from raftlog.replication.leadership import Leadership
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.replicas import RoleManager
from raftlog.server.partition import Partition
from raftlog.storage import log
from raftlog.storage.compaction import CompactionState
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.scenario import Scenario, run

pytestmark = pytest.mark.simulated

# Of a broken build: more than the first few that find it, and so few that it takes seconds.
BROKEN_WITHIN_SEEDS = 30


def test_seeds_meet_faults_of_many_kinds_and_still_get_things_done() -> None:
    verdicts = [run(Scenario.draw(n, brokers=3, light=True)) for n in range(20_240_229, 20_240_239)]
    assert len({kind for verdict in verdicts for kind in verdict.faults}) >= 12
    ok = sum(verdict.operations.get("send ok", 0) for verdict in verdicts)
    sent = sum(n for v in verdicts for what, n in v.operations.items() if what.startswith("send "))
    assert ok > sent / 2
    # One in which operators prove themselves, by random numbers, and brokers and clients do much.
    proved = ("transfer ok", "reassign ok")
    busiest = max(
        (v for v in verdicts if any(v.operations.get(what) for what in proved)),
        key=lambda verdict: verdict.events,
    )
    assert run(busiest.scenario).digest == busiest.digest, "a seed is one course of events"


@pytest.mark.parametrize("brokers", [3, 5])
def test_disks_are_lost_one_after_the_other(brokers: int) -> None:
    """And between two of them, everything is copied again, and votes again."""
    scenario = Scenario.draw(1, brokers=brokers, light=True)
    plan = FaultPlan(kinds=("wipe",), every_s=0.5)
    verdict = run(replace(scenario, faults=plan, duration_s=40.0))
    assert verdict.is_good, verdict.violations[:10]
    assert verdict.faults["wipe"] >= 3
    assert verdict.operations["send ok"] > 0


# -- broken builds ---------------------------------------------------------------------------------


def kinds_found(
    until: str,
    *,
    compacted: bool = False,
    change: Callable[[Scenario], Scenario] = lambda scenario: scenario,
    first: int = 0,
) -> set[str]:
    """The kinds of violation that seeds find, up to the first seed that finds ``until``.

    ``change``: makes each scenario one in which it can be found.
    """
    kinds: set[str] = set()
    for number in range(first, first + BROKEN_WITHIN_SEEDS):
        scenario = Scenario.draw(number, brokers=3, light=True, compacted=compacted)
        verdict = run(change(scenario))
        kinds |= {
            violation.kind.removesuffix("-tail").removesuffix("-mid")
            for violation in verdict.violations
        }
        if until in kinds:
            break
    return kinds


def test_retaining_a_segment_too_few_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    expired = log.expired

    def one_more(segments: Sequence[log.SegmentInfo], **terms: Any) -> int:
        terms["retention_bytes"] -= 16_384
        return expired(segments, **terms)

    def with_small_topics(scenario: Scenario) -> Scenario:
        plan = replace(scenario.workload, deletes=False, recreates_after_s=0.0, group=None)
        return replace(scenario, workload=plan.with_retained_bytes(Random(scenario.seed)))

    monkeypatch.setattr(log, "expired", one_more)
    assert "DELETED-TOO-MUCH" in kinds_found("DELETED-TOO-MUCH", change=with_small_topics)


def test_compacting_tombstones_away_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(self: CompactionState, **_terms: int) -> int:
        return self.clean_end_offset

    monkeypatch.setattr(CompactionState, "tombstones_due_below", all_of_them)
    assert "COMPACT-LOST-KEY" in kinds_found("COMPACT-LOST-KEY", compacted=True)


def test_compacting_a_last_record_away_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Rewriter.add

    def add_less(self: Rewriter, original: Original, kept: Mask, **how: bool) -> object:
        if len(kept) > 1:
            kept[-1] = False
        return add(self, original, kept, **how)

    monkeypatch.setattr(Rewriter, "add", add_less)
    assert "COMPACT-LOST-KEY" in kinds_found("COMPACT-LOST-KEY", compacted=True)


def test_committing_without_followers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: Leadership) -> bool:
        moves = self.has_quorum and self.durable_end > self.high_watermark
        if moves:
            self.high_watermark = self.durable_end
        return moves

    monkeypatch.setattr(Leadership, "_advance", advance)
    assert "INCOMPLETE" in kinds_found("INCOMPLETE")
    # A leader's disk has to be lost before the others have its records: else they are copied again.
    plan = FaultPlan(kinds=(), every_s=1.0, apart={"wipe_leader": 1.5})

    def with_lost_leaders(scenario: Scenario) -> Scenario:
        return replace(scenario, faults=plan, duration_s=8.0)

    assert "LOST" in kinds_found("LOST", change=with_lost_leaders)


def test_reading_what_is_not_committed_from_a_replica_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Partition.read

    def read_all(
        self: Partition, *, start_offset: int, bytes_max: int, end_offset: int
    ) -> list[bytes]:
        if self.leadership is None:
            return self.read_uncommitted(start_offset=start_offset, bytes_max=bytes_max)
        return read(self, start_offset=start_offset, bytes_max=bytes_max, end_offset=end_offset)

    monkeypatch.setattr(Partition, "read", read_all)

    def with_replica_reads(scenario: Scenario) -> Scenario:
        workload = scenario.workload.with_replica_reads(Random(scenario.seed))
        return replace(scenario, workload=workload)

    assert "EARLY-READ" in kinds_found("EARLY-READ", change=with_replica_reads, first=43)


def test_taking_what_followers_have_in_memory_for_durable_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_fetch: Callable[..., bool] = Leadership.on_fetch

    def on_hasty_fetch(self: Leadership, *who: object, **noted: int) -> bool:
        noted["durable_offset"] = noted["fetch_offset"]
        return on_fetch(self, *who, **noted)

    monkeypatch.setattr(Leadership, "on_fetch", on_hasty_fetch)
    assert "INCOMPLETE" in kinds_found("INCOMPLETE")


def test_letting_anyone_join_the_isr_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leadership, "_may_join", lambda *_: True)
    assert "INCOMPLETE" in kinds_found("INCOMPLETE")


def test_committing_with_too_few_in_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leadership, "has_quorum", property(lambda _: True))
    assert "TOO-FEW-COPIES" in kinds_found("TOO-FEW-COPIES")


def test_leading_on_after_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    set_role = RoleManager._set_role

    def as_any_run(self: RoleManager, member: HostedPartition) -> None:
        me = self._me
        self._me = replace(me, boot=member.state.leader_boot)
        try:
            set_role(self, member)
        finally:
            self._me = me

    monkeypatch.setattr(RoleManager, "_set_role", as_any_run)
    assert "TWO-LEADERS" in kinds_found("TWO-LEADERS")
