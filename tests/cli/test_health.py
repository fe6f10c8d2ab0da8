"""What a cluster's description comes to: counts and words, for every kind of trouble."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    CopyVerification,
    DiskDescription,
    LogDirDescription,
    PartitionOverview,
    ReplicaDescription,
)
from raftlog_cli import overview


def replica(broker: int, *, behind: int = 0, damage: str = "") -> ReplicaDescription:
    return ReplicaDescription(
        broker=broker,
        log_end_offset=10 - behind,
        durable_end_offset=10 - behind,
        lag_records=behind,
        lag_ms=0,
        in_isr=True,
        chain=255,
        damage=damage,
    )


WELL = PartitionOverview(
    topic="t",
    topic_id="id",
    partition=0,
    leader=1,
    leader_epoch=4,
    replicas=(1, 2, 3),
    isr=(1, 2, 3),
    witnesses=(4, 5),
    elr=(),
    min_isr=2,
    is_available=True,
    log_start_offset=0,
    high_watermark=10,
    replica_states=(replica(1), replica(2), replica(3)),
    problem="",
)
SHORT = replace(WELL, partition=1, isr=(1, 2))
ALONE = replace(WELL, topic="single", replicas=(1,), isr=(1,), min_isr=1)
GONE = replace(WELL, partition=2, leader=None, isr=(3,), is_available=False)
UP = BrokerDescription(1, "h", 9100)
DOWN = BrokerDescription(2, "h", 9101, live=False, problem="connection refused")
FENCED = BrokerDescription(3, "h", 9102, fenced=True)


@pytest.mark.parametrize(
    ("partition", "state"),
    [
        (WELL, "ok"),
        (SHORT, "under-replicated"),
        (ALONE, "ok"),
        (GONE, "unavailable"),
        (replace(WELL, min_isr=3), "at-min-isr"),
    ],
)
def test_the_worst_that_is_true_is_the_state(partition: PartitionOverview, state: str) -> None:
    assert overview.partition_state(partition) == state
    assert overview.partition_row(partition)["state"] == state


def test_brokers_are_up_down_or_fenced() -> None:
    assert [overview.broker_state(broker) for broker in (UP, DOWN, FENCED)] == [
        *("up", "down", "fenced")
    ]
    assert [overview.is_up(broker) for broker in (UP, DOWN, FENCED)] == [True, False, False]


def test_the_summary_counts() -> None:
    damaged = replace(WELL, partition=3, replica_states=(replica(2, damage="a bad batch"),))
    described = ClusterDescription("c", (UP, DOWN, FENCED), 1, (WELL, SHORT, ALONE, GONE, damaged))
    found = overview.summary(described)
    assert not found.pop("ok")
    assert [each["kind"] for each in found.pop("problems")] == [
        *("broker", "broker", "under-replicated", "unavailable", "damage")
    ]
    assert found == {
        "cluster_id": "c",
        "controller": 1,
        "brokers": 3,
        "brokers_up": 1,
        "brokers_fenced": 1,
        "topics": 2,
        "partitions": 5,
        "under_replicated": 2,
        "unavailable": 1,
        "at_min_isr": 2,
        "damage": [{"topic": "t", "partition": 3, "broker": 2, "damage": "a bad batch"}],
        "losses": [],
    }


def test_all_is_well_or_it_is_said_what_is_not() -> None:
    well = ClusterDescription("c", (UP,), 1, (WELL, ALONE))
    assert overview.summary(well)["ok"]
    assert overview.problems(well) == []
    (problem,) = overview.problems(replace(well, controller=None))
    assert problem["kind"] == "no-controller"
    alone = replace(WELL, down=(1, 2))
    assert [p["kind"] for p in overview.problems(replace(well, partitions=(alone,)))] == [
        "under-replicated"
    ]
    assert alone.is_at_min_isr
    assert not ALONE.is_at_min_isr, "with one replica there is none to spare"


@pytest.mark.parametrize(
    ("error_ms", "words"), [(700_500, "700 s ahead of"), (-86_400_000, "86400 s behind")]
)
def test_a_wrong_clock_is_a_problem(error_ms: int, words: str) -> None:
    wrong = ClusterDescription("c", (replace(UP, clock_error_ms=error_ms),), 1, (WELL,))
    (problem,) = overview.problems(wrong)
    assert (problem["kind"], problem["broker"]) == ("clock", 1)
    assert words in problem["message"]
    assert not overview.summary(wrong)["ok"]


def test_a_log_directory_that_has_failed_is_a_problem() -> None:
    failed = LogDirDescription("/disk2", -1, -1, True, "log directory /disk2 has failed")
    sound = LogDirDescription("/disk3", 50, 100, False, "")
    disk = DiskDescription(50, 100, "normal", "", (failed, sound))
    (problem,) = overview.problems(ClusterDescription("c", (replace(UP, disk=disk),), 1, (WELL,)))
    assert problem["kind"] == "disk"
    assert problem["message"] == "broker 1: log directory /disk2 has failed"


def test_a_disk_below_a_watermark_is_a_problem() -> None:
    disk = DiskDescription(1, 100, "no-producers", "producers are refused")
    low = ClusterDescription("c", (replace(UP, disk=disk, clock_error_ms=60_001),), 1, (WELL,))
    clock, problem = overview.problems(low)
    assert (clock["kind"], problem["kind"], problem["broker"]) == ("clock", "disk", 1)
    assert problem["message"] == "broker 1: producers are refused"


def test_an_accepted_loss_is_told_and_is_no_problem_of_now() -> None:
    lost = replace(ALONE, unclean_epoch=1_001, unclean_offset=0)
    summary = overview.summary(ClusterDescription("c", (UP,), 1, (lost,)))
    assert summary["ok"]
    assert summary["losses"] == [
        {"topic": "single", "partition": 0, "leader_epoch": 1_001, "offset": 0}
    ]


@pytest.mark.parametrize(
    ("behind", "text"),
    [([0, 0, 0], "0"), ([], "0"), ([0, 120, 0], "2:120"), ([0, -1, 7], "2:?,3:7")],
)
def test_lag_names_those_that_are_behind(behind: list[int], text: str) -> None:
    replicas = [replica(broker, behind=lack) for broker, lack in enumerate(behind, start=1)]
    assert overview.lag(replicas) == text


def test_chains_are_hexadecimal_in_json() -> None:
    rows = overview.replica_rows([replica(1), replace(replica(2), chain=None)])
    assert [row["chain"] for row in rows] == ["00000000000000ff", None]


@pytest.mark.parametrize(
    ("more", "state", "text"),
    [
        ({}, "equal", ""),
        ({"end_offset": 9}, "unverified", "the copy ends at offset 9"),
        ({"problem": "unreachable"}, "unverified", "unreachable"),
        ({"differs_at": 4}, "differs", "offset 4: not equal"),
        ({"end_offset": 5, "damage": "a flipped bit"}, "corrupt", "offset 5: a flipped bit"),
        ({"end_offset": 5, "is_partial": True}, "partial", ""),
    ],
)
def test_a_verified_copy_has_a_state(more: dict[str, Any], state: str, text: str) -> None:
    copy = replace(CopyVerification(2, 0, 10), **more)
    found, described = overview.copy_state(copy, 10)
    assert (found, described.startswith(text)) == (state, True)
