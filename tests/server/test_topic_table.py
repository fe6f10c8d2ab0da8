"""The topic table: finding partitions, and saying what is missing."""

from __future__ import annotations

from typing import cast

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import (
    ClusterNotReadyError,
    InvalidTopicError,
    NotLeaderError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.replication.partition_state import PartitionState
from raftlog.server.partition import Partition
from raftlog.server.topic_table import HostedTopic, TopicTable


def state(leader: int) -> PartitionState:
    return PartitionState(
        replicas=(leader,),
        witnesses=(),
        min_isr=1,
        leader=leader,
        leader_epoch=4,
        isr={leader: "d"},
        elr={},
        former={},
        version=0,
    )


class FakeLeadership:
    state = state(leader=7)


class FakeHost:
    """Only its leadership matters here."""

    leadership = FakeLeadership()


def hosted(name: str, partitions: int) -> HostedTopic:
    hosts = [cast(Partition, FakeHost()) for _ in range(partitions)]
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


def test_names_that_differ_by_dots_only() -> None:
    table = TopicTable()
    for name in ("x.a", "x-a"):
        table.add(HostedTopic(name, name, TopicConfig(), {}, []))
    assert table.colliding("x_a") == "x.a"
    assert table.colliding("x.a") is None
    table.remove("x.a")
    assert table.colliding("x_a") is None
    assert not table._similar.keys() - {"x-a"}


def test_a_broker_alone_leads_every_partition(table: TopicTable) -> None:
    infos = [table.info(table.topic("b"), index) for index in range(len(table.topic("b").hosts))]
    assert [(i.partition, i.leader, i.leader_epoch, i.replicas, i.isr) for i in infos] == [
        (0, 7, 4, [7], [7]),
        (1, 7, 4, [7], [7]),
    ]


def test_states_come_from_the_cluster_where_there_is_one(table: TopicTable) -> None:
    table.state_of = lambda topic_id, partition: state(leader=2) if partition == 1 else None
    unknown, known = (table.info(table.topic("b"), index) for index in range(2))
    assert (unknown.leader, unknown.leader_epoch, unknown.replicas) == (None, -1, [])
    assert (known.leader, known.replicas, known.witnesses) == (2, [2], [])


def test_a_partition_that_is_elsewhere_says_where(table: TopicTable) -> None:
    table.topic("b").hosts[1] = None
    table.state_of = lambda _topic_id, _partition: state(leader=2)
    with pytest.raises(NotLeaderError, match="its replicas are brokers 2"):
        table.host("b", 1)
    assert len(table.hosts()) == 2


def test_a_topic_may_be_unknown_only_because_the_broker_has_just_started(
    table: TopicTable,
) -> None:
    table.is_complete = False
    assert table.topic("a").name == "a"
    with pytest.raises(ClusterNotReadyError, match="just started"):
        table.topic("c")
    with pytest.raises(InvalidTopicError):
        table.topic("a/b")


def test_who_wants_to_know_is_told_of_topics_that_come_go_or_grow(table: TopicTable) -> None:
    told: list[list[str]] = []
    table.on_change = lambda: told.append([topic.name for topic in table])
    table.add(hosted("c", 1))
    table.extend(table.topic("c"), [None])
    table.extend(table.topic("c"), [])
    assert len(table.topic("c").hosts) == 2
    table.remove("a")
    assert told == [["a", "b", "c"], ["a", "b", "c"], ["b", "c"]]
