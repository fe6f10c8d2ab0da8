"""The synchronous producer, and the constructor that both producers share.

``send`` and ``send_many`` run in the caller's thread and only queue; an I/O thread does the rest. A
thread waits only for room, for a topic that it names the first time, and where it asks to.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from raftlog import limits
from raftlog.client.batch import TopicQueues
from raftlog.client.delivery import Delivery, DeliveryFuture, RangesFuture, pending_of
from raftlog.client.environment import ClientEnvironment
from raftlog.client.partitioner import Partitioner
from raftlog.client.producer_core import ProducerCore, check_partition
from raftlog.client.settings import (
    CLIENT_ID_DEFAULT,
    Bootstrap,
    Serializer,
    connection_settings,
    function,
    producer_settings,
)
from raftlog.client.threaded import ThreadedClient
from raftlog.client.waiting import refuse_io_thread, wait_for, wait_once
from raftlog.errors import (
    ClosedError,
    KeyRequiredError,
    RaftlogError,
    RecordTooLargeError,
    ThrottledError,
    UnknownPartitionError,
)
from raftlog.kafka_names import answers_kafka_names

# After Ctrl-C in a `with` block: long enough for what is on its way, too short to annoy.
CLOSE_AFTER_INTERRUPT_S: Final = 1.0
# How long the interpreter's exit waits for the records of producers that were not closed.
EXIT_FLUSH_SECONDS_MAX: Final = 10.0

_unclosed: Final[set[ProducerCore]] = set()  # with records sent to them, of this process


@answers_kafka_names
class ProducerBase:
    """The settings of a producer; see ``Producer`` and ``AsyncProducer``."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        acks: str | int = "all",
        idempotent: bool | None = None,
        compression: str = "none",
        compression_level: int | None = None,
        linger_ms: int = 5,
        batch_bytes_max: int = limits.MIB,
        buffer_memory: int = 32 * limits.MIB,
        max_block_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        partitioner: Partitioner | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
    ) -> None:
        """Nothing is connected before the first record is sent.

        ``bootstrap``: ``host:port[,host:port]`` of any of the cluster's brokers, or a list of such;
            default: the environment's RAFTLOG_BOOTSTRAP, else the brokers of `raftlog up`, which
            are 127.0.0.1:9100 to 9102.
        ``acks``: a record counts as delivered: "all" (or -1): when every in-sync replica has it on
            disk; 1: when the leader has; 0: when it has been written (its offset is unknown).
        ``idempotent``: repeat what got no answer without storing it twice. Default: if acks="all".
        ``compression``: "none", "gzip", "lz4" or "zstd"; ``compression_level``: the codec's own.
        ``linger_ms``: how long a batch waits for more records, 0 to 60,000.
        ``batch_bytes_max``: the most that goes into a batch, 1 KiB to 12 MiB, but never more than
            the topic's max.message.bytes.
        ``buffer_memory``: bytes that undelivered records may take before ``send`` blocks.
        ``max_block_ms``: how long ``send`` may block, for room or for a topic's metadata.
        ``request_timeout_ms``: how long a broker may take to answer one request.
        ``delivery_timeout_ms``: how long a record is tried; at least linger + request timeout.
        ``partitioner``: ``(topic, key, value, partition count) -> partition``. Default: murmur2 of
            the key as in Kafka's clients; without a key, each partition in turn, for a batch.
        ``key_serializer``, ``value_serializer``: whatever is sent ``-> bytes | None``.
        ``client_id``: names this client in the broker's log.
        ``bootstrap_timeout_ms``: how long to look for the cluster the first time.
        ``metadata_max_age_ms``: how often to ask for partitions that were added.
        ``host``: where the client lives; for embedding and tests.

        Raises ``InvalidRequestError`` or ``TypeError`` naming the argument that is wrong.
        """
        arguments = locals()
        self._host = host or ClientEnvironment()
        self._core = ProducerCore(
            connection_settings(arguments),
            producer_settings(arguments),
            self._host,
            key_serializer=function("key_serializer", key_serializer),
            value_serializer=function("value_serializer", value_serializer),
        )
        self._accumulator = self._core.accumulator
        self._setup()

    def _setup(self) -> None:
        """What only one of the skins has."""


