"""What a fetcher does with damage: of what came, and of what a broker says that it has."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.fetcher import DAMAGE_PATIENCE_S
from raftlog.errors import CorruptBatchError, DamagedLogError
from raftlog.protocol import api as apis
from raftlog.protocol.records import FetchedPartition, FetchResponse, MetadataRequest
from tests.client.test_fetcher import Rig, failing, fetches, fill, now
from tests.client.test_subscription import A
from tests.client.world import Behaviour, FakeCluster, run
from tests.running import runs


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("damage", ["header", "cut", "length"])
@runs(run)
async def test_good_batches_before_a_bad_one_are_read_first(
    fake: FakeCluster, *, damage: str, times: int
) -> None:
    fake.create("t")
    fill(fake, 2, 2)
    log = fake.topics["t"].logs[0]
    good, bad = log.batches
    broken = {
        "header": bad[:8] + b"\xff" + bad[9:],
        "cut": bad[:-5],
        "length": bad[:4] + b"\xff" + bad[5:],
    }[damage]

    def answer(*batches: bytes) -> Behaviour:
        part = FetchedPartition(topic="t", partition=0, length=sum(map(len, batches)))
        message = FetchResponse(partitions=[part])
        return lambda peer, request: peer.write(peer.state.reply(request, message, batches))

    fake.next(apis.FETCH, answer(good, broken), *[answer(broken)] * (times - 1))
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        if times == 2:
            await asyncio.sleep(0.1)
            with pytest.raises(CorruptBatchError, match="t:0"):
                rig.subscription.next_chunk()
            rig.fetcher.poll()
        assert await rig.read(2) == [2, 3], "it was damaged on its way only"
        asked = [(r.partitions[0].offset, r.partitions[0].doubtful) for r in fetches(fake)]
        assert asked[: times + 1] == [(0, False), *[(2, True)] * times]
        assert not any(doubtful for _, doubtful in asked[times + 1 :])


def replicated(fake: FakeCluster) -> None:
    fake.create("t")
    fill(fake, 1)


@runs(run, brokers=3)
async def test_a_broker_with_a_damaged_copy_is_given_time_to_give_it_up(fake: FakeCluster) -> None:
    replicated(fake)
    fake.next(apis.FETCH, *[failing(DamagedLogError("bad bytes at 0"))] * 4)
    async with Rig(fake) as rig:
        await asyncio.sleep(0.05)
        asked = len(fake.asked(MetadataRequest))
        fake.topics["t"].leaders[0] = 2
        assert await rig.read(1) == [0]
        assert len(fake.asked(MetadataRequest)) > asked, "somebody else may lead"
        assert len(fetches(fake)) < 20


@runs(run, brokers=3)
async def test_damage_that_stays_is_told_in_the_end_and_then_at_once(fake: FakeCluster) -> None:
    replicated(fake)
    fake.next(apis.FETCH, *[failing(DamagedLogError("bad bytes at 0"))] * 1_000)
    async with Rig(fake) as rig:
        for lasts in (DAMAGE_PATIENCE_S, 0.0):
            start = now()
            with pytest.raises(DamagedLogError, match="bad bytes"):
                await rig.read(1)
            assert lasts <= now() - start < lasts + 1.5
            rig.fetcher.poll()
        assert len(fetches(fake)) < 60
        fake._next.clear()
        rig.subscription.seek(A, 0)
        rig.fetcher.poll()
        assert await rig.read(1) == [0]
        assert rig.subscription.part(A).damaged_since is None
