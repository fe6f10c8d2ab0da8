"""Where a consumer is: positions, generations, chunks, and what moving does to them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftlog import limits
from raftlog.client import subscription as subscription_module
from raftlog.client.subscription import (
    Batch,
    Chunk,
    PartitionFetchState,
    Subscription,
    Wanted,
    check_partitions,
    check_topics,
)
from raftlog.errors import CorruptBatchError, InvalidRequestError, RaftlogError
from raftlog.record import decode_records
from raftlog.types import TopicPartition
from tests.client.interrupts import interrupted
from tests.client.samples import consumer_settings, stored_batch

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def subscription(*partitions: TopicPartition, **settings: Any) -> Subscription:
    made = Subscription(consumer_settings(**settings))
    made.assign(partitions or [A])
    return made


def wants(made: Subscription, now: float = 0.0) -> dict[TopicPartition, int | None]:
    return {want.part.tp: want.offset for want in made.wanted(now)[0]}


def want(made: Subscription, tp: TopicPartition = A) -> Wanted:
    (found,) = [wanted for wanted in made.wanted(0.0)[0] if wanted.part.tp == tp]
    made.started([found])
    return found


def at(made: Subscription, offset: int, tp: TopicPartition = A) -> None:
    made.found(want(made, tp), offset)


def batches(first: int, *counts: int) -> list[Batch]:
    """Batches of so many records each, from offset ``first`` on."""
    made = []
    for count in counts:
        data = stored_batch(first, *[b"%d" % (first + index) for index in range(count)])
        made.append(Batch(memoryview(data), first, first + count))
        first += count
    return made


def bring(made: Subscription, *counts: int, tp: TopicPartition = A) -> None:
    wanted = want(made, tp)
    assert wanted.offset is not None
    found = batches(wanted.offset, *counts)
    made.fetched(wanted, found, sum(len(batch.data) for batch in found))


def decode(chunk: Chunk) -> None:
    if not chunk.records:
        chunk.records = decode_records(
            chunk.batches[0].data, topic="t", partition=0, from_offset=chunk.part.position or 0
        )


def read(made: Subscription, count: int) -> list[int]:
    """As an application reads: some records of the first chunk."""
    chunk = made.next_chunk()
    if chunk is None:
        return []
    decode(chunk)
    chunk.end_iteration()
    start = made.first_unread(chunk)
    found = [record.offset for record in chunk.records[start : start + count]]
    if start + len(found) == len(chunk.records):
        made.finish_batch(chunk)
    else:
        chunk.part.position = found[-1] + 1
    return found


def test_a_position_is_looked_up_and_then_fetched_from() -> None:
    made = subscription()
    assert wants(made) == {A: None}
    at(made, 7)
    assert wants(made) == {A: 7}
    bring(made, 2, 3)
    assert wants(made) == {A: 12}
    assert read(made, 10) == [7, 8]
    assert made.part(A).position == 9
    assert read(made, 1) == [9]
    assert read(made, 10) == [10, 11]
    assert read(made, 10) == []


def test_what_is_asked_for_is_not_asked_for_again() -> None:
    made = subscription(A, B)
    assert set(wants(made)) == {A, B}
    want(made, A)
    assert set(wants(made)) == {B}


def test_moving_drops_what_is_fetched_and_what_is_on_its_way() -> None:
    made = subscription()
    at(made, 0)
    bring(made, 5)
    on_its_way = want(made)
    made.seek(A, 100)
    assert made.next_chunk() is None
    made.fetched(on_its_way, batches(5, 5), 100)
    made.failed(on_its_way, CorruptBatchError("late"))
    made.delayed(on_its_way, 50.0)
    made.lost(on_its_way, "latest")
    made.found(on_its_way, 3)
    assert wants(made) == {A: 100}
    assert made.next_chunk() is None


def test_of_two_look_ups_of_one_position_the_first_counts() -> None:
    made = subscription()
    first = want(made)
    second = Wanted(first.part, first.generation, None)  # the application asked meanwhile
    made.found(second, 0)
    bring(made, 5)
    fetch = want(made)
    made.found(first, 0)
    made.delayed(first, 50.0)
    assert wants(made) == {}, "the fetch is still under way"
    made.fetched(fetch, batches(5, 5), 100)
    assert wants(made) == {A: 10}


def test_seeking_is_at_once_even_while_a_fetch_waits() -> None:
    made = subscription()
    at(made, 0)
    want(made)
    assert wants(made) == {}
    made.seek(A, 3)
    assert wants(made) == {A: 3}


def test_a_reset_looks_the_position_up_anew() -> None:
    made = subscription(auto_offset_reset="error")
    made.seek(A, 3)
    made.reset(A, "latest")
    assert wants(made) == {A: None}
    assert made.part(A).reset == "latest"


def test_assigning_keeps_those_that_stay() -> None:
    made = subscription(A, B)
    at(made, 0, A)
    at(made, 0, B)
    bring(made, 2, tp=A)
    bring(made, 2, tp=B)
    kept = made.part(B)
    made.assign([B, B])
    assert made.part(B) is kept
    assert read(made, 9) == [0, 1]
    assert made.next_chunk() is None
    with pytest.raises(InvalidRequestError, match="t:0 is not assigned"):
        made.part(A)
    made.assign([])
    assert not made.parts


def test_added_partitions_are_read_from_their_beginning() -> None:
    made = subscription(A, auto_offset_reset="latest")
    made.add([A, B])
    assert {tp: part.reset for tp, part in made.parts.items()} == {A: "latest", B: "earliest"}


def test_paused_partitions_give_nothing_and_keep_what_they_have() -> None:
    made = subscription(A, B)
    at(made, 0, A)
    at(made, 0, B)
    bring(made, 2, tp=A)
    bring(made, 1, tp=B)
    made.set_paused([A], True)
    assert set(wants(made)) == {B}
    assert read(made, 9) == [0]
    assert read(made, 9) == []
    woken: list[bool] = []
    made.when_ready(lambda: woken.append(True))
    assert not woken
    made.set_paused([A], False)
    assert woken
    assert read(made, 9) == [0, 1]


def test_an_error_takes_its_turn_is_told_once_and_then_fetched_again() -> None:
    made = subscription()
    at(made, 0)
    bring(made, 1)
    wanted = want(made)
    made.failed(wanted, CorruptBatchError("bad"))
    assert wants(made) == {}, "not before somebody has seen it"
    assert read(made, 9) == [0]
    assert made.next_chunk(errors=False) is None
    with pytest.raises(CorruptBatchError, match="bad"):
        made.next_chunk()
    assert made.part(A).position == 1
    assert wants(made) == {A: 1}


def test_out_of_range_is_met_by_the_policy_once_the_rest_is_read() -> None:
    made = subscription(auto_offset_reset="latest")
    at(made, 0)
    bring(made, 2)
    made.lost(want(made), "latest")
    assert made.part(A).position == 0
    assert wants(made) == {}, "nothing is fetched, in vain, before the rest is read"
    assert read(made, 9) == [0, 1]
    assert made.next_chunk() is None
    assert made.part(A).position is None
    assert made.part(A).reset == "latest"
    assert made.starved, "the fetcher is told that there is something to look up"
    assert wants(made) == {A: None}


def test_out_of_range_is_met_at_once_where_nothing_is_left_to_read() -> None:
    made = subscription()
    at(made, 7)
    made.lost(want(made), "earliest")
    assert (made.part(A).position, made.part(A).reset) == (None, "earliest")


def test_a_delay_counts_failures_and_ends() -> None:
    made = subscription(A, B)
    at(made, 0, A)
    at(made, 0, B)
    made.delayed(want(made, A), 5.0)
    made.delayed(want(made, B), 4.0)
    wanted, again_at = made.wanted(3.0)
    assert (wanted, again_at) == ([], 4.0)
    assert wants(made, 5.0) == {A: 0, B: 0}
    assert made.part(A).failures == 1
    bring_at = made.wanted(6.0)[0]
    made.started(bring_at)
    made.fetched(bring_at[0], [], 0)
    assert made.part(bring_at[0].part.tp).failures == 0


def test_fetching_ahead_is_bounded_and_room_is_told_of() -> None:
    made = subscription(max_partition_fetch_bytes=100)
    at(made, 0)
    brought = 0
    while wants(made):
        bring(made, 1)
        brought += 1
    assert brought <= limits.PREFETCH_FETCHES_MAX + 1
    assert made.starved
    read(made, 9)
    assert wants(made)
    assert not made.starved


def test_fetching_ahead_is_bounded_over_all_partitions() -> None:
    many = [TopicPartition("t", number) for number in range(20)]
    made = subscription(*many, max_partition_fetch_bytes=limits.FETCH_BYTES_MAX)
    for tp in many:
        made.seek(tp, 0)
    for tp in many[:2]:
        assert made.room() > limits.PREFETCH_BYTES_MAX // 3
        made.fetched(want(made, tp), batches(0, 1), limits.PREFETCH_BYTES_MAX // 2)
    assert made.room() == 1
    assert wants(made) == {}
    assert made.starved
    read(made, 1)
    assert len(wants(made)) == 20


def test_partitions_take_turns_at_the_front() -> None:
    made = subscription(A, B)
    at(made, 0, A)
    at(made, 0, B)
    bring(made, 1, tp=A)
    assert list(wants(made)) == [B, A]
    bring(made, 1, tp=B)
    assert list(wants(made)) == [A, B]


def test_several_chunks_are_taken_at_once() -> None:
    made = subscription(A, B)
    at(made, 0, A)
    at(made, 0, B)
    bring(made, 2, 2, tp=A)
    bring(made, 1, tp=B)
    bring(made, 3, tp=A)
    chunk = made.next_chunk()
    assert chunk is not None
    taken = made.take_batches(chunk, limits.MIB)
    assert [batch.next_offset for batch in taken] == [2, 4, 7]
    assert len(made.take_batches(chunk, 1)) == 1
    made.finish_batches(chunk, taken)
    assert made.part(A).position == 7
    assert read(made, 9) == [0], "the other partition's turn"
    assert made._buffered_bytes == 0
    made.finish_batches(chunk, taken)
    assert made.part(A).position == 7


def test_an_iteration_ends_when_something_else_moves_on() -> None:
    made = subscription()
    at(made, 0)
    bring(made, 6)
    chunk = made.next_chunk()
    assert chunk is not None
    decode(chunk)
    for move in ("pause", "read", "seek"):
        chunk.is_iterated = True
        iteration = iter(chunk.records)
        record = next(iteration)
        chunk.part.position = record.offset + 1
        if move == "pause":
            made.set_paused([A], True)
            made.set_paused([A], False)
        elif move == "read":
            assert read(made, 1) == [chunk.part.position - 1]
        else:
            made.seek(A, 0)
        assert list(iteration) == [], move


def test_a_wait_ends_with_data_an_error_or_the_end() -> None:
    made = subscription()
    at(made, 0)
    woken: list[str] = []
    made.when_ready(lambda: woken.append("data"))
    bring(made, 1)
    made.when_ready(lambda: woken.append("at once"))
    read(made, 9)
    made.when_ready(lambda: woken.append("error"))
    made.failed(want(made), CorruptBatchError("bad"))
    with pytest.raises(RaftlogError):
        made.next_chunk()
    made.when_ready(lambda: woken.append("shut"))
    made.shut()
    made.when_ready(lambda: woken.append("closed"))
    assert woken == ["data", "at once", "error", "shut", "closed"]


@pytest.mark.parametrize(
    "partitions", ["t", A, ["t:0"], [("t", "0")], [(0, "t")], [("t", True)], [("t", 0, 0)], [None]]
)
def test_what_is_no_list_of_partitions_is_refused(partitions: Any) -> None:
    with pytest.raises(TypeError, match="TopicPartition"):
        check_partitions(partitions)


def test_partitions_are_taken_as_pairs() -> None:
    assert check_partitions([("t", 0), B]) == [A, B]
    assert check_partitions({A: 3}) == [A]
    with pytest.raises(InvalidRequestError, match="from 0"):
        check_partitions([("t", -1)])


def test_topics_are_a_list_of_texts() -> None:
    assert check_topics(("a", "b", "a")) == ["a", "b"]
    with pytest.raises(TypeError, match=r"Pass \['clicks'\]"):
        check_topics("clicks")
    with pytest.raises(TypeError, match="3"):
        check_topics([3])  # type: ignore[list-item]


class SubscriptionModel(RuleBasedStateMachine):
    """A log that grows, read with any mix of calls: each record once, in order, from any seek."""

    def __init__(self) -> None:
        super().__init__()
        self.made = subscription()
        at(self.made, 0)
        self.log: list[Batch] = []
        self.expected = 0
        self.on_its_way: list[Wanted] = []

    @property
    def end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def grow(self, counts: list[int]) -> None:
        self.log += batches(self.end, *counts)

    @rule()
    def ask(self) -> None:
        wanted = self.made.wanted(0.0)[0]
        self.made.started(wanted)
        self.on_its_way += wanted

    @rule(data=st.data(), most=st.integers(1, 3))
    def answer(self, data: st.DataObject, most: int) -> None:
        if not self.on_its_way:
            return
        wanted = data.draw(st.sampled_from(self.on_its_way))
        self.on_its_way.remove(wanted)
        offset = wanted.offset
        assert offset is not None
        found = [batch for batch in self.log if batch.next_offset > offset][:most]
        self.made.fetched(wanted, found, sum(len(batch.data) for batch in found))

    @rule(count=st.integers(1, 5))
    def poll(self, count: int) -> None:
        for offset in read(self.made, count):
            assert offset == self.expected
            self.expected += 1

    @rule(count=st.integers(1, 5))
    def iterate(self, count: int) -> None:
        chunk = self.made.next_chunk()
        if chunk is None:
            return
        decode(chunk)
        chunk.end_iteration()
        chunk.is_iterated = True
        for record in chunk.records[self.made.first_unread(chunk) :][:count]:
            chunk.part.position = record.offset + 1
            assert record.offset == self.expected
            self.expected += 1

    @rule()
    def take_all(self) -> None:
        chunk = self.made.next_chunk()
        if chunk is not None:
            taken = self.made.take_batches(chunk, 400)
            self.made.finish_batches(chunk, taken)
            self.expected = taken[-1].next_offset

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        self.expected = data.draw(st.integers(0, self.end))
        self.made.seek(A, self.expected)

    @rule()
    def rewind(self) -> None:
        self.made.came_damaged(self.made.part(A))

    @invariant()
    def the_position_is_what_was_read(self) -> None:
        assert self.made.part(A).position == self.expected
        assert self.made._buffered_bytes == sum(c.size_bytes for c in self.made._chunks)
        assert self.made.part(A).buffered_bytes == self.made._buffered_bytes


TestSubscriptionModel = SubscriptionModel.TestCase


@pytest.mark.parametrize("kind", ["read", "read all", "take all", "seek", "pause", "error"])
def test_ctrl_c_anywhere_loses_no_place(kind: str) -> None:
    at_place = 0
    while True:
        at_place += 1
        made = subscription()
        at(made, 0)
        bring(made, 3, 2)
        bring(made, 2)
        if kind == "error":
            made.failed(want(made), CorruptBatchError("bad"))
        work = partial(do, made, kind)
        if not interrupted(at_place, work, subscription_module):
            break
        assert made.lock.acquire(blocking=False), "the lock is free"
        made.lock.release()
        made.set_paused([A], False)
        position = made.part(A).position
        assert position is not None
        rest: list[int] = []
        with suppress(CorruptBatchError):
            while found := read(made, 9):
                rest += found
        assert rest == list(range(position, position + len(rest))), "on from the position, in order"
        assert made._buffered_bytes == sum(chunk.size_bytes for chunk in made._chunks)
        assert made.part(A).buffered_bytes == made._buffered_bytes
    assert at_place > 3


def do(made: Subscription, kind: str) -> None:
    if kind == "read":
        read(made, 2)
        read(made, 1)
    elif kind == "read all":
        while read(made, 9):
            pass
    elif kind == "take all":
        chunk = made.next_chunk()
        assert chunk is not None
        made.finish_batches(chunk, made.take_batches(chunk, limits.MIB))
    elif kind == "seek":
        made.seek(A, 1)
    elif kind == "pause":
        chunk = made.next_chunk()
        assert chunk is not None
        decode(chunk)
        chunk.is_iterated = True
        made.set_paused([A], True)
    else:
        with suppress(CorruptBatchError):
            while read(made, 9):
                pass


# -- fetch state -----------------------------------------------------------------------------------
#
# One partition as a consumer knows it: what of it is processed.


@pytest.mark.parametrize(
    ("position", "unprocessed", "is_iterated", "processed"),
    [
        (None, None, False, None),
        (7, None, False, 7),
        (7, None, True, 7),
        (7, 3, False, 3),  # polled: all since then may be in hand
        (7, 3, True, 6),  # iterated: the last one is
        (3, 3, True, 3),  # nothing is handed out yet
        (None, 3, True, None),
    ],
)
def test_processed_is_what_is_not_in_hand(
    position: int | None, unprocessed: int | None, is_iterated: bool, processed: int | None
) -> None:
    part = PartitionFetchState(
        A, position, "earliest", unprocessed=unprocessed, is_iterated=is_iterated
    )
    assert part.processed == processed


def test_what_has_no_end_is_fetched_as_it_is() -> None:
    part = PartitionFetchState(A, 0, "error")
    batches = [Batch(memoryview(b""), 0, 10), Batch(memoryview(b""), 10, 20)]
    assert part.bytes_to_fetch(1_000) == 1_000
    assert part.up_to_end(batches, 500) == batches


@pytest.mark.parametrize(
    ("until", "count"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (30, 3), (99, 3)]
)
def test_batches_above_the_end_are_left_out(until: int, count: int) -> None:
    part = PartitionFetchState(A, 0, "error", until=until)
    batches = [Batch(memoryview(b""), end - 10, end) for end in (10, 20, 30)]
    assert part.up_to_end(batches, 500) == batches[:count]


def test_about_as_much_is_fetched_as_there_is_to_the_end() -> None:
    part = PartitionFetchState(A, 0, "error", fetch_offset=1_000, until=101_000)
    assert part.bytes_to_fetch(1 << 30) == 100_000 * 128 * 9 // 8
    assert part.bytes_to_fetch(5_000) == 5_000
    part.up_to_end([Batch(memoryview(b""), 1_000, 2_000)], 20_000)  # 20 bytes each
    part.fetch_offset = 2_000
    assert part.bytes_to_fetch(1 << 30) == 99_000 * 20 * 9 // 8
    part.fetch_offset = 100_999
    assert part.bytes_to_fetch(1 << 30) == 64 * limits.KIB


# -- subscription interrupting ---------------------------------------------------------------------
#
# Interrupting an application that reads, and what it has in hand at that moment.


def test_an_iteration_ends_between_two_records_and_nothing_is_skipped() -> None:
    made = subscription()
    at(made, 0)
    bring(made, 6)
    chunk = made.next_chunk()
    assert chunk is not None
    decode(chunk)
    run = made.begin_run(chunk)
    assert run is not None
    seen = []
    for record in run:
        made.part(A).position = record.offset + 1
        seen.append(record.offset)
        if record.offset == 2:
            made.interrupt()
    assert (seen, made.part(A).processed) == ([0, 1, 2], 2)
    assert made.begin_run(chunk) is None, "there is something to do first"
    made.interrupted = False
    made.all_processed()
    assert made.part(A).processed == 3
    again = made.begin_run(chunk)
    assert again is not None
    assert [record.offset for record in again] == [3, 4, 5]


def test_a_wait_ends_when_there_is_something_to_do() -> None:
    made = subscription()
    woken: list[str] = []
    made.when_ready(lambda: woken.append("waiting"))
    made.interrupt()
    made.when_ready(lambda: woken.append("at once"))
    assert woken == ["waiting", "at once"]
    made.interrupted = False
    made.when_ready(lambda: woken.append("never"))
    assert woken == ["waiting", "at once"]


def test_waits_that_ended_without_records_are_forgotten() -> None:
    made = subscription()
    woken: list[str] = []
    made.when_ready(lambda: woken.append("timed out"))
    made.when_ready(lambda: woken.append("waiting"))
    made.shut()
    assert woken == ["waiting"]


def test_closing_ends_an_iteration() -> None:
    made = subscription()
    at(made, 0)
    bring(made, 3)
    chunk = made.next_chunk()
    assert chunk is not None
    decode(chunk)
    run = made.begin_run(chunk)
    assert run is not None
    next(run)
    made.shut()
    assert list(run) == []


def test_what_was_handed_out_is_unprocessed_until_more_is_asked_for() -> None:
    made = subscription(A, B)
    at(made, 0, A)
    at(made, 0, B)
    bring(made, 3, tp=A)
    for _ in range(2):
        made.hand_out(made.part(A))
        read(made, 1)
    assert (made.part(A).position, made.part(A).processed) == (2, 0)
    made.all_processed()
    assert made.part(A).processed == 2
    made.hand_out(made.part(A))
    read(made, 1)
    made.forget_unprocessed()
    assert (made.part(A).position, made.part(A).processed) == (2, 2)
    assert wants(made)[A] == 2, "it is left to whoever reads next"


@pytest.mark.parametrize("how", ["seek", "reset"])
def test_moving_is_a_word_about_what_was_handed_out(how: str) -> None:
    made = subscription()
    at(made, 0)
    bring(made, 3)
    made.hand_out(made.part(A))
    read(made, 3)
    if how == "seek":
        made.seek(A, 1)
    else:
        made.reset(A, "latest")
    made.forget_unprocessed()
    assert made.part(A).processed == (1 if how == "seek" else None)


def test_partitions_come_and_go_one_by_one() -> None:
    made = Subscription(consumer_settings(auto_offset_reset="latest"), start="committed")
    made.assign([A])
    assert (made.part(A).reset, made.part(A).policy) == ("committed", "latest")
    made.add_assigned({A: "id", B: "id"}, [])
    assert (made.part(B).reset, made.part(B).policy) == ("committed", "latest")
    assert made.part(B).assigned_id == "id"
    kept = made.part(B)
    made.remove([A])
    made.remove([A])
    assert list(made.parts) == [B]
    assert made.part(B) is kept
    made.add_assigned({A: "id"}, [A])
    assert (made.part(A).reset, made.part(A).policy) == ("committed", "earliest")
