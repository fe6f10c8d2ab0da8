"""``produce`` and ``init_producer_id``: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
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
