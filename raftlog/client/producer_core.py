"""Producer core that the synchronous and the asynchronous producer share.

Application threads add records through calls that never wait. Everything asynchronous runs on the
one loop that the core is attached to. The two producers implement the waits for buffer space and
for topics.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import Any, Final, cast

from raftlog import limits
from raftlog.client.accumulator import (
    PLAIN_RECORD_BYTES,
    RECORD_BYTES,
    Accumulator,
    ProducerIdAndEpoch,
    Run,
    TopicQueues,
    header_bytes,
)
from raftlog.client.base import ClientEnvironment
from raftlog.client.cluster import Cluster
from raftlog.client.delivery import (
    Delivery,
    DeliveryFuture,
    RangesFuture,
    until_done,
)
from raftlog.client.sender import Sender
from raftlog.client.settings import (
    ConnectionSettings,
    ProducerSettings,
    Serializer,
    checked,
    groups,
    partitions_of_keys,
)
from raftlog.client.threads import pending_of
from raftlog.client.transactions import Transactions
from raftlog.errors import (
    InvalidRequestError,
    RaftlogError,
    RecordTooLargeError,
    ThrottledError,
)
from raftlog.record import BatchBody
from raftlog.types import Headers, TimestampMs, check_topic_name

# A run of records that fills at least 1/2 of a batch is encoded by the calling thread as a separate
# batch; a smaller run is added to the open batch.
_OWN_BATCH_PART: Final = 2
NO_PARTITION: Final = -1  # of a record that failed before a partition was selected


class ProducerCore:
    """Components of one producer. Call ``attach`` before anything is awaited."""

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: ProducerSettings,
        host: ClientEnvironment,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        identity: ProducerIdAndEpoch | None = None,
        name: str = "",
    ) -> None:
        """Create the core. ``identity``, ``name``: of a named producer; None requests an identity
        from a broker.
        """
        chance = host.chance
        self.settings = settings
        self.cluster = Cluster(
            connection, connector=host.connector, chance=chance, entropy=host.entropy
        )
        self.accumulator = Accumulator(
            settings, clock=host.clock, choose=lambda count: int(chance() * count)
        )
        self.monotonic = host.clock.monotonic
        # True if records need serialization or a custom partitioner.
        self.is_custom = any((key_serializer, value_serializer, settings.partitioner))
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        # Serializers of ``raftlog.schema``, which get the schema of each topic first.
        serializers: tuple[Any, ...] = (key_serializer, value_serializer)
        self._with_schema = [each for each in serializers if hasattr(each, "prepare")]
        self._wall_ms = host.clock.wall_ms
        self._transactions: Transactions | None = None
        if settings.transactional_id:
            self._transactions = Transactions(settings, self.cluster)
            self.is_custom = True  # so that every record is checked
        self._sender = Sender(
            settings,
            self.cluster,
            self.accumulator,
            clock=host.clock,
            identity=identity,
            name=name,
            on_lost=None if self._transactions is None else self._transactions.note_failure,
        )
        if self._transactions is not None:
            self._transactions.sender = self._sender
        self._schedule: Callable[[Callable[[], None]], object] | None = None
        self._keeper: asyncio.Task[None] | None = None

    def attach(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        """Set ``schedule``, which runs a function on the core's loop."""
        self._schedule = schedule

    def trace(self) -> None:
        """Request the times of batches from brokers, from now on."""
        self._sender.is_traced = True

    def wake(self) -> None:
        """Wake the sender, which then sends what was added."""
        assert self._schedule is not None, "attach() first"
        self.accumulator.wake_needed = False
        try:
            self._schedule(self._sender.pump)
        except BaseException:  # mostly KeyboardInterrupt: the next send wakes the sender
            self.accumulator.wake_needed = True
            raise

    async def delivered(self, deliveries: list[Delivery]) -> None:
        """Send ``deliveries`` of ``Accumulator.hurry``, and wait until each has an outcome."""
        if deliveries:
            self.wake()
            await until_done(pending_of(deliveries))

    # -- transactions

    @property
    def transactions(self) -> Transactions:
        """Return the transactions. Raises ``InvalidRequestError`` without a transactional ID."""
        if self._transactions is None:
            raise InvalidRequestError(
                "transactions need a transactional ID. Create the producer with "
                "transactional_id='...', a name that no other running producer has"
            )
        return self._transactions

    @property
    def is_transactional(self) -> bool:
        return self._transactions is not None

    def _check_open(self) -> None:
        if self._transactions is not None:
            self._transactions.check_open()

    def failure(self, topic: str, error: RaftlogError) -> Delivery:
        """Return the failed delivery of records that were not queued. Their transaction, if there
        is one, cannot commit, and reports the error.
        """
        delivery = Delivery.failed(topic, NO_PARTITION, error)
        if self._transactions is not None:
            self._transactions.note_failure(error)
            delivery.retrieved = True
        return delivery

    # -- records

    def normalize(
        self,
        topic: TopicQueues,
        value: Any,
        key: Any,
        headers: Any,
        timestamp_ms: object,
        partition: object,
    ) -> tuple[bytes | None, bytes | None, Headers | None, int | None, int | None]:
        """Serialize and check one record: value, key, headers, timestamp and partition.

        Raises ``KeyRequiredError``, ``UnknownPartitionError``, ``TypeError`` or
        ``InvalidRequestError``.
        """
        self._check_open()
        name = topic.name
        if self._key_serializer is not None:
            key = self._of_topic(self._key_serializer, name)(key)
        if self._value_serializer is not None:
            value = self._of_topic(self._value_serializer, name)(value)
        key, value = octets(key, "key"), octets(value, "value")
        if key is None and topic.keys_required:
            raise topic.no_key()
        headers = checked_headers(headers)
        stamp = None if timestamp_ms is None else checked_timestamp(timestamp_ms)
        chosen = None
        if partition is not None:
            chosen = topic.check_partition(partition)
        elif self.settings.partitioner is not None:
            found = self.settings.partitioner(topic.name, key, value, topic.count)
            chosen = checked(found, topic.count, topic.name)
        return value, key, headers, stamp, chosen

    def ready(self, topic: str, partition: int | None) -> TopicQueues | None:
        """Return the queues of a topic; None if it must be prepared first."""
        queues = self.accumulator.topics.get(topic)
        if (
            queues is None
            or (partition is not None and queues.lacks(partition))
            or (self._with_schema and self.lacks_schema(topic))
        ):
            return None
        return queues

    def lacks_schema(self, topic: str) -> bool:
        """Whether a serializer needs ``prepare`` for the topic."""
        return any(each.lacks(topic) for each in self._with_schema)

    def _of_topic(self, serializer: Any, topic: str) -> Any:
        return serializer.of(topic) if serializer in self._with_schema else serializer

    def columns_of(
        self,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        headers: Sequence[Any] | None,
        timestamps_ms: int | Sequence[int] | None,
        topic: str = "",
    ) -> Run:
        """Serialize and check many records. ``topic``: for serializers of ``raftlog.schema``."""
        self._check_open()
        return columns_of(
            values,
            keys,
            headers,
            self._wall_ms() if timestamps_ms is None else timestamps_ms,
            key_serializer=self._of_topic(self._key_serializer, topic),
            value_serializer=self._of_topic(self._value_serializer, topic),
        )

    def pieces(self, topic: TopicQueues, run: Run, partition: object) -> Iterator[Piece]:
        """Divide ``run`` by partition, and into pieces that each fit a batch.

        Partitions are in the order of their first record.
        """
        if not run.values:
            return
        if topic.keys_required and (run.keys is None or None in run.keys):
            run, keyless = _split_by_key(run)
            yield Piece(self, topic, NO_PARTITION, keyless, refusal=topic.no_key())
            if not run.values:
                return
        for chosen, part in self._by_partition(topic, run, partition):
            for piece in cut(part, topic.batch_bytes_max):
                yield Piece(self, topic, chosen, piece)

    def _by_partition(
        self, topic: TopicQueues, run: Run, partition: object
    ) -> Iterator[tuple[int | None, Run]]:
        partitioner = self.settings.partitioner
        if partition is not None:
            yield topic.check_partition(partition), run
            return
        if partitioner is None and run.keys is None:
            yield None, run
            return
        if partitioner is not None:
            keys = run.keys if run.keys is not None else [None] * len(run.values)
            chosen = [
                checked(partitioner(topic.name, key, value, topic.count), topic.count, topic.name)
                for key, value in zip(keys, run.values, strict=True)
            ]
            partitions: list[int] = chosen
        else:
            assert run.keys is not None
            keyless = (
                [at for at, key in enumerate(run.keys) if key is None] if run.has_nulls else []
            )
            filled = [key or b"" for key in run.keys] if keyless else run.keys
            partitions = partitions_of_keys(cast("Sequence[bytes]", filled), topic.count)
            for at in keyless:
                partitions[at] = NO_PARTITION
        for found, indexes in groups(partitions):
            yield (None if found == NO_PARTITION else found), run.pick(indexes)

    # -- futures

    def ranges(self, parts: list[tuple[Delivery, int, int]]) -> RangesFuture:
        """Return the future of queued pieces."""
        return RangesFuture(parts)

    def failed(self, topic: str, error: RaftlogError) -> DeliveryFuture:
        """Return the failed future of a record that was not queued."""
        return DeliveryFuture(self.failure(topic, error), 0)

    def all_failed(self, topic: str, count: int, error: RaftlogError) -> RangesFuture:
        """Return the failed future of ``count`` records that were not queued."""
        return RangesFuture([(self.failure(topic, error), 0, count)])

    def no_room(self) -> ThrottledError:
        return ThrottledError(
            f"no buffer space within max_block_ms={self.settings.max_block_ms}: "
            f"buffer_memory={self.settings.buffer_memory} bytes are full of unacknowledged "
            "records. Check the broker, increase buffer_memory, or send more slowly"
        )

    # -- on the loop

    async def prepare(self, name: str, partition: object = None) -> TopicQueues:
        """Return the queues of a topic. Requests metadata if needed, within ``max_block_ms``.

        ``partition``: requested metadata must be new if it lacks this one: it may have been added.
        """
        check_topic_name(name)
        if self._keeper is None:
            self._keeper = asyncio.ensure_future(self.cluster.keep_fresh())
        patience_ms = self.settings.max_block_ms
        view = await self.cluster.topic(name, timeout_ms=patience_ms)
        if isinstance(partition, int) and partition >= view.partition_count:
            view = await self.cluster.topic_now(name, timeout_ms=patience_ms)
        for serializer in self._with_schema:
            await serializer.prepare(self._call_registry, name)
        return self.accumulator.learn(view)

    async def _call_registry(self, *call: Any) -> Any:
        from raftlog.client.registry import call_registry

        return await call_registry(self.cluster, *call)

    async def close(self) -> None:
        """Stop. Unacknowledged records fail. Idempotent."""
        self.accumulator.shut()
        if self._keeper is not None:
            self._keeper.cancel()
        if self._transactions is not None:
            await self._transactions.close()
        await self._sender.close()
        await self.cluster.close()


