"""Where to begin: by what is committed, else by the policy. In virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from raftlog.client.fetcher import Positions
from raftlog.client.settings import OffsetReset
from raftlog.client.subscription import Subscription, Wanted
from raftlog.errors import OffsetOutOfRangeError, RaftlogError, ThrottledError, UnknownTopicError
from raftlog.types import TopicPartition
from tests.client.samples import consumer_settings
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, run

C = TopicPartition("t", 2)


def wanted(subscription: Subscription) -> list[Wanted]:
    return [
        Wanted(part, part.generation, None)
        for part in subscription.parts.values()
        if part.position is None
    ]


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
def test_what_is_committed_comes_first_and_then_the_policy(policy: OffsetReset) -> None:
    async def committed(
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, int | None]:
        return {tp: 3 if tp == A else None for tp in partitions}

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 3)
        for partition in range(3):
            fill(fake, 5, partition=partition)
        subscription = Subscription(consumer_settings(auto_offset_reset=policy), start="committed")
        subscription.assign([A, B])
        subscription.add_assigned({C: "id"}, [C])
        failures = await Positions(cluster_of(fake), subscription, committed).look_up(
            wanted(subscription)
        )
        parts = subscription.parts
        assert (parts[A].position, parts[A].committed) == (3, 3)
        assert (parts[C].position, parts[C].committed) == (0, None), "it is a new one"
        assert parts[B].position == {"earliest": 0, "latest": 5, "error": None}[policy]
        assert [(want.part.tp, type(error)) for want, error in failures] == (
            [(B, OffsetOutOfRangeError)] if policy == "error" else []
        )

    run(test)


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), ThrottledError("later")])
def test_what_cannot_be_asked_for_fails_and_nothing_is_guessed(error: RaftlogError) -> None:
    async def committed(
        _partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, int | None]:
        raise error

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 3)
        subscription = Subscription(consumer_settings(), start="committed")
        subscription.assign([A, B])
        looked_for = wanted(subscription)
        failures = await Positions(cluster_of(fake), subscription, committed).look_up(looked_for)
        assert failures == [(want, error) for want in looked_for]
        assert {part.position for part in subscription.parts.values()} == {None}
        assert {part.reset for part in subscription.parts.values()} == {"committed"}

    run(test)


def test_one_that_was_moved_meanwhile_stays_where_it_is() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", 3)
        subscription = Subscription(consumer_settings(), start="committed")
        subscription.assign([A])

        async def committed(
            _partitions: Sequence[TopicPartition],
        ) -> Mapping[TopicPartition, int | None]:
            subscription.seek(A, 9)
            return {A: 3}

        await Positions(cluster_of(fake), subscription, committed).look_up(wanted(subscription))
        assert subscription.parts[A].position == 9

    run(test)
