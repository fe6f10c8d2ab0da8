"""The topic table: finding partitions, and saying what is missing."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import InvalidTopicError, UnknownPartitionError, UnknownTopicError
from raftlog.server.replica_host import PartitionHost
from raftlog.server.topic_table import HostedTopic, TopicTable


class FakeHost:
    """Only its epoch matters here."""

    leader_epoch = 4


def hosted(name: str, partitions: int) -> HostedTopic:
    hosts = [cast(PartitionHost, FakeHost()) for _ in range(partitions)]
    return HostedTopic(name, "id-" + name, TopicConfig(), {}, hosts)


@pytest.fixture
def table() -> TopicTable:
    table = TopicTable()
    table.add(hosted("b", 2))
    table.add(hosted("a", 1))
    return table


def test_topics_come_in_the_order_of_their_names(table: TopicTable) -> None:
    assert [topic.name for topic in table] == ["a", "b"]
    assert len(table.hosts()) == 3
    assert table.host("b", 1) is table.topic("b").hosts[1]


@pytest.mark.parametrize(
    ("name", "partition", "error", "words"),
    [
        ("b", 2, UnknownPartitionError, "0 to 1"),
        ("c", 0, UnknownTopicError, "topic create c"),
        ("a/b", 0, InvalidTopicError, "a-z"),
    ],
)
def test_what_is_missing_is_named(
    table: TopicTable, name: str, partition: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        table.host(name, partition)


def test_a_removed_topic_is_gone(table: TopicTable) -> None:
    assert table.remove("a").name == "a"
    with pytest.raises(UnknownTopicError):
        table.topic("a")


def test_this_broker_leads_every_partition(table: TopicTable) -> None:
    infos: list[Any] = table.topic("b").partition_infos(broker_id=7)
    assert [(i.partition, i.leader, i.leader_epoch, i.replicas, i.isr) for i in infos] == [
        (0, 7, 4, [7], [7]),
        (1, 7, 4, [7], [7]),
    ]
