"""Who is to lead a partition, and who is to store it: proposals of its arbiter.

Every function is deterministic: the same state and the same view of the brokers give the same
proposal. A wrong view can cost an election, never a record: ``apply`` has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from raftlog.replication.commands import (
    BrokerId,
    ChangeReplicas,
    DirectoryId,
    Elect,
    ElectUnclean,
)
from raftlog.replication.partition_state import PartitionState, Rejected, apply
from raftlog.types import LeaderEpoch, Offset

IsLive = Callable[[BrokerId], bool]
DirectoryOf = Callable[[BrokerId], DirectoryId | None]
BootOf = Callable[[BrokerId], int | None]


class Standing(IntEnum):
    """What a copy says of what it has acknowledged."""

    SOUND = 0  # all of it is there
    UNSURE = 1  # some may be missing: a torn end, or an unclean stop with flush.policy=os
    DAMAGED = 2  # some is missing


class CopyReport(NamedTuple):
    """What one replica's copy holds, as its broker has said in the run ``boot``.

    ``end_offset``: the end of its valid records, as far as they may be acknowledged;
    ``last_epoch``: the leader epoch of the last of them, -1 for none.
    """

    standing: Standing
    last_epoch: LeaderEpoch
    end_offset: Offset
    version: int  # of the partition's state, as far as the broker knows it
    directory_id: DirectoryId
    boot: int

    @property
    def length(self) -> tuple[LeaderEpoch, Offset]:
        """Of two logs, the one with the greater length holds all committed records of the other.

        As in Raft: a leader of a later epoch began with everything that was committed before it,
        and two logs with the same last epoch are prefixes of one log.
        """
        return self.last_epoch, self.end_offset


Reports: TypeAlias = Mapping[BrokerId, CopyReport]


def choose_leader(
    state: PartitionState,
    *,
    arbiter: BrokerId,
    is_live: IsLive,
    directory_of: DirectoryOf,
    boot_of: BootOf | None = None,
) -> Elect | None:
    """The election that a partition needs that never had a leader; None: nobody can lead it.

    The arbiter itself comes first, then the preferred order. A member of the ELR leads only when no
    member of the ISR can. With ``boot_of``, a leader whose process is not the one that was elected
    is not there: it may have lost what it had not synced (S17).
    """
    if has_leader(state, is_live=is_live, directory_of=directory_of, boot_of=boot_of):
        return None
    return choose_member(
        state, first=arbiter, is_live=is_live, directory_of=directory_of, boot_of=boot_of
    )


def choose_member(
    state: PartitionState,
    *,
    first: BrokerId | None = None,
    without: BrokerId | None = None,
    is_live: IsLive,
    directory_of: DirectoryOf,
    boot_of: BootOf | None = None,
    reports: Reports | None = None,
) -> Elect | None:
    """The election of a member of the ISR or, if none of them can lead, of the ELR.

    Of the members whose copies are sound by ``reports``, the one with the longest log leads; of
    several, ``first``, then the first in the preferred order. Without ``reports`` all are alike.
    ``without`` does not lead, and a member does not that is not live, or on another disk.
    """
    others = (broker for broker in state.replicas if broker != first)
    order = [*((first,) if first is not None else ()), *others]
    for members in (state.isr, state.elr):
        found = [
            broker
            for broker in _there(order, members, state, is_live, directory_of)
            if broker != without
            and (reports is None or _is_sound(reports.get(broker), boot_of and boot_of(broker)))
        ]
        if found:
            best = max(found, key=lambda broker: reports[broker].length) if reports else found[0]
            return _elect(state, best, members[best], boot_of)
    return None


def _is_sound(report: CopyReport | None, boot: int | None) -> bool:
    """Whether a broker has said so in the run in which it is now."""
    return (
        report is not None
        and report.standing is Standing.SOUND
        and (boot is None or report.boot == boot)
    )


def choose_unsure(
    state: PartitionState,
    *,
    reports: Reports,
    directory_of: DirectoryOf,
    gone_seconds: Callable[[BrokerId], float],
    wait_seconds: float,
) -> ElectUnclean | None:
    """The election of a copy that may lack acknowledged records; None while there may be a better.

    For a partition without a leader. Every member of the ISR and of the ELR has to have reported
    that its own copy is unsure or damaged, or to have been gone for ``wait_seconds``, or to have
    lost its disk. Then the longest log of all that reported leads: also of those that were members
    before, whose logs may be longer than what is left of the members'. As long as one of them has
    kept what it acknowledged, nothing that was committed is lost. A damaged copy is known to lack
    something, and leads only if an operator says so; the same goes for one that is shorter than it.
    """
    members = {**state.elr, **state.isr}
    for broker, directory in members.items():
        report = reports.get(broker)
        if report is None:
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


def has_leader(
    state: PartitionState,
    *,
    is_live: IsLive,
    directory_of: DirectoryOf,
    boot_of: BootOf | None = None,
) -> bool:
    """Whether the leader is live, on the disk and (with ``boot_of``) in the run that was elected.

    A disk or run that is not known (None) is no reason to think otherwise.
    """
    leader = state.leader
    if leader is None or not is_live(leader):
        return False
    boot = None if boot_of is None else boot_of(leader)
    return directory_of(leader) in {None, state.isr.get(leader)} and boot in {
        None,
        state.leader_boot,
    }


def transfer(
    state: PartitionState,
    to: BrokerId,
    *,
    is_live: IsLive,
    directory_of: DirectoryOf,
    boot_of: BootOf | None = None,
) -> Elect | str:
    """Give leadership to ``to``, which is in the ISR; or a sentence that says why not."""
    if to == state.leader:
        return f"broker {to} leads already"
    if to in state.witnesses:
        return f"broker {to} is a witness: it votes and stores no records"
    if to not in state.replicas:
        return f"broker {to} is not a replica"
    if not is_live(to):
        return f"broker {to} is not live"
    if to not in state.isr or directory_of(to) != state.isr[to]:
        return f"broker {to} is not in sync"
    return _elect(state, to, state.isr[to], boot_of)


def choose_preferred(
    state: PartitionState,
    *,
    is_live: IsLive,
    directory_of: DirectoryOf,
    boot_of: BootOf | None = None,
) -> Elect | None:
    """Move leadership back to the preferred replica; None: it leads, or it cannot."""
    elect = transfer(
        state, state.replicas[0], is_live=is_live, directory_of=directory_of, boot_of=boot_of
    )
    return elect if isinstance(elect, Elect) else None


def _there(
    order: Iterable[BrokerId],
    members: Mapping[BrokerId, DirectoryId],
    state: PartitionState,
    is_live: IsLive,
    directory_of: DirectoryOf,
) -> Iterator[BrokerId]:
    """Those of ``members`` that can lead: replicas, live, and on the disk that is a member."""
    for broker in order:
        directory_id = members.get(broker)
        is_member = directory_id is not None and directory_of(broker) == directory_id
        if is_member and broker in state.replicas and is_live(broker):
            yield broker


def _elect(
    state: PartitionState, leader: BrokerId, directory_id: DirectoryId, boot_of: BootOf | None
) -> Elect:
    boot = None if boot_of is None else boot_of(leader)
    return Elect(state.version, leader, directory_id, 0 if boot is None else boot)


def choose_replacement(
    state: PartitionState,
    *,
    replication_factor: int,
    dead_seconds: Callable[[BrokerId], float],
    delay_seconds: float,
    is_live: IsLive,
    may_store: Callable[[BrokerId], bool] = lambda _broker: True,
) -> ChangeReplicas | None:
    """Let a live witness store the partition in place of a replica that is gone; None: no need.

    ``dead_seconds``: for how long a broker has been gone, 0 for one that is there.
    ``delay_seconds``: ``replica.replacement.delay.ms``; a replica that is gone for longer is
    replaced. ``may_store``: false for a witness that should get no data (no room, on its way out).

    - A dead replica outside the ISR and the ELR swaps its role with the witness's. It comes back as
      a witness.
    - A dead one in the ELR holds what may be committed nowhere else but at the leader, so it stays;
      the witness becomes a replica beside it. Once that one is in the ISR the ELR is empty.
    - A dead one in the ISR is the leader's to remove first.
    - A replica too many (the dead one came back) becomes a witness again when all others are in
      sync.

    Not to be called while an operator's reassignment of the partition is open.
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
    members = {*state.isr, *state.elr}
    free = [broker for broker in dead if broker not in members]
    recruit = None
    if len(state.replicas) - len(dead) < replication_factor:
        ready = (broker for broker in state.witnesses if is_live(broker) and may_store(broker))
        recruit = next(ready, None)
    if free and recruit is not None:
        return _accepted(state, _swapped(state, free[0], recruit))
    if free and len(state.replicas) > replication_factor:
        return _accepted(state, _demoted(state, free[0]))
    if recruit is not None and any(broker in state.elr for broker in dead):
        witnesses = tuple(broker for broker in state.witnesses if broker != recruit)
        grown = ChangeReplicas(state.version, (*state.replicas, recruit), witnesses)
        return _accepted(state, grown)
    return None


def _drop_surplus(
    state: PartitionState, replication_factor: int, is_live: IsLive
) -> ChangeReplicas | None:
    if len(state.replicas) <= replication_factor:
        return None
    for broker in reversed(state.replicas):
        others = [other for other in state.replicas if other != broker]
        if broker != state.leader and all(o in state.isr and is_live(o) for o in others):
            return _accepted(state, _demoted(state, broker))
    return None


def _swapped(state: PartitionState, dead: BrokerId, recruit: BrokerId) -> ChangeReplicas:
    """Each in the other's place, so that preferred leaders stay as spread as they were."""
    roles = {dead: recruit, recruit: dead}
    return ChangeReplicas(
        state.version,
        tuple(roles.get(broker, broker) for broker in state.replicas),
        tuple(roles.get(broker, broker) for broker in state.witnesses),
    )


def _demoted(state: PartitionState, broker: BrokerId) -> ChangeReplicas:
    replicas = tuple(other for other in state.replicas if other != broker)
    return ChangeReplicas(state.version, replicas, (*state.witnesses, broker))


def _accepted(state: PartitionState, command: ChangeReplicas) -> ChangeReplicas | None:
    """Only what would be accepted is worth proposing."""
    return None if isinstance(apply(state, command), Rejected) else command
