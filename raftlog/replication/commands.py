"""Commands of a partition's Raft group: four kinds, and their encoding.

Each command contains the version of the state for which it was created. The group rejects it in any
other version, so a late command changes nothing (S08).

    | kind u8 | msgpack array of the fields, in the order of the classes below |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.types import LeaderEpoch

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
