"""Topic names, by Kafka's rule, and how a partition is written."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidTopicError
from raftlog.types import TopicPartition, check_topic_name


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
