"""Topic names, by Kafka's rule, and how a partition is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidGroupError, InvalidTopicError
from raftlog.types import (
    TopicPartition,
    check_group_id,
    check_instance_id,
    check_not_internal,
    check_topic_name,
    is_internal_topic,
)


@pytest.mark.parametrize("name", ["a", "clicks", "a.b_c-D9", "...", "x" * 249])
def test_legal_names_are_returned(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../a",
        "a b",
        "a\n",
        "naïve",
        "x" * 250,
        "x" * 300,
        "a\0b",
        "日本",
        "٤",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="is not a topic name: use 1 to 249"):
        check_topic_name(name)


@given(st.text(max_size=300))
def test_any_text_is_legal_or_refused(name: str) -> None:
    with contextlib.suppress(InvalidTopicError):
        assert check_topic_name(name).isascii()


def test_a_partition_is_written_with_a_colon() -> None:
    assert str(TopicPartition("clicks", 3)) == "clicks:3"


@pytest.mark.parametrize("check", [check_group_id, check_instance_id])
def test_names_of_groups_and_instances(check: Callable[[str], str]) -> None:
    for name in ("g", "billing-2", "two words", "naïve/日本", "x" * 255):
        assert check(name) == name
    for name in ("", " g", "g ", "a\nb", "a\0b", "x" * 256, "x" * 300):
        with pytest.raises(InvalidGroupError, match="use 1 to 255 printable characters"):
            check(name)


@pytest.mark.parametrize(
    ("name", "is_internal"),
    [
        *((name, True) for name in ("__consumer_offsets", "__audit", "__transaction_state")),
        ("__raftlog_later", True),
        # Debezium, Strimzi and Cruise Control create these.
        *((name, False) for name in ("_a__b", "__debezium-heartbeat.x", "__strimzi_canary", "__a")),
    ],
)
def test_internal_topics_are_told_by_their_names(name: str, is_internal: bool) -> None:
    assert is_internal_topic(name) is is_internal
    with pytest.raises(InvalidTopicError) if is_internal else contextlib.nullcontext():
        check_not_internal(name)
