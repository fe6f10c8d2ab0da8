"""Topic and broker settings: one table each defines validation, defaults, text and docs.

No code here reads files: callers pass the text of a file.
"""

from raftlog.config.address import Address, parse_address, parse_addresses
from raftlog.config.broker import EVERYWHERE, BrokerConfig, read_toml
from raftlog.config.broker_keys import BROKER_KEYS
from raftlog.config.keys import ConfigKey, parse
from raftlog.config.topic import TOPIC_KEYS, TopicConfig
from raftlog.config.voters import Voter, parse_voters

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
