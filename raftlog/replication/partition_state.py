"""What a partition's Raft group agrees on, and the one function that changes it.

``apply`` is compare-and-set: a command that was made for another version is rejected, so that of
two that compete one wins and the other finds out. It reads nothing but its arguments.

The rule that everything rests on: *each member of the ISR and of the ELR holds, durably, all that
was ever committed*. A leader commits only what the whole maximal ISR holds (``leadership``), and
only while the ISR has ``min_isr`` members. So those that leave an ISR which is then too small to
commit anything still hold everything: they are kept as *eligible leader replicas* (the ELR,
KIP-966) until the ISR has ``min_isr`` members again and the high watermark may move without them.

``min_isr`` is part of the state because that rule needs every replica to mean the same number.
Only ``ChangeIsr`` changes it, and both directions are safe:

- Lowering it may let a small ISR commit again. The same command that lowers it clears the ELR, and
  the leader commits by the lower number only once it has seen that command committed.
- Raising it makes nobody eligible who was not: only members that leave in the same command or later
  enter the ELR. Until the leader knows that the command is committed it counts those that leave as
  members (a proposed removal counts once committed), so they hold all it has committed meanwhile;
  and it holds itself to the higher number from the moment it proposes it.

The same argument covers a leader that was deposed and does not know: what it counts as the ISR is
some earlier version of it plus what it proposed. It holds the new leader, which was elected from
there and has stopped fetching from the old one: the old high watermark cannot pass what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from raftlog.replication.commands import (
    BrokerId,
    ChangeIsr,
    ChangeReplicas,
    Command,
    DirectoryId,
    Elect,
    ElectUnclean,
    WireBroker,
    WireBrokers,
    WireCounter,
    WireEpoch,
    WireMembers,
    WireMinIsr,
    decode_command,
    encode_fields,
    in_order,
)
from raftlog.types import LeaderEpoch

Members: TypeAlias = Mapping[BrokerId, DirectoryId]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Invariants: ``isr`` is not empty and holds the leader; ``isr``, ``elr`` and ``former`` name
    replicas, each at most once; ``elr`` is empty unless ``isr`` has fewer than ``min_isr`` members.
    """

    replicas: tuple[BrokerId, ...]  # store the records; the preferred leader first
    witnesses: tuple[BrokerId, ...]  # vote, and store nothing
    min_isr: int  # at least 1
    leader: BrokerId | None
    leader_epoch: LeaderEpoch  # grows by one at an election, and when a copy is dropped or lost
    isr: Members
    elr: Members  # left an ISR that was then below min_isr; hold all that is committed
    former: Members  # left before that; for an unclean election, never for a clean one
    version: int  # grows by one at every accepted command
    leader_boot: int = 0  # the run of the leader's process that was elected
    # The last epoch of the last leader that was elected uncleanly; -1: there was none. It may lack
    # what was committed before, so a follower may lose that (``following.may_lose_committed``).
    unclean_epoch: LeaderEpoch = -1

    def encode(self) -> bytes:
        """The same bytes on every broker; ``decode_state`` reads them."""
        fields = (
            self.replicas,
            self.witnesses,
            self.min_isr,
            self.leader,
            self.leader_epoch,
            in_order(self.isr),
            in_order(self.elr),
            in_order(self.former),
            self.version,
            self.leader_boot,
            self.unclean_epoch,
        )
        return bytes([_FORMAT]) + encode_fields(fields)


_FORMAT: Final = 2
_STATE: Final = msgspec.msgpack.Decoder(
    tuple[
        WireBrokers,
        WireBrokers,
        WireMinIsr,
        WireBroker | None,
        WireCounter,
        WireMembers,
        WireMembers,
        WireMembers,
        WireCounter,
        WireCounter,
        WireEpoch,
    ]
)


def decode_state(data: bytes) -> PartitionState:
    """Raises ``ValueError`` for bytes that are no state."""
    if data[:1] != bytes([_FORMAT]):
        raise ValueError("no partition state of a known format")
    try:
        return PartitionState(*_STATE.decode(data[1:]))
    except ValueError as error:
        raise ValueError(f"no partition state: {error}") from None


