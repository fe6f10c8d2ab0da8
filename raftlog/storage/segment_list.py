"""Segments of one log in offset order, and reads across them.

To make reads fast, the list keeps a few sealed segments open and caches the positions of the
offsets that readers will probably request next. This module does not write batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, overload

from raftlog import limits
from raftlog.errors import DamagedLogError
from raftlog.record import BatchHeader
from raftlog.storage.segment import Segment
from raftlog.types import Offset

# Number of cached offset positions. A reader that continues at one of them needs no search.
_POSITIONS_REMEMBERED: Final = 64


class SegmentList:
    """Segments of one log. Invariant: each segment starts at the end offset of the previous one.
    The last one is the active segment."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._positions: dict[Offset, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def append(self, segment: Segment) -> None:
        self._segments.append(segment)

    def drop_below(self, offset: Offset) -> list[Segment]:
        """Remove the sealed segments that end at or below ``offset`` from the list, and return
        them."""
        dropped = []
        while len(self._segments) > 1 and self._segments[0].next_offset <= offset:
            dropped.append(self._segments.pop(0))
            dropped[-1].close()
        return dropped

    def swap(self, replaced: Sequence[Offset], segment: Segment) -> None:
        """Replace the adjacent segments with base offsets ``replaced`` by ``segment``."""
        first = next(
            number for number, s in enumerate(self._segments) if s.base_offset == replaced[0]
        )
        gone = self._segments[first : first + len(replaced)]
        assert [s.base_offset for s in gone] == list(replaced)
        assert segment.next_offset == gone[-1].next_offset
        self._segments[first : first + len(replaced)] = [segment]
        for old in gone:
            old.close()
        self.forget_positions()

    def pop_last(self) -> Segment:
        return self._segments.pop()

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, end_offset: Offset, bytes_max: int) -> list[bytes]:
        """See ``Log.read``. The caller has checked the range."""
        parts: list[bytes] = []
        while start_offset < end_offset and (bytes_max > 0 or not parts):
            segment = self._segment_of(start_offset)
            try:
                start = self._start_position(segment, start_offset)
                end = self._end_position(segment, end_offset)
                stop = segment.end_of_read(start=start, end=end, bytes_max=bytes_max)
                if parts and stop - start > bytes_max:
                    break
                if stop > start:  # else the only remaining batch contains ``end_offset``
                    parts.append(segment.pread(stop - start, start))
            except DamagedLogError:
                if parts:
                    break  # the next read starts here and raises the error
                raise
            if stop < end:
                # The reader's next request starts at the batch that did not fit.
                self.remember(segment.header_at(stop).base_offset, stop)
                break
            bytes_max -= stop - start
            start_offset = min(end_offset, segment.next_offset)
            self.remember(start_offset, stop)
        return parts

    def batch_of(self, offset: Offset) -> BatchHeader:
        """Return the header of the batch that contains ``offset``."""
        return self._locate(self._segment_of(offset), offset)[1]

    def batch_start(self, offset: Offset) -> Offset:
        """Return the base offset of the batch that contains ``offset``."""
        return self.batch_of(offset).base_offset

    def batch_before(self, offset: Offset) -> BatchHeader:
        """Return the header of the batch before ``offset``. A batch starts at ``offset``, and it is
        not the first batch."""
        return self._locate(self._segment_of(offset - 1), offset - 1)[1]

    def _segment_of(self, offset: Offset) -> Segment:
        index = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)
        return self._segments[index - 1]

    def _locate(self, segment: Segment, offset: Offset) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that contains ``offset``."""
        position = self._known_position(segment, offset)
        if position is not None:
            return position, segment.header_at(position)
        return segment.find(offset)

    def _start_position(self, segment: Segment, offset: Offset) -> int:
        """Return the position of the batch that contains ``offset``. The batch may be corrupt."""
        position = self._known_position(segment, offset)
        return segment.find(offset)[0] if position is None else position

    def _known_position(self, segment: Segment, offset: Offset) -> int | None:
        # The end offset of a segment is also the base offset of the next one, at position 0.
        return self._positions.get(offset) if offset > segment.base_offset else None

    def _end_position(self, segment: Segment, end_offset: Offset) -> int:
        """Return the position of ``end_offset``: a batch's base offset, or past the segment.

        Does not read the batch at that position. It may be corrupt, while all below it is valid.
        """
        if end_offset >= segment.next_offset:
            return segment.size_bytes
        known = self._positions.get(end_offset)
        if known is not None:
            return known
        position, header = self._locate(segment, end_offset - 1)
        return position + header.length if header.next_offset <= end_offset else position

    def first_unreadable(self, start_offset: Offset, *, bytes_max: int) -> Offset:
        """Return the first offset at or after ``start_offset`` with an unreadable header.

        ``start_offset`` is a base offset. Searches ``bytes_max`` bytes, but at least one batch, and
        the header after them. Returns ``start_offset`` if all these headers are readable.
        """
        offset, bytes_left = start_offset, bytes_max
        try:
            while offset < self._segments[-1].next_offset:
                segment = self._segment_of(offset)
                for _position, header in segment.headers(segment.find(offset)[0]):
                    if bytes_left < 0:
                        return start_offset
                    bytes_left -= header.length
                    offset = header.next_offset
        except DamagedLogError:
            return offset
        return start_offset

    def remember(self, offset: Offset, position: int) -> None:
        """Cache the position of the batch that starts, or will start, at ``offset``."""
        self._positions.pop(offset, None)
        self._positions[offset] = position
        if len(self._positions) > _POSITIONS_REMEMBERED:
            del self._positions[next(iter(self._positions))]

    def forget_positions(self) -> None:
        self._positions.clear()

    # -- open files --------------------------------------------------------------------------------

    @contextmanager
    def leaving_closed(self) -> Iterator[None]:
        """Close the files that are opened in the block. Otherwise a scan of all logs would leave
        all files open."""
        were_open = {segment for segment in self._segments if segment.is_open}
        try:
            yield
        finally:
            for segment in self._segments:
                if segment not in were_open:
                    segment.close()

    def close_surplus(self, *, keep: Container[Segment]) -> None:
        """Close the oldest open sealed segments above the limit. ``keep``: unsynced segments, which
        stay open."""
        sealed = [s for s in self._segments[:-1] if s.is_open and s not in keep]
        for segment in sealed[: max(0, len(sealed) - limits.OPEN_SEALED_SEGMENTS_MAX)]:
            segment.close()
