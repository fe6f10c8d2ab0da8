"""The segments of one log, in offset order, and reading across them.

Also what makes reading cheap: few sealed segments kept open, and the positions of offsets at which
readers are expected next. Nothing here writes.
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

# Offsets whose position is remembered, so that a reader who comes back for more is found at once.
_POSITIONS_REMEMBERED: Final = 64


class SegmentList:
    """Invariant: each segment starts where the one before it ends; the last is active."""

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
        """Let go of the sealed segments that end at or below ``offset``."""
        dropped = []
        while len(self._segments) > 1 and self._segments[0].next_offset <= offset:
            dropped.append(self._segments.pop(0))
            dropped[-1].close()
        return dropped

    def swap(self, replaced: Sequence[Offset], segment: Segment) -> None:
        """Put ``segment`` in the place of neighbours, which start at ``replaced``."""
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
        """See ``Log.read``, which has checked the range."""
        parts: list[bytes] = []
        while start_offset < end_offset and (bytes_max > 0 or not parts):
            segment = self._segment_of(start_offset)
            try:
                start, first = self._locate(segment, start_offset)
                if parts and first.length > bytes_max:
                    break
                end = self._end_position(segment, end_offset)
                stop = segment.end_of_read(start=start, first=first, end=end, bytes_max=bytes_max)
                if stop > start:  # else the one batch that is left holds ``end_offset``
                    parts.append(segment.pread(stop - start, start))
            except DamagedLogError:
                if parts:
                    break  # the next read starts here, and finds the damage
                raise
            if stop < end:
                # The reader's next question is about the batch that did not fit.
                self.remember(segment.header_at(stop).base_offset, stop)
                break
            bytes_max -= stop - start
            start_offset = min(end_offset, segment.next_offset)
            self.remember(start_offset, stop)
        return parts

    def batch_of(self, offset: Offset) -> BatchHeader:
        """The batch that holds ``offset``."""
        return self._locate(self._segment_of(offset), offset)[1]

    def batch_start(self, offset: Offset) -> Offset:
        """The first offset of the batch that holds ``offset``."""
        return self.batch_of(offset).base_offset

    def batch_before(self, offset: Offset) -> BatchHeader:
        """The last batch that ends at or below ``offset``, where a batch starts; not the first."""
        return self._locate(self._segment_of(offset - 1), offset - 1)[1]

    def _segment_of(self, offset: Offset) -> Segment:
        index = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)
        return self._segments[index - 1]

    def _locate(self, segment: Segment, offset: Offset) -> tuple[int, BatchHeader]:
        """The batch that holds ``offset``: its position in the segment, and its header."""
        position = self._positions.get(offset)
        # An offset at which a segment ends is also where the next one starts, at position 0.
        if position is not None and offset > segment.base_offset:
            return position, segment.header_at(position)
        return segment.find(offset)

    def _end_position(self, segment: Segment, end_offset: Offset) -> int:
        """Where ``end_offset`` (a batch's first, or past the segment) lies in the segment.

        What lies there is not looked at: it may be damaged, and what is below it is good.
        """
        if end_offset >= segment.next_offset:
            return segment.size_bytes
        known = self._positions.get(end_offset)
        if known is not None:
            return known
        position, header = self._locate(segment, end_offset - 1)
        return position + header.length if header.next_offset <= end_offset else position

    def first_unreadable(self, start_offset: Offset, *, bytes_max: int) -> Offset:
        """The first offset, from a batch's on, where no header can be read.

        Looked for in ``bytes_max`` bytes, one batch at least, and the header after them;
        ``start_offset`` when there is none such.
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
        """Note where the batch that starts at ``offset`` lies (or will lie) in its segment."""
        self._positions.pop(offset, None)
        self._positions[offset] = position
        if len(self._positions) > _POSITIONS_REMEMBERED:
            del self._positions[next(iter(self._positions))]

    def forget_positions(self) -> None:
        self._positions.clear()

    # -- open files --------------------------------------------------------------------------------

    @contextmanager
    def leaving_closed(self) -> Iterator[None]:
        """Close what is opened meanwhile: who walks through all logs would leave all files open."""
        were_open = {segment for segment in self._segments if segment.is_open}
        try:
            yield
        finally:
            for segment in self._segments:
                if segment not in were_open:
                    segment.close()

    def close_surplus(self, *, keep: Container[Segment]) -> None:
        """Close the oldest open sealed segments beyond the limit, none that is yet to be synced."""
        sealed = [s for s in self._segments[:-1] if s.is_open and s not in keep]
        for segment in sealed[: max(0, len(sealed) - limits.OPEN_SEALED_SEGMENTS_MAX)]:
            segment.close()
