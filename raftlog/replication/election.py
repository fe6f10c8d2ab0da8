"""Leader elections and replica replacements: proposals of the partition controller.

Every function is deterministic: equal states and equal views of the brokers produce equal
proposals. A wrong view can cause an unnecessary election but no data loss, because ``apply``
validates every proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

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
    for members in (state.isr, state.elr):
        found = [
            broker
            for broker in _there(order, members, state, view)
            if broker != without
            and (reports is None or _is_sound(reports.get(broker), view.boot_of(broker)))
        ]
        if found:
            best = max(found, key=lambda broker: reports[broker].length) if reports else found[0]
            return _elect(state, best, members[best], view)
    return None


def _is_sound(report: CopyReport | None, boot: int | None) -> bool:
    """Return whether the broker reported a complete copy in its current incarnation."""
    return (
        report is not None
        and report.standing is Standing.SOUND
        and (boot is None or report.boot == boot)
    )


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
        is_member = directory_id is not None and view.directory_of(broker) == directory_id
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
