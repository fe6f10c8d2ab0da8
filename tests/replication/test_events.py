"""Events between two states: elections, the ISR, replicas; brokers that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as struct_replace

from raftlog.replication.cluster_commands import (
    KINDS,
    BrokerRecord,
    broker_events,
    partition_events,
)
from raftlog.replication.partition_state import PartitionState

STATE = PartitionState(
    replicas=(1, 2, 3),
    witnesses=(4, 5),
    min_isr=2,
    leader=1,
    leader_epoch=7,
    isr={1: "a", 2: "b"},
    elr={},
    former={},
    version=20,
)
BROKER = BrokerRecord(
    id=2, host="h", port=9, rack="", directory_id="d", boot=3, broker_epoch=4, fenced=False
)


@pytest.mark.parametrize(
    ("change", "kinds", "part"),
    [
        ({}, [], ""),
        ({"elr": {3: "c"}}, [], ""),
        (
            {"leader": 2, "leader_epoch": 8},
            ["leader-elected"],
            "broker 2 leads in epoch 8, after broker 1",
        ),
        ({"leader_epoch": 8}, ["leader-elected"], "broker 1 leads in epoch 8, after broker 1"),
        (
            {"leader": 2, "leader_epoch": 8, "unclean_epoch": 8},
            ["unclean-leader-elected"],
            "Acknowledged records may be lost",
        ),
        ({"leader": None, "leader_epoch": 8}, ["leader-lost"], "broker 1 is no longer the leader"),
        ({"isr": {1: "a"}}, ["isr-shrunk"], "broker 2 left the ISR; the ISR is 1"),
        ({"isr": {1: "a", 3: "c"}}, ["isr-shrunk", "isr-expanded"], "broker 3 joined the ISR"),
        ({"replicas": (1, 2, 4)}, ["replicas-changed"], "the replicas are 1,2,4, after 1,2,3"),
        ({"replicas": (2, 1, 3)}, [], ""),
    ],
)
def test_a_change_of_a_partition_is_told(
    change: dict[str, Any], kinds: list[str], part: str
) -> None:
    found = partition_events("t", "id", 5, STATE, replace(STATE, version=21, **change))
    assert [event.kind for event in found] == kinds
    assert part in "".join(event.text for event in found)
    assert {(e.topic, e.topic_id, e.partition, e.version) for e in found} <= {("t", "id", 5, 21)}


def test_the_first_leader_follows_no_broker() -> None:
    (event,) = partition_events("t", "id", 0, replace(STATE, leader=None), STATE)
    assert (event.broker, event.text) == (1, "broker 1 leads in epoch 7, after no broker")


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (BROKER, BROKER, []),
        (None, struct_replace(BROKER, fenced=True), ["broker-registered"]),
        (None, BROKER, ["broker-registered", "broker-unfenced"]),
        (BROKER, struct_replace(BROKER, fenced=True), ["broker-fenced"]),
        (struct_replace(BROKER, fenced=True), BROKER, ["broker-unfenced"]),
        (
            BROKER,
            struct_replace(BROKER, broker_epoch=5, boot=4, fenced=True),
            ["broker-registered", "broker-fenced"],
        ),
    ],
)
def test_a_change_of_a_broker_is_told(
    before: BrokerRecord | None, after: BrokerRecord, kinds: list[str]
) -> None:
    found = broker_events({} if before is None else {2: before}, {2: after}, 9)
    assert [event.kind for event in found] == kinds
    assert set(kinds) <= set(KINDS)
    assert all((event.broker, event.version, event.topic) == (2, 9, "") for event in found)
