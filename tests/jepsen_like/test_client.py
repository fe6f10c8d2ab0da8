"""Outcomes are decided for every error; what is called is what the history says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from raftlog import errors
from raftlog.aio import AsyncConsumer, AsyncProducer
from raftlog.client.delivery import Delivery, DeliveryFuture, RangesFuture
from raftlog.errors import RaftlogError
from raftlog.testing.history import entries as values
from raftlog.testing.history.entries import (
    AnyEntry,
    Append,
    Commit,
    Committed,
    Ends,
    Poll,
    Recorder,
    Type,
    read,
)
from raftlog.types import ConsumerRecord, OffsetAndMetadata, TopicPartition
from raftlog_jepsen.client import (
    MISMATCH,
    NOTHING,
    OUTCOMES,
    Clients,
    Process,
    by_partition,
    commit,
    commit_outcome_of,
    committed,
    describe,
    offset_of,
    outcome_of,
)

PARTITION = TopicPartition("t", 1)


def tree(base: type[RaftlogError]) -> list[type[RaftlogError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in tree(child))]


# -- outcomes --------------------------------------------------------------------------------------


def test_every_error_is_decided() -> None:
    own = {error for error in tree(RaftlogError) if error.__module__ == "raftlog.errors"}
    assert set(OUTCOMES) == own, "decide in jepsen_like.client what it says of a send"


def test_only_what_comes_before_the_append_is_a_failure() -> None:
    for kind in tree(RaftlogError):
        validation = (
            errors.InvalidRequestError,
            errors.InvalidTopicError,
            errors.UnknownTopicError,
            errors.UnknownPartitionError,
            errors.RecordTooLargeError,
            errors.CorruptBatchError,
        )
        may_fail = issubclass(kind, (errors.RetriableError, *validation))
        assert outcome_of(kind("because")) == ("fail" if may_fail else "info")


def test_an_error_that_is_not_in_the_table_is_what_its_base_is() -> None:
    class NewRetriableError(errors.NotLeaderError):
        code = -1

    assert outcome_of(NewRetriableError()) == "fail"
    assert outcome_of(errors.from_code(199, "of a later release")) == "info"
    assert outcome_of(errors.from_code(99, "of a later release")) == "fail"


def test_errors_are_told_shortly() -> None:
    assert describe(errors.NotLeaderError("it is 2")) == "NotLeaderError: it is 2"
    assert len(describe(errors.NotLeaderError("x" * 5_000))) == 300


# -- processes -------------------------------------------------------------------------------------


def test_a_process_is_retired_once_for_all_that_it_had_under_way() -> None:
    process = Process("producer-1/1")
    first = process.name
    process.retire(first)
    second = process.name
    assert second != first
    process.retire(first)
    assert process.name == second
    process.retire(second)
    assert process.name not in {first, second}


# -- appends ---------------------------------------------------------------------------------------


class FakeProducer:
    """Gives out the futures it was made with, one for each call, or raises what stands there."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.sent: list[bytes] = []

    async def send(self, topic: str, value: bytes, *, partition: int) -> Any:
        assert (topic, partition) == PARTITION
        return self._answer([value])

    async def send_many(self, topic: str, records: Sequence[bytes], *, partition: int) -> Any:
        assert (topic, partition) == PARTITION
        return self._answer(records)

    def _answer(self, records: Sequence[bytes]) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, RaftlogError):
            raise answer
        self.sent += records
        return answer


def delivery(offset: int | None, error: RaftlogError | None = None) -> Delivery:
    made = Delivery("t", 1, 0)
    if error is not None:
        made.fail(error)
    elif offset is not None:
        made.succeed(offset, -1)
    return made


def one(offset: int) -> DeliveryFuture:
    return DeliveryFuture(delivery(offset), 0)


def lost(error: RaftlogError) -> DeliveryFuture:
    return DeliveryFuture(delivery(None, error), 0)


def many(*parts: tuple[int, int]) -> RangesFuture:
    return RangesFuture([(delivery(offset), 0, count) for offset, count in parts])


