"""What compaction is to do, and what it has done: a pure plan; ``cleaner`` carries it out.

    log start        clean end                dirty end                      log end
        |  every key once  |  never compacted     |  too young, not sealed, …   |
        +------ rewritten by the next pass -------+

A *pass* reads the dirty part to learn the newest offset of each key, and then writes everything up
to the dirty end anew, without the records that have a newer one. Offsets stay as they are.

A record without a value is a *tombstone*: it says that its key is gone. It stays until the pass
that first met it, and removed what it deletes, is ``delete.retention.ms`` old: a reader that was
below it at that time and reads on meets it in that time (KIP-534). So a state remembers for each
part of the log since when it is clean.

A replica that copies this log needs no time for that: the state also has the offset below which
tombstones may be missing (``tombstones_removed_below``). It is durable before the first of them is
removed, and every answer to a follower carries it (``replication.following``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from raftlog.config.keys import INT64_MAX
from raftlog.types import Offset, TimestampMs

# Older ones become one with the pass after them: their tombstones stay a little longer.
PASSES_REMEMBERED: Final = 64


class CleanPart(NamedTuple):
    """The part of a log below ``end_offset``, and not of the part before it.

    ``cleaned_at_ms``: when the pass began that compacted it first. ``tombstones``: how many it
    still had after the latest pass.
    """

    end_offset: Offset
    cleaned_at_ms: TimestampMs
    tombstones: int


class LastPass(NamedTuple):
    """What the latest pass did, for people."""

    began_ms: TimestampMs
    bytes_before: int
    bytes_after: int
    records_removed: int


@dataclass(frozen=True, slots=True)
class CompactionState:
    """What a log remembers of its passes. Invariant: ``parts`` ascend by ``end_offset``."""

    parts: tuple[CleanPart, ...] = ()
    last: LastPass | None = None
    # Every tombstone at or above it that was ever in this log's history is still in this log, or a
    # newer record of its key is. Never lowered, except to the end of a log that is truncated.
    tombstones_removed_below: Offset = 0

    @property
    def clean_end_offset(self) -> Offset:
        """Below it each key stands once, at least as far as passes have seen."""
        return self.parts[-1].end_offset if self.parts else 0

    def cut(self, end: Offset) -> CompactionState:
        """The state of a log that ends at ``end``: what comes there was never compacted."""
        index = bisect_right(self.parts, end, key=lambda part: part.end_offset)
        kept = self.parts[:index]
        if index < len(self.parts) and end > (kept[-1].end_offset if kept else 0):
            kept = (*kept, self.parts[index]._replace(end_offset=end))
        return CompactionState(kept, self.last, min(self.tombstones_removed_below, end))

    def tombstones_due_below(
        self, *, now_ms: TimestampMs, retention_ms: int, kept_from: Offset = INT64_MAX
    ) -> Offset:
        """Tombstones below that offset have been kept for long enough. It is the end of a part, and
        at most ``kept_from``."""
        offset = 0
        for part in self.parts:
            if part.cleaned_at_ms > now_ms - retention_ms or part.end_offset > kept_from:
                break
            offset = part.end_offset
        return offset

    def has_only_due_tombstones(
        self, *, now_ms: TimestampMs, retention_ms: int, kept_from: Offset = INT64_MAX
    ) -> bool:
        """Whether there are tombstones, and all have been kept for long enough.

        Then a pass is worth its while without any dirty record: there will be no other soon.
        """
        due = self.tombstones_due_below(
            now_ms=now_ms, retention_ms=retention_ms, kept_from=kept_from
        )
        counts = [part.tombstones for part in self.parts]
        return due > 0 and due == self.clean_end_offset and sum(counts) > 0

    def removing_tombstones(self, due_below: Offset) -> CompactionState:
        """The state before a pass that removes the tombstones below ``due_below``.

        A part without tombstones does not count.
        """
        ends = [p.end_offset for p in self.parts if p.end_offset <= due_below and p.tombstones]
        return self.lacking_tombstones(max(ends, default=0))

    def lacking_tombstones(self, below: Offset) -> CompactionState:
        """The state of a log that may lack tombstones below that offset, too."""
        below = max(below, self.tombstones_removed_below)
        return CompactionState(self.parts, self.last, below)

    def after(
        self, end: Offset, *, due_below: Offset, tombstones: Sequence[int], last: LastPass
    ) -> CompactionState:
        """The state after a pass up to ``end`` that removed the tombstones below ``due_below``.

        ``tombstones``: how many it kept, by the parts that ``kept_parts`` names.
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
        """Those that may have tombstones after a pass. What is above is a part of its own."""
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
        # A file of an older release does not have it. Passes forget the parts whose tombstones they
        # remove, so none was removed at or above the end of the first part that is left.
        removed_below = parts[0].end_offset if parts else 0
        return cls(
            parts,
            None if last is None else LastPass(*last),
            state.get("tombstones_removed_below", removed_below),
        )


class SegmentInfo(NamedTuple):
    """What planning looks at. ``dirty_bytes``: of batches that were never compacted."""

    base_offset: Offset
    next_offset: Offset
    size_bytes: int
    dirty_bytes: int


def dirty_ratio(segments: Sequence[SegmentInfo]) -> float:
    """The share of dirty bytes, as ``min.cleanable.dirty.ratio`` has it; 0 for none."""
    total = sum(segment.size_bytes for segment in segments)
    return sum(segment.dirty_bytes for segment in segments) / total if total else 0.0


def groups(segments: Sequence[SegmentInfo], *, segment_bytes: int) -> list[list[SegmentInfo]]:
    """Neighbours that become one segment each: as many as fit ``segment_bytes`` before a pass."""
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
    """The first of the groups, one at least: together they have at most ``bytes_max`` bytes."""
    taken: list[list[SegmentInfo]] = []
    size = 0
    for group in grouped:
        size += sum(segment.size_bytes for segment in group)
        if taken and size > bytes_max:
            break
        taken.append(group)
    return taken
