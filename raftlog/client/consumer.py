"""The synchronous consumer, and the constructor that both consumers share.

Records are fetched ahead by an I/O thread and decoded in the caller's: ``poll`` and iteration over
what has come cross no thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from raftlog import limits
from raftlog.client.consumer_core import ConsumerCore, check_times
from raftlog.client.host import Host
from raftlog.client.loop_thread import LoopThread
from raftlog.client.settings import (
    CLIENT_ID_DEFAULT,
    Bootstrap,
    Deserializer,
    OffsetReset,
    connection_settings,
    consumer_settings,
    function,
    integer,
)
from raftlog.client.subscription import check_partitions, check_topics
from raftlog.client.waiting import refuse_io_thread, wait_once
from raftlog.errors import ClosedError, InvalidRequestError, UnsupportedFeatureError
from raftlog.types import ConsumerRecord, Offset, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

POLL_TIMEOUT_MS_DEFAULT = 1_000
POLL_RECORDS_DEFAULT = 500
POLL_RECORDS_MAX = 10_000_000


class ConsumerBase:
    """The settings of a consumer; see ``Consumer`` and ``AsyncConsumer``."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        group: str | None = None,
        auto_offset_reset: str = "latest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = limits.FETCH_BYTES_MAX,
        max_partition_fetch_bytes: int = limits.MIB,
        check_crcs: bool = True,
        read_from: str = "leader",
        client_rack: str | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        request_timeout_ms: int = 30_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: Host | None = None,
    ) -> None:
        """Nothing is connected before the first partition or topic is named.

        ``bootstrap``: ``host:port[,host:port]`` of any of the cluster's brokers, or a list of such;
            default: the environment's RAFTLOG_BOOTSTRAP, else 127.0.0.1:9100.
        ``group``: consumer groups come in a later release; must be None.
        ``auto_offset_reset``: where to begin, and to go on when an offset is out of range:
            "earliest", "latest" (the end, as it is when the partition is assigned), or "error".
        ``fetch_min_bytes``, ``fetch_max_wait_ms``: a broker answers when it has so many bytes, or
            has waited so long: 0 to 52,428,800 bytes, 0 to 60,000 ms.
        ``fetch_max_bytes``, ``max_partition_fetch_bytes``: the most that one fetch brings, in all
            and of one partition: 1 to 52,428,800. A larger batch comes whole nevertheless.
        ``check_crcs``: check each batch's CRC-32C.
        ``read_from``: "leader": each partition from its leader, and while that cannot be reached
            for a second and there is no other, from another replica; "replica": from any in-sync
            replica, which knows of what is committed a little later. Both read committed records
            only.
        ``client_rack``: with "replica", rather one whose broker's ``rack`` this is.
        ``key_deserializer``, ``value_deserializer``: ``bytes -> anything``; not called for None.
        ``request_timeout_ms``: how long a broker may take to answer one request.
        ``client_id``: names this client in the broker's log.
        ``bootstrap_timeout_ms``: how long to look for the cluster the first time.
        ``metadata_max_age_ms``: how often to ask for partitions added to topics subscribed to.
        ``host``: where the client lives; for embedding and tests.

        Raises ``InvalidRequestError`` or ``TypeError`` naming the argument that is wrong, and
        ``UnsupportedFeatureError`` for ``group``.
        """
        arguments = locals()
        if group is not None:
            raise UnsupportedFeatureError(
                f"group={group!r}: this release has no consumer groups yet; leave it out, and use "
                "assign() or subscribe(), which read every partition named from where you seek()"
            )
        self._host = host or Host()
        self._core = ConsumerCore(
            connection_settings(arguments),
            consumer_settings(arguments),
            self._host,
            key_deserializer=function("key_deserializer", key_deserializer),
            value_deserializer=function("value_deserializer", value_deserializer),
        )
        self._subscription = self._core.subscription
        self._setup()

    def _setup(self) -> None:
        """What only one of the skins has."""


