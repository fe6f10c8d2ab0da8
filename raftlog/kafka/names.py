"""Settings of Kafka 4.4's topics that have no effect in raftlog.

Tools copy all settings of a topic from another cluster, and write back all settings that they have
read. A request can give any value that Kafka accepts: it is checked, and not stored. Descriptions
return the value that holds. Only a value that would promise what raftlog does not do is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from raftlog import limits
from raftlog.config.keys import INT64_MAX, ConfigKey, number, word
from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import InvalidConfigError

INT32_MAX: Final = (1 << 31) - 1
MISSING: Final = "raftlog does not have this setting of Kafka. The value is what holds."


def _flag(name: str) -> ConfigKey[bool]:
    def parse(text: str) -> bool:
        value = text.strip().lower()
        if value not in ("true", "false"):
            raise ValueError("not true or false")
        return value == "true"

    return ConfigKey(name, False, parse, "true or false", MISSING, lambda value: str(value).lower())


def _throttled(name: str) -> ConfigKey[str]:
    """Return a list of replicas, ``PARTITION:BROKER``, or * for all."""

    def parse(text: str) -> str:
        pairs = [part.split(":") for part in text.split(",") if part.strip()]
        is_list = all(len(pair) == 2 and "".join(pair).isdecimal() for pair in pairs)
        if text.strip() != "*" and not is_list:
            raise ValueError("not a list of replicas")
        return text

    return ConfigKey(name, "", parse, "* or PARTITION:BROKER,...", MISSING)


def _int(name: str, holds: int, least: int, most: int = INT32_MAX) -> ConfigKey[int]:
    return number(name, holds, least, most, "", MISSING)


# Of topics; the default is the value that holds.
IGNORED_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    _int("compression.gzip.level", -1, -1, 9),
    _int("compression.lz4.level", 9, 1, 17),
    _int("compression.zstd.level", 3, -131_072, 22),
    _flag("errors.deadletterqueue.group.enable"),
    _int("file.delete.delay.ms", 0, 0, INT64_MAX),
    _int("flush.messages", 1, 1, INT64_MAX),
    _int("flush.ms", 0, 0, INT64_MAX),
    _throttled("follower.replication.throttled.replicas"),
    _throttled("leader.replication.throttled.replicas"),
    _int("local.retention.bytes", -2, -2, INT64_MAX),
    _int("local.retention.ms", -2, -2, INT64_MAX),
    _int("max.decompressed.message.bytes", limits.BATCH_UNCOMPRESSED_BYTES_MAX, 1),
    _flag("preallocate"),
    _int("remote.copy.lag.bytes", -1, -1, INT64_MAX),
    _int("remote.copy.lag.ms", 0, -1, INT64_MAX),
    _flag("remote.log.copy.disable"),
    _flag("remote.log.delete.on.disable"),
    word("remote.storage.enable", "false", ("false",), MISSING),  # records would not be tiered
    _int("segment.index.bytes", 10 * limits.MIB, 4),
    _int("segment.jitter.ms", 0, 0, INT64_MAX),
    _flag("unclean.leader.election.enable"),
)
# Settings of topics that Kafka 4.0 has removed. Tools of earlier versions set them.
RETIRED: Final = frozenset(("message.downconversion.enable", "message.format.version"))
_IGNORED: Final = {key.name: key for key in IGNORED_KEYS}
_OWN: Final = {key.name: key for key in TOPIC_KEYS}
_CODECS: Final = word(
    "compression.type",
    "producer",
    ("producer", "uncompressed", "zstd", "lz4", "snappy", "gzip"),
    "",
)


def own_settings(settings: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the settings of a topic that have an effect. None deletes one: a setting that does not
    exist can be deleted, too.

    Raises ``InvalidConfigError``, whose text begins with Kafka's words, for a setting or a value
    that Kafka refuses, or that would promise what raftlog does not do.
    """
    own: dict[str, str | None] = {}
    for name, value in settings.items():
        if value is None:
            if name in _OWN:
                own[name] = None
        elif name in _IGNORED:
            _check(_IGNORED[name], value)
        elif name == _CODECS.name:
            _check(_CODECS, value)
            own[name] = None  # batches are stored as the producer compressed them
        elif name in _OWN:
            own[name] = _within(name, value)
            _check(_OWN[name], own[name] or "")
        elif name not in RETIRED:
            raise InvalidConfigError(
                f"Unknown topic config name: {name[:100]}. DescribeConfigs returns all settings"
            )
    return own


def _check(key: ConfigKey[Any], text: str) -> None:
    try:
        key.parse(text)
    except ValueError as error:
        raise InvalidConfigError(
            f"Invalid value {text[:100]} for configuration {key.name}: {error}. Accepted: "
            f"{key.accepts}"
        ) from error


def _within(name: str, text: str) -> str:
    """Return the nearest value that a topic can have, of a limit that Kafka can have higher."""
    try:
        value = int(text, 10)
    except ValueError:
        return text  # refused next
    if name == "max.message.bytes" and limits.BATCH_BYTES_MAX < value <= INT32_MAX:
        return str(limits.BATCH_BYTES_MAX)
    if name == "retention.bytes" and -(1 << 63) <= value < 0:
        return "-1"
    return text
