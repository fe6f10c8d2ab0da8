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


@pytest.mark.parametrize(
    ("text", "replication_factor", "minimum"),
    [("0", 1, 1), ("0", 2, 1), ("0", 3, 2), ("0", 5, 2), ("1", 3, 1), ("3", 3, 3)],
)
def test_min_insync_replicas_follows_the_replication_factor(
    text: str, replication_factor: int, minimum: int
) -> None:
    config = TopicConfig.from_text({"min.insync.replicas": text})
    assert config.effective_min_isr(replication_factor) == minimum


def test_min_insync_replicas_has_a_range() -> None:
    for text in ("-1", "16"):
        with pytest.raises(InvalidConfigError, match="0 to 15"):
            TopicConfig.from_text({"min.insync.replicas": text})


def test_every_setting_says_what_it_is_for_and_what_it_takes() -> None:
    for key in TOPIC_KEYS:
        assert key.help.endswith("."), key.name
        assert key.accepts, key.name
