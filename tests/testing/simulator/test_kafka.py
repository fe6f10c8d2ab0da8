"""Kafka clients of the simulator: they do what Kafka's do, and catch broken brokers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.consumer_groups.values import assigned_partitions, subscribed_topics
from raftlog.errors import UnknownProducerError
from raftlog.record import BatchHeader
from raftlog.server.apis.fetch import Part, Read
from raftlog.server.apis.produce import ACKS_LEADER, append
from raftlog.server.kafka import fetch, produce
from raftlog.server.partition import Partition
from raftlog.testing.kafka_wire import assignment, subscription
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import Commit, EndOffsets, Outcome, Owning, Poll
from raftlog.testing.simulator.operators import PLAN
from raftlog.testing.simulator.scenario import Scenario, Verdict, run
from raftlog.testing.simulator.workload import (
    COMPRESSIONS,
    ConsumerPlan,
    GroupPlan,
    ProducerPlan,
    Reading,
    Workload,
    WorkloadPlan,
    create_topic,
    read_all,
)
from raftlog.testing.simulator.world import World
from raftlog.types import Buffer

BROKEN_WITHIN_SEEDS = 30
FULL_DISKS = FaultPlan(kinds=("disk_full",), every_s=0.3)
PRODUCER = replace(PLAN, burst_max=10, padding_max=100, session_s=2.0, close_s=30.0, is_kafka=True)
CONSUMER = ConsumerPlan(
    begin="earliest",
    records_max=5,
    wait_ms=100,
    fetch_bytes_max=1_000,
    polls_max=20,
    pause_s=0.1,
    asks_ends=0.5,
    is_kafka=True,
)


def run_clients(
    *producers: ProducerPlan, disturb: Callable[[World], object] = lambda _: None
) -> tuple[Workload, list[Reading]]:
    """Run producers and Kafka consumers with one broker for five seconds, and read all records with
    a client of each protocol. ``disturb`` is called ten times.
    """
    plan = WorkloadPlan(
        partitions=2,
        replication_factor=1,
        topic_config={"segment.bytes": "16384"},
        producers=producers,
        consumers=(CONSUMER, replace(CONSUMER, begin="middle")),
        administrates=0.0,
        deletes=False,
    )
    with World(1) as world:
        workload, readings = Workload(world, plan), [Reading(), Reading()]
        world.boot()
        workload.add("creator", lambda machine: create_topic(workload, machine))
        assert world.run_until(lambda: workload.is_done, limit_s=10)
        workload.start()
        for _ in range(10):
            world.run_for(0.5)
            disturb(world)
        workload.is_over = True
        assert world.run_until(lambda: workload.is_done, limit_s=60)
        workload.add("reader-1", lambda machine: read_all(workload, readings[0], machine))
        workload.add(
            "reader-2", lambda machine: read_all(workload, readings[1], machine, is_kafka=True)
        )
        assert world.run_until(lambda: workload.is_done, limit_s=60)
        world.check()
    return workload, readings


def assert_each_is_stored_once(workload: Workload, readings: list[Reading]) -> None:
    sends = workload.history.sends
    assert len(sends) > 100
    assert {send.outcome for send in sends} == {Outcome.OK}
    for partition, records in readings[0].records.items():
        where = {send.value: send.offset for send in sends if send.partition == partition}
        assert {seen.value: seen.offset for seen in records} == where
        assert [seen.offset for seen in records] == list(range(len(records)))
    assert readings[0] == readings[1], "a Kafka client reads the same records"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_clients_of_both_protocols_read_the_records_of_both(compression: str) -> None:
    kafka = replace(PRODUCER, compression=compression)
    native = replace(kafka, is_kafka=False, many=0.5)
    workload, readings = run_clients(kafka, native)
    assert_each_is_stored_once(workload, readings)
    assert len({send.process for send in workload.history.sends}) >= 4, "producers begin anew"
    polls = [entry for entry in workload.history if isinstance(entry, Poll)]
    assert sum(len(records) for poll in polls for records in poll.records.values()) > 100
    ends = [entry.ends for entry in workload.history if isinstance(entry, EndOffsets)]
    assert ends[-1] == {name: len(records) for name, records in readings[0].records.items()}


def test_a_batch_is_repeated_after_a_lost_connection_and_stored_once() -> None:
    resets: list[int] = []

    def disturb(world: World) -> None:
        resets.append(world.network.reset_connections("producer-1", "broker-1"))

    assert_each_is_stored_once(*run_clients(replace(PRODUCER, pause_s=0.01), disturb=disturb))
    assert sum(resets) > 5


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acknowledgements(acks: int) -> None:
    workload, _ = run_clients(replace(PRODUCER, acks=acks, idempotent=False))
    sends = workload.history.sends
    assert {send.outcome for send in sends} == {Outcome.OK}
    assert all((send.offset >= 0) == (acks == 1) for send in sends)


def test_some_clients_of_about_half_of_the_seeds_are_kafkas() -> None:
    drawn = [Scenario.draw(seed, brokers=3).workload for seed in range(100)]
    share = sum(plan.has_kafka_reader for plan in drawn)
    assert 30 < share < 70
    clients = [each for plan in drawn for each in (*plan.producers, *plan.consumers)]
    assert {each.is_kafka for each in clients} == {True, False}
    assert not any(plan.has_kafka_reader for plan in drawn if plan.is_secured)
    assert not any(c.is_kafka for plan in drawn for c in plan.consumers if c.read_from != "leader")
    for seed, plan in enumerate(drawn):
        without = Scenario.draw(seed, brokers=3, kafka=False).workload
        assert not any(each.is_kafka for each in (*without.producers, *without.consumers))
        assert without == plan or plan.has_kafka_reader


def test_the_same_seed_is_the_same_run() -> None:
    busy = next(seed for seed in range(20) if kafka_scenario(seed).workload.has_kafka_reader)
    first, again = run(kafka_scenario(busy)), run(kafka_scenario(busy))
    assert (first.digest, first.events) == (again.digest, again.events)
    assert first.operations == again.operations


# -- broken builds ---------------------------------------------------------------------------------


def kafka_scenario(seed: int) -> Scenario:
    """A scenario whose clients are Kafka's, and whose producers are idempotent."""
    scenario = Scenario.draw(seed, brokers=3, light=True)
    plan = scenario.workload
    producers = [
        replace(each, acks=-1, idempotent=True, is_kafka=True, many=0.0) for each in plan.producers
    ]
    consumers = [replace(each, read_from="leader", is_kafka=True) for each in plan.consumers]
    workload = replace(
        plan,
        producers=tuple(producers),
        consumers=tuple(consumers),
        has_kafka_reader=True,
        is_secured=False,
    )
    return replace(scenario, workload=workload)


