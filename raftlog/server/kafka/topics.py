"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

Any broker accepts them. Each topic has a separate outcome, in the order of the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.broker import BROKER_KEYS
from raftlog.config.keys import ConfigKey
from raftlog.config.topic import TOPIC_KEYS
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
    UnsupportedVersionError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.api import IGNORED_KEYS, own_settings
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server import metrics
from raftlog.server.apis import topics as topic_operations
from raftlog.server.apis.cluster import throttle_moves
from raftlog.server.apis.topics import Changed, Deleted, Deletion
from raftlog.server.cluster.topics import NamedTopic
from raftlog.server.context import BrokerContext
from raftlog.server.kafka import consumer_protocol
from raftlog.server.kafka.reply import KafkaReply, ResponseRoom, by_topic, check_count, unsigned
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Steps, in_steps
from raftlog.server.topic_table import HostedTopic
from raftlog.types import check_not_internal, check_topic_name

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
        return respond(await topic_operations.change_each(context, items, change))

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
        return await topic_operations.create_topic(
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
            return await topic_operations.delete_topic(context, topic.name, None)
        topic_id = topic.topic_id.hex()
        return await topic_operations.delete_topic(
            context, context.topics.by_id(topic_id).name, topic_id
        )

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
            check_not_internal(topic.name)
            return known
        return await topic_operations.extend_topic(context, topic.name, topic.count)

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
    # guard: Kafka clients delete no records of a topic that is only compacted
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


# -- configs ---------------------------------------------------------------------------------------
#
# DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: settings of
# topics, groups and brokers.
#
# Settings of brokers are read only: a broker reads them when it starts. Levels of its loggers can
# be changed until it stops (KIP-412).


TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
SOURCE_BROKER: Final = 4
SOURCE_LOGGER: Final = 6
SOURCE_GROUP: Final = 8
SETTING_BYTES: Final = 16  # of a setting without its texts
# Types of values (KIP-226, KIP-569).
BOOLEAN: Final = 1
STRING: Final = 2
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7
# Operations of IncrementalAlterConfigs (KIP-339).
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

# Names of Kafka's broker settings that consoles read, by the topic setting with the same meaning.
BROKER_DEFAULTS: Final[Mapping[str, str]] = {
    "compression.type": "compression.type",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
}
NO_LIMIT: Final = "1.7976931348623157E308"  # of Kafka's log.cleaner.io.max.bytes.per.second
# Kafka's names of log levels, by ours.
LOG_LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
_OWN_LEVELS: Final = {
    **{name: own for own, name in LOG_LEVELS.items()},
    "TRACE": "debug",
    "FATAL": "error",
}
_LISTS: Final = frozenset(
    (
        "cleanup.policy",
        "follower.replication.throttled.replicas",
        "group.assignors",
        "leader.replication.throttled.replicas",
        "log.cleanup.policy",
    )
)

_Described = codec.structs("response", api.DESCRIBE_CONFIGS.key)


# -- DescribeConfigs -------------------------------------------------------------------------------


# Settings, and their approximate size in bytes.
_Found: TypeAlias = tuple[list[Message], int]


def handle_describe(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the settings of each resource, with defaults; only the requested names if any.

    The Java client requests all topics at once. Topics with the same settings share them.
    """
    message = request.message
    known: dict[Hashable, _Found] = {}
    room = ResponseRoom()
    results: list[Message] = []
    for resource in message.resources:
        result = _Described.DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        try:
            room.check(f"resource {resource.resource_name[:300]!r}")
            found, size_bytes = _shared(context, message, resource, known)
        except RaftlogError as error:
            _fail(result, error)
        else:
            result.configs = found
            room.use(size_bytes)
        results.append(result)
        yield None
    reply.send(_Described.root(results=results))


def _shared(
    context: BrokerContext, message: Message, resource: Message, known: dict[Hashable, _Found]
) -> _Found:
    """Return the requested settings of a resource, out of ``known`` if another one has the same."""
    names = resource.configuration_keys
    wanted = frozenset(names) if names else None  # an empty list is for all, as in Kafka
    key: Hashable = (resource.resource_type, resource.resource_name, wanted)
    if resource.resource_type == TOPIC:
        topic = context.topics.topic(resource.resource_name)
        replicas = len(context.topics.info(topic, 0).replicas)
        key = (frozenset(topic.overrides.items()), replicas, wanted)
    found = known.get(key)
    if found is None:
        described = _describe(context, resource)
        configs = [each for each in described if wanted is None or each.name in wanted]
        _omit(message, configs)
        found = known[key] = (configs, sum(map(_size_of, configs)))
    return found


def _size_of(config: Message) -> int:
    text = len(config.name) + len(config.value or "")
    return SETTING_BYTES + text * (1 + len(config.synonyms)) + len(config.documentation or "")


def _omit(message: Message, found: list[Message]) -> None:
    for each in found:
        if not message.include_synonyms:
            each.synonyms = []
        if not message.include_documentation:
            each.documentation = None


def refuse_describe(request: KafkaRequest, error: RaftlogError) -> Message:
    results = []
    for resource in request.message.resources:
        result = _Described.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        _fail(result, error)
        results.append(result)
    return _Described.root(results=results)


def _describe(context: BrokerContext, resource: Message) -> list[Message]:
    if resource.resource_type == TOPIC:
        return _describe_topic(context, context.topics.topic(resource.resource_name))
    if resource.resource_type == BROKER:
        _check_broker(context, resource.resource_name)
        return _describe_broker(context)
    if resource.resource_type == BROKER_LOGGER:
        _check_broker(context, resource.resource_name)
        return _describe_loggers()
    if resource.resource_type == GROUP:
        return _describe_group(context, resource.resource_name)
    raise _unknown_type(resource.resource_type)


def _describe_topic(context: BrokerContext, topic: HostedTopic) -> list[Message]:
    found = []
    values = topic.config.to_text()
    replicas = len(context.topics.info(topic, 0).replicas)
    values["min.insync.replicas"] = str(topic.config.effective_min_isr(replicas))
    for key in TOPIC_KEYS:
        source = SOURCE_TOPIC if key.name in topic.overrides else SOURCE_DEFAULT
        found.append(_setting(key, values[key.name], source))
    found += [
        _setting(key, key.show(key.default), SOURCE_DEFAULT, read_only=True) for key in IGNORED_KEYS
    ]
    return found


def _describe_broker(context: BrokerContext) -> list[Message]:
    found = []
    in_force = _in_force(context)
    for key in BROKER_KEYS:
        if key.is_secret:
            continue
        value = getattr(context.config, key.field)
        source = SOURCE_DEFAULT if value == key.default else SOURCE_BROKER
        text = "" if value is None else key.show(value)
        if not value:
            text = in_force.get(key.name, text)
        found.append(_setting(key, text, source, read_only=True))
    defaults = TopicConfig().to_text()
    copies = int(in_force["default.replication.factor"])
    defaults["min.insync.replicas"] = str(TopicConfig().effective_min_isr(copies))
    for name, of_topic in BROKER_DEFAULTS.items():
        text = f"The default of the topic setting {of_topic}."
        found.append(_fact(name, defaults[of_topic], text))
    return found


def _in_force(context: BrokerContext) -> dict[str, str]:
    """Return what settings without a value stand for: tools create topics with what they read."""
    config = context.config
    copies = str(context.lookup.default_replication_factor())
    return {
        "advertised.listen": str(context.address),
        "default.replication.factor": copies,
        "kafka.advertised.listen": str(context.kafka_address if config.kafka_listen else ""),
        "log.cleaner.io.max.bytes.per.second": NO_LIMIT,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
    }


def _describe_loggers() -> list[Message]:
    return [
        _Described.DescribeConfigsResourceResult(
            name=each.name,
            value=LOG_LEVELS.get(each.level, each.level.upper()),
            config_source=SOURCE_LOGGER if each.is_own else SOURCE_DEFAULT,
            config_type=STRING,
            documentation="The least level that this logger logs.",
        )
        for each in metrics.describe()
    ]


def _describe_group(context: BrokerContext, group: str) -> list[Message]:
    consumer_protocol.check_group(group)
    held = context.access.authority.machine.groups.get(group, {})
    values = {**consumer_protocol.of_broker(context.config), **held}
    found = []
    for name, key in consumer_protocol.GROUP_KEYS.items():
        value = values[name]
        source = SOURCE_DEFAULT if value == key.default else SOURCE_BROKER
        source = SOURCE_GROUP if name in held else source
        found.append(_setting(key, str(value), source))
    return found


def _setting(key: ConfigKey[Any], value: str, source: int, *, read_only: bool = False) -> Message:
    synonyms = [_Described.DescribeConfigsSynonym(name=key.name, value=value, source=source)]
    return _Described.DescribeConfigsResourceResult(
        name=key.name,
        value=value,
        read_only=read_only,
        config_source=source,
        synonyms=synonyms,
        config_type=_type_of(key),
        documentation=key.help,
    )


def _type_of(key: ConfigKey[Any]) -> int:
    if key.name in _LISTS:
        return LIST
    kinds = {bool: BOOLEAN, int: LONG, float: DOUBLE}
    return kinds.get(type(key.default), STRING)


def _fact(name: str, value: str, text: str) -> Message:
    return _Described.DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=True,
        config_source=SOURCE_DEFAULT,
        config_type=LIST if name in _LISTS else STRING,
        documentation=text,
    )


def _check_broker(context: BrokerContext, name: str) -> None:
    """Raise unless the resource is this broker: only it knows its settings."""
    if name not in ("", str(context.broker_id)):
        raise InvalidRequestError(
            f"Unexpected broker id, expected {context.broker_id} or empty string, but received "
            f"{name[:20]}. Send the request to that broker"
        )


def _unknown_type(resource_type: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"Unknown resource type {resource_type}: topics ({TOPIC}), brokers ({BROKER}), broker "
        f"loggers ({BROKER_LOGGER}) and groups ({GROUP}) have settings here"
    )


# -- AlterConfigs, IncrementalAlterConfigs ---------------------------------------------------------


Changes: TypeAlias = dict[str, str | None]  # None: the default


def handle_alter(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Replace all settings of each topic or group."""

    def changes_of(resource: Message, held: Iterable[str], _values: object) -> Changes:
        _check_values(resource.configs, resource.configs)
        return {**dict.fromkeys(held), **{each.name: each.value for each in resource.configs}}

    _alter(context, request, reply, changes_of)


def handle_incremental(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Change some settings of each topic, group or broker."""

    def changes_of(resource: Message, _held: object, values: Mapping[str, str]) -> Changes:
        _check_values(
            resource.configs, (each for each in resource.configs if each.config_operation != DELETE)
        )
        return {each.name: _changed(values, each) for each in resource.configs}

    _alter(context, request, reply, changes_of)


def _check_values(settings: Sequence[Message], given: Iterable[Message]) -> None:
    """Raise ``InvalidRequestError`` for a setting that is contained twice, or is given no value."""
    if len({each.name for each in settings}) != len(settings):
        raise InvalidRequestError("Error due to duplicate config keys: send each setting once")
    missing = [each.name[:100] for each in given if each.value is None]
    if missing:
        raise InvalidRequestError(
            f"Null value not supported for : {', '.join(missing[:10])}. Use "
            "IncrementalAlterConfigs with DELETE for the default"
        )


def _changed(values: Mapping[str, str], change: Message) -> str | None:
    """Return the value of a setting after a change; None for the default."""
    operation = change.config_operation
    if operation == DELETE:
        return None
    value: str = change.value
    if operation == SET:
        return value
    if operation not in (APPEND, SUBTRACT):
        raise InvalidRequestError(f"Unknown operations type {operation}")
    if change.name not in _LISTS or change.name not in values:
        word = "APPEND" if operation == APPEND else "SUBTRACT"
        raise InvalidConfigError(
            f"Can't {word} to key {change.name[:100]} because its type is not LIST."
        )
    words = [word for word in values[change.name].split(",") if word]
    given = value.split(",")
    if operation == SUBTRACT:
        return ",".join(word for word in words if word not in given)
    return ",".join([*words, *(word for word in given if word not in words)])


def _alter(
    context: BrokerContext,
    request: KafkaRequest,
    reply: KafkaReply,
    changes_of: Callable[[Message, Iterable[str], Mapping[str, str]], Changes],
) -> None:
    message = request.message
    _check_count(reply, len(message.resources))
    counts = Counter((each.resource_type, each.resource_name) for each in message.resources)

    async def alter(resource: Message) -> HostedTopic | None:
        if counts[resource.resource_type, resource.resource_name] > 1:
            raise InvalidRequestError("Each resource must appear at most once.")
        if resource.resource_type == BROKER_LOGGER and request.api is api.INCREMENTAL_ALTER_CONFIGS:
            context.check_operator(reply.connection, reply.name)
            _check_broker(context, resource.resource_name)
            _check_values(resource.configs, ())
            levels = {each.name: _level(each) for each in resource.configs}
            if not message.validate_only:
                metrics.alter(levels, default=context.config.logging_level)
            return None
        if resource.resource_type == BROKER:
            _check_broker(context, resource.resource_name)
            await _throttle(context, reply, resource)
            return None
        if resource.resource_type == GROUP:
            name = resource.resource_name
            held = context.access.authority.machine.groups.get(name, {})
            await consumer_protocol.alter_group(
                context,
                name,
                changes_of(resource, held, {}),
                validate_only=message.validate_only,
            )
            return None
        if resource.resource_type != TOPIC:
            raise _unknown_type(resource.resource_type)
        topic = _topic(context, resource.resource_name)
        changes = own_settings(changes_of(resource, topic.overrides, topic.config.to_text()))
        if message.validate_only:
            topic_operations.check_alterable(topic.name, changes)
            _validate(context, topic, changes)
        elif changes:
            await topic_operations.alter_topic(context, topic.name, changes)
        return topic

    async def alter_all() -> Message:
        changed = await topic_operations.change_each(context, message.resources, alter)
        return _altered(request, changed)

    if not message.resources:
        reply.send(_altered(request, []))
        return
    context.administration.submit(alter_all, reply)


# -- ListConfigResources ---------------------------------------------------------------------------


_Listed = codec.structs("response", api.LIST_CONFIG_RESOURCES.key)


def handle_list(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the names of the resources that have settings, of some types or of all (KIP-1142).

    There are no client metrics, of which version 0 requests the names.
    """
    ids = [str(each.id) for each in context.brokers(reply.connection.local_host, for_kafka=True)]
    names: dict[int, Iterable[str]] = {
        TOPIC: [topic.name for topic in context.topics],
        BROKER: ids,
        BROKER_LOGGER: ids,
        CLIENT_METRICS: (),
        GROUP: context.access.authority.machine.groups,
    }
    types = [CLIENT_METRICS] if request.version < 1 else request.message.resource_types or [*names]
    if not names.keys() >= {*types}:
        raise UnsupportedVersionError(f"resource types are {', '.join(map(str, names))}")
    found = yield from in_steps(
        [(kind, name) for kind in dict.fromkeys(types) for name in sorted(names[kind])],
        lambda one: _Listed.ConfigResource(resource_type=one[0], resource_name=one[1]),
    )
    reply.send(_Listed.root(config_resources=found))


def refuse_list(_request: KafkaRequest, error: RaftlogError) -> Message:
    return _Listed.root(error_code=code_of(error, Place.ADMIN))


# -- settings of brokers ---------------------------------------------------------------------------


# What moves add is copied by followers; the limit holds for each broker of the cluster.
MOVE_THROTTLE: Final = "follower.replication.throttled.rate"
_THROTTLES: Final = frozenset(
    (
        MOVE_THROTTLE,
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)


async def _throttle(context: BrokerContext, reply: KafkaReply, resource: Message) -> None:
    """Change the limit of moves, which ``kafka-reassign-partitions`` sets on each broker, and
    removes from each when the moves have ended. Other settings of brokers are read only.
    """
    rates: dict[str, int] = {}
    for change in resource.configs:
        operation = getattr(change, "config_operation", None)
        if change.name not in _THROTTLES or operation not in (SET, DELETE):
            raise InvalidConfigError(
                "a broker reads its settings when it starts: change its configuration file and "
                "restart it"
            )
        try:
            rates[change.name] = 0 if operation == DELETE else int(change.value or "", 10)
        except ValueError:
            raise InvalidConfigError(f"{change.name}: {change.value!r} is not a number") from None
    rate = rates.get(MOVE_THROTTLE)
    is_known = rate == context.cluster.machine.move_throttle
    if rate is None or is_known or reply.request.message.validate_only:
        return
    if not 0 <= rate <= limits.MOVE_THROTTLE_BYTES_PER_S_MAX:
        raise InvalidConfigError(
            f"{MOVE_THROTTLE}: {rate} is not within 0 and {limits.MOVE_THROTTLE_BYTES_PER_S_MAX}"
        )
    context.check_operator(reply.connection, reply.name)
    await throttle_moves(context, rate)


def _topic(context: BrokerContext, name: str) -> HostedTopic:
    try:
        return context.topics.topic(name)
    except UnknownTopicError as error:
        raise UnknownTopicError(f"The topic '{name[:300]}' does not exist.") from error


def _level(change: Message) -> str | None:
    """Return the new level of a logger; None for that of the logger above."""
    if change.config_operation == DELETE:
        return None
    level = _OWN_LEVELS.get(change.value or "")
    if change.config_operation != SET or level is None:
        raise InvalidConfigError(
            f"a log level can be set or deleted; levels are {', '.join(_OWN_LEVELS)}"
        )
    return level


def _validate(
    context: BrokerContext, topic: HostedTopic, changes: Mapping[str, str | None]
) -> None:
    merged = {**topic.overrides, **changes}
    settings = {name: value for name, value in merged.items() if value is not None}
    config = TopicConfig.from_text(settings)
    config.check_replication(len(context.topics.info(topic, 0).replicas))


def _altered(request: KafkaRequest, changed: Sequence[object]) -> Message:
    structs = codec.structs("response", request.api.key)
    results = []
    for resource, one in zip(request.message.resources, changed, strict=True):
        result = structs.AlterConfigsResourceResponse(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        if isinstance(one, RaftlogError):
            _fail(result, one)
        results.append(result)
    return structs.root(responses=results)


def refuse_alter(request: KafkaRequest, error: RaftlogError) -> Message:
    return _altered(request, [error] * len(request.message.resources))


def _fail(result: Message, error: RaftlogError) -> None:
    result.error_code = code_of(error, Place.ADMIN)
    result.error_message = error.wire_text


def _check_count(reply: KafkaReply, count: int) -> None:
    if count > limits.KAFKA_ALTERED_RESOURCES_MAX:
        raise InvalidRequestError(
            f"{count} resources in a {reply.name} request, over KAFKA_ALTERED_RESOURCES_MAX "
            f"({limits.KAFKA_ALTERED_RESOURCES_MAX}). Send several requests"
        )