class Piece:
    """The part of a ``send_many`` call that goes into one batch. Encoded here if it is large."""

    __slots__ = ("_body", "_core", "_partition", "_refusal", "_run", "_topic")

    def __init__(
        self,
        core: ProducerCore,
        topic: TopicQueues,
        partition: int | None,
        run: Run,
        *,
        refusal: RaftlogError | None = None,
    ) -> None:
        self._core = core
        self._refusal = refusal
        self._topic = topic
        self._partition = partition
        self._run = run
        self._body: BatchBody | None = None

    def offer(self) -> tuple[Delivery, int, int] | None:
        """Queue the piece: return its delivery, first record index and count; None if full."""
        core, topic, run = self._core, self._topic, self._run
        count = len(run.values)
        if self._refusal is not None:
            return self.failed(self._refusal)
        try:
            if run.joined_bytes * _OWN_BATCH_PART < topic.batch_bytes_max:
                placed = core.accumulator.extend(topic, self._partition, run)
                return None if placed is None else (*placed, count)
            if self._body is None:
                settings = core.settings
                self._body = run.encode(settings.codec, settings.compression_level)
            size = self._body.size_bytes
            if size > topic.max_message_bytes:
                raise topic.too_large(size)
            delivery = core.accumulator.add_encoded(topic, self._partition, self._body, size)
        except RecordTooLargeError as error:
            return self.failed(error)
        return None if delivery is None else (delivery, 0, count)

    def failed(self, error: RaftlogError) -> tuple[Delivery, int, int]:
        """Return the failed delivery of records that were not queued."""
        delivery = self._core.failure(self._topic.name, error)
        return delivery, 0, len(self._run.values)


