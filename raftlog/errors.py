"""Error classes: one per failure, grouped by how the caller can react.

    RaftlogError
    ├── RetriableError               nothing was done: back off, refresh metadata, send it again
    │   ├── NotLeaderError           another broker leads the partition
    │   ├── BrokerUnavailableError   cannot connect to a broker
    │   ├── ThrottledError           a named limit is reached
    │   │   └── GroupFullError       the consumer group has group.max.size members
    │   ├── DiskFullError            disk full: reads continue; writes resume with free space
    │   │   └── FileLimitError       no file descriptor or no inode is left; the message says which
    │   ├── FencedLeaderEpochError   the request has an older leader epoch than the broker
    │   ├── UnknownLeaderEpochError  the request has a newer leader epoch than the broker: wait
    │   ├── NotEnoughReplicasError   fewer in-sync replicas than min.insync.replicas
    │   ├── LeaderNotAvailableError  the partition has no live leader
    │   ├── ClusterNotReadyError     the cluster group has no leader yet
    │   ├── NotCoordinatorError      another broker coordinates the consumer group
    │   ├── CoordinatorLoadingError  the coordinator is still reading the group's state
    │   ├── StaleMemberEpochError    the member epoch has increased: repeat with the newest one
    │   ├── DiskHungError            the broker's disk completes no sync; nothing was appended
    │   ├── RebalanceInProgressError the classic group forms a new generation: join again
    │   ├── SessionEndedError        not authenticated again in time: open another connection
    │   ├── ConcurrentTransactionsError  the last transaction of this id is still being completed
    │   └── UnstableOffsetError      an open transaction holds an offset of the group: wait
    ├── OutcomeUnknownError          may have been done: safe to repeat only with a sequence
    │   ├── ConnectionLostError      the connection closed before the response arrived
    │   ├── RequestTimedOutError     no response within the request timeout
    │   ├── DeliveryTimedOutError    the delivery timeout passed while a request was in flight
    │   └── CommitUnknownError       appended; leadership or the ISR changed before it was committed
    ├── RefusedError                 invalid request: sending it again gives the same response
    │   ├── InvalidRequestError      a field is missing, has the wrong type or is out of range
    │   │   ├── KeyRequiredError     a record without a key for a compacted topic
    │   │   ├── RecordSchemaError    a record that does not match the topic's schema
    │   │   └── InvalidTransactionTimeoutError  0, or over transaction.max.timeout.ms
    │   ├── UnsupportedApiError      the broker does not have this API
    │   ├── UnsupportedVersionError  the broker does not have this version of the API
    │   ├── FrameError               no frame, or one over the limit; the connection closes
    │   ├── InvalidTopicError        not a valid topic name
    │   ├── TopicExistsError         a topic of that name exists
    │   ├── UnknownTopicError        no topic of that name (or id)
    │   ├── UnknownPartitionError    the topic has no such partition
    │   ├── InvalidPartitionsError   an impossible partition count or replication factor
    │   ├── InvalidConfigError       an unknown config key, or a value outside its range
    │   ├── OffsetOutOfRangeError    the offset is below the log start or above the log end
    │   ├── RecordTooLargeError      over the topic's max.message.bytes
    │   ├── KafkaBatchError          a batch of a Kafka client that is not stored
    │   ├── BadRecordError           a record that cannot be read; ``skip`` continues after it
    │   │   ├── CorruptBatchError    bytes that are not a valid record batch
    │   │   └── DeserializationError a deserializer of the consumer raised
    │   ├── OutOfOrderSequenceError  a producer's sequence number leaves a gap
    │   │   └── UnknownProducerError all batches of the producer in the partition are deleted
    │   ├── ProducerFencedError      a newer epoch of the same producer exists
    │   ├── TransactionAbortedError  the transaction cannot commit: abort it, run its block again
    │   ├── InvalidTransactionStateError  not possible in the state of the transaction
    │   ├── InvalidProducerMappingError   the transactional id has another producer id
    │   ├── UnknownTransactionError       no such transactional id
    │   ├── StaleTransactionCoordinatorError  a marker of a former coordinator
    │   ├── UnsupportedFeatureError  not available in this release or deployment
    │   ├── ClosedError              the client was closed
    │   ├── AccessDeniedError        no access rule allows it, or the cluster secret is missing
    │   │   ├── AuthenticationError      wrong credentials, or none where they are required
    │   │   ├── TopicAuthorizationFailedError            of a topic
    │   │   ├── GroupAuthorizationFailedError            of a consumer group
    │   │   ├── ClusterAuthorizationFailedError          of the cluster
    │   │   ├── TransactionalIdAuthorizationFailedError  of the name of a producer
    │   │   ├── TokenOwnerError      the delegation token belongs to another user
    │   │   └── TokenRequestNotAllowedError  of a connection without TLS, or with a token
    │   ├── BrokerIdInUseError       another live broker has this broker id
    │   ├── WrongClusterError        the peer belongs to another cluster
    │   ├── StaleBrokerError         an older data directory: a copy, or a truncated journal
    │   ├── BrokerRemovedError       the broker of this data directory was decommissioned
    │   ├── DeclaredLostError        a recovery has declared this data directory lost
    │   ├── HistoryConflictError     two brokers continue after different recoveries
    │   ├── ChainMismatchError       a replica's batch does not continue the hash chain of its log
    │   ├── InvalidGroupError        not a valid name of a group, or of one of its instances
    │   ├── UnknownGroupError        no group of that name
    │   ├── UnknownMemberError       the group has no such member: it left, or its session ended
    │   ├── FencedMemberError        the group has not assigned this epoch to the member
    │   ├── InstanceFencedError      a newer member has the same group.instance.id
    │   ├── PartitionNotOwnedError   the partition is assigned to another member of the group
    │   ├── GroupNotEmptyError       the group has members: stop them first
    │   ├── UnknownAssignorError     the coordinator has no assignor of that name
    │   ├── InconsistentGroupProtocolError  the group's members use another group protocol
    │   ├── InstanceInUseError       a live member has the same group.instance.id
    │   ├── OffsetMovedError         the committed offset is not the one that the commit expects
    │   ├── UserExistsError          a user of that name exists
    │   ├── UnknownUserError         no user of that name
    │   ├── UnknownTokenError        no delegation token of that ID
    │   ├── TokenExpiredError        the delegation token has expired
    │   └── SchemaError              the schema registry refuses: invalid, incompatible or unknown
    └── StorageError                 the disk of this process: an operator must check it
        ├── DataDirectoryError       in use, another broker's, unreadable or unwritable
        ├── DamagedLogError          stored bytes below the durable end offset are corrupt
        ├── StorageFailedError       a write or fsync failed; the state of the disk is unknown
        └── DamagedJournalError      the consensus journal is corrupt: this broker must not vote

Each leaf has a wire code (0 is success). A code that this release does not know becomes the base
class of its range, so that an old client still reacts correctly: 1-99 retriable, 100-199 outcome
unknown, 200-299 refused, 300-399 storage.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import ClassVar, Final, Self

from raftlog import limits


class RaftlogError(Exception):
    """Base class of all errors of raftlog. ``code`` is the number in the protocol."""

    code: ClassVar[int] = -1

    @property
    def wire_text(self) -> str:
        """Text for a response: encodable, at most ``ERROR_MESSAGE_CHARS_MAX`` characters."""
        # A path that is not valid UTF-8 contains surrogates, which cannot be encoded.
        text = str(self)[: limits.ERROR_MESSAGE_CHARS_MAX]
        return text.encode("utf-8", "replace").decode("utf-8")


class RetriableError(RaftlogError):
    """Nothing was done. Back off, refresh metadata and send the same request again."""

    code = 1


class NotLeaderError(RetriableError):
    """The broker does not lead the partition."""

    code = 2


class BrokerUnavailableError(RetriableError):
    """Cannot connect. The message contains each address that was tried and what to check."""

    code = 3


class ThrottledError(RetriableError):
    """A limit is reached. The message names it."""

    code = 4


class GroupFullError(ThrottledError):
    """The consumer group has as many members as ``group.max.size`` allows."""

    code = 16


class DiskFullError(RetriableError):
    """Disk full: nothing was written. Reads continue; writes resume when space is available."""

    code = 5


class FileLimitError(DiskFullError):
    """No file descriptor, or no inode, is left: nothing was written. The message names the limit.

    A subclass of ``DiskFullError`` because a program reacts in the same way: the write can be
    repeated once there is room.
    """

    code = 18


class FencedLeaderEpochError(RetriableError):
    """The request has an older leader epoch than the broker: refresh metadata."""

    code = 6


class UnknownLeaderEpochError(RetriableError):
    """The request has a newer leader epoch than the broker. Wait for its metadata update."""

    code = 7


class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than ``min.insync.replicas``: nothing was appended."""

    code = 8


