"""Manifest of a backup: ``backup.json``, format 1. Pure.

It is written last. Files that it does not contain are from an interrupted backup. No file that it
contains is ever written again: names of files depend on their content.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from raftlog.errors import InvalidRequestError, UnsupportedVersionError
from raftlog.types import Offset, TimestampMs

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
    backup; ``end``: where the next backup continues. ``tombstones_removed_below``: of the leader,
    at the end of the last backup.
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
    digest = hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]
    return f"topics/{topic}/{topic_id}/{partition}/{start:020d}-{digest}.batches"
