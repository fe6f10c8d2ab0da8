"""Records waiting to be sent: what is due when, what joins which batch, and bounded memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftlog import limits
from raftlog.client import accumulator as accumulator_module
from raftlog.client import accumulator as batch_module
from raftlog.client.accumulator import (
    BATCH_BYTES,
    NEVER,
    PLAIN_RECORD_BYTES,
    RECORD_BYTES,
    Accumulator,
    PartitionQueue,
    PendingBatch,
    Run,
    TopicQueues,
    header_bytes,
)
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.settings import partition_of_key
from raftlog.errors import ClosedError, RecordTooLargeError
from raftlog.record import Codec, RecordLists, decode_lists, encode, parse_header, seal
from raftlog.types import Headers
from tests.client.interrupts import interrupted
from tests.client.samples import MAX_MESSAGE_BYTES, HandClock, producer_settings, topic_view


class World:
    """An accumulator with one topic."""

    def __init__(
        self, partitions: int = 1, *, max_message_bytes: int = 2_000, **settings: Any
    ) -> None:
        settings = {"batch_bytes_max": 1_024, "buffer_memory": 8_192, **settings}
        self.clock = HandClock()
        self.settings = producer_settings(**settings)
        self.accumulator = Accumulator(self.settings, clock=self.clock, choose=lambda _count: 0)
        self.topic: TopicQueues = self.accumulator.learn(
            topic_view(partitions=partitions, max_message_bytes=max_message_bytes)
        )

    def append(self, value: bytes = b"v", **more: Any) -> DeliveryFuture | None:
        arguments = {"key": None, "headers": None, "timestamp_ms": None, "partition": None, **more}
        return self.accumulator.append(self.topic, value, **arguments)

    def due(self) -> list[tuple[int, list[bytes | None]]]:
        """Take all that is due: (partition, values) of each batch."""
        taken = []
        for queue, _, _ in self.accumulator.scan():
            while (batch := self.accumulator.take(queue, self.clock.seconds)) is not None:
                taken.append((queue.partition, list(batch.values)))
        return taken

    def take_all(self) -> list[PendingBatch]:
        return [
            batch
            for queue, _, _ in self.accumulator.scan()
            for batch in self.accumulator.drop(queue)
        ]


def test_records_linger_together() -> None:
    world = World()
    world.append(b"1")
    world.clock.seconds += 0.004
    world.append(b"2")
    assert world.due() == []
    world.clock.seconds += 0.001
    assert world.due() == [(0, [b"1", b"2"])]
    assert world.due() == []


def test_without_linger_a_batch_is_due_at_once() -> None:
    world = World(linger_ms=0)
    world.append(b"1")
    assert world.accumulator.wake_needed
    assert world.due() == [(0, [b"1"])]


def test_a_full_batch_is_due_at_once() -> None:
    world = World()
    for _ in range(3):
        world.append(b"x" * 380)
    assert world.due() == [(0, [b"x" * 380] * 2)]


def test_a_backlog_makes_a_larger_batch() -> None:
    world = World(linger_ms=0)
    for number in range(10):
        world.append(b"%d" % number)
    assert [len(values) for _, values in world.due()] == [10]


def test_keyless_records_change_partition_with_the_batch() -> None:
    world = World(partitions=3)
    for _ in range(7):
        world.append(b"x" * 380)
    world.clock.seconds += 1
    assert [partition for partition, _ in sorted(world.due())] == [0, 1, 2, 2]
    seen = set()
    for _ in range(3):
        world.append(b"x")
        world.clock.seconds += 1
        seen.add(world.due()[0][0])
    assert seen == {0, 1, 2}


def test_keys_choose_their_partition_and_keep_order() -> None:
    world = World(partitions=4)
    keys = [b"key-%d" % (number % 5) for number in range(20)]
    for number, key in enumerate(keys):
        world.append(b"%d" % number, key=key)
    world.clock.seconds += 1
    for partition, values in world.due():
        assert values == [
            b"%d" % number
            for number, key in enumerate(keys)
            if partition_of_key(key, 4) == partition
        ]


def test_a_partition_can_be_named() -> None:
    world = World(partitions=4)
    world.append(b"a", partition=3)
    world.append(b"b", partition=3, key=b"elsewhere")
    world.clock.seconds += 1
    assert world.due() == [(3, [b"a", b"b"])]


def test_runs_without_a_partition_take_turns_and_their_batches_go_on_to_grow() -> None:
    world = World(partitions=3)
    for number in range(4):
        run = Run([b"%d" % number] * 2, None, None, [0] * 2, 2 * (RECORD_BYTES + 1))
        assert world.accumulator.extend(world.topic, None, run) is not None
    world.clock.seconds += 1
    first, *others = sorted(world.due(), key=lambda batch: -len(batch[1]))
    assert first[1] == [b"0", b"0", b"3", b"3"]
    assert sorted(values for _, values in others) == [[b"1", b"1"], [b"2", b"2"]]
    assert {partition for partition, _ in (first, *others)} == {0, 1, 2}


def test_keyless_records_join_the_batch_that_keys_began() -> None:
    world = World(partitions=1)
    world.append(b"a", key=b"k")
    world.append(b"b")
    world.clock.seconds += 1
    assert world.due() == [(0, [b"a", b"b"])]


def test_runs_join_the_open_batch_and_encoded_ones_close_it() -> None:
    world = World()
    world.append(b"a")
    placed = world.accumulator.extend(world.topic, None, Run([b"b", b"c"], None, None, 1, 60))
    assert placed is not None
    assert placed[1] == 1
    body = encode([b"d"], timestamps_ms=7)
    delivery = world.accumulator.add_encoded(world.topic, 0, body, body.size_bytes)
    assert delivery is not None
    assert delivery.timestamps_ms == 7
    world.append(b"e")
    world.clock.seconds += 1
    assert world.due() == [(0, [b"a", b"b", b"c"]), (0, []), (0, [b"e"])]


def test_a_record_over_the_setting_goes_alone_and_one_over_the_topic_is_refused() -> None:
    world = World()
    world.append(b"small")
    world.append(b"x" * 1_500)
    world.append(b"small")
    assert [len(values) for _, values in world.due()] == [1, 1]
    with pytest.raises(RecordTooLargeError, match=r"2001 bytes.*max\.message\.bytes=2000"):
        world.append(b"x" * 2_001)
    assert World(codec=Codec.LZ4).append(b"x" * 2_001) is not None, "it may compress"


def test_memory_is_bounded() -> None:
    world = World()
    while world.append(b"x" * 380) is not None:
        pass
    assert world.accumulator.bytes_free < 380 + RECORD_BYTES
    assert world.accumulator.pressed
    world.accumulator.take(world.topic.queues[0], 0.0)
    assert world.append(b"x" * 380) is None, "what is in flight still takes memory"


def test_a_record_over_all_memory_is_refused() -> None:
    world = World(max_message_bytes=limits.MIB)
    with pytest.raises(RecordTooLargeError, match="buffer_memory=8192"):
        world.append(b"x" * 8_192)


def test_waiting_for_room_ends_when_there_is_some_to_speak_of() -> None:
    world = World()
    while world.append(b"x" * 380) is not None:
        pass
    woken: list[str] = []
    world.accumulator.when_room(lambda: woken.append("first"))
    world.accumulator.when_room(lambda: woken.append("second"))
    batches = world.take_all()
    for batch in batches:
        assert not woken or world.accumulator.bytes_free >= 8_192 // 4
        world.accumulator.release(batch)
    assert woken == ["first", "second"]
    assert not world.accumulator.pressed
    assert world.accumulator.bytes_free == 8_192
    world.accumulator.when_room(lambda: woken.append("at once"))
    assert woken[-1] == "at once"


def test_room_is_enough_for_the_largest_that_waits() -> None:
    world = World(max_message_bytes=8_000, batch_bytes_max=8_000)
    for _ in range(7):
        world.append(b"x" * 1_000, partition=0)
        world.accumulator._close_open(world.topic.queues[0])
    assert world.append(b"y" * 6_000) is None
    woken: list[bool] = []
    world.accumulator.when_room(lambda: woken.append(True))
    for batch in world.take_all():
        assert not woken
        world.accumulator.release(batch)
        if world.accumulator.bytes_free >= 6_000 + RECORD_BYTES:
            break
    assert woken
    assert world.append(b"y" * 6_000) is not None


def test_pressure_ends_lingering() -> None:
    world = World(linger_ms=60_000)
    world.append(b"x" * 100)
    assert world.due() == []
    world.accumulator.pressed = True
    assert len(world.due()) == 1


def test_hurry_concerns_what_is_pending_now() -> None:
    world = World(linger_ms=60_000)
    world.append(b"a")
    (delivery,) = world.accumulator.hurry()
    assert world.due() == [(0, [b"a"])]
    world.append(b"b")
    assert world.due() == []
    assert delivery in world.accumulator.unresolved


def test_the_sender_is_woken_only_when_it_would_come_too_late() -> None:
    world = World()
    accumulator = world.accumulator
    accumulator.scan()
    accumulator.wake_at = world.clock.seconds + 0.005
    world.append(b"a")
    assert not accumulator.wake_needed, "it looks in time by itself"
    world.due()
    world.take_all()
    accumulator.wake_at = NEVER
    world.append(b"b")
    assert accumulator.wake_needed


def test_batches_given_back_come_first_and_in_order() -> None:
    world = World(linger_ms=0)
    queue = world.topic.queues[0]
    batches = []
    for number in range(4):
        world.append(b"%d" % number)
        batch = world.accumulator.take(queue, world.clock.seconds)
        assert batch is not None
        batches.append(batch)
    world.append(b"new")
    world.accumulator.put_back(queue, batches[1:3])
    assert world.due() == [(0, [b"1"]), (0, [b"2"]), (0, [b"new"])]


def test_expired_batches_are_taken_from_the_front() -> None:
    world = World(delivery_timeout_ms=10_000, linger_ms=0)
    queue = world.topic.queues[0]
    world.append(b"x" * 900)
    world.clock.seconds += 6
    world.append(b"y" * 900)
    world.clock.seconds += 5
    expired = world.accumulator.take_expired(queue, world.clock.seconds)
    assert [batch.values[0] for batch in expired] == [b"x" * 900]
    world.clock.seconds += 6
    assert len(world.accumulator.take_expired(queue, world.clock.seconds)) == 1
    assert world.accumulator.scan() == []


def test_once_shut_nothing_begins() -> None:
    world = World()
    world.append(b"a")
    world.accumulator.shut()
    assert world.append(b"joins") is not None, "the batch that is open will be flushed"
    world.due()
    world.take_all()
    with pytest.raises(ClosedError):
        world.append(b"b")
    assert not world.accumulator.topics


def test_a_forked_child_finds_nothing() -> None:
    world = World()
    world.accumulator.lock.acquire()  # some thread held it
    world.accumulator.leave_behind()
    assert not world.accumulator.topics
    assert world.accumulator.lock.acquire(blocking=False)


def test_timestamps_are_now_or_as_given() -> None:
    world = World()
    futures = [world.append(b"a"), world.append(b"b", timestamp_ms=5)]
    (batch,) = world.take_all()
    batch.delivery.succeed(0, -1)
    assert [future and future.result().timestamp_ms for future in futures] == [
        world.clock.ms,
        5,
    ]


class AccumulatorModel(RuleBasedStateMachine):
    """Whatever users and the sender do: no record lost or doubled, order kept, memory accounted."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(partitions=3)
        self.waiting: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
        self.keyless: list[bytes | None] = []
        self.flying: list[PendingBatch] = []
        self.number = 0

    def _value(self, size: int) -> bytes:
        self.number += 1
        return b"%06d" % self.number + b"x" * size

    @rule(size=st.integers(0, 900), partition=st.none() | st.integers(0, 2))
    def append(self, size: int, partition: int | None) -> None:
        value = self._value(size)
        if self.world.append(value, partition=partition) is not None:
            (self.keyless if partition is None else self.waiting[partition]).append(value)

    @rule(count=st.integers(1, 20), partition=st.none() | st.integers(0, 2))
    def extend(self, count: int, partition: int | None) -> None:
        values = [self._value(4) for _ in range(count)]
        run = Run(values, None, None, 1, count * (10 + 12))
        if self.world.accumulator.extend(self.world.topic, partition, run) is not None:
            (self.keyless if partition is None else self.waiting[partition]).extend(values)

    @rule(seconds=st.sampled_from([0.001, 0.005, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.seconds += seconds

    @rule()
    def hurry(self) -> None:
        self.world.accumulator.hurry()

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        found = self.world.accumulator.scan()
        if not found:
            return
        queue, head, _ = data.draw(st.sampled_from(found))
        batch = self.world.accumulator.take(queue, self.world.clock.seconds)
        if batch is None:
            return
        assert batch is head
        self.flying.append(batch)
        named = self.waiting[queue.partition]
        for value in batch.values:
            if value in self.keyless:
                self.keyless.remove(value)
            else:
                assert value == named.pop(0), "a partition's records keep their order"

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def resolve(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.flying))
        self.flying.remove(batch)
        self.world.accumulator.release(batch)

    @invariant()
    def memory_is_accounted_for(self) -> None:
        check_memory(self.world, self.flying)
        assert self.world.accumulator.bytes_free >= 0

    @invariant()
    def batches_fit(self) -> None:
        for queue in self.world.topic.queues:
            for batch in (*queue.closed, *([queue.open] if queue.open else [])):
                assert batch.size_bytes + BATCH_BYTES <= 1_024 or len(batch.values) == 1
            assert (queue in self.world.accumulator.active) == bool(queue.closed or queue.open)


TestAccumulatorModel = AccumulatorModel.TestCase


@pytest.mark.parametrize("kind", ["plain", "keyed", "headers", "run", "encoded", "full"])
def test_ctrl_c_anywhere_leaves_batches_whole(kind: str) -> None:
    at = 0
    while True:
        at += 1
        world = World(partitions=2)
        world.append(b"before", partition=0)
        work = partial(add, world, kind)
        if not interrupted(at, work, accumulator_module, batch_module):
            break
        world.append(b"after", partition=0, key=b"k", headers=(("h", b"x"),))
        assert world.accumulator.lock.acquire(blocking=False), "the lock is free"
        world.accumulator.lock.release()
        check_memory(world, [])
        batches = world.take_all()
        assert len(batches) == len(set(batches))
        values = [value for found in batches if not found.is_empty for value in values_of(found)]
        assert values.count(b"before") == values.count(b"after") == 1
        assert values.count(b"new") in {0, 1}
        for found in batches:
            world.accumulator.release(found)
        assert world.accumulator.bytes_free == world.settings.buffer_memory
        assert not world.accumulator.unresolved
    assert at > 5


def add(world: World, kind: str) -> None:
    if kind == "plain":
        world.append(b"new", partition=0)
    elif kind == "keyed":
        world.append(b"new", key=b"key")
    elif kind == "headers":
        world.append(b"new", headers=(("h", b"x"),), partition=0)
    elif kind == "run":
        world.accumulator.extend(world.topic, 0, Run([b"new"], [b"k"], None, 1, 60))
    elif kind == "encoded":
        body = encode([b"new"], timestamps_ms=7)
        world.accumulator.add_encoded(world.topic, 0, body, body.size_bytes)
    else:
        world.append(b"x" * 800, partition=0)
        world.append(b"new", partition=0)


def values_of(found: PendingBatch) -> list[bytes | None]:
    body = found.encode(Codec.NONE, None)
    return list(decode_lists(seal(body) + body.payload).values)


def check_memory(world: World, flying: list[PendingBatch]) -> None:
    held = sum(found.size_bytes for found in flying)
    for queue in world.topic.queues:
        held += sum(found.size_bytes for found in queue.closed)
        held += queue.open.size_bytes if queue.open is not None else 0
    assert world.accumulator.bytes_free == world.settings.buffer_memory - held


# -- batch -----------------------------------------------------------------------------------------
#
# Batches being filled, and the queues of a topic: sizes that bound, partitions that take turns.


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
HEADERS = st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=8)), max_size=4).map(tuple)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=30),
        st.none() | HEADERS,
        st.integers(0, limits.TIMESTAMP_MS_MAX),
    ),
    min_size=1,
    max_size=30,
)


