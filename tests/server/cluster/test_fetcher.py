"""The follower's side of copying: what it asks, what it takes, and what it must not take."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import BrokerUnavailableError, ChainMismatchError, ConnectionLostError
from raftlog.protocol.peer import Divergence, ReplicaFetched
from raftlog.protocol.schema import Failure
from raftlog.replication.cluster_commands import (
    CreateTopic,
    Move,
    Reassign,
    SetMoveThrottle,
    SetReplicas,
)
from raftlog.server.cluster.fetcher import (
    BACKOFF_SECONDS,
    FULL_SECONDS,
    RESPONSE_SECONDS_MAX,
    ReplicaFetchers,
)
from raftlog.server.partition import Partition
from raftlog.testing.disk import Fault
from tests.running import runs
from tests.server.cluster.copying import (
    LEADER,
    WAIT_MS,
    Copying,
    batches,
    leaders_log,
    part,
    values,
)
from tests.server.cluster.fake import TOPIC_ID, Scene, play, write


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
    assert s.links.noted == []
    s.workers.release()
    await s.come_to_rest()
    ((_, noted),) = s.links.noted
    (durable,) = noted.partitions
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
    assert host.problem in caplog.text
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    await c.answer(part(**answer))
    assert len(caplog.records) == 1, "said once"
    host.follow(3, 6)
    assert host.problem == ""


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
# Which copies the throttle of moves delays. ``test_node`` has moves with a throttle.


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


# -- fetcher failures ------------------------------------------------------------------------------
#
# What a fetcher does when the leader, the link, the disk or an answer is not as it should be.


@runs(play)
async def test_bytes_that_are_bad_are_the_leaders_damage(s: Scene) -> None:
    """P6: a good copy is not set aside because a bad one was offered."""
    c = Copying(s)
    log, source = s.log(), leaders_log(s, b"abcdefgh")
    c.fetcher.add(c.follower(log))
    await s.come_to_rest()
    data = bytearray(batches(source))
    data[-1] ^= 1
    await c.answer(part(length=len(data)), data=bytes(data))
    assert c.damaged == []
    assert log.log_end_offset == 0
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    assert c.position().fetch_offset == 0, "it asks for the same again"
    good = batches(source)
    await c.answer(part(length=len(good)), data=good)
    assert values(log) == [b"abcdefgh"]


@runs(play)
async def test_bytes_that_do_not_follow_from_the_log_are_this_brokers_damage(s: Scene) -> None:
    c = Copying(s)
    log, source = leaders_log(s, b"other"), leaders_log(s, b"a", b"b")
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    data = batches(source, 1)
    await c.answer(part(length=len(data)), data=data)
    ((damaged, error),) = c.damaged
    assert damaged is host
    assert isinstance(error, ChainMismatchError)
    assert log.log_end_offset == 1


@runs(play)
async def test_a_full_disk_is_tried_again_and_what_was_written_is_not_asked_for_twice(
    s: Scene,
) -> None:
    c = Copying(s)
    log, source = s.log(), leaders_log(s, b"a", b"b")
    c.fetcher.add(c.follower(log))
    await s.come_to_rest()
    data = batches(source)
    s.disk.faults.append(Fault(error=errno.ENOSPC, times=1))
    await c.answer(part(length=len(data)), data=data)
    assert c.damaged == []
    assert s.failures == []
    assert not c.last.partitions
    await asyncio.sleep(FULL_SECONDS * 1.1)
    assert c.position().fetch_offset == log.log_end_offset == 0
    await c.answer(part(length=len(data)), data=data)
    assert values(log) == [b"a", b"b"]


@runs(play)
async def test_the_log_starts_where_the_leaders_does_but_never_above_what_is_committed(
    s: Scene,
) -> None:
    c = Copying(s)
    log = leaders_log(s, b"a", b"b", b"c")
    host = c.follower(log)
    c.fetcher.add(host)
    await s.come_to_rest()
    await c.answer(part(high_watermark=2, log_start_offset=3))
    assert log.log_start_offset == 2


@runs(play)
async def test_what_is_durable_is_told_again_when_nobody_took_it(s: Scene) -> None:
    c = Copying(s)
    log, source = s.log(), leaders_log(s, b"a")
    c.fetcher.add(c.follower(log))
    await s.come_to_rest()
    s.links.takes = False
    data = batches(source)
    await c.answer(part(length=len(data)), data=data)
    assert log.acknowledged_end_offset == 1
    assert s.links.noted == []
    s.links.takes = True
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    ((_, noted),) = s.links.noted
    assert noted.partitions[0].durable_offset == 1
    await asyncio.sleep(1)
    assert len(s.links.noted) == 1, "once is enough"


@runs(play)
async def test_progress_of_many_is_told_in_parts(
    s: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Copying(s)
    hosts = [c.follower(partition=number) for number in range(5)]
    for host in hosts:
        c.fetcher.add(host)
    await s.come_to_rest()
    monkeypatch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", 2)
    for host in hosts:
        host.on_durable(host)
    await s.come_to_rest()
    assert [len(noted.partitions) for _, noted in s.links.noted] == [2, 2, 1]


@runs(play)
async def test_one_request_waits_and_a_second_one_brings_news(s: Scene) -> None:
    c = Copying(s)
    c.fetcher.add(c.follower(partition=0))
    await s.come_to_rest()
    c.fetcher.add(c.follower(partition=1))
    await s.come_to_rest()
    assert [len(request.partitions) for request in c.requests] == [1, 1]
    c.fetcher.add(c.follower(partition=2))
    await s.come_to_rest()
    assert len(c.requests) == 2, "two at a time"
    await c.answer(request=0)
    assert [at.partition for at in c.last.partitions] == [2]
    await c.answer(request=1)
    assert len(c.requests) == 3, "one is waiting, and all is said"
    await c.answer(request=2)
    assert len(c.requests) == 4
    assert c.last.partitions == []


@runs(play)
async def test_what_is_not_copied_any_more_is_forgotten_and_nothing_is_asked(s: Scene) -> None:
    c = Copying(s)
    host = c.follower()
    c.fetcher.add(host)
    await s.come_to_rest()
    c.fetcher.remove(host)
    assert c.fetcher.is_idle
    await s.come_to_rest()
    assert [gone.partition for gone in c.last.forgotten] == [0]
    await c.answer(part(restart_at=9), request=0)
    await c.answer(request=1)
    assert len(c.requests) == 2
    assert host.log.log_end_offset == 0


@runs(play)
async def test_removing_a_host_that_was_replaced_removes_nothing(s: Scene) -> None:
    c = Copying(s)
    old, new = c.follower(), c.follower()
    c.fetcher.add(old)
    c.fetcher.add(new)
    c.fetcher.remove(old)
    assert not c.fetcher.is_idle


@runs(play)
async def test_a_new_connection_is_told_everything_and_old_answers_are_nobodys(s: Scene) -> None:
    c = Copying(s)
    host = c.follower()
    c.fetcher.add(host)
    await s.come_to_rest()
    c.fetcher.link_up()
    await s.come_to_rest()
    assert c.last.full
    assert len(c.last.partitions) == 1
    await c.answer(part(restart_at=9), request=0)
    assert host.log.log_end_offset == 0
    await c.answer(part(restart_at=9), request=1)
    assert host.log.log_end_offset == 9


@runs(play)
async def test_a_request_that_fails_is_made_again_after_a_pause_from_the_start(s: Scene) -> None:
    c = Copying(s)
    c.fetcher.add(c.follower())
    await s.come_to_rest()
    await c.fail(ConnectionLostError("gone"))
    assert len(c.requests) == 1
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    assert len(c.requests) == 2
    assert c.last.full


@runs(play)
async def test_while_the_link_is_down_nothing_is_asked(s: Scene) -> None:
    c = Copying(s)
    s.links.up.clear()
    c.fetcher.add(c.follower())
    await asyncio.sleep(10)
    assert c.requests == []
    s.links.up.add(LEADER)
    c.fetcher.link_up()
    await s.come_to_rest()
    assert len(c.requests) == 1


@runs(play)
async def test_a_leader_that_does_not_answer_is_asked_anew(s: Scene) -> None:
    """Its connection lives, as the pings say, but the request is lost: nothing else would tell."""
    c = Copying(s)
    c.fetcher.add(c.follower())
    await s.come_to_rest()
    await asyncio.sleep(WAIT_MS / 1_000 + RESPONSE_SECONDS_MAX * 0.9)
    assert len(c.requests) == 1
    await asyncio.sleep(RESPONSE_SECONDS_MAX * 0.2)
    assert len(c.requests) == 2
    assert c.last.full


@pytest.mark.parametrize("length", [5, 500])
@runs(play)
async def test_an_answer_that_makes_no_sense_does_not_end_the_copying(
    s: Scene, *, length: int
) -> None:
    c = Copying(s)
    log, source = s.log(), leaders_log(s, b"a")
    c.fetcher.add(c.follower(log))
    await s.come_to_rest()
    await c.answer(part(length=length), data=b"")
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    assert len(c.requests) == 2
    data = batches(source)
    await c.answer(part(length=len(data)), data=data)
    assert values(log) == [b"a"]


@runs(play)
async def test_a_mistake_in_here_is_logged_and_the_copying_goes_on(
    s: Scene, *, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Copying(s)
    host = c.follower()
    c.fetcher.add(host)
    await s.come_to_rest()

    def broken(_self: Any, _batches: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append_copied", broken)
        await c.answer(part(length=1), data=b"x")
    assert "ZeroDivisionError" in caplog.text
    await asyncio.sleep(BACKOFF_SECONDS * 1.1)
    assert len(c.requests) == 2


@runs(play)
async def test_after_the_end_nothing_happens(s: Scene) -> None:
    c = Copying(s)
    host = c.follower()
    c.fetcher.add(host)
    await s.come_to_rest()
    c.fetcher.close()
    await c.answer(part(restart_at=9))
    await asyncio.sleep(60)
    assert host.log.log_end_offset == 0
    assert len(c.requests) == 1


@runs(play)
async def test_a_closed_host_takes_nothing(s: Scene) -> None:
    c = Copying(s)
    host = c.follower()
    c.fetcher.add(host)
    await s.come_to_rest()
    host.close(BrokerUnavailableError("gone"))
    await c.answer(part(restart_at=9))
    assert host.log.log_end_offset == 0


class FakeFetcher:
    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.events: list[Any] = []

    def add(self, host: Any) -> None:
        self.events.append(("add", host))

    def remove(self, host: Any) -> None:
        self.events.append(("remove", host))

    def link_up(self) -> None:
        self.events.append("up")

    def close(self) -> None:
        self.events.append("close")


@runs(play)
async def test_a_partition_is_copied_from_one_leader_at_a_time(s: Scene) -> None:
    made: dict[int, FakeFetcher] = {}

    def make(leader: int) -> Any:
        assert leader not in made
        made[leader] = FakeFetcher(leader)
        return made[leader]

    fetchers = ReplicaFetchers(make)
    host = s.host()
    fetchers.assign(host, 2)
    fetchers.assign(host, 3)
    host.on_durable = lambda _host: None
    fetchers.assign(host, None)
    assert host.on_durable is None
    fetchers.assign(host, None)
    fetchers.link_up(2)
    fetchers.link_up(7)
    fetchers.close()
    assert made[2].events == [("add", host), ("remove", host), "up", "close"]
    assert made[3].events == [("add", host), ("remove", host), "close"]
    assert list(fetchers) == list(made.values())
