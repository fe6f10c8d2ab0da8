"""``raftlog.Table``: a compacted topic as a map in memory, as a mirror keeps a copy of it.

    refresh: describe → read to the end → describe: are all tombstones read? → done, or begin again

The table is built from the log alone. A snapshot only saves reading: it has the offsets up to which
it contains the log, and is dropped if the log cannot be continued from there, as ``_Content`` and
``compacted`` decide.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Condition, Event, Thread, current_thread
from typing import Any, Final, Unpack

from raftlog.client.administration.admin import Admin
from raftlog.client.base import ClientEnvironment
from raftlog.client.consumer import Checked
from raftlog.client.descriptions import TopicDescription
from raftlog.client.readers import BatchReader
from raftlog.client.settings import DAY_MS, Bootstrap, SecurityArguments, function, integer
from raftlog.client.threads import Closeable
from raftlog.disk import OsDisk
from raftlog.errors import (
    ClosedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
    RequestTimedOutError,
    RetriableError,
    UnknownPartitionError,
    UnsupportedFeatureError,
)
from raftlog.install import install_command
from raftlog.mirror import compacted
from raftlog.record import decode_lists
from raftlog.types import LeaderEpoch, Offset, TopicPartition

logger = logging.getLogger(__name__)

OnChange = Callable[[bytes, bytes | None, bytes | None], object]

_POLL_S: Final = 0.2
_CHECK_S: Final = 1.0  # between two checks of a table that follows its topic
_TRIES_MAX: Final = 5  # to build the table while the log below it is deleted
_METADATA: Final = b"raftlog.table"  # key in the metadata of a snapshot
_VERSION: Final = 1
_SNAPSHOT_ROWS: Final = 65_536  # of a batch of a snapshot


@dataclass(slots=True)
class _Place:
    """What the table has of a partition: all records below ``position``.

    ``epoch``: of the last batch. ``is_unsure``: the batch before ``position`` must be compared
    with it, because the log may have been truncated.
    """

    position: Offset
    start: Offset  # of the log
    known: compacted.Known
    epoch: LeaderEpoch = -1
    is_unsure: bool = False


@dataclass(slots=True, eq=False)
class _Content:
    """Values by key, and the places up to which they are read."""

    topic_id: str
    values: dict[bytes, bytes] = field(default_factory=dict)
    places: dict[int, _Place] = field(default_factory=dict)

    @property
    def is_unsure(self) -> bool:
        return any(place.is_unsure for place in self.places.values())

    def continues(self, topic: TopicDescription, ends: Mapping[int, Offset]) -> str:
        """Return why the log cannot be continued from here; "" if it can.

        ``ends``: of the committed records. Adds places for new partitions.
        """
        if self.topic_id != topic.id:
            return "the topic was created again"
        for part in topic.partitions:
            place = self.places.get(part.partition)
            if place is None:
                begun = compacted.begun(part)
                self.places[part.partition] = _Place(
                    part.log_start_offset, part.log_start_offset, begun
                )
                continue
            where = f"partition {part.partition}"
            if place.position < part.log_start_offset:
                return f"{where}: records from offset {place.position} on are deleted"
            if place.start < part.log_start_offset and "delete" not in _policy(topic):
                return f"{where}: records below offset {part.log_start_offset} were deleted"
            if place.position > ends[part.partition]:
                return f"{where} ends at offset {ends[part.partition]}, before {place.position}"
            if place.known.epoch != part.leader_epoch and place.position > place.start:
                place.is_unsure = True
            place.start = part.log_start_offset
        return ""

    def lacks_tombstones(
        self,
        topic: TopicDescription,
        read: Mapping[TopicPartition, Mapping[LeaderEpoch, Offset]],
    ) -> str:
        """Return why deleted keys may be left, after reading; "" if none can. Notes the state.

        ``read``: see ``BatchReader.take_removed_below``.
        """
        if self.topic_id != topic.id:
            return "the topic was created again"
        for part in topic.partitions:
            place = self.places.get(part.partition)
            if place is None:
                continue
            of_leaders = read.get(TopicPartition(topic.name, part.partition), {})
            if not compacted.is_whole(place.known, part, of_leaders):
                return (
                    f"partition {part.partition}: compaction has removed tombstones below offset "
                    f"{part.tombstones_removed_below} that were not read"
                )
            place.known = place.known.checked(part, place.position)
        return ""


def _policy(topic: TopicDescription) -> str:
    return topic.config["cleanup.policy"]


class Table(Closeable, Mapping[bytes, bytes]):
    """A compacted topic as a read-only map of key to last value. A context manager.

    The constructor reads the topic up to its end. Then ``refresh`` reads what was committed since;
    with ``follow`` a thread does so all the time. Threads can share a table.

    Write each key to one partition, as the default partitioner does: of a key in several partitions
    the record that is read last counts.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: Bootstrap = None,
        snapshot: str | os.PathLike[str] | None = None,
        follow: bool = False,
        on_change: OnChange | None = None,
        timeout_ms: int = 30_000,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """``bootstrap`` and the security arguments: as for ``Consumer``.

        ``snapshot``: file of ``save``. If it exists, only later records are read. A snapshot that
            the log does not continue, for example because compaction has removed tombstones since,
            is dropped: then the table is built from the log.
        ``follow``: read new records in a background thread.
        ``on_change``: called with (key, old value, new value) for each change after the constructor
            has returned; None is no value. The thread that reads calls it: that of ``refresh``, or
            with ``follow`` the background thread. Its exceptions are logged.
        ``timeout_ms``: maximum wait for the next records, 1 to 86,400,000. Default: 30,000.

        Raises ``UnknownTopicError``, ``InvalidRequestError`` if the topic is not compacted or the
        file is not a snapshot of it, ``RequestTimedOutError``, and the errors of ``Consumer``.
        """
        self._timeout_s = integer("timeout_ms", timeout_ms, 1, DAY_MS) / 1_000
        self.topic = topic
        self._on_change: OnChange | None = None
        self._content: _Content | None = None
        self._is_stale = False  # it remains only until another one is complete
        self._reading: tuple[_Content, int] | None = None  # what the reader continues
        self._changed = Condition()  # guards all below, and the content
        self._checks = 0
        self._failure: Exception | None = None
        self._is_closed = Event()
        self._is_wanted = Event()  # a check by the thread
        self._thread: Thread | None = None
        if snapshot is not None and os.path.exists(snapshot):
            self._content = load(snapshot, topic)
        self._admin = Admin(bootstrap, host=host, **security)
        self._reader = BatchReader(bootstrap, host=host, **security)
        try:
            self._catch_up()
        except BaseException:
            self._close_clients()
            raise
        self._on_change = function("on_change", on_change)
        if follow:
            self._thread = Thread(target=self._follow, name=f"raftlog-table-{topic}", daemon=True)
            self._thread.start()

    def __repr__(self) -> str:
        return f"Table({self.topic!r}, keys={len(self)})"

    # A table is not equal to another one with the same items, which may change.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    # -- reading the map

    @property
    def _values(self) -> dict[bytes, bytes]:
        assert self._content is not None, "set by the constructor"
        return self._content.values

    def __getitem__(self, key: bytes) -> bytes:
        return self._values[key]

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys as they are now."""
        with self._changed:
            return iter(list(self._values))

    def items(self) -> ItemsView[bytes, bytes]:
        """Return the items as they are now: later changes are not in them."""
        with self._changed:
            return dict(self._values).items()

    def values(self) -> ValuesView[bytes]:
        """Return the values as they are now."""
        with self._changed:
            return dict(self._values).values()

    def offsets(self) -> dict[int, Offset]:
        """Return the offset of each partition below which all records are in the table."""
        with self._changed:
            assert self._content is not None, "set by the constructor"
            return {number: place.position for number, place in self._content.places.items()}

    # -- following the log

    def refresh(self) -> None:
        """Read all records that are committed now. Returns when they are in the table.

        Raises the errors of the constructor; with ``follow`` also the error that has ended the
        background thread.
        """
        self._check_open()
        if self._thread is None:
            with self._changed:
                self._catch_up()
            return
        with self._changed:
            seen = self._checks
            self._is_wanted.set()
            done = self._changed.wait_for(
                lambda: self._failure is not None or self._checks > seen, self._timeout_s + _CHECK_S
            )
        self._check_open()
        if not done:
            raise self._late()

    def _late(self) -> RequestTimedOutError:
        return RequestTimedOutError(
            f"table of {self.topic!r}: received no records for {self._timeout_s:g} s, before the "
            "end of the topic"
        )

    def _follow(self) -> None:
        """Run the background thread. It waits for brokers that are not reachable."""
        checked_at = time.monotonic()
        while not self._is_closed.is_set():
            is_due = time.monotonic() - checked_at >= _CHECK_S
            try:
                if not self._pumped() or is_due or self._is_wanted.is_set():
                    self._check()
                    checked_at = time.monotonic()
            except (RetriableError, OutcomeUnknownError) as error:
                logger.warning("table waits: topic=%s error=%s", self.topic, error)
                self._is_closed.wait(_CHECK_S)
            except Exception as error:  # an internal one, too: ``refresh`` raises it
                with self._changed:
                    if not self._is_closed.is_set():
                        is_known = isinstance(error, RaftlogError)
                        text = "table ended: topic=%s error=%s"
                        logger.error(text, self.topic, error, exc_info=not is_known)
                        self._failure = error
                    self._changed.notify_all()
                return

    def _check(self) -> None:
        with self._changed:
            self._is_wanted.clear()
            self._catch_up()
            self._checks += 1
            self._changed.notify_all()

    def _pumped(self) -> bool:
        """Apply the next batches, or wait for them. False if the table must be checked at once."""
        if self._reading is None:  # the reader may be that of a table that was not completed
            return False
        try:
            tp, found = self._reader.poll(_POLL_S)
        except (OffsetOutOfRangeError, UnknownPartitionError) as error:
            self._drop(str(error))
            return False
        with self._changed:
            assert self._content is not None, "set by the constructor"
            if tp is None or self._applied(self._content, tp, found, self._on_change):
                return True
            self._drop(f"{tp} was truncated")
            return False

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed.is_set():
            raise ClosedError("the table was closed")

    # -- reading the log

    def _described(self) -> TopicDescription:
        (topic,) = self._admin.describe_topics([self.topic])
        for part in topic.partitions:
            compacted.check_leader(TopicPartition(self.topic, part.partition), part)
        return topic

    def _ends(self) -> Mapping[int, Offset]:
        """Return the ends by partition: 0 for those of a topic that was created again since."""
        ends = self._admin.offsets(self.topic, "latest")
        return defaultdict(int, {number: end or 0 for number, end in ends.items()})

    def _catch_up(self) -> None:
        """Read to the end; from the start of the log, if the content cannot be continued."""
        problem = ""
        for _ in range(_TRIES_MAX):
            topic = self._described()
            if "compact" not in _policy(topic):
                raise InvalidRequestError(
                    f"topic {self.topic!r} is not compacted: its cleanup.policy is "
                    f"{_policy(topic)}. Set cleanup.policy=compact, or use raftlog.scan"
                )
            ends = self._ends()
            content = None if self._is_stale else self._content
            if content is not None and (problem := content.continues(topic, ends)):
                self._drop(problem)
                content = None
            if content is None:
                content = _Content(topic.id)
                content.continues(topic, ends)
                self._reader.take_removed_below()  # of what it does not contain
            is_new = content is not self._content
            try:
                problem = self._read(content, ends, None if is_new else self._on_change)
            except BaseException:
                # guard: a table reads again what it may not have applied
                self._reading = None  # KeyboardInterrupt: the reader may be ahead of the table
                raise
            problem = problem or content.lacks_tombstones(
                self._described(), self._reader.take_removed_below()
            )
            if not problem:
                self._publish(content)
                return
            self._drop(problem)
        raise RequestTimedOutError(
            f"table of {self.topic!r}: its log was changed {_TRIES_MAX} times while it was read "
            f"({problem})"
        )

    def _drop(self, problem: str) -> None:
        """Note that the content cannot be continued. It remains until another one is complete."""
        self._is_stale = self._content is not None
        self._reading = None
        logger.warning("table built again: topic=%s reason=%s", self.topic, problem)

    def _publish(self, content: _Content) -> None:
        before, self._content = self._content, content
        self._is_stale = False
        if before is None or before is content or self._on_change is None:
            return
        for key, old in before.values.items():
            new = content.values.get(key)
            if new != old:
                self._tell(self._on_change, key, old, new)
        for key, new in content.values.items():
            if key not in before.values:
                self._tell(self._on_change, key, None, new)

    def _read(
        self, content: _Content, ends: Mapping[int, Offset], on_change: OnChange | None
    ) -> str:
        """Apply the records up to ``ends``. Returns why it is not possible; "" if it was."""
        if self._reading != (content, len(content.places)) or content.is_unsure:
            self._reading = None
            positions = {
                TopicPartition(self.topic, number): place.position - place.is_unsure
                for number, place in content.places.items()
            }
            try:
                self._reader.start(positions)
            except UnknownPartitionError as error:  # the topic was created again
                return str(error)
            self._reading = (content, len(content.places))
        received_at = time.monotonic()
        left = {n for n, at in content.places.items() if at.position < ends[n] or at.is_unsure}
        while left:
            try:
                tp, found = self._reader.poll(_POLL_S)
            except (OffsetOutOfRangeError, UnknownPartitionError) as error:
                return str(error)
            if tp is not None:
                received_at = time.monotonic()
                if not self._applied(content, tp, found, on_change):
                    return f"{tp} was truncated"
                place = content.places[tp.partition]
                if place.position >= ends[tp.partition] and not place.is_unsure:
                    left.discard(tp.partition)
            elif time.monotonic() - received_at > self._timeout_s:
                raise self._late()
        return ""

    def _applied(
        self,
        content: _Content,
        tp: TopicPartition,
        batches: list[Checked],
        on_change: OnChange | None,
    ) -> bool:
        """Apply the batches from the position on. False if the log was truncated before it."""
        place = content.places[tp.partition]
        for header, data in batches:
            if place.is_unsure:
                if header.base_offset < place.position and header.leader_epoch != place.epoch:
                    return False
                place.is_unsure = False
            if header.next_offset <= place.position:
                continue
            if header.record_count:
                self._apply(content.values, place.position, data, on_change)
            place.position, place.epoch = header.next_offset, header.leader_epoch
        return True

    def _apply(
        self,
        values: dict[bytes, bytes],
        position: Offset,
        data: memoryview,
        on_change: OnChange | None,
    ) -> None:
        """Apply the records of a batch from ``position`` on."""
        records = decode_lists(data, check_crc=False)
        keys, found = records.keys, records.values
        if records.offsets[0] < position:
            first = next((at for at, o in enumerate(records.offsets) if o >= position), len(keys))
            keys, found = keys[first:], found[first:]
        if on_change is not None:
            for key, new in zip(keys, found, strict=True):
                self._set(values, key, new, on_change)
            return
        if None not in found and None not in keys:
            values.update(zip(keys, found, strict=True))  # type: ignore[arg-type]
            return
        last = dict(zip(keys, found, strict=True))
        last.pop(None, None)  # a record without a key, from before the topic was compacted
        for key in [key for key, value in last.items() if value is None]:
            values.pop(key, None)  # type: ignore[arg-type]
            del last[key]
        values.update(last)  # type: ignore[arg-type]

    def _set(
        self, values: dict[bytes, bytes], key: bytes | None, new: bytes | None, tell: OnChange
    ) -> None:
        if key is None:
            return
        old = values.get(key)
        if new is None:
            values.pop(key, None)
        else:
            values[key] = new
        if old != new:
            self._tell(tell, key, old, new)

    def _tell(self, tell: OnChange, key: bytes, old: bytes | None, new: bytes | None) -> None:
        try:
            tell(key, old, new)
        except Exception:
            logger.exception("on_change failed: topic=%s", self.topic)

    # -- snapshots and the end

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all items and their offsets to a file, which is replaced as a whole.

        The name ends in ``.parquet`` (Parquet), or in another way (Arrow IPC). Columns: key, value.
        Requires pyarrow.
        """
        self._check_open()
        with self._changed:
            assert self._content is not None, "set by the constructor"
            places = {number: replace(at) for number, at in self._content.places.items()}
            content = _Content(self._content.topic_id, dict(self._content.values), places)
        save(content, self.topic, path)

    def close(self) -> None:
        """End the background thread and the connections. Idempotent. The items remain readable."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        try:
            if self._thread is not None and self._thread is not current_thread():
                self._thread.join()
        finally:
            self._close_clients()

    def _close_clients(self) -> None:
        self._is_closed.set()
        self._reader.close()
        self._admin.close()


# -- snapshots -------------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"snapshots of tables need pyarrow. Run {install_command('arrow')}"
        ) from error
    return pa


def _is_parquet(path: str) -> bool:
    return path.endswith(".parquet")


def save(content: _Content, topic: str, path: str | os.PathLike[str]) -> None:
    """Write a snapshot. After a crash the file is the former one, or this one."""
    pa = _pyarrow()
    target = os.fspath(path)
    noted = {
        "version": _VERSION,
        "topic": topic,
        "topic_id": content.topic_id,
        "partitions": {
            str(number): [
                *(at.position, at.start, at.epoch),
                *(at.known.epoch, at.known.end, at.known.copied_below),
            ]
            for number, at in content.places.items()
        },
    }
    schema = pa.schema(
        [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())],
        metadata={_METADATA: json.dumps(noted)},
    )
    made, disk = f"{target}.{os.getpid()}.new", OsDisk()
    try:
        with _writer(made, schema, is_parquet=_is_parquet(target)) as writer:
            items = iter(content.values.items())
            while rows := list(islice(items, _SNAPSHOT_ROWS)):
                keys, values = zip(*rows, strict=True)
                arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        file = disk.open(made)
        file.sync()
        file.close()
        disk.rename(made, target)
        disk.sync_dir(os.path.dirname(os.path.abspath(target)))
    finally:
        if disk.exists(made):
            disk.remove(made)


def _writer(path: str, schema: Any, *, is_parquet: bool) -> Any:
    if is_parquet:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(path, schema)
    pa = _pyarrow()
    return pa.ipc.new_file(path, schema)


def load(path: str | os.PathLike[str], topic: str) -> _Content:
    """Read a snapshot. Raises ``InvalidRequestError`` if the file is not one of this topic."""
    pa = _pyarrow()
    name = os.fspath(path)
    try:
        schema, batches = _batches(name)
        noted = json.loads((schema.metadata or {})[_METADATA])
        if noted["topic"] != topic or noted["version"] != _VERSION:
            raise InvalidRequestError(
                f"{name} is a snapshot of the topic {noted['topic']!r} (version "
                f"{noted['version']}), not of {topic!r}"
            )
        content = _Content(noted["topic_id"])
        for number, (position, start, epoch, *known) in noted["partitions"].items():
            at = _Place(position, start, compacted.Known(*known), epoch, position > start)
            content.places[int(number)] = at
        for batch in batches:
            content.values.update(
                zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            )
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, RaftlogError):
            raise
        raise InvalidRequestError(
            f"{name} is not a snapshot of a table ({error}). Delete it: the table is then built "
            "from the log"
        ) from error
    return content


def _batches(path: str) -> tuple[Any, Iterator[Any]]:
    if _is_parquet(path):
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
        return file.schema_arrow, file.iter_batches(_SNAPSHOT_ROWS)
    pa = _pyarrow()
    reader = pa.ipc.open_file(path)
    return reader.schema, (reader.get_batch(at) for at in range(reader.num_record_batches))
