"""Writer of backups: new committed batches of topics, and group offsets."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from raftlog import limits
from raftlog.client.administration.admin import Admin
from raftlog.client.administration.groups import GroupListing
from raftlog.client.base import ClientEnvironment
from raftlog.client.consumer import Checked
from raftlog.client.descriptions import (
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from raftlog.client.readers import BatchReader, Range, decode_portion
from raftlog.client.scan import Portions, ScanRange, no_topic
from raftlog.client.settings import Bootstrap
from raftlog.client.threads import wait_once
from raftlog.clock import Clock, SystemClock
from raftlog.disk import OsDisk
from raftlog.errors import (
    ChainMismatchError,
    ClusterNotReadyError,
    CorruptBatchError,
    InvalidRequestError,
    RequestTimedOutError,
    UnknownGroupError,
    UnknownTopicError,
    UnsupportedFeatureError,
    UnsupportedVersionError,
)
from raftlog.install import install_command
from raftlog.mirror import compacted
from raftlog.mirror import mirror as topics
from raftlog.record import check_batches, verify_chain
from raftlog.types import (
    LeaderEpoch,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TimestampMs,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

# -- manifest --------------------------------------------------------------------------------------
#
# Manifest of a backup: ``backup.json``, format 1. Pure.
#
# It is written last. Files that it does not contain are from an interrupted backup. No file that it
# contains is ever written again: names of files depend on their content.


NAME = "backup.json"
FORMAT = 1
DIGEST_CHARS: Final = 16  # of the SHA-256 in a file name


class Chunk(msgspec.Struct, frozen=True):
    """A file with consecutive complete batches, as stored by the leader.

    They cover the offsets from ``start`` to before ``end``, except those that were deleted before
    the backup. ``chain``: hash-chain value of the last batch.
    """

    file: str
    start: Offset
    end: Offset
    size_bytes: int
    chain: int


class PartitionFiles(msgspec.Struct):
    """Files of one partition, in the order of their offsets. ``start``: log start at the first
    backup; ``end``: where the next backup continues. ``tombstones_removed_below``: the
    highest of the leaders that they were read from, and of those at the ends of the backups.
    """

    start: Offset
    end: Offset
    chunks: list[Chunk] = []
    tombstones_removed_below: Offset = 0


class TopicFiles(msgspec.Struct):
    """One topic. ``config``: settings that differ from the defaults. ``replicas``: number."""

    id: str
    replicas: int
    config: dict[str, str]
    partitions: list[PartitionFiles]


class CommittedOffset(msgspec.Struct, frozen=True):
    """Committed offset of a consumer group."""

    topic: str
    partition: int
    offset: Offset
    metadata: str


class Manifest(msgspec.Struct):
    """``cluster_id``: of the source. ``written_ms``: wall-clock time of the last backup."""

    format: int
    cluster_id: str
    written_ms: TimestampMs
    topics: dict[str, TopicFiles]
    groups: dict[str, list[CommittedOffset]]


def decode(data: bytes) -> Manifest:
    """Decode a manifest. Raises ``InvalidRequestError`` and ``UnsupportedVersionError``."""
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{NAME} is not the manifest of a backup: {error}") from error
    if found.format != FORMAT:
        raise UnsupportedVersionError(
            f"{NAME} has the format {found.format}; this release reads {FORMAT}. Use the release "
            "that wrote the backup, or a later one"
        )
    return found


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def chunk_name(topic: str, topic_id: str, partition: int, start: Offset, data: bytes) -> str:
    """Return the file name of a chunk with the batches ``data``. Topic names contain no ``/``.

    Two runs that overlap may read different numbers of batches from one offset on: by their digest,
    neither replaces a file of the other.
    """
    # guard: a backup file is replaced by no other content
    digest = hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]
    return f"topics/{topic}/{topic_id}/{partition}/{start:020d}-{digest}.batches"


# -- writer ----------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 32 * limits.MIB  # of one file; the last batch may exceed it
BUFFERED_BYTES_MAX: Final = 256 * limits.MIB  # at this limit, the largest partition is written
COPIES_MAX: Final = 3  # of a partition in one run
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 60.0  # wait for the next batch


@dataclass(slots=True)
class Progress:
    """``offsets``, ``size_bytes``: written in this run. ``lag``: offsets that are still missing.
    ``skipped``: offsets before those, which were deleted after the last backup of the partition.
    ``copied_again``: partitions whose earlier files are not used any more, because the cluster has
    removed marks of deleted keys that the backup never had.
    """

    topics: int = 0
    partitions: int = 0
    groups: int = 0
    offsets: int = 0
    size_bytes: int = 0
    lag: int = 0
    skipped: int = 0
    copied_again: int = 0


@dataclass(slots=True)
class _Part:
    """A partition to read. ``goal``: its end offset at the start of the backup. ``known``: what its
    files have, and ``read``: what was read since; for ``compacted.is_whole``.
    """

    files: PartitionFiles
    name: Callable[[Offset, bytes], str]  # of a file, from its first offset and its content
    goal: Offset
    known: compacted.Known
    read: Mapping[LeaderEpoch, Offset] = field(default_factory=dict)
    batches: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    start: Offset = 0  # of the batches
    end: Offset = 0
    chain: int | None = None  # of the last batch; None if the next one does not continue it

    @property
    def is_complete(self) -> bool:
        return self.end >= self.goal

    def begin_anew(self, now: PartitionDescription) -> None:
        """Read the partition from its start: files of the last backup are not used any more."""
        start = now.log_start_offset
        self.files.start = self.files.end = start
        self.files.chunks.clear()
        self.batches, self.size_bytes, self.chain = [], 0, None
        self.start = self.end = start
        self.goal = max(self.goal, start)
        self.known = compacted.begun(now)


def write_backup(
    bootstrap: Bootstrap,
    store: Store,
    *,
    topic_pattern: str | re.Pattern[str] = ".*",
    group_pattern: str | re.Pattern[str] = ".*",
    now_ms: TimestampMs,
    on_progress: Callable[[Progress], object] = lambda _progress: None,
    host: ClientEnvironment | None = None,
) -> Progress:
    """Add the records that the cluster has committed since the last backup to ``store``.

    The patterns match whole names of topics and groups. Internal topics are excluded. Topics of an
    earlier backup that do not match are kept. ``host``: environment of the clients.

    Raises ``InvalidRequestError`` if the store has a backup of another cluster, a topic was
    created again, or another backup writes to the store; ``ChainMismatchError`` if a log does not
    continue that of the last backup; ``CorruptBatchError`` if the store does not return what was
    written; and the errors of ``BatchReader``. The store then keeps the earlier backup.
    """
    with store.hold() as still_held:
        return _write(
            bootstrap,
            _Verified(store, still_held),
            re.compile(topic_pattern),
            re.compile(group_pattern),
            now_ms,
            on_progress,
            host or ClientEnvironment(),
        )


class _Verified:
    """A store that is held, and reads what it has written."""

    def __init__(self, store: Store, still_held: StillHeld) -> None:
        self.read = store.read
        self.still_held = still_held
        self._write = store.write

    def write(self, name: str, data: bytes) -> None:
        self.still_held()
        self._write(name, data)
        # guard: a backup reads what it has written
        if self.read(name) != data:
            raise CorruptBatchError(
                f"the backup file {name} was not stored as it was written. Check the storage, or "
                "use another directory"
            )


def _write(
    bootstrap: Bootstrap,
    store: _Verified,
    pattern: re.Pattern[str],
    group_pattern: re.Pattern[str],
    now_ms: TimestampMs,
    on_progress: Callable[[Progress], object],
    host: ClientEnvironment,
) -> Progress:
    progress = Progress()
    with Admin(bootstrap, host=host) as admin:
        before = store.read(NAME)
        made = _opened(before, admin, now_ms)
        found = topics.selected(admin.find_topics(), admin.list_topics(), pattern)
        described = admin.describe_topics(found) if found else []
        parts = _parts(made, described, admin)
        progress.topics, progress.partitions = len(described), len(parts)
        due = parts
        for _number in range(COPIES_MAX):
            _copy(bootstrap, store, due, progress, on_progress, host)
            # guard: a backup looks for removed tombstones
            due = _stale(admin, parts, progress)
            if not due:
                break
        else:
            raise RequestTimedOutError(
                f"{min(due)}: compaction removes marks of deleted keys faster than the partition "
                "is copied. Raise delete.retention.ms of the topic"
            )
        made.groups |= _groups(admin, group_pattern, made.topics)
        progress.groups = len(made.groups)
    # guard: a backup replaces the manifest that it began with
    if store.read(NAME) != before:  # where a store has no locks
        raise InvalidRequestError(
            f"another backup has replaced {NAME} since this one began. Run one "
            "backup into a directory at a time"
        )
    store.write(NAME, encode(made))
    return progress


def _opened(data: bytes | None, admin: Admin, now_ms: TimestampMs) -> Manifest:
    """Return the manifest of the last backup, whose file is ``data``, or a new one."""
    cluster_id = admin.describe_cluster(partitions=False).cluster_id
    if not cluster_id:
        raise ClusterNotReadyError("the cluster ID is not known yet")
    if data is None:
        return Manifest(FORMAT, cluster_id, now_ms, {}, {})
    made = decode(data)
    # guard: a backup is of one cluster
    if made.cluster_id != cluster_id:
        raise InvalidRequestError(
            f"the backup is of the cluster {made.cluster_id}, not of {cluster_id}. Use another "
            "directory for each cluster"
        )
    made.written_ms = now_ms
    return made


def _parts(
    made: Manifest, described: list[TopicDescription], admin: Admin
) -> dict[TopicPartition, _Part]:
    """Add the topics to the manifest. Returns the partitions to read."""
    parts = {}
    for topic in described:
        starts, ends = admin.offsets(topic.name, "earliest"), admin.offsets(topic.name, "latest")
        files = _topic_files(made, topic)
        # Those that were added since are in the next backup.
        for tp, source in sorted(compacted.by_partition([topic]).items()):
            number = tp.partition
            start, end = starts.get(number) or 0, ends.get(number) or 0
            if number == len(files.partitions):
                files.partitions.append(PartitionFiles(start, start))
            part = files.partitions[number]
            chain = part.chunks[-1].chain if part.chunks and part.end >= start else None
            position = max(part.end, start)
            parts[tp] = _Part(
                part,
                _namer(topic, number),
                max(end, position),
                compacted.Known(source.leader_epoch, position)
                if part.chunks
                else compacted.begun(source),
                start=position,
                end=position,
                chain=chain,
            )
    return parts


def _stale(
    admin: Admin, parts: Mapping[TopicPartition, _Part], progress: Progress
) -> dict[TopicPartition, _Part]:
    """Return the partitions that must be read again, prepared for that: tombstones that deleted
    records of the backup were removed before they were read.
    """
    names = sorted({tp.topic for tp in parts})
    found = compacted.by_partition(admin.describe_topics(names) if names else ())
    for tp, part in parts.items():
        if tp in found:
            part.files.tombstones_removed_below = max(
                part.files.tombstones_removed_below,
                found[tp].tombstones_removed_below,
                *part.read.values(),
            )
    again = {
        tp: part
        for tp, part in parts.items()
        if tp in found and not compacted.is_whole(part.known, found[tp], part.read)
    }
    for tp, part in again.items():
        part.begin_anew(found[tp])
        logger.warning(
            "partition copied again: partition=%s tombstones_removed_below=%d",
            tp, found[tp].tombstones_removed_below,
        )  # fmt: skip
    progress.copied_again += len(again)
    return again


def _namer(topic: TopicDescription, number: int) -> Callable[[Offset, bytes], str]:
    return lambda start, data: chunk_name(topic.name, topic.id, number, start, data)


def _topic_files(made: Manifest, topic: TopicDescription) -> TopicFiles:
    replicas = max((len(part.replicas) for part in topic.partitions), default=1)
    known = made.topics.get(topic.name)
    if known is None:
        known = made.topics[topic.name] = TopicFiles(topic.id, replicas, topic.overrides, [])
    # guard: a backup of a topic ends when it is created again
    if known.id != topic.id:
        raise InvalidRequestError(
            f"topic {topic.name!r} was created again since the last backup. Use another directory, "
            "or exclude the topic with --topics"
        )
    known.config, known.replicas = topic.overrides, replicas
    return known


def _copy(
    bootstrap: Bootstrap,
    store: _Verified,
    parts: Mapping[TopicPartition, _Part],
    progress: Progress,
    on_progress: Callable[[Progress], object],
    host: ClientEnvironment,
) -> None:
    """Read every partition up to its goal."""
    missing = {tp for tp, part in parts.items() if not part.is_complete}
    now = host.clock.monotonic
    heard_at = now()
    with BatchReader(bootstrap, client_id="raftlog-backup", host=host) as reader:
        if missing:
            reader.start({tp: parts[tp].start for tp in sorted(missing)})
        while missing:
            tp, found = reader.poll(_POLL_S)
            store.still_held()
            if tp is None:
                if now() - heard_at > _PATIENCE_S:
                    raise RequestTimedOutError(
                        f"{min(missing)}: received no records for {_PATIENCE_S:g} s"
                    )
                continue
            heard_at = now()
            part = parts[tp]
            for batch in found:
                if not part.is_complete:
                    _add(tp, part, batch)
            if part.is_complete:
                missing.discard(tp)
            if part.is_complete or part.size_bytes >= CHUNK_BYTES:
                _flush(store, part, progress)
            if sum(each.size_bytes for each in parts.values()) > BUFFERED_BYTES_MAX:
                _flush(store, max(parts.values(), key=lambda each: each.size_bytes), progress)
            progress.lag = sum(max(each.goal - each.end, 0) for each in parts.values())
            on_progress(progress)
        read = reader.take_removed_below()
        for tp, part in parts.items():
            part.read = read.get(tp, {})


def _add(tp: TopicPartition, part: _Part, batch: Checked) -> None:
    """Append a batch, whose checksums are valid, if it continues the chain."""
    header, data = batch
    is_next = header.base_offset == part.end
    # guard: a backup continues the log that it has
    if is_next and part.chain is not None and not verify_chain(header, previous_chain=part.chain):
        raise ChainMismatchError(
            f"{tp}: the batch at offset {header.base_offset} does not continue the log of the last "
            "backup: the cluster has lost records of the backup. Use another directory"
        )
    part.batches.append(bytes(data))
    part.size_bytes += len(data)
    part.end, part.chain = header.next_offset, header.chain


def _flush(store: _Verified, part: _Part, progress: Progress) -> None:
    """Write the batches in memory as one file."""
    if not part.batches:
        return
    assert part.chain is not None
    data = b"".join(part.batches)
    name = part.name(part.start, data)
    store.write(name, data)
    chunk = Chunk(name, part.start, part.end, part.size_bytes, part.chain)
    part.files.chunks.append(chunk)
    progress.skipped += part.start - part.files.end
    part.files.end = part.end
    progress.offsets += part.end - part.start
    progress.size_bytes += part.size_bytes
    part.batches, part.size_bytes, part.start = [], 0, part.end


def _groups(
    admin: Admin, pattern: re.Pattern[str], known: Mapping[str, TopicFiles]
) -> dict[str, list[CommittedOffset]]:
    """Return committed offsets in the topics of the backup, at most up to its records."""
    found = {}
    for name in sorted(listing.group for listing in admin.list_groups()):
        if not pattern.fullmatch(name):
            continue
        try:
            offsets = admin.group_offsets(name)
        except UnknownGroupError:  # deleted after it was listed
            continue
        kept = [
            CommittedOffset(tp.topic, tp.partition, committed.offset, committed.metadata)
            for tp, committed in sorted(offsets.items())
            if tp.topic in known and tp.partition < len(known[tp.topic].partitions)
        ]
        if kept:
            found[name] = kept
    return found


# -- source ----------------------------------------------------------------------------------------
#
# Backup as the source of a mirror, which restores it, and its verification.


class BackupSource:
    """``raftlog.mirror.mirror.Source`` of a backup."""

    def __init__(self, store: Store) -> None:
        """Raises ``InvalidRequestError`` if ``store`` has no backup."""
        self._store = store
        self._manifest = read_manifest(store)

    @contextmanager
    def admin(self) -> Iterator[BackupAdmin]:
        yield BackupAdmin(self._manifest)

    @contextmanager
    def reader(self, *, one_batch: bool = False) -> Iterator[BackupReader]:  # noqa: ARG002
        yield BackupReader(self._store, self._manifest)


def read_manifest(store: Store) -> Manifest:
    """Return the manifest. Raises ``InvalidRequestError`` if there is none."""
    data = store.read(NAME)
    if data is None:
        raise InvalidRequestError(f"there is no backup: {NAME} is missing")
    return decode(data)


class BackupAdmin:
    """Queries of a mirror, with results from the manifest of a backup."""

    def __init__(self, made: Manifest) -> None:
        self._made = made

    def describe_cluster(self, *, partitions: bool = True) -> ClusterDescription:  # noqa: ARG002
        # Not the ID of the source cluster, because a mirror rejects a target with the same ID.
        return ClusterDescription(f"backup of {self._made.cluster_id}", ())

    def find_topics(self) -> dict[str, TopicListing]:
        return {
            name: TopicListing(name, topic.id, len(topic.partitions))
            for name, topic in self._made.topics.items()
        }

    def list_topics(self) -> list[str]:
        return list(self._made.topics)

    def describe_topics(self, topics: Iterable[str]) -> list[TopicDescription]:
        return [_described(name, self._made) for name in topics]

    def list_offsets(
        self, at: Mapping[TopicPartition, Literal["earliest", "latest"]]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for tp, which in at.items():
            part = self._made.topics[tp.topic].partitions[tp.partition]
            offset = part.start if which == "earliest" else part.end
            found[tp] = OffsetAndTimestamp(offset, -1)
        return found

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(name, "empty", 0, -1) for name in self._made.groups]

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            TopicPartition(row.topic, row.partition): OffsetAndMetadata(row.offset, row.metadata)
            for row in self._made.groups[group]
        }


def _described(name: str, made: Manifest) -> TopicDescription:
    topic = made.topics[name]
    partitions = tuple(
        PartitionDescription(
            number, None, -1, tuple(range(topic.replicas)), (), (), part.start, part.end, part.end,
            -1, "", part.tombstones_removed_below,
        )
        for number, part in enumerate(topic.partitions)
    )  # fmt: skip
    return TopicDescription(name, topic.id, topic.config, tuple(topic.config), partitions)


class BackupReader:
    """Returns verified batches of files, as ``BatchReader`` returns those of a cluster."""

    def __init__(self, store: Store, made: Manifest) -> None:
        self._store = store
        self._made = made
        self._chunks: deque[tuple[TopicPartition, Chunk]] = deque()
        self._positions: dict[TopicPartition, Offset] = {}

    def start(self, positions: Mapping[TopicPartition, Offset]) -> None:
        self._positions = dict(positions)
        self._chunks = deque(
            (tp, chunk)
            for tp, position in sorted(positions.items())
            for chunk in self._made.topics[tp.topic].partitions[tp.partition].chunks
            if chunk.end > position
        )

    def poll(self, timeout_s: float) -> tuple[TopicPartition | None, list[Checked]]:
        """Return the batches of the next file; (None, []) after ``timeout_s`` if all are read.

        Raises ``CorruptBatchError`` if a file is missing, corrupt or not the expected one.
        """
        if not self._chunks:
            wait_once(lambda _callback: None, timeout_s)  # the target acknowledges the batches
            return None, []
        tp, chunk = self._chunks.popleft()
        found = read_chunk(self._store, chunk)
        return tp, [batch for batch in found if batch[0].next_offset > self._positions[tp]]

    def take_removed_below(self) -> dict[TopicPartition, dict[LeaderEpoch, Offset]]:
        """Return nothing: the descriptions of a backup count all leaders that it was read from."""
        return {}


class BackupRecords:
    """``raftlog.client.scan.ScanSource`` of a backup."""

    HAS_TIMES = False  # a backup has no index of times

    def __init__(self, store: Store) -> None:
        """Raises ``InvalidRequestError`` if ``store`` has no backup."""
        self._store = store
        self._manifest = read_manifest(store)

    def topics(self) -> list[str]:
        return sorted(self._manifest.topics)

    def extents(self, topic: str) -> list[ScanRange]:
        made = self._manifest.topics.get(topic)
        if made is None:
            raise UnknownTopicError(no_topic(topic, self._manifest.topics))
        return [
            ScanRange(TopicPartition(topic, number), part.start, part.end)
            for number, part in enumerate(made.partitions)
        ]

    def at_time(
        self,
        ranges: Sequence[ScanRange],  # noqa: ARG002
        time_ms: TimestampMs,  # noqa: ARG002
    ) -> list[Offset | None]:
        raise InvalidRequestError(
            "a backup has no index of times. Set offsets as start and end, or the times in where="
        )

    def read(
        self, ranges: Sequence[ScanRange], portions: Portions
    ) -> Iterator[tuple[ScanRange, pa.RecordBatch]]:
        """Yield verified records. Raises ``CorruptBatchError`` for a damaged file."""
        reader = BackupReader(self._store, self._manifest)
        for at in ranges:
            reader.start({at.tp: at.start})
            wanted = Range(
                tp=at.tp, start=at.start, end=at.end, topic_id="", columns=portions.columns,
                rows_max=portions.rows_max, bytes_max=portions.bytes_max,
                timeout_ms=portions.timeout_ms, fetched=at.start,
            )  # fmt: skip
            while wanted.batches or not wanted.is_fetched:
                while not wanted.is_enough:
                    tp, found = reader.poll(0)
                    if tp is None:
                        raise CorruptBatchError(
                            f"{at.tp}: the backup has no offsets {wanted.fetched} to {at.end}"
                        )
                    for batch in found:
                        # Offsets that the files do not have were deleted before the backup.
                        wanted.fetched = max(wanted.fetched, batch[0].base_offset)
                        wanted.add([batch])
                for portion in decode_portion(wanted)[0]:
                    yield at, portion


def read_chunk(store: Store, chunk: Chunk) -> list[Checked]:
    """Return the batches of a file. Verifies checksums, hash chain and offset range."""
    data = store.read(chunk.file)
    where = f"the backup file {chunk.file}"
    if data is None:
        raise CorruptBatchError(f"{where} is missing")
    if len(data) != chunk.size_bytes:
        raise CorruptBatchError(f"{where} has {len(data)} bytes instead of {chunk.size_bytes}")
    try:
        headers = check_batches(data)
    except CorruptBatchError as error:
        raise CorruptBatchError(f"{where} is corrupt: {error}") from error
    found: list[Checked] = []
    position = 0
    for header in headers:
        before = found[-1][0] if found else None
        # guard: the batches of a backup file form one log
        if before is not None and not (
            header.base_offset > before.next_offset
            or (
                header.base_offset == before.next_offset
                and verify_chain(header, previous_chain=before.chain)
            )
            # It was joined while the backup read the one before it.
            or (header.is_compacted and header.next_offset > before.next_offset)
        ):
            raise CorruptBatchError(
                f"{where} is corrupt: the batch at offset {header.base_offset} does not continue "
                "the one before it"
            )
        found.append((header, memoryview(data)[position : position + header.length]))
        position += header.length
    last = headers[-1]
    # guard: a backup file ends with the batch that the list names
    if (last.next_offset, last.chain) != (chunk.end, chunk.chain):
        raise CorruptBatchError(f"{where} does not end at offset {chunk.end}: it is another file")
    return found


def verify(
    store: Store, topics: str = ".*"
) -> Iterator[tuple[TopicPartition, PartitionFiles, str]]:
    """Read every file. Yields each partition with its problem; "" if it has none.

    ``topics``: pattern of whole topic names. Raises ``InvalidRequestError`` if ``store`` has no
    backup.
    """
    for name, topic in sorted(read_manifest(store).topics.items()):
        if not re.fullmatch(topics, name):
            continue
        for number, part in enumerate(topic.partitions):
            tp = TopicPartition(name, number)
            problem = ""
            try:
                for chunk in part.chunks:
                    read_chunk(store, chunk)
            except CorruptBatchError as error:
                problem = str(error)
            yield tp, part, problem


# -- store -----------------------------------------------------------------------------------------
#
# Files of a backup: in a directory, or at a URL of fsspec (object stores, SFTP and others).


LOCK: Final = "backup.lock"  # in a directory: the writer holds it with flock
LEASE: Final = "backup.lease"  # at a URL
LEASE_MS: Final = 120_000  # without renewal, another writer may begin
RENEW_MS: Final = 30_000
SETTLE_S: Final = 1.0  # two writers that begin at once both see the later lease after this time

# Raises ``InvalidRequestError`` if another writer has begun. Call it before each write.
StillHeld: TypeAlias = Callable[[], None]


class Store(Protocol):
    """Files by name; names have ``/`` between folders."""

    def read(self, name: str) -> bytes | None:
        """Return the content; None if there is no such file."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file. After a crash it is complete, or unchanged."""
        ...

    def hold(self) -> AbstractContextManager[StillHeld]:
        """Keep other writers out. Raises ``InvalidRequestError`` while there is one."""
        ...


