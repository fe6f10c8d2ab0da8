"""Commands of the ``cluster`` group and their encoding. ``cluster_state`` applies them.

A command is a msgpack array that starts with its name. The field types contain the bounds: a
decoded command satisfies all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import BrokerIdInUseError, InvalidRequestError, StaleBrokerError
from raftlog.replication.histories import extended
from raftlog.replication.partition_state import BrokerId, DirectoryId, PartitionState, initial_state
from raftlog.replication.placement import Assignment
from raftlog.security.acl import Acl
from raftlog.security.credentials import (
    SCRAM_MECHANISMS,
    Credentials,
    DelegationToken,
    Mechanism,
    TimeMs,
    TokenId,
    User,
)
from raftlog.security.quota import Quota, QuotaEntity, QuotaKey

INT63_MAX: Final = (1 << 63) - 1

BrokerNumber = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
# IDs become parts of file names and of group names.
Id = Annotated[str, Meta(pattern=rf"\A[0-9A-Za-z_-]{{1,{limits.ID_CHARS_MAX}}}\Z")]
# Longer than allowed, so that a long name is rejected with a specific error message.
TopicName = Annotated[str, Meta(max_length=4 * limits.TOPIC_NAME_CHARS_MAX)]
Host = Annotated[str, Meta(min_length=1, max_length=limits.HOST_CHARS_MAX)]
Rack = Annotated[str, Meta(max_length=limits.RACK_CHARS_MAX)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Version = Annotated[int, Meta(ge=0, le=INT63_MAX)]
ConfigName = Annotated[str, Meta(max_length=256)]
ConfigText = Annotated[str, Meta(max_length=limits.CONFIG_VALUE_CHARS_MAX)]
Overrides = Annotated[
    dict[ConfigName, ConfigText], Meta(max_length=limits.CONFIG_KEYS_PER_TOPIC_MAX)
]
Changes = Annotated[
    dict[ConfigName, ConfigText | None], Meta(max_length=limits.CONFIG_KEYS_PER_TOPIC_MAX)
]
# Bytes per second; 0 for no limit.
MoveThrottle = Annotated[int, Meta(ge=0, le=limits.MOVE_THROTTLE_BYTES_PER_S_MAX)]
Brokers = Annotated[tuple[BrokerNumber, ...], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)]


class ClusterCommand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every command."""

    def encode(self) -> bytes:
        """Encode a command. Raises ``InvalidRequestError`` if a text or number is not encodable."""
        try:
            return _encoder.encode(self)
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidRequestError(f"{type(self).__name__}: {error}") from error


class RegisterBroker(ClusterCommand, frozen=True, tag="register_broker"):
    """Register a started broker. Returns its broker epoch. It is fenced until ``UnfenceBroker``.

    ``boot``: number of starts of the data directory. A repeated registration returns the same epoch
    and changes nothing.
    """

    id: BrokerNumber
    host: Host
    port: Port
    rack: Rack
    directory_id: Id
    boot: Version


class FenceBroker(ClusterCommand, frozen=True, tag="fence_broker"):
    """Fence a failed or stopping broker: it leads no partition and joins no ISR (KIP-841)."""

    id: BrokerNumber
    broker_epoch: Version


class UnfenceBroker(ClusterCommand, frozen=True, tag="unfence_broker"):
    """Unfence a broker that is ready to serve requests."""

    id: BrokerNumber
    broker_epoch: Version


class SetKafkaAddress(ClusterCommand, frozen=True, tag="set_kafka_address"):
    """Set the address of a registered broker for Kafka clients. ``host`` "": its usual address.

    A separate command, and not a part of ``RegisterBroker``: brokers of older releases understand
    registrations as long as no broker has ``kafka.listen``.
    """

    id: BrokerNumber
    broker_epoch: Version
    host: Annotated[str, Meta(max_length=limits.HOST_CHARS_MAX)]
    port: Annotated[int, Meta(ge=0, le=65_535)]


