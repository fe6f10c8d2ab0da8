"""OffsetCommit, OffsetFetch and OffsetDelete: the offsets that a group has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from raftlog import limits
from raftlog.consumer_groups import NO_MEMBER_EPOCH, Commit, Committed
from raftlog.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    RaftlogError,
    StaleMemberEpochError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests.groups import check_count
from raftlog.server.requests.outcomes import Outcomes
from raftlog.types import TopicPartition

TOPIC_IDS_SINCE = 10  # version of OffsetCommit and OffsetFetch
GROUPS_SINCE = 8  # version of OffsetFetch
MEMBER_EPOCHS_SINCE = 9  # version of OffsetCommit

_Commit = codec.structs("response", api.OFFSET_COMMIT.key)
_Fetch = codec.structs("response", api.OFFSET_FETCH.key)
_Delete = codec.structs("response", api.OFFSET_DELETE.key)


class _Topic(NamedTuple):
    """A topic of a request. ``name``: None if its ID is unknown."""

    name: str | None
    id: bytes
    partitions: Sequence[Message]


def _topics(context: BrokerContext, topics: Iterable[Message], *, by_id: bool) -> Iterator[_Topic]:
    """Return the topics of a request with their names, and check the number of partitions."""
    count = 0
    for topic in topics:
        partitions = topic.partition_indexes if hasattr(topic, "partition_indexes") else None
        partitions = topic.partitions if partitions is None else partitions
        count += len(partitions)
        if count > limits.PARTITIONS_PER_REQUEST_MAX:
            raise InvalidRequestError(
                f"request for more than {limits.PARTITIONS_PER_REQUEST_MAX} partitions. Use several"
            )
        if not by_id:
            yield _Topic(topic.name, codec.ZERO_UUID, partitions)
            continue
        try:
            name = context.topics.by_id(topic.topic_id.hex()).name
        except RaftlogError:
            name = None
        yield _Topic(name, topic.topic_id, partitions)


# -- OffsetCommit ----------------------------------------------------------------------------------


def handle_commit(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Commit offsets of a member, or of a client without membership in an empty group."""
    message, version = request.message, request.version
    by_id = version >= TOPIC_IDS_SINCE
    topics = list(_topics(context, message.topics, by_id=by_id))
    commits = [
        Commit(
            topic.name,
            one.partition_index,
            one.committed_offset,
            one.committed_leader_epoch,
            one.committed_metadata or "",
        )
        for topic in topics
        if topic.name is not None
        for one in topic.partitions
        if not _is_long(one)
    ]
    topic_ids = {topic.name: topic.id.hex() for topic in topics if by_id and topic.name is not None}
    epoch = message.generation_id_or_member_epoch
    member_epoch = epoch if message.member_id else NO_MEMBER_EPOCH

    def done(outcomes: Sequence[RaftlogError | None]) -> None:
        remaining = iter(outcomes)

        def code(topic: _Topic, one: Message) -> int:
            if topic.name is None:
                return errors.UNKNOWN_TOPIC_ID
            if _is_long(one):
                return errors.OFFSET_METADATA_TOO_LARGE
            return _commit_code(next(remaining), version)

        reply.send(_committed(topics, code))

    context.coordinator.shard(message.group_id).change(
        lambda groups, now, now_ms: groups.commit(
            message.group_id,
            message.member_id,
            member_epoch,
            commits,
            topic_ids,
            instance_id=message.group_instance_id,
            by_owner=False,
            now=now,
            now_ms=now_ms,
        ),
        done,
        reply.fail,
    )


