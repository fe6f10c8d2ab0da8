"""What both producers share: records made ready, runs cut and spread over partitions."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client.accumulator import TopicQueues
from raftlog.client.base import ClientEnvironment
from raftlog.client.delivery import RangesFuture
from raftlog.client.producer_core import NO_PARTITION, ProducerCore
from raftlog.client.settings import ConnectionSettings, parse_bootstrap, partition_of_key
from raftlog.errors import (
    InvalidRequestError,
    RecordTooLargeError,
    ThrottledError,
    UnknownPartitionError,
)
from raftlog.record import decode_lists, seal
from tests.client.samples import HandClock, producer_settings, topic_view


class Fixture:
    """A core with one topic, attached to nothing."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        serializers = {
            name: settings.pop(name, None) for name in ("key_serializer", "value_serializer")
        }
        self.clock = HandClock()
        self.woken = 0
        self.core = ProducerCore(
            ConnectionSettings(
                bootstrap=parse_bootstrap("a:1"),
                client_id="me",
                request_timeout_ms=1,
                bootstrap_timeout_ms=1,
                metadata_max_age_ms=1,
            ),
            producer_settings(**{"batch_bytes_max": 2_048, **settings}),
            ClientEnvironment(clock=self.clock, chance=lambda: 0.0),
            **serializers,
        )
        self.core.attach(self._schedule)
        self.topic: TopicQueues = self.core.accumulator.learn(
            topic_view(partitions=partitions, max_message_bytes=10_000)
        )

    def _schedule(self, _function: object) -> None:
        self.woken += 1

    def send_many(
        self, values: list[Any], keys: list[Any] | None = None, **more: Any
    ) -> RangesFuture:
        run = self.core.columns_of(values, keys, more.get("headers"), more.get("timestamps_ms"))
        parts = []
        for piece in self.core.pieces(self.topic, run, more.get("partition")):
            part = piece.offer()
            assert part is not None
            parts.append(part)
        return RangesFuture(parts)

    def deliver(self) -> dict[int, list[bytes | None]]:
        """Acknowledge everything, in order; the values by partition."""
        stored: dict[int, list[bytes | None]] = {}
        for queue in self.topic.queues:
            for batch in self.core.accumulator.drop(queue):
                body = batch.encode(self.core.settings.codec, None)
                values = stored.setdefault(queue.partition, [])
                batch.delivery.succeed(len(values), -1)
                values += decode_lists(seal(body) + body.payload).values
        return stored


def in_input_order(future: RangesFuture, stored: dict[int, list[bytes | None]]) -> list[Any]:
    return [
        stored[part.partition][offset]
        for part in future.result()
        for offset in range(part.first, part.last + 1)
    ]


@pytest.mark.parametrize("count", [1, 20, 1_000])
@pytest.mark.parametrize("size", [0, 10, 700])
def test_a_keyless_run_comes_back_in_input_order(count: int, size: int) -> None:
    fixture = Fixture(partitions=3)
    values = [b"%d" % number + b"x" * size for number in range(count)]
    future = fixture.send_many(values)
    assert in_input_order(future, fixture.deliver()) == values


def test_large_runs_are_encoded_at_once_small_ones_join() -> None:
    fixture = Fixture()
    fixture.send_many([b"a"] * 3)
    fixture.send_many([b"b"] * 3)
    fixture.send_many([b"c" * 100] * 12)
    fixture.send_many([b"d"] * 3)
    (queue,) = fixture.topic.queues
    assert [batch.body is not None for batch in queue.closed] == [False, True]
    assert queue.open is not None
    assert fixture.deliver()[0] == [b"a"] * 3 + [b"b"] * 3 + [b"c" * 100] * 12 + [b"d"] * 3


def test_keys_choose_partitions_and_keep_their_order() -> None:
    fixture = Fixture(partitions=4)
    keys = [b"key-%d" % (number % 7) if number % 5 else None for number in range(200)]
    values = [b"%d" % number for number in range(200)]
    future = fixture.send_many(values, keys)
    stored = fixture.deliver()
    for partition, found in stored.items():
        keyed = [value for value in found if keys[int(value or b"")] is not None]
        assert keyed == [
            value
            for key, value in zip(keys, values, strict=True)
            if key is not None and partition_of_key(key, 4) == partition
        ]
    by_partition = in_input_order(future, stored)
    assert sorted(by_partition) == sorted(values)
    assert by_partition[0] == values[0], "in the order of the partitions' first records"


