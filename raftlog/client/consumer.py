"""Synchronous consumer.

An I/O thread fetches records ahead. The caller's thread decodes them, so that ``poll`` and
iteration over fetched records need no thread switch.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import RLock, Thread, current_thread
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from raftlog import limits
from raftlog.client.base import ClientEnvironment
from raftlog.client.cluster import Cluster, ClusterView, TopicView
from raftlog.client.defaults import CLIENT_ID_DEFAULT
from raftlog.client.fetcher import Fetcher, Positions
from raftlog.client.groups.coordinator import check_offsets
from raftlog.client.groups.member import (
    CommitCallback,
    Listeners,
    Member,
    Phase,
    Reading,
    Rebalancer,
    check_listener,
    run_now,
)
from raftlog.client.requests import At, list_offsets
from raftlog.client.settings import (
    DAY_MS,
    Arguments,
    Bootstrap,
    ConnectionSettings,
    ConsumerSettings,
    Deserializer,
    GroupSettings,
    NeedsSchemaError,
    OffsetReset,
    SecurityArguments,
    connection_settings,
    consumer_settings,
    function,
    group_settings,
    integer,
)
from raftlog.client.subscription import (
    Batch,
    Chunk,
    PartitionFetchState,
    Subscription,
    Wanted,
    check_partitions,
    check_topics,
)
from raftlog.client.threads import Closing, ThreadedClient, refuse_io_thread, wait_once
from raftlog.errors import (
    ClosedError,
    CorruptBatchError,
    DeserializationError,
    InvalidRequestError,
    RaftlogError,
    counted,
)
from raftlog.kafka_names import answers_kafka_names
from raftlog.protocol.records import AWAY_EPOCH, LEAVE_EPOCH
from raftlog.record import BatchHeader, check, check_length, decode_records
from raftlog.types import (
    ConsumerRecord,
    GroupMetadata,
    K,
    LeaderEpoch,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RebalanceListener,
    TopicPartition,
    V,
    check_topic_name,
    is_internal_topic,
)

if TYPE_CHECKING:
    import pyarrow as pa


# -- consumer base ---------------------------------------------------------------------------------
#
# Base of both consumers: the constructor, and the checks of arguments.


POLL_TIMEOUT_MS_DEFAULT = 1_000
POLL_RECORDS_DEFAULT = 500
POLL_RECORDS_MAX = 10_000_000
CLOSE_TIMEOUT_MS_DEFAULT = 5_000


@answers_kafka_names
class ConsumerBase(Generic[K, V]):
    """Settings of a consumer. See ``Consumer`` and ``AsyncConsumer``."""

    _records: Iterator[ConsumerRecord[Any, Any]]  # rest of the batch that is being iterated
    _part: PartitionFetchState  # partition of that batch

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        group: str | None = None,
        group_instance_id: str | None = None,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 5_000,
        max_poll_interval_ms: int = 300_000,
        assignor: str | None = None,
        auto_offset_reset: str = "latest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = limits.FETCH_BYTES_MAX,
        max_partition_fetch_bytes: int = limits.MIB,
        check_crcs: bool = True,
        read_from: str = "leader",
        client_rack: str | None = None,
        isolation: str = "committed",
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        request_timeout_ms: int = 30_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """Create the consumer. It opens its first connection when a topic or partition is named.

        ``bootstrap``: ``host:port[,host:port]`` of one or more brokers, or a list of addresses.
            Default: the environment variable RAFTLOG_BOOTSTRAP; without it, the brokers of `raftlog
            up`: 127.0.0.1:9100 to 9102.
        ``group``: name of the consumer group, 1 to 255 characters. Its members divide the
            partitions.
        ``group_instance_id``: id of a static member, 1 to 255 characters. After ``close`` or a
            crash, its partitions stay reserved for the next member with this id, for
            ``session_timeout_ms``.
        ``auto_commit``: commit processed records every ``auto_commit_interval_ms`` (1 to
            86,400,000), when partitions are revoked, and on ``close``.
        ``session_timeout_ms``: the group removes a member after this time without a heartbeat, 100
            to 1,800,000. ``heartbeat_interval_ms``: 1 to 60,000, at most a third of the session
            timeout.
        ``max_poll_interval_ms``: a member that does not poll for this time leaves; also the time
            limit to revoke a partition. 1 to 2,147,483,647.
        ``assignor``: assignment strategy, "uniform" or "range". Default: the coordinator's.
        ``auto_offset_reset``: start position without a committed offset, and after an offset is out
            of range: "earliest", "latest" (the end when the partition is assigned), or "error".
        ``fetch_min_bytes``, ``fetch_max_wait_ms``: a broker responds when it has this number of
            bytes, or after this wait: 0 to 52,428,800 bytes, 0 to 60,000 ms. If one byte is enough
            and no record arrives, it waits up to ten times as long; this delays no record.
        ``fetch_max_bytes``, ``max_partition_fetch_bytes``: of one fetch, in total and for each
            partition, 1 to 52,428,800. A larger batch is returned complete.
        ``check_crcs``: verify the CRC-32C of each batch.
        ``read_from``: "leader": fetch from the leader; if none is reachable for 1 s, from another
            replica. "replica": fetch from any in-sync replica, which learns of committed records a
            little later, preferably of the ``client_rack``. Both return committed records only.
        ``isolation``: "committed": no records of aborted or open transactions; "uncommitted": all.
        ``key_deserializer``, ``value_deserializer``: ``bytes -> anything``; not called for None.
        ``request_timeout_ms``: time limit of one request. ``client_id``: name of this client in the
            broker log, up to 256 characters. ``bootstrap_timeout_ms``: of the first connection.
        ``metadata_max_age_ms``: interval of metadata refreshes, which find new partitions.
        ``host``: environment of the client. ``security``: TLS arguments (`SecurityArguments`).

        Raises ``InvalidRequestError``, ``InvalidGroupError`` or ``TypeError``, with the argument.
        """
        self._wire(locals())
        self._setup()

    def _wire(self, arguments: Arguments) -> None:
        names = "key_deserializer", "value_deserializer"
        self._host = arguments["host"] or ClientEnvironment()
        self._core = ConsumerCore(
            connection_settings(arguments),
            consumer_settings(arguments),
            self._host,
            group=group_settings(arguments),
            **{name: function(name, arguments[name]) for name in names},
        )
        self._subscription = self._core.subscription
        self._records = iter(())
        self._member = self._core.member
        self._deserializes = self._core.has_deserializers
        self._rebalancer: Rebalancer | None = None
        if self._member is not None:
            self._rebalancer = Rebalancer(
                self._member, self._subscription, now=self._core.monotonic
            )

    def _setup(self) -> None:
        """Set up what only the synchronous or only the asynchronous consumer has."""

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of this consumer in its group: member id, epoch and instance id.

        Raises ``InvalidRequestError`` without a group.
        """
        membership = self._grouped("group_metadata").membership
        settings = membership.settings
        return GroupMetadata(
            settings.group, membership.member_id, membership.epoch, settings.instance_id
        )

    def _processed(
        self, what: str, offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None
    ) -> tuple[Member, Reading]:
        """Return what ``commit`` would commit, for the modules of the client. ``what``: the call,
        in errors.
        """
        return self._grouped(what), self._reading(what, offsets)

    def _reading(self, what: str, offsets: object) -> Reading:
        """Return what to commit: ``offsets``, or what was processed."""
        raise NotImplementedError

    def _grouped(self, what: str) -> Member:
        if self._member is None:
            raise InvalidRequestError(
                f"{what}() needs a consumer group. Set group=..., or store position() in the "
                "application and seek() to it after a restart"
            )
        return self._member

    def _listen(
        self,
        on_assign: RebalanceListener | None,
        on_revoke: RebalanceListener | None,
        on_lost: RebalanceListener | None,
        *,
        coroutines: bool = False,
    ) -> None:
        given = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        for name, listener in given.items():
            check_listener(name, listener, coroutines=coroutines)
        if self._rebalancer is not None:
            self._rebalancer.listeners = Listeners(on_assign, on_revoke, on_lost)
        elif any(listener is not None for listener in given.values()):
            raise InvalidRequestError(
                "on_assign, on_revoke and on_lost need a consumer group. Set group=..."
            )

    def _these(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        """Return the checked ``partitions``; None selects all assigned partitions."""
        if partitions is None:
            return list(self._subscription.parts)
        return check_partitions(partitions)

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord[Any, Any]:
        """Return the next record of an iteration, deserialized."""
        try:
            return self._core.deserialized(record)
        except Exception:
            self._subscription.all_processed()  # up to the record before this one
            raise

    def _check_readable(self) -> None:
        if not self._subscription.parts and not self._subscription.is_open:
            raise nothing_assigned()
        self._core.activate()


def check_interest(
    topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None
) -> tuple[list[str], re.Pattern[str] | None]:
    """Check the arguments of ``subscribe``: topics, or a pattern for complete topic names.

    Raises ``InvalidRequestError`` or ``TypeError`` if they are wrong.
    """
    if (topics is None) == (pattern is None):
        raise InvalidRequestError(
            "subscribe() requires either topics or pattern. Pass exactly one of them"
        )
    if pattern is None:
        assert topics is not None, "one is given"
        return check_topics(topics), None
    text: object = getattr(pattern, "pattern", pattern)
    if not isinstance(text, str):
        raise TypeError(f"pattern={pattern!r} is not a str or a compiled str pattern")
    try:
        return [], re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(
            f"pattern={pattern!r} is not a regular expression: {error}"
        ) from error


def check_some(
    partitions: TopicPartition | Iterable[TopicPartition],
) -> tuple[list[TopicPartition], bool]:
    """Return the checked partitions, and True if the argument is a single partition."""
    if isinstance(partitions, TopicPartition):
        return check_partitions([partitions]), True
    return check_partitions(partitions), False


def check_callback(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise TypeError(f"callback={callback!r} is not a function (offsets, error)")


def chosen(
    found: Mapping[TopicPartition, OffsetAndMetadata | None], *, is_one: bool, metadata: bool
) -> Any:
    """Return the result of ``committed`` in the form that the caller requested."""
    wanted: dict[TopicPartition, Any] = {
        tp: given if metadata or given is None else given.offset for tp, given in found.items()
    }
    return next(iter(wanted.values())) if is_one else wanted


def nothing_assigned() -> InvalidRequestError:
    return InvalidRequestError(
        "this consumer has no assignment. Call assign() or subscribe() first"
    )


# -- consumer --------------------------------------------------------------------------------------


T = TypeVar("T")


class Consumer(ConsumerBase[K, V], ThreadedClient, Iterator[ConsumerRecord[K, V]]):
    """Client that reads records. A context manager, and an iterator of records.

    ``K``, ``V``: the return types of the deserializers; bytes without them.

    One thread at a time can use it. Another thread can call ``close``, which ends a waiting
    ``poll`` or iteration with ``ClosedError``. Other threads can also call ``commit`` and
    ``commit_async`` with explicit offsets, ``committed``, ``lag``, ``pause``, ``resume`` and the
    methods that look up offsets. All other methods raise ``InvalidRequestError`` if two threads
    call them at the same time.

    In a group, delivery is at least once: records from the committed offset onward are delivered
    again after a restart or rebalance. A record is processed when the application requests the next
    record or calls ``poll`` again.
    """

    def _setup(self) -> None:
        self._take_thread(self._host, "raftlog-consumer")
        self._core.attach(self._thread.schedule)
        self._core.learn_now = lambda needed: self._thread.call(lambda: self._core.learn(needed))
        self._in_use = RLock()
        self._user: Thread | None = None  # the thread that polled last
        self._closing = Closing(self._thread, self._core.monotonic)
        self._closed = False

    # -- subscription

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Partitions that were assigned before keep their position.

        With a group, new partitions start at its committed offsets, and ``commit`` works while the
        group has no members. The consumer does not become a member. Raises ``UnknownTopicError`` or
        ``UnknownPartitionError`` if a partition does not exist, and ``BrokerUnavailableError`` if
        no broker can be reached.
        """
        checked = check_partitions(partitions)
        with self._alone(), self._left():
            self._call(lambda: self._core.assign(checked))

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: RebalanceListener | None = None,
        on_revoke: RebalanceListener | None = None,
        on_lost: RebalanceListener | None = None,
    ) -> None:
        """Read topics, including partitions that are added later. Replaces the subscription.

        ``topics``: names of topics.
        ``pattern``: regular expression that matches the complete topic name; replaces ``topics``.
        ``on_assign``: called before the first record of newly assigned partitions.
        ``on_revoke``: called while the partitions still belong to this consumer. It can ``commit``.
        ``on_lost``: called after the partitions were lost. Default: ``on_revoke``.

        Without a group, the consumer reads all partitions, and reads a topic that matches the
        pattern later from its first record. With a group, it joins the group and reads the
        partitions that the group assigns to it.

        The callbacks need a group. They receive a list of partitions, and run within ``poll`` or
        iteration. If a callback raises an exception, the rebalance continues and ``poll`` raises
        the exception.

        Raises ``UnknownTopicError`` if a topic does not exist, ``BrokerUnavailableError`` if no
        broker can be reached, and ``InvalidRequestError`` for more than 1,000 topics in a group.
        ``poll`` raises this error if a pattern matches more than 1,000 topics later.
        """
        names, compiled = check_interest(topics, pattern)
        with self._alone():
            self._listen(on_assign, on_revoke, on_lost)
            self._call(lambda: self._core.subscribe(names, compiled))

    def unsubscribe(self) -> None:
        """Read no partitions. In a group: call ``on_revoke``, commit if ``auto_commit``, leave."""
        with self._alone(), self._left():
            self._core.assign_nothing()

    @contextmanager
    def _left(self) -> Iterator[None]:
        """Leave the group, if this consumer is a member, before the block. Exceptions of callbacks
        are raised after it: others get the partitions, and the consumer must not read on.
        """
        errors = list[Exception]()
        rebalancer = self._rebalancer if self._used else None
        if rebalancer is not None:
            reading = run_now(rebalancer.give_up(errors, only_processed=False))
            self._call(lambda: self._core.leave(reading))
        yield
        if rebalancer is not None:
            run_now(rebalancer.end(errors))

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions. In a group, they change within ``poll`` and iteration."""
        return set(self._subscription.parts)

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of a topic. Requests its metadata each time.

        Raises ``UnknownTopicError`` if it does not exist.
        """
        return self._call(lambda: self._core.partitions_for(topic))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching and returning records of these partitions until ``resume``."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Resume paused partitions."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), False)
        self._wake()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        self._thread.check_process()
        return self._subscription.paused()

    # -- records

    def poll(
        self,
        timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT,
        max_records: int = POLL_RECORDS_DEFAULT,
    ) -> list[ConsumerRecord[K, V]]:
        """Return the next records, or an empty list if none arrive within ``timeout_ms``.

        ``timeout_ms``: maximum wait time if no record is fetched yet. Default: 1,000.
        ``max_records``: maximum number of records, 1 to 10,000,000. Default: 500.

        Records of one partition are in offset order. While a broker is unavailable, ``poll`` waits
        for it and returns no records of its partitions.

        Raises ``OffsetOutOfRangeError``, ``UnknownTopicError`` and other errors of one partition.
        The position of the partition does not change, and the next ``poll`` tries again: seek or
        pause the partition to continue with the others. ``CorruptBatchError`` and
        ``DeserializationError`` identify the bad record; their ``skip()`` continues after it.
        """
        integer("max_records", max_records, 1, POLL_RECORDS_MAX)
        return self._wait_for(lambda: self._core.take(max_records), timeout_ms) or []

    def poll_arrow(self, timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT) -> pa.RecordBatch | None:
        """Return the next records of one partition as Arrow, or None if none arrive in time.

        Columns: topic, partition, offset, key, value, headers, timestamp (us, UTC), leader_epoch.
        Deserializers do not apply. Requires pyarrow (the extra ``arrow``). Raises the errors of
        ``poll``.
        """
        return self._wait_for(self._core.take_arrow, timeout_ms)

    def __iter__(self) -> Self:
        """Return the consumer itself: an iterator without end over the next records."""
        return self

    def __next__(self) -> ConsumerRecord[K, V]:
        """Wait for the next record. Raises the errors of ``poll``, and never ``StopIteration``."""
        try:
            while True:
                for record in self._records:
                    returned = self._deserialized(record) if self._deserializes else record
                    self._part.position = record.offset + 1
                    return returned
                run = self._wait_for(self._core.next_run, None)
                assert run is not None, "no timeout"
                self._part, self._records = run
        except BaseException:
            self._records = iter(())  # the next call continues at the position
            raise

    def _wait_for(self, take: Callable[[], T], timeout_ms: int | None) -> T:
        """Return the first non-empty result of ``take``, or the last one after ``timeout_ms``."""
        timeout_s = None
        if timeout_ms is not None:
            timeout_s = integer("timeout_ms", timeout_ms, 0, limits.WAIT_MS_MAX) / 1_000
        with self._alone():
            self._check_readable()
            rebalancer = self._rebalancer
            if rebalancer is None:
                return self._wait_alone(take, timeout_s)
            rebalancer.polling()
            try:
                return self._wait_alone(take, timeout_s)
            finally:
                self._user = current_thread()
                rebalancer.polled()

    def _wait_alone(self, take: Callable[[], T], timeout_s: float | None) -> T:
        found = self._attend_and(take)
        if found:
            return found
        refuse_io_thread()
        self._core.wake()  # KeyboardInterrupt may have interrupted an earlier call before wake()
        deadline = None if timeout_s is None else self._core.monotonic() + timeout_s
        while not found:
            left = None if deadline is None else deadline - self._core.monotonic()
            if left is not None and left <= 0:
                break
            if not wait_once(self._subscription.when_ready, left):
                break
            if self._subscription.closed:
                raise ClosedError("the consumer was closed")
            found = self._attend_and(take)
        return found

    def _attend_and(self, take: Callable[[], T]) -> T:
        """Return the result of ``take``, after pending rebalance callbacks and errors."""
        if self._subscription.interrupted:
            if self._rebalancer is None:
                self._subscription.interrupted = False
            else:
                run_now(self._rebalancer.attend())
        return take()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise ``InvalidRequestError`` if another thread is in an exclusive call."""
        self._check_open()
        if not self._in_use.acquire(blocking=False):
            raise InvalidRequestError(
                "two threads use this consumer at the same time. Create one consumer per "
                "thread, or poll in one thread and pass the records to the others"
            )
        try:
            yield
        finally:
            self._in_use.release()

    # -- where to read

    def position(self, partition: TopicPartition) -> Offset:
        """Return the offset of the next record that this consumer returns of a partition."""
        (tp,) = check_partitions([partition])
        self._check_open()
        position = self._subscription.part(tp).position
        return self._call(lambda: self._core.position(tp)) if position is None else position

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Continue from ``offset`` (0 or more).

        If the partition does not have this offset, the next fetch applies ``auto_offset_reset``.
        """
        (tp,) = check_partitions([partition])
        with self._alone():
            self._subscription.seek(tp, integer("offset", offset, 0, limits.OFFSET_MAX))
            self._wake()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the first record of these partitions. Default: all assigned partitions."""
        self._reset(partitions, "earliest")

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the current end of these partitions. Default: all assigned partitions."""
        self._reset(partitions, "latest")

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Return the first stored offset of each partition."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "earliest"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the end offset of each partition: the offset after its last committed record."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "latest"))

    def lag(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the number of offsets between ``position`` and the end of each partition.

        ``partitions``: default: all assigned partitions.
        """
        checked = self._these(partitions)
        return self._call(lambda: self._core.lag(checked))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after a time (ms since 1970) of each partition, or None."""
        checked = check_times(times)
        return self._call(lambda: self._core.offsets_for_times(checked))

    def _reset(self, partitions: Iterable[TopicPartition] | None, how: OffsetReset) -> None:
        with self._alone():
            checked = self._these(partitions)
            self._call(lambda: self._core.reset(checked, how))

    # -- state of the group

    def commit(
        self,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets to the group. They are durable when this method returns.

        ``offsets``: for each partition, the offset of the next record to read. Default: the offset
            after the last record that was returned to the application, including a record that is
            being processed.
        ``timeout_ms``: maximum duration, 1 to 86,400,000. Default: ``request_timeout_ms``.

        Raises ``FencedMemberError`` or ``UnknownMemberError`` if the group has assigned the
        partitions to other members. The next ``poll`` then joins the group again, and the other
        members read these records again. Raises ``PartitionNotOwnedError`` for a partition of
        another member, ``InvalidRequestError`` for an offset beyond the end, and
        ``OutcomeUnknownError`` if the offsets may or may not be committed.
        """
        if timeout_ms is not None:
            integer("timeout_ms", timeout_ms, 1, DAY_MS)
        member, reading = self._grouped("commit"), self._reading("commit", offsets)
        self._call(lambda: member.commit(reading, timeout_ms=timeout_ms))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> Future[dict[TopicPartition, OffsetAndMetadata]]:
        """Commit without waiting. Commits are carried out in the order of the calls.

        ``offsets``: as in ``commit``.
        ``callback``: ``callback(offsets, error)``, called within a later ``poll``, iteration or
            ``close``. ``error`` is None if the commit succeeded.

        The result of the future is the committed offsets; it fails with the errors of ``commit``.
        """
        check_callback(callback)
        member, reading = self._grouped("commit_async"), self._reading("commit_async", offsets)
        rebalancer = self._rebalancer
        future: Future[dict[TopicPartition, OffsetAndMetadata]] = Future()
        future.set_running_or_notify_cancel()

        def done(error: RaftlogError | None) -> None:
            if callback is not None and rebalancer is not None:
                rebalancer.committed(callback, reading.offsets, error)
            if error is None:
                future.set_result(dict(reading.offsets))
            else:
                future.set_exception(error)

        self._used = True
        member.commit_soon(reading, done)
        return future

    def _reading(self, what: str, offsets: object) -> Reading:
        self._check_open()
        member = self._grouped(what)
        if offsets is not None:
            return member.reading(check_offsets(offsets))
        with self._alone():
            return member.reading()

    @overload
    def committed(
        self, partitions: TopicPartition, *, metadata: Literal[False] = False
    ) -> Offset | None: ...
    @overload
    def committed(
        self, partitions: TopicPartition, *, metadata: Literal[True]
    ) -> OffsetAndMetadata | None: ...
    @overload
    def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: Literal[False] = False
    ) -> dict[TopicPartition, Offset | None]: ...
    @overload
    def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: Literal[True]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition], *, metadata: bool = False
    ) -> Any:
        """Return the committed offset of a partition, or None; a dict for several partitions.

        With ``metadata``, the values are ``OffsetAndMetadata``. Raises ``UnknownTopicError`` or
        ``UnknownPartitionError`` if a partition does not exist.
        """
        member, (checked, is_one) = self._grouped("committed"), check_some(partitions)
        found = self._call(lambda: member.committed(checked))
        return chosen(found, is_one=is_one, metadata=metadata)

    # -- the thread, and the end

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        self._used = True
        return self._thread.call(work)

    def _wake(self) -> None:
        if self._used:
            self._core.wake()

    def _check_open(self) -> None:
        rebalancer = self._rebalancer
        if self._closed and (rebalancer is None or not rebalancer.is_busy):
            raise ClosedError("the consumer was closed")
        self._thread.check_process()

    def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS_DEFAULT) -> None:
        """Stop the consumer. Idempotent. Any thread can call it; a concurrent call waits.

        In a group: call ``on_revoke``, commit the records that were returned to the application if
        ``auto_commit`` is set, and leave. If another thread reads records, ``close`` commits
        processed records only.

        ``timeout_ms``: maximum wait for the coordinator, and for a call of another thread to end.
            Default: 5,000. It does not limit ``on_revoke``.

        When ``close`` returns, these offsets and all offsets of ``commit_async`` are committed,
        unless the coordinator refused them or did not respond within ``timeout_ms``. The logger
        ``raftlog`` reports that case, and the records are delivered again.

        The interpreter waits at exit for a ``close`` in progress, also in a daemon thread. It does
        not close consumers automatically: for an open consumer, only earlier commits count. In a
        signal handler, set a flag or raise an exception instead of calling ``close``: a handler
        runs in the reading thread, where ``close`` counts the records being processed as processed.
        """
        integer("timeout_ms", timeout_ms, 0, DAY_MS)
        self._close(timeout_ms, only_processed=self._is_others())

    def _is_others(self) -> bool:
        """Return True if another thread may be processing records."""
        return self._user not in (None, current_thread())

    def _close(self, timeout_ms: int, *, only_processed: bool) -> None:
        wait_s = timeout_ms / 1_000
        with self._closing.begin(wait_s=wait_s, takes_s=2 * wait_s) as is_mine:
            if is_mine:
                self._closed = True
                self._end(timeout_ms, only_processed=only_processed)

    def _end(self, timeout_ms: int, *, only_processed: bool) -> None:
        rebalancer, errors = self._rebalancer, list[Exception]()
        is_alone = False
        try:
            if self._used:
                self._thread.check_process()  # its locks may be held by threads of the parent
                self._subscription.shut()
                is_alone = self._in_use.acquire(timeout=timeout_ms / 1_000)  # shut() ends a poll
                try:
                    if rebalancer is not None:
                        reading = run_now(rebalancer.give_up(errors, only_processed=only_processed))
                        self._thread.call(lambda: self._core.leave(reading, timeout_ms, away=True))
                finally:  # also after Ctrl-C: the thread may be that of an embedded log
                    self._thread.call(self._core.close)
                if rebalancer is not None:
                    run_now(rebalancer.end(errors))
        finally:
            if is_alone:
                self._in_use.release()
            self._stop_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the consumer. After an exception, commit processed records only."""
        only_processed = kind is not None or self._is_others()
        self._close(CLOSE_TIMEOUT_MS_DEFAULT, only_processed=only_processed)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._core.abandon


# -- consumer core ---------------------------------------------------------------------------------
#
# Consumer core that the synchronous and the asynchronous consumer share.
#
# The application's thread takes and decodes records through calls that never wait. Everything
# asynchronous runs on the one loop that the core is attached to. The two consumers implement the
# waits for records.


logger: Final = logging.getLogger(__name__)

_ABANDON_TIMEOUT_MS: Final = 1_000
_TURNS: Final = 1_000  # random start values, so that consumers start with different replicas


Checked: TypeAlias = tuple[BatchHeader, memoryview]  # a batch with valid checksums


class Run(NamedTuple):
    """Decoded records of one partition. The reader must update ``part.position`` as it iterates."""

    part: PartitionFetchState
    records: Iterator[ConsumerRecord[Any, Any]]


class ConsumerCore:
    """Components of one consumer. Call ``attach`` before anything else."""

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: ConsumerSettings,
        host: ClientEnvironment,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        group: GroupSettings | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = Cluster(
            connection, connector=host.connector, chance=host.chance, entropy=host.entropy
        )
        self.subscription = Subscription(settings, start="committed" if group else None)
        self.monotonic = host.clock.monotonic
        self.has_deserializers = bool(key_deserializer or value_deserializer)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        # Gets a schema before it returns; None: ``NeedsSchemaError`` is raised.
        self.learn_now: Callable[[NeedsSchemaError], None] | None = None
        self.member: Member | None = None
        if group is not None:
            self.member = Member(
                group,
                self.cluster,
                self.subscription,
                now=host.clock.monotonic,
                member_id=str(
                    uuid.UUID(
                        int=int(host.chance() * (1 << 53)) << 75 | int(host.chance() * (1 << 53))
                    )
                ),
                is_stable=settings.isolation == "committed",
            )
        self._interest = TopicFilter(self.cluster, self.subscription, self.member)
        self._positions = Positions(
            self.cluster,
            self.subscription,
            self.member.look_up if self.member else None,
            settings.isolation,
        )
        self._fetcher = Fetcher(
            settings,
            self.cluster,
            self.subscription,
            now=host.clock.monotonic,
            positions=self._positions,
            turn=int(host.chance() * _TURNS) if settings.read_from == "replica" else 0,
        )
        self._schedule: Callable[[Callable[[], None]], object] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._active = False

    def attach(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        """Set ``schedule``, which runs a function on the core's loop."""
        self._schedule = schedule
        if self.member is not None:
            self.member.schedule = schedule
            self.member.on_change = self._fetcher.poll

    # -- records, in the application's thread

    def activate(self) -> None:
        """Start to fetch ahead. Called when the application first requests records."""
        if not self._active:
            assert self._schedule is not None, "attach() first"
            self._schedule(self._fetcher.activate)
            self._active = True

    def take(self, records_max: int) -> list[ConsumerRecord[Any, Any]]:
        """Return up to ``records_max`` fetched records; an empty list without any. Never waits."""
        taken: list[ConsumerRecord[Any, Any]] = []
        while len(taken) < records_max:
            chunk = self._next_chunk(errors=not taken)
            if chunk is None:
                break
            try:
                part = self._take_from(chunk, records_max - len(taken))
            except Exception:
                if not taken:
                    raise
                break  # the next call raises the error first
            if taken:
                taken.extend(part)
            else:
                taken = part
        self._fetch_on()
        return taken

    def _next_chunk(self, *, errors: bool = True) -> Chunk | None:
        try:
            return self.subscription.next_chunk(errors=errors)
        except RaftlogError:
            self.wake()  # fetches the batch again for the next call
            raise

    def _take_from(self, chunk: Chunk, records_max: int) -> list[ConsumerRecord[Any, Any]]:
        if not self._decode(chunk):
            return []
        self.subscription.end_iteration(chunk)
        self.subscription.hand_out(chunk.part)
        records = chunk.records
        start = self.subscription.first_unread(chunk)
        if start == 0 and len(records) <= records_max and not self.has_deserializers:
            self.subscription.finish_batch(chunk)
            return records
        found = records[start : start + records_max]
        if self.has_deserializers:
            found = self._deserialize(found)
        if start + len(found) == len(records):
            self.subscription.finish_batch(chunk)
        else:
            chunk.part.position = found[-1].offset + 1
        return found

    def next_run(self) -> Run | None:
        """Return the unread part of the next batch; None if nothing is fetched. Never waits."""
        while (chunk := self._next_chunk()) is not None:
            if self._decode(chunk):
                self._fetch_on()
                records = self.subscription.begin_run(chunk)
                return None if records is None else Run(chunk.part, records)
        self._fetch_on()
        return None

    def take_arrow(self) -> pa.RecordBatch | None:
        """Return fetched batches of one partition as Arrow; None without any. Never waits."""
        while (chunk := self._next_chunk()) is not None:
            batches = self.subscription.take_batches(chunk, limits.ARROW_POLL_BYTES_MAX)
            try:
                found = self._to_arrow(chunk.part, batches)
            except CorruptBatchError:
                batches = batches[:1]  # a batch before the corrupt one is valid
                try:
                    found = self._to_arrow(chunk.part, batches)
                except CorruptBatchError as error:
                    self._came_damaged(chunk, error)
                    continue
            self.subscription.hand_out(chunk.part)
            self.subscription.finish_batches(chunk, batches)
            self._fetch_on()
            if found.num_rows:
                return found
        self._fetch_on()
        return None

    def take_checked(self) -> tuple[TopicPartition | None, list[Checked]]:
        """Return the undecoded, verified batches of one fetch, and their partition.

        The partition is None, and the list empty, if nothing is fetched.

        Never waits. The position moves past all returned batches, whose headers contain their
        offsets.
        """
        header_of = check if self.settings.check_crcs else check_length
        while (chunk := self._next_chunk()) is not None:
            found: list[Checked] = []
            try:
                for batch in chunk.batches:
                    found.append((header_of(batch.data), batch.data))  # noqa: PERF401
            except CorruptBatchError as error:
                if not found:
                    self._came_damaged(chunk, error)
                    continue
            self.subscription.finish_batches(chunk, found)
            self._fetch_on()
            return chunk.part.tp, found
        self._fetch_on()
        return None, []

    def deserialized(self, record: ConsumerRecord) -> ConsumerRecord[Any, Any]:
        """Return the record with deserialized key and value.

        Raises ``DeserializationError`` if a deserializer raises an exception.
        """
        key, value, what = record.key, record.value, "key"
        try:
            if key is not None and self._key_deserializer is not None:
                key = self._key_deserializer(key)
            what = "value"
            if value is not None and self._value_deserializer is not None:
                value = self._value_deserializer(value)
        except NeedsSchemaError as needed:
            if self.learn_now is None:
                raise  # AsyncConsumer awaits ``learn``
            self.learn_now(needed)
            return self.deserialized(record)
        except Exception as error:
            topic, partition, offset = record.topic, record.partition, record.offset
            raise DeserializationError(
                f"{topic}:{partition}: the {what}_deserializer failed for the record at offset "
                f"{offset}: {type(error).__name__}: {error}. To continue after it, call skip() of "
                f"this error, or seek(TopicPartition({topic!r}, {partition}), {offset + 1})"
            ).at(topic, partition, offset, skip=self._skip(record, offset + 1)) from error
        return ConsumerRecord(
            record.topic,
            record.partition,
            record.offset,
            key,
            value,
            record.headers,
            record.timestamp_ms,
            record.leader_epoch,
        )

    async def learn(self, needed: NeedsSchemaError) -> None:
        """Get the schema that a deserializer needs."""
        from raftlog.client.registry import call_registry

        async def call(method: str, path: str) -> Any:
            return await call_registry(self.cluster, method, path)

        await needed.deserializer.learn(call, needed.schema_id)

    def _skip(self, place: ConsumerRecord | TopicPartition, offset: Offset) -> Callable[[], None]:
        tp = TopicPartition(place.topic, place.partition)

        def skip() -> None:
            self.subscription.seek(tp, offset)
            self.wake()

        return skip

    def _deserialize(self, records: list[ConsumerRecord]) -> list[ConsumerRecord[Any, Any]]:
        done: list[ConsumerRecord[Any, Any]] = []
        try:
            for record in records:
                done.append(self.deserialized(record))  # noqa: PERF401 - keeps earlier records
        except Exception:
            if not done:
                raise
        return done

    def _decode(self, chunk: Chunk) -> bool:
        """Decode the first batch of the chunk. Returns False if it contains no record to read."""
        if chunk.records:
            return True
        part = chunk.part
        try:
            chunk.records = decode_records(
                chunk.batches[0].data,
                topic=part.tp.topic,
                partition=part.tp.partition,
                from_offset=part.position or 0,
                check_crc=self.settings.check_crcs,
            )
        except CorruptBatchError as error:
            self._came_damaged(chunk, error)
            return False
        if not chunk.records:
            self.subscription.finish_batch(chunk)
        return bool(chunk.records)

    def _to_arrow(self, part: PartitionFetchState, batches: list[Batch]) -> pa.RecordBatch:
        from raftlog.record import decode_arrow  # most consumers never use Arrow

        return decode_arrow(
            [batch.data for batch in batches],
            topic=part.tp.topic,
            partition=part.tp.partition,
            from_offset=part.position or 0,
            check_crc=self.settings.check_crcs,
        )

    def _came_damaged(self, chunk: Chunk, error: CorruptBatchError) -> None:
        """Fetch the first batch of the chunk again. Raises if it is corrupt the second time.

        The position does not change, so the next ``poll`` fetches the batch once more.
        """
        part, following = chunk.part, chunk.batches[0].next_offset
        again = self.subscription.came_damaged(part)
        self.wake()
        if again:
            raise CorruptBatchError(
                f"{part.tp}: the batch with offset {part.position} arrived corrupt twice ({error})."
                " The next poll fetches it again. To continue after it, call skip() of this error, "
                f"or seek({part.tp!r}, {following})"
            ).at(*part.tp, part.position or 0, skip=self._skip(part.tp, following)) from error
        logger.warning(
            "corrupt batch received, fetching it again: partition=%s offset=%s error=%s",
            part.tp,
            part.position,
            error,
        )

    def _fetch_on(self) -> None:
        """Resume fetches that waited for buffer space."""
        if self.subscription.starved:
            self.subscription.starved = False
            self.wake()

    def wake(self) -> None:
        """Wake the fetcher, which then checks what to fetch."""
        assert self._schedule is not None, "attach() first"
        self._schedule(self._fetcher.poll)

    # -- on the loop

    async def topic(self, name: str) -> TopicView:
        check_topic_name(name)
        self._keep_fresh()
        return await self.cluster.topic(name)

    async def partitions_for(self, name: str) -> set[int]:
        """Return the partition numbers of a topic as it is now."""
        check_topic_name(name)
        self._keep_fresh()
        return set(range((await self.cluster.topic_now(name)).partition_count))

    async def check_partition(self, tp: TopicPartition) -> None:
        check_topic_name(tp.topic)
        self._keep_fresh()
        await self.cluster.check_partition(tp)

    def _keep_fresh(self) -> None:
        if self._keeper is None:
            self._keeper = asyncio.ensure_future(self.cluster.keep_fresh())

    async def assign(self, partitions: list[TopicPartition]) -> None:
        try:
            for tp in partitions:
                await self.check_partition(tp)
        except BaseException:
            # guard: an assignment that fails leaves no partitions of the group that was left
            if self.member is not None and self._interest.topics:
                self.assign_nothing()
            raise
        self._interest.nothing()
        self.subscription.assign(partitions)
        if self.member is not None:
            self.member.begin(self.cluster.view)
        await self._begin()

    async def subscribe(self, topics: list[str], pattern: re.Pattern[str] | None = None) -> None:
        """Read these topics, or topics that match ``pattern``; as a group member with a group.

        Partitions that are already read keep their position.
        """
        for topic in topics:
            await self.topic(topic)
        self._keep_fresh()
        await self._interest.subscribe(topics, pattern)
        await self._begin()

    def begin_range(
        self, tp: TopicPartition, start: Offset, until: Offset, served_by: set[int]
    ) -> None:
        """Read ``tp`` from ``start`` to before ``until``, each time from another replica.

        ``served_by``: receives the ids of the brokers that served records.
        """
        self._keep_fresh()
        self._interest.nothing()
        self.subscription.assign_range(tp, start, until, served_by)
        self.cluster.want_only({tp.topic})
        self.turn(tp)
        self._fetcher.activate()

    async def begin_at(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read exactly these partitions, each from its offset."""
        for tp in positions:
            await self.check_partition(tp)
        self._interest.nothing()
        self.subscription.assign_at(positions)
        self.cluster.want_only({tp.topic for tp in positions})
        self._fetcher.activate()

    async def take_removed_below(self) -> dict[TopicPartition, dict[LeaderEpoch, Offset]]:
        """See ``BatchReader.take_removed_below``."""
        return self._fetcher.take_removed_below()

    def turn(self, tp: TopicPartition) -> None:
        """Fetch ``tp`` from another replica from now on, if another one is usable."""
        self._fetcher.turn(tp)

    def assign_nothing(self) -> None:
        self._interest.nothing()
        self.subscription.assign(())

    async def leave(
        self, reading: Reading, timeout_ms: int | None = None, *, away: bool = False
    ) -> None:
        """Commit, and leave the group. ``away``: a static member keeps its partitions reserved."""
        assert self.member is not None, "the consumer has a group"
        if timeout_ms is None:
            timeout_ms = self.cluster.settings.request_timeout_ms
        is_static = self.member.settings.instance_id is not None
        epoch = AWAY_EPOCH if away and is_static else LEAVE_EPOCH
        try:
            await self.member.leave(reading, epoch, timeout_ms=timeout_ms)
        except BaseException:
            # guard: a cancelled leave leaves no partitions of the group that was left
            if self.member.membership.phase is Phase.OUT:
                self.assign_nothing()
            raise

    async def abandon(self) -> None:
        """Close a garbage-collected consumer: leave the group, commit nothing, stop."""
        if self.member is not None:
            await self.leave(self.member.reading({}), _ABANDON_TIMEOUT_MS, away=True)
        await self.close()

    async def _begin(self) -> None:
        """Start reading. Looks up "latest" now, so that it does not depend on the first poll."""
        topics = {tp.topic for tp in self.subscription.parts}
        self.cluster.want_only(topics.union(self._interest.topics))
        if self.settings.auto_offset_reset == "latest":
            await self.resolve_positions([tp for tp, part in self.subscription.parts.items()])
        self._fetcher.poll()

    async def resolve_positions(self, partitions: Iterable[TopicPartition]) -> None:
        """Look up the positions that are not known yet."""
        parts = [self.subscription.part(tp) for tp in partitions]
        unknown = [Wanted(part, part.generation, None) for part in parts if part.position is None]
        for _, error in await self._positions.look_up(unknown):
            raise error
        self._fetcher.poll()

    async def reset(self, partitions: list[TopicPartition], how: OffsetReset) -> None:
        """Move to the first record, or to the current end."""
        for tp in partitions:
            self.subscription.reset(tp, how)
        await self.resolve_positions(partitions)

    async def position(self, tp: TopicPartition) -> Offset:
        part = self.subscription.part(tp)
        while (position := part.position) is None:
            await self.resolve_positions([tp])
        return position

    async def offsets(
        self, partitions: list[TopicPartition], at: At
    ) -> dict[TopicPartition, Offset]:
        any_replica = at == "earliest" or self.settings.read_from == "replica"
        answers = await list_offsets(
            self.cluster,
            dict.fromkeys(partitions, at),
            any_replica=any_replica,
            isolation=self.settings.isolation,
        )
        return {tp: answers[tp].offset for tp in partitions}

    async def lag(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the number of offsets between the position and the end of each partition."""
        await self.resolve_positions(partitions)
        ends = await self.offsets(partitions, "latest")
        return {
            tp: max(ends[tp] - position, 0)
            for tp in partitions
            if (position := self.subscription.part(tp).position) is not None
        }

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, At]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        answers = await list_offsets(self.cluster, times, isolation=self.settings.isolation)
        return {
            tp: None
            if answers[tp].offset < 0
            else OffsetAndTimestamp(answers[tp].offset, answers[tp].timestamp_ms)
            for tp in times
        }

    async def close(self) -> None:
        """Stop. Idempotent."""
        self.subscription.shut()
        if self._keeper is not None:
            self._keeper.cancel()
        if self.member is not None:
            await self.member.close()
        await self._fetcher.close()
        await self.cluster.close()


