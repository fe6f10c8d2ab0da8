"""``fetch`` and ``list_offsets``: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.records import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetQuery,
)
from tests.protocol.fields import accepted, refused

PART: dict[str, Any] = {"topic": "a", "partition": 0, "offset": 0}
QUERY: dict[str, Any] = {"topic": "a", "partition": 0, "at": 0}


def test_a_fetch_has_defaults_that_wait_half_a_second() -> None:
    message = accepted(FetchRequest, {"partitions": [PART]})
    assert message == FetchRequest(
        partitions=[FetchPartition("a", 0, 0, bytes_max=limits.MIB)],
        wait_ms_max=500,
        bytes_min=1,
        bytes_max=limits.FETCH_BYTES_MAX,
        replica_ok=False,
    )


def test_a_client_may_know_no_leader_epoch() -> None:
    message = accepted(FetchRequest, {"partitions": [PART]})
    assert isinstance(message, FetchRequest)
    assert message.partitions[0].leader_epoch == -1
    asked = accepted(ListOffsetsRequest, {"queries": [QUERY, {**QUERY, "leader_epoch": 0}]})
    assert isinstance(asked, ListOffsetsRequest)
    assert [query.leader_epoch for query in asked.queries] == [-1, 0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wait_ms_max", -1),
        ("wait_ms_max", limits.FETCH_WAIT_MS_MAX + 1),
        ("bytes_min", -1),
        ("bytes_max", limits.FRAME_BYTES_MAX + 1),
        ("partitions", []),
        ("partitions", [PART] * (limits.PARTITIONS_PER_REQUEST_MAX + 1)),
    ],
)
def test_a_fetch_is_bounded(name: str, value: Any) -> None:
    refused(FetchRequest, {"partitions": [PART], name: value}, path=f"$.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ""),
        ("partition", -1),
        ("offset", -1),
        ("offset", 1 << 63),
        ("bytes_max", -1),
        ("leader_epoch", -2),
        ("leader_epoch", 1 << 31),
    ],
)
def test_a_partition_of_a_fetch_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**PART, name: value}]}
    refused(FetchRequest, wrong, path=f"$.partitions[0].{name}")


def test_a_fetched_partition_has_a_length_or_a_failure() -> None:
    parts = [
        {"topic": "a", "partition": 0, "high_watermark": 9, "length": limits.FRAME_BYTES_MAX},
        {"topic": "a", "partition": 1, "failure": {"code": 211}},
    ]
    message = accepted(FetchResponse, {"partitions": parts})
    assert isinstance(message, FetchResponse)
    good, bad = message.partitions
    assert good == FetchedPartition("a", 0, high_watermark=9, length=limits.FRAME_BYTES_MAX)
    assert (bad.length, bad.high_watermark) == (0, -1)


@pytest.mark.parametrize(
    ("name", "value"), [("length", -1), ("high_watermark", -2), ("log_start_offset", 1 << 63)]
)
def test_a_fetched_partition_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{"topic": "a", "partition": 0, name: value}]}
    refused(FetchResponse, wrong, path=f"$.partitions[0].{name}")


@pytest.mark.parametrize("at", ["earliest", "latest", 0, (1 << 63) - 1])
def test_offsets_are_asked_for_by_end_or_by_time(at: Any) -> None:
    message = accepted(ListOffsetsRequest, {"queries": [{**QUERY, "at": at}]})
    assert message == ListOffsetsRequest([OffsetQuery("a", 0, at)])


@pytest.mark.parametrize("at", ["", "newest", -1, 1 << 63, None, 1.5])
def test_other_places_are_refused(at: Any) -> None:
    refused(ListOffsetsRequest, {"queries": [QUERY, {**QUERY, "at": at}]}, path="$.queries[1].at")


@pytest.mark.parametrize("leader_epoch", [-2, 1 << 31, None])
def test_the_epoch_of_a_query_is_bounded(leader_epoch: Any) -> None:
    wrong = {"queries": [{**QUERY, "leader_epoch": leader_epoch}]}
    refused(ListOffsetsRequest, wrong, path="$.queries[0].leader_epoch")


@pytest.mark.parametrize("count", [0, limits.PARTITIONS_PER_REQUEST_MAX + 1])
def test_there_are_some_queries_and_not_too_many(count: int) -> None:
    refused(ListOffsetsRequest, {"queries": [QUERY] * count}, path="$.queries")


@pytest.mark.parametrize(
    ("name", "value"), [("offset", -2), ("timestamp_ms", 1 << 63), ("leader_epoch", 1 << 31)]
)
def test_an_offset_answer_is_bounded(name: str, value: int) -> None:
    wrong = {"answers": [{"topic": "a", "partition": 0, name: value}]}
    refused(ListOffsetsResponse, wrong, path=f"$.answers[0].{name}")
