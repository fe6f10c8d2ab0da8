"""Leader state of a partition in one leader epoch: follower progress, high watermark and ISR.

Each epoch has a new ``Leadership``, even for the same broker, so reports of followers from an older
epoch never count (S04). The leader uses the committed state only (S24). A proposal with an unknown
outcome can hold back the high watermark but never advance it.

Source: KIP-497 and section 6.5 of Vanlightly's "Kafka replication protocol" for the maximal ISR and
the rules of joining, KIP-966 for the freeze below ``min_isr``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from raftlog.config.keys import INT64_MAX
from raftlog.replication.election import BrokerView
from raftlog.replication.partition_state import (
    BrokerId,
    ChangeIsr,
    DirectoryId,
    PartitionState,
    in_order,
)
from raftlog.types import LeaderEpoch, Offset

UNKNOWN: Final[Offset] = -1  # progress of a follower that has not fetched in this epoch


class FollowerProgress(NamedTuple):
    """Progress of one follower. Offsets are -1 before its first fetch in this epoch."""

    end: Offset
    durable_end: Offset
    lag_s: float  # seconds since it was last caught up; 0 if it is caught up
    in_isr: bool


@dataclass(slots=True)
class _Follower:
    """Reports of one replica in this epoch, for one data directory and one incarnation."""

    caught_up_at: float  # monotonic seconds; when it last had all records of the leader
    mark_at: float  # monotonic seconds; time at which the leader's log ended at ``mark_end``
    mark_end: Offset  # when the follower reaches it, it was caught up at ``mark_at``
    directory_id: DirectoryId | None = None
    boot: int = 0
    has_lost: bool = False  # it has less than it acknowledged in an earlier incarnation
    end: Offset = UNKNOWN
    durable_end: Offset = UNKNOWN
    told_end: Offset = UNKNOWN  # end offset in its last fetch
    told_at: float = -math.inf  # monotonic seconds; time of its last fetch
    log_start: Offset = UNKNOWN  # durable log start offset
    left_at: Offset = UNKNOWN  # leader's log end when the follower last left the ISR


class Leadership:
    """Leader state of one broker in one epoch. ``now`` is in monotonic seconds."""

    __slots__ = (
        "_followers",
        "_is_doubtful",
        "_lag_max_s",
        "_may_try_again",
        "_own",
        "_pending",
        "_start_at_first",
        "advanced_by",
        "broker_id",
        "committed_start",
        "durable_end",
        "epoch_start",
        "high_watermark",
        "leader_epoch",
        "log_end",
        "log_start",
        "refused",
        "state",
    )

    def __init__(
        self,
        state: PartitionState,
        broker_id: BrokerId,
        *,
        epoch_start: Offset,
        high_watermark: Offset,
        log_end: Offset,
        durable_end: Offset,
        now: float,
        lag_max_s: float,
        log_start: Offset = 0,
    ) -> None:
        """``epoch_start``: leader's log end when this epoch started.

        ``high_watermark``: last known value, as a follower or from the checkpoint.
        ``lag_max_s``: seconds; a member that is not caught up for longer leaves the ISR.
        ``log_start``: durable log start offset.
        """
        assert state.leader == broker_id and broker_id in state.isr
        assert 0 <= epoch_start <= log_end and durable_end <= log_end
        self.state = state
        self.broker_id = broker_id
        self.leader_epoch: LeaderEpoch = state.leader_epoch
        self.epoch_start = epoch_start
        self.log_end = log_end
        self.durable_end = durable_end
        self.high_watermark = min(high_watermark, log_end)  # monotonic
        self.advanced_by = broker_id  # whose durable end advanced it last
        self.log_start = self._start_at_first = log_start
        self.committed_start: Offset = UNKNOWN  # lower bound of the log starts of all members
        self.refused = 0  # number of fetches with impossible offsets
        self._lag_max_s = lag_max_s
        self._pending: ChangeIsr | None = None  # proposal for the current state version
        self._is_doubtful = False  # one attempt of the proposal has an unknown outcome
        self._may_try_again = False
        self._followers: dict[BrokerId, _Follower] = {}
        self._own = _Follower(now, now, UNKNOWN)  # lag behind the others in the ISR: ``trails_s``
        self._track_replicas(now)
        self._advance()

    # -- committed offsets -------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """True if all records that earlier leaders can have returned are known to be committed."""
        # guard: end offsets wait for the epoch's start
        return self.high_watermark >= self.epoch_start

    @property
    def has_quorum(self) -> bool:
        """True if records can be committed; False freezes the high watermark.

        A higher ``min_isr`` applies from its proposal, a lower one from its commit.
        """
        proposed = self.state.min_isr if self._pending is None else self._pending.min_isr
        # guard: a lower min_isr counts once it is committed
        # guard: a higher min_isr counts when it is proposed
        return len(self.state.isr) >= max(self.state.min_isr, proposed)

    def maximal_isr(self) -> Set[tuple[BrokerId, DirectoryId]]:
        """Return the committed ISR and all proposed additions that are not decided (KIP-497).

        A proposed follower may already be in the ISR and be elected, so records that it lacks must
        not be committed. For the same reason, a proposed removal does not count before its commit.
        """
        # guard: a proposed removal does not count yet
        members = self.state.isr.items()
        # guard: commits wait for the maximal ISR
        return members if self._pending is None else members | self._pending.isr.items()

    def _advance(self) -> bool:
        """Move the high watermark to the least durable end over the maximal ISR, and the committed
        start to the least durable start.

        Both have the same invariant: every member of the ISR and of the ELR durably has the high
        watermark and the log start that any leader has committed. Therefore no later leader's log
        starts below a reported start.
        """
        # guard: below min_isr nothing is committed
        if not self.has_quorum:
            return False
        committed = start = INT64_MAX
        for broker_id, directory_id in self.maximal_isr():
            if broker_id == self.broker_id:
                # guard: the leader's own disk counts
                end, log_start = self.durable_end, self.log_start
            else:
                copy = self._copy(broker_id, directory_id)
                if copy is None:
                    return False  # it has not fetched in this epoch
                # guard: a start is committed by all of the ISR
                # guard: commits wait for the followers
                end, log_start = copy.durable_end, copy.log_start
            committed, start = min(committed, end), min(start, log_start)
        self.committed_start = max(self.committed_start, start)
        # guard: the high watermark never decreases
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _advance_by(self, broker_id: BrokerId) -> bool:
        """``_advance`` by the progress of this broker."""
        if not self._advance():
            return False
        self.advanced_by = broker_id
        return True

    def _copy(self, broker_id: BrokerId, directory_id: DirectoryId) -> _Follower | None:
        """Return the progress of a copy; None for another directory of the broker (S10, S20)."""
        follower = self._followers.get(broker_id)
        # guard: another disk of a member does not count
        if follower is None or follower.directory_id != directory_id:
            return None
        return follower

    # -- events ------------------------------------------------------------------------------------

    def on_state(self, state: PartitionState, now: float) -> None:
        """Apply a newer committed state of this epoch. Ignores known versions."""
        # guard: old states change nothing
        if state.version <= self.state.version:
            return
        # guard: states of another epoch do not count
        assert state.leader_epoch == self.leader_epoch and state.leader == self.broker_id
        joined = state.isr.keys() - self.state.isr.keys()
        left = self.state.isr.keys() - state.isr.keys()
        self.state = state
        self._end_proposal()  # it was for an older version: it was applied, or never will be
        self._track_replicas(now)
        for broker_id in joined & self._followers.keys():
            self._followers[broker_id].caught_up_at = now
        for broker_id in left & self._followers.keys():
            self._followers[broker_id].left_at = self.log_end
        self._advance()

    def on_local(self, *, log_end: Offset, durable_end: Offset) -> bool:
        """Apply the leader's own log end and durable end. Return whether the watermark advanced."""
        assert log_end >= self.log_end and durable_end <= log_end, "a leader's log shrank"
        self.log_end = log_end
        if durable_end <= self.durable_end:
            return False
        self.durable_end = durable_end
        return self._advance_by(self.broker_id)

    def on_local_start(self, log_start: Offset) -> None:
        """Apply the leader's own durable log start."""
        self.log_start = max(self.log_start, log_start)
        self._advance()

    def on_fetch(
        self,
        follower: BrokerId,
        directory_id: DirectoryId,
        *,
        boot: int = 0,
        fetch_offset: Offset,
        durable_offset: Offset,
        now: float,
        log_start: Offset = 0,
    ) -> bool:
        """Apply a fetch of a follower. Return whether the high watermark advanced.

        ``fetch_offset``: end of its log. ``durable_offset``: its durable end offset. ``log_start``:
        its durable log start. The caller must have rejected other leader epochs and checked
        ``divergence``, so the offsets refer to a prefix of this leader's log. Late and repeated
        fetches are harmless, because durable records stay durable within an epoch and an
        incarnation (``boot``). A new incarnation starts with the content of its disk; reports of
        the previous one do not count.

        Ignores fetches of brokers that are not replicas and of older incarnations. Also ignores
        fetches with offsets above the leader's log end, and counts them in ``refused``. If a
        follower has restarted from an empty log, its earlier progress still counts; that progress
        was below the high watermark, so it does not advance it.
        """
        # guard: a follower cannot be ahead of its leader
        if not 0 <= durable_offset <= fetch_offset <= self.log_end:
            self.refused += 1
            return False
        progress = self._followers.get(follower)
        if progress is None:
            return False
        if progress.directory_id == directory_id and boot < progress.boot:
            return False
        # guard: a new incarnation of a follower starts with an empty state
        # guard: a new disk starts with an empty state
        if progress.directory_id not in {None, directory_id} or boot != progress.boot:
            has_lost = progress.directory_id == directory_id and (
                progress.has_lost or durable_offset < progress.durable_end
            )
            progress = self._followers[follower] = _Follower(
                now, now, self.log_end, boot=boot, has_lost=has_lost
            )
        progress.directory_id = directory_id
        progress.end = max(progress.end, fetch_offset)
        progress.told_end, progress.told_at = fetch_offset, now
        # Always true for the first fetch of a copy: the offsets of a new one are UNKNOWN.
        has_more = durable_offset > progress.durable_end or log_start > progress.log_start
        # guard: durable progress never decreases
        # guard: followers' disks count
        progress.durable_end = max(progress.durable_end, durable_offset)
        progress.log_start = max(progress.log_start, log_start)
        self._note_caught_up(progress, now)
        return has_more and self._advance_by(follower)

    def has_lost(self, follower: BrokerId) -> bool:
        """Return whether a member of the ISR has lost acknowledged records.

        This is the case if it has less than in an earlier incarnation, or less than is committed.
        The highest durable offset reported in this epoch counts, so late fetches have no effect.
        """
        progress, directory_id = self._followers.get(follower), self.state.isr.get(follower)
        if progress is None or directory_id is None or progress.directory_id != directory_id:
            return False
        # guard: a member of the ISR that lacks committed records leaves
        return progress.has_lost or progress.durable_end < self.high_watermark

    def _track_replicas(self, now: float) -> None:
        replicas = set(self.state.replicas) - {self.broker_id}
        for gone in self._followers.keys() - replicas:
            del self._followers[gone]
        for new in replicas - self._followers.keys():
            self._followers[new] = _Follower(now, now, self.log_end)

    def _note_caught_up(self, follower: _Follower, now: float) -> None:
        """Update the last caught-up time (KIP-16) by durable offsets: a hung disk is lag (S36)."""
        if follower.durable_end >= self.log_end:
            follower.caught_up_at = now
        elif follower.durable_end >= follower.mark_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.mark_at)
        else:
            return
        follower.mark_at, follower.mark_end = now, self.log_end

    def trails_s(self, now: float) -> float:
        """Return for how many seconds this leader's disk lags all other members of the ISR.

        0 if another member has synced less than this leader, or if there is no other member. As for
        followers, it is the time since the leader was last caught up with them, so a slightly
        slower disk does not accumulate lag.
        """
        others = [
            self._copy(*member) for member in self.state.isr.items() if member[0] != self.broker_id
        ]
        ends = [UNKNOWN if copy is None else copy.durable_end for copy in others]
        end = min(ends, default=UNKNOWN)
        own = self._own
        if self.durable_end >= end:
            own.caught_up_at = now
        elif self.durable_end >= own.mark_end:
            own.caught_up_at = max(own.caught_up_at, own.mark_at)
        else:
            return now - own.caught_up_at
        own.mark_at, own.mark_end = now, end
        return now - own.caught_up_at

    # -- the ISR -----------------------------------------------------------------------------------

    def isr_change(
        self,
        now: float,
        view: BrokerView,
        *,
        min_isr: int,
        may_propose: Callable[[], bool],
    ) -> ChangeIsr | None:
        """Return the ISR change to propose, or None. The change is in flight from then on.

        A change with an unknown outcome is proposed again without modification. The group applies
        one attempt and rejects the others, and the newer state version settles all of them.

        ``min_isr``: value of the topic's settings. A member that has lost acknowledged
        records leaves immediately, and the epoch increases. ``may_propose``: called only if there
        is a change. A leader that can send but not receive must not remove all followers from the
        ISR, because it would then be the only eligible leader. After a restart, a follower must
        fetch before it can join.
        """
        if self._pending is not None:
            if not self._may_try_again or not may_propose():
                return None
            self._may_try_again = False
            return self._pending
        state = self.state
        isr = {
            broker: directory
            for broker, directory in state.isr.items()
            if broker == self.broker_id or not self._has_to_leave(broker, directory, now, view)
        }
        for broker, follower in self._followers.items():
            directory = view.directory_of(broker)
            # guard: failed brokers do not join
            if state.isr.get(broker) == directory or not view.is_live(broker):
                continue
            # guard: joining is by reports of this incarnation
            is_its_word = view.boot_of(broker) in {None, follower.boot}
            if directory is not None and is_its_word and self._may_join(follower, directory):
                isr[broker] = directory
        # These members must not become eligible by earlier acknowledgements.
        # guard: a member that has lost what it acknowledged leaves
        lost = tuple(broker for broker in sorted(state.isr) if self.has_lost(broker))
        isr = {broker: directory for broker, directory in isr.items() if broker not in lost}
        min_isr = max(min_isr, 1)
        if (isr == state.isr and min_isr == state.min_isr) or not may_propose():
            return None
        self._pending = ChangeIsr(state.version, self.leader_epoch, in_order(isr), min_isr, lost)
        return self._pending

    def _has_to_leave(
        self, broker_id: BrokerId, directory_id: DirectoryId, now: float, view: BrokerView
    ) -> bool:
        """Return whether a member failed, has another disk, or lags longer than ``lag_max_s``."""
        follower = self._followers.get(broker_id)
        # guard: members that lag leave
        # guard: members on another disk leave
        # guard: failed brokers leave
        return (
            follower is None
            or not view.is_live(broker_id)
            or view.directory_of(broker_id) != directory_id
            or follower.directory_id not in {None, directory_id}
            or self._lag_s(follower, now) > self._lag_max_s
        )

    def _may_join(self, follower: _Follower, directory_id: DirectoryId) -> bool:
        """Return whether a follower has all possibly committed records on its registered disk.

        It must reach the epoch start, because the initial watermark of a new leader can be lower
        than that of its predecessor (S06). For the same reason, its log must not start below the
        leader's initial log start, which a predecessor may have reported.

        A former member must reach the leader's log end at the time when it left. Otherwise, two
        members that hold the watermark back would take turns in leaving and rejoining.
        """
        # guard: joining requires the start of the log
        # guard: a member that left must reach the leader's end of that time
        # guard: joining is by the disk that is registered
        # guard: joining requires the high watermark
        # guard: joining requires the start of the epoch
        return (
            follower.directory_id == directory_id
            and follower.durable_end >= max(self.high_watermark, self.epoch_start)
            and follower.durable_end >= follower.left_at
            and follower.log_start >= max(self.committed_start, self._start_at_first)
        )

    def proposal_done(self, change: ChangeIsr, accepted: bool | None) -> None:
        """Apply the outcome of ``change``. Ignores changes that are already settled.

        ``accepted``: False if the change never has an effect (rejected on its only attempt, or
        never proposed). After True or None (unknown), it stays in flight until ``on_state`` applies
        a newer version. The same applies to a change with an unknown attempt: its second attempt
        can be rejected because the first was accepted.
        """
        # guard: outcomes are of the proposal that is pending
        if change != self._pending:
            return
        if accepted is None:
            self._is_doubtful = True
        # guard: an unknown outcome is no rejection
        # guard: a proposal with unknown outcome stays pending
        if accepted is False and not self._is_doubtful:
            self._end_proposal()
            self._advance()
        elif not accepted:
            self._may_try_again = True

    def _end_proposal(self) -> None:
        self._pending, self._is_doubtful, self._may_try_again = None, False, False

    # -- compaction --------------------------------------------------------------------------------

    def slowest_copy(self, now: float) -> Offset:
        """Return the lowest log end of the followers that have fetched within ``lag_max_s``.

        Without such followers, it is above every offset. It affects progress only, not safety: a
        follower that lacks tombstones restarts its copy (``leadership.must_restart``). A follower
        that copies more slowly than the leader compacts would otherwise restart repeatedly.
        """
        ends = [f.told_end for f in self._followers.values() if now - f.told_at <= self._lag_max_s]
        return min(ends, default=INT64_MAX)

    # -- status ------------------------------------------------------------------------------------

    def followers(self, now: float) -> Mapping[BrokerId, FollowerProgress]:
        """Return the progress of all other replicas."""
        found: dict[BrokerId, FollowerProgress] = {}
        for broker, follower in sorted(self._followers.items()):
            in_isr = broker in self.state.isr and follower.directory_id in {
                None,
                self.state.isr[broker],
            }
            # Outside the ISR, the follower may have restarted from an empty log.
            end = follower.end if in_isr else follower.told_end
            found[broker] = FollowerProgress(
                end, min(follower.durable_end, end), self._lag_s(follower, now), in_isr
            )
        return found

    def _lag_s(self, follower: _Follower, now: float) -> float:
        """Return the lag in seconds. A caught-up follower does not have to fetch repeatedly."""
        self._note_caught_up(follower, now)
        return max(0.0, now - follower.caught_up_at)


