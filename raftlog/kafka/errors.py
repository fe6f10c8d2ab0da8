"""Kafka's error codes, and the code that a Kafka client receives for an error of raftlog.

The code depends on the class, and for some classes on the place: clients handle the same code of
different APIs differently. Source: https://kafka.apache.org/protocol (error codes).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from raftlog import errors as own

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
REPLICA_NOT_AVAILABLE: Final = 9
MESSAGE_TOO_LARGE: Final = 10
OFFSET_METADATA_TOO_LARGE: Final = 12
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
INVALID_TOPIC: Final = 17
NOT_ENOUGH_REPLICAS: Final = 19
INVALID_REQUIRED_ACKS: Final = 21
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_CONFIG: Final = 40
NOT_CONTROLLER: Final = 41
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTION_COORDINATOR_FENCED: Final = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
SECURITY_DISABLED: Final = 54
OPERATION_NOT_ATTEMPTED: Final = 55
KAFKA_STORAGE_ERROR: Final = 56
LOG_DIR_NOT_FOUND: Final = 57
SASL_AUTHENTICATION_FAILED: Final = 58
UNKNOWN_PRODUCER_ID: Final = 59
DELEGATION_TOKEN_NOT_FOUND: Final = 62
DELEGATION_TOKEN_OWNER_MISMATCH: Final = 63
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: Final = 64
DELEGATION_TOKEN_EXPIRED: Final = 66
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78
MEMBER_ID_REQUIRED: Final = 79
PREFERRED_LEADER_NOT_AVAILABLE: Final = 80
GROUP_MAX_SIZE_REACHED: Final = 81
FENCED_INSTANCE_ID: Final = 82
ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = 83
ELECTION_NOT_NEEDED: Final = 84
NO_REASSIGNMENT_IN_PROGRESS: Final = 85
GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
INVALID_RECORD: Final = 87
UNSTABLE_OFFSET_COMMIT: Final = 88
THROTTLING_QUOTA_EXCEEDED: Final = 89
PRODUCER_FENCED: Final = 90
RESOURCE_NOT_FOUND: Final = 91
DUPLICATE_RESOURCE: Final = 92
UNACCEPTABLE_CREDENTIAL: Final = 93
INVALID_UPDATE_VERSION: Final = 95
UNKNOWN_TOPIC_ID: Final = 100
TRANSACTIONAL_ID_NOT_FOUND: Final = 105
FENCED_MEMBER_EPOCH: Final = 110
UNRELEASED_INSTANCE_ID: Final = 111
UNSUPPORTED_ASSIGNOR: Final = 112
STALE_MEMBER_EPOCH: Final = 113
TRANSACTION_ABORTABLE: Final = 120
INVALID_REGULAR_EXPRESSION: Final = 128
REBOOTSTRAP_REQUIRED: Final = 129


class Place(Enum):
    """Groups of APIs whose clients handle an error in the same way."""

    DATA = auto()  # Produce, Fetch
    OFFSETS = auto()  # ListOffsets, OffsetForLeaderEpoch
    METADATA = auto()
    ADMIN = auto()  # changes of topics and settings
    GROUPS = auto()
    CLASSIC_GROUPS = auto()  # members of classic groups: JoinGroup, Heartbeat, commits


_DATA, _OFFSETS = Place.DATA, Place.OFFSETS
_METADATA, _ADMIN, _GROUPS = Place.METADATA, Place.ADMIN, Place.GROUPS
_CLASSIC = Place.CLASSIC_GROUPS

# A class without an entry has the code of its base class. With places: one code per place.
_CODES: Final[Mapping[type[own.RaftlogError], int | Mapping[Place, int]]] = {
    own.RaftlogError: UNKNOWN_SERVER_ERROR,
    own.RetriableError: REQUEST_TIMED_OUT,
    own.NotLeaderError: NOT_LEADER_OR_FOLLOWER,
    own.BrokerUnavailableError: {
        _DATA: NOT_LEADER_OR_FOLLOWER,
        _OFFSETS: NOT_LEADER_OR_FOLLOWER,
        _METADATA: LEADER_NOT_AVAILABLE,
        _ADMIN: REQUEST_TIMED_OUT,
        _GROUPS: COORDINATOR_NOT_AVAILABLE,
        _CLASSIC: COORDINATOR_NOT_AVAILABLE,
    },
    own.ThrottledError: {
        _DATA: REQUEST_TIMED_OUT,
        _OFFSETS: REQUEST_TIMED_OUT,
        _METADATA: LEADER_NOT_AVAILABLE,
        _ADMIN: THROTTLING_QUOTA_EXCEEDED,
        _GROUPS: COORDINATOR_LOAD_IN_PROGRESS,
        _CLASSIC: COORDINATOR_LOAD_IN_PROGRESS,
    },
    own.DiskFullError: KAFKA_STORAGE_ERROR,
    own.DiskHungError: KAFKA_STORAGE_ERROR,
    own.FencedLeaderEpochError: FENCED_LEADER_EPOCH,
    own.UnknownLeaderEpochError: UNKNOWN_LEADER_EPOCH,
    own.NotEnoughReplicasError: {
        _DATA: NOT_ENOUGH_REPLICAS,
        _OFFSETS: NOT_ENOUGH_REPLICAS,
        _METADATA: NOT_ENOUGH_REPLICAS,
        _ADMIN: NOT_ENOUGH_REPLICAS,
        _GROUPS: COORDINATOR_NOT_AVAILABLE,
        _CLASSIC: COORDINATOR_NOT_AVAILABLE,
    },
    own.LeaderNotAvailableError: {
        _DATA: NOT_LEADER_OR_FOLLOWER,
        _OFFSETS: OFFSET_NOT_AVAILABLE,
        _METADATA: LEADER_NOT_AVAILABLE,
        _ADMIN: LEADER_NOT_AVAILABLE,
        _GROUPS: COORDINATOR_NOT_AVAILABLE,
        _CLASSIC: COORDINATOR_NOT_AVAILABLE,
    },
    own.ClusterNotReadyError: {
        _DATA: NOT_LEADER_OR_FOLLOWER,
        _OFFSETS: NOT_LEADER_OR_FOLLOWER,
        _METADATA: LEADER_NOT_AVAILABLE,
        _ADMIN: NOT_CONTROLLER,
        _GROUPS: COORDINATOR_NOT_AVAILABLE,
        _CLASSIC: COORDINATOR_NOT_AVAILABLE,
    },
    own.NotCoordinatorError: NOT_COORDINATOR,
    own.CoordinatorLoadingError: COORDINATOR_LOAD_IN_PROGRESS,
    own.StaleMemberEpochError: STALE_MEMBER_EPOCH,
    own.OutcomeUnknownError: {
        _DATA: REQUEST_TIMED_OUT,
        _OFFSETS: REQUEST_TIMED_OUT,
        _METADATA: REQUEST_TIMED_OUT,
        _ADMIN: REQUEST_TIMED_OUT,
        _GROUPS: COORDINATOR_NOT_AVAILABLE,
        _CLASSIC: COORDINATOR_NOT_AVAILABLE,
    },
    own.CommitUnknownError: {
        _DATA: NOT_LEADER_OR_FOLLOWER,
        _OFFSETS: NOT_LEADER_OR_FOLLOWER,
        _METADATA: LEADER_NOT_AVAILABLE,
        _ADMIN: REQUEST_TIMED_OUT,
        _GROUPS: COORDINATOR_NOT_AVAILABLE,
        _CLASSIC: COORDINATOR_NOT_AVAILABLE,
    },
    own.RefusedError: INVALID_REQUEST,
    own.KeyRequiredError: INVALID_RECORD,
    own.RecordSchemaError: INVALID_RECORD,
    own.UnsupportedVersionError: UNSUPPORTED_VERSION,
    own.InvalidTopicError: INVALID_TOPIC,
    own.TopicExistsError: TOPIC_ALREADY_EXISTS,
    own.UnknownTopicError: UNKNOWN_TOPIC_OR_PARTITION,
    own.UnknownPartitionError: UNKNOWN_TOPIC_OR_PARTITION,
    own.InvalidPartitionsError: INVALID_PARTITIONS,
    own.InvalidConfigError: INVALID_CONFIG,
    own.OffsetOutOfRangeError: OFFSET_OUT_OF_RANGE,
    own.RecordTooLargeError: MESSAGE_TOO_LARGE,
    own.BadRecordError: INVALID_RECORD,
    own.CorruptBatchError: CORRUPT_MESSAGE,
    own.OutOfOrderSequenceError: OUT_OF_ORDER_SEQUENCE_NUMBER,
    own.UnknownProducerError: UNKNOWN_PRODUCER_ID,
    own.ProducerFencedError: {
        _DATA: INVALID_PRODUCER_EPOCH,
        _OFFSETS: INVALID_PRODUCER_EPOCH,
        _METADATA: INVALID_PRODUCER_EPOCH,
        _ADMIN: INVALID_PRODUCER_EPOCH,
        _GROUPS: PRODUCER_FENCED,
        _CLASSIC: PRODUCER_FENCED,
    },
    own.TransactionAbortedError: TRANSACTION_ABORTABLE,
    own.InvalidTransactionStateError: INVALID_TXN_STATE,
    own.InvalidProducerMappingError: INVALID_PRODUCER_ID_MAPPING,
    own.InvalidTransactionTimeoutError: INVALID_TRANSACTION_TIMEOUT,
    own.UnknownTransactionError: TRANSACTIONAL_ID_NOT_FOUND,
    own.StaleTransactionCoordinatorError: TRANSACTION_COORDINATOR_FENCED,
    own.ConcurrentTransactionsError: CONCURRENT_TRANSACTIONS,
    own.UnstableOffsetError: UNSTABLE_OFFSET_COMMIT,
    own.UnsupportedFeatureError: UNSUPPORTED_VERSION,
    own.AuthenticationError: SASL_AUTHENTICATION_FAILED,
    own.UserExistsError: DUPLICATE_RESOURCE,
    own.UnknownUserError: RESOURCE_NOT_FOUND,
    own.UnknownTokenError: DELEGATION_TOKEN_NOT_FOUND,
    own.TokenExpiredError: DELEGATION_TOKEN_EXPIRED,
    own.TokenOwnerError: DELEGATION_TOKEN_OWNER_MISMATCH,
    own.TokenRequestNotAllowedError: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    own.AccessDeniedError: CLUSTER_AUTHORIZATION_FAILED,
    own.TopicAuthorizationFailedError: TOPIC_AUTHORIZATION_FAILED,
    own.GroupAuthorizationFailedError: GROUP_AUTHORIZATION_FAILED,
    own.TransactionalIdAuthorizationFailedError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    own.InvalidGroupError: INVALID_GROUP_ID,
    own.UnknownGroupError: GROUP_ID_NOT_FOUND,
    own.UnknownMemberError: UNKNOWN_MEMBER_ID,
    own.FencedMemberError: {
        _DATA: FENCED_MEMBER_EPOCH,
        _OFFSETS: FENCED_MEMBER_EPOCH,
        _METADATA: FENCED_MEMBER_EPOCH,
        _ADMIN: FENCED_MEMBER_EPOCH,
        _GROUPS: FENCED_MEMBER_EPOCH,
        _CLASSIC: ILLEGAL_GENERATION,
    },
    own.RebalanceInProgressError: REBALANCE_IN_PROGRESS,
    own.InconsistentGroupProtocolError: INCONSISTENT_GROUP_PROTOCOL,
    own.GroupFullError: GROUP_MAX_SIZE_REACHED,
    own.InstanceInUseError: UNRELEASED_INSTANCE_ID,
    own.InstanceFencedError: FENCED_INSTANCE_ID,
    own.GroupNotEmptyError: NON_EMPTY_GROUP,
    own.UnknownAssignorError: UNSUPPORTED_ASSIGNOR,
    own.StorageError: KAFKA_STORAGE_ERROR,
}


def code_of(error: own.RaftlogError, place: Place) -> int:
    """Return the code for an error that occurs in ``place``."""
    if isinstance(error, own.KafkaBatchError):
        found: int = error.kind.value
        return found
    for each in type(error).__mro__:
        code = _CODES.get(each)
        if code is not None:
            return code if isinstance(code, int) else code[place]
    return UNKNOWN_SERVER_ERROR
