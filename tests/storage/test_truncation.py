"""Truncation and restart of a log: what is left, in memory and on disk.

Crashes in between: test_replica_crashes. Deletion of old records: test_retention, test_log,
test_durability.
"""

from __future__ import annotations

import errno

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import DamagedLogError, StorageFailedError
from raftlog.storage.checkpoint import decode_slots
from raftlog.testing.disk import CHANGES, Fault, SimDisk, Stopped
from tests.storage.logs import (
    DIRECTORY,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    base_offsets_of,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    value_at,
    values,
)
from tests.storage.model import as_model
from tests.storage.replicas import SEGMENTED, Leader, copy, follow, leader_of, lives

CONFIGS = pytest.mark.parametrize("config", [SEGMENTED, ONE_SEGMENT], ids=["segments", "segment"])


# -- truncating ------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT], ids=["segments", "segment"])
@pytest.mark.parametrize("offset", [0, 1, 5, 6, 7, 13, 19, 20])
def test_truncating_leaves_what_lies_before(offset: int, config: TopicConfig) -> None:
    disk = sim_disk()
    log = open_log(disk, config)
    fill(log, 15)
    fill(log, 5, sync=False)
    log.truncate_to(offset)
    assert (log.log_end_offset, log.damage) == (offset, "")
    assert log.durable_end_offset == (15 if offset == 20 else offset)
    assert values(log) == [value_at(o) for o in range(offset)]
    fill(log, 3)
    log = killed(disk, config)
    assert values(log) == [value_at(o) for o in range(offset + 3)]


def test_truncating_inside_a_batch_takes_all_of_it() -> None:
    log = open_log(sim_disk())
    append(log, b"a")
    append(log, b"b", b"c", b"d")
    log.truncate_to(3)
    assert log.log_end_offset == 1


def test_truncating_inside_the_batch_that_holds_the_start_takes_the_start_back() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"a", b"b")
    append(log, b"c", b"d", b"e")
    log.sync()
    log.advance_log_start(3).run()
    log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    log = after_power_cut(disk)
    assert (log.log_start_offset, log.log_end_offset, log.damage) == (2, 2, "")
    append(log, b"on")
    assert values(log) == [b"on"]


def test_truncating_forgets_epochs_that_are_gone() -> None:
    log = open_log(sim_disk())
    for epoch in (0, 2, 3):
        fill(log, 4, leader_epoch=epoch)
    log.truncate_to(6)
    assert list(log.epochs) == [(0, 0), (2, 4)]
    append(log, b"x", leader_epoch=5)
    assert list(log.epochs) == [(0, 0), (2, 4), (5, 6)]


def test_a_reader_is_not_misled_by_where_batches_were_before_a_truncation() -> None:
    log = open_log(sim_disk(), ONE_SEGMENT)
    fill(log, 10)
    log.read(start_offset=0, end_offset=10, bytes_max=1_000)  # notes where the next one starts
    log.truncate_to(1)
    append(log, b"a longer one" * 30)
    fill(log, 8)
    for offset in range(1, 10):
        assert base_offsets_of(stored(log, offset))[0] == offset


def test_an_epoch_that_starts_at_the_cut_is_gone_from_the_disk_too() -> None:
    disk = sim_disk()
    first = open_log(disk)
    follow(first, leader_of((0, 4), (3, 3)))
    first.sync()
    first.truncate_to(4)
    for log in lives(first, disk, SMALL):
        assert list(log.epochs) == [(0, 0)]


@CONFIGS
@pytest.mark.parametrize("offset", [0, 1, 3, 5, 6, 10])
def test_a_follower_goes_on_with_the_new_leaders_batches(offset: int, config: TopicConfig) -> None:
    """S02, S03: the same offsets hold other bytes afterwards; epochs and producers follow."""
    old = leader_of((0, 5), (1, 6))
    disk = sim_disk()
    first = open_log(disk, config)
    follow(first, old)
    first.sync()
    new = old.fork(offset)
    new.fill(7, epoch=4, size=310)
    first.truncate_to(offset)
    follow(first, new)
    for log in lives(first, disk, config):
        assert log.damage == ""
        assert stored(log) == new.batches
        assert [log.epochs.epoch_at(o) for o in range(new.end)] == [
            0 if o < min(5, offset) else 1 if o < offset else 4 for o in range(new.end)
        ]
        assert as_model(log.producers)[7].sent[-1].last_offset == new.end - 1
        log.sync()


