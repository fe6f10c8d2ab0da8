"""Topic and broker settings: one table each defines validation, defaults, text and docs.

No code here reads files: callers pass the text of a file. A name is imported at its first use:
clients use addresses, and not the settings of brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.lazy import lazy_names

if TYPE_CHECKING:
    from raftlog.config.address import Address, parse_address, parse_addresses
    from raftlog.config.broker import (
        BROKER_KEYS,
        EVERYWHERE,
        BrokerConfig,
        Voter,
        parse_voters,
        read_toml,
    )
    from raftlog.config.keys import ConfigKey, parse
    from raftlog.config.topic import TOPIC_KEYS, TopicConfig

__all__ = [
    "BROKER_KEYS",
    "EVERYWHERE",
    "TOPIC_KEYS",
    "Address",
    "BrokerConfig",
    "ConfigKey",
    "TopicConfig",
    "Voter",
    "parse",
    "parse_address",
    "parse_addresses",
    "parse_voters",
    "read_toml",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BROKER_KEYS": "raftlog.config.broker",
        "EVERYWHERE": "raftlog.config.broker",
        "TOPIC_KEYS": "raftlog.config.topic",
        "Address": "raftlog.config.address",
        "BrokerConfig": "raftlog.config.broker",
        "ConfigKey": "raftlog.config.keys",
        "TopicConfig": "raftlog.config.topic",
        "Voter": "raftlog.config.broker",
        "parse": "raftlog.config.keys",
        "parse_address": "raftlog.config.address",
        "parse_addresses": "raftlog.config.address",
        "parse_voters": "raftlog.config.broker",
        "read_toml": "raftlog.config.broker",
    },
)
