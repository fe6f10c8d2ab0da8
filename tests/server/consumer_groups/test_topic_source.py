"""Which topics there are, and a version that grows with them."""

from __future__ import annotations

from typing import cast

from raftlog.config import TopicConfig
from raftlog.consumer_groups import TopicInfo
from raftlog.replication.cluster_commands import CreateTopic
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.groups.coordinator import AgreedTopics, OwnTopics
from raftlog.server.topic_table import HostedTopic, TopicTable
from tests.server.cluster.paper import Scene, play


def test_a_brokers_own() -> None:
    table, now_ms = TopicTable(), [1_000]
    source = OwnTopics(table, lambda: now_ms[0])
    first = source.topics()
    assert (dict(first.by_name), source.version_of(first)) == ({}, 1_000)
    table.add(HostedTopic("t", "1", TopicConfig(), {}, [None, None]))
    second = source.topics()
    assert dict(second.by_name) == {"t": TopicInfo("1", 2)}
    assert source.version_of(second) == 1_001


def test_versions_grow_from_one_run_to_the_next() -> None:
    """And what is written in the log has none that a clock which went back could not reach."""
    now_ms = [1_000]
    source = OwnTopics(TopicTable(), lambda: now_ms[0])
    for _ in range(5):
        last = source.version_of(source.topics())
    now_ms[0] += 500
    later = OwnTopics(TopicTable(), lambda: now_ms[0])
    topics = later.topics()
    assert later.version_of(topics) > last
    assert topics.version == 0


def test_those_that_were_agreed_on() -> None:
    class Node:
        def __init__(self, s: Scene) -> None:
            self.machine = s.machine

    async def test(s: Scene) -> None:
        source = AgreedTopics(cast(ClusterNode, Node(s)))
        s.register(1)
        before = source.topics()
        s.command(
            CreateTopic(name="t", topic_id="T", partitions=3, replication_factor=1, overrides={})
        )
        topics = source.topics()
        assert dict(before.by_name) == {}
        assert dict(topics.by_name) == {"t": TopicInfo("T", 3)}
        assert source.version_of(topics) == topics.version == s.machine.version > before.version

    play(test)