def initial_state(
    replicas: Iterable[BrokerId],
    witnesses: Iterable[BrokerId],
    directories: Mapping[BrokerId, DirectoryId],
    min_isr: int,
) -> PartitionState:
    """A new partition's: every replica is in sync, having nothing, and the first one leads.

    ``directories`` names at least the replicas'; ``min_isr`` is at least 1.
    """
    chosen = tuple(replicas)
    assert chosen and min_isr >= 1
    return PartitionState(
        replicas=chosen,
        witnesses=tuple(witnesses),
        min_isr=min_isr,
        leader=chosen[0],
        leader_epoch=0,
        isr={broker: directories[broker] for broker in sorted(chosen)},
        elr={},
        former={},
        version=0,
    )


def state_alone(
    broker_id: BrokerId, directory_id: DirectoryId, *, leader_epoch: LeaderEpoch
) -> PartitionState:
    """Of a partition whose only replica leads it, and asks nobody."""
    return PartitionState(
        replicas=(broker_id,),
        witnesses=(),
        min_isr=1,
        leader=broker_id,
        leader_epoch=leader_epoch,
        isr={broker_id: directory_id},
        elr={},
        former={},
        version=0,
    )


@dataclass(frozen=True, slots=True)
class Accepted:
    """``state``: the new one."""

    state: PartitionState


@dataclass(frozen=True, slots=True)
class Rejected:
    """``state``: as it was, and stays."""

    reason: str
    state: PartitionState


def apply(state: PartitionState, command: Command) -> Accepted | Rejected:
    """What ``command`` makes of ``state``. Deterministic; raises nothing."""
    if command.version != state.version:
        return Rejected(f"made for version {command.version} of {state.version}", state)
    match command:
        case Elect():
            changed = _elect(state, command)
        case ChangeIsr():
            changed = _change_isr(state, command)
        case ChangeReplicas():
            changed = _change_replicas(state, command)
        case ElectUnclean():
            changed = _elect_unclean(state, command)
    if isinstance(changed, str):
        return Rejected(changed, state)
    return Accepted(replace(changed, version=state.version + 1))


def _elect(state: PartitionState, command: Elect) -> PartitionState | str:
    leader, directory_id = command.leader, command.directory_id
    isr, elr = state.isr, state.elr
    if isr.get(leader) != directory_id:
        if elr.get(leader) != directory_id:
            return f"broker {leader} is not in the ISR or ELR with directory {directory_id!r}"
        # An ELR that is not empty means an ISR too small to commit: all of it stays eligible.
        isr, elr = {leader: directory_id}, _without({**elr, **isr}, {leader})
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        leader_boot=command.boot,
        isr=isr,
        elr=elr,
    )


def _elect_unclean(state: PartitionState, command: ElectUnclean) -> PartitionState | str:
    leader = command.leader
    if leader not in state.replicas:
        return f"broker {leader} is not a replica"
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        leader_boot=command.boot,
        isr={leader: command.directory_id},
        elr={},
        former=_without({**state.former, **state.elr, **state.isr}, {leader}),
        unclean_epoch=state.leader_epoch + 1,
    )


def _change_isr(state: PartitionState, command: ChangeIsr) -> PartitionState | str:
    isr, lost = in_order(command.isr), set(command.lost)
    strangers = (isr.keys() | lost) - set(state.replicas)
    if command.leader_epoch != state.leader_epoch:
        return f"made in leader epoch {command.leader_epoch} of {state.leader_epoch}"
    if command.min_isr < 1:
        return f"min_isr cannot be {command.min_isr}"
    if state.leader is None or isr.get(state.leader) != state.isr.get(state.leader):
        return "an ISR without the leader (on the disk it was elected with)"
    if strangers:
        return f"brokers {sorted(strangers)} are not replicas"
    if lost & isr.keys():
        return f"brokers {sorted(lost & isr.keys())} are in sync and lost"
    outside = lost | isr.keys()  # of the ELR and the former ones
    left, former = _members_left(state, outside), _without(state.former, outside)
    elr = _elr_after(isr, command.min_isr, left)
    return replace(
        # What a lost copy has acknowledged counts no more, wherever it is on its way: see
        # ``_change_replicas``. Fetches and ISR changes of the epoch so far are void.
        _in_next_epoch(state) if lost else state,
        min_isr=command.min_isr,
        isr=isr,
        elr=elr,
        former=_without({**former, **left}, elr.keys()),
    )