class Desk:
    """Clients, and what they recorded."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "history.jsonl"
        counter = itertools.count()
        self.recorder = Recorder(self.path, lambda: next(counter))
        self.clients = Clients(self.recorder)

    def entries(self) -> list[AnyEntry]:
        self.recorder.close()
        return list(read(self.path))

    async def append(self, producer: FakeProducer, count: int, **settings: Any) -> Type:
        group = await self.clients.begin(
            cast(AsyncProducer, producer), "p", PARTITION, count=count, padding=9, **settings
        )
        return await self.clients.finish(group)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    with suppress(ValueError):  # it is closed already
        made.recorder.close()


def completion(desk: Desk) -> Append:
    invoked, completed = desk.entries()
    assert isinstance(invoked, Append)
    assert isinstance(completed, Append)
    assert (invoked.type, invoked.process, invoked.partition) == ("invoke", "p", "t:1")
    assert (invoked.first, invoked.count) == (completed.first, completed.count)
    assert (invoked.acks, invoked.idempotent) == (completed.acks, completed.idempotent)
    return completed


def test_a_group_is_acknowledged_where_its_parts_are(desk: Desk) -> None:
    producer = FakeProducer(many((40, 2), (42, 1), (50, 2)))
    assert asyncio.run(desk.append(producer, 5)) == "ok"
    assert list(map(values.decode_value, producer.sent)) == [1, 2, 3, 4, 5]
    done = completion(desk)
    assert (done.type, done.error) == ("ok", "")
    assert done.offsets == [(1, 3, 40), (4, 2, 50)]
    assert desk.clients.acked == {"t:1": 52}


def test_values_are_never_given_out_twice(desk: Desk) -> None:
    producers = [FakeProducer(many((0, 3))), FakeProducer(errors.ThrottledError()),
                 FakeProducer(many((3, 2)))]  # fmt: skip
    for producer, count in zip(producers, (3, 4, 2), strict=True):
        asyncio.run(desk.append(producer, count))
    assert list(map(values.decode_value, producers[2].sent)) == [8, 9]


@pytest.mark.parametrize(
    ("answers", "ended", "offsets"),
    [
        ([one(7), one(8)], "ok", [(1, 2, 7)]),
        ([one(7), lost(errors.NotLeaderError())], "fail", [(1, 1, 7)]),
        ([lost(errors.NotEnoughReplicasError()), one(9)], "fail", [(2, 1, 9)]),
        ([lost(errors.CommitUnknownError()), one(9)], "info", [(2, 1, 9)]),
        ([lost(errors.NotLeaderError()), lost(errors.ConnectionLostError())], "info", []),
        ([one(7), errors.ThrottledError()], "fail", [(1, 1, 7)]),
        ([one(7), errors.ClosedError()], "info", [(1, 1, 7)]),
    ],
)
def test_one_by_one_each_record_counts(
    desk: Desk, answers: list[Any], ended: Type, offsets: list[Any]
) -> None:
    assert asyncio.run(desk.append(FakeProducer(*answers), 2, one_by_one=True)) == ended
    done = completion(desk)
    assert done.type == ended
    assert done.offsets == offsets
    assert (done.error == "") == (ended == "ok")


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (RangesFuture([(delivery(None, errors.RequestTimedOutError()), 0, 2)]), "info"),
        (RangesFuture([(delivery(None, errors.LeaderNotAvailableError()), 0, 2)]), "fail"),
        (errors.ThrottledError(), "fail"),
        (errors.ClosedError(), "info"),
    ],
)
def test_a_group_that_is_not_acknowledged_ends_as_its_error_says(
    desk: Desk, answer: Any, ended: Type
) -> None:
    assert asyncio.run(desk.append(FakeProducer(answer), 2)) == ended
    done = completion(desk)
    assert (done.type, done.offsets) == (ended, [])
    assert desk.clients.acked == {}


def test_what_one_leader_acknowledges_need_not_be_there_at_the_end(desk: Desk) -> None:
    asyncio.run(desk.append(FakeProducer(many((5, 1))), 1, acks=1, idempotent=False))
    assert desk.clients.acked == {}
    assert completion(desk).acks == 1


def test_another_exception_is_nobodys_outcome(desk: Desk) -> None:
    class Broken(FakeProducer):
        def _answer(self, records: Sequence[bytes]) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(desk.append(Broken(), 1))
    assert [entry.type for entry in desk.entries()] == ["invoke"]


# -- reading ---------------------------------------------------------------------------------------


class FakeConsumer:
    """Gives what it was made with."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        assert (timeout_ms, max_records) == (100, 50)
        return self._given()

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Any:
        assert partitions == [PARTITION]
        return self._given()

    def _given(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def record(partition: int, offset: int, value: bytes | None, epoch: int = 3) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, None, value, (), 0, epoch)


RECORDS = [
    record(1, 10, values.encode_value(5, 3)),
    record(0, 2, values.encode_value(9, 0)),
    record(1, 11, values.encode_value(6, 2_000)),
    record(1, 12, b"nonsense"),
    record(1, 13, None),
    record(1, 14, values.encode_value(7, 1), epoch=4),
]


async def poll(desk: Desk, answer: Any, positions: dict[TopicPartition, int]) -> int:
    consumer = cast(AsyncConsumer, FakeConsumer(answer))
    return await desk.clients.poll(
        consumer, "c", positions, wait_ms=100, records_max=50, source="replica"
    )


def test_records_come_by_partition_in_the_order_given() -> None:
    found = by_partition(RECORDS)
    assert found[TopicPartition("t", 0)] == [(2, 9, 3)]
    assert found[PARTITION] == [(10, 5, 3), (11, 6, 3), (12, -1, 3), (13, -1, 3), (14, 7, 4)]


