"""Writer of backups: new committed batches of topics, and group offsets."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from raftlog import limits
from raftlog.backup import manifest
from raftlog.backup.manifest import Chunk, CommittedOffset, Manifest, PartitionFiles, TopicFiles
from raftlog.backup.store import StillHeld, Store
from raftlog.client.admin import Admin
from raftlog.client.batch_reader import BatchReader
from raftlog.client.consumer_core import Checked
from raftlog.client.descriptions import PartitionDescription, TopicDescription
from raftlog.client.environment import ClientEnvironment
from raftlog.client.settings import Bootstrap
from raftlog.errors import (
    ChainMismatchError,
    ClusterNotReadyError,
    CorruptBatchError,
    InvalidRequestError,
    RequestTimedOutError,
    UnknownGroupError,
)
from raftlog.mirror import compacted, topics
from raftlog.record import verify_chain
from raftlog.types import Offset, TimestampMs, TopicPartition

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 32 * limits.MIB  # of one file; the last batch may exceed it
BUFFERED_BYTES_MAX: Final = 256 * limits.MIB  # at this limit, the largest partition is written
COPIES_MAX: Final = 3  # of a partition in one run
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 60.0  # wait for the next batch


@dataclass(slots=True)
class Progress:
    """``offsets``, ``size_bytes``: written in this run. ``lag``: offsets that are still missing.
    ``skipped``: offsets that were deleted after the last backup, and before this one.
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
    files have, for ``compacted.is_whole``.
    """

    files: PartitionFiles
    name: Callable[[Offset, bytes], str]  # of a file, from its first offset and its content
    goal: Offset
    known: compacted.Known
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
        before = store.read(manifest.NAME)
        made = _opened(before, admin, now_ms)
        found = topics.selected(admin.find_topics(), admin.list_topics(), pattern)
        described = admin.describe_topics(found) if found else []
        parts = _parts(made, described, admin, progress)
        progress.topics, progress.partitions = len(described), len(parts)
        due = parts
        for _number in range(COPIES_MAX):
            _copy(bootstrap, store, due, progress, on_progress, host)
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
    if store.read(manifest.NAME) != before:  # where a store has no locks
        raise InvalidRequestError(
            f"another backup has replaced {manifest.NAME} since this one began. Run one "
            "backup into a directory at a time"
        )
    store.write(manifest.NAME, manifest.encode(made))
    return progress


def _opened(data: bytes | None, admin: Admin, now_ms: TimestampMs) -> Manifest:
    """Return the manifest of the last backup, whose file is ``data``, or a new one."""
    cluster_id = admin.describe_cluster(partitions=False).cluster_id
    if not cluster_id:
        raise ClusterNotReadyError("the cluster ID is not known yet")
    if data is None:
        return Manifest(manifest.FORMAT, cluster_id, now_ms, {}, {})
    made = manifest.decode(data)
    if made.cluster_id != cluster_id:
        raise InvalidRequestError(
            f"the backup is of the cluster {made.cluster_id}, not of {cluster_id}. Use another "
            "directory for each cluster"
        )
    made.written_ms = now_ms
    return made


def _parts(
    made: Manifest, described: list[TopicDescription], admin: Admin, progress: Progress
) -> dict[TopicPartition, _Part]:
    """Add the topics to the manifest. Returns the partitions to read."""
    parts = {}
    for topic in described:
        starts, ends = admin.offsets(topic.name, "earliest"), admin.offsets(topic.name, "latest")
        files = _topic_files(made, topic)
        described_parts = {part.partition: part for part in topic.partitions}
        for number, end in sorted(ends.items()):
            start = starts.get(number) or 0
            if number == len(files.partitions):
                files.partitions.append(PartitionFiles(start, start))
            part = files.partitions[number]
            progress.skipped += max(start - part.end, 0)
            chain = part.chunks[-1].chain if part.chunks and part.end >= start else None
            position = max(part.end, start)
            parts[TopicPartition(topic.name, number)] = _Part(
                part,
                _namer(topic, number),
                max(end or 0, position),
                compacted.Known(described_parts[number].leader_epoch, position)
                if part.chunks
                else compacted.begun(described_parts[number]),
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
            part.files.tombstones_removed_below = found[tp].tombstones_removed_below
    again = {
        tp: part
        for tp, part in parts.items()
        if tp in found and not compacted.is_whole(part.known, found[tp])
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
    return lambda start, data: manifest.chunk_name(topic.name, topic.id, number, start, data)


def _topic_files(made: Manifest, topic: TopicDescription) -> TopicFiles:
    replicas = max((len(part.replicas) for part in topic.partitions), default=1)
    known = made.topics.get(topic.name)
    if known is None:
        known = made.topics[topic.name] = TopicFiles(topic.id, replicas, topic.overrides, [])
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


def _add(tp: TopicPartition, part: _Part, batch: Checked) -> None:
    """Append a batch, whose checksums are valid, if it continues the chain."""
    header, data = batch
    is_next = header.base_offset == part.end
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
