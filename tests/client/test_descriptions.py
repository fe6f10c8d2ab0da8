"""Answers about topics and the cluster become plain values."""

from __future__ import annotations

from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
    cluster_description,
    topic_description,
)
from raftlog.protocol import topics as wire
from raftlog.protocol.metadata import BrokerInfo, MetadataResponse, PartitionInfo


def test_a_topic() -> None:
    info = PartitionInfo(
        partition=2, leader=None, leader_epoch=4, replicas=[1, 2], isr=[2], witnesses=[3]
    )
    found = topic_description(
        wire.TopicDescription(
            name="t",
            id="x",
            config={"retention.ms": "5"},
            config_overrides=["retention.ms"],
            partitions=[
                wire.PartitionDescription(
                    info=info,
                    log_start_offset=1,
                    high_watermark=2,
                    log_end_offset=3,
                    size_bytes=4,
                    damage="bad",
                )
            ],
        )
    )
    partition = PartitionDescription(2, None, 4, (1, 2), (2,), (3,), 1, 2, 3, 4, "bad")
    assert found == TopicDescription(
        "t", "x", {"retention.ms": "5"}, ("retention.ms",), (partition,)
    )


def test_a_cluster() -> None:
    response = MetadataResponse(
        cluster_id="c", brokers=[BrokerInfo(id=1, host="h", port=9, rack="r")], topics=[]
    )
    assert cluster_description(response) == ClusterDescription(
        "c", (BrokerDescription(1, "h", 9, "r"),)
    )
