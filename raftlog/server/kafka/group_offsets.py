"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: the offsets of a group."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, groupby
from typing import Any, NamedTuple

from raftlog import limits
from raftlog.consumer_groups import NO_MEMBER_EPOCH, Commit, Committed, GroupShard, StateChange
from raftlog.errors import (
    ConcurrentTransactionsError,
    GroupNotEmptyError,
    ProducerFencedError,
    RaftlogError,
    StaleMemberEpochError,
    TransactionAbortedError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.apis.groups import (
    PendingCommit,
    change_offsets,
    commit_pending,
    fetch_offsets,
)
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes, check_once
from raftlog.server.kafka import transactions
from raftlog.server.kafka.reply import KafkaReply, ResponseRoom, by_topic
from raftlog.server.kafka.reply import check_count as check_partitions
from raftlog.server.scheduling import Steps, in_steps
from raftlog.types import TopicPartition

TOPIC_IDS_SINCE = 10  # version of OffsetCommit and OffsetFetch
GROUPS_SINCE = 8  # version of OffsetFetch
MEMBER_EPOCHS_SINCE = 9  # version of OffsetCommit
# Versions of TxnOffsetCommit.
TXN_LOADING_SINCE = 3  # older clients fail at COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)
TXN_ADDS_SINCE = 5
TXN_TOPIC_IDS_SINCE = 6
OFFSET_BYTES = 64  # of a committed offset without its metadata

_Commit = codec.structs("response", api.OFFSET_COMMIT.key)
_Txn = codec.structs("response", api.TXN_OFFSET_COMMIT.key)
_Fetch = codec.structs("response", api.OFFSET_FETCH.key)
_Delete = codec.structs("response", api.OFFSET_DELETE.key)


class _Form(NamedTuple):
    """Structures of the response to a commit of offsets."""

    root: Callable[..., Message]
    topic: Callable[..., Message]
    partition: Callable[..., Message]


_COMMITTED = _Form(
    _Commit.root, _Commit.OffsetCommitResponseTopic, _Commit.OffsetCommitResponsePartition
)
_PENDING = _Form(
    _Txn.root, _Txn.TxnOffsetCommitResponseTopic, _Txn.TxnOffsetCommitResponsePartition
)


class _Topic(NamedTuple):
    """A topic of a request. ``name``: None if its ID is unknown."""

    name: str | None
    id: bytes
    partitions: Sequence[Message]


def _topics(
    context: BrokerContext, topics: Iterable[Message], *, by_id: bool
) -> Generator[None, Any, list[_Topic]]:
    """Return the topics of a request with their names, and check the number of partitions."""
    count = 0

    def named(topic: Message) -> _Topic:
        nonlocal count
        partitions = _partitions(topic)
        count += len(partitions)
        check_partitions("group", count)
        if not by_id:
            return _Topic(topic.name, codec.ZERO_UUID, partitions)
        try:
            name = context.topics.by_id(topic.topic_id.hex()).name
        except RaftlogError:
            name = None
        return _Topic(name, topic.topic_id, partitions)

    return in_steps(topics, named)


def _partitions(topic: Message) -> Sequence[Any]:
    found: Sequence[Any]
    found = topic.partition_indexes if hasattr(topic, "partition_indexes") else topic.partitions
    return found


# -- OffsetCommit ----------------------------------------------------------------------------------


def handle_commit(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Commit offsets of a member, or of a client without membership in an empty group."""
    message, version = request.message, request.version
    by_id = version >= TOPIC_IDS_SINCE
    topics = yield from _topics(context, message.topics, by_id=by_id)
    commits = yield from in_steps(_valid(topics), _commit)
    topic_ids = {topic.name: topic.id.hex() for topic in topics if by_id and topic.name is not None}
    epoch = message.generation_id_or_member_epoch
    member_epoch = epoch if message.member_id or epoch >= 0 else NO_MEMBER_EPOCH

    def change(
        groups: GroupShard, part: Sequence[Commit], now: float, now_ms: int
    ) -> StateChange[list[RaftlogError | None]]:
        return groups.commit(
            message.group_id,
            message.member_id,
            member_epoch,
            part,
            topic_ids,
            instance_id=message.group_instance_id,
            by_owner=False,
            now=now,
            now_ms=now_ms,
        )

    def done(outcomes: list[RaftlogError | None]) -> None:
        code = _codes(outcomes, lambda error: _commit_code(error, version))
        reply.go_on(_send_answered(reply, _COMMITTED, topics, code))

    yield from change_offsets(context, message.group_id, commits, change, done, reply.fail)


def _codes(
    outcomes: list[RaftlogError | None], code_of_outcome: Callable[[RaftlogError | None], int]
) -> Callable[[_Topic, Message], int]:
    """Return the code of each partition of a commit, in their order."""
    remaining = iter(outcomes)

    def code(topic: _Topic, one: Message) -> int:
        if topic.name is None:
            return errors.UNKNOWN_TOPIC_ID
        if _is_long(one):
            return errors.OFFSET_METADATA_TOO_LARGE
        return code_of_outcome(next(remaining))

    return code


def _valid(topics: list[_Topic]) -> Iterator[tuple[str, Message]]:
    for topic in topics:
        if topic.name is not None:
            for one in topic.partitions:
                if not _is_long(one):
                    yield topic.name, one


def _commit(named: tuple[str, Message]) -> Commit:
    topic, one = named
    return Commit(
        topic,
        one.partition_index,
        one.committed_offset,
        one.committed_leader_epoch,
        one.committed_metadata or "",
    )


def refuse_commit(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every partition."""
    version = request.version
    code = _commit_code(error, version)
    by_id = version >= TOPIC_IDS_SINCE
    return _refused(_COMMITTED, request.message.topics, code, by_id=by_id)


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


def _answered(
    form: _Form, topics: Sequence[_Topic], code: Callable[[_Topic, Message], int]
) -> Generator[None, Any, Message]:
    """Return the response with the code of each partition."""
    found = yield from by_topic(
        topics,
        lambda topic: topic.partitions,
        lambda topic, one: form.partition(
            partition_index=one.partition_index, error_code=code(topic, one)
        ),
        lambda topic, partitions: form.topic(
            name=topic.name or "", topic_id=topic.id, partitions=partitions
        ),
    )
    return form.root(topics=found)


def _send_answered(
    reply: KafkaReply,
    form: _Form,
    topics: Sequence[_Topic],
    code: Callable[[_Topic, Message], int],
) -> Steps:
    reply.send((yield from _answered(form, topics, code)))


def _refused(form: _Form, topics: Sequence[Message], code: int, *, by_id: bool) -> Message:
    """Return the response with ``code`` for every partition of a request."""
    asked = [
        _Topic(None if by_id else topic.name, topic.topic_id, topic.partitions) for topic in topics
    ]
    return codec.finish(_answered(form, asked, lambda _topic, _one: code))


# -- TxnOffsetCommit -------------------------------------------------------------------------------


def handle_txn_commit(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Keep offsets until the producer's transaction ends."""
    message, version = request.message, request.version
    by_id = version >= TXN_TOPIC_IDS_SINCE
    topics = yield from _topics(context, message.topics, by_id=by_id)
    commits = yield from in_steps(_valid(topics), _commit)

    def done(outcomes: list[RaftlogError | None]) -> None:
        code = _codes(outcomes, lambda error: _txn_code(error, request))
        reply.go_on(_send_answered(reply, _PENDING, topics, code))

    commit = PendingCommit(
        transactional_id=message.transactional_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        adds=version >= TXN_ADDS_SINCE,
        group=message.group_id,
        member_id=message.member_id,
        member_epoch=message.generation_id_or_member_epoch,
        instance_id=message.group_instance_id,
        offsets=commits,
        topic_ids={
            topic.name: topic.id.hex() for topic in topics if by_id and topic.name is not None
        },
    )
    yield from commit_pending(context, commit, done, reply.fail, reply.go_on)


def refuse_txn_commit(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response with the error for every partition."""
    code = _txn_code(error, request)
    by_id = request.version >= TXN_TOPIC_IDS_SINCE
    return _refused(_PENDING, request.message.topics, code, by_id=by_id)


def _txn_code(error: RaftlogError | None, request: KafkaRequest) -> int:
    """Return the code of an offset. Versions before 5 are those of clients that add the group to
    the transaction before: they do not expect that the last one is still being completed.
    """
    version = request.version
    if isinstance(error, StaleMemberEpochError) and version < TXN_TOPIC_IDS_SINCE:
        return errors.ILLEGAL_GENERATION
    if isinstance(error, ProducerFencedError):
        return errors.INVALID_PRODUCER_EPOCH  # as the leader of a partition
    if isinstance(error, TransactionAbortedError):
        return transactions.code_for(error, request)
    if isinstance(error, ConcurrentTransactionsError) and version < TXN_ADDS_SINCE:
        return errors.COORDINATOR_NOT_AVAILABLE
    code = _commit_code(error, MEMBER_EPOCHS_SINCE)
    if code == errors.COORDINATOR_LOAD_IN_PROGRESS and version < TXN_LOADING_SINCE:
        return errors.COORDINATOR_NOT_AVAILABLE
    return code


# -- OffsetFetch -----------------------------------------------------------------------------------


def handle_fetch(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return committed offsets: of the named partitions, or all of a group."""
    message, version = request.message, request.version
    if version < GROUPS_SINCE:
        topics = yield from _wanted(context, message.topics, version)

        def fetched(found: list[Committed]) -> None:
            reply.go_on(send_topics(found))

        def send_topics(found: list[Committed]) -> Steps:
            offsets = yield from _offsets(context, topics, found, version)
            reply.send(_Fetch.root(topics=offsets))

        names = yield from _names(topics)
        yield from fetch_offsets(
            context,
            message.group_id,
            names,
            fetched,
            reply.fail,
            require_stable=message.require_stable,
        )
        return
    # guard: OffsetFetch has each group once
    check_once("OffsetFetch", [group.group_id for group in message.groups])
    # guard: OffsetFetch has a limited number of partitions over all groups
    check_partitions(
        "OffsetFetch",
        sum(
            len(topic.partition_indexes) for group in message.groups for topic in group.topics or ()
        ),
    )

    def send(groups: list[Message]) -> None:
        reply.send(_Fetch.root(groups=groups))

    outcomes: Outcomes[Message] = Outcomes(len(message.groups), send)
    room = ResponseRoom()
    for index, group in enumerate(message.groups):
        put = partial(outcomes.resolve, index)
        yield from _fetch_group(context, reply, group, put, room)
        yield None


def _fetch_group(
    context: BrokerContext,
    reply: KafkaReply,
    group: Message,
    put: Callable[[Message], None],
    room: ResponseRoom,
) -> Steps:
    new, group_id = _Fetch.OffsetFetchResponseGroup, group.group_id
    version = reply.request.version

    def failed(error: RaftlogError) -> None:
        put(new(group_id=group_id, error_code=code_of(error, Place.GROUPS)))

    def put_topics(topics: list[_Topic] | None, found: list[Committed]) -> Steps:
        put(new(group_id=group_id, topics=(yield from _offsets(context, topics, found, version))))

    try:
        room.check(f"group {group_id}")
        topics = yield from _wanted(context, group.topics, version)
        names = yield from _names(topics)

        def done(found: list[Committed]) -> None:
            room.use(sum(len(one.metadata) for one in found))
            reply.go_on(put_topics(topics, found))

        yield from fetch_offsets(
            context,
            group_id,
            names,
            done,
            failed,
            require_stable=reply.request.message.require_stable,
            expect=lambda count: room.use(OFFSET_BYTES * count),
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
) -> Generator[None, Any, list[_Topic] | None]:
    """Return the wanted topics; None for all."""
    if topics is None:
        return None
    return (yield from _topics(context, topics, by_id=version >= TOPIC_IDS_SINCE))


def _names(topics: list[_Topic] | None) -> Generator[None, Any, list[TopicPartition] | None]:
    if topics is None:
        return None
    named = (
        (topic.name, number)
        for topic in topics
        if topic.name is not None
        for number in topic.partitions
    )
    return (yield from in_steps(named, TopicPartition._make))


def _offsets(
    context: BrokerContext,
    topics: list[_Topic] | None,
    found: Sequence[Committed],
    version: int,
) -> Generator[None, Any, list[Message]]:
    """Return the offsets by topic, in the order of the request."""
    if topics is None:
        all_topics = [
            _Topic(name, _id_of(context, name), list(each))
            for name, each in groupby(found, key=lambda one: one.topic)
        ]
        return _by_topic(version, all_topics, lambda _topic, one: one)
    remaining = iter(found)
    return _by_topic(
        version,
        topics,
        lambda topic, number: next(remaining) if topic.name is not None else Committed("", number),
    )


def _id_of(context: BrokerContext, name: str) -> bytes:
    topic = context.topics.get(name)
    return codec.ZERO_UUID if topic is None else bytes.fromhex(topic.id)


def _by_topic(
    version: int, topics: list[_Topic], committed: Callable[[_Topic, Any], Committed]
) -> Generator[None, Any, list[Message]]:
    is_old = version < GROUPS_SINCE
    new = _Fetch.OffsetFetchResponsePartition if is_old else _Fetch.OffsetFetchResponsePartitions

    def part(topic: _Topic, one: Any) -> Message:
        found = committed(topic, one)
        return new(
            partition_index=found.partition,
            committed_offset=found.offset,
            committed_leader_epoch=found.leader_epoch,
            metadata=found.metadata,
            error_code=_fetch_code(topic, found),
        )

    def whole(topic: _Topic, partitions: list[Message]) -> Message:
        if is_old:
            return _Fetch.OffsetFetchResponseTopic(name=topic.name, partitions=partitions)
        return _Fetch.OffsetFetchResponseTopics(
            name=topic.name or "", topic_id=topic.id, partitions=partitions
        )

    return by_topic(topics, lambda topic: topic.partitions, part, whole)


def _fetch_code(topic: _Topic, found: Committed) -> int:
    if topic.name is None:
        return errors.UNKNOWN_TOPIC_ID
    return errors.NONE if found.is_stable else errors.UNSTABLE_OFFSET_COMMIT


# -- OffsetDelete ----------------------------------------------------------------------------------


def handle_delete(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Delete offsets of topics that no member subscribes to."""
    message = request.message
    topics = yield from _topics(context, message.topics, by_id=False)

    def exists(topic: _Topic, one: Message) -> bool:
        known = context.topics.get(topic.name or "")
        return known is not None and 0 <= one.partition_index < len(known.hosts)

    asked = [(topic, one) for topic in topics for one in topic.partitions]
    existing = yield from in_steps(asked, lambda pair: exists(*pair))
    names = yield from in_steps(
        compress(asked, existing),
        lambda pair: TopicPartition(pair[0].name or "", pair[1].partition_index),
    )

    def change(
        groups: GroupShard, part: Sequence[TopicPartition], now: float, _now_ms: int
    ) -> StateChange[list[RaftlogError | None]]:
        return groups.delete_offsets(message.group_id, part, now=now)

    def done(outcomes: list[RaftlogError | None]) -> None:
        rest, is_there = iter(outcomes), iter(existing)

        def code(_topic: _Topic, _one: Message) -> int:
            unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
            return _delete_code(next(rest)) if next(is_there) else unknown

        reply.go_on(_send_deleted(reply, topics, code))

    yield from change_offsets(context, message.group_id, names, change, done, reply.fail)


def _send_deleted(
    reply: KafkaReply, topics: list[_Topic], code: Callable[[_Topic, Message], int]
) -> Steps:
    deleted = yield from by_topic(
        topics,
        lambda topic: topic.partitions,
        lambda topic, one: _Delete.OffsetDeleteResponsePartition(
            partition_index=one.partition_index, error_code=code(topic, one)
        ),
        lambda topic, partitions: _Delete.OffsetDeleteResponseTopic(
            name=topic.name, partitions=partitions
        ),
    )
    reply.send(_Delete.root(topics=deleted))


def _delete_code(error: RaftlogError | None) -> int:
    if error is None:
        return errors.NONE
    if isinstance(error, GroupNotEmptyError):
        return errors.GROUP_SUBSCRIBED_TO_TOPIC
    return code_of(error, Place.GROUPS)