class LeaderNotAvailableError(RetriableError):
    """The partition has no live leader. An election may be in progress."""

    code = 9


class ClusterNotReadyError(RetriableError):
    """The cluster group has no leader yet: too few of its voters are connected."""

    code = 10


class NotCoordinatorError(RetriableError):
    """The broker does not coordinate the group. Look up the coordinator again."""

    code = 11


class CoordinatorLoadingError(RetriableError):
    """The broker is the new coordinator of the group, and is still reading its state."""

    code = 12


class StaleMemberEpochError(RetriableError):
    """The member epoch has increased since the request was sent: repeat it with the newest one."""

    code = 13


class DiskHungError(RetriableError):
    """The broker's disk completes no sync; nothing was appended. Another broker may lead soon."""

    code = 14


class RebalanceInProgressError(RetriableError):
    """The classic consumer group forms a new generation: the member must join again."""

    code = 15


class SessionEndedError(RetriableError):
    """The connection was not authenticated again in time (KIP-368): open another one."""

    code = 17


class ConcurrentTransactionsError(RetriableError):
    """The last transaction of this transactional id is still being completed. Try again soon."""

    code = 19


class UnstableOffsetError(RetriableError):
    """An open transaction holds a new offset of the group: wait until it ends."""

    code = 20


class OutcomeUnknownError(RaftlogError):
    """The request may have been processed. Repeating it is safe only if it is idempotent."""

    code = 100


