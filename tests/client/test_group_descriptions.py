"""Answers about groups become plain values."""

from __future__ import annotations

import pytest

from raftlog.client.administration.groups import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionLag,
    group_description,
    group_listing,
    readers,
)
from raftlog.protocol import records
from raftlog.types import TopicPartition

MEMBER = records.MemberDescription(
    member_id="m1",
    instance_id="i1",
    client_id="c1",
    host="10.0.0.7",
    member_epoch=4,
    topics=["t", "u"],
    assigned=[
        records.TopicShare(topic="u", topic_id="u-id", partitions=[3]),
        records.TopicShare(topic="t", topic_id="t-id", partitions=[2, 0]),
    ],
    target=[],
    session_timeout_ms=45_000,
    is_away=True,
)


def test_a_listing() -> None:
    listing = records.GroupListing(group="g", state="stable", members=2)
    assert group_listing(listing, 3) == GroupListing("g", "stable", 2, 3)


def test_a_group() -> None:
    lag = PartitionLag("t", 0, 4)
    described = records.GroupDescription(
        group="g",
        state="reconciling",
        group_epoch=5,
        assignor="uniform",
        coordinator=2,
        members=[MEMBER],
    )
    assigned = (TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 3))
    member = MemberDescription(
        "m1", "i1", "c1", "10.0.0.7", 4, ("t", "u"), assigned, (), 45_000, True
    )
    assert group_description(described, [lag]) == GroupDescription(
        "g", "reconciling", 5, "uniform", 2, (member,), (lag,)
    )
    assert readers([MEMBER]) == dict.fromkeys(assigned, "m1")


@pytest.mark.parametrize(
    ("lags", "total", "longest", "unknown"),
    [
        ([], 0, None, 0),
        ([(None, None)], 0, None, 1),
        ([(3, 1.5), (None, None), (4, 0.5)], 7, 1.5, 1),
        ([(3, None)], 3, None, 0),
    ],
)
def test_the_lag_of_a_group_is_that_of_its_partitions(
    lags: list[tuple[int | None, float | None]], total: int, longest: float | None, unknown: int
) -> None:
    partitions = tuple(
        PartitionLag("t", number, 0, lag=lag, lag_seconds=seconds)
        for number, (lag, seconds) in enumerate(lags)
    )
    group = GroupDescription("g", "empty", 1, "", 1, partitions=partitions)
    assert (group.lag, group.lag_seconds, group.unknown_lags) == (total, longest, unknown)
