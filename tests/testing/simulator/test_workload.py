"""What simulated clients do is recorded as it was, and judged by the errors that they get."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
)
from raftlog.testing.simulator.history import (
    EndOffsets,
    Outcome,
    Poll,
    Seen,
    Send,
    StartOffsets,
    TimeLookup,
)
from raftlog.testing.simulator.operators import PLAN
from raftlog.testing.simulator.workload import (
    DAY_MS,
    NAME_HEADER,
    CompactionPlan,
    ConsumerPlan,
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
from raftlog.types import ConsumerRecord, TopicPartition


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