class Consumer(ConsumerBase):
    """Reads records. For one thread at a time; a context manager, and an iterator of records.

    ``close`` may be called from another thread: it ends a ``poll`` or an iteration that waits, with
    ``ClosedError``.
    """

    _closed = True  # until it is set up: there is nothing to close

    def _setup(self) -> None:
        self._owns_thread = self._host.loop_thread is None
        self._thread = self._host.loop_thread or LoopThread("raftlog-consumer")
        self._core.attach(self._thread.schedule)
        self._used = False
        self._closed = False

    # -- what to read

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. One that was assigned before goes on from where it is.

        Raises ``UnknownTopicError``, ``UnknownPartitionError``, ``BrokerUnavailableError``.
        """
        checked = check_partitions(partitions)
        self._call(lambda: self._core.assign(checked))

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read all partitions of these topics, also those that are added later.

        Raises ``UnknownTopicError``, ``BrokerUnavailableError``.
        """
        names = check_topics(topics)
        self._call(lambda: self._core.subscribe(names))

    def unsubscribe(self) -> None:
        """Read nothing."""
        self._check_open()
        self._subscription.assign(())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return set(self._subscription.parts)

    def partitions_for(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions. Raises ``UnknownTopicError``."""
        view = self._call(lambda: self._core.topic(topic))
        return set(range(view.partition_count))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give no records of these partitions, and fetch none, until ``resume``."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo ``pause``."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), False)
        self._look()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._subscription.paused()

    # -- records

    def poll(
        self,
        timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT,
        max_records: int = POLL_RECORDS_DEFAULT,
    ) -> list[ConsumerRecord]:
        """The next records: of what has come, else of what comes within ``timeout_ms``; maybe none.

        At most ``max_records``; in offset order in each partition. A broker that goes away is
        waited for: meanwhile there are no records.

        Raises ``CorruptBatchError``, ``OffsetOutOfRangeError``, ``UnknownTopicError`` and others
        that concern one partition. Its position stays, and the next ``poll`` tries it again: seek,
        or pause it, to go on without.
        """
        integer("max_records", max_records, 1, POLL_RECORDS_MAX)
        return self._wait_for(lambda: self._core.take(max_records), timeout_ms) or []

    def poll_arrow(self, timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT) -> pa.RecordBatch | None:
        """The next records as Arrow: batches of one partition, joined; None if none come.

        Columns: topic, partition, offset, key, value, headers, timestamp (us, UTC), leader_epoch.
        Deserializers do not apply. Needs pyarrow: ``pip install 'raftlog[arrow]'``. Raises as
        ``poll`` does.
        """
        return self._wait_for(self._core.take_arrow, timeout_ms)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """The records, one by one, for ever. Raises as ``poll`` does."""
        deserialized = self._core.deserialized
        while True:
            run = self._wait_for(self._core.next_run, None)
            assert run is not None, "it waits for ever"
            part = run.part
            if self._core.has_deserializers:
                for record in run.records:
                    done = deserialized(record)
                    part.position = record.offset + 1
                    yield done
            else:
                for record in run.records:
                    part.position = record[2] + 1  # the offset; by index for speed
                    yield record

    def _wait_for(self, take: Callable[[], T], timeout_ms: int | None) -> T:
        """What ``take`` gives, once it is something; else what it gave last."""
        timeout_s = None
        if timeout_ms is not None:
            timeout_s = integer("timeout_ms", timeout_ms, 0, limits.WAIT_MS_MAX) / 1_000
        self._check_readable()
        found = take()
        if found:
            return found
        refuse_io_thread()
        self._core.look()  # in case that Ctrl-C kept an earlier call from having it done
        deadline = None if timeout_s is None else self._core.monotonic() + timeout_s
        while not found:
            left = None if deadline is None else deadline - self._core.monotonic()
            if left is not None and left <= 0:
                break
            if not wait_once(self._subscription.when_ready, left):
                break
            self._check_open()
            found = take()
        return found

    def _check_readable(self) -> None:
        self._check_open()
        if not self._subscription.parts:
            raise nothing_assigned()
        self._core.activate()

    # -- where to read

    def position(self, partition: TopicPartition) -> Offset:
        """The offset of the next record that ``poll`` or iteration will give of this partition."""
        (tp,) = check_partitions([partition])
        self._check_open()
        position = self._subscription.part(tp).position
        return self._call(lambda: self._core.position(tp)) if position is None else position

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on from ``offset`` (0 or more). One out of range is told when it is fetched."""
        (tp,) = check_partitions([partition])
        self._check_open()
        self._subscription.seek(tp, integer("offset", offset, 0, limits.OFFSET_MAX))
        self._look()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the first record of these partitions; default: of all that are assigned."""
        self._reset(partitions, "earliest")

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the end, as it is now, of these partitions; default: of all assigned."""
        self._reset(partitions, "latest")

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """The first offset that each partition still has."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "earliest"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The offset after the last record that a consumer may see, of each partition."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "latest"))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition, its first record at or after a time in ms; None if it has none."""
        checked = check_times(times)
        return self._call(lambda: self._core.offsets_for_times(checked))

    def _reset(self, partitions: Iterable[TopicPartition] | None, how: OffsetReset) -> None:
        self._check_open()
        if partitions is None:
            checked = list(self._subscription.parts)
        else:
            checked = check_partitions(partitions)
        self._call(lambda: self._core.reset(checked, how))

    # -- groups, which there are none of yet

    def commit(self, *_args: Any, **_settings: Any) -> None:
        """Raises ``UnsupportedFeatureError``: consumer groups come in a later release."""
        raise no_groups("commit")

    def committed(self, *_args: Any, **_settings: Any) -> None:
        """Raises ``UnsupportedFeatureError``: consumer groups come in a later release."""
        raise no_groups("committed")

    # -- the thread, and the end

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        self._used = True
        return self._thread.call(work)

    def _look(self) -> None:
        if self._used:
            self._core.look()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer was closed")
        self._thread.check_process()

    def close(self) -> None:
        """Stop. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._used:
                self._subscription.shut()
                self._thread.call(self._core.close)
        finally:
            if self._owns_thread:
                self._thread.stop()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and self._used:
            warnings.warn(
                f"unclosed {self!r}: close it, or use `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self._thread.abandon(self._core.close, stop=self._owns_thread)


def nothing_assigned() -> InvalidRequestError:
    return InvalidRequestError(
        "nothing is assigned to this consumer: assign() or subscribe() first"
    )


def no_groups(what: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{what}() needs a consumer group, which this release does not have yet: keep position() "
        "yourself, and seek() to it after a restart"
    )
