"""The way out when a majority of a group's voters is gone: who goes on, from what, and the price.

Pure: reports of the brokers that answer in, a plan out. The rule is that without the operator's
word (``accept_loss``) a partition goes on only where nothing acknowledged can be lost:

- with the newest state that any of them has: of the voters' journals the one that Raft would elect
  (generation, then term and index of its end), committed or not;
- led by a member of that state's ISR, or ELR, which hold all that was committed;
- and only if no newer state can exist. The voters that are gone were a majority: they may have
  agreed on another ISR without those that are left. They cannot have, where a survivor was in
  touch with the group in this run and saw them end: all but so few that these are no majority. A
  link that fell silent or timed out is no end: the others may be at work behind a cut. A survivor
  that was restarted cannot know, but of a partition of which it stores the only replica: another
  broker enters the ISR only if that survivor, as the leader, proposes it.

With the operator's word, the longest log leads: (epoch, end), as in Kafka's unclean recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from raftlog.replication.commands import BrokerId, DirectoryId, ElectUnclean
from raftlog.replication.partition_state import Accepted, PartitionState, apply
from raftlog.types import LeaderEpoch, Offset

# Above any epoch and version that those that are gone may have come to unseen.
UNSEEN_ELECTIONS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a broker's journal has of one group, and what it knows of the group's voters.

    ``voters`` are the generation's. ``saw_end``: the voters whose process this broker has seen to
    end, in this run. ``is_known``: it has been in touch with the group's leader in this run.
    """

    broker: BrokerId
    directory_id: DirectoryId
    generation: int
    term: int
    index: int
    voters: Mapping[BrokerId, DirectoryId]
    saw_end: frozenset[BrokerId] = frozenset()
    is_known: bool = False

    @property
    def has_vote(self) -> bool:
        return self.voters.get(self.broker) == self.directory_id

    @property
    def rank(self) -> tuple[int, int, int]:
        """Raft's: whose log may be that of a leader."""
        return self.generation, self.term, self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A broker's copy of a partition: where it ends, and how far it knows it to be committed."""

    end: Offset
    last_epoch: LeaderEpoch
    high_watermark: Offset
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one broker has of one partition. ``state``: all of its journal, committed or not.

    ``standing`` is None for a broker that only was told of the state, or of nothing.
    """

    broker: BrokerId
    directory_id: DirectoryId
    boot: int
    standing: Standing | None = None
    state: PartitionState | None = None
    copy: Copy | None = None


@dataclass(frozen=True, slots=True)
class GroupLoss:
    """What is left of a group's voters."""

    newest: Standing  # of the voters that are left; of others, where none is
    lost: tuple[BrokerId, ...]  # voters whose directory is not there
    has_majority: bool
    is_certain: bool  # nothing newer than ``newest`` can have been agreed on

    @property
    def lost_names(self) -> str:
        return ", ".join(map(str, self.lost))


def group_loss(standings: Sequence[Standing]) -> GroupLoss:
    """``standings``: one of each broker that is there, at least one."""
    voting = [standing for standing in standings if standing.has_vote]
    newest = max(voting or standings, key=lambda standing: standing.rank)
    there = {standing.broker: standing.directory_id for standing in standings}
    lost = tuple(v for v, disk in sorted(newest.voters.items()) if there.get(v) != disk)
    total = len(newest.voters)
    return GroupLoss(
        newest,
        lost,
        has_majority=2 * len(lost) < total,
        is_certain=any(
            2 * len(set(lost) - standing.saw_end) <= total
            for standing in voting
            if standing.is_known and standing.generation == newest.generation
        )
        or (bool(voting) and 2 * len(lost) <= total),
    )


