"""Where a follower's log parts from its leader's: both sides' decisions.

A follower says where its log ends and in which epoch its last batch was written. By the log
matching property that pair names one log, so the leader can tell whether it is a prefix of its
own. If it is not, the leader names the largest epoch that both may know and where that ends in its
own log; the follower cuts to the common part and asks again. Each round drops at least one batch,
so it ends. Nothing is ever cut to a high watermark (S01). Source: KIP-101, KIP-279, KIP-595.

Both sides compare leader epochs before they come here: a request of an older one is fenced, an
answer of an older one is dropped (S04, S05). A follower obeys only the answer to the question that
it asked last, and only while its log is as it was when it asked: an old answer would cut what it
has acknowledged since.

Replicas compact their logs each on its own, so two logs with the same history may have it in
batches that begin and end at different offsets. The epochs are not touched by that (no batch spans
two), and so neither are the answers above. A follower that ends inside a batch of its leader's goes
on with what is left of that batch (``record.compaction.tail_of``): it holds the rest of its offsets
in a way of its own. What it may not do is miss a tombstone: see ``must_restart``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from raftlog.types import LeaderEpoch, Offset


class EpochLookup(Protocol):
    """Which epoch wrote what, as ``raftlog.storage.epoch_cache`` knows it."""

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch of the record at ``offset``, -1 when that is not known."""

    def end_of(self, epoch: LeaderEpoch, *, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch that is ≤ ``epoch`` and where it ends; (-1, -1) for none."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """``epoch``, the largest not above the one asked for, ends at ``end_offset`` at the leader."""

    epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The follower has nothing that the leader's log goes on from: begin anew at ``log_start``."""

    log_start: Offset


def last_epoch(epochs: EpochLookup, *, log_end: Offset) -> LeaderEpoch:
    """What a follower sends as ``last_epoch``: that of the batch before its log's end.

    An epoch in which nothing was written does not count, and an empty answer changes nothing
    (S15, S16). -1 for a log that holds nothing and knows of nothing before its start.
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
    """The leader's side. None: the follower's log up to ``fetch_offset`` is a prefix of this one.

    ``epochs``, ``log_end`` and ``log_start`` are the leader's; ``last_epoch`` is that of the batch
    before ``fetch_offset`` in the follower's log, -1 if it has none. A log that is empty cannot
    diverge: it may begin anywhere in the leader's.
    """
    if fetch_offset < log_start:
        return OutOfRange(log_start)
    if last_epoch < 0:
        return None if fetch_offset <= log_end else OutOfRange(log_start)
    epoch, end_offset = epochs.end_of(last_epoch, log_end_offset=log_end)
    if epoch < 0 or end_offset < log_start:
        # All that both could have in common lies before this log's start. "Truncate to 0" would be
        # said by a leader that has lost its epochs (S18): it can say only where its log begins.
        return OutOfRange(log_start)
    if epoch != last_epoch or end_offset < fetch_offset:
        return Diverged(epoch, end_offset)
    return None


def truncation_point(
    epochs: EpochLookup, *, log_end: Offset, log_start: Offset, diverged: Diverged
) -> Offset:
    """The follower's side: the offset to cut its own log to, below ``log_end``.

    At or below ``log_start`` nothing of the log is left: it has to begin anew at that offset, and
    forget its epochs, or it would ask the same again for ever. The caller has seen to it that
    ``diverged`` answers for the log as it is now.
    """
    epoch, end_offset = epochs.end_of(diverged.epoch, log_end_offset=log_end)
    if epoch < 0:
        # Every epoch in this log is larger than the common one.
        return min(diverged.end_offset, log_start)
    return min(diverged.end_offset, end_offset, log_end)


def may_lose_committed(*, last_epoch: LeaderEpoch, unclean_epoch: LeaderEpoch) -> bool:
    """Whether a follower whose last batch is of ``last_epoch`` may cut what is committed.

    Only where an operator has accepted the loss: by an unclean election, in ``unclean_epoch``,
    after everything that this follower holds was written. Committed records that were written
    since then are in every log that may lead.
    """
    return last_epoch < unclean_epoch


def lacks_committed(differs: Diverged | OutOfRange | None, *, high_watermark: Offset) -> bool:
    """The leader's side: whether its own log lacks records that its follower knows are committed.

    ``differs``: its answer to that follower; ``high_watermark``: the follower's. A log that may
    lead holds all that is committed, so a leader of which this is true has lost a part of its log.
    """
    match differs:
        case Diverged(end_offset=end_offset):
            return end_offset < high_watermark
        case OutOfRange(log_start=log_start):
            return log_start < high_watermark
    return False


def must_restart(*, log_end: Offset, copied_below: Offset, removed_below: Offset) -> bool:
    """The follower's side, before it appends what the leader sent: begin with an empty log first?

    ``removed_below``: the offset below which tombstones may be missing from the leader's log
    (``CompactionState.tombstones_removed_below``). ``log_end``: of the follower. ``copied_below``:
    what ``copied_without`` returned, if the follower's log began as an empty copy in this leader
    epoch; else 0.

    A record below ``log_end`` may have been deleted by a tombstone that lies at or above it, and
    that the leader has removed. The follower would never receive that tombstone, and would keep
    the record for ever. So it empties its log, notes durably that tombstones may be missing from it
    below ``copied_without``, and copies everything. No clock is involved. Why that is enough:

    - *Each replica.* Of every key, a log holds the newest record below its end. Or that is a
      tombstone below the log's own offset, and then the log holds no record of the key. A pass of
      compaction keeps this: it raises the offset durably before it removes a tombstone, and it
      removes one only after a complete pass that removed what the tombstone deletes.
    - *A follower that continues.* If it ends at or above the leader's offset, it is sent every
      tombstone from its end on. If its log began as an empty copy of this leader's, and the
      leader's offset is not above ``copied_below``, then the leader held nothing that the missing
      tombstones delete when the copy began, and so neither does the copy.
    - *A change of leader.* Only the new leader's offset counts, also where it is lower. Tombstones
      that the former leader has removed and the new one still has are copied. What the new one
      lacks itself, because its own passes removed it or because it never was sent it, is below its
      own offset. ``copied_below`` does not count any more: the new leader may still hold records
      that the former had removed, and a third one may have removed the tombstones.
    - *A truncation* lowers a log's offset to the new end, because another history follows there.

    Nothing is lost by a restart. A replica compacts only below the high watermark that it knows,
    and every member of the ISR and of the ELR holds everything below any high watermark that a
    broker knows, durably. So members of both end at or above the offset. The follower joins the ISR
    again only with everything up to the high watermark (``Leadership``).
    """
    return removed_below > max(log_end, copied_below)


def copied_without(*, removed_below: Offset, clean_end: Offset) -> Offset:
    """The offset below which a copy that begins now, with an empty log, may lack tombstones.

    Both are the leader's. Below ``clean_end``, it has removed what tombstones delete. The copy will
    not contain that, so it may continue when those tombstones are removed while it is in progress.
    """
    return max(removed_below, clean_end)
