"""Divergence of a follower's log from the leader's log: the decisions of both sides.

A follower sends the end offset of its log and the epoch of its last batch. By the log matching
property, this pair identifies one log, so the leader can check whether it is a prefix of its log.
If it is not, the leader returns the largest epoch that both can have, with the end of that epoch in
the leader's log. The follower truncates its log to the common part and fetches again. Each round
removes at least one batch, so it terminates. A log is never truncated to a high watermark (S01).
Source: KIP-101, KIP-279, KIP-595.

Both sides compare leader epochs first: requests of an older epoch are fenced, and responses of an
older epoch are ignored (S04, S05). A follower applies only the response to its last request, and
only if its log has not changed since the request. An old response would truncate records that it
has acknowledged since.

Replicas compact their logs independently, so batches of the same history can have different
boundaries. Epochs are not affected, because no batch spans two epochs; the rules above therefore
still hold. A follower whose log ends inside a batch of the leader continues with the rest of that
batch (``record.compaction.tail_of``); it already stores the earlier offsets, in other batches. It
must not miss a tombstone: see ``must_restart``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from raftlog.types import LeaderEpoch, Offset


class EpochLookup(Protocol):
    """Epochs of the records of a log, as in ``raftlog.storage.epoch_cache``."""

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch of the record at ``offset``, or -1 if it is unknown."""

    def end_of(self, epoch: LeaderEpoch, *, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch ≤ ``epoch`` and its end offset; (-1, -1) if none."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader's largest epoch not above the requested one, and its end in the leader's log."""

    epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """No common part: the follower must restart from an empty log at ``log_start``."""

    log_start: Offset


def last_epoch(epochs: EpochLookup, *, log_end: Offset) -> LeaderEpoch:
    """Return the epoch of the last batch of a follower's log, which it sends as ``last_epoch``.

    Epochs without records do not count, and an empty response changes nothing (S15, S16). -1 if
    the log is empty and the epoch before its start is unknown.
    """
    return epochs.epoch_at(log_end - 1)


def divergence(
    epochs: EpochLookup,
    *,
    log_end: Offset,
    log_start: Offset,
    last_epoch: LeaderEpoch,
    fetch_offset: Offset,
) -> Diverged | OutOfRange | None:
    """Compare a follower's log with the leader's. None: it is a prefix up to ``fetch_offset``.

    Called by the leader. ``epochs``, ``log_end``, ``log_start``: of the leader's log.
    ``last_epoch``: epoch of the batch before ``fetch_offset`` in the follower's log, or -1. An
    empty log cannot diverge: it can start at any offset of the leader's log.
    """
    if fetch_offset < log_start:
        return OutOfRange(log_start)
    if last_epoch < 0:
        return None if fetch_offset <= log_end else OutOfRange(log_start)
    epoch, end_offset = epochs.end_of(last_epoch, log_end_offset=log_end)
    if epoch < 0 or end_offset < log_start:
        # A common part can only be below this log's start. A leader that has lost its epochs must
        # not return "truncate to 0" (S18), so it returns its log start.
        return OutOfRange(log_start)
    if epoch != last_epoch or end_offset < fetch_offset:
        return Diverged(epoch, end_offset)
    return None


def truncation_point(
    epochs: EpochLookup, *, log_end: Offset, log_start: Offset, diverged: Diverged
) -> Offset:
    """Return the offset to which the follower must truncate its log, at most ``log_end``.

    Called by the follower. If the offset is at or below ``log_start``, no record remains. The
    follower must then restart from an empty log at that offset and delete its epochs; otherwise it
    would repeat the same request indefinitely. ``diverged`` must be the response to a request for
    the current log.
    """
    epoch, end_offset = epochs.end_of(diverged.epoch, log_end_offset=log_end)
    if epoch < 0:
        # Every epoch in this log is larger than the common one.
        return min(diverged.end_offset, log_start)
    return min(diverged.end_offset, end_offset, log_end)


def may_lose_committed(*, last_epoch: LeaderEpoch, unclean_epoch: LeaderEpoch) -> bool:
    """Return whether a follower with ``last_epoch`` is allowed to truncate committed records.

    This is allowed only if an operator has accepted the loss with an unclean election in
    ``unclean_epoch``, after all records of this follower were written. Every eligible leader has
    the committed records that were written later.
    """
    return last_epoch < unclean_epoch


def lacks_committed(differs: Diverged | OutOfRange, *, high_watermark: Offset) -> bool:
    """Return whether the leader's log lacks records that the follower knows to be committed.

    ``differs``: the leader's response to the follower. ``high_watermark``: of the follower. An
    eligible leader has all committed records, so such a leader has lost a part of its log.
    """
    end = differs.end_offset if isinstance(differs, Diverged) else differs.log_start
    return end < high_watermark


def must_restart(*, log_end: Offset, copied_below: Offset, removed_below: Offset) -> bool:
    """Return whether a follower must restart from an empty log before it appends fetched batches.

    ``removed_below``: the offset below which tombstones may be missing from the leader's log
    (``CompactionState.tombstones_removed_below``). ``log_end``: of the follower. ``copied_below``:
    result of ``copied_without`` if the follower's log started as an empty copy in this leader
    epoch; else 0.

    A tombstone at or above ``log_end`` that the leader has removed may have deleted a record below
    ``log_end``. The follower would never receive that tombstone and would keep the record
    permanently. It therefore empties its log, notes durably that tombstones may be missing below
    ``copied_without``, and copies all records. No clock is involved. This is sufficient because of:

    - *Each replica.* A log stores the newest record below its end of every key, unless that record
      is a tombstone below the log's own offset; then the log stores no record of the key.
      Compaction preserves this: a pass raises the offset durably before it removes a tombstone, and
      removes one only after a complete pass has removed the records that the tombstone deletes.
    - *A follower that continues.* If its log ends at or above the leader's offset, it receives
      every tombstone from its end on. If its log started as an empty copy of this leader's log, and
      the leader's offset is at most ``copied_below``, then the leader stored no record that the
      missing tombstones delete when the copy started. Therefore the copy does not store one either.
    - *A change of leader.* Only the new leader's offset counts, even if it is lower. The follower
      copies tombstones that the former leader has removed and the new leader still stores.
      Tombstones that the new leader lacks, because it removed them or never received them, are
      below its own offset. ``copied_below`` no longer counts: the new leader may still store
      records that the former leader had removed, and a third one may have removed the tombstones.
    - *A truncation* lowers a log's offset to the new end, because other records follow there.

    A restart loses no committed record. A replica compacts only below its known high watermark.
    Every member of the ISR and of the ELR durably stores all records below every high watermark
    that a broker knows, so their logs end at or above the offset. The follower rejoins the ISR only
    with all records up to the high watermark (``Leadership``).
    """
    return removed_below > max(log_end, copied_below)


def copied_without(*, removed_below: Offset, clean_end: Offset) -> Offset:
    """Return the offset below which a copy that starts now from an empty log may lack tombstones.

    ``removed_below``, ``clean_end``: of the leader. Below ``clean_end``, the leader has removed the
    records that tombstones delete. The copy does not get these records, so it can continue if the
    leader removes those tombstones during the copy.
    """
    return max(removed_below, clean_end)
