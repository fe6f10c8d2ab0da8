"""What a log holds, and reading it: offsets, batches, times, epochs, chain values.

The lowest part of ``Log``. Nothing here writes, syncs or drops.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.config import TopicConfig
from raftlog.disk import Disk
from raftlog.errors import DamagedLogError, OffsetOutOfRangeError
from raftlog.storage.checkpoint import Anchor
from raftlog.storage.opening import Opened
from raftlog.storage.segment_list import SegmentList
from raftlog.types import LeaderEpoch, Offset, OffsetAndTimestamp, TimestampMs


class LogReading:
    """The state of a log, and every question that changes none of it."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        self.directory = directory
        self.config = config
        self.damage = opened.damage  # what is bad; empty when nothing is
        # Whether that may be a torn write which was never acknowledged, so that it may be cut.
        self.is_torn = opened.is_torn
        # Why acknowledged records may be missing though nothing is bad; empty when none can be.
        self.doubt = ""
        self.notes: Sequence[str] = opened.notes  # what recovery did, for the operator's log
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.log_start_offset: Offset = opened.log_start_offset
        self.log_end_offset: Offset = opened.log_end_offset
        self.durable_end_offset: Offset = opened.log_end_offset
        self.durable_start_offset: Offset = opened.log_start_offset  # no crash takes it back
        # Readers stop here: at damage, or at the log end.
        self._readable_end = opened.readable_end_offset if opened.damage else None
        self._disk = disk
        self._files = opened.files
        self._checkpoint = opened.checkpoint
        self._segments = SegmentList(opened.segments)
        # What the first batch that is left follows from, where that is known.
        self._anchor = opened.checkpoint.latest.anchor
        self._high_watermark = opened.checkpoint.latest.high_watermark  # saved with every sync

    # -- what is there -----------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest epoch that the log has seen, or -1."""
        return self.epochs.latest

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last batch, also when that was deleted; -1 when that is not known.

        A follower sends it with its fetches. Not ``leader_epoch``: an epoch in which nothing was
        written says nothing of what the log holds (KAFKA-15510).
        """
        return self._anchor_of_next.leader_epoch

    @property
    def chain(self) -> int:
        """The chain value of the last batch, also when that was deleted; 0 for a log that never
        had one, and where it is not known."""
        return self._anchor_of_next.chain

    @property
    def high_watermark(self) -> Offset:
        """The highest that ``note_high_watermark`` was told, also before the last start.

        After a power cut it may be old, and is never ahead of the log's end.
        """
        return self._bounded(self._high_watermark)

    @property
    def acknowledged_end_offset(self) -> Offset:
        """What may be acknowledged: synced, or only written with ``flush.policy=os``."""
        return self.log_end_offset if self.config.flush_policy == "os" else self.durable_end_offset

    @property
    def readable_end_offset(self) -> Offset:
        """Where reads end: at damage, or at the log end."""
        return self.log_end_offset if self._readable_end is None else self._readable_end

    def chain_at(self, offset: Offset) -> int | None:
        """The chain value of the last batch that ends at or below ``offset``; None when unknown.

        Two replicas with the same value there hold the same log up to there, whatever each of them
        has compacted. Inside a compacted batch it is not known: batches that ended there are gone.
        ``offset`` lies between log start and log end. Reads a few headers. Raises
        ``OffsetOutOfRangeError`` and ``DamagedLogError``.
        """
        self.check_range(offset)
        if offset == self.log_end_offset:
            return self._known_chain
        header = self._segments.batch_of(offset)
        if header.is_compacted and header.base_offset < offset:
            return None
        return self._chain_below(header.base_offset)

    def _chain_below(self, base: Offset) -> int | None:
        """The chain value that the batch at ``base`` has to follow from; None when unknown."""
        if base > self._segments[0].base_offset:
            return self._segments.batch_before(base).chain
        return self._anchor.chain if self._anchor.is_known_at(base) else None

    @property
    def _anchor_of_next(self) -> Anchor:
        """What the next batch has to follow from."""
        if self._segments:
            return self._segments[-1].anchor
        if self._anchor.offset == self.log_end_offset:
            return self._anchor
        return Anchor(self.log_end_offset)

    @property
    def _known_chain(self) -> int | None:
        """As ``chain``, and None where that is not known."""
        anchor = self._anchor_of_next
        return anchor.chain if anchor.is_known_at(self.log_end_offset) else None

    def _bounded(self, offset: Offset) -> Offset:
        return min(max(offset, self.log_start_offset), self.log_end_offset)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, end_offset: Offset, bytes_max: int) -> list[bytes]:
        """Whole batches from the one that holds ``start_offset`` on, none at or past
        ``end_offset``.

        At most ``bytes_max`` bytes, but at least one batch where there is one. The first batch may
        begin below ``start_offset``. Raises ``OffsetOutOfRangeError`` and ``DamagedLogError``.
        """
        self.check_range(start_offset)
        if self._readable_end is not None:
            if start_offset >= self._readable_end and start_offset < end_offset:
                raise DamagedLogError(self.damage)
            end_offset = min(end_offset, self._readable_end)
        end_offset = min(end_offset, self.log_end_offset)
        return self._segments.read(
            start_offset=start_offset, end_offset=end_offset, bytes_max=bytes_max
        )

    def check_range(self, offset: Offset) -> None:
        """Raise ``OffsetOutOfRangeError`` unless ``offset`` is between log start and log end."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside {self.log_start_offset} to {self.log_end_offset}: "
                "start from `earliest` or `latest`, or from an offset in that range"
            )

    def offset_for_timestamp(
        self, timestamp_ms: TimestampMs, *, end_offset: Offset
    ) -> OffsetAndTimestamp | None:
        """The first record below ``end_offset`` with that timestamp or a later one.

        Raises ``DamagedLogError``, also when the answer may lie in what is damaged.
        """
        for segment in self._segments:
            found = segment.find_timestamp(timestamp_ms, from_offset=self.log_start_offset)
            if found is not None:
                return found if found.offset < end_offset else None
        if self.damage:
            raise DamagedLogError(self.damage)
        return None