class ConnectionLostError(OutcomeUnknownError):
    """The connection closed after the request was sent and before its response arrived."""

    code = 101


class RequestTimedOutError(OutcomeUnknownError):
    """No response arrived within the request timeout."""

    code = 102


class DeliveryTimedOutError(OutcomeUnknownError):
    """A record was not acknowledged within the delivery timeout."""

    code = 103


class CommitUnknownError(OutcomeUnknownError):
    """Appended, but leadership or the ISR changed before the commit: it may be lost."""

    code = 104


class RefusedError(RaftlogError):
    """The request is invalid. Sending it again gives the same response."""

    code = 200


class InvalidRequestError(RefusedError):
    """A field is missing, of the wrong type, or outside its range."""

    code = 201


class KeyRequiredError(InvalidRequestError):
    """A record without a key for a compacted topic, which keeps the last record of each key."""

    code = 233


class RecordSchemaError(InvalidRequestError):
    """A record that does not match the topic's schema, with ``schema.validation``.

    ``rows``: the indexes of the first such records in their batch, from 0; at most
    ``KEYLESS_ROWS_MAX``.
    """

    code = 261

    def __init__(self, message: str, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


class InvalidTransactionTimeoutError(InvalidRequestError):
    """A transaction timeout of 0 or less, or over the broker's transaction.max.timeout.ms."""

    code = 267


class UnsupportedApiError(RefusedError):
    """The broker does not have this API."""

    code = 202


class UnsupportedVersionError(RefusedError):
    """The broker does not have this version of the API. The message lists its versions."""

    code = 203


class FrameError(RefusedError):
    """The received bytes are not a frame, or a frame over its limit. The connection closes."""

    code = 204


class InvalidTopicError(RefusedError):
    """Not a valid topic name. The message specifies valid ones."""

    code = 205


class TopicExistsError(RefusedError):
    """A topic of that name exists already."""

    code = 206


class UnknownTopicError(RefusedError):
    """No topic of that name (or id) exists."""

    code = 207


class UnknownPartitionError(RefusedError):
    """The topic has no such partition."""

    code = 208


class InvalidPartitionsError(RefusedError):
    """An impossible partition count or replication factor."""

    code = 209


class InvalidConfigError(RefusedError):
    """An unknown config key, or a value outside its range."""

    code = 210


class OffsetOutOfRangeError(RefusedError):
    """The offset is below the log start offset or above the log end offset."""

    code = 211


class RecordTooLargeError(RefusedError):
    """A batch over the topic's ``max.message.bytes``, or a record that fits no batch."""

    code = 212


class KafkaBatchFault(Enum):
    """The reason why a batch of a Kafka client is not stored, by Kafka's error codes."""

    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87


class KafkaBatchError(RefusedError):
    """A batch of a Kafka client that is not stored.

    ``kind``: the reason. ``rows``: the indexes of the invalid records, from 0, if records are the
    reason; at most ``KEYLESS_ROWS_MAX``.
    """

    code = 234

    def __init__(
        self,
        message: str,
        kind: KafkaBatchFault = KafkaBatchFault.CORRUPT_MESSAGE,
        rows: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.rows = rows


class BadRecordError(RefusedError):
    """A record that cannot be read.

    If a consumer raises it, ``topic``, ``partition`` and ``offset`` identify the record (of a
    corrupt batch: the first missing one), and ``skip`` makes the consumer continue after it. Until
    then the position does not change, and the next ``poll`` reads the record again.
    """

    code = 231
    topic: str = ""
    partition: int = -1
    offset: int = -1
    _skip: Callable[[], None] | None = None

    def at(self, topic: str, partition: int, offset: int, *, skip: Callable[[], None]) -> Self:
        """Set the position of the record. Returns the error."""
        self.topic, self.partition, self.offset, self._skip = topic, partition, offset, skip
        return self

    def skip(self) -> None:
        """Set the consumer's position after the record, or after its batch if that is corrupt.

        Does not block, and is not a coroutine, also with ``AsyncConsumer``. Raises ``RuntimeError``
        if no consumer raised the error.
        """
        if self._skip is None:
            raise RuntimeError("this error was not raised by a consumer: there is nothing to skip")
        self._skip()


class CorruptBatchError(BadRecordError):
    """Bytes that are not a valid record batch. The message has the reason and the position."""

    code = 213


class DeserializationError(BadRecordError):
    """A ``key_deserializer`` or ``value_deserializer`` raised; its exception is ``__cause__``."""

    code = 232


class OutOfOrderSequenceError(RefusedError):
    """A producer's sequence number leaves a gap: records before it were never received."""

    code = 214


class UnknownProducerError(OutOfOrderSequenceError):
    """A batch with a sequence number above 0 of a producer whose earlier batches are deleted."""

    code = 235


class ProducerFencedError(RefusedError):
    """A newer epoch of the same producer id exists: this one must not write."""

    code = 215


class TransactionAbortedError(RefusedError):
    """The transaction cannot be committed: abort it, and run its block again."""

    code = 262


class InvalidTransactionStateError(RefusedError):
    """The request is not possible in the state of the transaction."""

    code = 263


class InvalidProducerMappingError(RefusedError):
    """The transactional id is unknown, or has another producer id. Initialize the producer."""

    code = 264


class UnknownTransactionError(RefusedError):
    """There is no transactional id of that name."""

    code = 265


class StaleTransactionCoordinatorError(RefusedError):
    """A marker of a coordinator that was replaced. The newer one decides."""

    code = 266


class UnsupportedFeatureError(RefusedError):
    """A feature that this release or deployment does not have."""

    code = 216


class ClosedError(RefusedError):
    """The client (or the embedded log) was closed."""

    code = 217


class AccessDeniedError(RefusedError):
    """Not permitted: no access rule allows it, or the client has not proved the cluster secret."""

    code = 218


class AuthenticationError(AccessDeniedError):
    """The credentials are wrong, or the broker requires credentials and the client sent none."""

    code = 240


class TopicAuthorizationFailedError(AccessDeniedError):
    """No access rule allows this with the topic. The message names principal and operation."""

    code = 244


class GroupAuthorizationFailedError(AccessDeniedError):
    """No access rule allows this with the consumer group."""

    code = 245


class ClusterAuthorizationFailedError(AccessDeniedError):
    """No access rule allows this with the cluster."""

    code = 246


class TransactionalIdAuthorizationFailedError(AccessDeniedError):
    """No access rule allows this with the name of the producer."""

    code = 247


class TokenOwnerError(AccessDeniedError):
    """The client is neither the owner nor a renewer of the delegation token."""

    code = 253


class TokenRequestNotAllowedError(AccessDeniedError):
    """The connection cannot manage tokens: it has no TLS, no user, or authenticated with one."""

    code = 254


class BrokerIdInUseError(RefusedError):
    """Another live broker has this broker id. The message names its data directory."""

    code = 219


class WrongClusterError(RefusedError):
    """The peer belongs to another cluster. The message names both cluster ids."""

    code = 220


class StaleBrokerError(RefusedError):
    """An older state of a data directory: a copy from a backup, or a truncated journal.

    Other brokers know a later boot number of it, or a later sequence of its journal. Votes and
    acknowledgements that the broker has sent are missing, so it must not rejoin with the same
    directory id. Start the broker with an empty directory.
    """

    code = 221


class BrokerRemovedError(RefusedError):
    """The broker of this data directory was decommissioned. It can join again with an empty one."""

    code = 248


class DeclaredLostError(RefusedError):
    """A recovery of the cluster has declared this data directory lost, and has gone on without it.

    The broker can join again with an empty directory.
    """

    code = 258


class HistoryConflictError(RefusedError):
    """Two brokers continue after different recoveries, or one of them after a recovery that the
    living majority of the voters has not seen.

    Both have acknowledged records that the other lacks. An operator has to decide which of them are
    kept: the brokers of the other side start with empty data directories.
    """

    code = 259


class ChainMismatchError(RefusedError):
    """A replica's batch does not continue its hash chain: the two logs differ below it."""

    code = 222


class InvalidGroupError(RefusedError):
    """Not a valid name of a consumer group or an instance. The message specifies valid ones."""

    code = 223


class UnknownGroupError(RefusedError):
    """There is no consumer group of that name."""

    code = 224


class UnknownMemberError(RefusedError):
    """The group has no such member: it has left, or its session has expired."""

    code = 225


class FencedMemberError(RefusedError):
    """The group has not assigned this epoch to the member: it must join again."""

    code = 226


class InstanceFencedError(RefusedError):
    """A newer member has the same ``group.instance.id``: this one must stop."""

    code = 227


class PartitionNotOwnedError(RefusedError):
    """The partition is assigned to another member, so this one cannot commit its offsets."""

    code = 228


class GroupNotEmptyError(RefusedError):
    """The request requires a group without members: stop its consumers first."""

    code = 229


class UnknownAssignorError(RefusedError):
    """The coordinator has no assignor of that name. The message lists the available ones."""

    code = 230


class InconsistentGroupProtocolError(RefusedError):
    """The group's members use another group protocol, or have no assignor in common with this one.

    All members of a consumer group use one protocol: classic or consumer.
    """

    code = 236


class InstanceInUseError(RefusedError):
    """A live member has the same ``group.instance.id``: stop it, or wait for its session to end."""

    code = 237


class OffsetMovedError(RefusedError):
    """The committed offset is another one than the commit expects: read it again, and decide."""

    code = 238


class UserExistsError(RefusedError):
    """A user of that name exists."""

    code = 241


class UnknownUserError(RefusedError):
    """There is no user of that name, or it has no credential of that mechanism."""

    code = 242


class UnknownTokenError(RefusedError):
    """There is no such delegation token, or it was removed."""

    code = 251


class TokenExpiredError(RefusedError):
    """The delegation token has expired, or has reached its maximum lifetime."""

    code = 252


class SchemaError(RefusedError):
    """The schema registry refuses a request: a schema is invalid, incompatible or unknown.

    ``registry_code``: the code of Confluent's registry, such as 40403 or 409.
    """

    code = 260

    def __init__(self, message: str, registry_code: int = 42201) -> None:
        super().__init__(message)
        self.registry_code = registry_code


class StorageError(RaftlogError):
    """The disk or files of this process. An operator must check them."""

    code = 300


class DataDirectoryError(StorageError):
    """The data directory is in use, belongs to another broker, or cannot be read or written."""

    code = 301


class DamagedLogError(StorageError):
    """Stored bytes below the durable end are corrupt. The partition serves the bytes before."""

    code = 302


class StorageFailedError(StorageError):
    """A write or an fsync failed in a way that leaves the state of the disk unknown.

    Retrying an fsync does not help (the kernel may have dropped the dirty pages). The process ends,
    and recovery reads the actual contents of the disk. See Rebello et al., "Can Applications
    Recover from fsync Failures?", USENIX ATC 2020.
    """

    code = 303


class DamagedJournalError(StorageError):
    """The consensus journal is corrupt, not only torn at its end: this broker must not vote."""

    code = 304


def _tree(base: type[RaftlogError]) -> list[type[RaftlogError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in _tree(child))]


ERRORS_BY_CODE: Final[dict[int, type[RaftlogError]]] = {
    error.code: error for error in _tree(RaftlogError)
}

# First code of each range, and the class for unknown codes of that range.
_RANGES: Final = (
    (300, StorageError),
    (200, RefusedError),
    (100, OutcomeUnknownError),
    (1, RetriableError),
)


def from_code(code: int, message: str) -> RaftlogError:
    """Return the error for a wire ``code``; for an unknown code, the base class of its range."""
    known = ERRORS_BY_CODE.get(code)
    if known is not None:
        return known(message)
    for first, base in _RANGES:
        if first <= code < first + 100:
            return base(f"{message} (error code {code})")
    return RaftlogError(f"{message} (error code {code})")


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as ``1 record``. ``many``: plural; default: with s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