def check_times(times: object) -> dict[TopicPartition, At]:
    """Check the argument of ``offsets_for_times``."""
    if not isinstance(times, Mapping):
        raise TypeError(f"{times!r} is not a dict of TopicPartition to a time in ms since 1970")
    checked: dict[TopicPartition, At] = {}
    for tp, timestamp_ms in times.items():
        if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
            raise TypeError(f"{timestamp_ms!r} is not an int (milliseconds since 1970)")
        if timestamp_ms < 0:
            raise InvalidRequestError(f"the time {timestamp_ms} is negative. Pass ms since 1970")
        checked[TopicPartition(*tp)] = timestamp_ms
    return checked


# -- topic filter ----------------------------------------------------------------------------------
#
# The topics that a consumer subscribes to: by name, or by a pattern that is matched periodically.
#
# Runs on the I/O loop. Without a consumer group, the consumer reads all partitions of the topics.
# With one, it reports the topics to the group's coordinator, which assigns partitions.


class TopicFilter:
    """Topics of one consumer. ``topics``: the subscribed topics that exist.

    A group member reads up to ``TOPICS_PER_MEMBER_MAX`` topics. If a pattern matches more, the
    member continues with the topics that it already reads, and every metadata update reports an
    error to the application.
    """

    def __init__(self, cluster: Cluster, subscription: Subscription, member: Member | None) -> None:
        self.topics: tuple[str, ...] = ()
        self._cluster = cluster
        self._subscription = subscription
        self._member = member
        self._pattern: re.Pattern[str] | None = None
        cluster.on_view.append(self._on_view)

    async def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Subscribe to ``topics``, whose metadata is known, or to topics that match.

        Raises ``InvalidRequestError`` if a group member would read too many topics. The previous
        subscription then stays.
        """
        cluster = self._cluster
        try:
            if pattern is not None:
                cluster.all_topics = True
                view = await cluster.persist(cluster.refresh, repeatable=True)
                topics = matching(pattern, view.topics)
            if self._is_too_much(topics):
                raise too_many(len(topics), pattern)
        except BaseException:
            cluster.all_topics = self._pattern is not None
            raise
        cluster.all_topics = pattern is not None
        self._pattern = pattern
        self.topics = tuple(topics)
        self._subscription.is_open = pattern is not None or self._member is not None
        if self._member is not None:
            self._member.subscribe(self.topics, cluster.view)
        else:
            self._subscription.assign(self._partitions(self.topics), topics=self.topics)

    def _is_too_much(self, topics: Sequence[str]) -> bool:
        return self._member is not None and len(topics) > limits.TOPICS_PER_MEMBER_MAX

    def nothing(self) -> None:
        self._cluster.all_topics = False
        self._pattern = None
        self.topics = ()
        self._subscription.is_open = False

    def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        view = self._cluster.view
        return [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in range(view.topic(topic).partition_count)
        ]

    def _on_view(self, view: ClusterView) -> None:
        if self._pattern is None:
            return
        topics = tuple(matching(self._pattern, view.topics))
        member = self._member
        if member is not None and self._is_too_much(topics):
            kept = set(self.topics).intersection(topics)
            member.report(too_many(len(topics), self._pattern, kept=len(kept)))
            topics = tuple(topic for topic in topics if topic in kept)
        if topics == self.topics:
            return
        before, self.topics = self.topics, topics
        if member is not None:
            member.resubscribe(topics)
            return
        subscription = self._subscription
        gone = set(before).difference(topics)
        subscription.remove([tp for tp in subscription.parts if tp.topic in gone])
        subscription.topics = topics
        subscription.add(self._partitions(set(topics).difference(before)))


def too_many(
    count: int, pattern: re.Pattern[str] | None, *, kept: int | None = None
) -> InvalidRequestError:
    """Return the error for too many topics. ``kept``: number of topics that are still read."""
    what = "" if pattern is None else f"pattern={pattern.pattern!r} matches "
    now = "" if kept is None else f"This consumer continues with {counted(kept, 'topic')}. "
    return InvalidRequestError(
        f"{what}{count} topics, but a group member can subscribe to up to "
        f"{limits.TOPICS_PER_MEMBER_MAX} (TOPICS_PER_MEMBER_MAX). {now}Divide the topics among "
        "several consumers with narrower patterns, which can be in one group"
    )


def matching(pattern: re.Pattern[str], topics: Iterable[str]) -> list[str]:
    """Return the topics whose complete name matches, without internal topics."""
    return sorted(
        topic for topic in topics if not is_internal_topic(topic) and pattern.fullmatch(topic)
    )
