"""Synchronous producer, and the constructor that both producers share.

``send`` and ``send_many`` run in the caller's thread and only queue records; an I/O thread sends
them. The caller's thread waits only for buffer space, for the metadata of a new topic, and in calls
that are documented to wait.

``ProducerBase`` imports asyncio, the protocol and the codecs with the first producer: programs that
import this module and create no producer start in a fraction of the time.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from raftlog import limits
from raftlog.client.defaults import CLIENT_ID_DEFAULT, TRANSACTION_TIMEOUT_MS_DEFAULT
from raftlog.client.threads import ThreadedClient, pending_of, refuse_io_thread, wait_for, wait_once
from raftlog.errors import (
    ClosedError,
    KeyRequiredError,
    RaftlogError,
    RecordTooLargeError,
    ThrottledError,
    UnknownPartitionError,
)
from raftlog.kafka_names import answers_kafka_names

if TYPE_CHECKING:
    from raftlog.client.accumulator import Accumulator, TopicQueues
    from raftlog.client.base import ClientEnvironment
    from raftlog.client.delivery import Delivery, DeliveryFuture, RangesFuture
    from raftlog.client.producer_core import ProducerCore
    from raftlog.client.settings import (
        Arguments,
        Bootstrap,
        Partitioner,
        SecurityArguments,
        Serializer,
    )
    from raftlog.client.transactions import Transaction

T = TypeVar("T")

# Time limit of the flush after Ctrl-C in a `with` block: enough for requests in flight.
CLOSE_AFTER_INTERRUPT_S: Final = 1.0
# Time limit of the flush of unclosed producers when the interpreter exits.
EXIT_FLUSH_SECONDS_MAX: Final = 10.0

_unclosed: Final[set[ProducerCore]] = set()  # producers of this process that have been used
_registered: Final[list[object]] = []  # the flush of a forked worker, once per process


@answers_kafka_names
class ProducerBase:
    """Settings of a producer. See ``Producer`` and ``AsyncProducer``."""

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
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """Create the producer. It connects with its first record, or now with a transactional ID.

        ``bootstrap``: ``host:port[,host:port]`` of one or more brokers, or a list of addresses.
            Default: the environment variable RAFTLOG_BOOTSTRAP; without it, the brokers of `raftlog
            up`: 127.0.0.1:9100 to 9102.
        ``acks``: when a record is acknowledged. "all" (or -1): after every in-sync replica has
            synced it; 1: after the leader has synced it; 0: when it is sent (its offset is
            unknown).
        ``idempotent``: retry without storing duplicates. Requires acks="all". Default: True if
            acks="all".
        ``compression``: "none", "gzip", "lz4" or "zstd"; ``compression_level``: the level of that
            codec. Default: the default level of the codec.
        ``linger_ms``: time that a batch waits for more records, 0 to 60,000 ms.
        ``batch_bytes_max``: maximum batch size, 1 KiB to 12 MiB. The max.message.bytes of the topic
            also limits it.
        ``buffer_memory``: buffer for unacknowledged records, from ``batch_bytes_max`` to 64 GiB.
            ``send`` blocks while it is full.
        ``max_block_ms``: maximum time that ``send`` blocks for buffer space or for the metadata of
            a topic, 0 to 86,400,000 ms.
        ``request_timeout_ms``: time limit for the response to one request, 1 to 86,400,000 ms.
        ``delivery_timeout_ms``: time limit for the delivery of a record, including retries: at
            least ``linger_ms`` + ``request_timeout_ms``, at most 86,400,000 ms.
        ``partitioner``: ``(topic, key, value, partition count) -> partition``. Default: the murmur2
            hash of the key, as in Kafka's clients. Records without a key fill one batch of each
            partition in turn.
        ``transactional_id``: name under which this producer sends transactions (``transaction``), 1
            to 1,024 characters. One running producer has it: a new one fences the old one, and
            aborts its open transaction, as soon as it is created (in asyncio, as soon as it is
            entered or used). Default: no transactions.
        ``transaction_timeout_ms``: time limit of a transaction, from its first record to its end, 1
            to 86,400,000 ms; the broker's transaction.max.timeout.ms also limits it. Then the
            coordinator aborts it.
        ``key_serializer``, ``value_serializer``: functions ``anything -> bytes | None``.
        ``client_id``: name of this client in the broker log, up to 256 characters.
        ``bootstrap_timeout_ms``: time limit for the first connection to the cluster, 0 to
            86,400,000 ms.
        ``metadata_max_age_ms``: interval of metadata refreshes, which find new partitions, 100 to
            86,400,000 ms.
        ``host``: environment of the client, for embedding and tests.
        ``security``: TLS: ``security_protocol``, ``ssl_cafile`` and so on (`SecurityArguments`).

        Raises ``InvalidRequestError`` or ``TypeError`` if an argument is wrong. The error names it.
        """
        self._wire(locals())
        self._setup()

    def _wire(self, arguments: Arguments) -> None:
        # The imports that this module defers.
        from raftlog.client.base import ClientEnvironment
        from raftlog.client.producer_core import ProducerCore
        from raftlog.client.settings import connection_settings, function, producer_settings

        names = "key_serializer", "value_serializer"
        self._accumulator: Accumulator
        self._host: ClientEnvironment = arguments["host"] or ClientEnvironment()
        self._core = ProducerCore(
            connection_settings(arguments),
            producer_settings(arguments),
            self._host,
            **{name: function(name, arguments[name]) for name in names},
        )
        self._accumulator = self._core.accumulator

    def _setup(self) -> None:
        """Set up what only the synchronous or only the asynchronous producer has."""


class ProducerThread(ThreadedClient):
    """Life cycle of a synchronous producer: I/O thread, waits for buffer space, flush and close."""

    _core: ProducerCore
    _accumulator: Accumulator

    def _begin(self, host: ClientEnvironment) -> None:
        """Set up the thread. The caller must set ``_core`` first."""
        self._accumulator = self._core.accumulator
        self._take_thread(host, "raftlog-producer")
        self._thread.at_fork.add(self._accumulator.leave_behind)
        self._core.attach(self._thread.schedule)
        self._max_block_s = self._core.settings.max_block_ms / 1_000
        self._closed = False

    def _prepare(self, topic: str, partition: object = None) -> TopicQueues:
        """Request the metadata of a topic before its first record."""
        if self._closed:
            raise ClosedError("the producer was closed")
        if not isinstance(topic, str):
            raise TypeError(f"topic={topic!r} is not the name of a topic (str)")
        return self._run_in_thread(lambda: self._core.prepare(topic, partition))

    def _run_in_thread(
        self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None
    ) -> T:
        """Run ``work()`` in the I/O thread, and wait for it. For the modules of the client.

        Raises ``ClosedError`` if the producer is closed, ``TimeoutError`` after ``timeout_s``.
        """
        if self._closed:
            raise ClosedError("the producer was closed")
        self._note_used()
        return self._thread.call(work, timeout_s)

    def _note_used(self) -> None:
        if not self._used:
            self._used = True
            _flush_at_exit_of_forked_worker()
            _unclosed.add(self._core)

    def _wait_for_room(self, deadline: float) -> None:
        self._core.wake()
        refuse_io_thread()
        left = deadline - self._core.monotonic()
        if left <= 0 or not wait_once(self._accumulator.when_room, left):
            raise self._core.no_room()

    def undelivered(self) -> int:
        """Return the number of records that are neither acknowledged nor failed. Thread-safe."""
        return self._accumulator.undelivered()

    def flush(self, timeout: float | None = None) -> None:
        """Send all queued records now, and wait until each is acknowledged or has failed.

        ``timeout``: seconds. Default: no limit; ``delivery_timeout_ms`` bounds the wait.

        The futures of the records report their errors; ``flush`` does not. Raises ``TimeoutError``
        if the time is over (the producer continues to send the records), and ``ClosedError`` if the
        producer is closed, or was created before a fork.
        """
        if self._closed:
            raise ClosedError("the producer was closed")
        self._thread.check_process()
        self._flush(timeout)

    def _flush(self, timeout: float | None) -> None:
        deliveries = self._accumulator.hurry()
        if not deliveries:
            return
        self._core.wake()
        if not wait_for(pending_of(deliveries), timeout):
            raise TimeoutError(
                f"batches not acknowledged within {timeout} s: {len(deliveries)}. The producer "
                "continues to send them. Call flush() again to wait longer"
            )

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds (default: as ``flush``), then stop. Idempotent.

        Records that are not acknowledged by then fail: with ``ClosedError`` if they were not sent,
        and with ``ConnectionLostError`` if they may or may not be stored. An open transaction is
        aborted.
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
        finally:  # also after KeyboardInterrupt: every future must be resolved
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
    """Send the records of unclosed producers at exit, before ``loop_thread`` stops its threads."""
    cores = list(_unclosed)  # a copy: an I/O thread may remove a garbage-collected producer
    deliveries = [delivery for core in cores for delivery in core.accumulator.hurry()]
    for core in cores:
        with suppress(ClosedError):  # the thread belonged to a closed embedded log
            core.wake()
    wait_for(pending_of(deliveries), EXIT_FLUSH_SECONDS_MAX)
    warn_of_undelivered(
        cores,
        "the program ended without closing the producer, and no broker acknowledged them within "
        f"{EXIT_FLUSH_SECONDS_MAX:.0f} s. Use `with Producer(...)`, or call close()",
    )


def warn_of_undelivered(cores: Iterable[ProducerCore], reason: str) -> None:
    """Emit a visible ``ResourceWarning`` with the number of undelivered records, if any."""
    count = sum(core.accumulator.undelivered() for core in cores)
    if count:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ResourceWarning)  # Python hides them by default
            warnings.warn(
                f"{count:,} {'record was' if count == 1 else 'records were'} not delivered: "
                f"{reason}",
                ResourceWarning,
                stacklevel=1,
            )


def _flush_at_exit_of_forked_worker() -> None:
    """Register the flush with multiprocessing, whose forked workers skip ``atexit``."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None and not _registered:
        from multiprocessing.util import Finalize

        _registered.append(Finalize(None, _flush_unclosed, exitpriority=0))


