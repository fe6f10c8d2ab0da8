"""S31: no room, at any write: refused, nothing lost, reads go on, and with room so do writes."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from raftlog.config import TopicConfig
from raftlog.disk import NO_ROOM
from raftlog.errors import DiskFullError
from raftlog.storage import Log, Store, inspect
from raftlog.testing.disk import FOREVER, Fault, SimDisk
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    after_power_cut,
    append,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    value_at,
    values,
)

TAKES_ROOM = {"create", "write", "rename", "make_dir"}


def fill_up(disk: SimDisk, bytes_left: int = 0) -> None:
    disk.capacity_bytes = 1 << 40
    used = disk.capacity_bytes - disk.free_bytes(".")
    disk.capacity_bytes = used + bytes_left


def append_next(log: Log, **options: int) -> None:
    append(log, value_at(log.log_end_offset), producer=(7, 0, log.log_end_offset), **options)


def test_a_full_disk_refuses_and_reads_go_on() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 5)
    fill_up(disk, 100)
    for _ in range(3):
        with pytest.raises(DiskFullError, match=r"no space.*reads continue"):
            append(log, b"x" * 200)
    assert log.log_end_offset == 5
    assert values(log) == [value_at(offset) for offset in range(5)]
    log.sync()
    assert log.durable_end_offset == 5


def test_with_room_writes_go_on_by_themselves() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for _ in range(4):
        fill_up(disk, 300)
        with pytest.raises(DiskFullError):
            fill(log, 99)
        disk.capacity_bytes = None
        fill(log, 3)
    end = log.log_end_offset
    assert values(log) == [value_at(offset) for offset in range(end)]
    assert values(after_power_cut(disk)) == [value_at(offset) for offset in range(end)]


def test_half_a_batch_leaves_no_trace() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 2)
    (path,) = files(disk, ".log")
    before = disk.read_file(path, bytes_max=1 << 20)
    for bytes_left in (0, 1, 40, 88, 200):
        fill_up(disk, bytes_left)
        with pytest.raises(DiskFullError):
            append(log, b"x" * 200)
        assert disk.read_file(path, bytes_max=1 << 20) == before
    assert killed(disk).notes == []


@pytest.mark.parametrize("code", sorted(NO_ROOM))
def test_no_room_at_any_single_write_leaves_a_log_that_goes_on(code: int) -> None:
    """Segments, epochs, the checkpoint, indexes and snapshots all take room."""

    def act(log: Log) -> int:
        """Rolls, new epochs, syncs; returns how many appends were refused."""
        refused = 0
        for number in range(12):
            epoch = number // 4
            try:
                append_next(log, leader_epoch=max(epoch, log.leader_epoch))
            except DiskFullError:
                refused += 1
                append_next(log, leader_epoch=max(epoch, log.leader_epoch))
            if number % 3 == 2:
                log.sync()
        return refused

    disk = sim_disk()
    act(open_log(disk))
    changes, refusals = disk.changes, 0
    for skip in range(changes):
        disk = sim_disk()
        log = open_log(disk)
        fault = Fault(TAKES_ROOM, code, skip=skip)
        disk.faults.append(fault)
        refusals += act(log)
        disk.faults.clear()
        expected = [value_at(offset) for offset in range(12)]
        assert values(log) == expected
        log.close()
        log = after_power_cut(disk)
        assert (values(log), log.damage) == (expected, "")
        assert [log.epochs.epoch_at(offset) for offset in range(12)] == [0] * 4 + [1] * 4 + [2] * 4
        append_next(log)
        if fault.times:
            break  # it struck no more: every write had its turn
    assert refusals > 12


def test_closing_on_a_full_disk_ends_and_loses_nothing() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 8, sync=False)
    fill_up(disk)
    log.close()
    log = killed(disk)
    assert values(log) == [value_at(offset) for offset in range(8)]
    assert [name for name in disk.list_dir(DIRECTORY) if name.endswith(".tmp")] == []


def test_starting_on_a_full_disk_works() -> None:
    for harm in ("", "epochs", "checkpoint"):
        disk = sim_disk()
        log = open_log(disk)
        fill(log, 8)
        fill(log, 3, leader_epoch=2, sync=False)
        if harm:
            disk.flip_bit(f"{DIRECTORY}/{harm}", 100)
        fill_up(disk)
        log = killed(disk)
        assert values(log) == [value_at(offset) for offset in range(11)]
        assert log.leader_epoch == 2
        with pytest.raises(DiskFullError):
            append(log, b"x")


# -- making room -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [15, 20])
def test_deleting_records_works_on_a_full_disk_and_makes_room(start: int) -> None:
    """The checkpoint is overwritten in place; nothing else is needed."""
    disk = sim_disk()
    log = open_log(disk)
    for number in range(20):
        append_next(log, leader_epoch=number // 5)
    log.sync()
    fill_up(disk)
    log.advance_log_start(start).run()
    assert disk.free_bytes(DIRECTORY) > 2_000
    append_next(log)
    log.sync()
    log = after_power_cut(disk)
    assert values(log) == [value_at(offset) for offset in range(start, 21)]
    append_next(log)  # its producer is known still


def test_producers_are_saved_in_the_room_that_deleting_them_has_made() -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    for _ in range(20):
        append_next(log)
    log.sync()
    fill_up(disk)
    assert files(disk, ".producers") == []
    log.advance_log_start(20).run()
    append_next(after_power_cut(disk, ONE_SEGMENT))


def test_deleting_works_on_a_disk_that_was_full_from_the_first_batch_on() -> None:
    """The checkpoint has all its room before that."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 1, sync=False)
    fill_up(disk)
    log.sync()
    log.advance_log_start(1).run()
    assert killed(disk).log_start_offset == 1


