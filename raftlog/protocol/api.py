"""API table: the number, versions and message types of every request.

A change of a field's meaning increments the version. A new field with a default does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog import limits
from raftlog.errors import UnsupportedApiError, UnsupportedVersionError
from raftlog.protocol import cluster, peer, records, security
from raftlog.protocol.schema import Message, NoResponse


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the API table.

    ``idempotent``: the client can repeat the request on any connection after an unknown outcome.
    ``peer_only``: allowed only on connections of authenticated brokers.
    ``one_way``: the broker sends no response, not even after a failure; the response type is
    ``NoResponse``. ``header_bytes_max``: bytes, limit of a request's header. A broker decodes
    headers on its event loop; a list of 10,000 partitions takes about 10 ms.
    """

    number: int
    name: str
    request: type[Message]
    response: type[Message]
    version_min: int = 0
    version_max: int = 0
    idempotent: bool = False
    peer_only: bool = False
    one_way: bool = False
    header_bytes_max: int = limits.REQUEST_HEADER_BYTES_MAX


API_VERSIONS: Final = Api(
    0, "api_versions", security.ApiVersionsRequest, security.ApiVersionsResponse, idempotent=True
)
METADATA: Final = Api(
    1, "metadata", records.MetadataRequest, records.MetadataResponse, idempotent=True
)
PRODUCE: Final = Api(
    2,
    "produce",
    records.ProduceRequest,
    records.ProduceResponse,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
FETCH: Final = Api(
    3,
    "fetch",
    records.FetchRequest,
    records.FetchResponse,
    idempotent=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
LIST_OFFSETS: Final = Api(
    4,
    "list_offsets",
    records.ListOffsetsRequest,
    records.ListOffsetsResponse,
    idempotent=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
INIT_PRODUCER_ID: Final = Api(
    5,
    "init_producer_id",
    records.InitProducerIdRequest,
    records.InitProducerIdResponse,
    idempotent=True,
)
CREATE_TOPICS: Final = Api(
    6,
    "create_topics",
    records.CreateTopicsRequest,
    records.TopicsResponse,
    header_bytes_max=limits.TOPICS_HEADER_BYTES_MAX,
)
DELETE_TOPICS: Final = Api(
    7,
    "delete_topics",
    records.DeleteTopicsRequest,
    records.TopicsResponse,
    header_bytes_max=limits.TOPICS_HEADER_BYTES_MAX,
)
DESCRIBE_TOPICS: Final = Api(
    8,
    "describe_topics",
    records.DescribeTopicsRequest,
    records.DescribeTopicsResponse,
    idempotent=True,
)
ALTER_TOPICS: Final = Api(
    9,
    "alter_topics",
    records.AlterTopicsRequest,
    records.TopicsResponse,
    idempotent=True,
    header_bytes_max=limits.TOPICS_HEADER_BYTES_MAX,
)
ADD_PARTITIONS: Final = Api(
    10, "add_partitions", records.AddPartitionsRequest, records.TopicsResponse
)
DELETE_RECORDS: Final = Api(
    11,
    "delete_records",
    records.DeleteRecordsRequest,
    records.DeleteRecordsResponse,
    idempotent=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)

# -- between brokers -------------------------------------------------------------------------------
# A handshake and a fetch session belong to one connection. A new connection starts new ones.
PEER_HELLO: Final = Api(12, "peer_hello", peer.PeerHelloRequest, peer.PeerHelloResponse)
PEER_PROVE: Final = Api(13, "peer_prove", peer.PeerProveRequest, peer.PeerProveResponse)
RAFT: Final = Api(
    14,
    "raft",
    peer.RaftRequest,
    NoResponse,
    peer_only=True,
    one_way=True,
    header_bytes_max=limits.FRAME_HEADER_BYTES_MAX,
)
PEER_PING: Final = Api(
    15,
    "peer_ping",
    peer.PeerPingRequest,
    peer.PeerPingResponse,
    idempotent=True,
    peer_only=True,
)
REPLICA_FETCH: Final = Api(
    16,
    "replica_fetch",
    peer.ReplicaFetchRequest,
    peer.ReplicaFetchResponse,
    peer_only=True,
    header_bytes_max=limits.FRAME_HEADER_BYTES_MAX,
)
REPLICA_PROGRESS: Final = Api(
    17,
    "replica_progress",
    peer.ReplicaProgressRequest,
    NoResponse,
    idempotent=True,
    peer_only=True,
    one_way=True,
    header_bytes_max=limits.FRAME_HEADER_BYTES_MAX,
)
PARTITION_STATES: Final = Api(
    18,
    "partition_states",
    peer.PartitionStatesRequest,
    NoResponse,
    idempotent=True,
    peer_only=True,
    one_way=True,
    header_bytes_max=limits.FRAME_HEADER_BYTES_MAX,
)

# -- the cluster, for operators --------------------------------------------------------------------
DESCRIBE_CLUSTER: Final = Api(
    19,
    "describe_cluster",
    cluster.DescribeClusterRequest,
    cluster.DescribeClusterResponse,
    idempotent=True,
)
TRANSFER_LEADER: Final = Api(
    20, "transfer_leader", cluster.TransferLeaderRequest, cluster.TransferLeaderResponse
)
RECOVER_CLUSTER: Final = Api(
    21, "recover_cluster", cluster.RecoverClusterRequest, cluster.RecoverClusterResponse
)

# -- consumer groups -------------------------------------------------------------------------------
FIND_COORDINATORS: Final = Api(
    22,
    "find_coordinators",
    records.FindCoordinatorsRequest,
    records.FindCoordinatorsResponse,
    idempotent=True,
    header_bytes_max=limits.TOPICS_HEADER_BYTES_MAX,
)
GROUP_HEARTBEAT: Final = Api(
    23,
    "group_heartbeat",
    records.GroupHeartbeatRequest,
    records.GroupHeartbeatResponse,
    idempotent=True,
    header_bytes_max=limits.TOPICS_HEADER_BYTES_MAX,
)
OFFSET_COMMIT: Final = Api(
    24,
    "offset_commit",
    records.OffsetCommitRequest,
    records.OffsetCommitResponse,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
OFFSET_FETCH: Final = Api(
    25,
    "offset_fetch",
    records.OffsetFetchRequest,
    records.OffsetFetchResponse,
    idempotent=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
LIST_GROUPS: Final = Api(
    26, "list_groups", records.ListGroupsRequest, records.ListGroupsResponse, idempotent=True
)
DESCRIBE_GROUPS: Final = Api(
    27,
    "describe_groups",
    records.DescribeGroupsRequest,
    records.DescribeGroupsResponse,
    idempotent=True,
    header_bytes_max=limits.TOPICS_HEADER_BYTES_MAX,
)
DELETE_GROUPS: Final = Api(
    28,
    "delete_groups",
    records.DeleteGroupsRequest,
    records.DeleteGroupsResponse,
    header_bytes_max=limits.TOPICS_HEADER_BYTES_MAX,
)
DELETE_OFFSETS: Final = Api(
    29,
    "delete_offsets",
    records.DeleteOffsetsRequest,
    records.DeleteOffsetsResponse,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)

# -- named producers -------------------------------------------------------------------------------
DESCRIBE_PRODUCERS: Final = Api(
    30,
    "describe_producers",
    records.DescribeProducersRequest,
    records.DescribeProducersResponse,
    idempotent=True,
    header_bytes_max=limits.PRODUCERS_HEADER_BYTES_MAX,
)

# -- between brokers, when an operator recovers the cluster ----------------------------------------
SURVEY: Final = Api(
    31, "survey", cluster.SurveyRequest, cluster.SurveyResponse, idempotent=True, peer_only=True
)
REVIVE: Final = Api(32, "revive", cluster.ReviveRequest, cluster.ReviveResponse, peer_only=True)

# -- authentication of operators -------------------------------------------------------------------
OPERATOR_HELLO: Final = Api(
    33,
    "operator_hello",
    security.OperatorHelloRequest,
    security.OperatorHelloResponse,
    idempotent=True,
)
OPERATOR_PROVE: Final = Api(
    34,
    "operator_prove",
    security.OperatorProveRequest,
    security.OperatorProveResponse,
)

# -- between brokers, before an election -----------------------------------------------------------
DESCRIBE_COPIES: Final = Api(
    35,
    "describe_copies",
    peer.DescribeCopiesRequest,
    peer.DescribeCopiesResponse,
    idempotent=True,
    peer_only=True,
)

# -- comparison of copies, for operators -----------------------------------------------------------
VERIFY_COPY: Final = Api(
    36, "verify_copy", cluster.VerifyCopyRequest, cluster.VerifyCopyResponse, idempotent=True
)

# -- monitoring ------------------------------------------------------------------------------------
DESCRIBE_EVENTS: Final = Api(
    37,
    "describe_events",
    cluster.DescribeEventsRequest,
    cluster.DescribeEventsResponse,
    idempotent=True,
)

# -- moves of replicas, for operators --------------------------------------------------------------
REASSIGN: Final = Api(
    38,
    "reassign",
    cluster.ReassignRequest,
    cluster.ReassignResponse,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)

# -- users -----------------------------------------------------------------------------------------
SASL_AUTHENTICATE: Final = Api(
    39,
    "sasl_authenticate",
    security.SaslAuthenticateRequest,
    security.SaslAuthenticateResponse,
)
DESCRIBE_USERS: Final = Api(
    40,
    "describe_users",
    security.DescribeUsersRequest,
    security.DescribeUsersResponse,
    idempotent=True,
)
ALTER_USERS: Final = Api(41, "alter_users", security.AlterUsersRequest, security.AlterUsersResponse)
# -- access rules and quotas -----------------------------------------------------------------------
CREATE_ACLS: Final = Api(
    42,
    "create_acls",
    security.CreateAclsRequest,
    security.CreateAclsResponse,
    idempotent=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
DESCRIBE_ACLS: Final = Api(
    43,
    "describe_acls",
    security.DescribeAclsRequest,
    security.DescribeAclsResponse,
    idempotent=True,
)
DELETE_ACLS: Final = Api(44, "delete_acls", security.DeleteAclsRequest, security.DeleteAclsResponse)
CHECK_ACL: Final = Api(
    45, "check_acl", security.CheckAclRequest, security.CheckAclResponse, idempotent=True
)
DESCRIBE_QUOTAS: Final = Api(
    46,
    "describe_quotas",
    security.DescribeQuotasRequest,
    security.DescribeQuotasResponse,
    idempotent=True,
)
ALTER_QUOTAS: Final = Api(
    47,
    "alter_quotas",
    security.AlterQuotasRequest,
    security.AlterQuotasResponse,
    idempotent=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)

# -- brokers that join and leave, and brokers without a vote ---------------------------------------
CLUSTER_STATE: Final = Api(
    48,
    "cluster_state",
    cluster.ClusterStateRequest,
    cluster.ClusterStateResponse,
    idempotent=True,
    peer_only=True,
)
PROPOSE: Final = Api(
    49,
    "propose",
    cluster.ProposeRequest,
    cluster.ProposeResponse,
    peer_only=True,
    header_bytes_max=limits.FRAME_HEADER_BYTES_MAX,
)
RESERVE_BROKER_ID: Final = Api(
    50,
    "reserve_broker_id",
    cluster.ReserveBrokerIdRequest,
    cluster.ReserveBrokerIdResponse,
    idempotent=True,
)
DECOMMISSION: Final = Api(
    51,
    "decommission",
    cluster.DecommissionRequest,
    cluster.DecommissionResponse,
    idempotent=True,
)

# -- log levels of one broker ----------------------------------------------------------------------
DESCRIBE_LOG_LEVELS: Final = Api(
    52,
    "describe_log_levels",
    cluster.DescribeLogLevelsRequest,
    cluster.DescribeLogLevelsResponse,
    idempotent=True,
)
ALTER_LOG_LEVELS: Final = Api(
    53,
    "alter_log_levels",
    cluster.AlterLogLevelsRequest,
    cluster.AlterLogLevelsResponse,
    idempotent=True,
)

# -- moves of replicas -----------------------------------------------------------------------------
THROTTLE_MOVES: Final = Api(
    54,
    "throttle_moves",
    cluster.ThrottleMovesRequest,
    cluster.ThrottleMovesResponse,
    idempotent=True,
)
CANCEL_DECOMMISSION: Final = Api(
    55,
    "cancel_decommission",
    cluster.CancelDecommissionRequest,
    cluster.CancelDecommissionResponse,
    idempotent=True,
)

# -- upgrades --------------------------------------------------------------------------------------
UPGRADE_FEATURES: Final = Api(
    56,
    "upgrade_features",
    cluster.UpgradeFeaturesRequest,
    cluster.UpgradeFeaturesResponse,
    idempotent=True,
)

# -- delegation tokens -----------------------------------------------------------------------------
CREATE_TOKEN: Final = Api(
    57,
    "create_token",
    security.CreateTokenRequest,
    security.CreateTokenResponse,
)
DESCRIBE_TOKENS: Final = Api(
    58,
    "describe_tokens",
    security.DescribeTokensRequest,
    security.DescribeTokensResponse,
    idempotent=True,
)
RENEW_TOKEN: Final = Api(
    59,
    "renew_token",
    security.RenewTokenRequest,
    security.TokenExpiryResponse,
    idempotent=True,
)
EXPIRE_TOKEN: Final = Api(
    60,
    "expire_token",
    security.ExpireTokenRequest,
    security.TokenExpiryResponse,
)

# -- producers of a partition ----------------------------------------------------------------------
LIST_PRODUCERS: Final = Api(
    61,
    "list_producers",
    records.ListProducersRequest,
    records.ListProducersResponse,
    idempotent=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)

# -- schema registry -------------------------------------------------------------------------------
SCHEMA_REGISTRY: Final = Api(
    62,
    "schema_registry",
    cluster.SchemaRegistryRequest,
    cluster.SchemaRegistryResponse,
)

# -- between brokers, about transactions -----------------------------------------------------------
VERIFY_TRANSACTIONS: Final = Api(
    63,
    "verify_transactions",
    peer.VerifyTransactionsRequest,
    peer.TransactionItemsResponse,
    idempotent=True,
    peer_only=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
TRANSACTION_MARKERS: Final = Api(
    64,
    "transaction_markers",
    peer.TransactionMarkersRequest,
    peer.TransactionItemsResponse,
    idempotent=True,
    peer_only=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
TRANSACTION_OWNERS: Final = Api(
    65,
    "transaction_owners",
    peer.TransactionOwnersRequest,
    peer.TransactionOwnersResponse,
    idempotent=True,
    peer_only=True,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)

# -- transactions ----------------------------------------------------------------------------------
FIND_TRANSACTION_COORDINATORS: Final = Api(
    66,
    "find_transaction_coordinators",
    records.FindTransactionCoordinatorsRequest,
    records.FindCoordinatorsResponse,
    idempotent=True,
)
INIT_TRANSACTIONS: Final = Api(
    67,
    "init_transactions",
    records.InitTransactionsRequest,
    records.InitProducerIdResponse,
    idempotent=True,
)
END_TRANSACTION: Final = Api(
    68,
    "end_transaction",
    records.EndTransactionRequest,
    records.EndTransactionResponse,
    idempotent=True,
)
TRANSACTION_OFFSET_COMMIT: Final = Api(
    69,
    "transaction_offset_commit",
    records.TransactionOffsetCommitRequest,
    records.OffsetCommitResponse,
    header_bytes_max=limits.PARTITIONS_HEADER_BYTES_MAX,
)
LIST_TRANSACTIONS: Final = Api(
    70,
    "list_transactions",
    records.ListTransactionsRequest,
    records.ListTransactionsResponse,
    idempotent=True,
)
DESCRIBE_TRANSACTION: Final = Api(
    71,
    "describe_transaction",
    records.DescribeTransactionRequest,
    records.DescribeTransactionResponse,
    idempotent=True,
)
ABORT_TRANSACTION: Final = Api(
    72,
    "abort_transaction",
    records.AbortTransactionRequest,
    records.AbortTransactionResponse,
)

APIS: Final[dict[int, Api]] = {
    api.number: api
    for api in (
        API_VERSIONS,
        METADATA,
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        INIT_PRODUCER_ID,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DESCRIBE_TOPICS,
        ALTER_TOPICS,
        ADD_PARTITIONS,
        DELETE_RECORDS,
        PEER_HELLO,
        PEER_PROVE,
        RAFT,
        PEER_PING,
        REPLICA_FETCH,
        REPLICA_PROGRESS,
        PARTITION_STATES,
        DESCRIBE_CLUSTER,
        TRANSFER_LEADER,
        RECOVER_CLUSTER,
        FIND_COORDINATORS,
        GROUP_HEARTBEAT,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        LIST_GROUPS,
        DESCRIBE_GROUPS,
        DELETE_GROUPS,
        DELETE_OFFSETS,
        DESCRIBE_PRODUCERS,
        SURVEY,
        REVIVE,
        OPERATOR_HELLO,
        OPERATOR_PROVE,
        DESCRIBE_COPIES,
        VERIFY_COPY,
        DESCRIBE_EVENTS,
        REASSIGN,
        SASL_AUTHENTICATE,
        DESCRIBE_USERS,
        ALTER_USERS,
        CREATE_ACLS,
        DESCRIBE_ACLS,
        DELETE_ACLS,
        CHECK_ACL,
        DESCRIBE_QUOTAS,
        ALTER_QUOTAS,
        CLUSTER_STATE,
        PROPOSE,
        RESERVE_BROKER_ID,
        DECOMMISSION,
        DESCRIBE_LOG_LEVELS,
        ALTER_LOG_LEVELS,
        THROTTLE_MOVES,
        CANCEL_DECOMMISSION,
        UPGRADE_FEATURES,
        CREATE_TOKEN,
        DESCRIBE_TOKENS,
        RENEW_TOKEN,
        EXPIRE_TOKEN,
        LIST_PRODUCERS,
        SCHEMA_REGISTRY,
        VERIFY_TRANSACTIONS,
        TRANSACTION_MARKERS,
        TRANSACTION_OWNERS,
        FIND_TRANSACTION_COORDINATORS,
        INIT_TRANSACTIONS,
        END_TRANSACTION,
        TRANSACTION_OFFSET_COMMIT,
        LIST_TRANSACTIONS,
        DESCRIBE_TRANSACTION,
        ABORT_TRANSACTION,
    )
}


def lookup(number: int, version: int) -> Api:
    """Return the row of API ``number``.

    Raises ``UnsupportedApiError`` if the API is unknown, ``UnsupportedVersionError`` if
    ``version`` is not supported.
    """
    api = APIS.get(number)
    if api is None:
        raise UnsupportedApiError(
            f"this broker does not support API {number} (it supports 0 to {max(APIS)}). "
            "Upgrade the broker, or use an older client"
        )
    if not api.version_min <= version <= api.version_max:
        raise UnsupportedVersionError(
            f"version {version} of {api.name} is not supported "
            f"(only {api.version_min} to {api.version_max}). Upgrade the older side"
        )
    return api
