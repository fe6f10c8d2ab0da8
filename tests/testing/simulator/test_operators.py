"""Brokers that join and leave in a simulation: some seeds have them, and all come to an end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import msgspec
import pytest

from raftlog.server.broker import Broker
from raftlog.server.cluster.controller import PartitionController
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import History, Operation, Outcome, Poll, Seen, Send
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.operators import (
    REVOKED,
    GrowthPlan,
    _are_all_there,
    still_changing,
    still_moving,
)
from raftlog.testing.simulator.scenario import (
    MOVES_SHARE,
    Copy,
    Ending,
    Scenario,
    Verdict,
    check,
    run,
)
from raftlog.testing.simulator.world import BrokerMachine, World
from raftlog.types import Offset, TopicPartition
from tests.server.cluster.simulated import Cluster, growing_world

SEED = 1_000


def test_a_part_of_the_seeds_has_growing_clusters() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(300)]
    plans = [scenario.growth for scenario in drawn if scenario.growth is not None]
    assert 10 <= len(plans) <= 60
    assert any(plan.leaves for plan in plans)
    assert all(plan.leaves <= plan.joins for plan in plans), "as many brokers as before remain"
    assert all(s.growth is None for s in drawn if s.faults.harmed or s.absent)
    assert Scenario.draw(SEED, brokers=1).growth is None


def test_brokers_join_and_leave_and_the_promises_are_kept() -> None:
    scenario = Scenario.draw(SEED, brokers=3, light=True)
    plan = GrowthPlan(joins=2, leaves=1, pause_s=0.3)
    said: list[str] = []
    verdict = run(replace(scenario, growth=plan), on_trace=said.append)
    assert verdict.is_good, verdict.violations
    assert sum("joins the cluster" in line for line in said) == 2
    assert any("was removed" in line for line in said)


def test_a_change_that_does_not_end_is_named() -> None:
    with World(3, brokers=3) as world:
        world.boot()
        world.run_until(lambda: all(map(_is_in, world.brokers)), limit_s=20)
        assert still_changing(world) == ""
        node = node_of(world.brokers[0])
        assert node is not None
        record = node.machine.brokers[3]
        node.machine._records.brokers[3] = msgspec.structs.replace(record, draining=True)
        assert "brokers [3] are not removed yet" in still_changing(world)


def _is_in(machine: BrokerMachine) -> bool:
    node = node_of(machine)
    return node is not None and node.membership.is_in


def test_a_plan_is_a_function_of_its_random_numbers() -> None:
    assert GrowthPlan.draw(Random(4)) == GrowthPlan.draw(Random(4))


# -- moving ----------------------------------------------------------------------------------------
#
# Seeds in which an operator moves replicas, and what they have to find.


CALM = FaultPlan(kinds=(), every_s=1.0)


def moving(seed: int, *, brokers: int = 3) -> Scenario:
    """A seed without faults, in which replicas move all the time."""
    drawn = Scenario.draw(seed, brokers=brokers, light=True)
    workload = replace(
        drawn.workload, moves_every_s=0.3, changes_factor=True, recreates_after_s=0.0, group=None
    )
    return replace(drawn, faults=CALM, workload=workload, absent=0, is_left_out=False)


def test_replicas_move_and_nothing_is_lost() -> None:
    verdict = run(moving(1))
    assert verdict.is_good, verdict.violations
    assert verdict.operations["reassign ok"] >= 3


def test_a_move_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionController, "_replicas_to_note", lambda *_: None)
    verdict = run(moving(1))
    assert any("a move does not end" in violation.message for violation in verdict.violations)


def test_some_seeds_have_moves_and_the_others_stay_what_they_were() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(200)]
    having = sum(scenario.workload.moves_every_s > 0 for scenario in drawn)
    assert 0.6 * MOVES_SHARE < having / len(drawn) < 1.4 * MOVES_SHARE
    for scenario in drawn:
        lossy = scenario.faults.harmed or scenario.faults.is_cache_lossy
        assert not (lossy and scenario.workload.changes_factor), "the budget is of the first factor"
    assert not Scenario.draw(1, brokers=3, mode="liveness").workload.moves_every_s


def test_without_brokers_nothing_moves() -> None:
    with World(1, brokers=3) as world:
        assert still_moving(world) == ""


# -- operator --------------------------------------------------------------------------------------
#
# The operator of a simulated cluster has it go on after the loss of most of its disks.


def test_a_cluster_outlives_the_loss_of_all_disks_but_one() -> None:
    """Nothing acknowledged is lost, and there is one cluster."""
    scenario = Scenario.draw(103, brokers=3, light=True)
    verdict = run(
        replace(
            scenario,
            faults=FaultPlan(kinds=("wipe_several",), every_s=0.5),
            workload=replace(scenario.workload, replication_factor=3),
            is_left_out=False,
        )
    )
    assert verdict.is_good, verdict.violations[:5]
    assert verdict.faults["wipe_several"] >= 1


def test_the_operator_asks_again_where_the_broker_that_was_asked_lost_its_power() -> None:
    """The answer never comes, and the client waits for it for minutes."""
    scenario = Scenario.draw(5300373, brokers=3, light=True, compacted=True, kafka=False)
    verdict = run(replace(scenario, two_disks=()))
    assert verdict.is_good, verdict.violations[:5]
    assert verdict.faults["wipe_several"] >= 1


def test_the_operator_waits_for_no_broker_outside_the_cluster() -> None:
    """It has no records, and never connects."""
    with growing_world(3, brokers=5) as world:
        cluster = Cluster(world)
        cluster.until(lambda: _are_all_there(world))
        world.network.cut("broker-1", "broker-5")
        assert _are_all_there(world)
        cluster.join(4)
        cluster.until(lambda: _are_all_there(world))
        world.network.cut("broker-1", "broker-4")
        assert not _are_all_there(world)


# -- recreation ------------------------------------------------------------------------------------
#
# A topic takes the place of another: what was acknowledged before is neither owed nor there.


P = TopicPartition("events", 0)
FORMER_LED_NS = 300
MEMBER, OTHER = "member-1/1.1", "member-2/1.1"


class Story:
    """The topic is deleted at 200 ns, and led for the last time at 300 ns."""

    def __init__(self) -> None:
        self.now = 0
        self.history = History(lambda: self.now)
        self.former = self.send(100, "p/1#1", 0)
        self.history.end(self.at(200, self.history.recreation("recreator")), Outcome.OK)
        self.either = self.send(250, "p/1#2", 1)
        self.new = self.send(400, "p/1#3", 0)

    def at(self, now: int, operation: Operation) -> Operation:
        operation.invoked_ns = now
        self.now = now + 10
        return operation

    def send(self, now: int, value: str, offset: int) -> Send:
        send = self.history.send("p/1", P, value, acks=-1, idempotent=True)
        send.offset = offset
        self.history.end(self.at(now, send), Outcome.OK)
        return send

    def poll(self, now: int, process: str, *records: Seen, topic_id: str = "") -> Poll:
        poll = self.history.poll(process)
        poll.records = {P: list(records)}
        poll.topic_ids = {P: topic_id} if topic_id else {}
        self.history.end(self.at(now, poll), Outcome.OK)
        return poll

    def owning(self, now: int, member: str, topic_id: str) -> None:
        self.at(now, self.history.owning(member, P, topic_id))

    def commit(self, now: int, member: str, offset: Offset, topic_id: str) -> None:
        commit = self.history.commit(member, {P: offset}, {P: topic_id})
        self.history.end(self.at(now, commit), Outcome.OK)

    def committed(self, now: int, offsets: Mapping[TopicPartition, Offset]) -> None:
        asked = self.history.committed("asker")
        asked.offsets = dict(offsets)
        self.history.end(self.at(now, asked), Outcome.OK)

    def kinds(self, *log: Seen) -> set[str]:
        copy = Copy("reader-1", P, log, 0, len(log))
        ending = Ending(
            readers=[copy],
            replicas=[copy._replace(who="broker-1")],
            topic_id="new",
            former_led_ns=FORMER_LED_NS,
            former_known_ns=FORMER_LED_NS,
        )
        return {violation.kind for violation in check(self.history, ending)}


def test_what_was_acknowledged_before_the_deletion_is_not_owed() -> None:
    story = Story()
    assert story.kinds(Seen(0, story.new.value, 0)) == set()


def test_what_was_acknowledged_in_between_may_be_there_or_not() -> None:
    story = Story()
    log = Seen(0, story.new.value, 0), Seen(1, story.either.value, 0)
    assert story.kinds(*log) == set()


def test_what_was_acknowledged_since_has_to_be_there() -> None:
    assert Story().kinds() == {"LOST-tail"}


def test_a_record_of_the_former_topic_is_not_in_the_new_one() -> None:
    story = Story()
    log = Seen(0, story.new.value, 0), Seen(1, story.former.value, 0)
    assert story.kinds(*log) == {"RESURRECTED"}


def test_consumers_may_have_fetched_before() -> None:
    story = Story()
    there, gone = Seen(0, story.new.value, 0), Seen(0, story.former.value, 0)
    story.poll(290, "c/1.1", gone)
    story.poll(500, "c/1.1", gone)
    assert story.kinds(there) == set()
    story.poll(600, "c/1.2", gone)
    assert "RESURRECTED" in story.kinds(there)


def test_members_know_the_topic_of_what_they_receive() -> None:
    """They may have fetched records of the former topic before, but not of the new one."""
    story = Story()
    there, gone = Seen(0, story.new.value, 0), Seen(0, story.former.value, 0)
    story.poll(600, f"{MEMBER}@1", gone, topic_id="former")
    assert story.kinds(there) == set()
    story.poll(700, f"{MEMBER}@2", gone, topic_id="new")
    assert "RESURRECTED" in story.kinds(there)


def test_only_later_ends_and_deletions_count() -> None:
    story = Story()
    for now, end in ((150, 5), (260, 5), (500, 1)):
        asking = story.history.end_offsets("c/1.1")
        asking.ends = {P: end}
        story.history.end(story.at(now, asking), Outcome.OK)
    deletion = story.history.deletion("admin", P, 1)
    story.history.end(story.at(150, deletion), Outcome.OK)
    assert story.kinds(Seen(0, story.new.value, 0)) == set()
    assert story.kinds() == {"LOST-tail"}
    deletion.completed_ns = 260  # it may have deleted records of either topic
    assert story.kinds() == set()


def test_a_group_is_checked_in_each_topic() -> None:
    story = Story()
    there = Seen(0, story.new.value, 0)
    for start, member, topic_id in ((110, MEMBER, "former"), (410, OTHER, "new")):
        story.owning(start, member, topic_id)
        story.poll(start + 10, f"{member}@1", there if topic_id == "new" else Seen(0, "p/1#1", 0),
                   topic_id=topic_id)  # fmt: skip
        story.commit(start + 20, member, 1, topic_id)
    story.poll(500, f"{MEMBER}@1", topic_id="former")  # the other one has a partition of another
    story.committed(150, {P: 1})
    story.committed(250, {})  # of either topic
    story.committed(600, {P: 1})
    assert story.kinds(there) == set()
    story.committed(180, {})
    assert story.kinds(there) == {"GROUP-OFFSET-ZERO"}


def test_an_offset_of_the_former_topic_is_none_of_the_new_one() -> None:
    story = Story()
    story.owning(110, MEMBER, "former")
    story.commit(120, MEMBER, 1, "former")
    story.committed(600, {})
    there = Seen(0, story.new.value, 0)
    assert story.kinds(there) == set()
    story.committed(700, {P: 1})
    assert "GROUP-OFFSET-PHANTOM" in story.kinds(there)


def test_a_topic_is_recreated_under_its_clients() -> None:
    drawn = Scenario.draw(4, brokers=3, light=True)
    workload = replace(drawn.workload, recreates_after_s=2.0)
    faults = FaultPlan(kinds=("client_kill", "kill"), every_s=0.7)
    verdict = run(replace(drawn, faults=faults, duration_s=6.0, workload=workload))
    assert verdict.is_good, verdict.violations[:10]
    assert verdict.operations["recreation ok"] == 1
    assert verdict.operations["send ok"] > 0


def test_some_seeds_of_safety_recreate_the_topic() -> None:
    drawn = [Scenario.draw(seed, brokers=3, light=True) for seed in range(150)]
    chosen = [scenario for scenario in drawn if scenario.workload.recreates_after_s]
    assert 5 < len(chosen) < 40
    assert all(s.workload.recreates_after_s < s.duration_s for s in chosen)
    assert any(s.workload.group for s in chosen)
    core = [Scenario.draw(seed, mode="liveness", brokers=3) for seed in range(50)]
    assert not any(scenario.workload.recreates_after_s for scenario in core)


# -- revoking --------------------------------------------------------------------------------------
#
# Simulations in which clients authenticate: what they do, and that a missing check is found.


REVOKING_SEED = 7


def secured(seed: int = REVOKING_SEED) -> Verdict:
    scenario = Scenario.draw(seed, brokers=3, light=True, kafka=False)
    return run(replace(scenario, workload=replace(scenario.workload, is_secured=True)))


def test_clients_authenticate_and_a_user_is_revoked() -> None:
    verdict = secured()
    assert verdict.is_good, verdict.violations
    assert verdict.operations["revoke ok"] > 0
    assert verdict.workload is not None
    done = [each.process for each in verdict.workload.history.operations if each.is_ok]
    for name in (REVOKED, "producer-1", "consumer-1"):
        assert any(process.startswith(f"{name}/") for process in done), name
    assert secured().digest == verdict.digest


def test_writes_of_a_deleted_user_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "_end_revoked", lambda _broker: None)
    verdicts = map(secured, range(1, 31))  # each finds it with a chance of a third
    found = next(verdict for verdict in verdicts if not verdict.is_good)
    assert {violation.kind for violation in found.violations} == {"REVOKED"}


def test_a_share_of_the_seeds_is_secured() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(100)]
    assert 3 <= sum(each.workload.is_secured for each in drawn) <= 30
    others = [Scenario.draw(seed, brokers=3, mode="liveness") for seed in range(30)]
    others += [Scenario.draw(seed, brokers=1) for seed in range(30)]
    assert not any(each.workload.is_secured for each in others)