def kinds_found(
    until: str, change: Callable[[Scenario], Scenario] = lambda scenario: scenario
) -> set[str]:
    """The kinds of violation that seeds find, up to the first seed that finds ``until``.

    ``change``: makes each scenario one in which it can be found.
    """
    kinds: set[str] = set()
    for seed in range(BROKEN_WITHIN_SEEDS):
        verdict = run(change(kafka_scenario(seed)))
        kinds |= {violation.kind for violation in verdict.violations}
        if until in kinds:
            break
    return kinds


def test_acknowledging_before_the_commit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def append_early(
        host: Partition, stored: bytes, header: BatchHeader, _acks: int, done: Any
    ) -> None:
        append(host, stored, header, ACKS_LEADER, done)

    monkeypatch.setattr(produce, "append", append_early)
    assert "EARLY-ACK" in kinds_found("EARLY-ACK")


def test_storing_a_repeated_batch_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def append_all(
        host: Partition, stored: bytes, header: BatchHeader, acks: int, done: Any
    ) -> None:
        unknown = header._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1)
        append(host, stored, unknown, acks, done)

    monkeypatch.setattr(produce, "append", append_all)
    assert "DUPLICATE" in kinds_found("DUPLICATE")


def test_unknown_producers_of_batches_behind_a_refused_one_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was: producers of librdkafka failed permanently."""

    def with_full_disks(scenario: Scenario) -> Scenario:
        """Disks that are full for some time refuse bursts of several batches."""
        producers = [replace(each, burst_max=10) for each in scenario.workload.producers]
        workload = replace(scenario.workload, producers=tuple(producers))
        return replace(scenario, workload=workload, faults=FULL_DISKS)

    monkeypatch.setattr(produce, "OutOfOrderSequenceError", UnknownProducerError)
    assert "CRASH" in kinds_found("CRASH", with_full_disks)


def test_reading_above_the_high_watermark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadAll(Read):
        __slots__ = ()

        def _read_batches(self, part: Part, host: Partition, bytes_left: int) -> list[bytes]:
            bytes_max = min(part.bytes_max, bytes_left)
            return host.read_uncommitted(start_offset=part.offset, bytes_max=bytes_max)

    monkeypatch.setattr(fetch, "Read", ReadAll)
    assert "EARLY-READ" in kinds_found("EARLY-READ")


def test_omitting_a_batch_from_a_response_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fetch._rows

    def all_but_the_first(chunks: list[bytes]) -> Generator[Any, Any, list[Buffer]]:
        pieces = yield from rows(chunks)  # two of each batch
        return pieces[2:] if len(pieces) > 2 else pieces

    monkeypatch.setattr(fetch, "_rows", all_but_the_first)
    assert "POLL-SKIP" in {kind.removeprefix("INT-") for kind in kinds_found("POLL-SKIP")}


# -- kafka member ----------------------------------------------------------------------------------
#
# Members of classic groups: partitions move between them, and a broken coordinator is caught.


CALM = FaultPlan(kinds=(), every_s=1.0)
# Of a coordinator without the check: the first of these seeds finds it.
BROKEN = range(10, 40)


def group_of(seed: int) -> Verdict:
    """A seed without faults of brokers, whose members leave often, and lose their links."""
    plan = replace(
        GroupPlan.draw(Random(f"{seed}/calm")),
        is_kafka=True,
        members=4,
        polls_max=20,
        away_s=0.2,
        disturbs_s=0.5,
    )
    drawn = Scenario.draw(seed, brokers=3, light=True, kafka=False)
    workload = replace(drawn.workload, group=plan, is_secured=False)
    return run(
        replace(drawn, absent=0, is_left_out=False, faults=CALM, duration_s=8.0, workload=workload)
    )


def test_members_write_the_consumer_protocol() -> None:
    assert subscribed_topics(subscription("b", "a")) == ("a", "b")
    assert assigned_partitions(assignment("t", *range(1, 5, 2))) == {"t": (1, 3)}


def test_partitions_go_from_member_to_member() -> None:
    owners = 0
    for seed in (0, 1):  # static members, and others
        verdict = group_of(seed)
        assert verdict.is_good, verdict.violations[:10]
        assert verdict.workload is not None
        history = list(verdict.workload.history)
        owners += len({entry.process for entry in history if isinstance(entry, Owning)})
        assert any(isinstance(entry, Commit) and entry.is_ok for entry in history)
    assert owners > 4


def test_a_commit_of_a_former_generation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicGroup, "check_commit", lambda *_, **__: None)
    verdicts = map(group_of, BROKEN)
    found = next(verdict for verdict in verdicts if not verdict.is_good)
    assert "GROUP-TWO-OWNERS" in {violation.kind for violation in found.violations}


def test_members_of_half_of_the_groups_in_some_seeds_are_kafkas() -> None:
    drawn = [Scenario.draw(seed, brokers=3).workload for seed in range(300)]
    groups = [plan.group for plan in drawn if plan.group is not None and plan.has_kafka_reader]
    assert {group.is_kafka for group in groups} == {True, False}
    others = [plan.group for plan in drawn if plan.group is not None and not plan.has_kafka_reader]
    assert not any(group.is_kafka for group in others)
