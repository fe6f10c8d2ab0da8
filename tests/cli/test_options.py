"""Values of shared options: a table each."""

from __future__ import annotations

import click
import pytest

from raftlog.cli.options import key_and_value, partition_and_offset, topic_partition


@pytest.mark.parametrize(
    ("text", "pair"), [("k=v", ("k", "v")), ("k=", ("k", "")), ("k=a=b", ("k", "a=b"))]
)
def test_settings_are_split_at_the_first_equals_sign(text: str, pair: tuple[str, str]) -> None:
    assert key_and_value(text) == pair


@pytest.mark.parametrize("text", ["", "k", "=v"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        key_and_value(text)


def test_a_partition_and_its_offset() -> None:
    assert partition_and_offset("3:1500") == (3, 1500)


@pytest.mark.parametrize("text", ["", "3", "3:", ":1", "a:1", "3:-1", "3:1:2"])
def test_what_is_no_partition_and_offset_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="P:OFFSET"):
        partition_and_offset(text)


def test_a_topic_and_its_partition() -> None:
    assert topic_partition("clicks:3") == ("clicks", 3)


@pytest.mark.parametrize("text", ["", "clicks", ":3", "clicks:", "clicks:-1", "clicks:x"])
def test_what_is_no_topic_and_partition_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="TOPIC:P"):
        topic_partition(text)
