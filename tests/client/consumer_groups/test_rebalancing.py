"""Giving partitions up and taking them over, callbacks, and the end. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from raftlog.client.groups import member
from raftlog.client.groups.member import run_now
from raftlog.errors import (
    ClosedError,
    FencedMemberError,
    InstanceFencedError,
    InvalidRequestError,
    RaftlogError,
)
from raftlog.types import TopicPartition
from tests.client.consumer_groups.consuming import Story, consumer_of, filled, some, until
from tests.client.interrupts import interrupted
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, run
from tests.running import runs


@runs(run)
async def test_two_members_share_and_one_takes_over_what_the_other_leaves(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    one, two = consumer_of(fake), consumer_of(fake)
    story = Story()
    await one.subscribe(["t"], **story.callbacks)
    await some(one, 2)
    await two.subscribe(["t"])
    await two.poll(10)
    assert await two.assignment() == set(), "the other has not given it up"
    await until(lambda: story.told[-1][0] == "revoke", one)
    kept = await one.assignment()
    await until(lambda: len(two._subscription.parts) == 1, two)
    assert await two.assignment() == {A, B} - kept
    assert [what for what, _ in story.told] == ["assign", "revoke"]
    await two.close()
    await until(lambda: len(one._subscription.parts) == 2, one)
    assert story.told[-1] == ("assign", story.told[1][1]), "what it had given up"
    await one.close()
    assert set(groups.committed()) == {A, B}


@runs(run)
async def test_what_is_kept_in_a_rebalance_goes_on_from_where_it_is(fake: FakeCluster) -> None:
    filled(fake, 5, 5)
    fill(fake, 5, 5, partition=1)
    one, two = consumer_of(fake, auto_commit=False), consumer_of(fake)
    await one.subscribe(["t"])
    seen = [(record.partition, record.offset) for record in await one.poll(max_records=4)]
    parts = dict(one._subscription.parts)
    await two.subscribe(["t"])
    while len(parts) == 2 and await one.assignment() == set(parts):
        seen += [(r.partition, r.offset) for r in await one.poll(10, max_records=1)]
    (kept,) = await one.assignment()
    assert one._subscription.parts[kept] is parts[kept]
    seen += [(record.partition, record.offset) for record in await one.poll(10, 99)]
    for partition in (0, 1):
        offsets = [offset for at, offset in seen if at == partition]
        assert offsets == list(range(len(offsets)))
    await one.close()
    await two.close()


@runs(run)
async def test_a_subscription_is_changed_by_another_one(fake: FakeCluster) -> None:
    groups = filled(fake)
    fake.create("u", 1)
    groups.know_topics()
    story = Story()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **story.callbacks)
        await some(consumer, 2)
        await consumer.subscribe(["u"], **story.callbacks)
        u = TopicPartition("u", 0)
        await until(lambda: set(consumer._subscription.parts) == {u}, consumer)
        assert groups.committed()[A] == 2
        assert story.told == [("assign", [0, 1]), ("revoke", [0, 1]), ("assign", [0])]
        await consumer.unsubscribe()
        assert story.told[-1] == ("revoke", [0])
        assert groups.members() == {}
        with pytest.raises(InvalidRequestError, match="subscribe"):
            await consumer.poll(0)
        await consumer.subscribe(["t"])
        assert await some(consumer) == [2]


@runs(run)
async def test_a_callback_that_raises_is_heard_and_the_rebalance_goes_on(fake: FakeCluster) -> None:
    groups = filled(fake)

    async def bad(_partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    one, two = consumer_of(fake), consumer_of(fake)
    await one.subscribe(["t"], on_assign=bad, on_revoke=bad)
    with pytest.raises(ZeroDivisionError):
        await some(one)
    assert await some(one) == [0]
    await two.subscribe(["t"])
    with pytest.raises(ZeroDivisionError):
        await until(lambda: False, one)
    await until(lambda: len(two._subscription.parts) == 1, two)
    with pytest.raises(ZeroDivisionError):
        await one.close()
    assert len(groups.members()) == 1
    await two.close()


@runs(run)
async def test_a_callback_may_commit_and_look_and_seek_and_not_poll(fake: FakeCluster) -> None:
    groups = filled(fake)
    consumer = consumer_of(fake, auto_commit=False)
    problems: list[Exception] = []

    async def begin(partitions: list[TopicPartition]) -> None:
        await consumer.seek(A, 2)
        try:
            await consumer.poll(0)
        except InvalidRequestError as error:
            problems.append(error)
        assert partitions == [A, B]

    async def end(_partitions: list[TopicPartition]) -> None:
        assert await consumer.position(A) == 3
        await consumer.commit()

    await consumer.subscribe(["t"], on_assign=begin, on_revoke=end)
    assert await some(consumer) == [2]
    await consumer.close()
    assert groups.committed()[A] == 3
    assert len(problems) == 1


@runs(run)
async def test_static_members_keep_their_partitions_over_a_restart(fake: FakeCluster) -> None:
    groups = filled(fake)
    one = consumer_of(fake, group_instance_id="one")
    two = consumer_of(fake, group_instance_id="two")
    story = Story()
    for consumer in (one, two):
        await consumer.subscribe(["t"], **story.callbacks)
        await consumer.poll(10)
    await until(lambda: len(one._subscription.parts) == 1, one)
    await until(lambda: len(two._subscription.parts) == 1, two)
    mine, before = await one.assignment(), list(story.told)
    await one.close()
    await asyncio.sleep(20)
    assert await two.poll(10) is not None
    one = consumer_of(fake, group_instance_id="one")
    await one.subscribe(["t"])
    await one.poll(100)
    assert await one.assignment() == mine
    await two.poll(100)
    assert story.told == [*before, ("revoke", [tp.partition for tp in mine])]
    await one.close()
    await asyncio.sleep(46)
    await until(lambda: len(two._subscription.parts) == 2, two)
    await two.close()
    assert groups.shard.describe("g").members[0].is_away


@runs(run)
async def test_a_second_one_of_an_instance_takes_over_and_the_first_is_told_for_good(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    old, new = (consumer_of(fake, group_instance_id="one") for _ in range(2))
    story = Story()
    await old.subscribe(["t"], **story.callbacks)
    await some(old, 1)
    await new.subscribe(["t"])
    await some(new, 1)
    assert await new.assignment() == {A, B}
    for _ in range(2):
        with pytest.raises(InstanceFencedError):
            await some(old)
    with pytest.raises(RaftlogError):
        await old.commit({A: 0})
    assert story.told[-1] == ("lost", [0, 1])
    await old.close()
    assert list(groups.members()) == [new.group_metadata().member_id]
    await new.close()


@runs(run)
async def test_two_tasks_at_once_are_told(fake: FakeCluster) -> None:
    filled(fake)
    consumer = consumer_of(fake, auto_offset_reset="latest")
    await consumer.subscribe(["t"])
    polling = asyncio.ensure_future(consumer.poll(5_000))
    await asyncio.sleep(1)
    calls: list[Callable[[], Awaitable[Any]]] = [
        consumer.poll,
        consumer.commit,
        consumer.unsubscribe,
        lambda: consumer.seek(A, 0),
    ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match="at the same time"):
            await call()
    await consumer.commit({A: 1})
    await consumer.close()
    with pytest.raises(ClosedError):
        await polling


@runs(run)
async def test_closed_by_another_task_only_what_is_processed_is_committed(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    consumer = consumer_of(fake)
    await consumer.subscribe(["t"])
    await some(consumer, 1)
    await some(consumer, 2)
    await asyncio.ensure_future(consumer.close())
    assert groups.committed()[A] == 1
    for use in (consumer.poll, consumer.commit, lambda: consumer.committed(A)):
        with pytest.raises(ClosedError):
            await use()
    with pytest.raises(ClosedError):
        consumer.commit_async()


@runs(run)
async def test_who_closes_what_another_task_is_closing_waits_for_that(fake: FakeCluster) -> None:
    groups = filled(fake)
    consumer = consumer_of(fake)
    await consumer.subscribe(["t"])
    await some(consumer, 2)
    slow = asyncio.Event()
    closing: list[asyncio.Task[None]] = []

    async def finish(_partitions: list[TopicPartition]) -> None:
        await consumer.close()  # within the task that closes: of no effect
        await slow.wait()

    async def program() -> None:
        async with consumer:
            await consumer.subscribe(["t"], on_revoke=finish)
            closing.append(asyncio.ensure_future(consumer.close()))
            await consumer.poll(60_000, 1)
            await consumer.poll(60_000, 1)

    running = asyncio.ensure_future(program())
    await asyncio.sleep(1)
    assert not running.done()
    slow.set()
    with pytest.raises(ClosedError):
        await running
    assert closing[0].done()
    assert A in groups.committed()
    await consumer.close()


@runs(run)
async def test_closing_takes_no_longer_than_it_may(fake: FakeCluster) -> None:
    filled(fake)
    consumer = consumer_of(fake)
    await consumer.subscribe(["t"])
    await some(consumer, 1)
    pending = consumer.commit_async({A: 1})
    fake.pause(1)
    late = consumer.commit_async({A: 0})
    start = asyncio.get_running_loop().time()
    await consumer.close(timeout_ms=2_000)
    assert asyncio.get_running_loop().time() - start < 4
    for future in (pending, late):
        with pytest.raises(RaftlogError):
            await future


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("kind", ["assign", "revoke", "lose"])
def test_ctrl_c_anywhere_in_a_rebalance_and_it_goes_on(kind: str) -> None:
    """Wherever it comes: in the end all partitions are read, and nothing twice."""

    async def test(fake: FakeCluster, at: int) -> bool:
        groups = filled(fake)
        one, two = consumer_of(fake), consumer_of(fake)
        await one.subscribe(["t"])
        assert one._rebalancer is not None
        assert one._member is not None
        if kind != "assign":
            await until(lambda: len(one._subscription.parts) == 2, one)
        if kind == "revoke":
            await two.subscribe(["t"])
        if kind == "lose":
            one._member.membership.fenced(FencedMemberError("old"), incarnation=1)
        await until(lambda: one._member is not None and one._member.membership.pending)
        work = partial(run_now, one._rebalancer.attend())
        was_cut = interrupted(at, work, member, member, member)
        assert one._member.membership.lock.acquire(blocking=False), "the lock is free"
        one._member.membership.lock.release()
        await one.poll(100, 1)
        wanted = 1 if kind == "revoke" else 2
        await until(lambda: len(one._subscription.parts) == wanted, one)
        if kind == "revoke":
            await until(lambda: len(two._subscription.parts) == 1, two)
        had, releasing = one._member.membership.holdings()
        assert (set(had), releasing) == (set(one._subscription.parts), {})
        assert groups.members()[one.group_metadata().member_id] == set(one._subscription.parts)
        assert not one._member.membership.pending
        await one.close()
        await two.close()
        return was_cut

    at = 1
    while run(partial(test, at=at)):
        at += 1
    assert at > 10