atexit.register(_flush_unclosed)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unclosed.clear)
    os.register_at_fork(after_in_child=_registered.clear)


class Producer(ProducerThread, ProducerBase):
    """Client that sends records. Threads can share it. A context manager, which flushes and closes.

    The future of a record reports its error. ``send`` itself raises only for invalid arguments, for
    a full buffer (``ThrottledError``), and if the producer is closed.

    Close the producer, or use ``with``. When the interpreter or a process of ``multiprocessing``
    exits, records of unclosed producers are sent for up to 10 seconds; a ``ResourceWarning`` on
    stderr reports the number of records that were not delivered. ``os._exit`` and a signal that
    ends the process skip this: call ``flush`` before.
    """

    def _setup(self) -> None:
        self._append = self._accumulator.append
        self._is_custom = self._core.is_custom
        self._begin(self._host)
        if self._core.is_transactional:
            self._note_used()
            self._thread.schedule(self._core.transactions.start)

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
        """Queue one record, and return the future of its ``RecordMetadata``.

        ``topic``: name of the topic.
        ``value``, ``key``: bytes, None, or an argument of the serializer.
        ``headers``: pairs of a name (str) and a value (bytes or None).
        ``timestamp_ms``: milliseconds since 1970. Default: now.
        ``partition``: partition number. Default: by key; without a key, any partition.

        Blocks for up to ``max_block_ms`` if the buffer is full or the topic is not known yet.
        Records that one thread sends to one partition keep their order.

        Raises ``ThrottledError`` if the buffer stays full, ``ClosedError`` if the producer is
        closed, and ``TypeError`` or ``InvalidRequestError`` if an argument is wrong.
        """
        queues = self._accumulator.topics.get(topic)
        # As ``ProducerCore.ready``, whose call would cost here.
        if (
            queues is None
            or (partition is not None and queues.lacks(partition))
            or (self._is_custom and self._core.lacks_schema(topic))
        ):
            try:
                queues = self._prepare(topic, partition)
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
        """Queue many records with one call, and return the future of their ``OffsetRange``s.

        The cost per record is a fraction of the cost of ``send``.

        ``values``, ``keys``, ``headers``: one entry for each record.
        ``timestamps_ms``: one time for all records, or one for each record. Default: now.
        ``partition``: partition of all records. Default: by key; without keys, one batch to each
            partition in turn.

        The ranges are in input order (see ``RangesFuture``). If the buffer fills up after some
        records are queued, the remaining records fail with ``ThrottledError`` through the future.

        Raises ``ThrottledError`` if no record was queued, ``ClosedError`` if the producer is
        closed, and ``TypeError`` or ``InvalidRequestError`` if an argument is wrong.
        """
        core = self._core
        try:
            queues = core.ready(topic, partition) or self._prepare(topic, partition)
            if partition is not None:
                queues.check_partition(partition)
        except ClosedError:
            raise
        except RaftlogError as error:
            return core.all_failed(topic, len(values), error)
        run = core.columns_of(values, keys, headers, timestamps_ms, topic)
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
        return core.ranges(parts)

    # -- transactions

    def transaction(self) -> Transaction:
        """Return a transaction, for one `with` block::

            with producer.transaction() as txn:
                txn.send("orders", value)
                txn.commit_offsets(consumer)

        The end of the block sends all records and commits: they become visible together with the
        offsets, to consumers that read committed records (the default). An exception in the block
        aborts, and nothing becomes visible. One transaction of a producer is open at a time.

        The block raises ``TransactionAbortedError`` if the transaction could not be committed, such
        as after its time limit: run it again, from the records after the committed offsets;
        ``OutcomeUnknownError`` if there is no response to the commit: call ``recover``;
        ``ProducerFencedError`` if a newer producer has this transactional ID: stop this one; and
        ``RetriableError`` if no transaction was begun, as no broker responds: try again.

        Raises ``InvalidRequestError`` if the producer has no transactional ID.
        """
        from raftlog.client.transactions import Transaction

        return Transaction(self, self._core.transactions)

    def recover(self) -> bool:
        """Find out how a transaction ended whose commit had no response. Return whether it is
        committed; if not, it is aborted.

        It repeats the commit, for up to ``request_timeout_ms``: so a transaction that was not
        committed yet is committed now, unless its time limit is over. Raises
        ``OutcomeUnknownError`` if there is no response again, ``ProducerFencedError`` if a newer
        producer has the transactional ID (that one has ended the transaction), and
        ``InvalidRequestError`` if no outcome is unknown.
        """
        return self._run_in_thread(self._core.transactions.recover)
