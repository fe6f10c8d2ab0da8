"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: settings of topics and brokers.

Settings of brokers are read only: a broker reads them when it starts. Levels of its loggers can
be changed until it stops (KIP-412).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.broker_keys import BROKER_KEYS
from raftlog.config.keys import ConfigKey
from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import (
    InvalidConfigError,
    InvalidRequestError,
    RaftlogError,
    UnknownTopicError,
)
from raftlog.kafka import api, codec
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.kafka.names import IGNORED_KEYS, own_settings
from raftlog.server import log_levels
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.parts import ResponseRoom
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests import topics as requests
from raftlog.server.topic_table import HostedTopic
from raftlog.server.turns import Steps

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
SOURCE_TOPIC: Final = 1
SOURCE_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_LOGGER: Final = 6
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
    wanted = None if names is None else frozenset(names)
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
        for each in log_levels.describe()
    ]


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
        f"Unknown resource type {resource_type}: topics ({TOPIC}), brokers ({BROKER}) and broker "
        f"loggers ({BROKER_LOGGER}) have settings here"
    )


# -- AlterConfigs, IncrementalAlterConfigs ---------------------------------------------------------


def handle_alter(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Replace all settings of each topic."""

    def changes_of(topic: HostedTopic, resource: Message) -> dict[str, str | None]:
        _check_values(resource.configs, resource.configs)
        given = own_settings({each.name: each.value for each in resource.configs})
        changes: dict[str, str | None] = dict.fromkeys(topic.overrides)
        return changes | given

    _alter(context, request, reply, changes_of)


def handle_incremental(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Change some settings of each topic."""

    def changes_of(topic: HostedTopic, resource: Message) -> dict[str, str | None]:
        _check_values(
            resource.configs, (each for each in resource.configs if each.config_operation != DELETE)
        )
        values = topic.config.to_text()
        return own_settings({each.name: _changed(values, each) for each in resource.configs})

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
    changes_of: Callable[[HostedTopic, Message], dict[str, str | None]],
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
                log_levels.alter(levels, default=context.config.logging_level)
            return None
        if resource.resource_type == BROKER:
            _check_broker(context, resource.resource_name)
            raise InvalidConfigError(
                "a broker reads its settings when it starts: change its configuration file and "
                "restart it"
            )
        if resource.resource_type != TOPIC:
            raise _unknown_type(resource.resource_type)
        topic = _topic(context, resource.resource_name)
        changes = changes_of(topic, resource)
        if message.validate_only:
            _validate(context, topic, changes)
        elif changes:
            await requests.alter_topic(context, topic.name, changes)
        return topic

    async def alter_all() -> Message:
        changed = await requests.change_each(context, message.resources, alter)
        return _altered(request, changed)

    if not message.resources:
        reply.send(_altered(request, []))
        return
    context.administration.submit(alter_all, reply)


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