def test_an_epoch_that_starts_at_the_cut_goes_too() -> None:
    """Its batches are gone, and the leader may have older epochs there (as in Kafka)."""
    old = leader_of((0, 4), (3, 3))
    log = open_log(sim_disk())
    follow(log, old)
    new = old.fork(4)
    new.fill(1, epoch=2)
    log.truncate_to(4)
    assert (list(log.epochs), log.last_epoch) == ([(0, 0)], 0)
    follow(log, new)
    assert list(log.epochs) == [(0, 0), (2, 4)]


def test_producers_are_as_of_the_cut_whatever_newer_snapshots_say() -> None:
    """S27: a retry to this replica, once it leads, is judged by what it holds."""
    leader = leader_of((0, 12))
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    for at in range(0, 12, 4):
        copy(log, leader.batches[at : at + 4])
        log.close()
        log = killed(disk, SEGMENTED)
    assert len(files(disk, ".producers")) > 1
    first = log
    first.truncate_to(5)
    for log in lives(first, disk, SEGMENTED):
        assert [sent.last_offset for sent in as_model(log.producers)[7].sent] == [0, 1, 2, 3, 4]
    assert max(files(disk, ".producers")).endswith("5.producers")
    first = log
    first.truncate_to(0)
    for log in lives(first, disk, SEGMENTED):
        assert as_model(log.producers) == {}


def test_the_ends_on_disk_go_back_before_anything_else_does() -> None:
    """A crash in the middle must not look like durable, or committed, records that are gone."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.note_high_watermark(20)
    log.close()
    log = killed(disk)
    disk.faults.append(Fault({"remove"}, error=None))
    with pytest.raises(Stopped):
        log.truncate_to(7)
    found = decode_slots(disk.durable_bytes(f"{DIRECTORY}/checkpoint") or b"")
    assert found is not None
    assert (found[1].durable_end_offset, found[1].high_watermark) == (7, 7)


@pytest.mark.parametrize("act", ["truncate_to", "restart_at"])
def test_indexes_are_gone_for_good_before_any_segment_goes(act: str) -> None:
    """An index says that what it covers was durable: without its segment, it tells of damage."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.close()
    log = killed(disk)
    indexes = files(disk, ".index")
    assert len(indexes) == log.segment_count > 3
    disk.faults.append(Fault({"remove"}, error=None, path="*.log"))
    with pytest.raises(Stopped):
        getattr(log, act)(0)
    assert [path for path in indexes if disk.durable_bytes(path) is not None] == []


def test_a_ticket_that_is_out_forbids_it() -> None:
    log = open_log(sim_disk())
    fill(log, 3, sync=False)
    task = log.begin_sync()
    assert task is not None
    for act in (log.truncate_to, log.restart_at):
        with pytest.raises(AssertionError, match="task"):
            act(1)
    task.run()
    log.complete_sync(task)
    log.truncate_to(1)


@pytest.mark.parametrize("is_run_before", [False, True])
def test_a_drop_that_is_out_is_done_before_the_cut_and_never_after(is_run_before: bool) -> None:
    """Else its snapshot and log start would speak of batches that are gone."""
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    leader = leader_of((0, 12))
    follow(log, leader)
    disk.faults.append(Fault({"create"}, errno.ENOSPC, path="*.producers*"))
    log.sync()
    tasks = [log.advance_log_start(4), log.advance_log_start(7)]
    assert any(task.snapshot for task in tasks)
    if is_run_before:
        tasks[1].run()
    log.truncate_to(8)
    new = leader.fork(8)
    new.fill(5, epoch=1, is_sent=False)
    follow(log, new)
    log.sync()
    changes = disk.changes
    for task in reversed(tasks):
        task.run()
    assert disk.changes == changes
    log = after_power_cut(disk, SEGMENTED)
    assert (log.damage, log.log_start_offset, stored(log)) == ("", 7, new.after(7))
    assert as_model(log.producers)[7].sent[-1].last_offset == 7
    assert all(task.is_done for task in tasks)


def test_a_cut_that_fails_closes_the_log() -> None:
    for act in ("truncate_to", "restart_at"):
        for skip in range(8):
            disk = sim_disk()
            log = open_log(disk)
            fill(log, 9)
            disk.faults.append(Fault(CHANGES, skip=skip))
            with pytest.raises(StorageFailedError):
                getattr(log, act)(2)
            with pytest.raises(StorageFailedError):
                append(log, b"x")


