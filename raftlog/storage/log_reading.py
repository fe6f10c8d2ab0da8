"""State of a log and reads: offsets, batches, timestamps, epochs, hash-chain values.

The base class of ``Log``. This module does not write, sync or delete.
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
    """State of a log, and all queries that do not change it."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        self.directory = directory
        self.config = config
        self.damage = opened.damage  # description of the corruption; "" if there is none
        # True if the corruption may be a torn write, which was never acknowledged. It may be
        # truncated then.
        self.is_torn = opened.is_torn
        # Why acknowledged records may be missing although no batch is corrupt; "" if none can be.
        self.doubt = ""
        self.notes: Sequence[str] = opened.notes  # actions of recovery, for the log
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.log_start_offset: Offset = opened.log_start_offset
        self.log_end_offset: Offset = opened.log_end_offset
        self.durable_end_offset: Offset = opened.log_end_offset
        self.durable_start_offset: Offset = opened.log_start_offset  # no crash reverts it
        # End of reads in a corrupt log; None: the log end.
        self._readable_end = opened.readable_end_offset if opened.damage else None
        self._disk = disk
        self._files = opened.files
        self._checkpoint = opened.checkpoint
        self._segments = SegmentList(opened.segments)
        # Predecessor of the first remaining batch, if known.
        self._anchor = opened.checkpoint.latest.anchor
        self._high_watermark = opened.checkpoint.latest.high_watermark  # saved with every sync

    # -- state -------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Newest epoch that the log has seen, or -1."""
        return self.epochs.latest

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Epoch of the last batch, even if that batch was deleted; -1 if unknown.

        A follower sends it in its fetch requests. It does not send ``leader_epoch``, because an
        epoch without batches does not describe the contents of the log (KAFKA-15510).
        """
        return self._anchor_of_next.leader_epoch

    @property
    def chain(self) -> int:
        """Hash-chain value of the last batch, even if that batch was deleted; 0 if unknown, or if
        the log never had a batch."""
        return self._anchor_of_next.chain

    @property
    def high_watermark(self) -> Offset:
        """Highest offset passed to ``note_high_watermark``, including calls before the last start.

        After a power failure it can be old. It is never above the log end.
        """
        return self._bounded(self._high_watermark)

    @property
    def acknowledged_end_offset(self) -> Offset:
        """End of the records that may be acknowledged: the durable end offset, or the log end with
        ``flush.policy=os``."""
        return self.log_end_offset if self.config.flush_policy == "os" else self.durable_end_offset

    @property
    def readable_end_offset(self) -> Offset:
        """End of the readable records: the start of the corruption, or the log end."""
        return self.log_end_offset if self._readable_end is None else self._readable_end

    def chain_at(self, offset: Offset) -> int | None:
        """Return the hash-chain value of the last batch that ends at or below ``offset``.

        If two replicas have the same value at an offset, they hold the same log up to it, whether
        or not either of them has compacted it. Returns None if the value is unknown, which is the
        case inside a compacted batch: the batches that ended there were merged.

        ``offset``: between log start and log end. Reads a few headers. Raises
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
        """Return the hash-chain value before the batch at ``base``; None if unknown."""
        if base > self._segments[0].base_offset:
            return self._segments.batch_before(base).chain
        return self._anchor.chain if self._anchor.is_known_at(base) else None

    @property
    def _anchor_of_next(self) -> Anchor:
        """Predecessor of the next batch."""
        if self._segments:
            return self._segments[-1].anchor
        if self._anchor.offset == self.log_end_offset:
            return self._anchor
        return Anchor(self.log_end_offset)

    @property
    def _known_chain(self) -> int | None:
        """Like ``chain``, but None if unknown."""
        anchor = self._anchor_of_next
        return anchor.chain if anchor.is_known_at(self.log_end_offset) else None

    def _bounded(self, offset: Offset) -> Offset:
        return min(max(offset, self.log_start_offset), self.log_end_offset)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, end_offset: Offset, bytes_max: int) -> list[bytes]:
        """Return complete batches from the one that contains ``start_offset``, up to
        ``end_offset`` (exclusive).

        ``bytes_max``: maximum size in bytes; at least one batch is returned if there is one. The
        first batch may start below ``start_offset``. Does not verify checksums, see ``verify``.
        Raises ``OffsetOutOfRangeError`` and ``DamagedLogError``.
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
                f"offset {offset} is outside {self.log_start_offset} to {self.log_end_offset}. "
                "Start from `earliest` or `latest`, or from an offset in this range"
            )

    def offset_for_timestamp(
        self, timestamp_ms: TimestampMs, *, end_offset: Offset
    ) -> OffsetAndTimestamp | None:
        """Return the first record below ``end_offset`` with a timestamp of at least
        ``timestamp_ms``, or None.

        Raises ``DamagedLogError``, also if that record may be in the corrupt part of the log.
        """
        for segment in self._segments:
            found = segment.find_timestamp(timestamp_ms, from_offset=self.log_start_offset)
            if found is not None:
                return found if found.offset < end_offset else None
        if self.damage:
            raise DamagedLogError(self.damage)
        return None
