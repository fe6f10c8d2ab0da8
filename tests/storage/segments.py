"""Segments for tests: made of batches of chosen sizes and timestamps. No assertions here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from raftlog.record import BatchHeader, parse_header
from raftlog.storage.segment import Segment
from raftlog.testing.disk import SimDisk
from tests.record.batches import stamped
from tests.storage.logs import DIRECTORY, NOW_MS, batch_of, sim_disk

INDEX_INTERVAL_BYTES: Final = 300


def directory_on(disk: SimDisk) -> SimDisk:
    disk.make_dirs(DIRECTORY)
    return disk


def empty_segment(disk: SimDisk | None = None, *, base_offset: int = 0) -> Segment:
    disk = directory_on(sim_disk()) if disk is None else disk
    segment = Segment(disk, DIRECTORY, base_offset)
    segment.create()
    return segment


def grow(
    segment: Segment,
    values: Sequence[bytes],
    *,
    timestamps_ms: int | Sequence[int] = NOW_MS,
    now_ms: int = NOW_MS,
    leader_epoch: int = 0,
    log_append_time: bool = False,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
) -> BatchHeader:
    """Append one batch of ``values``, stamped as the next one."""
    batch = stamped(
        batch_of(values, timestamps_ms=timestamps_ms),
        base_offset=segment.next_offset,
        leader_epoch=leader_epoch,
        append_timestamp_ms=now_ms,
        log_append_time=log_append_time,
        previous_chain=segment.summary.chain,
    )
    header = parse_header(batch)
    segment.append([batch], header, index_interval_bytes=index_interval_bytes)
    return header


def segment_of(
    record_counts: Sequence[int], disk: SimDisk | None = None, **options: int
) -> Segment:
    """A segment of one batch for each of ``record_counts``, with that many records of 50 bytes."""
    segment = empty_segment(disk, **options)
    for count in record_counts:
        grow(segment, [b"v" * 50] * count)
    return segment


def chained(record_counts: Sequence[Sequence[int]], disk: SimDisk) -> Iterator[Segment]:
    """Segments that follow one another, each as ``segment_of`` makes it."""
    base_offset = 0
    previous: Segment | None = None
    for counts in record_counts:
        segment = empty_segment(disk, base_offset=base_offset)
        if previous is not None:
            segment.follow(previous.anchor)
        for count in counts:
            grow(segment, [b"v" * 50] * count)
        yield segment
        base_offset, previous = segment.next_offset, segment