def test_a_damaged_log_is_not_cut() -> None:
    """It is evidence; ``Store.quarantine`` is the way on."""
    log = open_log(sim_disk())
    fill(log, 5)
    log.note_damage("bad", offset=3)
    for act in (log.truncate_to, log.restart_at):
        with pytest.raises(DamagedLogError):
            act(2)


# -- beginning anew --------------------------------------------------------------------------------


@CONFIGS
@pytest.mark.parametrize("offset", [0, 3, 7, 12, 100])
def test_a_log_begun_anew_is_empty_and_knows_nothing(offset: int, config: TopicConfig) -> None:
    disk = sim_disk()
    first = open_log(disk, config)
    follow(first, leader_of((0, 5), (1, 7)))
    first.sync()
    first.note_high_watermark(9)
    first.restart_at(offset)
    for log in lives(first, disk, config):
        ends = (log.log_start_offset, log.log_end_offset, log.durable_end_offset)
        assert ends == (offset, offset, offset)
        assert (log.damage, log.size_bytes, log.high_watermark) == ("", 0, offset)
        assert (list(log.epochs), log.last_epoch, len(log.producers)) == ([], -1, 0)
        assert stored(log) == []
        log.restart_at(offset)
    assert files(disk, ".log") == files(disk, ".index") == files(disk, ".producers") == []
    leader = Leader(base=offset, chain=77 if offset else 0)
    leader.fill(6, epoch=0)
    follow(log, leader)
    log.sync()
    assert stored(after_power_cut(disk, config)) == leader.batches


def test_a_log_begun_anew_may_be_led() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3)
    log.restart_at(50)
    append(log, b"first", leader_epoch=9)
    log.sync()
    log = after_power_cut(disk)
    assert (log.log_start_offset, values(log), log.damage) == (50, [b"first"], "")


def test_an_old_drop_does_not_reach_into_the_new_beginning() -> None:
    disk = sim_disk()
    log = open_log(disk, SEGMENTED)
    follow(log, leader_of((0, 12)))
    log.sync()
    task = log.advance_log_start(9)
    log.restart_at(0)
    follow(log, leader_of((1, 4)))
    task.run()
    log.sync()
    log = after_power_cut(disk, SEGMENTED)
    assert (log.log_start_offset, log.log_end_offset, log.damage) == (0, 4, "")


# -- the chain of a log whose batches are gone -----------------------------------------------------


def emptied(disk: SimDisk, count: int = 7) -> int:
    """A log of which every record was deleted; the chain value of the last one."""
    log = open_log(disk, SMALL)
    fill(log, count, leader_epoch=3)
    chain = log.chain
    log.advance_log_start(count).run()
    assert (log.size_bytes, log.chain) == (0, chain)
    return chain


def test_the_chain_goes_on_after_everything_was_deleted_and_the_process_restarted() -> None:
    """Else no replica that has the deleted batches could follow this leader."""
    disk = sim_disk()
    chain = emptied(disk)
    for log in lives(killed(disk), disk):
        assert (log.chain, log.chain_at(7), log.last_epoch) == (chain, chain, 3)
    append(log, b"next", leader_epoch=4)
    log.sync()
    follower = open_log(sim_disk(2))
    fill(follower, 7, leader_epoch=3)
    copy(follower, stored(log))
    assert values(follower)[-1] == b"next"
    assert after_power_cut(disk).chain == follower.chain


def test_the_first_batch_that_is_left_has_to_follow_from_those_that_were_deleted() -> None:
    """A tail that belongs to another log is cut, even where it is all that is left."""
    disk = sim_disk()
    emptied(disk)
    log = killed(disk)
    append(log, b"one", leader_epoch=4)
    (path,) = files(disk, ".log")
    other = Leader(base=7, chain=123)
    other.append(b"one", epoch=4)
    file = disk.open(path)
    file.truncate(0)
    file.append(other.batches)
    log = killed(disk)
    assert (log.log_end_offset, stored(log)) == (7, [])
    assert "chain" in " ".join(log.notes)


def test_a_cut_back_to_the_first_batch_leaves_the_chain_of_the_deleted_ones() -> None:
    disk = sim_disk()
    chain = emptied(disk)
    first = killed(disk)
    fill(first, 2, leader_epoch=4)
    first.truncate_to(7)
    for log in lives(first, disk):
        assert (log.chain, log.last_epoch, log.log_end_offset) == (chain, 3, 7)
    fill(log, 1, leader_epoch=5)
    assert values(log) == [value_at(7)]
