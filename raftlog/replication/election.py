"""Who is to lead a partition, and who is to store it: proposals of its arbiter.

Every function is deterministic: the same state and the same view of the brokers give the same
proposal. A wrong view can cost an election, never a record: ``apply`` has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from raftlog.replication.commands import BrokerId, ChangeReplicas, DirectoryId, Elect
from raftlog.replication.partition_state import PartitionState, Rejected, apply

IsLive = Callable[[BrokerId], bool]
DirectoryOf = Callable[[BrokerId], DirectoryId | None]
BootOf = Callable[[BrokerId], int | None]


def choose_leader(
    state: PartitionState,
    *,
    arbiter: BrokerId,
    is_live: IsLive,
    directory_of: DirectoryOf,
    boot_of: BootOf | None = None,
) -> Elect | None:
    """The election that the partition needs; None: its leader is there, or nobody can lead it.

    The arbiter itself comes first, then the preferred order. A member of the ELR leads only when no
    member of the ISR can. With ``boot_of``, a leader whose process is not the one that was elected
    is not there: it may have lost what it had not synced (S17).
    """
    if has_leader(state, is_live=is_live, directory_of=directory_of, boot_of=boot_of):
        return None
    order = [arbiter, *(broker for broker in state.replicas if broker != arbiter)]
    for members in (state.isr, state.elr):
        for broker in _there(order, members, state, is_live, directory_of):
            return _elect(state, broker, members[broker], boot_of)
    return None


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
