"""The settings of a broker: that each is one, and can be read about."""

from __future__ import annotations

import pytest

from raftlog.config import BROKER_KEYS, BrokerConfig
from raftlog.errors import InvalidConfigError


def test_they_stand_in_the_order_of_their_names_after_the_first_ones() -> None:
    names = [key.name for key in BROKER_KEYS]
    first = names.index("broker.heartbeat.interval.ms")
    assert names[first:] == sorted(names[first:])
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("log.cleaner.dedupe.buffer.size", "1000"),
        ("log.cleaner.interval.ms", "0"),
        ("log.cleaner.io.max.bytes.per.second", "-1"),
        ("fetch.max.bytes", "many"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(name: str, bad: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{name}={bad}"):
        BrokerConfig.from_text({name: bad})