def batch() -> PendingBatch:
    return PendingBatch(PartitionQueue("t", 0), due_at=0.0, expires_at=1.0)


def size_of(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    return RECORD_BYTES + len(value or b"") + len(key or b"") + header_bytes(headers or ())


@given(RECORDS)
def test_a_batch_is_never_larger_than_its_records_were_said_to_be(
    records: list[tuple[bytes | None, bytes | None, Headers | None, int]],
) -> None:
    body = encode(
        [value for value, _, _, _ in records],
        keys=[key for _, key, _, _ in records],
        headers=[headers for _, _, headers, _ in records],
        timestamps_ms=[stamp for _, _, _, stamp in records],
    )
    promised = BATCH_BYTES + sum(size_of(*record[:3]) for record in records)
    assert body.size_bytes <= promised


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=200))
def test_plain_records_take_less(values: list[bytes]) -> None:
    body = encode(values, timestamps_ms=0)
    assert body.size_bytes <= BATCH_BYTES + sum(PLAIN_RECORD_BYTES + len(v) for v in values)


def test_a_full_batch_is_within_every_limit() -> None:
    count = limits.PRODUCER_BATCH_BYTES_MAX // PLAIN_RECORD_BYTES
    assert count <= limits.RECORDS_PER_BATCH_MAX
    assert limits.PRODUCER_BATCH_BYTES_MAX + BATCH_BYTES < limits.BATCH_BYTES_MAX


