"""The asynchronous admin client's calls about groups: what they refuse, and what they pass on."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.errors import (
    ClosedError,
    InvalidGroupError,
    InvalidRequestError,
    OffsetOutOfRangeError,
)
from raftlog.protocol.groups import OffsetCommitRequest
from raftlog.types import OffsetAndMetadata, TopicPartition
from tests.client.groups.coordinated import Coordination
from tests.client.test_fetcher import fill
from tests.client.world import FakeCluster, run

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def admin_of(fake: FakeCluster) -> AsyncAdmin:
    return AsyncAdmin(fake.bootstrap, host=fake.host)


def test_every_call() -> None:
    async def test(fake: FakeCluster) -> None:
        world = Coordination(fake)
        fake.create("t", 2)
        fill(fake, 10)
        async with admin_of(fake) as admin:
            await admin.alter_group_offsets("g", {A: 4, B: OffsetAndMetadata(0, "own")})
            await admin.commit_offsets("g", {A: 5}, metadata="note")
            assert await admin.group_offsets("g") == {
                A: OffsetAndMetadata(5, "note", 3),
                B: OffsetAndMetadata(0, "own", 3),
            }
            assert [row.group for row in await admin.list_groups()] == ["g"]
            (described,) = await admin.describe_groups(["g", "g"])
            # The fake's records are 1,000 s old when its loop starts.
            assert (described.lag, described.lag_seconds) == (5, 1_000.0)
            await admin.delete_group_offsets("g", [B, B])
            assert list(await admin.group_offsets("g")) == [A]
            await admin.delete_groups(["g"])
            assert not world.groups
        with pytest.raises(ClosedError):
            await admin.list_groups()

    run(test)


def test_an_offset_out_of_range_changes_nothing() -> None:
    async def test(fake: FakeCluster) -> None:
        world = Coordination(fake)
        fake.create("t", 2)
        fill(fake, 10)
        async with admin_of(fake) as admin:
            with pytest.raises(OffsetOutOfRangeError, match="t:1, which has 0 to 0"):
                await admin.alter_group_offsets("g", {A: 4, B: 1})
            assert not fake.asked(OffsetCommitRequest)
            # A program that keeps its place elsewhere is taken at its word.
            await admin.commit_offsets("g", {B: 1})
            assert world.groups["g"].offsets[B].offset == 1

    run(test)


@pytest.mark.parametrize("name", ["", "x" * 300, "two\nlines", " g"])
def test_a_name_that_is_none_is_refused_before_anything_is_asked(name: str) -> None:
    async def test(fake: FakeCluster) -> None:
        async with admin_of(fake) as admin:
            for refused in (
                admin.describe_groups([name]),
                admin.delete_groups([name]),
                admin.delete_group_offsets(name, [A]),
                admin.group_offsets(name),
                admin.alter_group_offsets(name, {A: 1}),
                admin.commit_offsets(name, {A: 1}),
            ):
                with pytest.raises(InvalidGroupError, match="is not a name of a consumer group"):
                    await refused
        assert not fake.connects

    run(test)


@pytest.mark.parametrize(
    ("groups", "message"),
    [("g", "a list of names"), (b"g", "a list of names"), ([7], "is a text")],
)
def test_names_are_a_list_of_texts(groups: Any, message: str) -> None:
    async def test(fake: FakeCluster) -> None:
        async with admin_of(fake) as admin:
            with pytest.raises(TypeError, match=message):
                await admin.describe_groups(groups)
            with pytest.raises(TypeError, match=message):
                await admin.delete_groups(groups)

    run(test)


@pytest.mark.parametrize(
    ("offsets", "metadata", "error", "message"),
    [
        ([A], "", TypeError, "a dict of TopicPartition"),
        ({"t": 1}, "", TypeError, "TopicPartition"),
        ({A: "1"}, "", TypeError, "offset='1'"),
        ({A: -1}, "", InvalidRequestError, "offset=-1"),
        ({A: OffsetAndMetadata(1, leader_epoch=-2)}, "", InvalidRequestError, "leader_epoch=-2"),
        ({A: 1}, b"note", TypeError, "metadata=b'note'"),
        ({A: 1}, "x" * 4_097, InvalidRequestError, "4097 characters: up to 4096"),
        ({A: OffsetAndMetadata(1, "x" * 5_000)}, "", InvalidRequestError, "5000 characters"),
    ],
)
def test_offsets_are_checked(
    offsets: Any, metadata: Any, error: type[Exception], message: str
) -> None:
    async def test(fake: FakeCluster) -> None:
        async with admin_of(fake) as admin:
            with pytest.raises(error, match=message):
                await admin.commit_offsets("g", offsets, metadata=metadata)
            with pytest.raises(error, match=message):
                await admin.alter_group_offsets("g", offsets, metadata=metadata)
        assert not fake.connects

    run(test)