# -- following -------------------------------------------------------------------------------------
#
# Divergence of a follower's log from the leader's log: the decisions of both sides.
#
# A follower sends the end offset of its log and the epoch of its last batch. By the log matching
# property, this pair identifies one log, so the leader can check whether it is a prefix of its log.
# If it is not, the leader returns the largest epoch that both can have, with the end of that epoch
# in the leader's log. The follower truncates its log to the common part and fetches again. Each
# round removes at least one batch, so it terminates. A log is never truncated to a high watermark
# (S01). Source: KIP-101, KIP-279, KIP-595.
#
# Both sides compare leader epochs first: requests of an older epoch are fenced, and responses of an
# older epoch are ignored (S04, S05). A follower applies only the response to its last request, and
# only if its log has not changed since the request. An old response would truncate records that it
# has acknowledged since.
#
# Replicas compact their logs independently, so batches of the same history can have different
# boundaries. Epochs are not affected, because no batch spans two epochs; the rules above therefore
# still hold. A follower whose log ends inside a batch of the leader continues with the rest of that
# batch (``record.compaction.tail_of``); it already stores the earlier offsets, in other batches. It
# must not miss a tombstone: see ``must_restart``.


class EpochLookup(Protocol):
    """Epochs of the records of a log, as in ``raftlog.storage.segment``."""

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
    # guard: a follower below the leader's start restarts from an empty log
    if fetch_offset < log_start:
        return OutOfRange(log_start)
    if last_epoch < 0:
        # guard: an empty log beyond the leader's end
        return None if fetch_offset <= log_end else OutOfRange(log_start)
    epoch, end_offset = epochs.end_of(last_epoch, log_end_offset=log_end)
    # guard: a leader without epochs reports its log start
    if epoch < 0 or end_offset < log_start:
        # A common part can only be below this log's start. A leader that has lost its epochs must
        # not return "truncate to 0" (S18), so it returns its log start.
        return OutOfRange(log_start)
    # guard: an epoch that ended earlier at the leader
    # guard: an epoch that the leader does not know
    # guard: a leader finds where logs part
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
        # guard: a follower without a common epoch restarts from an empty log
        return min(diverged.end_offset, log_start)
    # guard: a follower truncates to the end of the leader's epoch
    # guard: a follower truncates to the end of its epoch
    return min(diverged.end_offset, end_offset, log_end)


def may_lose_committed(*, last_epoch: LeaderEpoch, unclean_epoch: LeaderEpoch) -> bool:
    """Return whether a follower with ``last_epoch`` is allowed to truncate committed records.

    This is allowed only if an operator has accepted the loss with an unclean election in
    ``unclean_epoch``, after all records of this follower were written. Every eligible leader has
    the committed records that were written later.
    """
    # guard: the loss that an operator accepts is of older epochs
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
