"""Compaction planning and state. Pure functions and values; ``cleaner`` does the work.

    log start        clean end                dirty end                      log end
        |  every key once  |  never compacted     |  too young, not sealed, …   |
        +------ rewritten by the next pass -------+

A *pass* reads the dirty part to find the newest offset of each key. Then it rewrites all segments
up to the dirty end without the records that have a newer record of the same key. Offsets do not
change.

A record without a value is a *tombstone*: it marks its key as deleted. The first pass that covers
a tombstone removes the older records of its key. The tombstone stays until that pass is
``delete.retention.ms`` old. A consumer that was below the tombstone when the pass ran has this time
to read it (KIP-534). Therefore the state records for each part of the log when it became clean.

Replicas do not depend on this time. The state also contains the offset below which tombstones may
be missing (``tombstones_removed_below``). It is durable before the first tombstone is removed, and
every fetch response to a follower contains it (``replication.following``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from raftlog.config.keys import INT64_MAX
from raftlog.types import Offset, TimestampMs

# Older parts are merged with the next part. Their tombstones then stay slightly longer.
PASSES_REMEMBERED: Final = 64


class CleanPart(NamedTuple):
    """Part of a log between the end of the previous part and ``end_offset``.

    ``cleaned_at_ms``: start time of the pass that first compacted it. ``tombstones``: number of
    tombstones in it after the latest pass.
    """

    end_offset: Offset
    cleaned_at_ms: TimestampMs
    tombstones: int


class LastPass(NamedTuple):
    """Statistics of the latest pass, for operators."""

    began_ms: TimestampMs
    bytes_before: int
    bytes_after: int
    records_removed: int


@dataclass(frozen=True, slots=True)
class CompactionState:
    """Compaction state of a log. Invariant: ``parts`` are in ascending order of ``end_offset``."""

    parts: tuple[CleanPart, ...] = ()
    last: LastPass | None = None
    # Invariant: for every tombstone at or above this offset that was ever in the log, the log still
    # holds it or a newer record of its key. Lowered only to the end of a log that is truncated.
    tombstones_removed_below: Offset = 0

    @property
    def clean_end_offset(self) -> Offset:
        """End of the compacted part. Below it, passes have kept one record of each key."""
        return self.parts[-1].end_offset if self.parts else 0

    def cut(self, end: Offset) -> CompactionState:
        """Return the state after a truncation at ``end``. Later records count as not compacted."""
        index = bisect_right(self.parts, end, key=lambda part: part.end_offset)
        kept = self.parts[:index]
        if index < len(self.parts) and end > (kept[-1].end_offset if kept else 0):
            kept = (*kept, self.parts[index]._replace(end_offset=end))
        return CompactionState(kept, self.last, min(self.tombstones_removed_below, end))

    def tombstones_due_below(
        self, *, now_ms: TimestampMs, retention_ms: int, kept_from: Offset = INT64_MAX
    ) -> Offset:
        """Return the offset below which tombstones are older than ``retention_ms``. It is the end
        of a part, and at most ``kept_from``."""
        offset = 0
        for part in self.parts:
            if part.cleaned_at_ms > now_ms - retention_ms or part.end_offset > kept_from:
                break
            offset = part.end_offset
        return offset

    def has_only_due_tombstones(
        self, *, now_ms: TimestampMs, retention_ms: int, kept_from: Offset = INT64_MAX
    ) -> bool:
        """Return True if there are tombstones, and all of them are due for removal.

        Then a pass is due even without dirty records, which may not arrive soon.
        """
        due = self.tombstones_due_below(
            now_ms=now_ms, retention_ms=retention_ms, kept_from=kept_from
        )
        counts = [part.tombstones for part in self.parts]
        return due > 0 and due == self.clean_end_offset and sum(counts) > 0

    def removing_tombstones(self, due_below: Offset) -> CompactionState:
        """Return the state to save before a pass removes the tombstones below ``due_below``.

        A part without tombstones does not count.
        """
        ends = [p.end_offset for p in self.parts if p.end_offset <= due_below and p.tombstones]
        return self.lacking_tombstones(max(ends, default=0))

    def lacking_tombstones(self, below: Offset) -> CompactionState:
        """Return the state of a log in which tombstones below ``below`` may also be missing."""
        below = max(below, self.tombstones_removed_below)
        return CompactionState(self.parts, self.last, below)

    def after(
        self, end: Offset, *, due_below: Offset, tombstones: Sequence[int], last: LastPass
    ) -> CompactionState:
        """Return the state after a pass up to ``end`` that removed the tombstones below
        ``due_below``.

        ``tombstones``: numbers of kept tombstones, for each part that ``kept_parts`` returns.
        """
        kept = [
            part._replace(tombstones=count)
            for part, count in zip(self.kept_parts(due_below), tombstones, strict=False)
        ]
        if not kept or kept[-1].end_offset < end:
            kept.append(CleanPart(end, last.began_ms, tombstones[-1]))
        while len(kept) > PASSES_REMEMBERED:
            first, second = kept[:2]
            kept[:2] = [second._replace(tombstones=first.tombstones + second.tombstones)]
        return CompactionState(tuple(kept), last, self.tombstones_removed_below)

    def kept_parts(self, due_below: Offset) -> tuple[CleanPart, ...]:
        """Return the parts that may have tombstones after a pass. The pass adds one more part for
        the records above them."""
        return tuple(part for part in self.parts if part.end_offset > due_below)

    def to_json(self) -> dict[str, Any]:
        return {
            "parts": [list(part) for part in self.parts],
            "last": None if self.last is None else list(self.last),
            "tombstones_removed_below": self.tombstones_removed_below,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> CompactionState:
        last = state["last"]
        parts = tuple(CleanPart(*part) for part in state["parts"])
        # Files of older releases lack this field. Passes delete the parts whose tombstones they
        # remove. So no tombstone was removed at or above the end of the first remaining part.
        removed_below = parts[0].end_offset if parts else 0
        return cls(
            parts,
            None if last is None else LastPass(*last),
            state.get("tombstones_removed_below", removed_below),
        )


class SegmentInfo(NamedTuple):
    """Planning view of a segment. ``dirty_bytes``: bytes of batches that were never compacted."""

    base_offset: Offset
    next_offset: Offset
    size_bytes: int
    dirty_bytes: int


def dirty_ratio(segments: Sequence[SegmentInfo]) -> float:
    """Return the ratio of dirty bytes to all bytes (see ``min.cleanable.dirty.ratio``); 0 if there
    are no bytes."""
    total = sum(segment.size_bytes for segment in segments)
    return sum(segment.dirty_bytes for segment in segments) / total if total else 0.0


def groups(segments: Sequence[SegmentInfo], *, segment_bytes: int) -> list[list[SegmentInfo]]:
    """Return groups of adjacent segments. Each group becomes one segment. A group of several
    segments has at most ``segment_bytes`` bytes before the pass."""
    found: list[list[SegmentInfo]] = []
    size = 0
    for segment in segments:
        if found and size + segment.size_bytes <= segment_bytes:
            found[-1].append(segment)
            size += segment.size_bytes
        else:
            found.append([segment])
            size = segment.size_bytes
    return found


def first_groups(
    grouped: Sequence[list[SegmentInfo]], *, bytes_max: int
) -> list[list[SegmentInfo]]:
    """Return the first groups of at most ``bytes_max`` bytes in total, but at least one group."""
    taken: list[list[SegmentInfo]] = []
    size = 0
    for group in grouped:
        size += sum(segment.size_bytes for segment in group)
        if taken and size > bytes_max:
            break
        taken.append(group)
    return taken
