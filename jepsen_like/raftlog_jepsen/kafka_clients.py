"""Workload clients for Kafka's protocol: producers and consumers of confluent-kafka.

They have those methods of raftlog's clients that workloads call. librdkafka reports the last error
of a record, but not those of earlier attempts. The outcome of every failed request is therefore
unknown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import confluent_kafka as kafka

from raftlog.client import profiles
from raftlog.errors import (
    InstanceFencedError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
)
from raftlog.types import (
    ConsumerRecord,
    Offset,
    OffsetAndMetadata,
    OffsetRange,
    TopicPartition,
)

T = TypeVar("T")

logger: Final = logging.getLogger("raftlog.librdkafka")

SERVE_S: Final = 0.1  # interval at which a producer's thread checks whether it must close
PURGE_TIMEOUT_S: Final = 10.0
ANSWERS_MIN_S: Final = 0.2  # minimum time limit for the request of one partition
RECORD_BYTES_MAX: Final = 1_048_576
# Brokers restart within seconds: the back-off must not be longer than their outage.
PATIENCE: Final[Mapping[str, int]] = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
}
# Keys of a profile, and librdkafka's settings.
_SECURITY: Final[Mapping[str, str]] = {
    "security_protocol": "security.protocol",
    "ssl_cafile": "ssl.ca.location",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
}
_RANGE_ERRORS: Final = (
    kafka.KafkaError.OFFSET_OUT_OF_RANGE,
    kafka.KafkaError._AUTO_OFFSET_RESET,
)

# Fatal for a static member: its process ends, and is restarted.
_FENCED: Final = (
    kafka.KafkaError.FENCED_INSTANCE_ID,
    kafka.KafkaError.UNRELEASED_INSTANCE_ID,  # until the session of its predecessor ends
)


def connecting(bootstrap: str) -> dict[str, Any]:
    """Return the settings of all clients. Those of a secured cluster are in the profile that the
    environment names, as for raftlog's clients."""
    given: dict[str, Any] = {**PATIENCE, "bootstrap.servers": bootstrap}
    if profile := os.environ.get(profiles.VARIABLE):
        values = profiles.load(profile)
        given |= {name: values[key] for key, name in _SECURITY.items() if key in values}
    return given


def error_of(error: kafka.KafkaError) -> RaftlogError:
    """Convert an error of librdkafka to one of raftlog, by default ``OutcomeUnknownError``."""
    text = f"librdkafka: {error.name()}{' (fatal)' if error.fatal() else ''}: {error.str()}"
    if error.code() in _RANGE_ERRORS:
        return OffsetOutOfRangeError(text)
    if error.code() in _FENCED:
        return InstanceFencedError(text)
    return OutcomeUnknownError(text)


def record_of(message: kafka.Message) -> ConsumerRecord[bytes, bytes]:
    """Return a received message as a record of raftlog's consumer."""
    headers: Any = message.headers() or ()
    epoch = message.leader_epoch()
    return ConsumerRecord(
        _present(message.topic()),
        _present(message.partition()),
        _present(message.offset()),
        message.key(),
        message.value(),
        tuple((name, value) for name, value in headers),
        message.timestamp()[1],
        -1 if epoch is None else epoch,
    )


def _present(value: T | None) -> T:
    assert value is not None, "every received message has a topic, partition and offset"
    return value


# -- producing -------------------------------------------------------------------------------------


class _Group:
    """Records of one call. ``future``: their offset ranges, or the first error."""

    def __init__(self, topic: str, partition: int, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[OffsetRange]] = self._loop.create_future()
        self._where = topic, partition
        self._offsets = [-1] * count
        self._left = count
        self._error: RaftlogError | None = None

    def delivered(
        self, index: int, error: kafka.KafkaError | None, message: kafka.Message | None
    ) -> None:
        """Record the outcome of one record. Called in the thread of the producer."""
        if error is not None:
            self.failed(error_of(error))
            return
        offset = None if message is None else message.offset()
        if offset is None or offset < 0:
            self.failed(OutcomeUnknownError("librdkafka: acknowledged without an offset"))
            return
        self._offsets[index] = offset
        self._resolve_one()

    def failed(self, error: RaftlogError) -> None:
        self._error = self._error or error
        self._resolve_one()

    def _resolve_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
            return
        ranges: list[OffsetRange] = []
        for offset in self._offsets:
            if ranges and offset == ranges[-1].last + 1:
                ranges[-1] = ranges[-1]._replace(last=offset)
            else:
                ranges.append(OffsetRange(*self._where, offset, offset))
        self.future.set_result(ranges)


