"""Backup as the source of a mirror, which restores it, and its verification."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from raftlog.backup import manifest
from raftlog.backup.manifest import Chunk, Manifest, PartitionFiles
from raftlog.backup.store import Store
from raftlog.client.consumer_core import Checked
from raftlog.client.descriptions import (
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from raftlog.client.group_descriptions import GroupListing
from raftlog.client.waiting import wait_once
from raftlog.errors import CorruptBatchError, InvalidRequestError
from raftlog.record import check_batches, verify_chain
from raftlog.types import Offset, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition


class BackupSource:
    """``raftlog.mirror.source.Source`` of a backup."""

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
    data = store.read(manifest.NAME)
    if data is None:
        raise InvalidRequestError(f"there is no backup: {manifest.NAME} is missing")
    return manifest.decode(data)


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
        if before is not None and not (
            header.base_offset >= before.next_offset
            and (
                header.base_offset > before.next_offset
                or verify_chain(header, previous_chain=before.chain)
            )
        ):
            raise CorruptBatchError(
                f"{where} is corrupt: the batch at offset {header.base_offset} does not continue "
                "the one before it"
            )
        found.append((header, memoryview(data)[position : position + header.length]))
        position += header.length
    last = headers[-1]
    if (last.next_offset, last.chain) != (chunk.end, chunk.chain):
        raise CorruptBatchError(f"{where} does not end at offset {chunk.end}: it is another file")
    return found


def verify(store: Store) -> Iterator[tuple[TopicPartition, PartitionFiles, str]]:
    """Read every file. Yields each partition with its problem; "" if it has none.

    Raises ``InvalidRequestError`` if ``store`` has no backup.
    """
    for name, topic in sorted(read_manifest(store).topics.items()):
        for number, part in enumerate(topic.partitions):
            tp = TopicPartition(name, number)
            problem = ""
            try:
                for chunk in part.chunks:
                    read_chunk(store, chunk)
            except CorruptBatchError as error:
                problem = str(error)
            yield tp, part, problem
