"""Records of the cluster state, and the encoding of the state. ``cluster_state`` changes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import BrokerIdInUseError, InvalidRequestError, StaleBrokerError
from raftlog.replication.commands import BrokerId, DirectoryId
from raftlog.replication.histories import extended
from raftlog.replication.partition_state import PartitionState, initial_state
from raftlog.replication.placement import Assignment
from raftlog.security.acl import Acl
from raftlog.security.delegation import DelegationToken
from raftlog.security.quota import Quota, QuotaEntity, QuotaKey
from raftlog.security.users import User

SNAPSHOT_FORMAT: Final = 5
SNAPSHOT_FORMAT_MIN: Final = 2  # written until ``peer_protocol`` is raised
PEER_PROTOCOL_FIRST: Final = 1
# Version of the protocol between brokers from which the command that creates a partition names its
# first leader.
PEER_PROTOCOL_FIRST_LEADERS: Final = 2
# Version from which the cluster state contains delegation tokens.
PEER_PROTOCOL_TOKENS: Final = 3
# Version from which it contains lost directories and the history of recoveries.
PEER_PROTOCOL_LOST: Final = 4


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True):
    """One broker.

    ``broker_epoch``: increases with every registration (KIP-903). ``boot``: number of starts of the
    data directory. ``fenced``: the broker leads no partition and joins no ISR (KIP-841).
    ``draining``: it is being decommissioned. ``kafka_host``, ``kafka_port``: its address for Kafka
    clients; "" and 0: ``host`` and ``port``.
    """

    id: BrokerId
    host: str
    port: int
    rack: str
    directory_id: DirectoryId
    boot: int
    broker_epoch: int
    fenced: bool
    draining: bool = False
    kafka_host: str = ""
    kafka_port: int = 0


def check_registration(held: BrokerRecord, wanted: BrokerRecord) -> None:
    """Check whether a changed registration can replace the stored one.

    Raises ``BrokerIdInUseError`` or ``StaleBrokerError``.
    """
    address = f"{held.host}:{held.port}"
    if wanted.directory_id != held.directory_id:
        if not held.fenced:
            raise BrokerIdInUseError(
                f"broker ID {held.id} is in use by the live broker at {address}, which has "
                f"another data directory ({held.directory_id}). Configure another ID for this "
                "broker, or stop the other one first to replace it"
            )
        return
    if wanted.boot < held.boot:
        raise StaleBrokerError(
            f"broker {held.id} uses an old copy of its data directory: boot {wanted.boot}, but "
            f"boot {held.boot} was seen before. Start it with an empty directory. It then copies "
            "all data from the other brokers"
        )
    if wanted.boot == held.boot and not held.fenced:
        raise BrokerIdInUseError(
            f"broker ID {held.id} is in use by the live broker at {address}, which has a copy of "
            "this data directory. Configure another ID and an empty directory for this broker"
        )


def removed_text(broker: BrokerId, directory_id: DirectoryId) -> str:
    """Return the reason why a decommissioned broker is rejected."""
    return (
        f"broker {broker} with data directory {directory_id} was decommissioned: it is no longer "
        "part of the cluster. To add this machine again, start the broker with an empty data "
        "directory and --join"
    )


def lost_text(broker: BrokerId, directory_id: DirectoryId) -> str:
    """Return the reason why a directory that was declared lost is rejected."""
    return (
        f"`raftlog cluster recover` has declared data directory {directory_id} of broker {broker} "
        "lost: the cluster has gone on without it, so its records and votes no longer count. Start "
        "the broker with an empty data directory"
    )


def diverged_text(one: BrokerId, other: BrokerId) -> str:
    """Return the reason why two brokers stop that continue after different recoveries."""
    return (
        f"brokers {one} and {other} continue after different recoveries of the cluster, each of "
        "which gave up the other. Both have acknowledged records that the other lacks, and stop. "
        "Decide which side to keep, start the brokers of the other side with empty data "
        "directories, and then those of the side to keep"
    )


@dataclass(frozen=True, slots=True)
class PlacementRange:
    """Partitions created by one command: from ``first_partition`` to that of the next range."""

    first_partition: int
    min_isr: int
    directories: Mapping[BrokerId, DirectoryId]  # of the voters, at creation
    # Incarnations of the voters at creation; empty: the partitions have to elect their leaders.
    boots: Mapping[BrokerId, int] = field(default_factory=dict)


def joined(eras: tuple[PlacementRange, ...], era: PlacementRange) -> tuple[PlacementRange, ...]:
    """Return ``eras`` with ``era`` appended, or merged into the last one if they agree."""
    last = eras[-1] if eras else None
    if (
        last is None
        or last.min_isr != era.min_isr
        or any(last.directories.get(broker, at) != at for broker, at in era.directories.items())
        or any(last.boots.get(broker, boot) != boot for broker, boot in era.boots.items())
        or bool(last.boots) != bool(era.boots)
    ):
        return (*eras, era)
    directories, boots = {**last.directories, **era.directories}, {**last.boots, **era.boots}
    return (*eras[:-1], replace(last, directories=directories, boots=boots))


@dataclass(frozen=True, slots=True)
class InitialState:
    """Initial state of a partition's group. It is immutable and equal on every broker.

    A broker that joins later with an empty journal must start from this state and not from the
    current replicas, directories or settings. ``directories``: of all voters. ``boots``: of all
    voters, if the first replica leads from the start, in that incarnation; otherwise empty.
    """

    replicas: tuple[BrokerId, ...]
    witnesses: tuple[BrokerId, ...]
    directories: Mapping[BrokerId, DirectoryId]
    min_isr: int
    boots: Mapping[BrokerId, int]


def first_state(birth: InitialState) -> PartitionState:
    """Return the base of generation 0 of a partition's group."""
    return initial_state(
        birth.replicas,
        birth.witnesses,
        birth.directories,
        birth.min_isr,
        leader_boot=birth.boots.get(birth.replicas[0], 0),
    )


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One topic. ``id`` distinguishes it from earlier topics of the same name."""

    name: str
    id: str
    replication_factor: int
    partitions: tuple[Assignment, ...]
    overrides: Mapping[str, str]
    config: TopicConfig
    eras: tuple[PlacementRange, ...] = field(repr=False)

    def birth(self, partition: int) -> InitialState:
        """Return the initial voters and state of Raft group generation 0 of the partition."""
        assignment = self.partitions[partition]
        era = next(era for era in reversed(self.eras) if era.first_partition <= partition)
        replicas, witnesses = assignment.first or (assignment.replicas, assignment.witnesses)
        directories = {voter: era.directories[voter] for voter in (*replicas, *witnesses)}
        boots = {voter: era.boots[voter] for voter in directories} if era.boots else {}
        return InitialState(replicas, witnesses, directories, era.min_isr, boots)


@dataclass(slots=True)
class ClusterRecords:
    """The complete cluster state. The defaults are the state before the first command.

    ``next_broker_id``: higher than every ID that was ever used. ``removed``: data directories of
    decommissioned brokers and their former IDs, the oldest first. ``move_throttle``: see
    ``SetMoveThrottle``. ``peer_protocol``: see ``RaisePeerProtocol``. ``lost``: data directories
    that recoveries have declared lost, and the IDs of their brokers, the oldest first.
    ``history``: see ``raftlog.replication.histories``.
    """

    cluster_id: str = ""
    version: int = 0
    brokers: dict[BrokerId, BrokerRecord] = field(default_factory=dict)
    topics: dict[str, TopicRecord] = field(default_factory=dict)  # by name
    users: dict[str, User] = field(default_factory=dict, repr=False)  # by name
    user_secret: bytes = field(default=b"", repr=False)  # since the first user; see PutUser
    tokens: dict[str, DelegationToken] = field(default_factory=dict, repr=False)  # by ID
    acls: set[Acl] = field(default_factory=set)
    quotas: dict[QuotaEntity, Quota] = field(default_factory=dict)  # none is empty
    next_broker_id: BrokerId = 0
    removed: dict[DirectoryId, BrokerId] = field(default_factory=dict)
    move_throttle: int = limits.MOVE_THROTTLE_DEFAULT
    peer_protocol: int = PEER_PROTOCOL_FIRST
    lost: dict[DirectoryId, BrokerId] = field(default_factory=dict)
    history: tuple[str, ...] = ()

    def declare_lost(self, directories: Iterable[tuple[DirectoryId, BrokerId]]) -> None:
        """Note that these directories may not come back. See ``DeclareLost``."""
        lost = {**self.lost, **dict(directories)}
        self.lost = dict([*lost.items()][-limits.LOST_DIRECTORIES_MAX :])


@dataclass(frozen=True, slots=True)
class Done:
    """The command was accepted. ``value``: result, as documented for the command."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was rejected without a change. ``code``: of an error in ``raftlog.errors``."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """Possible differences: names of topics and users (including deleted ones), IDs of brokers and
    delegation tokens, access rules and quotas. ``is_upgrade``: ``peer_protocol`` was raised.
    """

    topics: frozenset[str] = frozenset()
    brokers: frozenset[BrokerId] = frozenset()
    users: frozenset[str] = frozenset()
    tokens: frozenset[str] = frozenset()
    acls: frozenset[Acl] = frozenset()
    quotas: frozenset[QuotaEntity] = frozenset()
    is_upgrade: bool = False