def delivery(*, idempotent: bool, timeout_ms: int) -> dict[str, int]:
    """Return the settings of retries.

    librdkafka sends records with a new producer epoch, although an earlier request may have stored
    them, after a record of an idempotent producer has timed out, and after a request that follows
    a refused one (its issue 4953). So no record times out, and no request follows another.
    """
    if idempotent:
        return {"message.timeout.ms": 0, "max.in.flight": 1}
    return {"message.timeout.ms": timeout_ms, "max.in.flight": 5, "retries": 0}


class KafkaProducer:
    """See ``AsyncProducer``. A producer without idempotence does not retry."""

    def __init__(
        self,
        bootstrap: str,
        *,
        acks: int,
        idempotent: bool,
        compression: str,
        linger_ms: int,
        request_timeout_ms: int,
        delivery_timeout_ms: int,
        metadata_max_age_ms: int,
        client_id: str,
    ) -> None:
        self._producer: kafka.Producer | None = kafka.Producer(
            {
                **connecting(bootstrap),
                "client.id": client_id,
                "acks": acks,
                "enable.idempotence": idempotent,
                "compression.type": compression,
                "linger.ms": linger_ms,
                "socket.timeout.ms": request_timeout_ms,
                "message.max.bytes": RECORD_BYTES_MAX,
                "topic.metadata.refresh.interval.ms": metadata_max_age_ms,
                **delivery(idempotent=idempotent, timeout_ms=delivery_timeout_ms),
            },
            logger=logger,
        )
        self._closing = threading.Event()
        self._flush_s = 0.0
        self._ended = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(loop,), name=f"librdkafka {client_id}", daemon=True
        )
        self._thread.start()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[list[OffsetRange]]:
        return await self.send_many(
            topic, [value], partition=partition, keys=[key], headers=[headers]
        )

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        partition: int,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    ) -> asyncio.Future[list[OffsetRange]]:
        producer = _present(self._producer)
        group = _Group(topic, partition, len(values))
        for index, value in enumerate(values):
            named: list[Any] = [tuple(header) for header in headers[index]] if headers else []
            try:
                producer.produce(
                    topic,
                    value,
                    keys[index] if keys else None,
                    partition,
                    on_delivery=partial(group.delivered, index),
                    headers=named,
                )
            except kafka.KafkaException as error:
                group.failed(error_of(error.args[0]))
            except BufferError as error:
                group.failed(OutcomeUnknownError(f"librdkafka: {error}"))
        return group.future

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - as AsyncProducer
        """Wait up to ``timeout`` seconds for the records in flight, then abandon them."""
        self._flush_s = timeout
        self._closing.set()
        await self._ended

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the delivery callbacks in a thread until ``close``."""
        producer = _present(self._producer)
        while not self._closing.is_set():
            producer.poll(SERVE_S)
        if self._flush_s:
            producer.flush(self._flush_s)
        producer.purge()
        producer.flush(PURGE_TIMEOUT_S)
        self._producer = None
        del producer  # waits for librdkafka's threads
        loop.call_soon_threadsafe(self._ended.set_result, None)


# -- consuming -------------------------------------------------------------------------------------


class KafkaConsumer:
    """See ``AsyncConsumer``: a consumer of assigned partitions. Reads from leaders.

    ``group``: group of its commits. The consumer never joins it.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        wait_ms: int = 500,
        fetch_bytes_max: int = 1 << 20,
        request_timeout_ms: int,
        metadata_max_age_ms: int,
    ) -> None:
        self._consumer = kafka.Consumer(
            {
                **connecting(bootstrap),
                "group.id": group or "no-group",
                "session.timeout.ms": request_timeout_ms,  # also limits commits
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error" if group is None else "earliest",
                "fetch.wait.max.ms": wait_ms,
                "fetch.error.backoff.ms": 100,
                "max.partition.fetch.bytes": fetch_bytes_max,
                "check.crcs": True,
                "socket.timeout.ms": request_timeout_ms,
                "topic.metadata.refresh.interval.ms": metadata_max_age_ms,
            },
            logger=logger,
        )
        self._timeout_s = request_timeout_ms / 1_000
        self._thread = ThreadPoolExecutor(1, "librdkafka")
        self._positions: dict[TopicPartition, Offset] = {}
        self._is_assigned = False
        self._error: RaftlogError | None = None  # raised by the next poll

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions. ``seek`` sets the position of each."""
        self._positions = dict.fromkeys(partitions, kafka.OFFSET_BEGINNING)
        self._is_assigned = False

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Set the position, before the first poll."""
        assert not self._is_assigned
        self._positions[partition] = offset

    async def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord[bytes, bytes]]:
        return await self._run(lambda: self._poll(timeout_ms / 1_000, max_records))

    def _poll(self, timeout_s: float, count: int) -> list[ConsumerRecord[bytes, bytes]]:
        if not self._is_assigned:
            self._consumer.assign(
                [kafka.TopicPartition(*tp, offset) for tp, offset in self._positions.items()]
            )
            self._is_assigned = True
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        first = self._consumer.poll(timeout_s)
        messages = [] if first is None else [first]
        if first is not None and count > 1:
            messages += self._consumer.consume(count - 1, 0)
        records: list[ConsumerRecord[bytes, bytes]] = []
        for message in messages:
            failure = message.error()
            if failure is None:
                records.append(record_of(message))
            elif not failure.retriable() and failure.code() in _RANGE_ERRORS:
                self._error = error_of(failure)
        if self._error is not None and not records:
            error, self._error = self._error, None
            raise error
        return records

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        return await self._run(lambda: self._watermarks(partitions, 0))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        return await self._run(lambda: self._watermarks(partitions, 1))

    def _watermarks(
        self, partitions: Iterable[TopicPartition], which: int
    ) -> dict[TopicPartition, Offset]:
        deadline = time.monotonic() + self._timeout_s
        found: dict[TopicPartition, Offset] = {}
        for tp in partitions:
            left_s = max(deadline - time.monotonic(), ANSWERS_MIN_S)
            both = self._consumer.get_watermark_offsets(kafka.TopicPartition(*tp), left_s)
            if both is None:
                raise OutcomeUnknownError(f"librdkafka: no offsets of {tp} after {left_s:g} s")
            found[tp] = both[which]
        return found

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await self._run(lambda: commit(self._consumer, offsets))

    async def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets with their metadata. ``metadata`` must be true."""
        assert metadata
        asked = [kafka.TopicPartition(*tp) for tp in partitions]
        answer = await self._run(lambda: self._consumer.committed(asked, self._timeout_s))
        _check(answer)
        return {
            TopicPartition(one.topic, one.partition): OffsetAndMetadata(
                one.offset, one.metadata or ""
            )
            for one in answer
            if one.offset >= 0
        }

    async def close(self) -> None:
        await self._run(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except kafka.KafkaException as error:
            raise error_of(error.args[0]) from error


def commit(consumer: kafka.Consumer, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Commit and wait for the response. Raises ``KafkaException``, or the error of a partition as
    a ``RaftlogError``."""
    asked = [
        kafka.TopicPartition(*tp, given.offset, given.metadata) for tp, given in offsets.items()
    ]
    _check(consumer.commit(offsets=asked, asynchronous=False) or ())


def _check(answer: Iterable[kafka.TopicPartition]) -> None:
    for one in answer:
        if one.error is not None:
            raise error_of(one.error)
