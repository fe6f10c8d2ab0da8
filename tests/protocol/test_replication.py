"""Between brokers, of partitions: the bounds in the fields of requests and responses."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.peer import (
    PARTITION_STATE_BYTES_MAX,
    DescribeCopiesRequest,
    DescribeCopiesResponse,
    PartitionStatesRequest,
    ReplicaFetched,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPosition,
    ReplicaProgressRequest,
)
from raftlog.protocol.schema import Message
from tests.protocol.fields import accepted, refused

MOST = limits.PARTITIONS_PER_REQUEST_MAX
KEY: dict[str, Any] = {"topic_id": "t", "partition": 0}
POSITION = {**KEY, "leader_epoch": 4, "fetch_offset": 9, "last_epoch": -1, "durable_offset": 7}
DURABLE = {**KEY, "leader_epoch": 4, "durable_offset": 7}
STATE = {**KEY, "version": 3, "state": b"s"}


def test_a_fetch_has_defaults_that_wait_half_a_second() -> None:
    message = accepted(ReplicaFetchRequest, {"partitions": [POSITION], "full": True})
    assert message == ReplicaFetchRequest(
        partitions=[ReplicaPosition("t", 0, 4, 9, -1, 7, bytes_max=limits.MIB)],
        full=True,
        forgotten=[],
        wait_ms_max=500,
        bytes_min=1,
        bytes_max=limits.FETCH_BYTES_MAX,
    )


def test_a_fetch_says_whether_it_is_full() -> None:
    refused(ReplicaFetchRequest, {"partitions": []}, path="full")
    accepted(ReplicaFetchRequest, {"partitions": [], "full": False})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", [POSITION] * (MOST + 1)),
        ("forgotten", [KEY] * (MOST + 1)),
        ("wait_ms_max", limits.FETCH_WAIT_MS_MAX + 1),
        ("bytes_min", -1),
        ("bytes_max", limits.FRAME_BYTES_MAX + 1),
    ],
)
def test_a_fetch_is_bounded(name: str, value: Any) -> None:
    good = {"partitions": [], "full": True}
    refused(ReplicaFetchRequest, {**good, name: value}, path=f"$.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic_id", ""),
        ("topic_id", "x" * (limits.ID_CHARS_MAX + 1)),
        ("partition", -1),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("leader_epoch", -1),
        ("leader_epoch", 1 << 31),
        ("fetch_offset", -1),
        ("fetch_offset", 1 << 63),
        ("last_epoch", -2),
        ("durable_offset", -1),
        ("bytes_max", -1),
    ],
)
def test_a_position_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**POSITION, name: value}], "full": True}
    refused(ReplicaFetchRequest, wrong, path=f"$.partitions[0].{name}")


def test_an_answer_has_batches_or_a_way_back_or_a_failure() -> None:
    parts = [
        {**KEY, "leader_epoch": 4, "high_watermark": 9, "log_start_offset": 0, "length": 100},
        {**KEY, "diverged": {"epoch": 3, "end_offset": 8}},
        {**KEY, "restart_at": 0},
        {**KEY, "failure": {"code": 6}},
    ]
    message = accepted(ReplicaFetchResponse, {"partitions": parts})
    assert isinstance(message, ReplicaFetchResponse)
    batches, diverged, restart, failed = message.partitions
    assert batches == ReplicaFetched(
        "t", 0, leader_epoch=4, high_watermark=9, log_start_offset=0, length=100
    )
    assert diverged.diverged is not None
    assert (diverged.diverged.epoch, diverged.diverged.end_offset) == (3, 8)
    assert (restart.restart_at, batches.restart_at) == (0, None), "offset 0 is not none at all"
    assert failed.failure is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leader_epoch", -2),
        ("high_watermark", -2),
        ("log_start_offset", 1 << 63),
        ("restart_at", -1),
        ("length", limits.FRAME_BYTES_MAX + 1),
        ("topic_id", ""),
    ],
)
def test_an_answer_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**KEY, name: value}]}
    refused(ReplicaFetchResponse, wrong, path=f"$.partitions[0].{name}")


@pytest.mark.parametrize(("name", "value"), [("epoch", -2), ("end_offset", -2)])
def test_a_divergence_is_bounded(name: str, value: int) -> None:
    point = {"epoch": 3, "end_offset": 8, name: value}
    wrong = {"partitions": [{**KEY, "diverged": point}]}
    refused(ReplicaFetchResponse, wrong, path=f"$.partitions[0].diverged.{name}")


# Each one-way request, the list in it, and one good item of that list.
ONE_WAY: list[tuple[type[Message], str, dict[str, Any]]] = [
    (ReplicaProgressRequest, "partitions", DURABLE),
    (PartitionStatesRequest, "states", STATE),
]


@pytest.mark.parametrize(("request_type", "name", "item"), ONE_WAY)
def test_what_is_told_is_not_too_much_at_once(
    request_type: type[Message], name: str, item: dict[str, Any]
) -> None:
    accepted(request_type, {name: []})
    accepted(request_type, {name: [item] * MOST})
    refused(request_type, {name: [item] * (MOST + 1)}, path=f"$.{name}")


@pytest.mark.parametrize(
    ("request_type", "list_name", "item", "name", "value"),
    [
        (ReplicaProgressRequest, "partitions", DURABLE, "leader_epoch", -1),
        (ReplicaProgressRequest, "partitions", DURABLE, "durable_offset", -1),
        (ReplicaProgressRequest, "partitions", DURABLE, "topic_id", ""),
        (PartitionStatesRequest, "states", STATE, "version", -1),
        (PartitionStatesRequest, "states", STATE, "state", "text"),
        (PartitionStatesRequest, "states", STATE, "state", bytes(PARTITION_STATE_BYTES_MAX + 1)),
        (PartitionStatesRequest, "states", STATE, "partition", -1),
    ],
)
def test_what_is_told_is_bounded(
    request_type: type[Message], list_name: str, item: dict[str, Any], name: str, value: Any
) -> None:
    wrong = {list_name: [{**item, name: value}]}
    refused(request_type, wrong, path=f"$.{list_name}[0].{name}")


COPY = {**KEY, "end_offset": 7, "last_epoch": -1, "standing": 2, "version": 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [("end_offset", -1), ("last_epoch", -2), ("standing", 3), ("standing", -1), ("version", -1)],
)
def test_what_is_said_of_copies_is_bounded(name: str, value: int) -> None:
    accepted(DescribeCopiesRequest, {"partitions": [KEY] * MOST})
    refused(DescribeCopiesRequest, {"partitions": [KEY] * (MOST + 1)}, path="$.partitions")
    facts = {"directory_id": "d", "boot": 1}
    accepted(DescribeCopiesResponse, {**facts, "copies": [COPY]})
    wrong = {**facts, "copies": [{**COPY, name: value}]}
    refused(DescribeCopiesResponse, wrong, path=f"$.copies[0].{name}")
