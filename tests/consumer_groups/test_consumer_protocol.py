"""The bytes of consumers: what clients send, and what is no subscription or assignment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consumer_groups.values import assigned_partitions, subscribed_topics
from raftlog.testing.kafka_wire import assignment, subscription

# As librdkafka sends it: version 3, topics, user data, owned partitions, generation, rack.
SUBSCRIPTION = bytes.fromhex("0003000000010001740000000000000000ffffffffffff")


def test_topics_are_read_from_any_version() -> None:
    assert subscribed_topics(SUBSCRIPTION) == ("t",)
    assert subscribed_topics(subscription("b", "a", "b")) == ("a", "b")


def test_partitions_are_read_and_no_bytes_are_none() -> None:
    assert assigned_partitions(assignment("t", 2, 0) + b"user data") == {"t": (0, 2)}
    assert assigned_partitions(b"") == {}


@pytest.mark.parametrize(
    "data", [b"\0", b"\0\1\xff\xff\xff\xff", b"\0\1\x7f\xff\xff\xff", b"\0\1\0\0\0\1\0\1\xff"]
)
def test_other_bytes_are_neither(data: bytes) -> None:
    assert subscribed_topics(data) is None
    assert assigned_partitions(data) is None


@given(st.binary(max_size=64))
def test_no_bytes_raise(data: bytes) -> None:
    subscribed_topics(data)
    assigned_partitions(data)
