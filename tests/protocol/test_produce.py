"""``produce`` and what producers ask for besides: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.records import (
    DescribedProducer,
    DescribedProducers,
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProducersQuery,
)
from tests.protocol.fields import accepted, refused

PART: dict[str, Any] = {"topic": "a", "partition": 0, "length": 100}


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_three_kinds_of_acks(acks: Any) -> None:
    message = accepted(ProduceRequest, {"acks": acks, "partitions": [PART]})
    assert message == ProduceRequest(acks=acks, partitions=[ProducePartition("a", 0, 100)])


@pytest.mark.parametrize("acks", [-2, 2, "all", None])
def test_other_acks_are_refused(acks: Any) -> None:
    refused(ProduceRequest, {"acks": acks, "partitions": [PART]}, path="$.acks")


@pytest.mark.parametrize("count", [0, limits.PARTITIONS_PER_REQUEST_MAX + 1])
def test_a_request_has_some_partitions_and_not_too_many(count: int) -> None:
    refused(ProduceRequest, {"acks": 1, "partitions": [PART] * count}, path="$.partitions")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ""),
        ("partition", -1),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("length", -1),
        ("length", limits.FRAME_BYTES_MAX + 1),
        ("length", 1.0e99),
        ("leader_epoch", -2),
        ("leader_epoch", 1 << 31),
    ],
)
def test_a_partition_is_bounded(name: str, value: Any) -> None:
    wrong = {"acks": 1, "partitions": [PART, {**PART, name: value}]}
    refused(ProduceRequest, wrong, path=f"$.partitions[1].{name}")


def test_each_partition_succeeds_or_fails_by_itself() -> None:
    parts = [
        {"topic": "a", "partition": 0, "base_offset": (1 << 63) - 1},
        {"topic": "a", "partition": 1, "failure": {"code": 2}},
    ]
    message = accepted(ProduceResponse, {"partitions": parts})
    assert isinstance(message, ProduceResponse)
    good, bad = message.partitions
    assert good == ProducedPartition("a", 0, base_offset=(1 << 63) - 1)
    assert bad.failure is not None
    assert bad.base_offset == -1


@pytest.mark.parametrize("name", ["base_offset", "append_timestamp_ms", "log_start_offset"])
@pytest.mark.parametrize("value", [-2, 1 << 63, None])
def test_an_answer_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{"topic": "a", "partition": 0, name: value}]}
    refused(ProduceResponse, wrong, path=f"$.partitions[0].{name}")


def test_a_producer_id_is_asked_for_without_a_word() -> None:
    assert accepted(InitProducerIdRequest, {}) == InitProducerIdRequest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_id", -1),
        ("producer_id", 1 << 63),
        ("producer_epoch", -1),
        ("producer_epoch", 1 << 15),
    ],
)
def test_a_producer_fits_a_batch_header(name: str, value: int) -> None:
    good = {"producer_id": (1 << 63) - 1, "producer_epoch": (1 << 15) - 1}
    accepted(InitProducerIdResponse, good)
    refused(InitProducerIdResponse, {**good, name: value}, path=f"$.{name}")


QUERY: dict[str, Any] = {"topic": "a", "partition": 0, "producer_ids": [1 << 62]}


def test_producers_are_asked_for_by_partition() -> None:
    message = accepted(DescribeProducersRequest, {"partitions": [QUERY]})
    assert message == DescribeProducersRequest([ProducersQuery("a", 0, [1 << 62])])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_ids", []),
        ("producer_ids", [0] * (limits.PRODUCERS_PER_REQUEST_MAX + 1)),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("leader_epoch", -2),
    ],
)
def test_a_question_for_producers_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**QUERY, name: value}]}
    refused(DescribeProducersRequest, wrong, path=f"$.partitions[0].{name}")


@pytest.mark.parametrize("value", [-1, 1 << 63])
def test_the_ids_of_a_question_are_bounded(value: int) -> None:
    wrong = {"partitions": [{**QUERY, "producer_ids": [value]}]}
    refused(DescribeProducersRequest, wrong, path="$.partitions[0].producer_ids[0]")


def test_a_question_has_some_partitions_and_not_too_many() -> None:
    for count in (0, limits.PARTITIONS_PER_REQUEST_MAX + 1):
        refused(DescribeProducersRequest, {"partitions": [QUERY] * count}, path="$.partitions")


def test_what_is_not_known_of_a_producer_is_minus_one() -> None:
    part = {"topic": "a", "partition": 0, "producers": [{"producer_id": 5}]}
    message = accepted(DescribeProducersResponse, {"partitions": [part]})
    assert message == DescribeProducersResponse(
        [DescribedProducers("a", 0, None, [DescribedProducer(5, -1, -1, -1)])]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_id", -1),
        ("producer_epoch", -2),
        ("producer_epoch", 1 << 15),
        ("last_sequence", -2),
        ("last_sequence", 1 << 31),
        ("last_offset", -2),
    ],
)
def test_what_is_told_of_a_producer_is_bounded(name: str, value: int) -> None:
    part = {"topic": "a", "partition": 0, "producers": [{"producer_id": 5, name: value}]}
    refused(
        DescribeProducersResponse,
        {"partitions": [part]},
        path=f"$.partitions[0].producers[0].{name}",
    )
