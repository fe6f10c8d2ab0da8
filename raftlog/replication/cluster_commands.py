"""Commands of the ``cluster`` group and their encoding. ``cluster_state`` applies them.

A command is a msgpack array that starts with its name. The field types contain the bounds: a
decoded command satisfies all of them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.security.acl import Acl
from raftlog.security.delegation import DelegationToken, TimeMs, TokenId
from raftlog.security.quota import QuotaEntity, QuotaKey
from raftlog.security.users import SCRAM_MECHANISMS, Credentials, Mechanism

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
    topic exists with the same ID, the command returns it, so a caller can retry after an unknown
    outcome.
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
