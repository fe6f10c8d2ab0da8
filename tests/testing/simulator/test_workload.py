"""What simulated clients do is recorded as it was, and judged by the errors that they get."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from raftlog.client.groups.member import Membership
from raftlog.config import TopicConfig
from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.values import assigned_partitions, subscribed_topics
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordTooLargeError,
    RequestTimedOutError,
    StorageFailedError,
    ThrottledError,
    UnknownProducerError,
)
from raftlog.record import BatchHeader
from raftlog.server.apis.fetch import Part, PartRead, Read
from raftlog.server.apis.produce import ACKS_LEADER, append
from raftlog.server.context import BrokerContext
from raftlog.server.kafka import fetch, produce
from raftlog.server.partition import Partition
from raftlog.testing.kafka_wire import assignment, subscription
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import (
    Commit,
    EndOffsets,
    Outcome,
    Owning,
    Poll,
    Seen,
    Send,
    StartOffsets,
    TimeLookup,
)
from raftlog.testing.simulator.operators import PLAN
from raftlog.testing.simulator.scenario import Scenario, Verdict, run
from raftlog.testing.simulator.workload import (
    COMPRESSIONS,
    DAY_MS,
    NAME_HEADER,
    RACKS,
    CompactionPlan,
    ConsumerPlan,
    GroupPlan,
    ProducerPlan,
    Reading,
    Workload,
    WorkloadPlan,
    by_partition,
    create_topic,
    outcome_of,
    read_all,
    record_name,
)
from raftlog.testing.simulator.world import World
from raftlog.types import Buffer, ConsumerRecord, Offset, TopicPartition


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotLeaderError, Outcome.FAIL),
        (BrokerUnavailableError, Outcome.FAIL),
        (ThrottledError, Outcome.FAIL),
        (RecordTooLargeError, Outcome.FAIL),
        (ConnectionLostError, Outcome.INFO),
        (RequestTimedOutError, Outcome.INFO),
        (OutOfOrderSequenceError, Outcome.INFO),
        (ClosedError, Outcome.INFO),
        (StorageFailedError, Outcome.INFO),
    ],
)
def test_an_error_says_what_became_of_a_send(error: type[RaftlogError], outcome: Outcome) -> None:
    assert outcome_of(error("why")) is outcome


def test_a_record_has_a_name_and_padding() -> None:
    assert record_name(b"producer-1/1.1#7     ", ()) == "producer-1/1.1#7"
    assert record_name(b"\xff ", ()) == "\\xff"
    assert record_name(None, ((NAME_HEADER, b"producer-1/1.1#8 "),)) == "producer-1/1.1#8"
    assert record_name(None, ()) == ""


def record(partition: int, offset: int, value: bytes) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, None, value, (), 0, 3)


def test_records_are_taken_apart_by_partition() -> None:
    found = by_partition([record(0, 1, b"a "), record(1, 5, b"b "), record(0, 2, b"c ")])
    assert found == {
        TopicPartition("t", 0): [Seen(1, "a", 3), Seen(2, "c", 3)],
        TopicPartition("t", 1): [Seen(5, "b", 3)],
    }


def test_a_reading_is_over_at_the_ends() -> None:
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    reading = Reading()
    reading.begin({zero: 0, one: 4}, {zero: 2, one: 4})
    assert reading.left == {zero: 2}
    reading.take([record(0, 0, b"a")])
    reading.reached(zero, 1)
    assert reading.left
    reading.take([record(0, 1, b"b"), record(0, 2, b"later")])
    reading.reached(zero, 3)
    assert not reading.left
    assert len(reading.records[zero]) == 3
    assert reading.records[one] == []


def calm(plan: WorkloadPlan, *, seconds: float = 5.0) -> tuple[Workload, Reading]:
    """A world in which nothing goes wrong, from its beginning to its end."""
    with World(1) as world:
        workload, reading = Workload(world, plan), Reading()
        world.boot()
        creator = world.add_client("creator", lambda machine: create_topic(workload, machine))
        creator.start()
        assert world.run_until(lambda: creator.is_done, limit_s=10)
        workload.start()
        world.run_for(seconds)
        workload.is_over = True
        assert world.run_until(lambda: workload.is_done, limit_s=60)
        reader = world.add_client("reader", lambda machine: read_all(workload, reading, machine))
        reader.start()
        assert world.run_until(lambda: reader.is_done, limit_s=60)
        world.check()
        return workload, reading


def plan_of(producer: ProducerPlan, **changes: object) -> WorkloadPlan:
    consumer = ConsumerPlan(
        begin="earliest",
        records_max=5,
        wait_ms=100,
        fetch_bytes_max=1_000,
        polls_max=10,
        pause_s=0.1,
        asks_ends=0.5,
    )
    plan = WorkloadPlan(
        partitions=2,
        replication_factor=1,
        topic_config={"segment.bytes": "16384"},
        producers=(producer, replace(producer, many=1.0)),
        consumers=(consumer, replace(consumer, begin="middle")),
        administrates=2.0,
        deletes=True,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


PRODUCER = replace(PLAN, burst_max=5, waits=0.5, session_s=2.0, close_s=30.0)


def test_where_nothing_goes_wrong_everything_is_ok_and_in_the_log() -> None:
    workload, reading = calm(plan_of(PRODUCER, administrates=0.0, deletes=False, askers=1))
    sends = workload.history.sends
    assert len(sends) > 100
    assert {send.outcome for send in sends} == {Outcome.OK}
    assert len({send.process for send in sends}) >= 4, "producers begin anew"
    for partition, records in reading.records.items():
        where = {send.value: send.offset for send in sends if send.partition == partition}
        assert {seen.value: seen.offset for seen in records} == where
    polls = [entry for entry in workload.history if isinstance(entry, Poll)]
    assert len({poll.process for poll in polls}) >= 4, "consumers begin anew"
    assert sum(len(records) for poll in polls for records in poll.records.values()) > 100
    starts = [entry for entry in workload.history if isinstance(entry, StartOffsets)]
    assert {frozenset(start.starts.values()) for start in starts if start.is_ok} == {frozenset([0])}
    lookups = [entry for entry in workload.history if isinstance(entry, TimeLookup)]
    assert any(lookup.is_ok and 0 <= lookup.found <= lookup.known for lookup in lookups)
    ends = [entry.ends for entry in workload.history if isinstance(entry, EndOffsets)]
    assert ends[-1] == {name: len(records) for name, records in reading.records.items()}


def test_of_a_compacted_topic_records_have_keys_and_some_have_no_value() -> None:
    compaction = CompactionPlan(
        keys=3,
        tombstones=0.3,
        topic_config={"cleanup.policy": "compact", "delete.retention.ms": str(DAY_MS)},
        interval_ms=100,
    )
    plan = plan_of(PRODUCER, administrates=0.0, deletes=False).with_compaction(compaction)
    workload, reading = calm(plan, seconds=2.0)
    sends = workload.history.sends
    assert {send.outcome for send in sends} == {Outcome.OK}
    assert {send.key for send in sends} == {"k0", "k1", "k2"}
    assert {send.is_tombstone for send in sends} == {True, False}
    for partition, records in reading.records.items():
        where = {send.value: send.offset for send in sends if send.partition == partition}
        assert {seen.value: seen.offset for seen in records} == where, "too few to be compacted"


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acknowledgements(acks: int) -> None:
    producer = replace(PRODUCER, acks=acks, idempotent=False)
    workload, _ = calm(plan_of(producer), seconds=2.0)
    sends: list[Send] = workload.history.sends
    assert {send.outcome for send in sends} == {Outcome.OK}
    assert all((send.offset >= 0) == (acks == 1) for send in sends)


def test_administrators_administrate() -> None:
    workload, _ = calm(plan_of(PRODUCER, administrates=20.0), seconds=8.0)
    done = {what.split()[0] for what in workload.history.counts() if what.endswith(" ok")}
    others = {"create_other", "delete_other", "extend_other", "alter", "describe"}
    assert done >= others | {"delete_records", "deletion"}


# -- members ---------------------------------------------------------------------------------------
#
# Members join, are disturbed, and come to their end; a cluster that shares badly is caught.


CALM = FaultPlan(kinds=(), every_s=1.0)
BROKEN_WITHIN_SEEDS = 20


def group_of(seed: int, *, is_restless: bool = False) -> Verdict:
    """A seed with a group, and with nothing wrong but what members go through.

    ``is_restless``: members leave, and lose their links, so often that both happen at once.
    """
    plan = GroupPlan.draw(Random(f"{seed}/calm"))
    if is_restless:
        plan = replace(
            plan, members=4, session_timeout_ms=3_000, polls_max=20, away_s=0.2, disturbs_s=0.5
        )
    drawn = Scenario.draw(seed, brokers=3, light=True)
    workload = replace(drawn.workload, group=plan)
    return run(
        replace(drawn, absent=0, is_left_out=False, faults=CALM, duration_s=8.0, workload=workload)
    )


def kinds_found(until: str, *, is_restless: bool = False) -> set[str]:
    kinds: set[str] = set()
    for seed in range(BROKEN_WITHIN_SEEDS):
        kinds |= {
            violation.kind for violation in group_of(seed, is_restless=is_restless).violations
        }
        if until in kinds:
            break
    return kinds


def test_partitions_go_from_member_to_member() -> None:
    verdicts = [group_of(seed) for seed in range(3)]
    owners = 0
    for verdict in verdicts:
        assert verdict.is_good, verdict.violations[:10]
        assert verdict.workload is not None
        history = list(verdict.workload.history)
        owners += len({entry.process for entry in history if isinstance(entry, Owning)})
        assert any(isinstance(entry, Commit) and entry.is_ok for entry in history)
    assert owners > 2 * len(verdicts)


def test_a_group_is_drawn_in_some_seeds_and_changes_no_other() -> None:
    drawn = [Scenario.draw(seed, brokers=3, light=True) for seed in range(100)]
    groups = [scenario.workload.group for scenario in drawn]
    assert 5 < sum(group is not None for group in groups) < 30
    for scenario in drawn:
        if scenario.workload.group is not None:
            assert not scenario.faults.harmed
            assert not scenario.absent
            assert scenario.duration_s > 4


def test_a_group_on_a_compacted_topic_is_drawn() -> None:
    drawn = [Scenario.draw(seed, brokers=3, light=True, compacted=True) for seed in range(100)]
    assert any(s.workload.group and not s.workload.recreates_after_s for s in drawn)
    assert any(s.workload.group and s.workload.recreates_after_s for s in drawn)


def test_a_core_serves_its_group() -> None:
    drawn = Scenario.draw(2, mode="liveness", brokers=3, light=True)
    workload = replace(drawn.workload, group=GroupPlan.draw(Random(1)))
    verdict = run(replace(drawn, absent=0, is_left_out=False, workload=workload))
    assert verdict.is_good, verdict.violations[:10]


def test_giving_members_what_others_have_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_out = Group.hand_out

    def careless(self: Group, names: Iterable[str]) -> None:
        owner = self.owner
        self.owner = {}
        hand_out(self, names)
        self.owner = owner | self.owner

    monkeypatch.setattr(Group, "hand_out", careless)
    assert "GROUP-TWO-OWNERS" in kinds_found("GROUP-TWO-OWNERS", is_restless=True)


def test_owning_beyond_the_session_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "tick", lambda *_, **__: None)
    assert "GROUP-TWO-OWNERS" in kinds_found("GROUP-TWO-OWNERS")


# -- plans -----------------------------------------------------------------------------------------
#
# Seeds stand for workloads that differ in everything that may matter.


def test_plans_differ_from_seed_to_seed() -> None:
    drawn = [WorkloadPlan.draw(Random(seed), replication_factor=2) for seed in range(100)]
    producers = [producer for plan in drawn for producer in plan.producers]
    assert {producer.acks for producer in producers} == {-1, 0, 1}
    assert {p.idempotent for p in producers if p.acks == -1} == {True, False}
    assert not any(p.idempotent for p in producers if p.acks != -1)
    assert {consumer.begin for plan in drawn for consumer in plan.consumers} == {
        "earliest",
        "latest",
        "middle",
    }
    assert {plan.replication_factor for plan in drawn} == {2}


def test_a_topic_may_ask_for_more_replicas() -> None:
    key = "min.insync.replicas"
    assert key not in WorkloadPlan.draw(Random(1), replication_factor=2).topic_config
    plan = WorkloadPlan.draw(Random(1), replication_factor=2, min_isr=2)
    assert plan.topic_config[key] == "2"


def test_compacted_topics_differ_and_are_legal() -> None:
    drawn = [CompactionPlan.draw(Random(seed)) for seed in range(100)]
    assert {plan.keeps_tombstones for plan in drawn} == {True, False}
    assert {plan.keys for plan in drawn} == {1, 5, 50}
    plan = WorkloadPlan.draw(Random(1), replication_factor=2)
    for compaction in drawn:
        compacted = plan.with_compaction(compaction)
        config = TopicConfig.from_text(compacted.topic_config)
        assert config.is_compacted
        assert config.retention_ms == -1
        assert compacted.producers == plan.producers
        assert compacted.lightened().compaction == compaction


def test_most_consumers_may_read_from_replicas() -> None:
    drawn = [WorkloadPlan.draw(Random(seed), replication_factor=2) for seed in range(50)]
    changed = [plan.with_replica_reads(Random(seed)) for seed, plan in enumerate(drawn)]
    consumers = [consumer for plan in changed for consumer in plan.consumers]
    assert {consumer.read_from for consumer in consumers} == {"leader", "replica"}
    assert {consumer.rack for consumer in consumers} == {None, *RACKS}
    assert not any(c.asks_ends for c in consumers if c.read_from == "replica")
    assert [plan.producers for plan in changed] == [plan.producers for plan in drawn]


def test_members_differ_from_seed_to_seed() -> None:
    drawn = [GroupPlan.draw(Random(seed)) for seed in range(50)]
    assert {plan.read_from for plan in drawn} == {"leader", "replica"}
    assert {plan.is_static for plan in drawn} == {True, False}
    assert all(plan.members > 1 for plan in drawn)


def test_a_light_plan_is_the_same_with_less_to_do() -> None:
    for seed in range(50):
        plan = WorkloadPlan.draw(Random(seed), replication_factor=2)
        light = plan.lightened()
        assert 2 <= len(light.producers) <= 3
        for producer, before in zip(light.producers, plan.producers, strict=False):
            assert producer.pause_s >= 0.15
            assert (producer.acks, producer.burst_max) == (before.acks, before.burst_max)
        assert len(light.consumers) == len(plan.consumers)
        assert light.administrates <= plan.administrates
        assert light.lightened() == light


# -- kafka -----------------------------------------------------------------------------------------
#
# Kafka clients of the simulator: they do what Kafka's do, and catch broken brokers.


KAFKA_BROKEN_WITHIN_SEEDS = 30
FULL_DISKS = FaultPlan(kinds=("disk_full",), every_s=0.3)
KAFKA_PRODUCER = replace(
    PLAN, burst_max=10, padding_max=100, session_s=2.0, close_s=30.0, is_kafka=True
)
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
    kafka = replace(KAFKA_PRODUCER, compression=compression)
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

    assert_each_is_stored_once(*run_clients(replace(KAFKA_PRODUCER, pause_s=0.01), disturb=disturb))
    assert sum(resets) > 5


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acknowledgements_in_kafka(acks: int) -> None:
    workload, _ = run_clients(replace(KAFKA_PRODUCER, acks=acks, idempotent=False))
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


def kafka_kinds_found(
    until: str, change: Callable[[Scenario], Scenario] = lambda scenario: scenario
) -> set[str]:
    """The kinds of violation that seeds find, up to the first seed that finds ``until``.

    ``change``: makes each scenario one in which it can be found.
    """
    kinds: set[str] = set()
    for seed in range(KAFKA_BROKEN_WITHIN_SEEDS):
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
    assert "EARLY-ACK" in kafka_kinds_found("EARLY-ACK")


def test_storing_a_repeated_batch_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def append_all(
        host: Partition, stored: bytes, header: BatchHeader, acks: int, done: Any
    ) -> None:
        unknown = header._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1)
        append(host, stored, unknown, acks, done)

    monkeypatch.setattr(produce, "append", append_all)
    assert "DUPLICATE" in kafka_kinds_found("DUPLICATE")


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
    assert "CRASH" in kafka_kinds_found("CRASH", with_full_disks)


def test_reading_above_the_high_watermark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadAll(Read):
        __slots__ = ()

        def _read_batches(
            self, part: Part, host: Partition, end: Offset, bytes_left: int
        ) -> list[bytes]:
            bytes_max = min(part.bytes_max, bytes_left)
            return host.read_uncommitted(start_offset=part.offset, bytes_max=bytes_max)

    monkeypatch.setattr(fetch, "Read", ReadAll)
    assert "EARLY-READ" in kafka_kinds_found("EARLY-READ")


def test_omitting_a_batch_from_a_response_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fetch._rows

    def all_but_the_first(
        context: BrokerContext, found: PartRead
    ) -> Generator[Any, Any, list[Buffer]]:
        pieces = yield from rows(context, found)  # two of each batch
        return pieces[2:] if len(pieces) > 2 else pieces

    monkeypatch.setattr(fetch, "_rows", all_but_the_first)
    assert "POLL-SKIP" in {kind.removeprefix("INT-") for kind in kafka_kinds_found("POLL-SKIP")}


# -- kafka member ----------------------------------------------------------------------------------
#
# Members of classic groups: partitions move between them, and a broken coordinator is caught.


# Of a coordinator without the check: the first of these seeds finds it.
BROKEN = range(55, 85)


def kafka_group_of(seed: int) -> Verdict:
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


def test_partitions_go_from_member_to_member_in_kafka() -> None:
    owners = 0
    for seed in (0, 1):  # static members, and others
        verdict = kafka_group_of(seed)
        assert verdict.is_good, verdict.violations[:10]
        assert verdict.workload is not None
        history = list(verdict.workload.history)
        owners += len({entry.process for entry in history if isinstance(entry, Owning)})
        assert any(isinstance(entry, Commit) and entry.is_ok for entry in history)
    assert owners > 4


def test_a_commit_of_a_former_generation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicGroup, "check_commit", lambda *_, **__: None)
    found = (each.kind for seed in BROKEN for each in kafka_group_of(seed).violations)
    assert "GROUP-TWO-OWNERS" in found


def test_members_of_half_of_the_groups_in_some_seeds_are_kafkas() -> None:
    drawn = [Scenario.draw(seed, brokers=3).workload for seed in range(300)]
    groups = [plan.group for plan in drawn if plan.group is not None and plan.has_kafka_reader]
    assert {group.is_kafka for group in groups} == {True, False}
    others = [plan.group for plan in drawn if plan.group is not None and not plan.has_kafka_reader]
    assert not any(group.is_kafka for group in others)