# -- as bytes -----------------------------------------------------------------------------------


Place = Annotated[int, Meta(ge=0)]


class _EraRow(msgspec.Struct, frozen=True, array_like=True):
    first_partition: int
    min_isr: int
    directories: list[tuple[BrokerId, Place]]  # places in the snapshot's list of directories
    boots: list[tuple[BrokerId, int]] = []


class _TopicRow(msgspec.Struct, frozen=True, array_like=True):
    name: str
    id: str
    replication_factor: int
    partitions: tuple[Assignment, ...]
    overrides: dict[str, str]
    eras: list[_EraRow]


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Encoded state. It contains each directory ID (32 characters) once; topics refer to it."""

    format: int
    cluster_id: str
    version: int
    directories: list[DirectoryId]
    brokers: list[BrokerRecord]
    topics: list[_TopicRow]
    users: list[User] = []
    user_secret: bytes = b""
    acls: list[Acl] = []
    quotas: list[tuple[QuotaEntity, dict[QuotaKey, float]]] = []
    next_broker_id: int = 0
    removed: list[tuple[DirectoryId, BrokerId]] = []
    move_throttle: int = limits.MOVE_THROTTLE_DEFAULT
    peer_protocol: int = PEER_PROTOCOL_FIRST
    tokens: list[DelegationToken] = []
    lost: list[tuple[DirectoryId, BrokerId]] = []
    history: tuple[str, ...] = ()


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_snapshot_decoder: Final = msgspec.msgpack.Decoder(_Snapshot)


def encode_records(records: ClusterRecords) -> bytes:
    """Encode the state. Equal states have equal bytes, independent of the commands before."""
    topics = [topic for _, topic in sorted(records.topics.items())]
    directories = sorted(
        {name for topic in topics for era in topic.eras for name in era.directories.values()}
    )
    place_of = {name: place for place, name in enumerate(directories)}
    snapshot = _Snapshot(
        format=snapshot_format(records.peer_protocol),
        cluster_id=records.cluster_id,
        version=records.version,
        directories=directories,
        brokers=[record for _, record in sorted(records.brokers.items())],
        topics=[_to_row(topic, place_of) for topic in topics],
        users=[user for _, user in sorted(records.users.items())],
        user_secret=records.user_secret,
        acls=sorted(records.acls),
        quotas=sorted(
            ((entity, dict(quota)) for entity, quota in records.quotas.items()),
            key=lambda one: str(one[0]),
        ),
        next_broker_id=records.next_broker_id,
        removed=list(records.removed.items()),
        move_throttle=records.move_throttle,
        peer_protocol=records.peer_protocol,
        tokens=[token for _, token in sorted(records.tokens.items())],
        lost=list(records.lost.items()),
        history=records.history,
    )
    return _encoder.encode(snapshot)


def snapshot_format(peer_protocol: int) -> int:
    """Return the format of encoded states. Earlier releases reject one that they would misread."""
    return min(SNAPSHOT_FORMAT_MIN + peer_protocol - PEER_PROTOCOL_FIRST, SNAPSHOT_FORMAT)


def founding_state(cluster_id: str, *, peer_protocol: int = PEER_PROTOCOL_FIRST) -> bytes:
    """Return the encoded initial state of a new cluster, which contains no broker and no topic."""
    return encode_records(
        ClusterRecords(cluster_id=cluster_id, version=1, peer_protocol=peer_protocol)
    )


def recovered(
    data: bytes,
    *,
    recovery: str,
    lost: Iterable[tuple[DirectoryId, BrokerId]],
    unseen: int,
) -> bytes:
    """Return the encoded state from which a recovery without a majority continues.

    Its version is higher by ``unseen``: the lost voters may have committed changes. ``recovery``:
    random ID, which becomes the last one of the history. ``lost``: data directories that may not
    come back. Earlier releases do not know what that means, and are refused from now on.

    Raises the errors of ``decode_records``.
    """
    records = decode_records(data)
    records.version += unseen
    records.history = extended(records.history, recovery)
    records.declare_lost(lost)
    records.peer_protocol = max(records.peer_protocol, PEER_PROTOCOL_LOST)
    return encode_records(records)


def decode_records(data: bytes) -> ClusterRecords:
    """Decode a snapshot. Empty ``data`` is the state before the first command.

    Raises ``InvalidRequestError`` if the bytes are invalid or have another format, and
    ``InvalidConfigError`` if a topic setting is unknown to this release.
    """
    if not data:
        return ClusterRecords()
    try:
        snapshot = _snapshot_decoder.decode(data)
        if not SNAPSHOT_FORMAT_MIN <= snapshot.format <= SNAPSHOT_FORMAT:
            raise InvalidRequestError(
                f"cluster snapshot has format {snapshot.format}, but this release reads formats "
                f"{SNAPSHOT_FORMAT_MIN} to {SNAPSHOT_FORMAT}. Use the release that wrote it"
            )
        topics = {row.name: _from_row(row, snapshot.directories) for row in snapshot.topics}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError) as error:
        raise InvalidRequestError(f"invalid cluster snapshot: {error!r}") from error
    return ClusterRecords(
        cluster_id=snapshot.cluster_id,
        version=snapshot.version,
        brokers={record.id: record for record in snapshot.brokers},
        topics=topics,
        users={user.name: user for user in snapshot.users},
        user_secret=snapshot.user_secret,
        acls=set(snapshot.acls),
        quotas=dict(snapshot.quotas),
        next_broker_id=snapshot.next_broker_id,
        removed=dict(snapshot.removed),
        move_throttle=snapshot.move_throttle,
        peer_protocol=snapshot.peer_protocol,
        tokens={token.id: token for token in snapshot.tokens},
        lost=dict(snapshot.lost),
        history=snapshot.history,
    )


def _to_row(topic: TopicRecord, place_of: Mapping[DirectoryId, int]) -> _TopicRow:
    eras = [
        _EraRow(
            first_partition=era.first_partition,
            min_isr=era.min_isr,
            directories=[(b, place_of[name]) for b, name in sorted(era.directories.items())],
            boots=sorted(era.boots.items()),
        )
        for era in topic.eras
    ]
    return _TopicRow(
        name=topic.name,
        id=topic.id,
        replication_factor=topic.replication_factor,
        partitions=topic.partitions,
        overrides=dict(topic.overrides),
        eras=eras,
    )


def _from_row(row: _TopicRow, directories: list[DirectoryId]) -> TopicRecord:
    """Convert a row to a topic. Raises ``LookupError`` if the row is inconsistent."""
    eras = tuple(
        PlacementRange(
            first_partition=era.first_partition,
            min_isr=era.min_isr,
            directories={broker: directories[place] for broker, place in era.directories},
            boots=dict(era.boots),
        )
        for era in row.eras
    )
    if not (eras and eras[0].first_partition == 0 and all(a.replicas for a in row.partitions)):
        raise LookupError(row.name)
    return TopicRecord(
        name=row.name,
        id=row.id,
        replication_factor=row.replication_factor,
        partitions=row.partitions,
        overrides=row.overrides,
        config=TopicConfig.from_text(row.overrides),
        eras=eras,
    )
