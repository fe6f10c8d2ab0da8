"""Answers about topics and the cluster become plain values."""

from __future__ import annotations

from raftlog.client.descriptions import (
    PartitionDescription,
    PartitionOverview,
    RecoveredPartition,
    RecoveryDescription,
    TopicDescription,
    recovery_description,
    topic_description,
)
from raftlog.errors import BrokerUnavailableError
from raftlog.protocol import records
from raftlog.protocol.cluster import RecoverClusterResponse
from raftlog.protocol.cluster import RecoveredPartition as WireRecovered
from raftlog.protocol.records import PartitionInfo
from raftlog.protocol.schema import Failure


def test_a_topic() -> None:
    info = PartitionInfo(
        partition=2, leader=None, leader_epoch=4, replicas=[1, 2], isr=[2], witnesses=[3]
    )
    found = topic_description(
        records.TopicDescription(
            name="t",
            id="x",
            config={"retention.ms": "5"},
            config_overrides=["retention.ms"],
            is_internal=True,
            partition_count=1,
            partitions=[
                records.PartitionDescription(
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
        "t",
        "x",
        {"retention.ms": "5"},
        ("retention.ms",),
        (partition,),
        is_internal=True,
        partition_count=1,
    )


def overview(isr: tuple[int, ...], min_isr: int) -> PartitionOverview:
    return PartitionOverview("t", "x", 0, 1, 4, (1, 2, 3), isr, (), (), min_isr, True, 0, 9, (), "")


def test_how_a_partition_is_doing() -> None:
    assert not overview((1, 2, 3), 2).is_under_replicated
    assert not overview((1, 2, 3), 2).is_at_min_isr
    assert overview((1, 2), 2).is_under_replicated
    assert overview((1, 2), 2).is_at_min_isr


def test_a_recovery() -> None:
    response = RecoverClusterResponse(
        partitions=[
            WireRecovered(topic="t", partition=1, leader=2, log_end_offset=7, note="led by 2"),
            WireRecovered(topic="t", partition=3, may_lose=True, lost=4, note="led by 3"),
            WireRecovered(
                topic="t", partition=2, failure=Failure.of(BrokerUnavailableError("not settled"))
            ),
        ],
        cluster_note="2 votes alone",
    )
    assert recovery_description(response) == RecoveryDescription(
        (
            RecoveredPartition("t", 1, 2, 7, "led by 2", ""),
            RecoveredPartition("t", 3, None, -1, "led by 3", "", may_lose=True, lost=4),
            RecoveredPartition("t", 2, None, -1, "", "not settled"),
        ),
        "2 votes alone",
    )