@dataclass(frozen=True, slots=True)
class Nothing:
    """The partition has what it needs to have a leader."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing can be done here; ``reason`` says what would help."""

    reason: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Go on with ``leader``.

    ``base``: the state from which that broker begins a generation alone, above ``generation``; None
    where the group has its majority and ``command`` is to be proposed to it. ``lost``: records that
    are known to be lost by it; ``may_lose``: acknowledged ones may be, these or more.
    """

    leader: BrokerId
    generation: int
    base: PartitionState | None
    command: ElectUnclean | None
    may_lose: bool
    lost: int = 0
    note: str = field(default="", compare=False)


Plan: TypeAlias = Nothing | Blocked | GoOn


def plan(reports: Sequence[Report], birth: PartitionState) -> Plan:
    """What it takes that the partition has a leader. ``birth``: the state that its group began
    with, for when nobody knows a newer one. ``reports``: of all brokers that are there.
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
        and _is_sound(there[broker])
    ]
    if members and loss.has_majority:
        return Nothing()
    generation = max([r.standing.generation for r in reports if r.standing is not None], default=0)
    if members and (loss.is_certain or state.replicas == (loss.newest.broker,)):
        leader = max(members, key=_order(state))
        note = f"broker {leader.broker} was in sync: nothing that was acknowledged is lost"
        base = _above_unseen(state)
        return GoOn(leader.broker, generation, base, None, may_lose=False, note=note)
    copies = [there[b] for b in state.replicas if b in there and _is_sound(there[b])]
    if not copies:
        names = ", ".join(map(str, state.replicas))
        return Blocked(
            f"none of the brokers that store it ({names}) is there with a sound copy or an empty "
            "disk: start one of them, with an empty data directory if its disk is lost"
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
    told = max((r.copy.high_watermark for r in reports if r.copy is not None), default=0)
    lost = max(0, told - end)
    note = _price(state, loss, leader, lost)
    before = state if loss.has_majority else _above_unseen(state)
    command = ElectUnclean(before.version, leader.broker, leader.directory_id, leader.boot)
    if loss.has_majority:
        return GoOn(leader.broker, generation, None, command, True, lost, note)
    changed = apply(before, command)
    assert isinstance(changed, Accepted), "the leader is a replica, and the version is the state's"
    return GoOn(leader.broker, generation, changed.state, None, True, lost, note)


def _above_unseen(state: PartitionState) -> PartitionState:
    """The state, with a version and an epoch that those that are gone have not come to."""
    return replace(
        state,
        version=state.version + UNSEEN_ELECTIONS,
        leader_epoch=state.leader_epoch + UNSEEN_ELECTIONS,
    )


def _price(state: PartitionState, loss: GroupLoss, leader: Report, lost: int) -> str:
    """What is, or may be, lost with this leader, as a sentence."""
    has = "nothing" if leader.copy is None or not leader.copy.end else (
        f"the records below offset {leader.copy.end}"
    )  # fmt: skip
    known = f"{lost} records are lost" if lost else "how many records are lost is not known"
    is_member = leader.directory_id in (state.isr.get(leader.broker), state.elr.get(leader.broker))
    if is_member:
        return (
            f"broker {leader.broker} has {has}, and was in sync when it last heard of brokers "
            f"{loss.lost_names}. It was restarted or isolated after that, so it cannot know "
            "whether they went on without it: what they then acknowledged, if anything, is lost"
        )
    others = ", ".join(str(b) for b in sorted({*state.isr, *state.elr}))
    at = "" if has != "nothing" else ", so it begins again at offset 0: reset what reads it"
    return (
        f"broker {leader.broker} has {has}{at}; who was in sync (brokers {others}) is not there "
        f"with its disk: {known}"
    )


def _newest_state(
    reports: Sequence[Report], loss: GroupLoss, birth: PartitionState
) -> PartitionState:
    by_voters = next(
        (r.state for r in reports if r.standing is loss.newest and loss.newest.has_vote), None
    )
    if by_voters is not None:
        return by_voters
    told = [report.state for report in reports if report.state is not None]
    return max([birth, *told], key=lambda state: state.version)


def _order(state: PartitionState) -> Callable[[Report], tuple[LeaderEpoch, Offset, bool, int]]:
    """The longest log is the greatest; of equal ones a member of the ISR, then the preferred."""

    def key(report: Report) -> tuple[LeaderEpoch, Offset, bool, int]:
        copy = report.copy
        epoch, end = (-1, -1) if copy is None else (copy.last_epoch, copy.end)
        is_member = state.isr.get(report.broker) == report.directory_id
        return epoch, end, is_member, -state.replicas.index(report.broker)

    return key


def _is_sound(report: Report) -> bool:
    return report.copy is None or not report.copy.damage


def _nowhere(birth: PartitionState) -> Standing:
    """Of a group that nobody has: its first voters."""
    return Standing(
        broker=-1,
        directory_id="",
        generation=0,
        term=0,
        index=0,
        voters={**birth.isr, **dict.fromkeys(birth.witnesses, "?")},
    )