def _split_by_key(run: Run) -> tuple[Run, Run]:
    """Return the records that have a key, and the records that have none."""
    keys = run.keys if run.keys is not None else [None] * len(run.values)
    keyed = [row for row, key in enumerate(keys) if key is not None]
    keyless = [row for row, key in enumerate(keys) if key is None]
    return run.pick(keyed), run.pick(keyless)


# -- checks and conversions of records -------------------------------------------------------------
#
# Pure functions. They report every wrong argument before a record is queued.

_NULLABLE: Final = frozenset({bytes, type(None)})


def octets(value: Any, what: str) -> bytes | None:
    """Return ``value`` as bytes, or None. Raises ``TypeError`` for other types."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = "Call text.encode()" if isinstance(value, str) else "Convert it to bytes"
    if what in {"key", "value"}:
        hint += f", or set {what}_serializer"
    raise TypeError(f"the {what} is of type {type(value).__name__}, not bytes. {hint}")


def checked_headers(headers: Any) -> Headers | None:
    """Return the headers of a record as tuples; None without headers."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        checked = tuple((name, octets(value, "header value")) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"headers={headers!r} are not pairs of a name (str) and a value (bytes or None): "
            f"{error}"
        ) from error
    for name, _ in checked:
        if not isinstance(name, str):
            raise TypeError(f"the header name {name!r} is not a str")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the header name {name!r} cannot be written as UTF-8: {error}"
            ) from error
    return checked


