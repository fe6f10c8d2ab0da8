"""Recovery of a group that has lost a majority of its voters: new leader, base state and losses.

The module is pure: it computes a plan from the reports of the remaining brokers.

Without a majority of a group's voters nothing is certain: the lost ones may have committed another
ISR, and acknowledged records, without the survivors. That a survivor saw their processes end proves
nothing, because they may have started again out of its sight. So each recovery needs the operator's
word for two things: that records may be lost, and which data directories are destroyed (``gone``).

A partition continues from the newest known state, committed or not. Of the voters' journals, this
is the one that Raft would elect (Raft group generation, then term and index of its end). The
longest log by (epoch, end) leads, as in Kafka's unclean recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from raftlog.errors import counted
from raftlog.replication.commands import BrokerId, DirectoryId, ElectUnclean
from raftlog.replication.partition_state import Accepted, PartitionState, apply
from raftlog.types import LeaderEpoch, Offset

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
    newest = max(standings, key=lambda standing: standing.newness)
    there = {standing.broker: standing.directory_id for standing in standings}
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
    members = [
        there[broker]
        for broker, disk in (*state.isr.items(), *state.elr.items())
        if broker in state.replicas
        and broker in there
        and there[broker].directory_id == disk
        and _is_complete(there[broker])
    ]
    if members and loss.has_majority:
        return Nothing()
    if not loss.has_majority and loss.led is not None:
        return Blocked(led_text("the partition", loss.led))
    generation = max([r.standing.generation for r in reports if r.standing is not None], default=0)
    disks = {*state.isr.items(), *state.elr.items(), *loss.newest.voters.items()}
    for report in reports:
        if report.standing is None and (report.broker, report.directory_id) in disks:
            return Blocked(
                f"broker {report.broker} has just started, and has not opened its copy yet. Repeat "
                "the command in a few seconds"
            )
    for broker in state.replicas:
        copy = there[broker].copy if broker in there else None
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