def refuse_commit(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every partition."""
    code = _commit_code(error, request.version)
    topics = [
        _Topic(
            topic.name if request.version < TOPIC_IDS_SINCE else None,
            topic.topic_id,
            topic.partitions,
        )
        for topic in request.message.topics
    ]
    return _committed(topics, lambda _topic, _one: code)


def _is_long(one: Message) -> bool:
    return len(one.committed_metadata or "") > limits.OFFSET_METADATA_CHARS_MAX


def _commit_code(error: RaftlogError | None, version: int) -> int:
    if error is None:
        return errors.NONE
    if isinstance(error, GroupNotEmptyError):
        return errors.UNKNOWN_MEMBER_ID
    if isinstance(error, StaleMemberEpochError) and version < MEMBER_EPOCHS_SINCE:
        return errors.ILLEGAL_GENERATION
    return code_of(error, Place.CLASSIC_GROUPS)


def _committed(topics: Sequence[_Topic], code: Callable[[_Topic, Message], int]) -> Message:
    return _Commit.root(
        topics=[
            _Commit.OffsetCommitResponseTopic(
                name=topic.name or "",
                topic_id=topic.id,
                partitions=[
                    _Commit.OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=code(topic, one)
                    )
                    for one in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


# -- OffsetFetch -----------------------------------------------------------------------------------


def handle_fetch(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Return committed offsets: of the named partitions, or all of a group."""
    message, version = request.message, request.version
    if version < GROUPS_SINCE:
        topics = _wanted(context, message.topics, version)

        def fetched(found: Sequence[Committed]) -> None:
            reply.send(_Fetch.root(topics=_offsets(context, topics, found, version)))

        context.coordinator.shard(message.group_id).ask(
            lambda groups: groups.fetch(message.group_id, _names(topics)), fetched, reply.fail
        )
        return
    check_count(message.groups)

    def send(groups: list[Message]) -> None:
        reply.send(_Fetch.root(groups=groups))

    outcomes: Outcomes[Message] = Outcomes(len(message.groups), send)
    for index, group in enumerate(message.groups):
        _fetch_group(context, group, version, partial(outcomes.settle, index))


def _fetch_group(
    context: BrokerContext, group: Message, version: int, put: Callable[[Message], None]
) -> None:
    new, group_id = _Fetch.OffsetFetchResponseGroup, group.group_id

    def failed(error: RaftlogError) -> None:
        put(new(group_id=group_id, error_code=code_of(error, Place.GROUPS)))

    try:
        topics = _wanted(context, group.topics, version)

        def done(found: Sequence[Committed]) -> None:
            put(new(group_id=group_id, topics=_offsets(context, topics, found, version)))

        context.coordinator.shard(group_id).ask(
            lambda groups: groups.fetch(group_id, _names(topics)), done, failed
        )
    except RaftlogError as error:
        failed(error)


def refuse_fetch(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for the group, and for its partitions in version 1."""
    code = code_of(error, Place.GROUPS)
    if request.version >= GROUPS_SINCE:
        new = _Fetch.OffsetFetchResponseGroup
        groups = [new(group_id=one.group_id, error_code=code) for one in request.message.groups]
        return _Fetch.root(groups=groups)
    topics = [
        _Fetch.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                _Fetch.OffsetFetchResponsePartition(
                    partition_index=number, committed_offset=-1, metadata="", error_code=code
                )
                for number in topic.partition_indexes
            ],
        )
        for topic in request.message.topics or ()
    ]
    return _Fetch.root(error_code=code, topics=topics)


def _wanted(
    context: BrokerContext, topics: Sequence[Message] | None, version: int
) -> list[_Topic] | None:
    """Return the wanted topics; None for all."""
    if topics is None:
        return None
    return list(_topics(context, topics, by_id=version >= TOPIC_IDS_SINCE))


def _names(topics: list[_Topic] | None) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [
        TopicPartition(topic.name, number)
        for topic in topics
        if topic.name is not None
        for number in topic.partitions
    ]


def _offsets(
    context: BrokerContext,
    topics: list[_Topic] | None,
    found: Sequence[Committed],
    version: int,
) -> list[Message]:
    """Return the offsets by topic, in the order of the request."""
    if topics is None:
        return [
            _offsets_of(version, name, _id_of(context, name), list(each))
            for name, each in groupby(found, key=lambda one: one.topic)
        ]
    remaining = iter(found)
    return [
        _offsets_of(
            version,
            topic.name,
            topic.id,
            [
                next(remaining) if topic.name is not None else Committed("", number)
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def _id_of(context: BrokerContext, name: str) -> bytes:
    topic = context.topics.get(name)
    return codec.ZERO_UUID if topic is None else bytes.fromhex(topic.id)


def _offsets_of(
    version: int, name: str | None, topic_id: bytes, found: Sequence[Committed]
) -> Message:
    is_old = version < GROUPS_SINCE
    new = _Fetch.OffsetFetchResponsePartition if is_old else _Fetch.OffsetFetchResponsePartitions
    partitions = [
        new(
            partition_index=one.partition,
            committed_offset=one.offset,
            committed_leader_epoch=one.leader_epoch,
            metadata=one.metadata,
            error_code=errors.NONE if name is not None else errors.UNKNOWN_TOPIC_ID,
        )
        for one in found
    ]
    if is_old:
        return _Fetch.OffsetFetchResponseTopic(name=name, partitions=partitions)
    return _Fetch.OffsetFetchResponseTopics(
        name=name or "", topic_id=topic_id, partitions=partitions
    )


# -- OffsetDelete ----------------------------------------------------------------------------------


def handle_delete(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Delete offsets of topics that no member subscribes to."""
    message = request.message
    topics = list(_topics(context, message.topics, by_id=False))
    names = [
        TopicPartition(topic.name or "", one.partition_index)
        for topic in topics
        for one in topic.partitions
    ]

    def done(outcomes: Sequence[RaftlogError | None]) -> None:
        remaining = iter(outcomes)
        reply.send(
            _Delete.root(
                topics=[
                    _Delete.OffsetDeleteResponseTopic(
                        name=topic.name,
                        partitions=[
                            _Delete.OffsetDeleteResponsePartition(
                                partition_index=one.partition_index,
                                error_code=_delete_code(next(remaining)),
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in topics
                ]
            )
        )

    context.coordinator.shard(message.group_id).change(
        lambda groups, now, _now_ms: groups.delete_offsets(message.group_id, names, now=now),
        done,
        reply.fail,
    )


def _delete_code(error: RaftlogError | None) -> int:
    if error is None:
        return errors.NONE
    if isinstance(error, GroupNotEmptyError):
        return errors.GROUP_SUBSCRIBED_TO_TOPIC
    return code_of(error, Place.GROUPS)