class Directory:
    """Store in a directory, which is created with the first file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._disk = OsDisk()

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._disk.write_atomic(str(path), data)

    @contextmanager
    def hold(self) -> Iterator[StillHeld]:
        """The kernel ends it with the process. Not every network file system has locks; then names
        by content, and the comparison of the manifest, keep what is there.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        try:
            # guard: one run at a time writes to a directory of backups
            lock = self._disk.lock(str(self._path / LOCK))
        except BlockingIOError as error:
            raise InvalidRequestError(
                f"another backup writes to {self._path}. Wait until it has ended, or use another "
                "directory"
            ) from error
        try:
            yield lambda: None
        finally:
            lock.release()


class _Lease(msgspec.Struct, frozen=True):
    holder: str
    token: str
    until_ms: TimestampMs


class FileSystem:
    """Store at a URL of fsspec."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock = clock or SystemClock()
        self._sleep = sleep
        try:
            import fsspec
        except ImportError as error:
            raise UnsupportedFeatureError(
                f"{url} requires fsspec. Run {install_command('backup')}, and install the "
                "package of fsspec for this kind of URL"
            ) from error
        try:
            files, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise InvalidRequestError(f"{url}: {error}") from error
        self._files: Any = files
        self._root: str = root.rstrip("/")

    def read(self, name: str) -> bytes | None:
        path = f"{self._root}/{name}"
        with self._naming(path):
            try:
                data: bytes = self._files.cat_file(path)
            except FileNotFoundError:
                return None
        return data

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with self._naming(path):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data)

    @contextmanager
    def hold(self) -> Iterator[StillHeld]:
        """A lease in a file, as object stores have no locks. It is renewed with the writes."""
        mine = _Lease(f"{socket.gethostname()}, process {os.getpid()}", secrets.token_hex(8), 0)
        self._check_lease(mine)
        renewed_ms = self._write_lease(mine)
        self._sleep(SETTLE_S)
        self._check_lease(mine)

        def still_held() -> None:
            nonlocal renewed_ms
            if self._clock.wall_ms() - renewed_ms >= RENEW_MS:
                self._check_lease(mine)
                renewed_ms = self._write_lease(mine)

        try:
            yield still_held
        finally:
            with suppress(OSError):  # it expires
                path = f"{self._root}/{LEASE}"
                if self._lease_of_another(mine) is None:
                    with self._naming(path):
                        self._files.rm_file(path)

    def _lease_of_another(self, mine: _Lease) -> _Lease | None:
        data = self.read(LEASE)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=_Lease)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # no lease: a file that was cut off
        is_over = found.until_ms < self._clock.wall_ms()
        return None if found.token == mine.token or is_over else found

    def _check_lease(self, mine: _Lease) -> None:
        other = self._lease_of_another(mine)
        # guard: one run at a time writes to a URL of backups
        if other is not None:
            left_s = max(1, (other.until_ms - self._clock.wall_ms()) // 1_000)
            raise InvalidRequestError(
                f"another backup writes to {self._files.unstrip_protocol(self._root)} (on "
                f"{other.holder}). Wait until it has ended; if it was killed, {left_s} s"
            )

    def _write_lease(self, mine: _Lease) -> TimestampMs:
        now_ms = self._clock.wall_ms()
        lease = msgspec.structs.replace(mine, until_ms=now_ms + LEASE_MS)
        self.write(LEASE, msgspec.json.encode(lease))
        return now_ms

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Convert the error of a file system to an ``OSError`` with the name of the file. Libraries
        of object stores raise many classes of errors, often without the name.
        """
        try:
            yield
        except Exception as error:
            url = self._files.unstrip_protocol(path)
            raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def open_store(url: str) -> Store:
    """Return the store at ``url``: a path, ``file:///path``, or a URL that fsspec supports.

    Raises ``UnsupportedFeatureError`` without fsspec, and ``InvalidRequestError`` for a URL that
    fsspec does not support.
    """
    if url.startswith("file://"):
        return Directory(Path(url.removeprefix("file://")))
    return FileSystem(url) if "://" in url else Directory(Path(url))