def test_a_partition_can_be_named_for_all() -> None:
    fixture = Fixture(partitions=4)
    fixture.send_many([b"a", b"b"], [b"k", b"l"], partition=2)
    assert fixture.deliver() == {2: [b"a", b"b"]}


def test_a_partitioner_decides_for_each_record() -> None:
    fixture = Fixture(
        partitions=3, partitioner=lambda topic, key, value, count: len(value or b"") % count
    )
    fixture.send_many([b"", b"1", b"22", b"333"])
    assert fixture.deliver() == {0: [b"", b"333"], 1: [b"1"], 2: [b"22"]}
    wrong = Fixture(partitioner=lambda *_: 7)
    with pytest.raises(InvalidRequestError, match="partitioner returned 7"):
        wrong.send_many([b"a"])


def test_serializers_and_all_columns() -> None:
    fixture = Fixture(key_serializer=str.encode, value_serializer=lambda value: b"%d" % value)
    assert fixture.core.is_custom
    future = fixture.send_many(
        [1, 2], ["a", "b"], headers=[[("h", b"x")], None], timestamps_ms=[5, 6]
    )
    (queue,) = fixture.topic.queues
    (batch,) = fixture.core.accumulator.drop(queue)
    body = batch.encode(fixture.core.settings.codec, None)
    lists = decode_lists(seal(body) + body.payload)
    assert (lists.keys, lists.values) == ([b"a", b"b"], [b"1", b"2"])
    assert lists.headers == [(("h", b"x"),), ()]
    assert list(lists.timestamps_ms) == [5, 6]
    assert not future.done()


def test_one_record_is_normalized() -> None:
    fixture = Fixture(partitions=3, partitioner=lambda topic, key, value, count: 1)
    normalize = fixture.core.normalize
    assert normalize(fixture.topic, bytearray(b"v"), None, {"h": b"x"}, 7, None) == (
        b"v",
        None,
        (("h", b"x"),),
        7,
        1,
    )
    assert normalize(fixture.topic, None, b"k", None, None, 2) == (None, b"k", None, None, 2)
    with pytest.raises(TypeError):
        normalize(fixture.topic, "text", None, None, None, None)


def test_a_record_too_large_in_a_run_fails_by_itself() -> None:
    fixture = Fixture()
    future = fixture.send_many([b"a", b"x" * 20_000, b"b"])
    fixture.deliver()
    with pytest.raises(RecordTooLargeError):
        future.result()


def test_no_room_for_a_piece() -> None:
    fixture = Fixture(buffer_memory=2_048)
    run = fixture.core.columns_of([b"x" * 100] * 50, None, None, None)
    offers = [piece.offer() for piece in fixture.core.pieces(fixture.topic, run, None)]
    assert offers[0] is not None
    assert offers[-1] is None
    piece = next(fixture.core.pieces(fixture.topic, run, None))
    delivery, _, count = piece.failed(fixture.core.no_room())
    assert isinstance(delivery.error, ThrottledError)
    assert count
    assert "max_block_ms=60000" in str(delivery.error)
    assert "buffer_memory=2048" in str(delivery.error)


def test_waking_schedules_the_sender() -> None:
    fixture = Fixture(linger_ms=0)
    fixture.send_many([b"a"])
    assert fixture.core.accumulator.wake_needed
    fixture.core.wake()
    assert not fixture.core.accumulator.wake_needed
    assert fixture.woken == 1


def test_records_that_fail_before_they_are_queued() -> None:
    core = Fixture().core
    error = UnknownPartitionError("no")
    assert core.failed("t", error).exception() is error
    assert core.all_failed("t", 3, error).exception() is error
    assert NO_PARTITION == -1


@pytest.mark.parametrize(
    ("partition", "error"),
    [(-1, UnknownPartitionError), (1, UnknownPartitionError), ("0", TypeError), (True, TypeError)],
)
def test_partitions_are_checked(partition: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="partition"):
        Fixture().topic.check_partition(partition)