def checked_timestamp(timestamp_ms: object) -> TimestampMs:
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms={timestamp_ms!r} is not an int (milliseconds since 1970)")
    if not 0 <= timestamp_ms <= limits.TIMESTAMP_MS_MAX:
        raise InvalidRequestError(
            f"timestamp_ms={timestamp_ms} is not from 0 to {limits.TIMESTAMP_MS_MAX}. Pass "
            "milliseconds since 1970, not seconds or microseconds"
        )
    return timestamp_ms


# -- many at once ----------------------------------------------------------------------------------


def column(
    entries: Sequence[Any], serializer: Callable[[Any], Any] | None, what: str
) -> tuple[Sequence[bytes | None], bool]:
    """Serialize and check keys or values. The second result is True if any entry is None."""
    if isinstance(entries, bytes | bytearray | memoryview | str):
        raise TypeError(
            f"{what}s is a {type(entries).__name__}. Pass a list, with one {what} for each record"
        )
    if serializer is not None:
        entries = list(map(serializer, entries))
    elif not isinstance(entries, list | tuple):
        entries = list(entries)
    types = set(map(type, entries))
    if not types <= _NULLABLE:
        entries = [octets(entry, what) for entry in entries]
        types = set(map(type, entries))
    return entries, type(None) in types


def columns_of(
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    timestamps_ms: int | Sequence[int],
    *,
    key_serializer: Callable[[Any], Any] | None,
    value_serializer: Callable[[Any], Any] | None,
) -> Run:
    """Return all columns of many records, checked. The size of the ``Run`` is not set."""
    checked_values, has_nulls = column(values, value_serializer, "value")
    checked_keys = None
    if keys is not None:
        checked_keys, null_keys = column(keys, key_serializer, "key")
        has_nulls = has_nulls or null_keys
    rows = None if headers is None else [checked_headers(row) for row in headers]
    stamps = timestamps_ms
    if isinstance(stamps, Sequence):
        stamps = [checked_timestamp(stamp) for stamp in stamps]
    else:
        checked_timestamp(stamps)
    for name, others in (("keys", checked_keys), ("headers", rows), ("timestamps_ms", stamps)):
        if (
            others is not None
            and not isinstance(others, int)
            and len(others) != len(checked_values)
        ):
            raise InvalidRequestError(
                f"{len(others)} {name} for {len(checked_values)} values. Pass one for each record"
            )
    return Run(checked_values, checked_keys, rows, stamps, 0, has_nulls)


def cut(run: Run, bytes_max: int) -> Iterator[Run]:
    """Split ``run`` into pieces of up to ``bytes_max``. A larger record gets its own piece."""
    if not run.has_nulls and run.headers is None:
        overhead = PLAIN_RECORD_BYTES if run.keys is None else RECORD_BYTES
        lengths = _lengths(run)
        size = sum(lengths) + overhead * len(run.values)
        if size <= bytes_max:
            yield run.part(0, len(run.values), size)
            return
        sizes: Iterable[int] = (length + overhead for length in _lengths(run))
    else:
        sizes = _sizes(run)
    ends = list(accumulate(sizes))
    start, before = 0, 0
    while start < len(ends):
        end = max(bisect_right(ends, before + bytes_max, start), start + 1)
        yield run.part(start, end, ends[end - 1] - before)
        start, before = end, ends[end - 1]


def _lengths(run: Run) -> Iterator[int]:
    """Yield the byte lengths of records without nulls."""
    lengths = map(len, cast("Sequence[bytes]", run.values))
    if run.keys is None:
        return lengths
    return map(add, lengths, map(len, cast("Sequence[bytes]", run.keys)))


def _sizes(run: Run) -> list[int]:
    sizes = [RECORD_BYTES + (len(value) if value is not None else 0) for value in run.values]
    if run.keys is not None:
        sizes = [
            size + (len(key) if key is not None else 0)
            for size, key in zip(sizes, run.keys, strict=True)
        ]
    if run.headers is not None:
        sizes = [
            size + (header_bytes(row) if row else 0)
            for size, row in zip(sizes, run.headers, strict=True)
        ]
    return sizes