class ProducerThread(ThreadedClient):
    """The life of a synchronous producer: an I/O thread, waits for room, and the end."""

    _core: ProducerCore

    def _begin(self, host: ClientEnvironment) -> None:
        """Set up. ``_core`` is there by now."""
        self._accumulator = self._core.accumulator
        self._take_thread(host, "raftlog-producer")
        self._thread.at_fork.add(self._accumulator.leave_behind)
        self._core.attach(self._thread.schedule)
        self._max_block_s = self._core.settings.max_block_ms / 1_000
        self._closed = False

    def _prepare(self, topic: str) -> TopicQueues:
        """Learn about a topic that is sent to for the first time."""
        if self._closed:
            raise ClosedError("the producer was closed")
        if not isinstance(topic, str):
            raise TypeError(f"topic={topic!r}: the name of a topic (str)")
        if not self._used:
            self._used = True
            _unclosed.add(self._core)
        return self._thread.call(lambda: self._core.prepare(topic))

    def _wait_for_room(self, deadline: float) -> None:
        self._core.wake()
        refuse_io_thread()
        left = deadline - self._core.monotonic()
        if left <= 0 or not wait_once(self._accumulator.when_room, left):
            raise self._core.no_room()

    def undelivered(self) -> int:
        """The number of records that are neither acknowledged nor failed. Any thread may call."""
        return self._accumulator.undelivered()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far is acknowledged or has failed; send them at once.

        ``timeout``: seconds; default: as long as it takes, which delivery_timeout_ms bounds. A
        record's failure is its future's to tell, not flush's.

        Raises ``TimeoutError`` when the time is over (the records are still being sent), and
        ``ClosedError``.
        """
        if self._closed:
            raise ClosedError("the producer was closed")
        self._flush(timeout)

    def _flush(self, timeout: float | None) -> None:
        deliveries = self._accumulator.hurry()
        if not deliveries:
            return
        self._core.wake()
        if not wait_for(pending_of(deliveries), timeout):
            raise TimeoutError(
                f"batches not acknowledged within {timeout} s: {len(deliveries)}; they are still "
                "being sent"
            )

    def close(self, timeout: float | None = None) -> None:
        """Flush, for up to ``timeout`` seconds (default: as ``flush``), then stop. Idempotent.

        Records that are not acknowledged by then fail: with ``ClosedError`` if they were not sent,
        with ``ConnectionLostError`` if they may or may not have been stored.
        """
        if self._closed:
            return
        self._closed = True
        self._thread.at_fork.discard(self._accumulator.leave_behind)
        try:
            if self._used:
                self._accumulator.shut()
                self._flush_and_end(timeout)
        finally:
            _unclosed.discard(self._core)
            self._stop_thread()

    def _flush_and_end(self, timeout: float | None) -> None:
        try:
            with suppress(TimeoutError):
                self._flush(timeout)
        finally:  # also when Ctrl-C ends the wait: no future may be left undecided
            self._thread.call(self._core.close)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(CLOSE_AFTER_INTERRUPT_S if interrupted else None)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        core = self._core

        async def flush_and_close() -> None:
            await core.delivered(core.accumulator.hurry())
            await core.close()
            _unclosed.discard(core)

        return flush_and_close


def _flush_unclosed() -> None:
    """At exit, before ``loop_thread`` stops its threads: send what producers still hold."""
    cores = list(_unclosed)  # a producer that was garbage may be closed on its thread just now
    deliveries = [delivery for core in cores for delivery in core.accumulator.hurry()]
    for core in cores:
        with suppress(ClosedError):  # its thread belonged to an embedded log that was closed
            core.wake()
    wait_for(pending_of(deliveries), EXIT_FLUSH_SECONDS_MAX)
    count = sum(core.accumulator.undelivered() for core in cores)
    if count:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ResourceWarning)  # Python hides them by default
            warnings.warn(
                f"{count:,} records were not delivered: the program ended without closing the "
                f"producer, and no broker acknowledged them within {EXIT_FLUSH_SECONDS_MAX:.0f} s. "
                "Use `with Producer(...)`, or call close()",
                ResourceWarning,
                stacklevel=1,
            )


atexit.register(_flush_unclosed)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unclosed.clear)


class Producer(ProducerThread, ProducerBase):
    """Sends records. Safe to share between threads; a context manager, which flushes and closes.

    A record's failure, whatever it is, comes out of its future; ``send`` itself raises only for
    arguments that can never be right, when there is no room (``ThrottledError``), and when the
    producer is closed.

    Close it, or use ``with``. At the exit of the interpreter, records of a producer that was not
    closed are sent for up to 10 seconds; a ``ResourceWarning`` on stderr counts those that were not
    delivered.
    """

    def _setup(self) -> None:
        self._append = self._accumulator.append
        self._is_custom = self._core.is_custom
        self._begin(self._host)

    def __enter__(self) -> Producer:
        return self

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """Queue one record; the future of its ``RecordMetadata``. Blocks only when memory is full.

        ``value``, ``key``: bytes, None, or what the serializers take. ``headers``: pairs of a name
        and bytes (or None). ``timestamp_ms``: since 1970; default: now. ``partition``: default: by
        key, else any. Records of one partition keep the order in which one thread sends them.

        Raises ``ThrottledError``, ``ClosedError``, ``TypeError``, ``InvalidRequestError``.
        """
        queues = self._accumulator.topics.get(topic)
        if queues is None:
            try:
                queues = self._prepare(topic)
            except ClosedError:
                raise
            except RaftlogError as error:
                return self._core.failed(topic, error)
        try:
            if (
                value.__class__ is not bytes
                or (queues.keys_required if key is None else key.__class__ is not bytes)
                or headers is not None
                or timestamp_ms is not None
                or partition is not None
                or self._is_custom
            ):
                value, key, headers, timestamp_ms, partition = self._core.normalize(
                    queues, value, key, headers, timestamp_ms, partition
                )
            future = self._append(queues, value, key, headers, timestamp_ms, partition)
            if future is None:
                deadline = self._core.monotonic() + self._max_block_s
                while future is None:
                    self._wait_for_room(deadline)
                    future = self._append(queues, value, key, headers, timestamp_ms, partition)
        except (KeyRequiredError, RecordTooLargeError, UnknownPartitionError) as error:
            return self._core.failed(topic, error)
        if self._accumulator.wake_needed:
            self._core.wake()
        return future

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Any] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
        partition: int | None = None,
    ) -> RangesFuture:
        """Queue many records with one call; the future of their offsets, as ``OffsetRange``s.

        The fast path: the cost per record is a fraction of ``send``'s. ``keys``, ``headers``: one
        for each value. ``timestamps_ms``: one for all, or one for each; default: now. Without keys
        and ``partition`` the records go to one partition after the other, a batch to each.

        The ranges are in input order: see ``RangesFuture``. If memory runs out in the middle, the
        records that found no room fail with ``ThrottledError``, through the future.

        Raises ``ThrottledError`` (nothing was queued), ``ClosedError``, ``TypeError``,
        ``InvalidRequestError``.
        """
        core = self._core
        run = core.columns_of(values, keys, headers, timestamps_ms)
        try:
            queues = self._accumulator.topics.get(topic) or self._prepare(topic)
            if partition is not None:
                check_partition(queues, partition)
        except ClosedError:
            raise
        except RaftlogError as error:
            return core.all_failed(topic, len(run.values), error)
        parts: list[tuple[Delivery, int, int]] = []
        deadline = core.monotonic() + self._max_block_s
        for piece in core.pieces(queues, run, partition):
            while (part := piece.offer()) is None:
                try:
                    self._wait_for_room(deadline)
                except ThrottledError as error:
                    if not parts:
                        raise
                    part = piece.failed(error)
                    break
            parts.append(part)
            if self._accumulator.wake_needed:
                core.wake()
        return RangesFuture(parts)
