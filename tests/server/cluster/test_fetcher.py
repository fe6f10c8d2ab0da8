"""The follower's side of copying: what it asks, what it takes, and what it must not take."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import BrokerUnavailableError
from raftlog.protocol.peer import Divergence, ReplicaFetched
from raftlog.protocol.schema import Failure
from raftlog.replication.cluster_commands import (
    CreateTopic,
    Move,
    Reassign,
    SetMoveThrottle,
    SetReplicas,
)
from raftlog.server.cluster.fetcher import BACKOFF_SECONDS
from raftlog.testing.disk import Fault
from tests.running import runs
from tests.server.cluster.copying import Copying, batches, leaders_log, part, values
from tests.server.cluster.paper import TOPIC_ID, Scene, play, write


@runs(play)
async def test_it_says_where_it_is_and_takes_what_comes(s: Scene) -> None:
    c = Copying(s)
    log, source = s.log(), leaders_log(s, b"a", b"b")
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    assert c.last.full
    at = c.position()
    assert (at.fetch_offset, at.durable_offset, at.last_epoch, at.leader_epoch) == (0, 0, -1, 5)
    data = batches(source)
    s.workers.hold()
    await c.answer(part(length=len(data), high_watermark=1, log_start_offset=0), data=data)
    assert values(log) == [b"a", b"b"]
    assert host.high_watermark == 1
    # The next bytes are asked for before these are durable.
    at = c.position()
    assert (at.fetch_offset, at.durable_offset, at.last_epoch) == (2, 0, 5)
    assert not c.last.full
    assert s.links.told == []
    s.workers.release()
    await s.come_to_rest()
    ((_, told),) = s.links.told
    (durable,) = told.partitions
    assert (durable.durable_offset, durable.leader_epoch) == (2, 5)


@runs(play)
async def test_the_watermark_is_never_ahead_of_the_log(s: Scene) -> None:
    c = Copying(s)
    host = c.follower()
    c.fetcher.add(host)
    await s.come_to_rest()
    await c.answer(part(high_watermark=100))
    assert host.high_watermark == 0


@pytest.mark.parametrize(
    "stale",
    [
        part(epoch=4, high_watermark=2),
        part(epoch=4, diverged=Divergence(epoch=1, end_offset=0)),
        part(epoch=6, restart_at=7),
        part(partition=9, restart_at=7),
    ],
)
@runs(play)
async def test_an_answer_of_another_epoch_or_partition_changes_nothing(
    s: Scene, *, stale: ReplicaFetched
) -> None:
    """S05: a truncation that was told in epoch e is not for who is in e + 1."""
    c = Copying(s)
    log = leaders_log(s, b"a", b"b", epoch=3)
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    await c.answer(stale)
    assert (log.log_end_offset, log.log_start_offset, host.high_watermark) == (2, 0, 0)


@runs(play)
async def test_an_answer_for_a_replica_that_follows_another_by_now_changes_nothing(
    s: Scene,
) -> None:
    c = Copying(s)
    log = leaders_log(s, b"a", b"b", epoch=3)
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    host.follow(3, 5)
    await c.answer(part(restart_at=7))
    assert log.log_end_offset == 2


@runs(play)
async def test_a_cut_that_waits_for_the_disk_is_dropped_in_the_next_epoch(s: Scene) -> None:
    c = Copying(s)
    log, source = s.log(), leaders_log(s, b"a", b"b")
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    s.workers.hold()
    data = batches(source)
    await c.answer(part(length=len(data)), data=data)  # a sync is out: cuts wait for it
    await c.answer(part(diverged=Divergence(epoch=5, end_offset=1)))
    assert log.log_end_offset == 2
    c.fetcher.remove(host)
    host.follow(3, 6)
    s.workers.release()
    await s.come_to_rest()
    assert log.log_end_offset == 2, "the leader of epoch 6 has both records"


@runs(play)
async def test_it_cuts_to_the_common_part_and_asks_again(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    c = Copying(s)
    log = s.log()
    write(log, b"a", b"b", epoch=3)
    write(log, b"x", b"y", epoch=4)
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    assert c.position().last_epoch == 4
    with caplog.at_level(logging.WARNING):
        await c.answer(part(diverged=Divergence(epoch=3, end_offset=9)))
    assert "end_offset=4 to_offset=2" in caplog.text
    assert all(record.levelno < logging.ERROR for record in caplog.records)
    assert values(log) == [b"a", b"b"]
    at = c.position()
    assert (at.fetch_offset, at.last_epoch, at.durable_offset) == (2, 3, 2)


@pytest.mark.parametrize("unclean_epoch", [-1, 3, 4])
@pytest.mark.parametrize(
    "answer", [{"diverged": Divergence(epoch=3, end_offset=1)}, {"restart_at": 0}]
)
@runs(play)
async def test_what_is_committed_is_cut_only_after_its_loss_was_accepted(
    s: Scene, *, answer: dict[str, Any], unclean_epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    c = Copying(s)
    log = leaders_log(s, b"a", b"b", epoch=3)
    host = c.follower(log)
    host.unclean_epoch = unclean_epoch
    host.advance_high_watermark(2)
    c.fetcher.add(host)
    await s.come_to_rest()
    assert c.position().high_watermark == 2
    with caplog.at_level(logging.ERROR):
        await c.answer(part(**answer))
    if unclean_epoch == 4:
        assert log.log_end_offset == answer.get("restart_at", 1)
        return
    assert values(log) == [b"a", b"b"]
    assert "divergence below the high watermark: broker 2 leads" in caplog.text
    assert host.trouble in caplog.text
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    await c.answer(part(**answer))
    assert len(caplog.records) == 1, "said once"
    host.follow(3, 6)
    assert host.trouble == ""


@runs(play)
async def test_nothing_in_common_means_to_begin_anew(s: Scene) -> None:
    c = Copying(s)
    log = leaders_log(s, b"x", epoch=4)
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    await c.answer(part(diverged=Divergence(epoch=2, end_offset=0)))
    assert (log.log_start_offset, log.log_end_offset, log.last_epoch) == (0, 0, -1)
    assert c.position().last_epoch == -1


@runs(play)
async def test_it_begins_anew_where_the_leaders_log_begins(s: Scene) -> None:
    c = Copying(s)
    log = leaders_log(s, b"x", epoch=4)
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    await c.answer(part(restart_at=40, log_start_offset=40, high_watermark=50))
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    at = c.position()
    assert (at.fetch_offset, at.durable_offset, at.last_epoch) == (40, 40, -1)


@runs(play)
async def test_a_cut_that_cannot_be_made_is_tried_again_after_a_pause(s: Scene) -> None:
    c = Copying(s)
    log = s.log()
    c.fetcher.add(c.follower(log))
    await s.come_to_rest()
    s.disk.faults.append(Fault({"create", "write"}, errno.ENOSPC, path="*checkpoint*"))
    await c.answer(part(restart_at=7))
    assert log.log_end_offset == 0
    assert s.failures == []
    asked = len(c.requests)
    assert not c.last.partitions, "nothing is asked for while it rests"
    await asyncio.sleep(BACKOFF_SECONDS * 0.9)
    assert len(c.requests) == asked
    await asyncio.sleep(BACKOFF_SECONDS * 0.2)
    assert c.position().fetch_offset == 0
    await c.answer(part(restart_at=7))
    assert log.log_end_offset == 7


@runs(play)
async def test_a_failure_of_one_partition_rests_that_one_only(s: Scene) -> None:
    c = Copying(s)
    source = leaders_log(s, b"a")
    bad, good = c.follower(partition=0), c.follower(partition=1)
    c.fetcher.add(bad)
    c.fetcher.add(good)
    await s.come_to_rest()
    data = batches(source)
    failure = Failure.of(BrokerUnavailableError("not now"))
    await c.answer(part(0, failure=failure), part(1, length=len(data)), data=data)
    assert good.log.log_end_offset == 1
    assert [at.partition for at in c.last.partitions] == [1]
    assert [gone.partition for gone in c.last.forgotten] == [0]
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    assert [at.partition for at in c.last.partitions] == [0]


# -- move throttle ---------------------------------------------------------------------------------
#
# Which copies the throttle of moves delays. ``test_moving`` has moves with a throttle.


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
