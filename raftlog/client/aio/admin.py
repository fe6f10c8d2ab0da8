"""Administration, asynchronous. The synchronous ``Admin`` calls this one, on its own thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeAlias, TypeVar

from raftlog import limits
from raftlog.client.aio.loop_bound import LoopBound
from raftlog.client.cluster import Cluster
from raftlog.client.connection import Connection
from raftlog.client.consumer_groups import administration
from raftlog.client.consumer_groups.coordinator import Coordinators
from raftlog.client.describe_cluster import describe_cluster, describe_topics
from raftlog.client.descriptions import (
    ClusterDescription,
    LeaderDescription,
    RecoveryDescription,
    TopicDescription,
    TopicListing,
    recovery_description,
    topic_description,
)
from raftlog.client.environment import ClientEnvironment
from raftlog.client.group_descriptions import GroupDescription, GroupListing
from raftlog.client.partition_requests import At, delete_records, list_offsets
from raftlog.client.retry import may_retry
from raftlog.client.settings import (
    CLIENT_ID_DEFAULT,
    Bootstrap,
    connection_settings,
    integer,
    operator_secret,
    parse_bootstrap,
)
from raftlog.client.subscription import check_partitions, check_topics
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    UnsupportedFeatureError,
)
from raftlog.kafka_names import answers_kafka_names
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.cluster import (
    RecoverClusterRequest,
    RecoverClusterResponse,
    TransferLeaderRequest,
    TransferLeaderResponse,
)
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.operator_auth import Asking, OperatorHelloResponse
from raftlog.protocol.peer import NONCE_BYTES
from raftlog.protocol.schema import Failure, Message
from raftlog.protocol.topics import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicResult,
    TopicsResponse,
    TopicToAlter,
    TopicToCreate,
    TopicToExtend,
)
from raftlog.types import (
    NewTopic,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    check_group_id,
    check_topic_name,
)

T = TypeVar("T")
V = TypeVar("V", str, str | None)
GroupOffsets: TypeAlias = Mapping[TopicPartition, Offset | OffsetAndMetadata]

_METADATA_MAX_AGE_MS = 30_000
_TO_THE_END = -1  # what delete_records means by all
_RECOVER_TIMEOUT_MS = 600_000  # it works through all partitions
_NO_EPOCH = -1
_EPOCH_MAX = (1 << 31) - 1


@answers_kafka_names
class AdminBase:
    """The settings of an admin client; see ``Admin`` and ``AsyncAdmin``."""

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
    ) -> None:
        """Nothing is connected before the first call.

        ``bootstrap``: ``host:port[,host:port]`` of any of the cluster's brokers, or a list of such;
            default: the environment's RAFTLOG_BOOTSTRAP, else the brokers of `raftlog up`, which
            are 127.0.0.1:9100 to 9102.
        ``request_timeout_ms``: how long a call may take, retries included.
        ``client_id``: names this client in the broker's log.
        ``bootstrap_timeout_ms``: how long to look for the cluster the first time.
        ``cluster_secret``, ``cluster_secret_file``: the secret of the cluster's brokers, which
            ``transfer_leader`` and ``recover_cluster`` ask for, or a file with it; default: the
            environment's RAFTLOG_CLUSTER_SECRET_FILE, if it is set.
        ``host``: where the client lives; for embedding and tests.

        Raises ``InvalidRequestError`` or ``TypeError`` naming the argument that is wrong.
        """
        self._secret = operator_secret(cluster_secret, cluster_secret_file)
        arguments = {**locals(), "metadata_max_age_ms": _METADATA_MAX_AGE_MS}
        del arguments["cluster_secret"], arguments["cluster_secret_file"]
        self._settings = connection_settings(arguments)
        self._host = host or ClientEnvironment()
        self._setup()

    def _setup(self) -> None:
        """What only one of the skins has."""


class AsyncAdmin(LoopBound, AdminBase):
    """Creates, changes and describes topics and consumer groups; looks offsets up.

    An asynchronous context manager. Calls that name several topics try all of them, and then raise
    the first failure, which names its topic. A call that may have been carried out though its
    answer was lost raises an ``OutcomeUnknownError``, unless doing it again does no harm.
    """

    def _setup(self) -> None:
        self._cluster = Cluster(
            self._settings, connector=self._host.connector, chance=self._host.chance
        )
        self._coordinators = Coordinators(self._cluster)

    # -- topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, str]:
        """Create topics; their ids, by name. With ``validate_only``, only see whether it could be.

        A replication factor of 0, or None, is the cluster's default.
        Raises ``TopicExistsError``, ``InvalidTopicError``, ``InvalidPartitionsError``,
        ``InvalidConfigError``.
        """
        if isinstance(topics, NewTopic):
            raise TypeError(f"topics={topics!r}: a list of NewTopic")
        wanted: list[TopicToCreate] = []
        failures: list[RaftlogError] = []
        for topic in topics:
            if not isinstance(topic, NewTopic):
                raise TypeError(f"{topic!r}: a NewTopic, such as NewTopic('clicks', partitions=6)")
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
                    config=_config_text(topic.config),
                )
            )
        return await self._change(
            apis.CREATE_TOPICS,
            wanted,
            lambda part: CreateTopicsRequest(topics=part, validate_only=validate_only),
            failures,
        )

    async def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics with all their records. Raises ``UnknownTopicError``."""
        names = _names(topics)
        await self._change(
            apis.DELETE_TOPICS, names, lambda part: DeleteTopicsRequest(topics=part), []
        )

    async def alter_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Set the topic's settings named in ``config``; None puts one back to its default.

        Raises ``UnknownTopicError``, ``InvalidConfigError``.
        """
        check_topic_name(name)
        await self._change(
            apis.ALTER_TOPICS,
            [TopicToAlter(name=name, config=_config_text(config))],
            lambda part: AlterTopicsRequest(topics=part),
            [],
        )

    async def add_partitions(self, name: str, total: int) -> None:
        """Extend the topic to ``total`` partitions, more than it has.

        Keys that hash to a partition will hash to another one from then on, as in Kafka.
        Raises ``UnknownTopicError``, ``InvalidPartitionsError``.
        """
        check_topic_name(name)
        integer("total", total, 1, limits.PARTITIONS_PER_TOPIC_MAX)
        await self._change(
            apis.ADD_PARTITIONS,
            [TopicToExtend(name=name, partitions=total)],
            lambda part: AddPartitionsRequest(topics=part),
            [],
        )

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted. ``internal``: also those that only brokers write."""
        topics = (await self._metadata(None)).topics
        return sorted(topic.name for topic in topics if internal or not topic.is_internal)

    async def find_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicListing]:
        """Those of these topics that there are, by name; default: all.

        Quick: it asks one broker, and others only if that seems to be behind.
        """
        self._bind()
        if topics is None:
            answer = await self._metadata(None)
            return {t.name: TopicListing(t.name, t.id, len(t.partitions)) for t in answer.topics}
        names, cluster = _names(topics), self._cluster
        view = await cluster.persist(lambda: cluster.refresh(names), repeatable=True)
        there = [view.topics[name] for name in names if name in view.topics]
        return {t.name: TopicListing(t.name, t.id, t.partition_count) for t in there}

    async def describe_topics(self, topics: Iterable[str] | None = None) -> list[TopicDescription]:
        """What there is to know of these topics; default: of all. Raises ``UnknownTopicError``."""
        self._bind()
        if topics is None:
            parts: list[list[str] | None] = [None]
        else:
            names = _names(topics)
            step = limits.TOPICS_PER_REQUEST_MAX
            parts = [names[start : start + step] for start in range(0, len(names), step)]
        found: list[TopicDescription] = []
        failures: list[RaftlogError] = []
        for part in parts:
            for topic in await describe_topics(self._cluster, part):
                if topic.failure is None:
                    found.append(topic_description(topic))
                else:
                    failures.append(_named(topic.name, topic.failure))
        if failures:
            raise failures[0]
        return found

    # -- records

    async def delete_records(
        self, before: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, Offset]:
        """Delete each partition's records below an offset (-1: all of them); where it starts now.

        Raises ``UnknownTopicError``, ``UnknownPartitionError``, ``OffsetOutOfRangeError``.
        """
        self._bind()
        if not isinstance(before, Mapping):
            raise TypeError(f"before={before!r}: a dict of TopicPartition to an offset")
        offsets = {
            tp: integer("offset", offset, _TO_THE_END, limits.OFFSET_MAX)
            for tp, offset in zip(check_partitions(before), before.values(), strict=True)
        }
        answers = await delete_records(self._cluster, offsets)
        return {tp: answers[tp].log_start_offset for tp in offsets}

    async def list_offsets(
        self, queries: Mapping[TopicPartition, At]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Look offsets up: "earliest", "latest" (the end), or the first at or after a time in ms.

        None where no record is at or after the time. The timestamp is -1 but for times. Raises
        ``UnknownTopicError``, ``UnknownPartitionError``.
        """
        self._bind()
        if not isinstance(queries, Mapping):
            raise TypeError(f"queries={queries!r}: a dict of TopicPartition to what to look for")
        wanted = dict(zip(check_partitions(queries), map(_at, queries.values()), strict=True))
        answers = await list_offsets(self._cluster, wanted)
        return {
            tp: None
            if answers[tp].offset < 0
            else OffsetAndTimestamp(answers[tp].offset, answers[tp].timestamp_ms)
            for tp in wanted
        }

    async def offsets(self, topic: str, at: At = "latest") -> dict[int, Offset | None]:
        """``list_offsets`` of all partitions of one topic: the offset, by partition number."""
        self._bind()
        view = await self._cluster.topic(check_topic_name(topic))
        partitions = [TopicPartition(topic, number) for number in range(view.partition_count)]
        found = await self.list_offsets(dict.fromkeys(partitions, at))
        return {tp.partition: hit.offset if hit else None for tp, hit in found.items()}

    # -- the cluster

    async def describe_cluster(
        self, topics: Iterable[str] | None = None, *, partitions: bool = True
    ) -> ClusterDescription:
        """The cluster's brokers, and the partitions of these topics (default: of all).

        Every broker is asked, and what they answer is put together; those that do not answer within
        two seconds are told of as not live. With ``partitions`` false, there are only brokers.
        Raises ``UnknownTopicError``.
        """
        self._bind()
        names = None if topics is None else _names(topics)
        return await describe_cluster(self._cluster, names, partitions=partitions)

    async def transfer_leader(
        self, topic: str, partition: int, to: int | None = None
    ) -> LeaderDescription:
        """Have another in-sync replica lead: broker ``to``, or the first in the preferred order.

        Nothing is lost; clients follow by themselves. Raises ``InvalidRequestError`` when that
        broker cannot lead, ``UnknownTopicError``, ``UnknownPartitionError``.
        """
        self._bind()
        name = check_topic_name(topic)
        request = TransferLeaderRequest(
            topic=name,
            partition=integer("partition", partition, 0, limits.PARTITIONS_PER_TOPIC_MAX),
            to=None if to is None else integer("to", to, *_BROKER_IDS),
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
        """The connection to the partition's leader, or to another broker that has a vote on it."""
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
        """Show the broker that this client knows the cluster's secret, if it was given one.

        Raises ``AccessDeniedError`` for another one.
        """
        if not self._secret:
            return
        asking = Asking(self._secret, self._host.entropy(NONCE_BYTES))
        try:
            hello = await self._cluster.ask(connection, apis.OPERATOR_HELLO, asking.hello())
        except UnsupportedFeatureError:
            return  # it asks for none
        assert isinstance(hello, OperatorHelloResponse)
        await self._cluster.ask(connection, apis.OPERATOR_PROVE, asking.check(hello))

    async def recover_cluster(
        self,
        *,
        accept_loss: bool = False,
        topics: Iterable[str] | None = None,
        broker: str | None = None,
        dry_run: bool = False,
    ) -> RecoveryDescription:
        """Go on with what is left when a majority of the voters is lost for good.

        For an operator who knows that the others do not come back. The broker asked, ``broker``
        ("host:port"; default: any that answers), finds out what all that are there have, and the
        one that knows most decides alone from then on. ``topics``: which ones go on (default: all).
        ``accept_loss``: also those that lose acknowledged records by it, or may. ``dry_run``: only
        say what would be done. May take minutes. Raises an ``OutcomeUnknownError`` when the answer
        does not come.
        """
        self._bind()
        request = RecoverClusterRequest(
            accept_loss=accept_loss,
            topics=None if topics is None else _names(topics),
            dry_run=dry_run,
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

    # -- consumer groups

    async def list_groups(self) -> list[GroupListing]:
        """All consumer groups, sorted by name.

        Every broker that coordinates groups is asked; one that has just begun to is waited for. The
        list is whole, or an error: raises ``LeaderNotAvailableError``, ``BrokerUnavailableError``
        or ``CoordinatorLoadingError`` when that takes longer than a request may.
        """
        self._bind()
        return await administration.list_groups(self._cluster)

    async def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """The members of each group, and how far it is in each partition; also without members.

        A partition whose leader does not answer within 5 s is told of with its ``problem``.
        Raises ``UnknownGroupError``, ``InvalidGroupError``.
        """
        self._bind()
        return await administration.describe_groups(
            self._cluster,
            self._coordinators,
            _group_ids(groups),
            now_ms=self._host.clock.wall_ms,
        )

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups that have no members, with all that they have committed.

        All are tried. Raises ``UnknownGroupError``, ``GroupNotEmptyError``.
        """
        self._bind()
        await administration.delete_groups(self._coordinators, _group_ids(groups))

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for partitions that none of its members reads.

        Raises ``UnknownGroupError``, ``GroupNotEmptyError``.
        """
        self._bind()
        (name,) = _group_ids([group])
        await administration.delete_offsets(
            self._coordinators, name, list(dict.fromkeys(check_partitions(partitions)))
        )

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, by partition. Raises ``UnknownGroupError``."""
        self._bind()
        (name,) = _group_ids([group])
        return await administration.group_offsets(self._coordinators, name)

    async def alter_group_offsets(
        self, group: str, offsets: GroupOffsets, *, metadata: str = ""
    ) -> None:
        """Have a group without members go on from these offsets; it is made if there is none.

        Other partitions keep theirs. ``metadata``: a note of up to 4,096 characters, for offsets
        given as numbers. Raises ``GroupNotEmptyError``; ``OffsetOutOfRangeError`` for an offset
        that its partition does not have, and then nothing is changed; ``UnknownTopicError``,
        ``UnknownPartitionError``.
        """
        self._bind()
        (name,) = _group_ids([group])
        wanted = _offsets(offsets, metadata)
        await administration.check_in_range(self._cluster, wanted)
        await administration.commit_offsets(self._cluster, self._coordinators, name, wanted)

    async def commit_offsets(
        self, group: str, offsets: GroupOffsets, *, metadata: str = ""
    ) -> None:
        """Commit for a group without members, as a program does that keeps its place elsewhere.

        Then tools that show lag show its progress. As ``alter_group_offsets``, but whether the
        partitions have these offsets is not looked at.
        """
        self._bind()
        (name,) = _group_ids([group])
        wanted = _offsets(offsets, metadata)
        await administration.commit_offsets(self._cluster, self._coordinators, name, wanted)

    # -- requests

    async def _metadata(self, topics: list[str] | None) -> MetadataResponse:
        self._bind()
        answer = await self._cluster.call(apis.METADATA, MetadataRequest(topics=topics))
        assert isinstance(answer, MetadataResponse)
        return answer

    async def _change(
        self,
        api: Api,
        changes: Sequence[T],
        request: Callable[[list[T]], Message],
        failures: list[RaftlogError],
    ) -> dict[str, str]:
        """Have the changes made, and raise the first failure; else the topics' ids, by name."""
        self._bind()
        ids: dict[str, str] = {}
        for start in range(0, len(changes), limits.TOPICS_PER_REQUEST_MAX):
            left = list(changes[start : start + limits.TOPICS_PER_REQUEST_MAX])
            for result in await self._changed(api, left, request):
                if result.failure is None:
                    ids[result.name] = result.id
                else:
                    failures.append(_named(result.name, result.failure))
        if failures:
            raise failures[0]
        return ids

    async def _changed(
        self, api: Api, changes: list[T], request: Callable[[list[T]], Message]
    ) -> list[TopicResult]:
        """The result of each change. One that failed in a way that may pass is asked for again."""
        cluster = self._cluster
        results: list[TopicResult | None] = [None] * len(changes)
        last: dict[int, TopicResult] = {}  # of those asked for again

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
                cluster.doubt(connection.broker_id)  # it may be cut off: rather ask another
                raise again

        try:
            await cluster.persist(attempt, repeatable=api.idempotent)
        except RaftlogError:
            if any(result is None and i not in last for i, result in enumerate(results)):
                raise
        return [result or last[index] for index, result in enumerate(results)]

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
                f"unclosed {self!r}: close it, or use `async with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


_COUNTS = (1, limits.PARTITIONS_PER_TOPIC_MAX)
_BROKER_IDS = (0, (1 << 31) - 1)


def _names(topics: Iterable[str]) -> list[str]:
    return [check_topic_name(name) for name in check_topics(topics)]


def _config_text(config: Mapping[str, V]) -> dict[str, V]:
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config={config!r}: a dict of settings, such as {{'retention.ms': '1000'}}"
        )
    for key, value in config.items():
        if not all(isinstance(text, str | None) for text in (key, value)) or key is None:
            raise TypeError(f"config: {key!r}={value!r}: settings and their values are texts (str)")
    return dict(config)


def _named(name: str, failure: Failure) -> RaftlogError:
    """The failure as an error whose message has the topic's name in it."""
    error = failure.to_error()
    return error if name in str(error) else type(error)(f"{name}: {error}")


def _at(at: object) -> At:
    if at == "earliest":
        return "earliest"
    if at == "latest":
        return "latest"
    if isinstance(at, bool) or not isinstance(at, int):
        raise TypeError(f"{at!r}: 'earliest', 'latest', or a time in ms since 1970")
    return integer("the time", at, 0, limits.TIMESTAMP_MS_MAX)


def _group_ids(groups: Iterable[str]) -> list[str]:
    if isinstance(groups, str | bytes):
        raise TypeError(f"groups={groups!r}: a list of names, such as [{groups!r}]")
    names = list(dict.fromkeys(groups))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{name!r}: the name of a consumer group is a text (str)")
    return [check_group_id(name) for name in names]


def _offsets(offsets: GroupOffsets, metadata: str) -> dict[TopicPartition, OffsetAndMetadata]:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets={offsets!r}: a dict of TopicPartition to an offset")
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
        raise TypeError(f"metadata={metadata!r}: a text (str)")
    if len(metadata) > limits.OFFSET_METADATA_CHARS_MAX:
        raise InvalidRequestError(
            f"the metadata has {len(metadata)} characters: up to "
            f"{limits.OFFSET_METADATA_CHARS_MAX} are kept with an offset"
        )
    return metadata
