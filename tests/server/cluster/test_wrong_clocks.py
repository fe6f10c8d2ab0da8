"""Whole clusters whose wall clocks are wrong: what is kept stays, and what expires does expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncProducer
from raftlog.consumer_groups import shard
from raftlog.limits import CLOCK_SETTLE_S
from raftlog.record import decode_lists, split
from raftlog.storage import Log
from raftlog.testing.simulator.world import CLUSTER_SECRET, ClientMachine, World, start_broker
from raftlog.types import NewTopic
from tests.server.cluster.simulated import Cluster, growing_world
from tests.server.consumer_groups.simulated import GroupCluster

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
CHECK_S = 5.0  # some rounds of retention
CHECK_GROUPS_MS = 2_000


def play(test: Callable[[Cluster], None], *, seed: int = 1, brokers: int = 3) -> None:
    starting = partial(start_broker, cleaner_interval_ms=100)
    with World(seed, brokers=brokers, make_broker=starting) as world:
        test(Cluster(world))


def create(cluster: Cluster, **config: str) -> None:
    topic = NewTopic("t", 1, 3, {name.replace("_", "."): value for name, value in config.items()})
    cluster.admin(lambda admin: admin.create_topics([topic]))
    cluster.in_sync(1, {1, 2, 3})


def jump(cluster: Cluster, broker: int, by_ms: int) -> None:
    cluster.world.brokers[broker - 1].wall_offset_ms += by_ms


def log_of(cluster: Cluster, number: int, partition: int = 0) -> Log:
    topic = cluster.node(number).machine.topics["t"]
    hosted = cluster.node(number).partitions.find(topic.id, partition)
    assert hosted is not None
    assert hosted.host is not None
    return hosted.host.log


def lead(cluster: Cluster, number: int) -> None:
    if cluster.leader(number) != number:

        async def run(machine: ClientMachine) -> None:
            async with AsyncAdmin(
                cluster.world.bootstrap, cluster_secret=CLUSTER_SECRET, host=machine.host()
            ) as admin:
                await admin.transfer_leader("t", 0, number)

        cluster.client(run)
    cluster.until(lambda: cluster.state(number).leader == number)


def log_starts(cluster: Cluster) -> list[int]:
    return [log_of(cluster, number).log_start_offset for number in (1, 2, 3)]


def test_a_wrong_clock_shows_in_the_clusters_description() -> None:
    def test(cluster: Cluster) -> None:
        create(cluster)
        jump(cluster, 2, 8 * DAY_MS)
        cluster.world.run_for(CHECK_S)
        found: dict[int, int] = {}

        async def run(machine: ClientMachine) -> None:
            async with AsyncAdmin(cluster.world.bootstrap, host=machine.host()) as admin:
                for broker in (await admin.describe_cluster()).brokers:
                    found[broker.id] = broker.clock_error_ms

        cluster.client(run)
        assert found[1] == found[3] == 0
        assert abs(found[2] - 8 * DAY_MS) < 60_000

    play(test)


@pytest.mark.parametrize("by_ms", [8 * DAY_MS, -10 * DAY_MS])
def test_no_broker_deletes_records_because_one_clock_steps(by_ms: int) -> None:
    """Each in turn, the leader as well; records of the time of the step have their full time."""

    def test(cluster: Cluster) -> None:
        create(cluster, segment_bytes="16384")
        for number in (1, 2, 3):
            cluster.send(b"before %d" % number)
            jump(cluster, number, by_ms)
            cluster.send(b"at %d" % number)
            cluster.world.run_for(CHECK_S)
            jump(cluster, number, -by_ms)
            cluster.world.run_for(CHECK_S)
        assert log_starts(cluster) == [0, 0, 0]
        assert len(cluster.read(6)) == 6

    play(test)


def test_of_two_brokers_neither_clock_deletes_records() -> None:
    """The first one alone has a vote in the group of the cluster. Its clock is wrong."""
    with growing_world(1, brokers=2, founders=1) as world:
        cluster = Cluster(world)
        cluster.join(2)
        config = {"retention.ms": str(7 * DAY_MS), "segment.bytes": "16384"}
        cluster.admin(lambda admin: admin.create_topics([NewTopic("t", 2, 2, config)]))
        cluster.in_sync(1, {1, 2})
        led_by_2 = next(number for number in (0, 1) if cluster.leader(1, number) == 2)
        chance = Random(1)
        for _ in range(5):
            values = [chance.randbytes(1_000) for _ in range(20)]
            cluster.send(*values, partition=led_by_2)
        logs = [log_of(cluster, number, led_by_2) for number in (1, 2)]
        assert [log.segment_count > 1 for log in logs] == [True, True]
        jump(cluster, 1, 8 * DAY_MS)
        world.run_for(CLOCK_SETTLE_S + 400)  # and a round of retention
        assert [log.log_start_offset for log in logs] == [0, 0]


def test_no_broker_deletes_records_because_it_starts_with_a_wrong_clock() -> None:
    def test(cluster: Cluster) -> None:
        create(cluster)
        cluster.send(b"kept")
        for number in (1, 2, 3):
            cluster.stop(number)
            jump(cluster, number, 8 * DAY_MS)
            cluster.start(number)
            cluster.world.run_for(CHECK_S)
            cluster.in_sync(number, {1, 2, 3})
            lead(cluster, number)
            cluster.world.run_for(CHECK_S)
            jump(cluster, number, -8 * DAY_MS)
        assert log_starts(cluster) == [0, 0, 0]

    play(test)


def test_retention_goes_on_while_one_clock_is_behind() -> None:
    def test(cluster: Cluster) -> None:
        create(cluster, retention_ms="60000")
        cluster.send(b"expires")
        jump(cluster, cluster.leader(1), -10 * DAY_MS)
        cluster.world.run_for(50)
        assert log_starts(cluster) == [0, 0, 0]
        cluster.world.run_for(40)
        assert log_starts(cluster) == [1, 1, 1]

    play(test)


def test_a_producer_writes_on_after_its_leaders_clock_was_behind() -> None:
    """Its batches must not look so old that the broker forgets its sequence."""

    def test(cluster: Cluster) -> None:
        create(cluster)
        leader = cluster.leader(1)

        async def run(machine: ClientMachine) -> list[int]:
            producer = AsyncProducer(cluster.world.bootstrap, host=machine.host())
            found = []
            for by_ms in (-10 * DAY_MS, 0):
                jump(cluster, leader, by_ms)
                future = await producer.send("t", b"x", partition=0)
                await producer.flush()
                found.append(future.result().offset)
                jump(cluster, leader, -by_ms)
                await asyncio.sleep(CHECK_S)
            await producer.close()
            return found

        assert cluster.client(run) == [0, 1]

    play(test)


def test_committed_offsets_stay_when_their_coordinators_clock_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard, "CHECK_MS_MAX", CHECK_GROUPS_MS)

    def test(cluster: Cluster) -> None:
        assert isinstance(cluster, GroupCluster)
        create(cluster)
        cluster.commit(7)
        jump(cluster, cluster.find(), 9 * DAY_MS)
        cluster.world.run_for(3 * CHECK_GROUPS_MS / 1_000)
        assert cluster.committed() == 7

    with World(1, brokers=3) as world:
        test(GroupCluster(world))


def test_a_deleted_key_stays_deleted_when_a_follower_comes_back_an_hour_slow() -> None:
    """It was away while the tombstone came, and while it went again."""

    def test(cluster: Cluster) -> None:
        create(
            cluster,
            cleanup_policy="compact",
            segment_ms="100",
            min_cleanable_dirty_ratio="0",
            delete_retention_ms="200",
        )
        send(cluster, (b"k", b"old"), (b"a", b"1"))
        away = next(number for number in (1, 2, 3) if number != cluster.leader(1))
        other = next(number for number in (1, 2, 3) if number != away)
        log_end = log_of(cluster, away).log_end_offset
        cluster.stop(away)
        send(cluster, (b"k", None), (b"b", b"2"))
        send(cluster, (b"c", b"3"))
        cluster.world.run_for(8)
        send(cluster, (b"d", b"4"))
        leader = log_of(cluster, cluster.leader(other))
        end, removed_below = leader.log_end_offset, leader.tombstones_removed_below
        assert removed_below > log_end, "or there is nothing to see here"
        jump(cluster, away, -HOUR_MS)
        cluster.start(away)
        cluster.until(lambda: "t" in cluster.node(away).machine.topics)
        cluster.until(lambda: log_of(cluster, away).log_end_offset == end)
        assert b"k" not in values(cluster, away)

    play(test)


def send(cluster: Cluster, *records: tuple[bytes, bytes | None]) -> None:
    async def run(machine: ClientMachine) -> None:
        async with AsyncProducer(cluster.world.bootstrap, host=machine.host()) as producer:
            for key, value in records:
                await producer.send("t", value, key, partition=0)
            await producer.flush()
        await asyncio.sleep(1)  # for the segment to end

    cluster.client(run)


def values(cluster: Cluster, number: int) -> dict[bytes, bytes | None]:
    """The last value of each key in that broker's copy."""
    log = log_of(cluster, number)
    found: dict[bytes, bytes | None] = {}
    parts = log.read(
        start_offset=log.log_start_offset, end_offset=log.log_end_offset, bytes_max=1 << 20
    )
    for part in parts:
        for batch in split(part):
            lists = decode_lists(batch)
            found |= dict(zip([key or b"" for key in lists.keys], lists.values, strict=True))
    return {key: value for key, value in found.items() if value is not None}
