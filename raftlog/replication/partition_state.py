"""State of a partition's Raft group, and ``apply``, the only function that changes it.

``apply`` is a compare-and-set: it rejects a command that was created for another version. Of two
concurrent commands, one is accepted and the other is rejected. It depends on its arguments only.

The main invariant: *each member of the ISR and of the ELR durably stores all committed records*. A
leader commits only records that the complete maximal ISR has (``leadership``), and only while the
ISR has ``min_isr`` members. Members that leave an ISR which is then too small to commit therefore
still have all committed records. They are kept as *eligible leader replicas* (the ELR, KIP-966)
until the ISR has ``min_isr`` members again and the high watermark can advance without them.

``min_isr`` is part of the state, because the invariant requires that all replicas use the same
value. Only ``ChangeIsr`` changes it, and both directions are safe:

- Lowering it can allow a small ISR to commit again. The same command clears the ELR, and the leader
  applies the lower value only after the command is committed.
- Raising it makes no additional broker eligible: only members that leave in the same command or
  later enter the ELR. Until the leader knows that the command is committed, it counts the leaving
  members (a proposed removal counts after its commit), so they have all records committed until
  then. The leader applies the higher value from the moment of the proposal.

The same argument applies to a deposed leader that does not know of its successor. Its ISR is an
earlier version plus its own proposals. It contains the new leader, which was elected from it and
has stopped fetching from the old leader. The old high watermark therefore cannot exceed the log end
of the new leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.types import LeaderEpoch

# -- commands --------------------------------------------------------------------------------------
#
# Commands of a partition's Raft group: four kinds, and their encoding.
#
# Each command contains the version of the state for which it was created. The group rejects it in
# any other version, so a late command changes nothing (S08).
#
#     | kind u8 | msgpack array of the fields, in the order of the classes below |


BrokerId: TypeAlias = int
DirectoryId: TypeAlias = str  # identity of a data directory; a wiped broker gets a new one

DIRECTORY_ID_CHARS_MAX: Final = 255
VOTERS_MAX: Final = 1_000  # replicas or witnesses of one partition

# Field types with bounds; ``partition_state`` uses the same.
WireCounter = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
WireEpoch = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: none
WireBroker = Annotated[int, Meta(ge=0, lt=1 << 31)]
WireMinIsr = Annotated[int, Meta(ge=1, lt=1 << 31)]
WireDirectory = Annotated[str, Meta(min_length=1, max_length=DIRECTORY_ID_CHARS_MAX)]
WireBrokers = Annotated[tuple[WireBroker, ...], Meta(max_length=VOTERS_MAX)]
WireMembers = Annotated[dict[WireBroker, WireDirectory], Meta(max_length=VOTERS_MAX)]

encode_fields: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Elect:
    """Elect a member of the ISR or the ELR in a new epoch, also if it is already the leader.

    ``boot``: incarnation of the leader's process. A leader that restarts must be elected again,
    because records that it wrote in the old epoch may be lost (S17, KAFKA-10527).
    """

    version: int
    leader: BrokerId
    directory_id: DirectoryId
    boot: int = 0

    def encode(self) -> bytes:
        return _encode(1, self.version, self.leader, self.directory_id, self.boot)


@dataclass(frozen=True, slots=True)
class ChangeIsr:
    """Change the ISR and the number of members that a commit requires. Proposed by the leader.

    ``lost``: replicas with a corrupt or missing copy on an unchanged disk (P6). They leave without
    becoming eligible, and the epoch increases. A broker also proposes this for itself, in the ISR
    or not, and then changes nothing else. Its earlier acknowledgements can still add it to the ISR
    until it receives a state with an epoch above every epoch in which it fetched, and without it in
    the ISR and the ELR. Until then it must not lead, fetch, or discard the mark of its lost copy.
    It then restarts from an empty log.
    """

    version: int
    leader_epoch: LeaderEpoch
    isr: Mapping[BrokerId, DirectoryId]
    min_isr: int
    lost: tuple[BrokerId, ...] = field(default=())

    def encode(self) -> bytes:
        isr = in_order(self.isr)
        return _encode(2, self.version, self.leader_epoch, isr, self.min_isr, self.lost)


@dataclass(frozen=True, slots=True)
class ChangeReplicas:
    """Set the replicas, preferred leader first, and the witnesses, which vote only."""

    version: int
    replicas: tuple[BrokerId, ...]
    witnesses: tuple[BrokerId, ...]

    def encode(self) -> bytes:
        return _encode(3, self.version, self.replicas, self.witnesses)


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """Elect any replica, although its log may lack committed records. Proposed for an operator."""

    version: int
    leader: BrokerId
    directory_id: DirectoryId
    boot: int = 0

    def encode(self) -> bytes:
        return _encode(4, self.version, self.leader, self.directory_id, self.boot)


Command: TypeAlias = Elect | ChangeIsr | ChangeReplicas | ElectUnclean

_ELECT: Final = tuple[WireCounter, WireBroker, WireDirectory, WireCounter]
_CHANGE_ISR: Final = tuple[WireCounter, WireCounter, WireMembers, WireMinIsr, WireBrokers]
_CHANGE_REPLICAS: Final = tuple[WireCounter, WireBrokers, WireBrokers]
_KINDS: Final[dict[int, tuple[type[Any], msgspec.msgpack.Decoder[Any]]]] = {
    1: (Elect, msgspec.msgpack.Decoder(_ELECT)),
    2: (ChangeIsr, msgspec.msgpack.Decoder(_CHANGE_ISR)),
    3: (ChangeReplicas, msgspec.msgpack.Decoder(_CHANGE_REPLICAS)),
    4: (ElectUnclean, msgspec.msgpack.Decoder(_ELECT)),
}


def in_order(members: Mapping[BrokerId, DirectoryId]) -> dict[BrokerId, DirectoryId]:
    """Return ``members`` sorted by ID, so that equal members have equal bytes on every broker."""
    return {broker: members[broker] for broker in sorted(members)}


def _encode(kind: int, *fields: object) -> bytes:
    return bytes([kind]) + encode_fields(fields)


def decode_command(data: bytes) -> Command:
    """Decode a command. ``apply`` validates it. Raises ``ValueError`` if the bytes are invalid."""
    if not data or data[0] not in _KINDS:
        raise ValueError("unknown kind of command")
    kind, decoder = _KINDS[data[0]]
    try:
        command: Command = kind(*decoder.decode(data[1:]))
    except ValueError as error:
        raise ValueError(f"invalid {kind.__name__} command: {error}") from None
    return command


# -- partition state -------------------------------------------------------------------------------


Members: TypeAlias = Mapping[BrokerId, DirectoryId]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Committed state of a partition.

    Invariants: ``isr`` is not empty and contains the leader. ``isr``, ``elr`` and ``former``
    contain replicas only and are disjoint. ``elr`` is empty unless ``isr`` has fewer than
    ``min_isr`` members.
    """

    replicas: tuple[BrokerId, ...]  # store the records; the preferred leader is first
    witnesses: tuple[BrokerId, ...]  # vote only, store no records
    min_isr: int  # at least 1
    leader: BrokerId | None
    leader_epoch: LeaderEpoch  # incremented by an election and when a copy is removed or lost
    isr: Members
    elr: Members  # left an ISR that was then below min_isr; have all committed records
    former: Members  # left earlier; candidates for unclean elections only
    version: int  # incremented by every accepted command
    leader_boot: int = 0  # incarnation of the elected leader
    # Last epoch of the last leader from an unclean election; -1: none. This leader may lack
    # committed records, so followers may truncate them (``leadership.may_lose_committed``).
    unclean_epoch: LeaderEpoch = -1

    def encode(self) -> bytes:
        """Encode the state, with equal bytes on every broker. ``decode_state`` reads them."""
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
        return bytes([STATE_FORMAT]) + encode_fields(fields)


