"""Synchronous admin client: each call runs the ``AsyncAdmin`` method on an I/O thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar, Unpack

from raftlog import limits
from raftlog.client.administration import groups as administration
from raftlog.client.administration import security as security_calls
from raftlog.client.administration import transactions as transaction_calls
from raftlog.client.administration.describe import (
    describe_cluster,
    describe_disks,
    describe_events,
    describe_features,
    describe_topics,
    named_failure,
    summarize_cluster,
    topic_ids,
    verify_copies,
)
from raftlog.client.administration.groups import GroupDescription, GroupListing
from raftlog.client.administration.security import AclDecision, NewToken, TokenListing, UserListing
from raftlog.client.administration.transactions import TransactionDescription, TransactionListing
from raftlog.client.base import ClientEnvironment, LoopBound
from raftlog.client.cluster import Cluster
from raftlog.client.connection import Connection, prove_operator
from raftlog.client.defaults import CLIENT_ID_DEFAULT
from raftlog.client.descriptions import (
    ClusterDescription,
    ClusterFeatures,
    DecommissionProgress,
    DiskUseDescription,
    EventDescription,
    LeaderDescription,
    LogLevel,
    PartitionOverview,
    PartitionVerification,
    ProducerDescription,
    ProducerPage,
    RecoveryDescription,
    TopicDescription,
    TopicListing,
    recovery_description,
)
from raftlog.client.groups.coordinator import TRANSACTIONS, Coordinators
from raftlog.client.registry import call_registry
from raftlog.client.requests import At, delete_records, list_offsets, try_list_producers
from raftlog.client.retry import may_retry
from raftlog.client.settings import (
    BROKER_IDS,
    Bootstrap,
    SecurityArguments,
    connection_settings,
    integer,
    isolation_of,
    operator_secret,
    parse_bootstrap,
)
from raftlog.client.subscription import check_partitions, check_topics
from raftlog.client.threads import PlainClient
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
)
from raftlog.kafka_names import answers_kafka_names
from raftlog.protocol import api as apis
from raftlog.protocol import cluster as membership
from raftlog.protocol.api import Api
from raftlog.protocol.cluster import (
    AlterLogLevelsRequest,
    DescribeLogLevelsRequest,
    DescribeLogLevelsResponse,
    LogLevelChange,
    PartitionMove,
    ReassignRequest,
    ReassignResponse,
    RecoverClusterRequest,
    RecoverClusterResponse,
    ThrottleMovesRequest,
    TransferLeaderRequest,
    TransferLeaderResponse,
    UpgradeFeaturesRequest,
    UpgradeFeaturesResponse,
)
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ListedProducers,
    MetadataRequest,
    MetadataResponse,
    TopicResult,
    TopicsResponse,
    TopicToAlter,
    TopicToCreate,
    TopicToExtend,
)
from raftlog.protocol.schema import Message
from raftlog.protocol.security import CreateAclsRequest, DeleteAclsRequest, DeleteAclsResponse
from raftlog.security.acl import Acl, AclFilter, Operation, ResourceType
from raftlog.security.producer_ids import NAMED_ID_BASE
from raftlog.security.quota import QuotaEntity, QuotaKey
from raftlog.types import (
    Isolation,
    NewTopic,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TimestampMs,
    TopicPartition,
    check_group_id,
    check_topic_name,
)

# -- admin arguments -------------------------------------------------------------------------------
#
# Checks of the arguments of the admin clients. Pure.


V = TypeVar("V", str, str | None)
GroupOffsets: TypeAlias = Mapping[TopicPartition, Offset | OffsetAndMetadata]

_NO_EPOCH: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1


def config_text(config: Mapping[str, V]) -> dict[str, V]:
    """Return settings as a dict. Raises ``TypeError`` if they are no texts by name."""
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config={config!r} is not a dict of settings, such as {{'retention.ms': '1000'}}"
        )
    for key, value in config.items():
        if not all(isinstance(text, str | None) for text in (key, value)) or key is None:
            raise TypeError(f"config: {key!r}={value!r} is not a str. Pass str names and values")
    return dict(config)


def time_or_end(at: object) -> At:
    """Return a time, or an end of a log. Raises ``TypeError`` and ``InvalidRequestError``."""
    if at == "earliest":
        return "earliest"
    if at == "latest":
        return "latest"
    if isinstance(at, bool) or not isinstance(at, int):
        raise TypeError(f"{at!r} is not 'earliest', 'latest', or a time in ms since 1970")
    return integer("the time", at, 0, limits.TIMESTAMP_MS_MAX)


def group_ids(groups: Iterable[str]) -> list[str]:
    """Return names of groups, each once. Raises ``TypeError`` and ``InvalidGroupError``."""
    if isinstance(groups, str | bytes):
        raise TypeError(f"groups={groups!r} is not a list of names. Pass [{groups!r}]")
    names = list(dict.fromkeys(groups))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not the name of a consumer group (str)")
    return [check_group_id(name) for name in names]


def group_offsets(offsets: GroupOffsets, metadata: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets to commit. ``metadata``: of those given as a number only."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets={offsets!r} is not a dict of TopicPartition to offset")
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, wanted in zip(check_partitions(offsets), offsets.values(), strict=True):
        given = (
            wanted if isinstance(wanted, OffsetAndMetadata) else OffsetAndMetadata(wanted, metadata)
        )
        checked[tp] = OffsetAndMetadata(
            integer("offset", given.offset, 0, limits.OFFSET_MAX),
            _note(given.metadata),
            integer("leader_epoch", given.leader_epoch, _NO_EPOCH, _EPOCH_MAX),
        )
    return checked


def _note(metadata: object) -> str:
    if not isinstance(metadata, str):
        raise TypeError(f"metadata={metadata!r} is not a str")
    if len(metadata) > limits.OFFSET_METADATA_CHARS_MAX:
        raise InvalidRequestError(
            f"the offset metadata has {len(metadata)} characters. Shorten it to "
            f"{limits.OFFSET_METADATA_CHARS_MAX}"
        )
    return metadata


# -- admin -----------------------------------------------------------------------------------------
#
# Asynchronous admin client. The synchronous ``Admin`` calls it on an I/O thread.


T = TypeVar("T")

_METADATA_MAX_AGE_MS = 30_000
_TO_THE_END = -1  # offset that stands for the high watermark in delete_records
_RECOVER_TIMEOUT_MS = 600_000  # recovery processes all partitions in one request


@answers_kafka_names
class AdminBase:
    """Settings of an admin client. See ``Admin`` and ``AsyncAdmin``."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        request_timeout_ms: int = 30_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        cluster_secret: str | None = None,
        cluster_secret_file: str | None = None,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """Create the client. It opens its first connection with the first call.

        ``bootstrap``: ``host:port[,host:port]`` of one or more brokers, or a list of addresses.
            Default: the environment variable RAFTLOG_BOOTSTRAP; without it, the brokers of `raftlog
            up`: 127.0.0.1:9100 to 9102.
        ``request_timeout_ms``: maximum duration of a call, including retries, 1 to 86,400,000 ms.
        ``client_id``: name of this client in the broker log, up to 256 characters.
        ``bootstrap_timeout_ms``: time limit for the first connection to the cluster, 0 to
            86,400,000 ms.
        ``cluster_secret``, ``cluster_secret_file``: secret of the cluster, or a file that contains
            it. ``transfer_leader``, ``reassign_partitions``, ``cancel_reassignment`` and
            ``recover_cluster`` need it if the brokers have one. Set at
            most one. Default: the file in the environment variable RAFTLOG_CLUSTER_SECRET_FILE, if
            it is set.
        ``host``: environment of the client (clock, randomness, connections), for embedding and
            tests.
        ``security``: TLS: ``security_protocol``, ``ssl_cafile`` and so on (`SecurityArguments`).

        Raises ``InvalidRequestError`` or ``TypeError`` if an argument is wrong. The error names it.
        """
        operator = operator_secret(cluster_secret, cluster_secret_file)
        arguments = {**locals(), "metadata_max_age_ms": _METADATA_MAX_AGE_MS}
        del arguments["cluster_secret"], arguments["cluster_secret_file"]
        self._settings = connection_settings(arguments)
        self._security = security
        self._host = host or ClientEnvironment()
        self._setup()

    def _setup(self) -> None:
        """Set up what only the synchronous or only the asynchronous client has."""


