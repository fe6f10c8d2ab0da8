"""What a partition's leader knows in one leader epoch: followers, the high watermark, the ISR.

A new epoch means a new ``Leadership``, even for the same broker, so nothing that a follower said
in an older one can count (S04). The leader acts on the committed state only (S24); what it has
proposed and does not know the outcome of may only hold the high watermark back, never move it.

Source: KIP-497 and section 6.5 of Vanlightly's "Kafka replication protocol" for the maximal ISR and
the rules of joining, KIP-966 for the freeze below ``min_isr``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftlog.config.keys import INT64_MAX
from raftlog.replication.commands import BrokerId, ChangeIsr, DirectoryId, in_order
from raftlog.replication.partition_state import PartitionState
from raftlog.types import LeaderEpoch, Offset

UNKNOWN: Final[Offset] = -1  # how far a follower is that has not fetched in this epoch

IsLive = Callable[[BrokerId], bool]
DirectoryOf = Callable[[BrokerId], DirectoryId | None]
BootOf = Callable[[BrokerId], int | None]


class FollowerProgress(NamedTuple):
    """One follower, for ``describe``. Offsets are -1 before its first fetch in this epoch."""

    end: Offset
    durable_end: Offset
    lag_s: float  # for how long it has lacked something; 0 while it has everything
    in_isr: bool


@dataclass(slots=True)
class _Follower:
    """What one replica has said in this epoch, about one directory, in one run of its process."""

    caught_up_at: float  # when it last had all that the leader had at that moment
    mark_at: float  # a moment, and where the leader's log ended then: once the follower has that
    mark_end: Offset  # much it was caught up at that moment
    directory_id: DirectoryId | None = None
    boot: int = 0
    has_lost: bool = False  # it holds less than it had acknowledged in an earlier run
    end: Offset = UNKNOWN
    durable_end: Offset = UNKNOWN
    told_end: Offset = UNKNOWN  # by its last fetch
    told_at: float = -math.inf  # when that was
    log_start: Offset = UNKNOWN  # durably
    left_at: Offset = UNKNOWN  # where the leader's log ended when it last left the ISR


class Leadership:
    """One broker's, in one epoch. Events in, decisions out; ``now`` is monotonic seconds."""

    __slots__ = (
        "_followers",
        "_is_doubtful",
        "_lag_max_s",
        "_may_try_again",
        "_own",
        "_pending",
        "_start_at_first",
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
        """``epoch_start``: where the leader's log ended when it took this epoch.

        ``high_watermark``: the last one it knew, as a follower or from its checkpoint.
        ``lag_max_s``: a member that has lacked something for longer leaves the ISR.
        ``log_start``: where its log starts, durably.
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
        self.log_start = self._start_at_first = log_start
        self.committed_start: Offset = UNKNOWN  # every member's log starts there or above
        self.refused = 0  # fetches that claimed what cannot be: worth a warning and a metric
        self._lag_max_s = lag_max_s
        self._pending: ChangeIsr | None = None  # proposed for this very version of the state
        self._is_doubtful = False  # the outcome of one try of it is not known
        self._may_try_again = False
        self._followers: dict[BrokerId, _Follower] = {}
        self._own = _Follower(now, now, UNKNOWN)  # of the others in the ISR: see ``trails_s``
        self._track_replicas(now)
        self._advance()

    # -- what is committed -------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether all that earlier leaders may have shown to clients is known to be committed."""
        return self.high_watermark >= self.epoch_start

    @property
    def has_quorum(self) -> bool:
        """Whether anything can be committed: false freezes the high watermark.

        A higher ``min_isr`` counts as soon as it is proposed, a lower one once it is committed.
        """
        proposed = self.state.min_isr if self._pending is None else self._pending.min_isr
        return len(self.state.isr) >= max(self.state.min_isr, proposed)

    def maximal_isr(self) -> set[tuple[BrokerId, DirectoryId]]:
        """The committed ISR and every proposed addition that is not decided yet (KIP-497).

        A follower may be in the ISR for all the leader knows, and be elected from it: what it lacks
        must not be committed. For the same reason a proposed removal does not count yet.
        """
        members = set(self.state.isr.items())
        if self._pending is not None:
            members.update(self._pending.isr.items())
        return members

    def _advance(self) -> bool:
        """Move the high watermark to the least durable end over the maximal ISR, and the committed
        start to the least durable start.

        What is true of one is true of the other: every member of the ISR and of the ELR has,
        durably, what any leader has committed. So no leader's log starts below a start that was
        told.
        """
        if not self.has_quorum:
            return False
        start = min(self._log_start_of(*member) for member in self.maximal_isr())
        self.committed_start = max(self.committed_start, start)
        committed = min(self._durable_end_of(*member) for member in self.maximal_isr())
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _durable_end_of(self, broker_id: BrokerId, directory_id: DirectoryId) -> Offset:
        if broker_id == self.broker_id:
            return self.durable_end
        follower = self._copy(broker_id, directory_id)
        return UNKNOWN if follower is None else follower.durable_end

    def _copy(self, broker_id: BrokerId, directory_id: DirectoryId) -> _Follower | None:
        """Another directory of the same broker is another copy: it does not count (S10, S20)."""
        follower = self._followers.get(broker_id)
        if follower is None or follower.directory_id != directory_id:
            return None
        return follower

    def _log_start_of(self, broker_id: BrokerId, directory_id: DirectoryId) -> Offset:
        if broker_id == self.broker_id:
            return self.log_start
        follower = self._copy(broker_id, directory_id)
        return UNKNOWN if follower is None else follower.log_start

    # -- events ------------------------------------------------------------------------------------

    def on_state(self, state: PartitionState, now: float) -> None:
        """A newer committed state of this epoch; one that is known already changes nothing."""
        if state.version <= self.state.version:
            return
        assert state.leader_epoch == self.leader_epoch and state.leader == self.broker_id
        joined = state.isr.keys() - self.state.isr.keys()
        left = self.state.isr.keys() - state.isr.keys()
        self.state = state
        self._settle()  # made for an older version: applied by now, or never
        self._track_replicas(now)
        for broker_id in joined & self._followers.keys():
            self._followers[broker_id].caught_up_at = now
        for broker_id in left & self._followers.keys():
            self._followers[broker_id].left_at = self.log_end
        self._advance()

    def on_local(self, *, log_end: Offset, durable_end: Offset) -> bool:
        """The leader's own log has grown, or more of it is durable. True: the watermark moved."""
        assert log_end >= self.log_end and durable_end <= log_end, "a leader's log shrank"
        self.log_end = log_end
        self.durable_end = max(self.durable_end, durable_end)
        return self._advance()

    def on_local_start(self, log_start: Offset) -> None:
        """The leader's own log starts there, durably."""
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
        """``follower``'s log ends at ``fetch_offset`` and is durable up to ``durable_offset``; it
        starts at ``log_start``, durably.

        The caller has refused fetches of another leader epoch, and asked ``divergence``: what is
        said here is about a prefix of this leader's log. So a late or repeated fetch does no harm:
        within an epoch and a run of the follower (``boot``) that which is durable stays. A new run
        begins with what its disk holds, whatever the run before it has said. True: the high
        watermark moved.

        One from a broker that is no replica changes nothing, nor does one of an older run, nor one
        that claims more than there is, which is counted in ``refused``. One that has begun its log
        anew counts as before: what it had ended below the high watermark, and moves nothing.
        """
        if not 0 <= durable_offset <= fetch_offset <= self.log_end:
            self.refused += 1
            return False
        progress = self._followers.get(follower)
        if progress is None:
            return False
        if progress.directory_id == directory_id and boot < progress.boot:
            return False
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
        progress.durable_end = max(progress.durable_end, durable_offset)
        progress.log_start = max(progress.log_start, log_start)
        self._note_caught_up(progress, now)
        return self._advance()

    def has_lost(self, follower: BrokerId) -> bool:
        """Whether a member of the ISR holds less than it had acknowledged: less than an earlier run
        of it, or less than is committed.
        """
        progress, directory_id = self._followers.get(follower), self.state.isr.get(follower)
        if progress is None or directory_id is None or progress.directory_id != directory_id:
            return False
        return progress.has_lost or progress.durable_end < self.high_watermark

    def _track_replicas(self, now: float) -> None:
        replicas = set(self.state.replicas) - {self.broker_id}
        for gone in self._followers.keys() - replicas:
            del self._followers[gone]
        for new in replicas - self._followers.keys():
            self._followers[new] = _Follower(now, now, self.log_end)

    def _note_caught_up(self, follower: _Follower, now: float) -> None:
        """KIP-16's last caught-up time, by what is durable: a disk that hangs is lag too (S36)."""
        if follower.durable_end >= self.log_end:
            follower.caught_up_at = now
        elif follower.durable_end >= follower.mark_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.mark_at)
        else:
            return
        follower.mark_at, follower.mark_end = now, self.log_end

    def trails_s(self, now: float) -> float:
        """For how long this leader's disk has lacked what every other member of the ISR has synced.

        0 while one of them has less than this leader, and while there is no other. As of followers,
        it is the time since the leader had as much as they had then: a disk that is a little slower
        does not trail for ever.
        """
        others = [
            self._durable_end_of(*member)
            for member in self.state.isr.items()
            if member[0] != self.broker_id
        ]
        end = min(others, default=UNKNOWN)
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
        *,
        is_live: IsLive,
        directory_of: DirectoryOf,
        min_isr: int,
        may_propose: Callable[[], bool],
        boot_of: BootOf = lambda _broker: None,
    ) -> ChangeIsr | None:
        """What to propose now, which is in flight from then on; None: nothing, or one is already.

        One whose outcome is unknown is proposed again, as it was: whichever try is applied first,
        the group rejects the others, and the newer version settles them all.

        ``is_live`` and ``directory_of`` are what the cluster agrees on about brokers (a broker that
        is fenced or shutting down is not live); ``min_isr`` is what the topic's settings ask for.
        A member that has lost what it had acknowledged leaves at once, and the epoch grows.
        ``may_propose``: asked only when there is something to propose. A leader to which nothing
        comes, but whose words go out, must not say that nobody follows: it would be believed, and
        be the only one that may lead from then on. ``boot_of``: the run that a broker is in, None
        if that is not known: one that begins a run says anew what it has before it joins.
        """
        if self._pending is not None:
            if not self._may_try_again or not may_propose():
                return None
            self._may_try_again = False
            return self._pending
        state = self.state
        lost = tuple(
            broker
            for broker, directory in state.isr.items()
            if broker != self.broker_id and self._is_incomplete(broker, directory)
        )
        isr = {
            broker: directory
            for broker, directory in state.isr.items()
            if broker == self.broker_id
            or not (
                broker in lost or self._has_to_leave(broker, directory, now, is_live, directory_of)
            )
        }
        for broker, follower in self._followers.items():
            directory = directory_of(broker)
            if state.isr.get(broker) == directory or not is_live(broker):
                continue
            is_its_word = boot_of(broker) in {None, follower.boot}
            if directory is not None and is_its_word and self._may_join(follower, directory):
                isr[broker] = directory
        # They must not become eligible: what they held is not there any more.
        lost = tuple(broker for broker in sorted(state.isr) if self.has_lost(broker))
        isr = {broker: directory for broker, directory in isr.items() if broker not in lost}
        min_isr = max(min_isr, 1)
        if (isr == state.isr and min_isr == state.min_isr) or not may_propose():
            return None
        self._pending = ChangeIsr(state.version, self.leader_epoch, in_order(isr), min_isr, lost)
        return self._pending

    def _is_incomplete(self, broker_id: BrokerId, directory_id: DirectoryId) -> bool:
        """Whether a member of the ISR lacks what is committed: it has lost a part of its log.

        By the most that it has said in this epoch: what came late counts for nothing. It leaves as
        one whose copy is lost, so that nothing which it acknowledged before makes it eligible.
        """
        durable_end = self._durable_end_of(broker_id, directory_id)
        return UNKNOWN < durable_end < self.high_watermark

    def _has_to_leave(
        self,
        broker_id: BrokerId,
        directory_id: DirectoryId,
        now: float,
        is_live: IsLive,
        directory_of: DirectoryOf,
    ) -> bool:
        """Dead, on another disk, or without something for longer than ``lag_max_s``."""
        follower = self._followers.get(broker_id)
        return (
            follower is None
            or not is_live(broker_id)
            or directory_of(broker_id) != directory_id
            or follower.directory_id not in {None, directory_id}
            or self._lag_s(follower, now) > self._lag_max_s
        )

    def _may_join(self, follower: _Follower, directory_id: DirectoryId) -> bool:
        """Whether it holds all that can have been committed, on the disk that is registered.

        The start of the epoch counts because the watermark that a new leader begins with may be
        older than one that its predecessor has committed up to (S06). For the same reason it has to
        start no lower than the leader's log did then: a predecessor may have told that start.

        One that has left joins again when it has what the leader had then. Of two members that hold
        the watermark back, each would else let the other in again as soon as it had left.
        """
        return (
            follower.directory_id == directory_id
            and follower.durable_end >= max(self.high_watermark, self.epoch_start)
            and follower.durable_end >= follower.left_at
            and follower.log_start >= max(self.committed_start, self._start_at_first)
        )

    def proposal_done(self, change: ChangeIsr, accepted: bool | None) -> None:
        """The outcome of ``change``; one that is settled already changes nothing.

        False: certainly without effect, now and later (rejected the only time that it was applied,
        or never proposed). True and None, unknown: it stays in flight until ``on_state`` shows a
        newer version, which settles it either way. So does one that was unknown once: its second
        try may have been rejected because the first was not.
        """
        if change != self._pending:
            return
        if accepted is None:
            self._is_doubtful = True
        if accepted is False and not self._is_doubtful:
            self._settle()
            self._advance()
        elif not accepted:
            self._may_try_again = True

    def _settle(self) -> None:
        self._pending, self._is_doubtful, self._may_try_again = None, False, False

    # -- compaction --------------------------------------------------------------------------------

    def slowest_copy(self, now: float) -> Offset:
        """Where the shortest log ends of the followers that have fetched within ``lag_max_s``.

        Without any, it is beyond every log. Safety does not depend on it: a follower that lacks
        tombstones restarts its copy (``following.must_restart``). But one that copies more slowly
        than the leader compacts would restart again and again.
        """
        ends = [f.told_end for f in self._followers.values() if now - f.told_at <= self._lag_max_s]
        return min(ends, default=INT64_MAX)

    # -- for people --------------------------------------------------------------------------------

    def followers(self, now: float) -> Mapping[BrokerId, FollowerProgress]:
        """How far each other replica is."""
        found: dict[BrokerId, FollowerProgress] = {}
        for broker, follower in sorted(self._followers.items()):
            in_isr = broker in self.state.isr and follower.directory_id in {
                None,
                self.state.isr[broker],
            }
            # Out of the ISR it may have begun its log anew.
            end = follower.end if in_isr else follower.told_end
            found[broker] = FollowerProgress(
                end, min(follower.durable_end, end), self._lag_s(follower, now), in_isr
            )
        return found

    def _lag_s(self, follower: _Follower, now: float) -> float:
        """Seconds; a follower that has everything needs not say so again and again."""
        self._note_caught_up(follower, now)
        return max(0.0, now - follower.caught_up_at)
