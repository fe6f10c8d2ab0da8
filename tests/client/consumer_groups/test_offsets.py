"""Offsets that users pass, and what the coordinator has. In virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.client.groups import coordinator
from raftlog.client.groups.coordinator import Coordinators, check_ends, check_offsets, fetch_offsets
from raftlog.errors import InvalidRequestError, UnknownTopicError
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    FetchedOffset,
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.types import OffsetAndMetadata, TopicPartition
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, answer_with, run
from tests.running import runs


def test_offsets_are_taken_as_numbers_or_with_a_note() -> None:
    noted = OffsetAndMetadata(7, "x" * limits.OFFSET_METADATA_CHARS_MAX, 3)
    assert check_offsets({A: 5, ("t", 1): noted}) == {A: OffsetAndMetadata(5), B: noted}
    assert check_offsets({}) == {}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([A], TypeError),
        ({"t:0": 1}, TypeError),
        ({A: "1"}, TypeError),
        ({A: None}, TypeError),
        ({A: True}, TypeError),
        ({A: 1.0}, TypeError),
        ({A: -1}, InvalidRequestError),
        ({A: limits.OFFSET_MAX + 1}, InvalidRequestError),
        ({("t", -1): 1}, InvalidRequestError),
        ({A: OffsetAndMetadata(1, 5)}, TypeError),  # type: ignore[arg-type]
        ({A: OffsetAndMetadata(1, "", -2)}, InvalidRequestError),
        (
            {A: OffsetAndMetadata(1, "x" * (limits.OFFSET_METADATA_CHARS_MAX + 1))},
            InvalidRequestError,
        ),
    ],
)
def test_what_is_no_offset_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_offsets(given)


@runs(run)
async def test_ends_are_looked_up_only_where_they_are_not_known(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 5)
    cluster = cluster_of(fake)
    await check_ends(cluster, check_offsets({A: 4, B: 0}), known={A: 4})
    assert not fake.asked(ListOffsetsRequest)
    await check_ends(cluster, check_offsets({A: 5, B: 0}), known={A: 4})
    assert len(fake.asked(ListOffsetsRequest)) == 1
    with pytest.raises(InvalidRequestError, match="t:1: offset 1 is beyond the end offset 0"):
        await check_ends(cluster, check_offsets({A: 4, B: 1}), known={A: 4})
    with pytest.raises(UnknownTopicError):
        await check_ends(cluster, check_offsets({("nope", 0): 0}), known={})


def test_committed_offsets_come_in_as_many_requests_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "_STEP", 2)

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 5)
        FakeCoordinator(fake)
        partitions = [TopicPartition("t", number) for number in range(5)]
        coordinators = Coordinators(cluster_of(fake))
        found = await fetch_offsets(coordinators, "g", partitions)
        assert found == dict.fromkeys(partitions)
        assert len(fake.asked(OffsetFetchRequest)) == 3
        assert await fetch_offsets(coordinators, "g", []) == {}

    run(test)


@runs(run)
async def test_one_that_cannot_be_had_is_told(fake: FakeCluster) -> None:
    FakeCoordinator(fake)
    failure = Failure.of(UnknownTopicError("no such topic"))
    fake.next(
        apis.OFFSET_FETCH,
        answer_with(
            OffsetFetchResponse(offsets=[FetchedOffset(topic="t", partition=0, failure=failure)])
        ),
    )
    with pytest.raises(UnknownTopicError):
        await fetch_offsets(Coordinators(cluster_of(fake)), "g", [A])