class CreateTopic(ClusterCommand, frozen=True, tag="create_topic"):
    """Create a topic. Returns its ``TopicRecord``.

    ``replication_factor``: 0 or None for 3, or for the number of brokers if there are fewer. If the
    topic exists with the same ID, the command returns it: earlier releases repeat the command after
    an unknown outcome.
    """

    name: TopicName
    topic_id: Id
    partitions: Count
    replication_factor: Count | None = None
    overrides: Overrides = msgspec.field(default_factory=dict)


class DeleteTopic(ClusterCommand, frozen=True, tag="delete_topic"):
    """Delete a topic. Returns its last ``TopicRecord``. ``topic_id``: required ID, or None."""

    name: TopicName
    topic_id: Id | None = None


class AlterTopic(ClusterCommand, frozen=True, tag="alter_topic"):
    """Set config keys; None resets a key to its default. Returns the ``TopicRecord``."""

    name: TopicName
    changes: Changes


class AddPartitions(ClusterCommand, frozen=True, tag="add_partitions"):
    """Increase the number of partitions to ``total``. Returns the ``TopicRecord``."""

    name: TopicName
    total: Count


class SetReplicas(ClusterCommand, frozen=True, tag="set_replicas"):
    """Store the voters that a partition's own group has committed. Returns the ``TopicRecord``.

    ``version``: version of the partition state. A version that is not newer than the stored one is
    rejected.
    """

    topic_id: Id
    partition: Count
    replicas: Brokers
    witnesses: Brokers
    version: Version


