"""Copies that are made, dropped, and set aside when they are damaged."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.descriptions import BrokerDescription
from raftlog.errors import NotLeaderError, RaftlogError
from raftlog.protocol.cluster import TransferLeaderRequest
from raftlog.record import decode_lists, parse_header, split
from raftlog.replication.cluster_commands import DeleteTopic, SetReplicas
from raftlog.replication.leadership import Diverged, divergence, truncation_point
from raftlog.replication.partition_state import ChangeIsr, ChangeReplicas, Elect
from raftlog.server.broker import Broker
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.replicas import RETRY_SECONDS
from raftlog.server.http.collect import standing_of
from raftlog.storage import Log
from raftlog.storage.log_dirs import DiskMeasure
from raftlog.testing.disk import FOREVER, Fault
from raftlog.testing.simulator.world import (
    DATA_DIRECTORY,
    LOG_DIRECTORY,
    BrokerMachine,
    Hang,
    World,
)
from raftlog.types import NewTopic
from tests.replication.samples import View
from tests.running import runs
from tests.server.cluster.compacted import EPOCH, Pair, history, joined, log_of
from tests.server.cluster.fake import DISKS, Scene, append, play
from tests.server.cluster.hosting import Hosting, hosting
from tests.server.cluster.leading import at, only
from tests.server.cluster.simulated import Cluster, on, operations


async def witness_becomes_replica(h: Hosting) -> None:
    record = await h.create(partitions=3, replicas=2)
    number = next(n for n, a in enumerate(record.partitions) if 1 in a.witnesses)
    assignment = record.partitions[number]
    hosted = h.hosted(partition=number)
    assert hosted.host is None
    leader, other = assignment.replicas
    change = ChangeReplicas(hosted.state.version, (leader, 1), (other,))
    hosted.machine.apply(change.encode())
    await h.s.come_to_rest()
    assert hosted.host is not None
    assert h.topics.topic("t").hosts[number] is hosted.host
    assert hosted.host.follows(leader, hosted.state.leader_epoch)
    assert hosted.host.log.log_end_offset == 0


def test_a_witness_that_becomes_a_replica_starts_with_an_empty_copy() -> None:
    hosting(witness_becomes_replica)


def test_a_copy_that_cannot_be_made_is_tried_again() -> None:
    async def test(h: Hosting) -> None:
        record = await h.create(partitions=3, replicas=2)
        number = next(n for n, a in enumerate(record.partitions) if 1 in a.witnesses)
        leader, other = record.partitions[number].replicas
        h.s.disk.faults.append(Fault(error=errno.ENOSPC, path="*", times=1))
        hosted = h.hosted(partition=number)
        change = ChangeReplicas(hosted.state.version, (leader, 1), (other,))
        hosted.machine.apply(change.encode())
        await h.s.come_to_rest()
        assert hosted.host is None
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert hosted.host is not None

    hosting(test)


def test_a_topic_that_is_deleted_meanwhile_is_no_mistake() -> None:
    async def test(h: Hosting) -> None:
        record = await h.create(partitions=3, replicas=2)
        number = next(n for n, a in enumerate(record.partitions) if 1 in a.witnesses)
        leader, other = record.partitions[number].replicas
        hosted = h.hosted(partition=number)
        h.s.workers.hold()
        change = ChangeReplicas(hosted.state.version, (leader, 1), (other,))
        hosted.machine.apply(change.encode())
        h.s.command(DeleteTopic(name="t"))
        await h.s.come_to_rest()
        h.s.workers.release()
        await h.partitions.until_seen("t")
        await h.s.come_to_rest()
        assert h.on_disk() == []
        assert not h.partitions.hosted

    hosting(test)


async def no_replica_any_more(h: Hosting, *, noted: bool = True) -> HostedPartition:
    """Broker 1 was a follower, and is a witness now."""
    await h.create()
    await h.elect(2)
    hosted = h.hosted()
    await h.apply(ChangeReplicas(hosted.state.version, (2, 3), (1,)))
    if noted:
        version = hosted.state.version
        h.s.command(
            SetReplicas(
                topic_id="T1", partition=0, replicas=(2, 3), witnesses=(1,), version=version
            )
        )
        await h.partitions.until_seen("t")
        await h.s.come_to_rest()
    return hosted


def test_who_is_no_replica_any_more_drops_its_copy_when_all_know() -> None:
    async def test(h: Hosting) -> None:
        hosted = await no_replica_any_more(h, noted=False)
        host = h.host()
        assert host.leader is None
        assert h.on_disk() == [("T1", 0)]
        h.s.command(
            SetReplicas(
                topic_id="T1",
                partition=0,
                replicas=(2, 3),
                witnesses=(1,),
                version=hosted.state.version,
            )
        )
        await h.partitions.until_seen("t")
        await h.s.come_to_rest()
        assert isinstance(host.closed, NotLeaderError)
        assert hosted.host is None
        assert h.topics.topic("t").hosts == [None]
        assert h.on_disk() == []
        assert h.roles[-1] == (hosted, True)

    # `member.host` is there when the role is told: the fetcher has to let go of it.
    hosting(test)


def test_who_becomes_a_replica_again_starts_with_nothing() -> None:
    async def test(h: Hosting) -> None:
        hosted = await no_replica_any_more(h)
        await h.apply(ChangeReplicas(hosted.state.version, (2, 3, 1), ()))
        assert h.host().log.log_end_offset == 0
        assert h.host().follows(2, hosted.state.leader_epoch)

    hosting(test)


def test_a_copy_is_not_dropped_under_who_became_a_replica_meanwhile() -> None:
    async def test(h: Hosting) -> None:
        h.s.workers.hold()
        h.s.workers.release()
        await h.create()
        await h.elect(2)
        hosted = h.hosted()
        await h.apply(ChangeReplicas(hosted.state.version, (2, 3), (1,)))
        h.s.workers.hold()
        h.s.command(
            SetReplicas(
                topic_id="T1",
                partition=0,
                replicas=(2, 3),
                witnesses=(1,),
                version=hosted.state.version,
            )
        )
        await h.s.come_to_rest()
        await h.apply(ChangeReplicas(hosted.state.version, (2, 3, 1), ()))
        # Whatever goes on with the disk: nothing is told to the leader of what is about to go.
        assert hosted.host is None or hosted.host.closed is not None or not hosted.host.log.damage
        h.s.workers.release()
        await h.partitions.until_seen("t")
        await h.s.come_to_rest()
        assert h.host().closed is None
        assert h.on_disk() == [("T1", 0)]
        assert h.store.hosted_log("T1", 0) is h.host().log

    hosting(test)


def test_a_copy_left_from_a_time_as_replica_is_dropped_after_the_next_start() -> None:
    async def test(h: Hosting) -> None:
        record = await h.create(partitions=3, replicas=2)
        number = next(n for n, a in enumerate(record.partitions) if 1 in a.witnesses)
        h.s.command(DeleteTopic(name="t"))
        await h.partitions.until_seen("t")
        h.store.host_partitions("t", "T2", (number,), total_partitions=3, overrides={})
        record = await h.create(topic_id="T2", partitions=3, replicas=2)
        await h.s.come_to_rest()
        expected = [n for n, a in enumerate(record.partitions) if 1 in a.replicas]
        assert sorted(n for _, n in h.on_disk()) == expected

    hosting(test)


# -- damage


def test_a_damaged_follower_leaves_sets_its_copy_aside_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        hosted, old = h.hosted(), h.host()
        with caplog.at_level(logging.ERROR):
            h.partitions.damaged(old, "it does not fit")
        assert old.leader is None
        assert old.closed is None
        (lost,) = h.s.plane.commands()
        assert isinstance(lost, ChangeIsr)
        assert h.roles[-1] == (hosted, False)
        h.partitions.damaged(old, "again")
        assert len(h.s.plane.proposals) == 1
        h.s.plane.agree()
        await h.s.come_to_rest()
        assert old.closed is not None
        new = h.host()
        assert new is not old
        assert new.log.damage == ""
        assert 1 not in hosted.state.isr
        assert new.follows(2, hosted.state.leader_epoch)
        assert list(h.topics.topic("t").hosts) == [new]
        assert "corrupt replica quarantined" in caplog.text
        assert any(".quarantine-1" in name for name in h.s.disk.list_dir("/data/topics/t/T1"))

    hosting(test)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(error=errno.ENOSPC, path="*/copies.tmp", times=2),  # before the files are moved
        Fault({"rename"}, errno.ENOSPC, "*/T1/0", times=2),
    ],
    ids=["before", "moving"],
)
def test_a_full_disk_delays_the_replacement_of_a_copy_and_does_not_prevent_it(
    fault: Fault,
) -> None:
    # Simulator, safety seed 7000805: without the retry, the replica stays out until a restart.
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        old = h.host()
        h.partitions.damaged(old, "it does not fit")
        h.s.disk.faults.append(replace(fault))
        h.s.plane.agree()
        await h.s.come_to_rest()
        assert h.host() is old
        assert old.closed is not None
        h.surveys.reported[2] = None  # the leader is not known to be sound at the retry
        await asyncio.sleep(RETRY_SECONDS * 1.1)
        assert h.host() is old
        del h.surveys.reported[2]
        h.partitions.review(list(h.partitions.hosted.values()))
        for _ in range(3):
            await asyncio.sleep(RETRY_SECONDS)
        assert h.host().closed is None
        assert h.host().follows(2, h.hosted().state.leader_epoch)
        names = h.s.disk.list_dir("/data/topics/t/T1")
        assert [name for name in names if "quarantine" in name] == ["0.quarantine-1"]

    hosting(test)


def test_a_torn_follower_leaves_and_cuts_its_end_then() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        hosted, old = h.hosted(), h.host()
        old.log.damage, old.log.is_torn = "torn", True
        h.partitions.schedule_host(old)
        await h.s.come_to_rest()
        (lost,) = h.s.plane.commands()
        assert isinstance(lost, ChangeIsr)
        assert h.host() is old
        h.s.plane.agree()
        await h.s.come_to_rest()
        new = h.host()
        assert new is not old
        assert new.follows(2, hosted.state.leader_epoch)
        assert not any("quarantine" in name for name in h.s.disk.list_dir("/data/topics/t/T1"))

    hosting(test)


def test_a_follower_in_doubt_leaves_and_follows_then() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        hosted, host = h.hosted(), h.host()
        host.log.doubt = "it did not stop cleanly"
        h.partitions.schedule_host(host)
        await h.s.come_to_rest()
        assert host.leader is None
        h.s.plane.agree()
        await h.s.come_to_rest()
        assert h.host() is host
        assert host.log.doubt == ""
        assert host.follows(2, hosted.state.leader_epoch)
        assert 1 not in {*hosted.state.isr, *hosted.state.elr}

    hosting(test)


def test_a_damaged_leader_hands_over_first() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(1)
        host = h.host()
        announced: list[RaftlogError | None] = []
        h.s.workers.hold()
        host.when_committed(append(host, b"a"), announced.append)
        host.log.note_damage("found by a read", offset=0)
        h.partitions.review(list(h.partitions.hosted.values()))
        assert host.leadership is None
        assert len(announced) == 1, "nobody waits for a leader that is gone"
        (elect,) = h.s.plane.commands()
        assert isinstance(elect, Elect)
        h.s.plane.agree()
        h.s.workers.release()
        await h.s.come_to_rest()
        (lost,) = h.s.plane.commands()
        assert isinstance(lost, ChangeIsr)
        h.s.plane.agree()
        await h.s.come_to_rest()
        assert h.host().log.damage == ""
        assert h.host().follows(elect.leader, h.hosted().state.leader_epoch)

    hosting(test)


def test_damage_that_was_found_is_acted_on_at_once() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(1)
        host, stranger = h.host(), h.s.host()
        for each in (host, stranger):
            each.log.note_damage("found by a read", offset=0)
            h.partitions.schedule_host(each)
        await h.s.come_to_rest()
        assert host.leadership is None
        (elect,) = h.s.plane.commands()
        assert isinstance(elect, Elect)

    hosting(test)


def test_a_copy_that_was_elected_by_an_operator_meanwhile_is_kept() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        old = h.host()
        h.partitions.damaged(old, "bad")
        h.s.workers.hold()
        await h.create("u", topic_id="T2")  # this keeps the disk busy
        h.s.plane.agree()
        await h.s.come_to_rest()
        state = h.hosted().state
        back = ChangeIsr(
            state.version, state.leader_epoch, {**state.isr, 1: DISKS[1]}, state.min_isr
        )
        await h.apply(back)
        assert old.closed is None, "it looks again before it begins"
        h.s.workers.release()
        await h.s.come_to_rest()
        assert h.host() is old
        assert isinstance(h.s.plane.commands()[-1], ChangeIsr)

    hosting(test)


def test_damage_of_a_host_that_was_replaced_is_old_news() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        stranger = h.s.host()
        h.partitions.damaged(stranger, "bad")
        assert stranger.log.damage == ""
        assert h.host().log.damage == ""

    hosting(test)


def test_reviews_reach_every_partition() -> None:
    async def test(h: Hosting) -> None:
        await h.create(partitions=2)
        for number in range(2):
            await h.elect(1, partition=number)
        h.s.fenced.add(3)
        h.partitions.review(list(h.partitions.hosted.values()))
        assert [p.raft_id for p in h.s.plane.proposals] == ["T1/0", "T1/1"]

    hosting(test)


# -- compacted copies ------------------------------------------------------------------------------
#
# Copying between replicas that have compacted their logs, each in its own way.


def stored(log: Log) -> list[bytes]:
    parts = log.read(
        start_offset=log.log_start_offset, end_offset=log.log_end_offset, bytes_max=1 << 24
    )
    return [bytes(batch) for part in parts for batch in split(part)]


def bounds(log: Log) -> list[tuple[int, int]]:
    """What each batch covers."""
    headers = map(parse_header, stored(log))
    return [(header.base_offset, header.next_offset) for header in headers]


def records(log: Log) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for batch in stored(log):
        lists = decode_lists(batch)
        found |= dict(zip(lists.offsets, lists.values, strict=True))
    return found


def test_a_log_that_ends_inside_a_compacted_batch_goes_on_with_the_rest_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        batches = history(s, (EPOCH, [2, 2, 2, 2, 2]))
        leader = log_of(s, joined(batches, [1, 3]))  # 0-2, 2-8, 8-10
        pair = Pair(s, leader, log_of(s, batches[:2]), committed=4)
        await pair.run()
        follower = pair.follower.log
        assert pair.cuts == []
        assert bounds(follower) == [(0, 2), (2, 4), (4, 8), (8, 10)]
        assert records(follower) == {n: b"%d" % n for n in (0, 1, 2, 3, 7, 8, 9)}
        assert follower.chain == leader.chain
        assert follower.verify(0, bytes_max=1 << 20) == 10
        assert pair.copying.damaged == []

    with caplog.at_level(logging.WARNING):
        play(test)
    assert caplog.messages == []


@runs(play)
async def test_the_rest_may_hold_no_record_and_still_covers_its_offsets(s: Scene) -> None:
    batches = history(s, (EPOCH, [1] * 6))
    leader = log_of(s, joined(batches, [5], keep=1))  # the first one of five is left
    follower = log_of(s, batches[:3])
    pair = Pair(s, leader, follower, committed=3)
    await pair.run()
    assert bounds(follower) == [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6)]
    assert records(follower).keys() == {0, 1, 2, 5}


@runs(play)
async def test_batches_that_overlap_like_bricks_are_no_trouble(s: Scene) -> None:
    batches = history(s, (EPOCH, [1] * 9))
    leader = log_of(s, joined(batches, [2, 2, 2, 2]))  # 0-2, 2-4, 4-6, 6-8, 8-9
    follower = log_of(s, joined(batches[:7], [1, 2, 2, 2]))  # 0-1, 1-3, 3-5, 5-7
    pair = Pair(s, leader, follower, committed=7)
    await pair.run()
    assert pair.cuts == []
    assert bounds(follower)[-2:] == [(7, 8), (8, 9)]


@runs(play)
async def test_logs_that_begin_inside_the_leaders_batch_go_on_too(s: Scene) -> None:
    """Whose records below 5 were deleted; the leader still has them in a batch with later ones."""
    batches = history(s, (EPOCH, [1] * 10))
    leader = log_of(s, joined(batches, [1, 8]))  # 0-1, 1-9, 9-10
    leader.advance_log_start(5).run()
    empty = log_of(s, batches[:5], segment_bytes=1)
    empty.advance_log_start(5).run()
    assert empty.chain_at(5) is not None, "it knows what it follows from"
    for follower in (log_of(s, batches[5:7], start=5), log_of(s, batches[:7]), empty):
        pair = Pair(s, leader, follower, committed=follower.log_end_offset)
        await pair.run()
        pair.leading.session.close()
        assert follower.log_end_offset == 10
        assert records(follower).keys() >= {8, 9}
        assert follower.chain == leader.chain


@runs(play)
async def test_a_new_copy_takes_compacted_batches_as_they_are(s: Scene) -> None:
    batches = history(s, (EPOCH, [1] * 10))
    leader = log_of(s, joined(batches, [1, 8]))
    pair = Pair(s, leader, s.log(), committed=0)
    await pair.run()
    assert stored(pair.follower.log) == stored(leader)


@pytest.mark.parametrize("change", ["not compacted", "another epoch"])
def test_batches_that_do_not_fit_for_another_reason_are_damage(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(s: Scene) -> None:
        batches = history(s, (EPOCH, [4, 2]))
        if change == "another epoch":
            batches = joined(batches, [2])
        own = history(s, (EPOCH if change == "not compacted" else 4, [2, 2, 2]))
        pair = Pair(s, log_of(s, batches), log_of(s, own[:1]), committed=2)
        if change == "another epoch":  # which the leader's answer would be, did it look
            pair.leading.session._differs = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="does not get on"):
            await pair.run()
        assert pair.follower.log.log_end_offset == 2

    with caplog.at_level(logging.ERROR):
        play(test)
    assert "fetched batch corrupt: partition=t:0 leader=2" in caplog.text


# -- tombstones ------------------------------------------------------------------------------------


def behind(s: Scene, *, removed_below: int) -> tuple[Log, Log]:
    """A leader that has compacted up to offset 6, and a follower that ends at 4."""
    batches = history(s, (EPOCH, [1] * 8))
    leader = log_of(s, joined(batches, [2, 4]))
    leader.note_missing_tombstones(removed_below)
    return leader, log_of(s, batches[:4])


def test_a_copy_restarts_that_never_received_tombstones_which_its_leader_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        leader, follower = behind(s, removed_below=5)
        pair = Pair(s, leader, follower, committed=4)
        await pair.run()
        assert pair.cuts == [(4, 0)]
        assert stored(follower) == stored(leader)
        assert follower.tombstones_removed_below == 5, "it has not received them, either"

    with caplog.at_level(logging.WARNING):
        play(test)
    assert "end_offset=4 leader=2 tombstones_removed_below=5" in caplog.text


def test_a_copy_continues_that_has_received_every_tombstone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(s: Scene) -> None:
        leader, follower = behind(s, removed_below=4)
        pair = Pair(s, leader, follower, committed=4)
        await pair.run()
        assert pair.cuts == []
        assert follower.tombstones_removed_below == 0

    with caplog.at_level(logging.WARNING):
        play(test)
    assert caplog.messages == []


@runs(play)
async def test_a_copy_restarts_once_and_not_again_while_it_copies(s: Scene) -> None:
    """However long that takes: a copy that begins anew for ever would never be one."""
    leader, follower = behind(s, removed_below=8)
    pair = Pair(s, leader, follower, committed=4)
    pair.copying.fetcher._bytes_max = 1  # a batch at a time
    await pair.run()
    assert pair.cuts == [(4, 0)]
    assert stored(follower) == stored(leader)


@runs(play)
async def test_a_new_copy_notes_durably_what_its_leader_lacks(s: Scene) -> None:
    """Else it would lead one day, and followers would think that they have all tombstones."""
    leader, _ = behind(s, removed_below=5)
    follower = s.log(cleanup_policy="compact")
    s.disk.sync_dir("/logs")
    s.disk.sync_dir("/")
    pair = Pair(s, leader, follower, committed=0)
    await pair.run()
    follower.sync()
    s.disk.power_cut()
    again = Log.open(s.disk, follower.directory, follower.config)
    assert (again.log_end_offset, again.tombstones_removed_below) == (8, 5)


@runs(play)
async def test_a_copy_in_progress_restarts_when_another_broker_leads(s: Scene) -> None:
    """The next leader may still have what the former one had removed."""
    leader, follower = behind(s, removed_below=5)
    follower.restart_at(0)
    follower.note_missing_tombstones(8)
    follower.append_replicated(stored(leader)[0])
    pair = Pair(s, leader, follower, committed=0)
    await pair.run()
    assert pair.cuts == [(2, 0)]


@runs(play)
async def test_tombstones_stay_while_a_follower_that_copies_now_has_not_received_them(
    s: Scene,
) -> None:
    batches = history(s, (EPOCH, [1] * 8))
    pair = Pair(s, log_of(s, batches), log_of(s, batches[:4]), committed=4)
    assert pair.host.tombstones_kept_from > 8
    pair.leading.fetch(at(4, last_epoch=EPOCH), full=True)
    assert pair.host.tombstones_kept_from == 4
    pair.leading.fetch(at(7, last_epoch=EPOCH))
    assert pair.host.tombstones_kept_from == 7


@runs(play)
async def test_who_began_anew_counts_again_when_it_has_everything_that_is_committed(
    s: Scene,
) -> None:
    batches = history(s, (EPOCH, [2, 2, 2, 2, 2]))
    leader = log_of(s, joined(batches, [1, 3]))
    pair = Pair(s, leader, log_of(s, batches[:2]), committed=4)
    leadership = pair.host.leadership
    assert leadership is not None
    assert pair.host.high_watermark == 10

    def may_join() -> bool:
        change = leadership.isr_change(
            s.loop.time(),
            View(),
            min_isr=1,
            may_propose=lambda: True,
        )
        if change is not None:
            leadership.proposal_done(change, False)
        return change is not None and 2 in dict(change.isr)

    session = pair.leading
    session.fetch(at(4, last_epoch=EPOCH), full=True)
    assert leadership.followers(0)[2][:2] == (4, 4)
    assert not may_join()
    session.fetch(at(0))
    assert leadership.followers(0)[2][:2] == (0, 0), "it is not told as it was before"
    assert not may_join()
    session.fetch(at(8, last_epoch=EPOCH))
    assert not may_join()
    session.fetch(at(10, last_epoch=EPOCH, durable=8))
    assert not may_join()
    session.durable(10)
    assert may_join()
    assert pair.host.high_watermark == 10


# -- epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaders", [[], [3], [1, 2]])
@pytest.mark.parametrize("own", [[], [2, 1], [3]])
@runs(play)
async def test_where_logs_part_is_told_alike_however_they_are_compacted(
    s: Scene, *, leaders: list[int], own: list[int]
) -> None:
    """KIP-279: by epochs, which compaction leaves as they are."""
    common = history(s, (1, [2, 2, 2]), (2, [2]))
    leader = log_of(s, joined([*common, *history(s, (4, [3]), after=common)], leaders))
    follower = log_of(s, joined([*common, *history(s, (3, [1, 1]), after=common)], own))
    differs = divergence(
        leader.epochs,
        log_end=leader.log_end_offset,
        log_start=leader.log_start_offset,
        last_epoch=follower.last_epoch,
        fetch_offset=follower.log_end_offset,
    )
    assert differs == Diverged(2, 8)
    point = truncation_point(
        follower.epochs,
        log_end=follower.log_end_offset,
        log_start=follower.log_start_offset,
        diverged=differs,
    )
    assert point == 8
    follower.truncate_to(point)
    assert (follower.log_end_offset, follower.last_epoch) == (8, 2)
    assert follower.chain == leader.chain_at(8)


@runs(play)
async def test_a_new_leader_answers_a_follower_at_its_end_by_its_last_epoch(s: Scene) -> None:
    """Both have compacted the end of the old epoch away, each to another batch."""
    batches = history(s, (1, [1] * 4), (3, [1] * 4))
    leader = log_of(s, joined(batches, [4, 4]))
    follower = log_of(s, joined(batches[:6], [2, 2, 2]))
    assert follower.last_epoch == 3
    pair = Pair(s, leader, follower, committed=6)
    answer = pair.leading.fetch(at(6, last_epoch=3), full=True)
    assert only(answer).diverged is None
    assert only(answer).restart_at is None
    answer = pair.leading.fetch(at(6, last_epoch=2))
    diverged = only(answer).diverged
    assert diverged is not None
    assert (diverged.epoch, diverged.end_offset) == (1, 4)
    await pair.run()
    assert bounds(follower) == [(0, 2), (2, 4), (4, 6), (6, 8)]


# -- any two logs ----------------------------------------------------------------------------------

sizes = st.lists(st.integers(1, 4), max_size=12)


@given(
    lengths=st.lists(st.integers(1, 3), min_size=2, max_size=14),
    epoch_starts=st.sets(st.integers(1, 13), max_size=2),
    leaders=sizes,
    own=sizes,
    shorter_by=st.integers(1, 13),
    leader_start=st.integers(0, 20),
    own_start=st.integers(0, 20),
    keep=st.integers(0, 3),
    removed_below=st.integers(0, 20),
)
@runs(play)
async def test_two_logs_compacted_in_any_way_become_one(
    s: Scene,
    *,
    lengths: list[int],
    epoch_starts: set[int],
    leaders: list[int],
    own: list[int],
    shorter_by: int,
    leader_start: int,
    own_start: int,
    keep: int,
    removed_below: int,
) -> None:
    """The follower gets on, and holds all that the leader has above what it had.

    ``removed_below``: of tombstones. If that is above the follower's end, it restarts; then it
    holds what the leader has, and nothing else.
    """
    cuts = [0, *sorted(start for start in epoch_starts if start < len(lengths)), len(lengths)]
    spans = list(pairwise(cuts))
    runs = [(number + 1, lengths[a:b]) for number, (a, b) in enumerate(spans)]
    batches = history(s, *runs)
    leader = log_of(s, joined(batches, within(leaders, spans), keep=keep))
    part = batches[: max(len(batches) - shorter_by, 1)]
    follower = log_of(s, joined(part, within(own, spans)))
    leader.note_missing_tombstones(min(removed_below, leader.log_end_offset))
    if leader_start < leader.log_end_offset:
        leader.advance_log_start(leader_start).run()
    follower.advance_log_start(min(own_start, follower.log_end_offset)).run()
    had, end = records(follower), follower.log_end_offset
    pair = Pair(s, leader, follower, committed=end)
    await pair.run()
    assert follower.chain == leader.chain
    assert follower.last_epoch == leader.last_epoch
    assert follower.verify(follower.log_start_offset, bytes_max=1 << 20)
    assert all(one[1] == two[0] for one, two in pairwise(bounds(follower)))
    above = {offset: value for offset, value in records(leader).items() if offset >= end}
    start = follower.log_start_offset
    below = {offset: value for offset, value in had.items() if offset >= start}
    if pair.cuts:
        assert removed_below > end
        below = {o: value for o, value in records(leader).items() if start <= o < end}
    assert records(follower).items() >= (above | below).items()
    pair.leading.session.close()


def within(wanted: list[int], spans: list[tuple[int, int]]) -> list[int]:
    """Sizes of groups of batches, none of which spans two epochs."""
    found: list[int] = []
    for first, end in spans:
        left = end - first
        while left:
            size = min(wanted[len(found)] if len(found) < len(wanted) else 1, left)
            found.append(size)
            left -= size
    return found


# -- log dirs --------------------------------------------------------------------------------------
#
# A broker that loses one of its disks: the replicas on it are offline, and all else goes on.


PARTITIONS = 4


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(13, brokers=3) as world:
        world.brokers[1].log_dirs = (LOG_DIRECTORY,)
        made = Cluster(world)
        made.create(partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            made.until(lambda partition=partition: set(isr(made, partition)) == {1, 2, 3})  # type: ignore[misc]
            lead(made, 2, partition)
        send_all(made)
        yield made


def isr(cluster: Cluster, partition: int) -> set[int]:
    return set(cluster.state(1, partition).isr)


def lead(cluster: Cluster, broker: int, partition: int) -> None:
    if cluster.leader(1, partition) != broker:
        cluster.world.run_for(1.1)  # transfers of a partition are limited
        request = TransferLeaderRequest(topic="t", partition=partition, to=broker)
        on(cluster, 1, operations(cluster, 1).transfer_leader(request))
    cluster.until(lambda: cluster.state(1, partition).leader == broker)


def send_all(cluster: Cluster) -> None:
    for partition in range(PARTITIONS):
        cluster.send(b"a", b"b", partition=partition)


def machine(cluster: Cluster) -> BrokerMachine:
    return cluster.world.brokers[1]


def broker(cluster: Cluster) -> Broker:
    return cast(Broker, machine(cluster).broker)


def hosted(cluster: Cluster, partition: int) -> HostedPartition:
    topic = cluster.node(2).machine.topics["t"].id
    found = cluster.node(2).partitions.find(topic, partition)
    assert found is not None
    return found


def on_second_disk(cluster: Cluster) -> list[int]:
    found = []
    for partition in range(PARTITIONS):
        host = hosted(cluster, partition).host
        if host is not None and host.log.log_dir.path == LOG_DIRECTORY:
            found.append(partition)
    return found


def described(cluster: Cluster) -> BrokerDescription:
    brokers = cluster.admin(lambda admin: admin.describe_cluster(["t"])).brokers
    return next(each for each in brokers if each.id == 2)


def only_the_second_disk_is_down(cluster: Cluster, boots: int) -> None:
    """Others lead and replicate what was on it; the broker leads the rest, in the same process."""
    lost = on_second_disk(cluster)
    assert len(lost) == 2
    for partition in range(PARTITIONS):
        members = {1, 3} if partition in lost else {1, 2, 3}
        cluster.until(lambda p=partition, m=members: isr(cluster, p) == m)  # type: ignore[misc]
        leader = cluster.leader(1, partition)
        assert (leader == 2) is (partition not in lost)
    cluster.world.run_for(5)
    assert machine(cluster).boots == boots
    assert machine(cluster).is_running
    send_all(cluster)


def is_repaired(cluster: Cluster) -> None:
    machine(cluster).kill()
    machine(cluster).heal()
    cluster.start(2)
    for partition in range(PARTITIONS):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]
    assert broker(cluster).log_dirs.problems == ()


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_disk_that_fails_takes_down_its_replicas_only(cluster: Cluster, error: int) -> None:
    boots = machine(cluster).boots
    fault = Fault(error=error, path=f"{LOG_DIRECTORY}/*", times=FOREVER)
    machine(cluster).disk.faults.append(fault)
    cluster.send(b"x", partition=1)  # the other one learns it from the directory
    only_the_second_disk_is_down(cluster, boots)
    (problem,) = broker(cluster).log_dirs.problems
    assert f"log directory {LOG_DIRECTORY} has failed" in problem
    assert standing_of(broker(cluster)).log_dirs == (problem,)
    for partition in on_second_disk(cluster):
        host = hosted(cluster, partition).host
        assert host is not None
        assert host.closed is None, "it is not replaced before its disk is repaired"
    found = described(cluster).disk
    assert found is not None
    assert [(each.path, each.failed) for each in found.log_dirs] == [(LOG_DIRECTORY, True)]
    assert any(LOG_DIRECTORY in timed.event.text for timed in broker(cluster).context.events.events)
    is_repaired(cluster)


def test_a_disk_that_hangs_holds_up_its_replicas_only(cluster: Cluster) -> None:
    boots, hang = machine(cluster).boots, Hang(path=f"{LOG_DIRECTORY}/*")
    machine(cluster).hang(hang)
    for partition in on_second_disk(cluster):
        cluster.send(b"x", partition=partition)
    only_the_second_disk_is_down(cluster, boots)
    assert "completes no sync" in broker(cluster).log_dirs.problems[0]
    hang.end()
    for partition in range(PARTITIONS):  # without a restart
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]


def test_topics_come_and_go_while_a_disk_hangs(cluster: Cluster) -> None:
    """A thread uses the files of the deleted topic until the disk recovers."""
    hang = Hang(path=f"{LOG_DIRECTORY}/*")
    machine(cluster).hang(hang)
    for partition in on_second_disk(cluster):
        cluster.send(b"x", partition=partition)
    cluster.until(lambda: bool(broker(cluster).log_dirs.problems))
    cluster.admin(lambda admin: admin.delete_topics(["t"]), broker=1)
    topic = NewTopic("u", partitions=PARTITIONS, replication_factor=3)
    cluster.admin(lambda admin: admin.create_topics([topic]), broker=1)
    store = broker(cluster)._store
    cluster.until(lambda: "u" in store.topics and set(store.topics["u"].log_dirs) == set())
    assert "t" in store.topics
    hang.end()
    cluster.until(lambda: "t" not in store.topics)
    assert machine(cluster).disk.list_dir(f"{LOG_DIRECTORY}/topics/t") == []


def test_a_disk_that_is_unmounted_is_noticed_without_any_write(cluster: Cluster) -> None:
    boots = machine(cluster).boots
    machine(cluster).unmount(LOG_DIRECTORY)
    only_the_second_disk_is_down(cluster, boots)
    assert not machine(cluster).disk.exists(LOG_DIRECTORY)
    is_repaired(cluster)


def test_a_disk_without_work_that_fails_is_noticed(cluster: Cluster) -> None:
    fault = Fault(error=errno.EROFS, path=f"{LOG_DIRECTORY}/probe*", times=FOREVER)
    machine(cluster).disk.faults.append(fault)
    for partition in on_second_disk(cluster):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 3})  # type: ignore[misc]
    assert "Read-only" in broker(cluster).log_dirs.problems[0]


def test_a_broker_starts_without_one_of_its_disks(cluster: Cluster) -> None:
    machine(cluster).is_kept_down = True
    machine(cluster).kill()
    machine(cluster).unmount(LOG_DIRECTORY)
    cluster.start(2)
    boots = machine(cluster).boots
    cluster.world.run_for(5)  # the others have noticed that it was away
    for partition in (0, 2):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]
        lead(cluster, 2, partition)
    only_the_second_disk_is_down(cluster, boots)
    is_repaired(cluster)


def test_an_empty_disk_is_filled_from_the_other_brokers(cluster: Cluster) -> None:
    machine(cluster).is_kept_down = True
    machine(cluster).kill()
    disk = machine(cluster).disk
    disk.lose(LOG_DIRECTORY)
    disk.make_dirs(LOG_DIRECTORY)
    cluster.start(2)
    for partition in range(PARTITIONS):
        cluster.until(lambda p=partition: isr(cluster, p) == {1, 2, 3})  # type: ignore[misc]
    cluster.until(lambda: len(on_second_disk(cluster)) == 2)
    topic = cluster.node(2).machine.topics["t"].id
    assert disk.list_dir(f"{LOG_DIRECTORY}/topics/t/{topic}")[:1] == ["1"]


def test_a_full_disk_stops_producers_on_it_only(cluster: Cluster) -> None:
    watched = next(iter(broker(cluster).log_dirs.watched.values()))
    hosts = [hosted(cluster, partition).host for partition in range(PARTITIONS)]
    assert [host is not None and host._services.space is watched.space for host in hosts] == [
        False, True, False, True,
    ]  # fmt: skip
    assert not watched.log_dir.is_avoided()
    watched.space.measured(DiskMeasure(1, 1_000_000_000_000))
    assert "the disk of disk-2 are free" in broker(cluster).log_dirs.problems[0]
    assert watched.log_dir.is_avoided()
    assert broker(cluster).space.reason == ""


def test_the_only_complete_copy_is_waited_for() -> None:
    """The other replica was down: its election would lose what only the failed disk has."""
    with World(17, brokers=3) as world:
        world.brokers[1].log_dirs = (LOG_DIRECTORY,)
        cluster = Cluster(world)
        cluster.create(partitions=PARTITIONS, copies=2)
        partition = on_second_disk(cluster)[0]
        cluster.until(lambda: len(isr(cluster, partition)) == 2)
        (other,) = set(cluster.state(2, partition).replicas) - {2}
        world.brokers[other - 1].is_kept_down = True
        world.brokers[other - 1].kill()
        cluster.until(lambda: set(cluster.state(2, partition).isr) == {2})
        cluster.until(lambda: cluster.state(2, partition).leader == 2)
        cluster.send(b"a", partition=partition)
        broker(cluster)._store.log_dirs.further[0].fail("a loose cable")
        cluster.start(other)
        cluster.world.run_for(20)
        state = cluster.state(2, partition)
        assert set(state.isr) == {2}
        assert state.unclean_epoch == -1
        machine(cluster).kill()
        cluster.start(2)
        cluster.until(lambda: "t" in cluster.node(2).machine.topics)
        cluster.until(lambda: set(cluster.state(2, partition).isr) == {2, other})
        cluster.send(b"b", partition=partition)
        host = hosted(cluster, partition).host
        assert host is not None
        cluster.until(lambda: host.high_watermark == 2)


def test_a_topic_on_a_failed_disk_can_be_deleted(cluster: Cluster) -> None:
    broker(cluster)._store.log_dirs.further[0].fail("out of order")
    cluster.admin(lambda admin: admin.delete_topics(["t"]))
    cluster.until(lambda: not list(broker(cluster)._store.hosted()))
    disk = machine(cluster).disk
    assert disk.list_dir(f"{LOG_DIRECTORY}/topics/t") != []
    machine(cluster).kill()
    cluster.start(2)
    cluster.until(lambda: disk.list_dir(f"{LOG_DIRECTORY}/topics/t") == [])


# -- restored disks --------------------------------------------------------------------------------
#
# A data directory that is restored from a copy which was taken while its broker ran.


@pytest.mark.parametrize("seed", [3, 4])
def test_a_copy_has_no_vote_and_is_completed_by_the_others(seed: int) -> None:
    """All lose power. Of the two that acknowledged records, one is late, and the other's volume is
    restored: with the third it would be a majority of the past."""
    with World(seed, brokers=3) as world:
        cluster = Cluster(world)
        cluster.create(copies=3)
        cluster.in_sync(1, {1, 2, 3})
        cluster.send(b"a")
        leader = cluster.leader(1)
        late, old = (broker for broker in (1, 2, 3) if broker != leader)
        machines = {broker: world.brokers[broker - 1] for broker in (1, 2, 3)}
        copy = machines[old].disk.image(DATA_DIRECTORY)
        names = {broker: machine.name for broker, machine in machines.items()}
        world.network.partition([names[leader]], [names[late], names[old]])
        cluster.in_sync(late, {late, old})
        cluster.send(b"b")
        for machine in machines.values():
            machine.is_kept_down = True
        for machine in machines.values():
            machine.power_cut()
        world.network.heal()
        machines[old].disk.put_back(DATA_DIRECTORY, copy)
        for broker in (leader, old):
            machines[broker].is_kept_down = False
            machines[broker].power_on()
            machines[broker].start()
        world.run_for(20)
        assert all("t" not in cluster.node(b).machine.topics or cluster.state(b).leader is None
                   for b in (leader, old)), "only the late one has all records"  # fmt: skip
        machines[late].power_on()
        cluster.start(late)
        cluster.in_sync(late, {1, 2, 3})
        assert cluster.read(2) == [b"a", b"b"]
        here = cluster.node(old).me.directory_id
        cluster.until(lambda: cluster.node(late).machine.brokers[old].directory_id == here)


def test_a_directory_that_is_not_copied_keeps_its_votes_after_a_power_cut() -> None:
    with World(3, brokers=3) as world:
        cluster = Cluster(world)
        cluster.create(copies=3)
        before = [cluster.node(broker).me.directory_id for broker in (1, 2, 3)]
        for machine in world.brokers:
            machine.is_kept_down = True
            machine.power_cut()
        for machine in world.brokers:
            machine.is_kept_down = False
            machine.power_on()
            machine.start()
        cluster.until(lambda: all(machine.broker is not None for machine in world.brokers))
        cluster.in_sync(1, {1, 2, 3})
        assert [cluster.node(broker).me.directory_id for broker in (1, 2, 3)] == before