def test_keys_and_headers_begin_with_the_first_record_that_has_them() -> None:
    pending = batch()
    for index, (value, key, headers) in enumerate(
        [(b"0", None, None), (b"1", b"k", None), (b"2", None, (("h", b"x"),)), (b"3", b"l", None)]
    ):
        pending.values.append(value)
        pending.timestamps_ms.append(index)
        if key is not None or pending.keys is not None:
            pending.add_key(index, key)
        if headers is not None or pending.headers is not None:
            pending.add_headers(index, headers)
    lists = stored(pending)
    assert lists.values == [b"0", b"1", b"2", b"3"]
    assert lists.keys == [None, b"k", None, b"l"]
    assert lists.headers == [(), (), (("h", b"x"),), ()]
    assert list(lists.timestamps_ms) == [0, 1, 2, 3]


def stored(pending: PendingBatch, codec: Codec = Codec.NONE) -> RecordLists:
    body = pending.encode(codec, None)
    assert pending.encode(codec, None) is body, "it is encoded once"
    assert not pending.values, "its records are free"
    return decode_lists(seal(body) + body.payload)


def test_runs_of_all_kinds_join_one_batch() -> None:
    pending = batch()
    pending.extend(Run([b"0", b"1"], None, None, 5, 0))
    pending.extend(Run([b"2"], [b"k"], None, [6], 0))
    pending.extend(Run([b"3"], None, [(("h", None),)], 7, 0))
    pending.extend(Run([b"4"], None, None, 8, 0))
    lists = stored(pending, Codec.LZ4)
    assert lists.values == [b"0", b"1", b"2", b"3", b"4"]
    assert lists.keys == [None, None, b"k", None, None]
    assert lists.headers == [(), (), (), (("h", None),), ()]
    assert list(lists.timestamps_ms) == [5, 5, 6, 7, 8]