class Move(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Requested replicas of one partition, preferred leader first.

    ``version`` and ``expected``: version of the stored assignment, and replicas of the move in
    progress (empty: none), for which the request was made.
    """

    partition: Count
    replicas: Brokers
    version: Version
    expected: Brokers = ()


class Reassign(ClusterCommand, frozen=True, tag="reassign"):
    """Store the replicas that partitions of a topic must get. Returns the ``TopicRecord``.

    Accepted for all ``moves`` or for none. ``replication_factor``: 0 for that of the topic. A new
    one must be the number of replicas in moves of all partitions. The partition controllers execute
    the moves; the ``SetReplicas`` that stores the requested replicas ends a move.
    """

    topic_id: Id
    moves: Annotated[tuple[Move, ...], Meta(max_length=limits.PARTITIONS_PER_TOPIC_MAX)]
    replication_factor: Count = 0


class SetMoveThrottle(ClusterCommand, frozen=True, tag="set_move_throttle"):
    """Limit the bytes per second that replicas which moves add copy to each broker; 0: no limit."""

    bytes_per_s: MoveThrottle


class RaisePeerProtocol(ClusterCommand, frozen=True, tag="raise_peer_protocol"):
    """Require a version of the protocol between brokers, which then changes what later commands do.

    ``broker_epochs``: IDs of all registered brokers and their broker epochs, sorted. They were
    connected and support the version. The command is rejected if a broker has registered since, or
    was removed: another incarnation may support less.
    """

    version: Annotated[int, Meta(ge=1, le=(1 << 16) - 1)]
    broker_epochs: Annotated[
        tuple[tuple[BrokerNumber, Version], ...], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)
    ]


class DeclareLost(ClusterCommand, frozen=True, tag="declare_lost"):
    """Note that data directories are lost: what they have acknowledged is given up, and they may
    not come back. Their broker IDs may, with empty directories.

    ``directories``: IDs of directories, and of their brokers. Only proposed if all connected
    brokers support ``PEER_PROTOCOL_LOST``, which is required from then on.
    """

    directories: Annotated[
        tuple[tuple[Id, BrokerNumber], ...],
        Meta(min_length=1, max_length=limits.LOST_DIRECTORIES_MAX),
    ]


# -- users -----------------------------------------------------------------------------------------


class PutUser(ClusterCommand, frozen=True, tag="put_user"):
    """Create a user, or set credentials of one; the others remain.

    ``expected``: "absent" and "present" reject the command if a user of that name exists, or not.
    "never" rejects it if any user has ever existed: for the first administrator of a cluster.
    ``secret``: random bytes. Those of the first command become the secret of the cluster that hides
    which users exist.
    """

    name: Annotated[str, Meta(min_length=1, max_length=limits.PRINCIPAL_NAME_CHARS_MAX)]
    credentials: Annotated[Credentials, Meta(min_length=1)]
    expected: Literal["any", "absent", "present", "never"]
    secret: Annotated[bytes, Meta(min_length=32, max_length=32)]

    def __repr__(self) -> str:
        return f"PutUser(name={self.name!r}, credentials={self.credentials!r})"


class DeleteUser(ClusterCommand, frozen=True, tag="delete_user"):
    """Delete the credentials of ``mechanisms``, and the user with its last one."""

    name: Annotated[str, Meta(min_length=1, max_length=limits.PRINCIPAL_NAME_CHARS_MAX)]
    mechanisms: Annotated[
        tuple[Mechanism, ...], Meta(min_length=1, max_length=len(SCRAM_MECHANISMS))
    ]


# -- delegation tokens -----------------------------------------------------------------------------


class CreateToken(ClusterCommand, frozen=True, tag="create_token"):
    """Store a delegation token. Tokens that expired some time before it was issued are removed."""

    token: DelegationToken


class SetTokenExpiry(ClusterCommand, frozen=True, tag="set_token_expiry"):
    """Set when a delegation token expires. Returns that time; at most that of its maximal lifetime.

    ``at_ms``: time of the request. The token is removed if ``expires_ms`` is not after it.
    """

    id: TokenId
    expires_ms: TimeMs
    at_ms: TimeMs


# -- access rules and quotas -----------------------------------------------------------------------


class CreateAcls(ClusterCommand, frozen=True, tag="create_acls"):
    """Add access rules: all of them or none. Those that exist stay."""

    acls: Annotated[tuple[Acl, ...], Meta(max_length=limits.ACLS_PER_REQUEST_MAX)]


class DeleteAcls(ClusterCommand, frozen=True, tag="delete_acls"):
    """Delete access rules. Returns those that existed, in the order of the command."""

    acls: Annotated[tuple[Acl, ...], Meta(max_length=limits.ACLS_PER_REQUEST_MAX)]


class QuotaChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Changes of the quota of one entity; None removes a limit."""

    entity: QuotaEntity
    changes: dict[QuotaKey, Annotated[float, Meta(gt=0, le=limits.QUOTA_MAX)] | None]


class AlterQuotas(ClusterCommand, frozen=True, tag="alter_quotas"):
    """Change quotas: all of them or none."""

    changes: Annotated[tuple[QuotaChange, ...], Meta(max_length=limits.QUOTAS_PER_REQUEST_MAX)]


# -- groups ----------------------------------------------------------------------------------------


GroupSetting: TypeAlias = Literal["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]
GROUP_SETTINGS: Final[tuple[GroupSetting, ...]] = get_args(GroupSetting)


class AlterGroup(ClusterCommand, frozen=True, tag="alter_group"):
    """Change settings of a group, in ms; None resets one to that of the broker.

    It may be proposed from ``PEER_PROTOCOL_GROUPS`` on. The group need not exist.
    """

    group: Annotated[str, Meta(min_length=1, max_length=limits.GROUP_ID_CHARS_MAX)]
    changes: dict[GroupSetting, Annotated[int, Meta(ge=1, le=limits.SESSION_TIMEOUT_MS_MAX)] | None]


# -- brokers that join and leave -------------------------------------------------------------------


class ReserveBrokerId(ClusterCommand, frozen=True, tag="reserve_broker_id"):
    """Reserve the next broker ID for a broker that joins. Rejected if it is not the next one.

    No ID is assigned twice, also if the broker never registers or was removed.
    """

    id: BrokerNumber


class DecommissionBroker(ClusterCommand, frozen=True, tag="decommission_broker"):
    """Mark a broker as draining: it gets no replicas and no votes, and its replicas move away."""

    id: BrokerNumber


class CancelDecommission(ClusterCommand, frozen=True, tag="cancel_decommission"):
    """Remove the mark of ``DecommissionBroker``. Moves in progress away from the broker are
    cancelled: their partitions get the replicas that they had before.
    """

    id: BrokerNumber


class RemoveBroker(ClusterCommand, frozen=True, tag="remove_broker"):
    """Remove a drained broker. Its data directory can never register again."""

    id: BrokerNumber
    broker_epoch: Version


AnyClusterCommand: TypeAlias = (
    RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | SetKafkaAddress
    | CreateTopic
    | DeleteTopic
    | AlterTopic
    | AddPartitions
    | SetReplicas
    | Reassign
    | SetMoveThrottle
    | RaisePeerProtocol
    | PutUser
    | DeleteUser
    | CreateToken
    | SetTokenExpiry
    | CreateAcls
    | DeleteAcls
    | AlterQuotas
    | AlterGroup
    | ReserveBrokerId
    | DecommissionBroker
    | CancelDecommission
    | RemoveBroker
    | DeclareLost
)

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(AnyClusterCommand)


def decode_command(data: bytes) -> AnyClusterCommand:
    """Decode a command. Raises ``InvalidRequestError`` with the field if the bytes are invalid."""
    try:
        command: AnyClusterCommand = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"invalid cluster command: {error}") from error
    return command


# -- cluster records -------------------------------------------------------------------------------
#
# Records of the cluster state, and the encoding of the state. ``cluster_state`` changes them.


SNAPSHOT_FORMAT: Final = 6
SNAPSHOT_FORMAT_MIN: Final = 2  # written until ``peer_protocol`` is raised
PEER_PROTOCOL_FIRST: Final = 1
# Version of the protocol between brokers from which the command that creates a partition names its
# first leader.
PEER_PROTOCOL_FIRST_LEADERS: Final = 2
# Version from which the cluster state contains delegation tokens.
PEER_PROTOCOL_TOKENS: Final = 3
# Version from which it contains lost directories and the history of recoveries.
PEER_PROTOCOL_LOST: Final = 4
# Version from which brokers have transactions, and store their batches and markers.
PEER_PROTOCOL_TRANSACTIONS: Final = 5
# Version from which the cluster state contains settings of groups.
PEER_PROTOCOL_GROUPS: Final = 6


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
        # guard: a broker id has one live disk
        if not held.fenced:
            raise BrokerIdInUseError(
                f"broker ID {held.id} is in use by the live broker at {address}, which has "
                f"another data directory ({held.directory_id}). Configure another ID for this "
                "broker, or stop the other one first to replace it"
            )
        return
    # guard: an old copy of a broker does not register
    if wanted.boot < held.boot:
        raise StaleBrokerError(
            f"broker {held.id} uses an old copy of its data directory: boot {wanted.boot}, but "
            f"boot {held.boot} was seen before. Start it with an empty directory. It then copies "
            "all data from the other brokers"
        )
    # guard: a copy of a live directory does not register
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
    # guard: later partitions record the incarnations of their time
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
    groups: dict[str, dict[GroupSetting, int]] = field(default_factory=dict)  # none is empty
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
    delegation tokens, access rules and quotas; settings of groups only change the version.
    ``is_upgrade``: ``peer_protocol`` was raised.
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
    groups: dict[str, dict[GroupSetting, int]] = {}


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
        groups=dict(sorted(records.groups.items())),
    )
    return _encoder.encode(snapshot)


