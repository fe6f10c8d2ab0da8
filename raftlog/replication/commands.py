"""What may be proposed to a partition's Raft group: four commands and their bytes.

Each names the version of the state that it was made for. The group applies it to that version or
not at all, so a late one changes nothing (S08).

    | kind u8 | msgpack array of the fields, in the order in which they stand below |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from raftlog.types import LeaderEpoch

BrokerId: TypeAlias = int
DirectoryId: TypeAlias = str  # the identity of a data directory; a wiped broker has a new one

DIRECTORY_ID_CHARS_MAX: Final = 255
VOTERS_MAX: Final = 1_000  # of one partition, replicas or witnesses

# What the bytes may hold; ``partition_state`` encodes with the same.
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
    """Make a member of the ISR or the ELR the leader, in a new epoch, even if it leads already.

    ``boot`` is the run of the leader's process: one that starts again has to be elected again,
    because what it wrote in the old epoch may be gone (S17, KAFKA-10527).
    """

    version: int
    leader: BrokerId
    directory_id: DirectoryId
    boot: int = 0

    def encode(self) -> bytes:
        return _encode(1, self.version, self.leader, self.directory_id, self.boot)


@dataclass(frozen=True, slots=True)
class ChangeIsr:
    """The leader's own: what the ISR is from now on, and how many members a commit takes.

    ``lost``: replicas whose copy is damaged or gone though their disk is the same (P6). They leave
    without becoming eligible, and the epoch grows. A broker proposes this of itself, whether it is
    in the ISR or not, and changes nothing else. Until it has heard of an epoch that is newer than
    any in which it had fetched, in which it is neither in the ISR nor in the ELR, what it once
    acknowledged may still bring it in: it must not lead, fetch, or forget that its copy is lost.
    Then it begins again with an empty log.
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
    """Who stores the partition and who only votes. The preferred leader comes first."""

    version: int
    replicas: tuple[BrokerId, ...]
    witnesses: tuple[BrokerId, ...]

    def encode(self) -> bytes:
        return _encode(3, self.version, self.replicas, self.witnesses)


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """An operator's: lead with any replica's log, whatever was committed and is not in it."""

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
    """By id, so that what is equal has the same bytes everywhere."""
    return {broker: members[broker] for broker in sorted(members)}


def _encode(kind: int, *fields: object) -> bytes:
    return bytes([kind]) + encode_fields(fields)


def decode_command(data: bytes) -> Command:
    """Raises ``ValueError`` for bytes that are no command. Whether it is a good one: ``apply``."""
    if not data or data[0] not in _KINDS:
        raise ValueError("no command of a known kind")
    kind, decoder = _KINDS[data[0]]
    try:
        command: Command = kind(*decoder.decode(data[1:]))
    except ValueError as error:
        raise ValueError(f"no {kind.__name__} command: {error}") from None
    return command
