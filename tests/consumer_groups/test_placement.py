"""A group's partition is for ever: these are golden."""

from __future__ import annotations

import pytest

from raftlog.consumer_groups import partition_of_group
from raftlog.record.key_hash import POSITIVE, partition_of_key


@pytest.mark.parametrize(
    ("group", "digest"), [("21", -973932308), ("foobar", -790332482), ("abc", 479470107)]
)
def test_a_group_is_hashed_as_kafka_hashes_a_key(group: str, digest: int) -> None:
    assert partition_of_group(group, 16) == (digest & POSITIVE) % 16


def test_its_name_is_hashed_as_utf_8() -> None:
    assert partition_of_group("größe", 16) == partition_of_key("größe".encode(), 16)