def snapshot_format(peer_protocol: int) -> int:
    """Return the format of encoded states. Earlier releases reject one that they would misread.

    Each version of the protocol has its own, except that of transactions.
    """
    changes = peer_protocol - PEER_PROTOCOL_FIRST - (peer_protocol >= PEER_PROTOCOL_TRANSACTIONS)
    # guard: earlier releases reject states that they would misread
    return min(SNAPSHOT_FORMAT_MIN + changes, SNAPSHOT_FORMAT)


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
        groups=snapshot.groups,
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


# -- events ----------------------------------------------------------------------------------------
#
# Events for operators, derived from two successive committed states. Pure.
#
# Every broker that applies the committed states derives the same events, so the events of a cluster
# remain available after the loss of a broker. Events of several brokers with the same kind, object
# and version are the same event.


LEADER_ELECTED: Final = "leader-elected"
UNCLEAN_LEADER_ELECTED: Final = "unclean-leader-elected"
LEADER_LOST: Final = "leader-lost"
ISR_SHRUNK: Final = "isr-shrunk"
ISR_EXPANDED: Final = "isr-expanded"
REPLICAS_CHANGED: Final = "replicas-changed"
BROKER_REGISTERED: Final = "broker-registered"
BROKER_FENCED: Final = "broker-fenced"
BROKER_UNFENCED: Final = "broker-unfenced"
DISK_LEVEL_CHANGED: Final = "disk-level-changed"
KINDS: Final = (
    LEADER_ELECTED, UNCLEAN_LEADER_ELECTED, LEADER_LOST, ISR_SHRUNK, ISR_EXPANDED,
    REPLICAS_CHANGED, BROKER_REGISTERED, BROKER_FENCED, BROKER_UNFENCED, DISK_LEVEL_CHANGED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """A committed change. ``topic`` is empty and ``partition`` -1 for an event of a broker.

    ``broker``: the new leader, or the broker of a broker event; -1 for other events. ``version``:
    of the state after the change, which identifies the event within its partition or broker.
    """

    kind: str
    text: str
    topic: str = ""
    partition: int = -1
    broker: int = -1
    leader_epoch: int = -1
    version: int = 0
    topic_id: str = ""


def partition_events(
    topic: str, topic_id: str, partition: int, before: PartitionState, after: PartitionState
) -> list[Event]:
    """Return the events of one partition, the election first."""
    found: list[Event] = []

    def add(kind: str, text: str, broker: int = -1) -> None:
        epoch, version = after.leader_epoch, after.version
        found.append(Event(kind, text, topic, partition, broker, epoch, version, topic_id))

    if after.leader is None:
        if before.leader is not None:
            add(LEADER_LOST, f"broker {before.leader} is no longer the leader; no broker leads")
    elif (before.leader, before.leader_epoch) != (after.leader, after.leader_epoch):
        is_unclean = after.unclean_epoch == after.leader_epoch
        previous = "no broker" if before.leader is None else f"broker {before.leader}"
        text = f"broker {after.leader} leads in epoch {after.leader_epoch}, after {previous}"
        if is_unclean:
            text += ". Acknowledged records may be lost: an operator accepted that"
        add(UNCLEAN_LEADER_ELECTED if is_unclean else LEADER_ELECTED, text, after.leader)
    isr = f"the ISR is {_ids(after.isr)}"
    if left := before.isr.keys() - after.isr.keys():
        add(ISR_SHRUNK, f"broker {_ids(left)} left the ISR; {isr}")
    if joined := after.isr.keys() - before.isr.keys():
        add(ISR_EXPANDED, f"broker {_ids(joined)} joined the ISR; {isr}")
    if set(before.replicas) != set(after.replicas):
        add(REPLICAS_CHANGED, f"the replicas are {_ids(after.replicas)}, after "
                              f"{_ids(before.replicas)}")  # fmt: skip
    return found


def broker_events(
    before: Mapping[BrokerId, BrokerRecord], after: Mapping[BrokerId, BrokerRecord], version: int
) -> list[Event]:
    """Return the events of the brokers, by id. ``version``: of the cluster state after them."""
    found: list[Event] = []
    for broker, now in sorted(after.items()):
        was = before.get(broker)
        if was == now:
            continue
        if was is None or was.broker_epoch != now.broker_epoch:
            where = f"{now.host}:{now.port}"
            text = f"broker {broker} registered at {where}, incarnation {now.boot}"
            found.append(Event(BROKER_REGISTERED, text, broker=broker, version=version))
        if now.fenced and was is not None and not was.fenced:
            text = f"broker {broker} was fenced: it leads and follows nothing"
            found.append(Event(BROKER_FENCED, text, broker=broker, version=version))
        if not now.fenced and (was is None or was.fenced):
            text = f"broker {broker} was unfenced: it can lead and follow"
            found.append(Event(BROKER_UNFENCED, text, broker=broker, version=version))
    return found


def disk_event(broker: BrokerId, text: str, number: int) -> Event:
    """Return the event of a broker whose disk crossed a watermark. Only that broker
    records it.     ``number``: identifies the event among those of the broker.
    """
    return Event(DISK_LEVEL_CHANGED, text, broker=broker, version=number)


def _ids(brokers: Iterable[BrokerId]) -> str:
    return ",".join(map(str, sorted(brokers)))