def test_retention_works_on_a_full_disk() -> None:
    disk = sim_disk()
    config = TopicConfig(segment_bytes=2_000, retention_bytes=2_500)
    log = open_log(disk, config)
    fill(log, 30)
    fill_up(disk)
    task = log.apply_retention(now_ms=NOW_MS, high_watermark=30)
    assert task is not None
    task.run()
    fill(log, 5)
    assert log.size_bytes < 6_500


def test_when_even_a_name_takes_room_the_last_segment_goes_another_time() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    names = Fault({"create"}, errno.ENOSPC, path="*.log", times=FOREVER)
    disk.faults.append(names)
    log.advance_log_start(20).run()
    assert log.log_start_offset == 20
    assert len(files(disk, ".log")) == 1
    disk.faults.clear()
    task = log.apply_retention(now_ms=NOW_MS, high_watermark=20)
    assert task is not None
    task.run()
    assert files(disk, ".log") == [f"{DIRECTORY}/{20:020d}.log"]


def test_truncating_works_on_a_full_disk() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for epoch in range(4):
        fill(log, 5, leader_epoch=epoch)
    fill_up(disk)
    log.truncate_to(7)
    assert list(log.epochs) == [(0, 0), (1, 5)]
    log = after_power_cut(disk)
    assert values(log) == [value_at(offset) for offset in range(7)]
    assert [log.epochs.epoch_at(offset) for offset in (0, 4, 5, 6)] == [0, 0, 1, 1]


# -- a store ---------------------------------------------------------------------------------------


def test_no_room_at_any_change_to_topics_leaves_the_store_as_it_was() -> None:
    def act(store: Store) -> None:
        store.create_topic("new", partitions=2, config={})
        store.add_partitions("old", 2)
        store.alter_topic("old", {"retention.ms": "5"})

    disk = sim_disk()
    act(store_on(disk))
    for skip in range(disk.changes):
        disk = sim_disk()
        store = store_on(disk)
        disk.faults.append(Fault(TAKES_ROOM, errno.ENOSPC, skip=skip))
        with suppress(DiskFullError):
            act(store)
        disk.faults.clear()
        for repeat in (
            lambda store=store: store.create_topic("new", partitions=2, config={}),
            lambda store=store: store.add_partitions("old", 2),
        ):
            with suppress(Exception):  # those that were done already
                repeat()
        disk.crash()
        store = store_on(disk)
        assert {t.name: t.partitions for t in store.topics.values()} == {"old": 2, "new": 2}
        assert values(store.log("old", 0)) == [value_at(0)]
        for topic, partition in (("old", 1), ("new", 0), ("new", 1)):
            fill(store.log(topic, partition), 1)
        assert all(not report.problems for report in inspect.verify(disk, "data"))


def store_on(disk: SimDisk) -> Store:
    store = Store.open(disk, "data")
    if not store.topics:
        store.create_topic("old", partitions=1, config={})
        fill(store.log("old", 0), 1)
    return store


def test_a_store_says_how_much_room_there_is() -> None:
    disk = sim_disk(capacity_bytes=1 << 20)
    store = store_on(disk)
    before = store.free_bytes()
    fill(store.log("old", 0), 1)
    assert before - store.free_bytes() == len(stored(store.log("old", 0))[-1])