def _in_next_epoch(state: PartitionState) -> PartitionState:
    """The state with a new epoch of the same leader."""
    epoch, is_unclean = state.leader_epoch + 1, state.unclean_epoch == state.leader_epoch
    return replace(
        state, leader_epoch=epoch, unclean_epoch=epoch if is_unclean else state.unclean_epoch
    )


def _members_left(state: PartitionState, outside: Iterable[BrokerId]) -> dict[BrokerId, str]:
    """Of those that hold all that is committed, the ones not in ``outside``."""
    return _without({**state.elr, **state.isr}, outside)


def _elr_after(isr: Members, min_isr: int, left: dict[BrokerId, str]) -> dict[BrokerId, str]:
    """KIP-966: those that left stay eligible exactly while the ISR cannot commit without them."""
    return left if len(isr) < min_isr else {}


def _change_replicas(state: PartitionState, command: ChangeReplicas) -> PartitionState | str:
    replicas, witnesses = command.replicas, command.witnesses
    dropped = set(state.replicas) - set(replicas)
    isr, elr = _without(state.isr, dropped), _without(state.elr, dropped)
    if not replicas or len({*replicas, *witnesses}) != len(replicas) + len(witnesses):
        return "replicas and witnesses have to be different brokers, with at least one replica"
    if state.leader in dropped:
        return f"broker {state.leader} leads: another one has to, before it is dropped"
    if not isr:
        return "no member of the ISR would be left"
    if (len(isr) < len(state.isr) or len(elr) < len(state.elr)) and len(isr) < state.min_isr:
        return (
            f"brokers {sorted(dropped)} are needed: the ISR would have fewer than min_isr members"
        )
    return replace(
        # What a dropped replica said counts no more, even if it is added again before the leader
        # has seen that it was dropped (S20): the epoch fences it.
        _in_next_epoch(state) if dropped else state,
        replicas=replicas,
        witnesses=witnesses,
        isr=isr,
        elr=elr,
        former=_without(state.former, dropped),
    )


def _without(members: Members, gone: Iterable[BrokerId]) -> dict[BrokerId, DirectoryId]:
    """In the order of the ids, so that equal states look the same everywhere."""
    absent = set(gone)
    return {broker: members[broker] for broker in sorted(members) if broker not in absent}


class PartitionMachine:
    """The replicated state machine of a partition's Raft group."""

    def __init__(self, base: bytes, on_change: Callable[[], None] | None = None) -> None:
        """``base``: an encoded state. ``on_change`` is called after every change of ``state``."""
        self.state = decode_state(base)
        self.on_change = on_change

    @staticmethod
    def encode(state: PartitionState) -> bytes:
        return state.encode()

    def apply(self, command: bytes) -> Accepted | Rejected:
        """Never raises: bytes that are no command are rejected."""
        try:
            decoded = decode_command(command)
        except ValueError as error:
            return Rejected(str(error), self.state)
        result = apply(self.state, decoded)
        if isinstance(result, Accepted):
            self._become(result.state)
        return result

    def snapshot(self) -> bytes:
        return self.state.encode()

    def restore(self, snapshot: bytes) -> None:
        """Raises ``ValueError`` for bytes that are no state."""
        self._become(decode_state(snapshot))

    def _become(self, state: PartitionState) -> None:
        self.state = state
        if self.on_change is not None:
            self.on_change()
