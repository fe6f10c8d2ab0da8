"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Any broker accepts them. Each topic has a separate outcome, in the order of the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidTopicError,
    RaftlogError,
    RefusedError,
    TopicExistsError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.kafka.names import own_settings
from raftlog.server.administration import NamedTopic
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.parts import by_topic, check_count, unsigned
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.partition import Partition
from raftlog.server.requests import topics as requests
from raftlog.server.requests.deletion import Deleted, Deletion
from raftlog.server.requests.topics import Changed
from raftlog.server.turns import Steps, in_steps
from raftlog.types import check_topic_name

Item = TypeVar("Item")

DEFAULT: Final = -1  # of a number of partitions or replicas
DUPLICATE_NAME: Final = "Duplicate topic name."
SOURCE_TOPIC: Final = 1
SOURCE_DEFAULT: Final = 5

_Created = codec.structs("response", api.CREATE_TOPICS.key)
_Deleted = codec.structs("response", api.DELETE_TOPICS.key)
_Extended = codec.structs("response", api.CREATE_PARTITIONS.key)
_Records = codec.structs("response", api.DELETE_RECORDS.key)


class _ReplicationError(InvalidPartitionsError):
    """A replication factor that the cluster cannot have: Kafka has a code for it."""


class _AssignmentError(UnsupportedFeatureError):
    """Replicas that the client has chosen: Kafka has a code for it."""


def _code(error: RaftlogError) -> int:
    if isinstance(error, _ReplicationError):
        return errors.INVALID_REPLICATION_FACTOR
    if isinstance(error, _AssignmentError):
        return errors.INVALID_REPLICA_ASSIGNMENT
    return code_of(error, Place.ADMIN)


def _change_each(
    context: BrokerContext,
    reply: KafkaReply,
    items: Sequence[Item],
    change: Callable[[Item], Awaitable[NamedTopic]],
    respond: Callable[[list[Changed]], Message],
) -> None:
    """Respond with the outcome of ``change`` for each item, or after the request's timeout."""
    if len(items) > limits.TOPICS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"{len(items)} topics in a {reply.name} request, over TOPICS_PER_REQUEST_MAX "
            f"({limits.TOPICS_PER_REQUEST_MAX}). Send several requests"
        )
    if not items:
        reply.send(respond([]))
        return

    async def change_all() -> Message:
        return respond(await requests.change_each(context, items, change))

    context.administration.submit(change_all, reply)
    reply.expire_after(reply.request.message.timeout_ms)


def _check_once(name: object, counts: Counter[object]) -> None:
    if counts[name] > 1:
        raise InvalidRequestError(DUPLICATE_NAME)


def _named_once(
    items: Sequence[Item], changed: list[Changed], name: Callable[[Item], object]
) -> list[tuple[Item, Changed]]:
    """Return each item with its outcome; as in Kafka, one for a name that occurs several times."""
    pairs = zip(items, changed, strict=True)
    return list({name(item): (item, one) for item, one in pairs}.values())


def _text(error: RaftlogError, name: str | None) -> str:
    """Return the text for an error: Kafka's, where scripts look for it."""
    if isinstance(error, TopicExistsError):
        return f"Topic '{name}' already exists."
    return error.wire_text


# -- CreateTopics ----------------------------------------------------------------------------------


