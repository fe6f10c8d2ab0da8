"""Which copies the throttle of moves delays. ``test_moving`` has moves with a throttle."""

from __future__ import annotations

import asyncio

import pytest

from raftlog import limits
from raftlog.replication.cluster_commands import (
    CreateTopic,
    Move,
    Reassign,
    SetMoveThrottle,
    SetReplicas,
)
from tests.running import runs
from tests.server.cluster.copying import Copying, batches, leaders_log, part
from tests.server.cluster.paper import TOPIC_ID, Scene, play


@pytest.mark.parametrize(
    ("high_watermark", "origin", "waits"),
    [(9, (2, 3), True), (2, (2, 3), False), (9, (2, 1), False)],
)
@runs(play)
async def test_only_a_copy_that_a_move_adds_and_that_is_not_in_sync_is_throttled(
    s: Scene, *, high_watermark: int, origin: tuple[int, int], waits: bool
) -> None:
    """A replica that reaches the high watermark can be in sync, or be added to the ISR."""
    s.register(1, 2, 3)
    s.command(CreateTopic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=2))
    s.command(SetReplicas(topic_id=TOPIC_ID, partition=0, replicas=origin, witnesses=(), version=1))
    s.command(Reassign(topic_id=TOPIC_ID, moves=(Move(0, (3, 1) if 1 in origin else (1, 2), 1),)))
    s.command(SetMoveThrottle(bytes_per_s=limits.MOVE_THROTTLE_BYTES_PER_S_MIN))
    c = Copying(s)
    log, source = s.log(), leaders_log(s, bytes(5_000), b"b")
    c.fetcher.add(c.follower(log))
    await s.come_to_rest()
    data = batches(source)
    await c.answer(part(length=len(data), high_watermark=high_watermark), data=data)
    assert log.log_end_offset == 2
    assert bool(c.last.partitions) is not waits
    if waits:
        await asyncio.sleep(2)
        assert not c.last.partitions
        await asyncio.sleep(4)
        at = c.position()
        assert (at.fetch_offset, at.bytes_max) == (2, 1_024)
