"""What a compaction may do to a log, said slowly and obviously, without looking at how it is done.

``check_pass`` compares what was there with what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from raftlog.record import BatchHeader, decode_lists, validate, verify_chain
from raftlog.storage import Log
from raftlog.storage.segment import Segment
from tests.storage.model import StoredBatch


class Row(NamedTuple):
    """A record, as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: object


def rows_of(batches: Sequence[StoredBatch]) -> list[Row]:
    return [Row(*row) for batch in batches for row in zip(*decode_lists(batch.data), strict=True)]


def final_state(rows: Sequence[Row]) -> dict[bytes, bytes]:
    """What a reader who keeps the last value of each key ends up with."""
    state: dict[bytes, bytes] = {}
    for row in rows:
        if row.key is None:
            continue
        if row.value is None:
            state.pop(row.key, None)
        else:
            state[row.key] = row.value
    return state


def segment_batches(segment: Segment) -> list[StoredBatch]:
    was_open = segment.is_open
    found = [
        StoredBatch(segment.pread(header.length, position), header)
        for position, header in segment.headers()
    ]
    if not was_open:
        segment.close()
    return found


def all_batches(log: Log) -> list[StoredBatch]:
    """Also those below the log start that are in a segment still."""
    return [batch for segment in log._segments for batch in segment_batches(segment)]


@dataclass(frozen=True)
class Terms:
    """What a pass goes by. ``limit``: from there on nothing may change. ``due_below``: tombstones
    below it have served their time. ``log_start``: records below it are deleted anyway.
    """

    limit: int
    due_below: int
    log_start: int


def check_pass(
    before: Sequence[StoredBatch],
    after: Sequence[StoredBatch],
    terms: Terms,
    *,
    end: int | None,
    cut_off: Sequence[StoredBatch] = (),
) -> None:
    """``end``: up to there every key is to stand once; None while the pass is not done.

    ``cut_off``: what the log had at the time of the pass, and lost afterwards.
    """
    check_batches(before, after, terms)
    rows, left = rows_of(before), rows_of(after)
    offsets = {row.offset for row in left}
    assert left == [row for row in rows if row.offset in offsets], "changed, or out of order"
    ever = [*rows, *rows_of(cut_off)]
    newest: dict[bytes | None, int] = {}
    for row in ever:
        if row.offset < terms.limit:
            newest[row.key] = max(row.offset, newest.get(row.key, -1))
    for row in rows:
        if row.offset in offsets:
            continue
        assert row.offset < terms.limit, "gone, and was not to be touched"
        if row.offset < terms.log_start:
            continue
        assert row.key is not None, "a record without a key went"
        is_superseded = newest[row.key] > row.offset
        is_due = row.value is None and row.offset < terms.due_below
        assert is_superseded or is_due, f"{row} is the last of its key"
    if end is not None:
        keyed = [row.key for row in left if row.key is not None and row.offset < end]
        assert len(keyed) == len(set(keyed)), "a key stands twice"
        assert not [row for row in left if row.value is None and row.key is not None
                    and row.offset < min(end, terms.due_below)]  # fmt: skip
    if cut_off:
        return
    live = [row for row in rows if row.offset >= terms.log_start]
    live_left = [row for row in left if row.offset >= terms.log_start]
    assert final_state(live_left) == final_state(live)


def check_batches(
    before: Sequence[StoredBatch], after: Sequence[StoredBatch], terms: Terms
) -> None:
    """Offsets without a gap, batches that end where one has ended, epochs, chain values."""
    assert bool(before) == bool(after)
    if not before:
        return
    assert (after[0].base, after[-1].end) == (before[0].base, before[-1].end)
    assert all(one.end == other.base for one, other in pairwise(after))
    ends = {batch.end: batch.header for batch in before}
    for batch in after:
        validate(batch.data)
        assert batch.end in ends
        last = ends[batch.end]
        assert (batch.header.chain, batch.header.leader_epoch) == (last.chain, last.leader_epoch)
        covered = {b.header.leader_epoch for b in before if batch.base <= b.base < batch.end}
        assert covered == {batch.header.leader_epoch}, "a batch spans epochs"
    for one, other in pairwise(after):
        assert verify_chain(other.header, previous_chain=one.header.chain)
    untouched = [batch for batch in after if batch.base >= terms.limit]
    assert untouched == [batch for batch in before if batch.base >= terms.limit]


def newest_of_producers(headers: Sequence[BatchHeader]) -> dict[int, tuple[int, int, int]]:
    """Of each producer: epoch, base offset and last sequence of its newest batch."""
    return {
        header.producer_id: (
            header.producer_epoch,
            header.next_offset,
            (header.base_sequence + header.last_offset_delta) % (1 << 31),
        )
        for header in headers
        if header.has_producer
    }