def test_parts_and_picks_of_a_run() -> None:
    run = Run([b"a", b"b", b"c"], [b"1", None, b"3"], [None, (), (("h", b""),)], [1, 2, 3], 0)
    assert run.part(1, 3, 9) == Run([b"b", b"c"], [None, b"3"], [(), (("h", b""),)], [2, 3], 9)
    assert run.part(0, 3, 9).values is run.values
    assert run.pick([2, 0]) == Run([b"c", b"a"], [b"3", b"1"], [(("h", b""),), None], [3, 1], 0)
    plain = Run([b"a", b"b"], None, None, 4, 0)
    assert plain.part(1, 2, 1) == Run([b"b"], None, None, 4, 1)
    assert plain.pick([1]) == Run([b"b"], None, None, 4, 0)


@given(st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=9)), max_size=9))
def test_header_sizes_count_bytes_not_characters(pairs: list[tuple[str, bytes | None]]) -> None:
    exact = sum(len(name.encode()) + len(value or b"") for name, value in pairs)
    assert exact <= header_bytes(tuple(pairs)) <= exact + 12 * len(pairs)


def test_keyless_records_take_partitions_in_turn() -> None:
    topic = TopicQueues(topic_view(partitions=3), batch_bytes_max=1_000, start=1)
    assert [topic.sticky.partition] + [topic.rotate().partition for _ in range(3)] == [2, 0, 1, 2]
    assert topic.sticky.partition == 2


