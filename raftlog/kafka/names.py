"""Settings of Kafka that raftlog does not have, with their fixed values.

Consoles and libraries read them, and write back all settings that they have read. A request that
sets one to its fixed value is accepted; any other value is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import InvalidConfigError

# Of topics.
TOPIC_FACTS: Final[Mapping[str, str]] = {
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
    "file.delete.delay.ms": "0",
    "flush.messages": "1",
    "flush.ms": "0",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "message.downconversion.enable": "false",
    "message.format.version": "3.0-IV1",
    "preallocate": "false",
    "remote.storage.enable": "false",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "unclean.leader.election.enable": "false",
}
_OWN: Final = frozenset(key.name for key in TOPIC_KEYS)


def own_settings(settings: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the settings of a topic without those of ``TOPIC_FACTS``.

    Raises ``InvalidConfigError`` if one of these is set to another value than the fixed one.
    """
    own: dict[str, str | None] = {}
    for name, value in settings.items():
        holds = TOPIC_FACTS.get(name)
        if name in _OWN or holds is None:
            own[name] = value  # validation of topic settings rejects unknown names
        elif value is not None and value != holds:
            raise InvalidConfigError(
                f"{name}={value[:100]}: raftlog does not have this setting of Kafka. It is fixed "
                f"to {holds!r}, which is the only accepted value"
            )
    return own
