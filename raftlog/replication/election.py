"""Leader elections and replica replacements: proposals of the partition controller.

Every function is deterministic: equal states and equal views of the brokers produce equal
proposals. A wrong view can cause an unnecessary election but no data loss, because ``apply``
validates every proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from raftlog.config.keys import INT64_MAX
from raftlog.errors import counted
from raftlog.replication.partition_state import (
    Accepted,
    BrokerId,
    ChangeReplicas,
    DirectoryId,
    Elect,
    ElectUnclean,
    PartitionState,
    Rejected,
    apply,
)
from raftlog.types import LeaderEpoch, Offset

IsLive = Callable[[BrokerId], bool]


class BrokerView(Protocol):
    """Knowledge of one broker about the others. It can be wrong."""

    def is_live(self, broker: BrokerId, /) -> bool:
        """Return whether the broker can lead or follow: neither fenced nor stopping."""
        ...

    def directory_of(self, broker: BrokerId, /) -> DirectoryId | None:
        """Return its data directory; None if unknown."""
        ...

    def boot_of(self, broker: BrokerId, /) -> int | None:
        """Return its incarnation; None if unknown."""
        ...


class Standing(IntEnum):
    """Completeness of a copy: whether it still has all records that it acknowledged."""

    SOUND = 0  # complete
    UNSURE = 1  # possibly incomplete: a torn write, or an unclean stop with flush.policy=os
    DAMAGED = 2  # incomplete


class CopyReport(NamedTuple):
    """Report of one replica about its copy, sent by its broker in incarnation ``boot``.

    ``end_offset``: end offset of the valid records that can be acknowledged. ``last_epoch``: leader
    epoch of the last of these records, or -1.
    """

    standing: Standing
    last_epoch: LeaderEpoch
    end_offset: Offset
    version: int  # partition state version that the broker knows
    directory_id: DirectoryId
    boot: int

    @property
    def length(self) -> tuple[LeaderEpoch, Offset]:
        """Sort key: the log with the greater length has all committed records of the other.

        As in Raft: a leader of a later epoch started with all records committed before, and two
        logs with the same last epoch are prefixes of one log.
        """
        return self.last_epoch, self.end_offset


Reports: TypeAlias = Mapping[BrokerId, CopyReport]


def choose_leader(state: PartitionState, view: BrokerView, *, arbiter: BrokerId) -> Elect | None:
    """Return the election of a partition without a leader, or None if none is needed or possible.

    ``arbiter``: partition controller, which is preferred; then the preferred order decides. A
    member of the ELR becomes the leader only if no member of the ISR can. A leader that restarted
    since its election does not count, because it may have lost unsynced records (S17).
    """
    return None if has_leader(state, view) else choose_member(state, view, first=arbiter)


def choose_member(
    state: PartitionState,
    view: BrokerView,
    *,
    first: BrokerId | None = None,
    without: BrokerId | None = None,
    reports: Reports | None = None,
) -> Elect | None:
    """Return the election of a member of the ISR or, if none can lead, of the ELR; or None.

    With ``reports``, the member with the longest log among the complete copies is elected. Ties are
    decided by ``first``, then by the preferred order, which also apply without ``reports``.
    ``without``: broker that must not be elected. Members that are not live, or that have another
    data directory, are never elected.
    """
    others = (broker for broker in state.replicas if broker != first)
    order = [*((first,) if first is not None else ()), *others]
    # guard: the ELR leads when the ISR cannot
    # guard: the ISR comes before the ELR
    for members in (state.isr, state.elr):
        found = [
            broker
            for broker in _there(order, members, state, view)
            if broker != without
            and (reports is None or _may_lead(state, reports.get(broker), view.boot_of(broker)))
        ]
        if found:
            # guard: the longest log leads
            best = max(found, key=lambda broker: reports[broker].length) if reports else found[0]
            return _elect(state, best, members[best], view)
    return None


def _may_lead(state: PartitionState, report: CopyReport | None, boot: int | None) -> bool:
    """Return whether the broker reported in its current incarnation that its copy is complete; or
    that it is corrupt, if there is no other: that one is served up to the corruption."""
    if report is None:
        return False
    is_only = len(state.replicas) == 1 and report.end_offset < INT64_MAX
    is_fit = report.standing is Standing.SOUND or (is_only and report.standing is Standing.DAMAGED)
    # guard: a complete copy is one of this incarnation
    return is_fit and (boot is None or report.boot == boot)


def choose_unsure(
    state: PartitionState,
    *,
    reports: Reports,
    directory_of: Callable[[BrokerId], DirectoryId | None],
    gone_seconds: Callable[[BrokerId], float],
    wait_seconds: float,
) -> ElectUnclean | None:
    """Return the election of a copy that may lack acknowledged records, or None.

    For a partition without a leader. Precondition for every member of the ISR and of the ELR: it
    reported that its copy is unsure or corrupt, or it has been unavailable for ``wait_seconds``, or
    it has lost its disk. The longest log of all reports is then elected. This includes former
    members, whose logs can be longer than the remaining logs of the members. No committed record is
    lost if one of these brokers has kept all records that it acknowledged. A corrupt copy is known
    to be incomplete. If it is the longest, the function returns None and an operator must decide.
    """
    members = {**state.elr, **state.isr}
    for broker, directory in members.items():
        report = reports.get(broker)
        if report is None:
            # guard: a copy in doubt does not lead while a better one may return
            if directory_of(broker) in {None, directory} and gone_seconds(broker) < wait_seconds:
                return None
        elif report.standing is Standing.SOUND and report.directory_id == directory:
            return None
    known = {**state.former, **members}
    found = {
        broker: report
        for broker, report in reports.items()
        if broker in state.replicas and known.get(broker) == report.directory_id
    }
    if not found:
        return None
    best = max(found, key=lambda broker: (found[broker].length, -found[broker].standing, -broker))
    report = found[best]
    if report.standing is Standing.DAMAGED:
        return None
    return ElectUnclean(state.version, best, report.directory_id, report.boot)


def has_leader(state: PartitionState, view: BrokerView) -> bool:
    """Return whether the leader is live, with the elected data directory and incarnation.

    An unknown directory or incarnation (None) counts as unchanged.
    """
    leader = state.leader
    # guard: a leader on another disk is replaced
    # guard: a leader that starts again is elected again
    return (
        leader is not None
        and view.is_live(leader)
        and view.directory_of(leader) in {None, state.isr.get(leader)}
        and view.boot_of(leader) in {None, state.leader_boot}
    )


def transfer(state: PartitionState, to: BrokerId, view: BrokerView) -> Elect | str:
    """Return the election that transfers leadership to ``to``, or an error message."""
    if to == state.leader:
        return f"broker {to} leads already"
    if to in state.witnesses:
        return f"broker {to} is a witness: it votes and stores no records"
    if to not in state.replicas:
        return f"broker {to} is not a replica"
    if not view.is_live(to):
        return f"broker {to} is not live"
    # guard: leadership is transferred to ISR members only
    if to not in state.isr or view.directory_of(to) != state.isr[to]:
        return f"broker {to} is not in sync"
    return _elect(state, to, state.isr[to], view)


def choose_preferred(state: PartitionState, view: BrokerView) -> Elect | None:
    """Return the election of the preferred replica; None if it is the leader or cannot lead."""
    elect = transfer(state, state.replicas[0], view)
    return elect if isinstance(elect, Elect) else None


def _there(
    order: Iterable[BrokerId],
    members: Mapping[BrokerId, DirectoryId],
    state: PartitionState,
    view: BrokerView,
) -> Iterator[BrokerId]:
    """Yield the ``members`` that can lead: live replicas with the data directory of the member."""
    for broker in order:
        directory_id = members.get(broker)
        # guard: a candidate is on the disk that is a member
        is_member = directory_id is not None and view.directory_of(broker) == directory_id
        # guard: a candidate is live
        if is_member and broker in state.replicas and view.is_live(broker):
            yield broker


def _elect(
    state: PartitionState, leader: BrokerId, directory_id: DirectoryId, view: BrokerView
) -> Elect:
    return Elect(state.version, leader, directory_id, view.boot_of(leader) or 0)


def choose_replacement(
    state: PartitionState,
    *,
    replication_factor: int,
    dead_seconds: Callable[[BrokerId], float],
    delay_seconds: float,
    is_live: IsLive,
    may_store: Callable[[BrokerId], bool] = lambda _broker: True,
) -> ChangeReplicas | None:
    """Return the change that replaces an unavailable replica by a live witness, or None.

    ``dead_seconds``: returns for how long a broker has been unavailable; 0 if it is available.
    ``delay_seconds``: ``replica.replacement.delay.ms`` in seconds; a replica that is unavailable
    for longer is replaced. ``may_store``: False for a witness that must get no data (low disk
    space, or about to leave).

    - A failed replica outside the ISR and the ELR swaps roles with the witness. It rejoins as a
      witness.
    - A failed replica in the ELR can be the only holder of committed records except the leader, so
      it remains. The witness becomes an additional replica. After it joins the ISR, the ELR is
      empty.
    - A failed replica in the ISR must first be removed by the leader.
    - A surplus replica (the failed one restarted) becomes a witness when all others are in sync.

    Must not be called during an operator's reassignment of the partition.
    """
    if state.leader is None or not is_live(state.leader):
        return None
    dead = [
        broker
        for broker in state.replicas
        if not is_live(broker) and dead_seconds(broker) > delay_seconds
    ]
    if not dead:
        return _drop_surplus(state, replication_factor, is_live)
    # guard: a failed member of the ISR is not replaced
    members = {*state.isr, *state.elr}
    free = [broker for broker in dead if broker not in members]
    recruit = None
    if len(state.replicas) - len(dead) < replication_factor:
        ready = (broker for broker in state.witnesses if is_live(broker) and may_store(broker))
        recruit = next(ready, None)
    if free and recruit is not None:
        return accepted(state, _swapped(state, free[0], recruit))
    if free and len(state.replicas) > replication_factor:
        return accepted(state, _demoted(state, free[0]))
    if recruit is not None and any(broker in state.elr for broker in dead):
        witnesses = tuple(broker for broker in state.witnesses if broker != recruit)
        grown = ChangeReplicas(state.version, (*state.replicas, recruit), witnesses)
        return accepted(state, grown)
    return None


def _drop_surplus(
    state: PartitionState, replication_factor: int, is_live: IsLive
) -> ChangeReplicas | None:
    if len(state.replicas) <= replication_factor:
        return None
    for broker in reversed(state.replicas):
        others = [other for other in state.replicas if other != broker]
        # guard: a surplus replica waits for the others
        if broker != state.leader and all(o in state.isr and is_live(o) for o in others):
            return accepted(state, _demoted(state, broker))
    return None


def _swapped(state: PartitionState, dead: BrokerId, recruit: BrokerId) -> ChangeReplicas:
    """Swap the positions of both brokers, so that preferred leaders stay balanced."""
    roles = {dead: recruit, recruit: dead}
    return ChangeReplicas(
        state.version,
        tuple(roles.get(broker, broker) for broker in state.replicas),
        tuple(roles.get(broker, broker) for broker in state.witnesses),
    )


def _demoted(state: PartitionState, broker: BrokerId) -> ChangeReplicas:
    replicas = tuple(other for other in state.replicas if other != broker)
    return ChangeReplicas(state.version, replicas, (*state.witnesses, broker))


def accepted(state: PartitionState, command: ChangeReplicas) -> ChangeReplicas | None:
    """Return the command if the group would accept it, else None."""
    return None if isinstance(apply(state, command), Rejected) else command


# -- recovery --------------------------------------------------------------------------------------
#
# Recovery of a group that has lost a majority of its voters: new leader, base state and losses.
#
# The module is pure: it computes a plan from the reports of the remaining brokers.
#
# Without a majority of a group's voters nothing is certain: the lost ones may have committed
# another ISR, and acknowledged records, without the survivors. That a survivor saw their processes
# end proves nothing, because they may have started again out of its sight. So each recovery needs
# the operator's word for two things: that records may be lost, and which data directories are
# destroyed (``gone``).
#
# A partition continues from the newest known state, committed or not. Of the voters' journals, this
# is the one that Raft would elect (Raft group generation, then term and index of its end). The
# longest log by (epoch, end) leads, as in Kafka's unclean recovery.


# Added to epoch and version, to exceed all elections by the lost voters that are unknown here.
UNSEEN_ELECTIONS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """Journal state of one group on a broker. Without a vote in the cluster group: the version of
    the state that it has received as ``index``.

    ``voters``: of the Raft group generation. ``leader``: the group's, if this broker has contact
    with it.
    """

    broker: BrokerId
    directory_id: DirectoryId
    generation: int
    term: int
    index: int
    voters: Mapping[BrokerId, DirectoryId]
    leader: BrokerId | None = None

    @property
    def has_vote(self) -> bool:
        return self.voters.get(self.broker) == self.directory_id

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key: as in Raft, the greatest log can become the leader's."""
        return self.generation, self.term, self.index

    @property
    def newness(self) -> tuple[bool, tuple[int, ...]]:
        """Sort key: of the voters, the greatest log; without voters, the newest copy of the state.
        A former voter may have a greater generation than brokers that never had a vote.
        """
        return self.has_vote, self.rank if self.has_vote else (self.index, *self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A broker's copy of a partition: its end offset, last epoch and known high watermark."""

    end: Offset
    last_epoch: LeaderEpoch
    high_watermark: Offset
    damage: str = ""  # it cannot lead
    is_unsure: bool = False  # it may lack acknowledged records at its end (ADR 26)
    is_offline: bool = False  # its log directory has failed, and may return with all records


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of one broker about one partition.

    ``state``: state after all entries of its journal, committed or not. ``standing``: None for a
    broker without a journal of the group; its ``state`` was sent by other brokers, or is None.
    """

    broker: BrokerId
    directory_id: DirectoryId
    boot: int
    standing: Survivor | None = None
    state: PartitionState | None = None
    copy: Copy | None = None


@dataclass(frozen=True, slots=True)
class GroupLoss:
    """Remaining and lost voters of a group."""

    newest: Survivor  # newest journal of the remaining voters; without voters, of all brokers
    lost: Mapping[BrokerId, DirectoryId]  # voters whose data directory is unavailable
    has_majority: bool
    led: Survivor | None  # of a broker that has contact with the group's leader

    @property
    def lost_names(self) -> str:
        return ", ".join(map(str, self.lost))


def group_loss(standings: Sequence[Survivor]) -> GroupLoss:
    """Compute the loss of a group. ``standings``: one per available broker, at least one."""
    # guard: the newest journal of the voters counts
    newest = max(standings, key=lambda standing: standing.newness)
    there = {standing.broker: standing.directory_id for standing in standings}
    # guard: a survivor is a directory
    lost = {v: disk for v, disk in sorted(newest.voters.items()) if there.get(v) != disk}
    return GroupLoss(
        newest,
        lost,
        has_majority=2 * len(lost) < len(newest.voters),
        led=next((each for each in standings if each.leader is not None), None),
    )


def led_text(group: str, led: Survivor) -> str:
    """Return why a group must not be recovered that has a leader."""
    return (
        f"broker {led.broker} has contact with broker {led.leader}, the leader of {group}: a "
        "majority of the voters goes on, and what it acknowledges would be lost. Repair the "
        f"network between the brokers. If broker {led.leader} has just failed, repeat the "
        "command in a few seconds"
    )


@dataclass(frozen=True, slots=True)
class Nothing:
    """No recovery is required: the partition can elect a leader."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Recovery is impossible. ``reason``: the cause and the next action of the operator."""

    reason: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Recover with ``leader``.

    ``base``: state from which that broker starts a Raft group generation above ``generation``, as
    its only voter. None if the group has a majority; then ``command`` is proposed to it. ``gone``:
    brokers and data directories that it gives up. ``lost``: number of records that are known to be
    lost; there may be more.
    """

    leader: BrokerId
    generation: int
    base: PartitionState | None
    command: ElectUnclean | None
    gone: Mapping[BrokerId, DirectoryId]
    lost: int = 0
    note: str = field(default="", compare=False)


Plan: TypeAlias = Nothing | Blocked | GoOn


def plan(reports: Sequence[Report], birth: PartitionState) -> Plan:
    """Compute the recovery plan of a partition.

    ``reports``: of all available brokers. ``birth``: initial state of the group, used if no broker
    knows a newer one.
    """
    loss = group_loss([r.standing for r in reports if r.standing is not None] or [_nowhere(birth)])
    state = _newest_state(reports, loss, birth)
    there = {report.broker: report for report in reports}
    # guard: a copy that may lack its end needs the operator's consent
    members = [
        there[broker]
        for broker, disk in (*state.isr.items(), *state.elr.items())
        if broker in state.replicas
        and broker in there
        and there[broker].directory_id == disk
        and _is_complete(there[broker])
    ]
    # guard: without a majority a partition needs the operator's word
    if members and loss.has_majority:
        return Nothing()
    # guard: a partition with a leader is not recovered
    if not loss.has_majority and loss.led is not None:
        return Blocked(led_text("the partition", loss.led))
    generation = max([r.standing.generation for r in reports if r.standing is not None], default=0)
    disks = {*state.isr.items(), *state.elr.items(), *loss.newest.voters.items()}
    for report in reports:
        # guard: a copy that is not open yet is waited for
        if report.standing is None and (report.broker, report.directory_id) in disks:
            return Blocked(
                f"broker {report.broker} has just started, and has not opened its copy yet. Repeat "
                "the command in a few seconds"
            )
    for broker in state.replicas:
        copy = there[broker].copy if broker in there else None
        # guard: a recovery waits for an offline replica
        if copy is not None and copy.is_offline:
            return Blocked(
                f"the copy of broker {broker} may be complete: {copy.damage}. If its disk is lost, "
                "mount an empty one there before that"
            )
    copies = [there[b] for b in state.replicas if b in there and _can_lead(there[b])]
    if not copies:
        names = ", ".join(map(str, state.replicas))
        return Blocked(
            f"no replica (brokers {names}) is available with a valid copy or an empty disk. Start "
            "one of these brokers, with an empty data directory if its disk is lost"
        )
    return _with_loss(state, loss, max(copies, key=_order(state)), reports, generation)


def _with_loss(
    state: PartitionState,
    loss: GroupLoss,
    leader: Report,
    reports: Sequence[Report],
    generation: int,
) -> GoOn:
    end = 0 if leader.copy is None else leader.copy.end
    reported = max((r.copy.high_watermark for r in reports if r.copy is not None), default=0)
    lost = max(0, reported - end)
    note = _price(state, loss, leader, lost)
    there = {report.broker: report.directory_id for report in reports}
    members = {**state.elr, **state.isr}
    gone = {b: disk for b, disk in members.items() if there.get(b) != disk}
    if not loss.has_majority:
        gone = {**gone, **loss.lost}
    before = state if loss.has_majority else _above_unseen(state)
    command = ElectUnclean(before.version, leader.broker, leader.directory_id, leader.boot)
    if loss.has_majority:
        return GoOn(leader.broker, generation, None, command, gone, lost, note)
    changed = apply(before, command)
    assert isinstance(changed, Accepted), "the leader is a replica, and the version is the state's"
    return GoOn(leader.broker, generation, changed.state, None, gone, lost, note)


def _above_unseen(state: PartitionState) -> PartitionState:
    """Return the state with a version and an epoch above those that the lost voters can have."""
    # guard: an unclean leader's epoch is above any that was not seen
    return replace(
        state,
        version=state.version + UNSEEN_ELECTIONS,
        leader_epoch=state.leader_epoch + UNSEEN_ELECTIONS,
    )


def _price(state: PartitionState, loss: GroupLoss, leader: Report, lost: int) -> str:
    """Return a description of the losses, and of the possible losses, with this leader."""
    has = "nothing" if leader.copy is None or not leader.copy.end else (
        f"the records below offset {leader.copy.end}"
    )  # fmt: skip
    known = (
        f"{counted(lost, 'record is', 'records are')} lost"
        if lost
        else "the number of lost records is unknown"
    )
    is_member = leader.directory_id in (state.isr.get(leader.broker), state.elr.get(leader.broker))
    if is_member:
        return (
            f"broker {leader.broker} has {has}, and was in sync when it last had contact with "
            f"brokers {loss.lost_names}. Records that these have acknowledged without it after "
            "that are lost"
        )
    others = ", ".join(str(b) for b in sorted({*state.isr, *state.elr}))
    at = "" if has != "nothing" else ", so the log restarts at offset 0: reset its consumers"
    return (
        f"broker {leader.broker} has {has}{at}; the in-sync replicas (brokers {others}) are not "
        f"available with their disks: {known}"
    )


def _newest_state(
    reports: Sequence[Report], loss: GroupLoss, birth: PartitionState
) -> PartitionState:
    by_voters = next(
        (r.state for r in reports if r.standing is loss.newest and loss.newest.has_vote), None
    )
    if by_voters is not None:
        return by_voters
    reported = [report.state for report in reports if report.state is not None]
    return max([birth, *reported], key=lambda state: state.version)


def _order(state: PartitionState) -> Callable[[Report], tuple[LeaderEpoch, Offset, bool, int]]:
    """Return the sort key of reports: log length, then ISR membership, then preferred order."""

    def key(report: Report) -> tuple[LeaderEpoch, Offset, bool, int]:
        copy = report.copy
        epoch, end = (-1, -1) if copy is None else (copy.last_epoch, copy.end)
        is_member = state.isr.get(report.broker) == report.directory_id
        return epoch, end, is_member, -state.replicas.index(report.broker)

    return key


def _can_lead(report: Report) -> bool:
    return report.copy is None or not report.copy.damage


def _is_complete(report: Report) -> bool:
    return report.copy is None or not (report.copy.damage or report.copy.is_unsure)


def _nowhere(birth: PartitionState) -> Survivor:
    """Return the standing of a group that no journal contains: its initial voters."""
    return Survivor(
        broker=-1,
        directory_id="",
        generation=0,
        term=0,
        index=0,
        voters={**birth.isr, **dict.fromkeys(birth.witnesses, "?")},
    )


# -- reassignment ----------------------------------------------------------------------------------
#
# Moves of a partition's replicas to other brokers: the next step, and the voters that fit.
#
# An operator's target is stored in the cluster state (``cluster_state.Target``). The partition
# controller calls ``next_step`` until the partition has the target's replicas, so a move continues
# after any crash: each step depends on committed state only. One copy moves at a time:
#
# 1. A new replica joins and copies all records (a *learner*). It has a vote only after the command
#    that made it a replica was committed, in the next Raft group generation.
# 2. Once it is in sync, one replica that leaves is removed. A leader that leaves transfers its
#    leadership first.
# 3. The next generation has exactly the replicas and the witnesses as voters. Then the next step.
#
# Two consecutive generations differ by one replica, as in the single-server changes of Ongaro's
# Raft thesis (section 4.1). A new voter may fail, and an even number of voters tolerates as many
# failures as one voter fewer. So another broker becomes a witness until the move ends, where the
# cluster has one: a partition then survives the failure of the learner in addition to all failures
# that it survived before. A replica that leaves and is not in sync does not count, so a new one
# replaces it immediately.


def next_step(
    state: PartitionState,
    target: Sequence[BrokerId],
    view: BrokerView,
    *,
    copies_before: int,
    voters_wanted: int,
    brokers: Sequence[BrokerId],
) -> ChangeReplicas | Elect | None:
    """Return the next step towards ``target``, or None if there is none or it must wait.

    ``copies_before``: number of replicas before the move. ``voters_wanted``: voters of the
    partition after the move (``placement.voters_count``). ``brokers``: brokers that can become a
    witness during the move. The caller must apply a change of the voters in a new generation before
    it calls this function again.
    """
    leaving = [broker for broker in state.replicas if broker not in target]
    joining = [broker for broker in target if broker not in state.replicas]
    if not leaving and not joining:
        return _in_order(state, target)
    spare = [b for b in leaving if b not in state.isr and b not in state.elr]
    recruit = next((broker for broker in joining if view.is_live(broker)), None)
    if spare and (recruit is not None or not joining):
        return _changed(state, target, joined=recruit, left=spare[0], voters_wanted=voters_wanted)
    # guard: a copy counts only while its broker is live
    in_sync = {broker for broker in state.isr if view.is_live(broker)}
    # guard: one learner at a time
    if any(broker in state.replicas and broker not in in_sync for broker in target):
        return None  # a learner copies, or a replica of the target has failed
    # guard: copies are added before one leaves
    most = max(len(target), copies_before)
    if joining and len(state.replicas) <= most:
        surplus = surplus_witness(state, voters_most=voters_wanted, is_live=view.is_live)
        if recruit is None or surplus is not None:
            return surplus
        grown = _changed(state, target, joined=recruit, left=None, voters_wanted=voters_wanted)
        return grown and _with_odd_voters(state, grown, filter(view.is_live, brokers))
    least = most if joining else len(target)
    others = [b for b in reversed(state.replicas) if b in leaving and b != state.leader]
    left = others[0] if others else state.leader
    # guard: as many live in-sync copies remain as the target has
    if left is None or len(in_sync - {left}) < least:
        return None
    if left != state.leader:
        return _changed(state, target, joined=None, left=left, voters_wanted=voters_wanted)
    elects = (transfer(state, broker, view) for broker in target)
    return next((each for each in elects if isinstance(each, Elect)), None)


def surplus_witness(
    state: PartitionState, *, voters_most: int, is_live: IsLive
) -> ChangeReplicas | None:
    """Return the change that removes one witness if the partition has more than ``voters_most``
    voters. One that is not live is removed first.
    """
    if len(state.replicas) + len(state.witnesses) <= voters_most or not state.witnesses:
        return None
    gone = next((w for w in state.witnesses if not is_live(w)), state.witnesses[-1])
    witnesses = tuple(witness for witness in state.witnesses if witness != gone)
    return accepted(state, ChangeReplicas(state.version, state.replicas, witnesses))


def relocated_witness(
    state: PartitionState, *, leaving: Collection[BrokerId], brokers: Iterable[BrokerId]
) -> ChangeReplicas | None:
    """Return the change that replaces a witness on a broker that is being decommissioned, or None.

    ``leaving``: such brokers. ``brokers``: those that can become a witness. If there is none, the
    witness is removed, and with it another one if the number of voters were even.
    """
    gone = next((witness for witness in state.witnesses if witness in leaving), None)
    if gone is None:
        return None
    voters = {*state.replicas, *state.witnesses}
    recruit = next((broker for broker in brokers if broker not in voters), None)
    witnesses = [witness for witness in state.witnesses if witness != gone]
    if recruit is not None:
        witnesses.append(recruit)
    elif witnesses and (len(state.replicas) + len(witnesses)) % 2 == 0:
        witnesses.pop()
    return accepted(state, ChangeReplicas(state.version, state.replicas, tuple(witnesses)))


def fitting_voters(
    state: PartitionState,
    voters: Mapping[BrokerId, DirectoryId],
    linked: Callable[[BrokerId], DirectoryId | None],
) -> dict[BrokerId, DirectoryId]:
    """Return the voters of the generation that fits ``state``: its replicas and witnesses.

    ``voters``: of the current generation. ``linked``: data directory of a connected broker, else
    None. A connected broker votes with its current directory. A broker that is not connected keeps
    its vote, and receives none.
    """
    fitting = {}
    # guard: only replicas and witnesses vote
    for broker in sorted({*state.replicas, *state.witnesses}):
        directory = linked(broker) or voters.get(broker)
        # guard: a new voter has to be connected
        if directory is not None:
            fitting[broker] = directory
    return fitting or dict(voters)


def _in_order(state: PartitionState, target: Sequence[BrokerId]) -> ChangeReplicas | None:
    if state.replicas == tuple(target):
        return None
    return accepted(state, ChangeReplicas(state.version, tuple(target), state.witnesses))


def _changed(
    state: PartitionState,
    target: Sequence[BrokerId],
    *,
    joined: BrokerId | None,
    left: BrokerId | None,
    voters_wanted: int,
) -> ChangeReplicas | None:
    """Return the change with one more replica, one fewer, or both. Replicas of the target are
    first, in its order. A replica that leaves becomes a witness if a voter would be missing.
    """
    replicas = [b for b in target if b in state.replicas or b == joined]
    replicas += [b for b in state.replicas if b not in target and b != left]
    witnesses = [witness for witness in state.witnesses if witness != joined]
    if left is not None and len(replicas) + len(witnesses) < voters_wanted:
        witnesses.append(left)
    return accepted(state, ChangeReplicas(state.version, tuple(replicas), tuple(witnesses)))


def _with_odd_voters(
    state: PartitionState, command: ChangeReplicas, brokers: Iterable[BrokerId]
) -> ChangeReplicas:
    """Return the command with one more witness if its number of voters is even."""
    voters = {*command.replicas, *command.witnesses}
    helper = next((broker for broker in brokers if broker not in voters), None)
    # guard: a new voter has a helper
    if helper is None or len(voters) % 2:
        return command
    return ChangeReplicas(state.version, command.replicas, (*command.witnesses, helper))