STATE_FORMAT: Final = 2
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
    """Decode a state. Raises ``ValueError`` if the bytes are invalid."""
    if data[:1] != bytes([STATE_FORMAT]):
        raise ValueError("unknown format of partition state")
    try:
        return PartitionState(*_STATE.decode(data[1:]))
    except ValueError as error:
        raise ValueError(f"invalid partition state: {error}") from None


def initial_state(
    replicas: Iterable[BrokerId],
    witnesses: Iterable[BrokerId],
    directories: Mapping[BrokerId, DirectoryId],
    min_isr: int,
    leader_boot: int = 0,
) -> PartitionState:
    """Return the state of a new, empty partition: all replicas in sync, the first one leads.

    ``directories``: data directory of at least each replica. ``min_isr``: at least 1.
    ``leader_boot``: incarnation of the first replica, which leads in epoch 1 without an election,
    because the ``cluster`` group has committed it with the topic. The state equals that after
    an election of this broker. 0: the first replica must be elected before it leads.
    """
    chosen = tuple(replicas)
    assert chosen and min_isr >= 1
    # guard: the first leader has a new epoch
    return PartitionState(
        replicas=chosen,
        witnesses=tuple(witnesses),
        min_isr=min_isr,
        leader=chosen[0],
        leader_epoch=1 if leader_boot else 0,
        isr={broker: directories[broker] for broker in sorted(chosen)},
        elr={},
        former={},
        version=1 if leader_boot else 0,
        leader_boot=leader_boot,
    )


