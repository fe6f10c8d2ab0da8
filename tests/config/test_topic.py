"""Topic settings: Kafka's defaults, and text both ways."""

from __future__ import annotations

import pytest

from raftlog.config import TOPIC_KEYS, TopicConfig
from raftlog.errors import InvalidConfigError


def test_defaults_survive_a_round_trip_through_text() -> None:
    text = TopicConfig().to_text()
    assert set(text) == {key.name for key in TOPIC_KEYS}
    assert TopicConfig.from_text(text) == TopicConfig()


def test_an_override_changes_one_setting() -> None:
    config = TopicConfig.from_text({"retention.ms": "5"})
    assert config.retention_ms == 5
    assert config == TopicConfig(retention_ms=5)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"retention\.hours"):
        TopicConfig.from_text({"retention.hours": "5"})


def test_every_setting_says_what_it_is_for_and_what_it_takes() -> None:
    for key in TOPIC_KEYS:
        assert key.help.endswith("."), key.name
        assert key.accepts, key.name