class AsyncAdmin(LoopBound, AdminBase):
    """Client that creates, changes and describes topics and consumer groups, and looks up offsets.

    An asynchronous context manager. A call that names several topics processes all of them, and
    then raises the first error, which names its topic. If the response is lost, the request may
    have been carried out: the call raises an ``OutcomeUnknownError`` unless the request is
    idempotent.
    """

    def _setup(self) -> None:
        self._cluster = Cluster(
            self._settings,
            connector=self._host.connector,
            chance=self._host.chance,
            entropy=self._host.entropy,
        )
        self._coordinators = Coordinators(self._cluster)
        self._transactions = Coordinators(self._cluster, TRANSACTIONS)

    # -- topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, str]:
        """Create topics, and return their ids by name.

        ``topics``: ``NewTopic`` objects. A replication factor of 0 or None selects the default of
            the cluster.
        ``validate_only``: check the request, but create no topic. Default: False.

        Raises ``TopicExistsError`` if a topic exists, ``InvalidTopicError`` if a name is not valid,
        ``InvalidPartitionsError`` if the cluster cannot place the partitions, and
        ``InvalidConfigError`` if a setting is not valid.
        """
        if isinstance(topics, NewTopic):
            raise TypeError(f"topics={topics!r} is not a list of NewTopic. Pass [{topics!r}]")
        wanted: list[TopicToCreate] = []
        failures: list[RaftlogError] = []
        for topic in topics:
            if not isinstance(topic, NewTopic):
                raise TypeError(
                    f"{topic!r} is not a NewTopic. Pass, for example, "
                    "NewTopic('clicks', partitions=6)"
                )
            try:
                check_topic_name(topic.name)
            except RaftlogError as error:
                failures.append(error)
                continue
            wanted.append(
                TopicToCreate(
                    name=topic.name,
                    partitions=integer("partitions", topic.partitions, *_COUNTS),
                    replication_factor=integer(
                        "replication_factor", topic.replication_factor or 0, 0, _COUNTS[1]
                    ),
                    config=config_text(topic.config),
                )
            )
        self._bind()
        return await change_topics(
            self._cluster,
            apis.CREATE_TOPICS,
            wanted,
            lambda part: CreateTopicsRequest(topics=part, validate_only=validate_only),
            failures,
        )

    async def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics with all their records. Raises ``UnknownTopicError`` if one is missing.

        A topic that is created with the same name during the call is not deleted.
        """
        failures: list[RaftlogError] = []
        self._bind()
        ids = await topic_ids(self._cluster, _names(topics), failures)
        await change_topics(
            self._cluster,
            apis.DELETE_TOPICS,
            list(ids),
            lambda part: DeleteTopicsRequest(topics=part, ids={name: ids[name] for name in part}),
            failures,
        )

    async def alter_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Change settings of a topic.

        ``config``: setting names and values. None resets a setting to its default. Other settings
            keep their values.

        Raises ``UnknownTopicError`` if the topic does not exist, and ``InvalidConfigError`` if a
        setting is not valid.
        """
        check_topic_name(name)
        self._bind()
        await change_topics(
            self._cluster,
            apis.ALTER_TOPICS,
            [TopicToAlter(name=name, config=config_text(config))],
            lambda part: AlterTopicsRequest(topics=part),
            [],
        )

    async def add_partitions(self, name: str, total: int) -> None:
        """Increase the partition count of a topic to ``total``, up to 10,000.

        New records with the same key can go to another partition than before, as in Kafka. Raises
        ``UnknownTopicError`` if the topic does not exist, and ``InvalidPartitionsError`` if
        ``total`` is not greater than the current count.
        """
        check_topic_name(name)
        integer("total", total, 1, limits.PARTITIONS_PER_TOPIC_MAX)
        self._bind()
        await change_topics(
            self._cluster,
            apis.ADD_PARTITIONS,
            [TopicToExtend(name=name, partitions=total)],
            lambda part: AddPartitionsRequest(topics=part),
            [],
        )

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        ``internal``: include the topics that only brokers write. Default: False.
        """
        topics = (await self._metadata(None)).topics
        return sorted(topic.name for topic in topics if internal or not topic.is_internal)

    async def find_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicListing]:
        """Return the listing of each topic in ``topics`` that exists, by name. Default: all topics.

        Sends one request to one broker. Queries other brokers only if its metadata seems to be
        stale.
        """
        self._bind()
        if topics is None:
            answer = await self._metadata(None)
            return {t.name: TopicListing(t.name, t.id, len(t.partitions)) for t in answer.topics}
        names, cluster = _names(topics), self._cluster
        view = await cluster.persist(lambda: cluster.refresh(names), repeatable=True)
        there = [view.topics[name] for name in names if name in view.topics]
        return {t.name: TopicListing(t.name, t.id, t.partition_count) for t in there}

    async def describe_topics(
        self, topics: Iterable[str] | None = None, *, partitions: range | None = None
    ) -> list[TopicDescription]:
        """Return the full description of these topics. Default: all topics.

        ``partitions``: only these of each topic, such as ``range(100, 200)``; default: all. Raises
        ``UnknownTopicError`` if a topic does not exist.
        """
        self._bind()
        names = None if topics is None else _names(topics)
        return await describe_topics(self._cluster, names, partitions)

    # -- records

    async def delete_records(
        self, before: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, Offset]:
        """Delete the records below an offset, and return the new start offset of each partition.

        ``before``: an offset for each partition. -1 deletes all committed records.

        Raises ``UnknownTopicError`` or ``UnknownPartitionError`` if the partition does not exist,
        and ``OffsetOutOfRangeError`` if an offset is beyond the committed end.
        """
        self._bind()
        if not isinstance(before, Mapping):
            raise TypeError(f"before={before!r} is not a dict of TopicPartition to offset")
        offsets = {
            tp: integer("offset", offset, _TO_THE_END, limits.OFFSET_MAX)
            for tp, offset in zip(check_partitions(before), before.values(), strict=True)
        }
        answers = await delete_records(self._cluster, offsets)
        return {tp: answers[tp].log_start_offset for tp in offsets}

    async def list_offsets(
        self, queries: Mapping[TopicPartition, At], *, isolation: Isolation = "committed"
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset of each partition at a given place.

        ``queries``: for each partition "earliest", "latest" (the end), or a time in ms since 1970,
            which selects the first record at or after it.
        ``isolation``: "committed": records of open and aborted transactions do not count, and the
            end is before the first open one; "uncommitted": all records count.

        A result is None if no record is at or after the time. The timestamp of a result is -1
        unless the query is a time. Raises ``UnknownTopicError`` or ``UnknownPartitionError`` if the
        partition does not exist.
        """
        self._bind()
        if not isinstance(queries, Mapping):
            raise TypeError(
                f"queries={queries!r} is not a dict of TopicPartition to 'earliest', 'latest' or "
                "a time in ms since 1970"
            )
        wanted = dict(
            zip(
                check_partitions(queries),
                map(time_or_end, queries.values()),
                strict=True,
            )
        )
        answers = await list_offsets(self._cluster, wanted, isolation=isolation_of(isolation))
        return {
            tp: None
            if answers[tp].offset < 0
            else OffsetAndTimestamp(answers[tp].offset, answers[tp].timestamp_ms)
            for tp in wanted
        }

    async def offsets(self, topic: str, at: At = "latest") -> dict[int, Offset | None]:
        """Return the offset of every partition of one topic, by partition number.

        ``at``: as in ``list_offsets``. Default: "latest". Added partitions are included.

        Raises ``UnknownTopicError`` if the topic does not exist.
        """
        self._bind()
        view = await self._cluster.topic_now(check_topic_name(topic))
        partitions = [TopicPartition(topic, number) for number in range(view.partition_count)]
        found = await self.list_offsets(dict.fromkeys(partitions, at))
        return {tp.partition: hit.offset if hit else None for tp, hit in found.items()}

    # -- the cluster

    async def describe_cluster(
        self, topics: Iterable[str] | None = None, *, partitions: bool | range = True
    ) -> ClusterDescription:
        """Return the brokers of the cluster, and the partitions of ``topics`` (default: all).

        Queries every broker and merges the responses. A broker that does not respond within 2 s is
        reported as not live. ``partitions``: False for brokers only, a range for these of each
        topic. Raises ``UnknownTopicError`` if a topic does not exist, except with a range.
        """
        self._bind()
        names = None if topics is None else _names(topics)
        return await describe_cluster(self._cluster, names, partitions=partitions)

    async def summarize_cluster(
        self, broker: int | None = None, *, skip: int = 0, limit: int = 100
    ) -> ClusterDescription:
        """Return the brokers, and all topics in numbers, at a small part of the cost of all.

        ``partitions`` has some with a problem: at most ``CLUSTER_SUMMARY_PARTITIONS_MAX`` of each
        broker. ``broker``: list also ``limit`` (1 to 200) of its partitions, after ``skip`` others.
        """
        self._bind()
        return await summarize_cluster(self._cluster, broker, skip, limit)

    async def describe_disks(self) -> list[DiskUseDescription]:
        """Return what uses the disk of each broker, by broker ID.

        A broker that does not respond within 2 s is reported with its ``problem``.
        """
        self._bind()
        return await describe_disks(self._cluster)

    async def verify_copies(
        self,
        partition: PartitionOverview,
        before: PartitionVerification | None = None,
        *,
        time_ms: int | None = None,
    ) -> PartitionVerification:
        """Verify all copies of a partition on their brokers, and compare them.

        ``partition``: from ``describe_cluster``. Its copies must agree below its high watermark.
        ``time_ms``: default none. Ends with a partial result; to continue, pass it as ``before``.

        Each broker reads its copy from the disk and checks all checksums and the hash chain. A
        broker that finds corruption replaces its copy, if another one is valid. Brokers that do not
        respond are reported in the result.
        """
        self._bind()
        await self._cluster.refresh([partition.topic])
        return await verify_copies(self._cluster, partition, before, time_ms=time_ms)

    async def describe_producers(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        skip: int = 0,
        limit: int = limits.LISTED_PRODUCERS_MAX,
    ) -> ProducerPage:
        """Return the producers of a topic that have written to it in the last seven days.

        ``partitions``: default: all. ``skip``, ``limit``: a page of them, of 1,000 at most.

        A partition whose leader does not respond within 2 s is reported with a problem. Raises
        ``UnknownTopicError`` or ``UnknownPartitionError``.
        """
        self._bind()
        return await list_producers(
            self._cluster,
            check_topic_name(topic),
            partitions,
            integer("skip", skip, 0, limits.PRODUCERS_PER_TOPIC_MAX),
            integer("limit", limit, 1, limits.LISTED_PRODUCERS_MAX),
        )

    async def describe_events(self, since_ms: TimestampMs = 0) -> list[EventDescription]:
        """Return elections, changes of ISRs and broker failures, oldest first.

        ``since_ms``: ms since 1970, default 0: all that the brokers remember. Each broker remembers
        its last 5,000 events since its start. A broker that does not respond within 2 s is omitted:
        the others have the same events.
        """
        self._bind()
        since = integer("since_ms", since_ms, 0, limits.TIMESTAMP_MS_MAX)
        return await describe_events(self._cluster, since)

    async def describe_features(self) -> ClusterFeatures:
        """Return the software version, and the versions of formats and requests, of each broker.

        A broker that does not respond within 2 s is reported with a problem.
        """
        self._bind()
        return await describe_features(self._cluster)

    async def upgrade_features(self) -> int:
        """Require the newest version of the protocol between brokers, and return it.

        For use once all brokers run the new release. Brokers of earlier releases are rejected from
        then on: a downgrade is no longer possible. Raises ``RefusedError`` if a broker is not
        connected or does not support it.
        """
        answer = await self._administer(apis.UPGRADE_FEATURES, UpgradeFeaturesRequest())
        assert isinstance(answer, UpgradeFeaturesResponse)
        return answer.peer_protocol

    async def describe_log_levels(self, broker: int) -> dict[str, LogLevel]:
        """Return the level of each logger of a broker, by name; that of ``root`` is above all."""
        self._bind()
        return await describe_log_levels(self._cluster, broker)

    async def alter_log_levels(self, broker: int, changes: Mapping[str, str | None]) -> None:
        """Change what a broker logs, until it stops.

        ``changes``: debug, info, warning or error, by logger; None for the level of the logger
        above, or of the setting ``logging.level`` for ``root``. Raises ``InvalidRequestError`` for
        an unknown logger or level.
        """
        self._bind()
        await self._cluster.refresh()
        await self._administer(apis.ALTER_LOG_LEVELS, alteration(changes), broker=broker)

    async def transfer_leader(
        self, topic: str, partition: int, to: int | None = None
    ) -> LeaderDescription:
        """Transfer the leadership of a partition to another in-sync replica.

        ``to``: id of the new leader. Default: the first in-sync replica in the preferred order.

        No record is lost, and clients switch to the new leader automatically. Raises
        ``InvalidRequestError`` if that broker cannot lead, and ``UnknownTopicError`` or
        ``UnknownPartitionError`` if the partition does not exist.
        """
        self._bind()
        name = check_topic_name(topic)
        request = TransferLeaderRequest(
            topic=name,
            partition=integer("partition", partition, 0, limits.PARTITIONS_PER_TOPIC_MAX),
            to=None if to is None else integer("to", to, *BROKER_IDS),
        )
        cluster = self._cluster

        async def attempt() -> Message:
            await cluster.refresh([name])
            connection = await self._voter(name, partition)
            await self._prove(connection)
            return await cluster.ask(connection, apis.TRANSFER_LEADER, request)

        answer = await cluster.persist(attempt, repeatable=False)
        assert isinstance(answer, TransferLeaderResponse)
        return LeaderDescription(answer.leader, answer.leader_epoch)

    async def _voter(self, topic: str, partition: int) -> Connection:
        """Return a connection to the leader of the partition, or to another of its replicas."""
        known = self._cluster.view.partition(topic, partition)
        leader = () if known.leader is None else (known.leader,)
        problem: RaftlogError = LeaderNotAvailableError(f"{topic}:{partition} has no replica")
        for broker_id in dict.fromkeys((*leader, *known.isr, *known.replicas)):
            try:
                return await self._cluster.connection(broker_id)
            except BrokerUnavailableError as error:
                problem = error
        raise problem

    async def _prove(self, connection: Connection) -> None:
        """Prove to the broker that this client knows the cluster secret, if one is set.

        Raises ``AccessDeniedError`` if the broker has another secret.
        """
        secret, timeout_ms = self._settings.operator_secret, self._settings.request_timeout_ms
        if secret:
            await prove_operator(connection, secret, self._host.entropy, timeout_ms=timeout_ms)

    async def reassign_partitions(
        self,
        topic: str,
        replicas: Mapping[int, Sequence[int]],
        *,
        before: Mapping[int, Sequence[int]] | None = None,
        replication_factor: int = 0,
    ) -> dict[int, tuple[int, ...]]:
        """Request replicas for partitions, and return those of all moves that are in progress.

        ``replicas``: ids of the brokers, preferred leader first, by partition. All are accepted, or
            none.
        ``before``: current replicas, by partition. The call fails if a partition has others.
            Default: not checked.
        ``replication_factor``: new replication factor of the topic; ``replicas`` then contains all
            partitions. 0 (default) keeps it.

        The call returns when the request is stored; the brokers then move one replica of each
        partition at a time, and continue after any crash. ``describe_cluster`` shows the progress:
        ``PartitionOverview.target`` is empty after the end. Raises ``RefusedError`` if a partition
        has other replicas than ``before`` or moves already, and ``InvalidPartitionsError`` if a
        broker is unknown or the number of replicas is wrong.
        """
        return await self._reassign(reassignment(topic, replicas, before or {}, replication_factor))

    async def cancel_reassignment(self, topic: str) -> dict[int, tuple[int, ...]]:
        """Restore the replicas that the partitions of a topic had before the moves in progress.

        Returns the moves that restore them, by partition. Copies that were complete before the
        request stay complete. Raises ``InvalidPartitionsError`` if the replication factor changes:
        set the former one instead.
        """
        return await self._reassign(ReassignRequest(topic=check_topic_name(topic), cancel=True))

    async def throttle_moves(self, bytes_per_s: int) -> None:
        """Limit how fast replicas that moves add copy records, for each broker.

        ``bytes_per_s``: that each broker receives for them, from 1,024; 0 (default): no limit. A
            lower one raises ``RefusedError``. It applies at once, also to moves in progress.
        """
        rate = integer("bytes_per_s", bytes_per_s, 0, limits.MOVE_THROTTLE_BYTES_PER_S_MAX)
        await self._administer(apis.THROTTLE_MOVES, ThrottleMovesRequest(bytes_per_s=rate))

    async def _reassign(self, request: ReassignRequest) -> dict[int, tuple[int, ...]]:
        answer = await self._administer(apis.REASSIGN, request)
        assert isinstance(answer, ReassignResponse)
        return {move.partition: tuple(move.replicas) for move in answer.moving}

    async def reserve_broker_id(self) -> int:
        """Reserve and return the ID for a broker that joins. No broker had it before."""
        answer = await self._administer(apis.RESERVE_BROKER_ID, membership.ReserveBrokerIdRequest())
        assert isinstance(answer, membership.ReserveBrokerIdResponse)
        return answer.id

    async def decommission_broker(self, broker: int) -> DecommissionProgress:
        """Remove a broker from the cluster, or return the progress of its removal.

        ``broker``: its id. It may be down permanently.

        The call returns when the request is stored. The other brokers then move its replicas and
        votes, also after any crash, and remove it. Repeat the call to see the progress. Raises
        ``RefusedError`` if the broker is unknown, a topic has more replicas than brokers would
        remain, or the remaining voters of the cluster group would have no majority.
        """
        request = membership.DecommissionRequest(broker=integer("broker", broker, *BROKER_IDS))
        answer = await self._administer(apis.DECOMMISSION, request)
        assert isinstance(answer, membership.DecommissionResponse)
        return DecommissionProgress(
            answer.removed, answer.partitions, answer.has_vote, answer.waits_for
        )

    async def cancel_decommission(self, broker: int) -> int:
        """Keep a broker that is being removed from the cluster.

        Cancels moves in progress away from it, and returns the number of partitions that get their
        former replicas back. Raises ``RefusedError`` if the broker is removed already.
        """
        request = membership.CancelDecommissionRequest(
            broker=integer("broker", broker, *BROKER_IDS)
        )
        answer = await self._administer(apis.CANCEL_DECOMMISSION, request)
        assert isinstance(answer, membership.CancelDecommissionResponse)
        return answer.moving

    async def recover_cluster(
        self,
        *,
        lost: Iterable[int] = (),
        accept_loss: bool | str = False,
        topics: Iterable[str] | None = None,
        broker: str | None = None,
        dry_run: bool = False,
    ) -> RecoveryDescription:
        """Recover the cluster after the permanent loss of a majority of its voters.

        Call it only if the lost brokers cannot return. From then on, the reachable broker with the
        newest cluster state decides without the other voters.

        ``lost``: IDs of the brokers whose data directories are destroyed, and never accepted again.
            If one is missing that a dry run names, the result is ``refused``. Default: none.
        ``accept_loss``: records may be lost. Without it, nothing is done. A text: only if the loss
            is the one with this ``loss_id`` of a dry run, else ``refused``. Default: False.
        ``topics``: topics to recover. Default: all.
        ``broker``: "host:port" of the broker that receives the request. Default: any.
        ``dry_run``: report the actions, but change nothing. Default: False.

        Time limit: 600 s. Raises an ``OutcomeUnknownError`` if no response arrives.
        """
        self._bind()
        request = RecoverClusterRequest(
            accept_loss=bool(accept_loss),
            loss_id=accept_loss if isinstance(accept_loss, str) else "",
            topics=None if topics is None else _names(topics),
            dry_run=dry_run,
            lost=sorted(set(lost)),
        )
        cluster = self._cluster

        async def attempt() -> Message:
            if broker is None:
                connection = await cluster.any_connection()
            else:
                connection = await cluster.connection_to(parse_bootstrap(broker)[0])
            await self._prove(connection)
            return await cluster.ask(
                connection, apis.RECOVER_CLUSTER, request, timeout_ms=_RECOVER_TIMEOUT_MS
            )

        answer = await cluster.persist(attempt, repeatable=False)
        assert isinstance(answer, RecoverClusterResponse)
        return recovery_description(answer)

    # -- access rules and quotas

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add access rules: all of them, or none. Rules that exist stay.

        Brokers enforce them with ``authentication.required``, each as soon as it has received them.
        Raises ``InvalidRequestError`` if a rule could never apply, ``RefusedError`` for more rules
        than a cluster may have, and ``AccessDeniedError`` without ALTER of the cluster.
        """
        for part in security_calls.parts(security_calls.checked(acls)):
            await self._administer(apis.CREATE_ACLS, CreateAclsRequest(acls=part))

    async def describe_acls(self, selection: AclFilter | None = None) -> list[Acl]:
        """Return the access rules that ``selection`` selects, sorted. Default: all rules."""
        self._bind()
        return await security_calls.describe_acls(self._cluster, selection or AclFilter())

    async def delete_acls(self, selections: Iterable[AclFilter]) -> list[Acl]:
        """Delete the access rules that any of ``selections`` selects, up to 100. Returns them."""
        request = DeleteAclsRequest(filters=security_calls.selected(selections))
        answer = await self._administer(apis.DELETE_ACLS, request)
        assert isinstance(answer, DeleteAclsResponse)
        return answer.acls

    async def check_acl(
        self,
        principal: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
        *,
        host: str,
    ) -> AclDecision:
        """Return whether a principal may do an operation with a resource, and by which rule.

        ``principal``: such as "User:alice". ``host``: IP address of the client.
        """
        self._bind()
        return await security_calls.check_acl(
            self._cluster, principal, operation, resource_type, resource_name, host
        )

    async def describe_quotas(self) -> dict[QuotaEntity, dict[QuotaKey, float]]:
        """Return the limits of all quotas, by entity."""
        self._bind()
        return await security_calls.describe_quotas(self._cluster)

    async def alter_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]
    ) -> None:
        """Change limits of up to 1,000 entities: all of them, or none. None removes a limit.

        Raises ``InvalidRequestError`` for a limit that the entity cannot have.
        """
        await self._administer(apis.ALTER_QUOTAS, security_calls.alteration(changes))

    async def _administer(self, api: Api, request: Message, broker: int | None = None) -> Message:
        """Send a request to a broker (default: any), with a proof of the cluster secret if this
        client has it.
        """
        self._bind()
        cluster = self._cluster

        async def attempt() -> Message:
            connection = await (
                cluster.any_connection() if broker is None else cluster.connection(broker)
            )
            await self._prove(connection)
            if not cluster.view.brokers:  # that one may end before the next request, as if removed
                cluster.refresh_soon()
            return await cluster.ask(connection, api, request)

        return await cluster.persist(attempt, repeatable=api.idempotent)

    # -- consumer groups

    async def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups, sorted by name.

        Queries every coordinator, and waits for one that is still loading its groups. The list is
        always complete. If a coordinator does not respond within ``request_timeout_ms``, the call
        raises ``LeaderNotAvailableError``, ``BrokerUnavailableError`` or
        ``CoordinatorLoadingError``.
        """
        self._bind()
        return await administration.list_groups(self._cluster)

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """Return the members, committed offsets and lag of each group, with or without members.

        If the leader of a partition does not respond within 5 s, the ``problem`` of that partition
        states the reason. Raises ``UnknownGroupError`` if a group does not exist, and
        ``InvalidGroupError`` if a name is not valid.
        """
        self._bind()
        return await administration.describe_groups(
            self._cluster,
            self._coordinators,
            group_ids(groups),
            now_ms=self._host.clock.wall_ms,
        )

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups that have no members, with their committed offsets.

        Processes all groups before it raises an error: ``UnknownGroupError`` if a group does not
        exist, and ``GroupNotEmptyError`` if it has members.
        """
        self._bind()
        await administration.delete_groups(self._coordinators, group_ids(groups))

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of a group for partitions that are assigned to no member.

        Raises ``UnknownGroupError`` if the group does not exist, and ``GroupNotEmptyError`` if a
        member reads one of the partitions.
        """
        self._bind()
        (name,) = group_ids([group])
        await administration.delete_offsets(
            self._coordinators, name, list(dict.fromkeys(check_partitions(partitions)))
        )

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, by partition.

        Raises ``UnknownGroupError`` if the group does not exist.
        """
        self._bind()
        (name,) = group_ids([group])
        return await administration.group_offsets(self._coordinators, name)

    async def alter_group_offsets(
        self,
        group: str,
        offsets: GroupOffsets,
        *,
        metadata: str = "",
        expected: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Reset the offsets of a group without members. Creates the group if it does not exist.

        ``offsets``: the offset of the next record to read, for each partition. Other partitions
            keep their offsets.
        ``metadata``: text that is stored with offsets that are plain numbers, up to 4,096
            characters.
        ``expected``: the committed offsets to replace; missing partitions have none. Default: any.

        Raises ``GroupNotEmptyError`` if the group has members, ``UnknownTopicError`` or
        ``UnknownPartitionError`` if a partition does not exist, ``OffsetMovedError`` for other than
        ``expected`` offsets, and, before any change, ``OffsetOutOfRangeError``.
        """
        self._bind()
        (name,) = group_ids([group])
        wanted = group_offsets(offsets, metadata)
        await administration.check_in_range(self._cluster, wanted)
        await administration.commit_offsets(
            self._cluster, self._coordinators, name, wanted, expected
        )

    async def commit_offsets(
        self,
        group: str,
        offsets: GroupOffsets,
        *,
        metadata: str = "",
        expected: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets of a group without members, for applications that store their positions.

        Tools that show lag then show the progress of the application. Takes the same arguments as
        ``alter_group_offsets``, but does not check that the partitions have these offsets.
        """
        self._bind()
        (name,) = group_ids([group])
        wanted = group_offsets(offsets, metadata)
        await administration.commit_offsets(
            self._cluster, self._coordinators, name, wanted, expected
        )

    # -- transactions

    async def list_transactions(
        self,
        *,
        states: Iterable[str] | None = None,
        producer_ids: Iterable[int] | None = None,
        min_duration_ms: int | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids of the cluster that this client may describe, sorted.

        ``states``: only those in one of these states (``TransactionListing``). Default: any.
        ``producer_ids``: only those with one of these producer ids, 1,000 at most. Default: any.
        ``min_duration_ms``: only those with a transaction that has been open for at least this
            time, from 0. Default: also those without an open transaction.

        Queries every coordinator, and waits for one that is still loading its transactions. The
        list is always complete. If a coordinator does not respond within ``request_timeout_ms``,
        the call raises ``LeaderNotAvailableError``, ``BrokerUnavailableError`` or
        ``CoordinatorLoadingError``. Raises ``InvalidRequestError`` for an unknown state.
        """
        self._bind()
        request = transaction_calls.listing_request(states, producer_ids, min_duration_ms)
        return await transaction_calls.list_transactions(self._cluster, request)

    async def describe_transactions(self, ids: Iterable[str]) -> list[TransactionDescription]:
        """Return the state, the producer and the partitions of each transactional id.

        Raises ``UnknownTransactionError`` if an id does not exist, or has expired.
        """
        self._bind()
        names = transaction_calls.transactional_ids(ids)
        return await transaction_calls.describe_transactions(self._transactions, names)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of a producer, as after its time limit.

        Returns when the decision is committed; readers pass the records as soon as their partitions
        have confirmed it. The next call of the producer raises ``TransactionAbortedError``, and it
        may run the transaction again; Kafka clients do the same with ``transaction.version=2``.
        Older ones are fenced, and must be started again. For a transaction that is already being
        aborted, the call has no effect.

        Raises ``UnknownTransactionError`` if the id does not exist,
        ``InvalidTransactionStateError`` if no transaction is open or its commit is decided, and
        ``OutcomeUnknownError`` if the response is lost.
        """
        self._bind()
        (name,) = transaction_calls.transactional_ids([transactional_id])
        await transaction_calls.abort_transaction(self._transactions, name)

    # -- users

    async def list_users(self) -> list[UserListing]:
        """Return all users of the cluster, sorted by name."""
        self._bind()
        return await security_calls.list_users(self._cluster)

    async def create_user(self, name: str, password: str) -> None:
        """Create a user that can authenticate by SCRAM and PLAIN.

        ``password``: 8 to 256 characters. It is not sent: the brokers get a salted hash.

        Raises ``UserExistsError`` if there is a user of that name.
        """
        self._bind()
        await security_calls.put_user(
            self._cluster, name, password, self._host.entropy, expected="absent"
        )

    async def rotate_user(self, name: str, password: str) -> None:
        """Set a new password of a user. Brokers close its connections within a second.

        ``password``: as in ``create_user``.

        Raises ``UnknownUserError`` if there is no user of that name.
        """
        self._bind()
        await security_calls.put_user(
            self._cluster, name, password, self._host.entropy, expected="present"
        )

    async def delete_user(self, name: str) -> None:
        """Delete a user. Brokers close its connections within a second.

        Raises ``UnknownUserError`` if there is no user of that name.
        """
        self._bind()
        await security_calls.delete_user(self._cluster, name)

    # -- delegation tokens

    async def create_token(
        self, renewers: Iterable[str] = (), *, max_lifetime_ms: int | None = None
    ) -> NewToken:
        """Create a delegation token of this client's user, and return it with its secret.

        It authenticates as the user until it expires (``delegation.token.expiry.time.ms`` of the
        brokers, renewals extend it), is removed, or the password of the user changes. Requires TLS.

        ``renewers``: principals, such as ``User:spark``, that may renew the token; at most 10.
        ``max_lifetime_ms``: until it can be renewed no longer, at least 1. Default and limit:
            ``delegation.token.max.lifetime.ms`` of the brokers.

        Raises ``TokenRequestNotAllowedError`` without TLS or a user, and with a token.
        """
        self._bind()
        return await security_calls.create(self._cluster, renewers, max_lifetime_ms)

    async def describe_tokens(self, owners: Iterable[str] | None = None) -> list[TokenListing]:
        """Return the delegation tokens of ``owners``, such as ``User:alice``; default: all.

        The list contains the tokens of which this client's user is the owner or a renewer; with the
        right DESCRIBE of the cluster, all. Errors: as ``create_token``.
        """
        self._bind()
        return await security_calls.describe(self._cluster, owners)

    async def renew_token(self, token_id: str, *, period_ms: int | None = None) -> TimestampMs:
        """Let a token expire ``period_ms`` from now, and return that time.

        ``period_ms``: default: ``delegation.token.expiry.time.ms`` of the brokers. The end of the
            maximal lifetime is a limit.

        Raises ``UnknownTokenError``, ``TokenExpiredError``, ``TokenOwnerError`` if the user is
        neither owner nor renewer and has no right ALTER of the cluster, and as ``create_token``.
        """
        self._bind()
        return await security_calls.renew(self._cluster, token_id, period_ms)

    async def expire_token(self, token_id: str, *, period_ms: int | None = None) -> TimestampMs:
        """Let a token expire ``period_ms`` from now, default: at once; return that time.

        Brokers close its connections within a second after that. Errors: as ``renew_token``.
        """
        self._bind()
        return await security_calls.expire(self._cluster, token_id, period_ms)

    # -- schemas

    async def call_schema_registry(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Call the schema registry, as over HTTP, and return the content of the answer.

        ``method``, ``path``: of Confluent's interface, such as ``"GET", "/subjects"``. The parts of
            the path are percent-encoded. ``body``: an object of JSON. ``query``: parameters.

        Raises ``SchemaError`` with ``registry_code``, such as 40401 (no such subject), 409
        (incompatible) or 42201 (invalid schema); ``UnsupportedFeatureError`` if a library is
        missing on the brokers.
        """
        self._bind()
        return await call_registry(self._cluster, method, path, body, query)

    # -- requests

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        self._bind()
        answer = await self._cluster.call(apis.METADATA, MetadataRequest(topics=topics))
        assert isinstance(answer, MetadataResponse)
        return answer

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None:
            await self._to_the_end(self._cluster.close)

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if not self._closed and self._loop is not None:
            warnings.warn(
                f"unclosed {self!r}. Call close(), or use `async with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


_COUNTS = (1, limits.PARTITIONS_PER_TOPIC_MAX)


def _names(topics: Iterable[str]) -> list[str]:
    return [check_topic_name(name) for name in check_topics(topics)]


# -- topic changes ---------------------------------------------------------------------------------
#
# Changes of topics, for the admin client: several in one request, each with its own result.


async def change_topics(
    cluster: Cluster,
    api: Api,
    changes: Sequence[T],
    request: Callable[[list[T]], Message],
    failures: list[RaftlogError],
) -> dict[str, str]:
    """Carry out the changes, and return the topic ids by name. Raises the first error."""
    ids: dict[str, str] = {}
    for start in range(0, len(changes), limits.TOPICS_PER_REQUEST_MAX):
        left = list(changes[start : start + limits.TOPICS_PER_REQUEST_MAX])
        for result in await _changed(cluster, api, left, request):
            if result.failure is None:
                ids[result.name] = result.id
            else:
                failures.append(named_failure(result.name, result.failure))
    if failures:
        raise failures[0]
    return ids


async def _changed(
    cluster: Cluster, api: Api, changes: list[T], request: Callable[[list[T]], Message]
) -> list[TopicResult]:
    """Return the result of each change. Retries changes that failed with a retriable error."""
    results: list[TopicResult | None] = [None] * len(changes)
    last: dict[int, TopicResult] = {}  # retriable results of the last attempt

    async def attempt() -> None:
        last.clear()
        left = [index for index, result in enumerate(results) if result is None]
        connection = await cluster.any_connection()
        answer = await cluster.ask(connection, api, request([changes[i] for i in left]))
        assert isinstance(answer, TopicsResponse)
        again: RaftlogError | None = None
        for index, result in zip(left, answer.results, strict=True):
            error = None if result.failure is None else result.failure.to_error()
            if error is not None and may_retry(error, repeatable=api.idempotent):
                again, last[index] = error, result
                continue
            results[index] = result
        if again is not None:
            cluster.mark_suspect(connection.broker_id)  # it may be isolated: prefer others
            raise again

    try:
        await cluster.persist(attempt, repeatable=api.idempotent)
    except RaftlogError:
        if any(result is None and i not in last for i, result in enumerate(results)):
            raise
    return [result or last[index] for index, result in enumerate(results)]


# -- log levels ------------------------------------------------------------------------------------
#
# Log levels of one broker: requests of the admin client.


async def describe_log_levels(cluster: Cluster, broker: int) -> dict[str, LogLevel]:
    """Return the level of each logger of a broker, by name."""
    await cluster.refresh()
    request = DescribeLogLevelsRequest()
    answer = await cluster.call(apis.DESCRIBE_LOG_LEVELS, request, broker_id=broker)
    assert isinstance(answer, DescribeLogLevelsResponse)
    return {each.logger: LogLevel(each.level, each.is_own) for each in answer.levels}


def alteration(changes: Mapping[str, str | None]) -> AlterLogLevelsRequest:
    """Return the request that changes levels."""
    requested = [LogLevelChange(logger=name, level=level) for name, level in changes.items()]
    return AlterLogLevelsRequest(changes=requested)


# -- admin -----------------------------------------------------------------------------------------


P = ParamSpec("P")


def _waiting(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """Wrap an ``AsyncAdmin`` method as a blocking one, with its arguments and documentation."""

    @wraps(method)
    def call(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(lambda: method(self._admin, *args, **kwargs))

    call.__qualname__ = f"Admin.{method.__name__}"
    return call


class Admin(AdminBase, PlainClient):
    """Client that creates, changes and describes topics and consumer groups, and looks up offsets.

    A context manager. Threads can share it. A call that names several topics processes all of them,
    and then raises the first error, which names its topic. If the response is lost, the request may
    have been carried out: the call raises an ``OutcomeUnknownError`` unless the request is
    idempotent.
    """

    def _setup(self) -> None:
        self._take_thread(self._host, "raftlog-admin")
        settings = self._settings
        self._admin = AsyncAdmin(
            [str(address) for address in settings.bootstrap],
            request_timeout_ms=settings.request_timeout_ms,
            client_id=settings.client_id,
            bootstrap_timeout_ms=settings.bootstrap_timeout_ms,
            cluster_secret=self._settings.operator_secret.decode(),
            **self._security,
            host=self._host,
        )
        self._closed = False

    create_topics = _waiting(AsyncAdmin.create_topics)
    delete_topics = _waiting(AsyncAdmin.delete_topics)
    alter_topic = _waiting(AsyncAdmin.alter_topic)
    add_partitions = _waiting(AsyncAdmin.add_partitions)
    list_topics = _waiting(AsyncAdmin.list_topics)
    find_topics = _waiting(AsyncAdmin.find_topics)
    describe_topics = _waiting(AsyncAdmin.describe_topics)
    delete_records = _waiting(AsyncAdmin.delete_records)
    list_offsets = _waiting(AsyncAdmin.list_offsets)
    offsets = _waiting(AsyncAdmin.offsets)
    describe_cluster = _waiting(AsyncAdmin.describe_cluster)
    summarize_cluster = _waiting(AsyncAdmin.summarize_cluster)
    verify_copies = _waiting(AsyncAdmin.verify_copies)
    describe_disks = _waiting(AsyncAdmin.describe_disks)
    describe_producers = _waiting(AsyncAdmin.describe_producers)
    describe_events = _waiting(AsyncAdmin.describe_events)
    describe_features = _waiting(AsyncAdmin.describe_features)
    describe_log_levels = _waiting(AsyncAdmin.describe_log_levels)
    alter_log_levels = _waiting(AsyncAdmin.alter_log_levels)
    transfer_leader = _waiting(AsyncAdmin.transfer_leader)
    reassign_partitions = _waiting(AsyncAdmin.reassign_partitions)
    cancel_reassignment = _waiting(AsyncAdmin.cancel_reassignment)
    throttle_moves = _waiting(AsyncAdmin.throttle_moves)
    upgrade_features = _waiting(AsyncAdmin.upgrade_features)
    recover_cluster = _waiting(AsyncAdmin.recover_cluster)
    create_acls = _waiting(AsyncAdmin.create_acls)
    describe_acls = _waiting(AsyncAdmin.describe_acls)
    delete_acls = _waiting(AsyncAdmin.delete_acls)
    check_acl = _waiting(AsyncAdmin.check_acl)
    describe_quotas = _waiting(AsyncAdmin.describe_quotas)
    alter_quotas = _waiting(AsyncAdmin.alter_quotas)
    call_schema_registry = _waiting(AsyncAdmin.call_schema_registry)
    reserve_broker_id = _waiting(AsyncAdmin.reserve_broker_id)
    decommission_broker = _waiting(AsyncAdmin.decommission_broker)
    cancel_decommission = _waiting(AsyncAdmin.cancel_decommission)
    list_groups = _waiting(AsyncAdmin.list_groups)
    describe_groups = _waiting(AsyncAdmin.describe_groups)
    delete_groups = _waiting(AsyncAdmin.delete_groups)
    delete_group_offsets = _waiting(AsyncAdmin.delete_group_offsets)
    group_offsets = _waiting(AsyncAdmin.group_offsets)
    alter_group_offsets = _waiting(AsyncAdmin.alter_group_offsets)
    commit_offsets = _waiting(AsyncAdmin.commit_offsets)

    list_transactions = _waiting(AsyncAdmin.list_transactions)
    describe_transactions = _waiting(AsyncAdmin.describe_transactions)
    abort_transaction = _waiting(AsyncAdmin.abort_transaction)

    list_users = _waiting(AsyncAdmin.list_users)
    create_user = _waiting(AsyncAdmin.create_user)
    rotate_user = _waiting(AsyncAdmin.rotate_user)
    delete_user = _waiting(AsyncAdmin.delete_user)

    create_token = _waiting(AsyncAdmin.create_token)
    describe_tokens = _waiting(AsyncAdmin.describe_tokens)
    renew_token = _waiting(AsyncAdmin.renew_token)
    expire_token = _waiting(AsyncAdmin.expire_token)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._closed:
            raise ClosedError("the admin client was closed")
        self._used = True
        return self._thread.call(work)

    def _end(self) -> None:
        self._thread.call(self._admin.close)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._admin.close


# -- reassignment ----------------------------------------------------------------------------------
#
# Requested replicas of partitions: checks of arguments, and the request. Pure.


def reassignment(
    topic: str,
    replicas: Mapping[int, Sequence[int]],
    before: Mapping[int, Sequence[int]],
    replication_factor: int,
) -> ReassignRequest:
    """Return the request of ``AsyncAdmin.reassign_partitions``, which describes the arguments."""
    return ReassignRequest(
        topic=check_topic_name(topic),
        moves=[
            PartitionMove(
                partition=integer("partition", partition, 0, limits.PARTITIONS_PER_TOPIC_MAX),
                replicas=[integer("replica", broker, *BROKER_IDS) for broker in brokers],
                before=list(before.get(partition, ())),
            )
            for partition, brokers in sorted(replicas.items())
        ],
        replication_factor=integer(
            "replication_factor", replication_factor, 0, limits.REPLICATION_FACTOR_MAX
        ),
    )


# -- list producers --------------------------------------------------------------------------------
#
# Producers of a topic: pages over the lists of its partitions.


PATIENCE_MS: Final = 2_000  # for leaders that do not respond


async def list_producers(
    cluster: Cluster, topic: str, partitions: Iterable[int] | None, skip: int, limit: int
) -> ProducerPage:
    """Return ``limit`` producers after the first ``skip`` of all ``partitions`` (None: of the
    topic).
    """
    await cluster.refresh([topic])
    known = await cluster.topic(topic)
    numbers = range(known.partition_count) if partitions is None else sorted({*partitions})
    asked = [TopicPartition(topic, known.check_partition(number)) for number in numbers]
    counted = await try_list_producers(
        cluster, dict.fromkeys(asked, (0, 0)), patience_ms=PATIENCE_MS
    )
    totals = {tp: one.total for tp, one in counted.items() if isinstance(one, ListedProducers)}
    wanted = windows(totals, skip, limit)
    listed = await try_list_producers(cluster, wanted, patience_ms=PATIENCE_MS)
    return ProducerPage(
        tuple(
            description
            for tp in wanted
            if isinstance(found := listed[tp], ListedProducers)
            for description in _descriptions(found)
        ),
        skip,
        sum(totals.values()),
        {
            tp.partition: str(outcome)
            for tp, outcome in (*counted.items(), *listed.items())
            if isinstance(outcome, RaftlogError)
        },
    )


def windows(
    totals: dict[TopicPartition, int], skip: int, limit: int
) -> dict[TopicPartition, tuple[int, int]]:
    """Return how many producers of each partition to skip and to list, in the order of
    ``totals``.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    for tp, total in totals.items():
        count = min(total - skip, limit)
        if count > 0:
            found[tp] = skip, count
            limit -= count
        skip = max(skip - total, 0)
    return found


def _descriptions(found: ListedProducers) -> Iterable[ProducerDescription]:
    for each in found.producers:
        yield ProducerDescription(
            partition=found.partition,
            producer_id=each.producer_id,
            kind="named" if each.producer_id >= NAMED_ID_BASE else "idempotent",
            epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_offset=each.last_offset,
            last_timestamp_ms=each.last_timestamp_ms,
            state="committed" if each.last_offset < found.high_watermark else "uncommitted",
        )