def test_partitions_without_a_leader_are_passed_over_unless_none_has_one() -> None:
    topic = TopicQueues(topic_view(leaders=(None, 1, None, 1)), batch_bytes_max=1_000, start=0)
    assert {topic.rotate().partition for _ in range(8)} == {1, 3}
    topic.update(topic_view(leaders=(None,) * 4), batch_bytes_max=1_000)
    assert {topic.rotate().partition for _ in range(8)} == {0, 1, 2, 3}


def test_a_topic_grows_and_keeps_its_queues() -> None:
    topic = TopicQueues(topic_view(partitions=1), batch_bytes_max=1_000, start=0)
    first = topic.queues[0]
    topic.update(topic_view(partitions=3), batch_bytes_max=1_000)
    assert topic.count == 3
    assert topic.queues[0] is first


def test_keyless_records_leave_a_partition_that_the_topic_made_anew_does_not_have() -> None:
    topic = TopicQueues(topic_view(partitions=3), batch_bytes_max=1_000, start=1)
    assert topic.sticky.partition == 2
    topic.update(replace(topic_view(partitions=2), id="another"), batch_bytes_max=1_000)
    assert topic.sticky.partition < 2


@pytest.mark.parametrize(
    ("setting", "topic_max", "effective"),
    [(limits.MIB, 2_000, 2_000), (1_500, 2_000, 1_500)],
)
def test_batches_fit_the_topic_and_the_setting(
    setting: int, topic_max: int, effective: int
) -> None:
    topic = TopicQueues(topic_view(max_message_bytes=topic_max), batch_bytes_max=setting, start=0)
    assert topic.batch_bytes_max == effective - BATCH_BYTES


def test_a_record_that_can_never_fit_is_refused_at_once() -> None:
    topic = TopicQueues(topic_view(), batch_bytes_max=limits.MIB, start=0)
    topic.check_size(MAX_MESSAGE_BYTES, compressed=False)  # the encoded batch decides
    with pytest.raises(RecordTooLargeError, match=r"'t' .* max\.message\.bytes=1048588"):
        topic.check_size(RECORD_BYTES + MAX_MESSAGE_BYTES + 1, compressed=False)
    topic.check_size(RECORD_BYTES + MAX_MESSAGE_BYTES + 1, compressed=True)


def test_a_sealed_batch_is_what_was_pending() -> None:
    pending = batch()
    pending.extend(Run([b"x"], None, None, 1, 0))
    body = pending.encode(Codec.NONE, None)
    assert parse_header(seal(body) + body.payload).record_count == 1