@dataclass(frozen=True, slots=True)
class Accepted:
    """The command was applied. ``state``: the new state."""

    state: PartitionState


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command was rejected. ``state``: the unchanged state."""

    reason: str
    state: PartitionState


def apply(state: PartitionState, command: Command) -> Accepted | Rejected:
    """Apply ``command`` to ``state``. Deterministic. Raises no errors."""
    # guard: commands are for one version
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
    # guard: every change is a new version
    return Accepted(replace(changed, version=state.version + 1))


def _elect(state: PartitionState, command: Elect) -> PartitionState | str:
    leader, directory_id = command.leader, command.directory_id
    isr, elr = state.isr, state.elr
    # guard: a leader is elected with its directory
    if isr.get(leader) != directory_id:
        # guard: only members of the ISR or ELR lead
        if elr.get(leader) != directory_id:
            return f"broker {leader} is not in the ISR or ELR with directory {directory_id!r}"
        # If the ELR is not empty, the ISR is too small to commit: all its members stay eligible.
        # guard: a leader from the ELR is alone in the ISR
        isr, elr = {leader: directory_id}, _without({**elr, **isr}, {leader})
    # guard: an election is for one incarnation of the leader
    # guard: an election is a new epoch
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
    # guard: an unclean election is a new epoch
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
    # guard: the ISR is changed in the leader's own epoch
    if command.leader_epoch != state.leader_epoch:
        return f"made in leader epoch {command.leader_epoch} of {state.leader_epoch}"
    # guard: min_isr is at least 1
    if command.min_isr < 1:
        return f"min_isr cannot be {command.min_isr}"
    # guard: the leader is in the ISR
    if state.leader is None or isr.get(state.leader) != state.isr.get(state.leader):
        return "the ISR must contain the leader with the directory of its election"
    # guard: only replicas are in the ISR
    if strangers:
        return f"brokers {sorted(strangers)} are not replicas"
    # guard: a copy is in sync or lost
    if lost & isr.keys():
        return f"brokers {sorted(lost & isr.keys())} are in sync and lost"
    # guard: a lost copy is not eligible
    outside = lost | isr.keys()  # of the ELR and the former ones
    left, former = _members_left(state, outside), _without(state.former, outside)
    elr = _elr_after(isr, command.min_isr, left)
    # guard: a lost copy ends the epoch
    return replace(
        # Acknowledgements of a lost copy, also those in transit, must not count: see
        # ``_change_replicas``. The new epoch invalidates fetches and ISR changes of the old one.
        _in_next_epoch(state) if lost else state,
        min_isr=command.min_isr,
        isr=isr,
        elr=elr,
        former=_without({**former, **left}, elr.keys()),
    )


def _in_next_epoch(state: PartitionState) -> PartitionState:
    """Return the state with a new epoch of the same leader."""
    epoch, is_unclean = state.leader_epoch + 1, state.unclean_epoch == state.leader_epoch
    return replace(
        state, leader_epoch=epoch, unclean_epoch=epoch if is_unclean else state.unclean_epoch
    )


def _members_left(state: PartitionState, outside: Iterable[BrokerId]) -> dict[BrokerId, str]:
    """Return the members of the ISR and the ELR that are not in ``outside``."""
    return _without({**state.elr, **state.isr}, outside)


def _elr_after(isr: Members, min_isr: int, left: dict[BrokerId, str]) -> dict[BrokerId, str]:
    """Return the new ELR: members that left stay eligible while the ISR cannot commit (KIP-966)."""
    # guard: the ELR is cleared when the ISR can commit
    # guard: those that leave a small ISR stay eligible
    return left if len(isr) < min_isr else {}


def _change_replicas(state: PartitionState, command: ChangeReplicas) -> PartitionState | str:
    replicas, witnesses = command.replicas, command.witnesses
    dropped = set(state.replicas) - set(replicas)
    isr, elr = _without(state.isr, dropped), _without(state.elr, dropped)
    # guard: replicas and witnesses are different brokers
    if not replicas or len({*replicas, *witnesses}) != len(replicas) + len(witnesses):
        return "replicas and witnesses must be different brokers, with at least one replica"
    # guard: the leader is not removed
    if state.leader in dropped:
        return f"broker {state.leader} is the leader: transfer leadership before it is removed"
    # guard: one member of the ISR is left
    if not isr:
        return "no member of the ISR would be left"
    # guard: required copies are not removed
    if (len(isr) < len(state.isr) or len(elr) < len(state.elr)) and len(isr) < state.min_isr:
        return (
            f"brokers {sorted(dropped)} are needed: the ISR would have fewer than min_isr members"
        )
    # guard: a removed replica ends the epoch
    return replace(
        # Reports of a removed replica must not count, even if it is added again before the leader
        # knows of its removal (S20): the new epoch fences it.
        _in_next_epoch(state) if dropped else state,
        replicas=replicas,
        witnesses=witnesses,
        isr=isr,
        elr=elr,
        former=_without(state.former, dropped),
    )


def _without(members: Members, gone: Iterable[BrokerId]) -> dict[BrokerId, DirectoryId]:
    """Return ``members`` without ``gone``, by ID, so that equal states are encoded equally."""
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
        """Apply an encoded command. Rejects invalid bytes and never raises."""
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
        """Replace the state. Raises ``ValueError`` if the bytes are invalid."""
        self._become(decode_state(snapshot))

    def _become(self, state: PartitionState) -> None:
        self.state = state
        if self.on_change is not None:
            self.on_change()
