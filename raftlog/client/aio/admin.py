"""Asynchronous admin client. The synchronous ``Admin`` calls it on an I/O thread."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

from raftlog import limits
from raftlog.client import access, admin_arguments, delegation_tokens, users
from raftlog.client.access import AclDecision
from raftlog.client.admin_arguments import GroupOffsets
from raftlog.client.aio.loop_bound import LoopBound
from raftlog.client.authentication import prove_operator
from raftlog.client.cluster import Cluster
from raftlog.client.connection import Connection
from raftlog.client.consumer_groups import administration
from raftlog.client.consumer_groups.coordinator import Coordinators
from raftlog.client.defaults import CLIENT_ID_DEFAULT
from raftlog.client.delegation_tokens import NewToken, TokenListing
from raftlog.client.describe_cluster import (
    describe_cluster,
    describe_disks,
    describe_topics,
    summarize_cluster,
)
from raftlog.client.describe_events import describe_events
from raftlog.client.describe_features import describe_features
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
    ProducerPage,
    RecoveryDescription,
    TopicDescription,
    TopicListing,
    recovery_description,
)
from raftlog.client.environment import ClientEnvironment
from raftlog.client.group_descriptions import GroupDescription, GroupListing
from raftlog.client.list_producers import list_producers
from raftlog.client.log_levels import alteration, describe_log_levels
from raftlog.client.partition_requests import At, delete_records, list_offsets
from raftlog.client.reassignment import reassignment
from raftlog.client.settings import (
    BROKER_IDS,
    Bootstrap,
    SecurityArguments,
    connection_settings,
    integer,
    operator_secret,
    parse_bootstrap,
)
from raftlog.client.subscription import check_partitions, check_topics
from raftlog.client.topic_changes import change_topics
from raftlog.client.topic_ids import topic_ids
from raftlog.client.users import UserListing
from raftlog.client.verify_copies import verify_copies
from raftlog.errors import (
    BrokerUnavailableError,
    LeaderNotAvailableError,
    RaftlogError,
)
from raftlog.kafka_names import answers_kafka_names
from raftlog.protocol import api as apis
from raftlog.protocol import membership
from raftlog.protocol.access import CreateAclsRequest, DeleteAclsRequest, DeleteAclsResponse
from raftlog.protocol.api import Api
from raftlog.protocol.cluster import (
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
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Message
from raftlog.protocol.topics import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicToAlter,
    TopicToCreate,
    TopicToExtend,
)
from raftlog.security.acl import Acl, AclFilter, Operation, ResourceType
from raftlog.security.quota import QuotaEntity, QuotaKey
from raftlog.types import (
    NewTopic,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TimestampMs,
    TopicPartition,
    check_topic_name,
)

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
                    config=admin_arguments.config_text(topic.config),
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
            [TopicToAlter(name=name, config=admin_arguments.config_text(config))],
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
        self, queries: Mapping[TopicPartition, At]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset of each partition at a given place.

        ``queries``: for each partition "earliest", "latest" (the end), or a time in ms since 1970,
            which selects the first record at or after it.

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
                map(admin_arguments.time_or_end, queries.values()),
                strict=True,
            )
        )
        answers = await list_offsets(self._cluster, wanted)
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
        """Reserve and return the ID for a broker that joins the cluster. No broker had it before.

        Raises ``UnsupportedFeatureError`` in single-broker mode.
        """
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
        for part in access.parts(access.checked(acls)):
            await self._administer(apis.CREATE_ACLS, CreateAclsRequest(acls=part))

    async def describe_acls(self, selection: AclFilter | None = None) -> list[Acl]:
        """Return the access rules that ``selection`` selects, sorted. Default: all rules."""
        self._bind()
        return await access.describe_acls(self._cluster, selection or AclFilter())

    async def delete_acls(self, selections: Iterable[AclFilter]) -> list[Acl]:
        """Delete the access rules that any of ``selections`` selects, up to 100. Returns them."""
        request = DeleteAclsRequest(filters=access.selected(selections))
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
        return await access.check_acl(
            self._cluster, principal, operation, resource_type, resource_name, host
        )

    async def describe_quotas(self) -> dict[QuotaEntity, dict[QuotaKey, float]]:
        """Return the limits of all quotas, by entity."""
        self._bind()
        return await access.describe_quotas(self._cluster)

    async def alter_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]
    ) -> None:
        """Change limits of up to 1,000 entities: all of them, or none. None removes a limit.

        Raises ``InvalidRequestError`` for a limit that the entity cannot have.
        """
        await self._administer(apis.ALTER_QUOTAS, access.alteration(changes))

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
            admin_arguments.group_ids(groups),
            now_ms=self._host.clock.wall_ms,
        )

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups that have no members, with their committed offsets.

        Processes all groups before it raises an error: ``UnknownGroupError`` if a group does not
        exist, and ``GroupNotEmptyError`` if it has members.
        """
        self._bind()
        await administration.delete_groups(self._coordinators, admin_arguments.group_ids(groups))

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of a group for partitions that are assigned to no member.

        Raises ``UnknownGroupError`` if the group does not exist, and ``GroupNotEmptyError`` if a
        member reads one of the partitions.
        """
        self._bind()
        (name,) = admin_arguments.group_ids([group])
        await administration.delete_offsets(
            self._coordinators, name, list(dict.fromkeys(check_partitions(partitions)))
        )

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, by partition.

        Raises ``UnknownGroupError`` if the group does not exist.
        """
        self._bind()
        (name,) = admin_arguments.group_ids([group])
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
        (name,) = admin_arguments.group_ids([group])
        wanted = admin_arguments.group_offsets(offsets, metadata)
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
        (name,) = admin_arguments.group_ids([group])
        wanted = admin_arguments.group_offsets(offsets, metadata)
        await administration.commit_offsets(
            self._cluster, self._coordinators, name, wanted, expected
        )

    # -- users

    async def list_users(self) -> list[UserListing]:
        """Return all users of the cluster, sorted by name."""
        self._bind()
        return await users.list_users(self._cluster)

    async def create_user(self, name: str, password: str) -> None:
        """Create a user that can authenticate by SCRAM and PLAIN.

        ``password``: 8 to 256 characters. It is not sent: the brokers get a salted hash.

        Raises ``UserExistsError`` if there is a user of that name.
        """
        self._bind()
        await users.put_user(self._cluster, name, password, self._host.entropy, expected="absent")

    async def rotate_user(self, name: str, password: str) -> None:
        """Set a new password of a user. Brokers close its connections within a second.

        ``password``: as in ``create_user``.

        Raises ``UnknownUserError`` if there is no user of that name.
        """
        self._bind()
        await users.put_user(self._cluster, name, password, self._host.entropy, expected="present")

    async def delete_user(self, name: str) -> None:
        """Delete a user. Brokers close its connections within a second.

        Raises ``UnknownUserError`` if there is no user of that name.
        """
        self._bind()
        await users.delete_user(self._cluster, name)

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
        return await delegation_tokens.create(self._cluster, renewers, max_lifetime_ms)

    async def describe_tokens(self, owners: Iterable[str] | None = None) -> list[TokenListing]:
        """Return the delegation tokens of ``owners``, such as ``User:alice``; default: all.

        The list contains the tokens of which this client's user is the owner or a renewer; with the
        right DESCRIBE of the cluster, all. Errors: as ``create_token``.
        """
        self._bind()
        return await delegation_tokens.describe(self._cluster, owners)

    async def renew_token(self, token_id: str, *, period_ms: int | None = None) -> TimestampMs:
        """Let a token expire ``period_ms`` from now, and return that time.

        ``period_ms``: default: ``delegation.token.expiry.time.ms`` of the brokers. The end of the
            maximal lifetime is a limit.

        Raises ``UnknownTokenError``, ``TokenExpiredError``, ``TokenOwnerError`` if the user is
        neither owner nor renewer and has no right ALTER of the cluster, and as ``create_token``.
        """
        self._bind()
        return await delegation_tokens.renew(self._cluster, token_id, period_ms)

    async def expire_token(self, token_id: str, *, period_ms: int | None = None) -> TimestampMs:
        """Let a token expire ``period_ms`` from now, default: at once; return that time.

        Brokers close its connections within a second after that. Errors: as ``renew_token``.
        """
        self._bind()
        return await delegation_tokens.expire(self._cluster, token_id, period_ms)

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
            await self._cluster.close()

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
