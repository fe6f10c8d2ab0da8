"""Broker settings from TOML and from the command line."""

from __future__ import annotations

import pytest

from raftlog.config import BROKER_KEYS, Address, BrokerConfig
from raftlog.errors import InvalidConfigError

DOCUMENT = """
id = 3
listen = "0.0.0.0:9200"
data.dir = "/var/lib/raftlog"

[fetch.max]
bytes = 4096
"""


def test_dotted_keys_and_tables_are_the_same() -> None:
    config = BrokerConfig.from_toml(DOCUMENT)
    assert config.id == 3
    assert config.listen == Address("0.0.0.0", 9200)
    assert config.data_dir == "/var/lib/raftlog"
    assert config.fetch_max_bytes == 4_096
    quoted = BrokerConfig.from_toml('"fetch.max.bytes" = "4096"')
    assert quoted.fetch_max_bytes == 4_096


def test_the_command_line_wins() -> None:
    config = BrokerConfig.from_toml(DOCUMENT, {"id": "4"})
    assert (config.id, config.fetch_max_bytes) == (4, 4_096)


def test_defaults_survive_a_round_trip_through_text() -> None:
    text = BrokerConfig().to_text()
    assert set(text) == {key.name for key in BROKER_KEYS}
    assert text["advertised.listen"] == ""
    assert BrokerConfig.from_text(text) == BrokerConfig()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("id = ", "not TOML"),
        ("idd = 1", "'idd' is not a broker setting"),
        ("id = -1", "id=-1 is refused"),
        ("id = true", "id = True is a bool"),
        ("id = 1.5", "id = 1.5 is a float"),
        ("id = [1]", "settings are text or whole numbers"),
        ('listen = "9100"', "HOST:PORT"),
        ('data.dir = ""', "data.dir= is refused"),
        ('advertised.listen = "nowhere"', "advertised.listen=nowhere"),
    ],
)
def test_a_bad_document_is_refused_with_the_reason(document: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        BrokerConfig.from_toml(document)


def test_every_setting_says_what_it_is_for_and_what_it_takes() -> None:
    for key in BROKER_KEYS:
        assert key.help.endswith("."), key.name
        assert key.accepts or key.name == "id", key.name