def test_a_poll_says_where_it_was_and_what_it_got(desk: Desk) -> None:
    positions = {PARTITION: 10, TopicPartition("t", 0): 2}
    assert asyncio.run(poll(desk, RECORDS, positions)) == len(RECORDS)
    assert positions == {PARTITION: 15, TopicPartition("t", 0): 3}
    invoked, done = desk.entries()
    assert isinstance(invoked, Poll)
    assert isinstance(done, Poll)
    assert invoked.positions == {"t:1": 10, "t:0": 2}
    assert done.records == {
        "t:1": [(10, 2, 5, 3), (12, 1, -1, 3), (13, 1, -1, 3), (14, 1, 7, 4)],
        "t:0": [(2, 1, 9, 3)],
    }
    assert (invoked.source, done.source, done.type) == ("replica", "replica", "ok")


def test_a_poll_that_fails_is_recorded_and_raised(desk: Desk) -> None:
    positions = {PARTITION: 10}
    with pytest.raises(errors.OffsetOutOfRangeError):
        asyncio.run(poll(desk, errors.OffsetOutOfRangeError("gone"), positions))
    assert positions == {PARTITION: 10}
    _, done = desk.entries()
    assert isinstance(done, Poll)
    assert (done.type, done.error, done.records) == ("fail", "OffsetOutOfRangeError: gone", {})


@pytest.mark.parametrize(
    ("answer", "ended", "ends"),
    [({PARTITION: 7}, "ok", {"t:1": 7}), (errors.LeaderNotAvailableError("none"), "fail", {})],
)
def test_ends_are_recorded(desk: Desk, answer: Any, ended: Type, ends: dict[str, int]) -> None:
    consumer = cast(AsyncConsumer, FakeConsumer(answer))
    asking = desk.clients.ends(consumer, "e", [PARTITION])
    if ended == "ok":
        assert asyncio.run(asking) == answer
    else:
        with pytest.raises(RaftlogError):
            asyncio.run(asking)
    invoked, done = desk.entries()
    assert isinstance(done, Ends)
    assert (invoked.type, done.type, done.ends) == ("invoke", ended, ends)


# -- committing ------------------------------------------------------------------------------------
#
# Commits, and what is told about them, get into the history as they were.


ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class CommittingFakeConsumer:
    """Keeps what is committed; raises ``error`` if it has one."""

    def __init__(self, error: RaftlogError | None = None) -> None:
        self.error = error
        self.kept: dict[TopicPartition, OffsetAndMetadata] = {}

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.error is not None:
            raise self.error
        self.kept |= offsets

    async def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: bool
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        assert metadata
        if self.error is not None:
            raise self.error
        return {tp: self.kept.get(tp) for tp in partitions}


def told(tmp_path: Path, work: Any) -> tuple[Any, list[AnyEntry]]:
    recorder = Recorder(tmp_path / "history.jsonl", itertools.count(1).__next__)
    result = asyncio.run(work(recorder))
    recorder.close()
    return result, list(read(recorder.path))


def test_a_commit_and_what_is_read_back(tmp_path: Path) -> None:
    consumer = cast(AsyncConsumer, CommittingFakeConsumer())

    async def work(recorder: Recorder) -> Any:
        assert await commit(recorder, consumer, "c", "g", {ONE: 7})
        return await committed(recorder, consumer, "c", "g", [ONE, OTHER])

    result, entries = told(tmp_path, work)
    assert result == {ONE: 7, OTHER: NOTHING}
    kinds = [(type(entry), entry.type) for entry in entries]
    assert kinds == [
        (Commit, "invoke"), (Commit, "ok"), (Committed, "invoke"), (Committed, "ok"),
    ]  # fmt: skip
    done = entries[-1]
    assert isinstance(done, Committed)
    assert (done.group, done.offsets) == ("g", {"t:0": 7, "t:1": -1})


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (errors.UnknownMemberError("gone"), "info"),
        (errors.RequestTimedOutError("late"), "info"),
        (errors.InvalidGroupError("a bad name"), "fail"),
    ],
)
def test_only_what_is_certain_is_a_failure(tmp_path: Path, error: RaftlogError, ended: str) -> None:
    consumer = cast(AsyncConsumer, CommittingFakeConsumer(error))
    assert commit_outcome_of(error) == ended

    async def work(recorder: Recorder) -> Any:
        is_ok = await commit(recorder, consumer, "c", "g", {ONE: 7})
        return is_ok, await committed(recorder, consumer, "c", "g", [ONE])

    result, entries = told(tmp_path, work)
    assert result == (False, None)
    assert [entry.type for entry in entries] == ["invoke", ended, "invoke", "fail"]
    assert str(error) in getattr(entries[1], "error", "")


def test_an_offset_with_the_note_of_another_is_none_that_was_committed() -> None:
    assert offset_of(OffsetAndMetadata(7, "7")) == 7
    assert offset_of(OffsetAndMetadata(7, "")) == 7
    assert offset_of(OffsetAndMetadata(7, "8")) > MISMATCH
    assert offset_of(None) == NOTHING