def handle_create(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    message = request.message
    counts: Counter[object] = Counter(topic.name for topic in message.topics)
    brokers = len(context.brokers(""))

    async def create(topic: Message) -> NamedTopic:
        _check_once(topic.name, counts)
        if topic.assignments and topic.replication_factor != DEFAULT:
            raise InvalidRequestError(
                "A manual partition assignment was specified, but replication factor was not set "
                "to -1."
            )
        if topic.assignments:
            raise _AssignmentError(
                f"topic {topic.name}: replicas are assigned by the cluster. Create the topic with "
                "a number of partitions and a replication factor"
            )
        _check_name(topic.name)
        other = context.topics.colliding(topic.name)
        if other is not None and context.topics.get(topic.name) is None:
            raise InvalidTopicError(f"Topic '{topic.name}' collides with existing topic: {other}")
        replicas = topic.replication_factor
        if replicas < DEFAULT or not replicas:
            raise _ReplicationError(
                "Replication factor must be larger than 0, or -1 to use the default value."
            )
        if topic.num_partitions < DEFAULT or not topic.num_partitions:
            raise InvalidPartitionsError(
                "Number of partitions was set to an invalid non-positive value."
            )
        if replicas > brokers:
            raise _ReplicationError(
                f"Unable to replicate the partition {replicas} time(s): The target replication "
                f"factor of {replicas} cannot be reached because only {brokers} broker(s) are "
                "registered."
            )
        settings = _given(topic)
        return await requests.create_topic(
            context,
            topic.name,
            partitions=_partitions(context, topic),
            replication_factor=0 if replicas == DEFAULT else replicas,
            config=settings,
            validate_only=message.validate_only,
        )

    def respond(changed: list[Changed]) -> Message:
        pairs = _named_once(message.topics, changed, attrgetter("name"))
        return _Created.root(topics=[_created(context, topic, one) for topic, one in pairs])

    _change_each(context, reply, message.topics, create, respond)


def _check_name(name: str) -> None:
    """Raise ``InvalidTopicError`` for a name that is none, in Kafka's words."""
    try:
        check_topic_name(name)
    except InvalidTopicError as error:
        if not name:
            why = "the empty string is not allowed"
        elif name in {".", ".."}:
            why = f"'{name}' is not allowed"
        elif len(name) > limits.TOPIC_NAME_CHARS_MAX:
            why = (
                f"the length of '{name[:300]}' is longer than the max allowed length "
                f"{limits.TOPIC_NAME_CHARS_MAX}"
            )
        else:
            why = (
                f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', "
                "'_' and '-'"
            )
        raise InvalidTopicError(f"Topic name is invalid: {why}") from error


def _given(topic: Message) -> dict[str, str]:
    """Return the settings of a new topic that have an effect. Raises ``InvalidConfigError``."""
    missing = [each.name[:100] for each in topic.configs if each.value is None]
    if missing:
        raise InvalidConfigError(
            f"Null value not supported for topic configs: {', '.join(missing[:10])}"
        )
    settings = own_settings({each.name: each.value for each in topic.configs})
    return {name: value for name, value in settings.items() if value is not None}


def _partitions(context: BrokerContext, topic: Message) -> int:
    wanted: int = topic.num_partitions
    return context.config.num_partitions if wanted == DEFAULT else wanted


def _created(context: BrokerContext, wanted: Message, changed: Changed) -> Message:
    if isinstance(changed, RaftlogError):
        return _Created.CreatableTopicResult(
            name=wanted.name,
            error_code=_code(changed),
            error_message=_text(changed, wanted.name),
        )
    result = _Created.CreatableTopicResult(
        name=changed.name,
        topic_id=bytes.fromhex(changed.id) if changed.id else codec.ZERO_UUID,
        error_message=None,
        num_partitions=_partitions(context, wanted),
        replication_factor=wanted.replication_factor,
    )
    topic = context.topics.get(changed.name)
    if topic is None:  # only checked, or still on its way to this broker
        overrides = _given(wanted)
        config = TopicConfig.from_text(overrides)
    else:
        overrides, config = dict(topic.overrides), topic.config
        info = context.topics.info(topic, 0)
        result.num_partitions = len(topic.hosts)
        result.replication_factor = len(info.replicas) or wanted.replication_factor
    result.configs = [
        _Created.CreatableTopicConfigs(
            name=name,
            value=value,
            config_source=SOURCE_TOPIC if name in overrides else SOURCE_DEFAULT,
        )
        for name, value in config.to_text().items()
    ]
    return result


def refuse_create(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Created.root(
        topics=[
            _Created.CreatableTopicResult(
                name=topic.name,
                error_code=_code(error),
                error_message=error.wire_text,
            )
            for topic in request.message.topics
        ]
    )


# -- DeleteTopics ----------------------------------------------------------------------------------


class _Doomed(NamedTuple):
    """A topic to delete, by its name or its id."""

    name: str | None
    topic_id: bytes


def handle_delete(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    doomed = _doomed(request)
    counts: Counter[object] = Counter(doomed)

    async def delete(topic: _Doomed) -> NamedTopic:
        _check_once(topic, counts)
        if topic.name is None and topic.topic_id == codec.ZERO_UUID:
            raise InvalidRequestError("Neither topic name nor id were specified.")
        if topic.name is not None and topic.topic_id != codec.ZERO_UUID:
            raise InvalidRequestError("You may not specify both topic name and topic id.")
        if topic.name is not None:
            return await requests.delete_topic(context, topic.name, None)
        topic_id = topic.topic_id.hex()
        return await requests.delete_topic(context, context.topics.by_id(topic_id).name, topic_id)

    def respond(changed: list[Changed]) -> Message:
        pairs = _named_once(doomed, changed, lambda topic: topic)
        return _Deleted.root(responses=[_deleted(topic, one) for topic, one in pairs])

    _change_each(context, reply, doomed, delete, respond)


def _doomed(request: KafkaRequest) -> list[_Doomed]:
    if request.version < 6:
        return [_Doomed(name, codec.ZERO_UUID) for name in request.message.topic_names]
    return [_Doomed(topic.name, topic.topic_id) for topic in request.message.topics]


def _deleted(topic: _Doomed, changed: Changed) -> Message:
    if not isinstance(changed, RaftlogError):
        topic_id = bytes.fromhex(changed.id)
        return _Deleted.DeletableTopicResult(name=changed.name, topic_id=topic_id)
    code, text = _code(changed), changed.wire_text
    if isinstance(changed, UnknownTopicError):
        text = "This server does not host this topic-partition."
        if topic.name is None:
            code, text = errors.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."
    return _Deleted.DeletableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=code,
        error_message=text,
    )


def refuse_delete(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Deleted.root(responses=[_deleted(topic, error) for topic in _doomed(request)])


# -- CreatePartitions ------------------------------------------------------------------------------


def handle_extend(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    message = request.message
    counts: Counter[object] = Counter(topic.name for topic in message.topics)

    async def extend(topic: Message) -> NamedTopic:
        _check_once(topic.name, counts)
        if topic.assignments:
            raise _AssignmentError(
                f"topic {topic.name}: replicas are assigned by the cluster. Send a number of "
                "partitions only"
            )
        known = context.topics.topic(topic.name)
        if topic.count <= len(known.hosts):
            raise InvalidPartitionsError(
                f"Topic already has {topic.count} partition(s)."
                if topic.count == len(known.hosts)
                else f"The topic {topic.name} currently has {len(known.hosts)} partition(s); "
                f"{topic.count} would not be an increase."
            )
        if message.validate_only:
            return known
        return await requests.extend_topic(context, topic.name, topic.count)

    def respond(changed: list[Changed]) -> Message:
        pairs = _named_once(message.topics, changed, attrgetter("name"))
        return _Extended.root(results=[_extended(topic, one) for topic, one in pairs])

    _change_each(context, reply, message.topics, extend, respond)


def _extended(topic: Message, changed: Changed) -> Message:
    result = _Extended.CreatePartitionsTopicResult(name=topic.name)
    if isinstance(changed, RaftlogError):
        result.error_code, result.error_message = _code(changed), changed.wire_text
    return result


def refuse_extend(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Extended.root(results=[_extended(topic, error) for topic in request.message.topics])


# -- DeleteRecords ---------------------------------------------------------------------------------


class _CompactedError(RefusedError):
    """The records of a compacted topic are the last of their keys: Kafka has a code for it."""


def _check_policy(host: Partition) -> None:
    """Raise ``_CompactedError`` if records are neither deleted by age nor by size (KAFKA-5803)."""
    if not host.log.config.is_deleted_by_age:
        raise _CompactedError(
            f"Records of partition {host.topic_partition} can not be deleted due to the configured "
            "policy: cleanup.policy=compact. Write a record without a value to delete a key"
        )


class _Part(NamedTuple):
    """A partition, in the form that ``requests.deletion`` requires."""

    topic: str
    partition: int
    before_offset: int


def handle_delete_records(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> Steps:
    topics = request.message.topics
    check_count("delete_records", sum(len(topic.partitions) for topic in topics))
    parts = yield from in_steps(
        ((topic.name, each) for topic in topics for each in topic.partitions), _part
    )
    if not parts:
        reply.send(_Records.root())
        return
    reply.expire_after(request.message.timeout_ms)

    def done(found: list[Deleted]) -> None:
        reply.go_on(_send_deleted(request, reply, found))

    yield from Deletion(context, reply, parts, done, check=_check_policy).steps()


def _part(named: tuple[str, Message]) -> _Part:
    topic, each = named
    return _Part(topic, unsigned(each.partition_index), each.offset)


def _send_deleted(request: KafkaRequest, reply: KafkaReply, found: list[Deleted]) -> Steps:
    rest = iter(found)
    topics = yield from by_topic(
        request.message.topics,
        lambda topic: topic.partitions,
        lambda _topic, each: _records(each.partition_index, next(rest)),
        _records_of,
    )
    reply.send(_Records.root(topics=topics))


def _records_of(topic: Message, partitions: list[Message]) -> Message:
    return _Records.DeleteRecordsTopicResult(name=topic.name, partitions=partitions)


def _records(partition: int, deleted: Deleted) -> Message:
    result = _Records.DeleteRecordsPartitionResult(partition_index=partition, low_watermark=-1)
    if isinstance(deleted, _CompactedError):
        result.error_code = errors.POLICY_VIOLATION
    elif isinstance(deleted, RaftlogError):
        result.error_code = code_of(deleted, Place.DATA)
    else:
        result.low_watermark = deleted
    return result


def refuse_delete_records(request: KafkaRequest, error: RaftlogError) -> Message:
    return _Records.root(
        topics=[
            _records_of(topic, [_records(each.partition_index, error) for each in topic.partitions])
            for topic in request.message.topics
        ]
    )
