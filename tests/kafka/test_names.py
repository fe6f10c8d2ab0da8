"""Settings of Kafka that raftlog does not have."""

from __future__ import annotations

import pytest

from raftlog.errors import InvalidConfigError
from raftlog.kafka.names import own_settings


def test_the_value_that_holds_is_accepted() -> None:
    settings = {"retention.ms": "5", "preallocate": "false", "flush.ms": None, "other": "x"}
    assert own_settings(settings) == {"retention.ms": "5", "other": "x"}


def test_another_value_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="fixed to 'false'"):
        own_settings({"preallocate": "true"})
