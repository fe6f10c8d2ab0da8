"""A data directory: whose it is, what it refuses, and topics with their logs."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from raftlog.config import TopicConfig
from raftlog.disk import NO_ROOM, OsDisk
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    DiskFullError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    StorageFailedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.storage import Log, Store, inspect, state_files
from raftlog.storage.catalog import Dropping, Topic
from raftlog.storage.checkpoint import Copies, decode_slots
from raftlog.storage.log_dirs import LogDirs
from raftlog.storage.store import LogKey, TopicLogs
from raftlog.testing.disk import CHANGES, FOREVER, Fault, SimDisk, Stopped
from raftlog.types import TopicPartition
from tests.storage.crashes import chances_of, sweep
from tests.storage.directories import (
    DATA,
    FIRST,
    SECOND,
    add_partitions,
    create_topic,
    delete_topic,
    host,
    hosted,
    open_store,
    paths_of,
    reopened,
)
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

STORE_DATA = "var/data"


def store_open_store(disk: SimDisk, **options: object) -> Store:
    return Store.open(disk, STORE_DATA, **options)  # type: ignore[arg-type]


def store_reopened(disk: SimDisk) -> Store:
    disk.crash()
    return store_open_store(disk)


# -- whose it is -----------------------------------------------------------------------------------


def test_a_new_directory_gets_an_identity_and_keeps_it() -> None:
    disk = sim_disk()
    first = store_open_store(disk, broker_id=3, cluster_id="c").identity
    assert (first.broker_id, first.cluster_id) == (3, "c")
    disk.power_cut()
    assert store_open_store(disk).identity == first
    disk.crash()
    assert store_open_store(disk, broker_id=3, cluster_id="c").identity == first


def test_a_wiped_directory_is_another_one() -> None:
    """A replica that lost its disk must not pass for what it was (S21)."""
    first = store_open_store(sim_disk(), broker_id=3).identity
    again = store_open_store(sim_disk(), broker_id=3).identity
    assert again.directory_id != first.directory_id
    assert len(first.directory_id) == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"broker_id": 4}, "belongs to broker id 3, not 4"),
        ({"cluster_id": "d"}, "belongs to cluster id c, not d"),
    ],
)
def test_the_directory_of_another_is_refused(options: dict[str, object], message: str) -> None:
    disk = sim_disk()
    store_open_store(disk, broker_id=3, cluster_id="c").close()
    with pytest.raises(DataDirectoryError, match=message):
        store_open_store(disk, **options)
    store_open_store(disk).close()  # the refusal has let go of the lock


def test_a_directory_in_use_is_refused() -> None:
    disk = sim_disk()
    store = store_open_store(disk)
    with pytest.raises(DataDirectoryError, match="in use by another process"):
        store_open_store(disk)
    store.close()
    store_open_store(disk)


def test_a_directory_in_use_is_refused_on_a_real_disk(tmp_path: Path) -> None:
    store = Store.open(OsDisk(), f"{tmp_path}/data")
    with pytest.raises(DataDirectoryError, match="in use"):
        Store.open(OsDisk(), f"{tmp_path}/data")
    store.close()
    Store.open(OsDisk(), f"{tmp_path}/data").close()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_read_only_directory_is_refused(is_new: bool) -> None:
    """S32."""
    disk = sim_disk()
    if not is_new:
        create_topic(store_open_store(disk), "clicks", partitions=1, config={})
        disk.crash()
    disk.faults.append(Fault({*CHANGES, "open", "lock"}, errno.EROFS, times=FOREVER))
    with pytest.raises(DataDirectoryError, match=r"cannot be written.*Read-only.*read-only"):
        store_open_store(disk)


def test_a_directory_that_turns_bad_while_it_is_opened_is_refused() -> None:
    disk = sim_disk()
    create_topic(store_open_store(disk), "clicks", partitions=1, config={})
    disk.crash()
    fill(store_open_store(disk).log("clicks", 0), 2, sync=False)
    disk.crash()
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(DataDirectoryError, match=r"cannot be used.*Input/output"):
        store_open_store(disk)
    assert values(store_open_store(disk).log("clicks", 0))


def test_a_directory_of_another_format_is_refused() -> None:
    disk = sim_disk()
    store_open_store(disk).close()
    path = f"{STORE_DATA}/identity"
    state = state_files.read(disk, path)
    assert state is not None
    state_files.write(disk, path, {**state, "version": 2})
    with pytest.raises(DataDirectoryError, match=r"format version 2.*version 1"):
        store_open_store(disk)


@pytest.mark.parametrize("name", ["identity", "catalog"])
def test_damage_to_what_cannot_be_rebuilt_is_told_and_nothing_is_overwritten(name: str) -> None:
    """S29: topics that were there once must not look as if they never were."""
    disk = sim_disk()
    create_topic(store_open_store(disk), "clicks", partitions=1, config={})
    disk.crash()
    disk.flip_bit(f"{STORE_DATA}/{name}", 200)
    before = disk.read_file(f"{STORE_DATA}/{name}", bytes_max=9_999)
    with pytest.raises(DataDirectoryError, match=f"{name} is corrupt.*backup"):
        store_open_store(disk)
    assert disk.read_file(f"{STORE_DATA}/{name}", bytes_max=9_999) == before


def test_the_directorys_own_name_is_durable() -> None:
    for seed in range(10):
        disk = SimDisk(Random(seed))
        disk.make_dirs("var")
        disk.faults.append(Fault({"sync_dir"}, error=None, path="var"))
        with pytest.raises(Stopped):  # just before that name is synced
            store_open_store(disk)
        disk.faults.clear()
        disk.crash()
        store = store_open_store(disk)
        disk.power_cut()
        assert store_open_store(disk).identity == store.identity


# -- topics ----------------------------------------------------------------------------------------


def test_a_topic_has_a_log_for_each_partition() -> None:
    disk = sim_disk()
    store = store_open_store(disk)
    topic = create_topic(store, "clicks", partitions=3, config={"segment.bytes": "20000"})
    assert topic.config == TopicConfig(segment_bytes=20_000)
    for partition in range(3):
        append(store.log("clicks", partition), b"%d" % partition)
        assert store.log("clicks", partition).config == topic.config
    assert [key for key, _ in store.logs()] == [TopicPartition("clicks", n) for n in range(3)]
    store.close()
    store = store_reopened(disk)
    assert store.topic("clicks") == topic
    assert [values(store.log("clicks", n)) for n in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_what_is_not_there_is_told() -> None:
    store = store_open_store(sim_disk())
    create_topic(store, "clicks", partitions=2, config={})
    with pytest.raises(
        UnknownPartitionError, match="partition 2 of topic 'clicks' is not on this broker"
    ):
        store.log("clicks", 2)
    for act in (lambda: store.log("missing", 0), lambda: store.topic("missing")):
        with pytest.raises(UnknownTopicError):
            act()
    with pytest.raises(InvalidTopicError):
        store.topic("a/b")


def test_partitions_are_added_with_their_logs() -> None:
    disk = sim_disk()
    store = store_open_store(disk)
    create_topic(store, "clicks", partitions=1, config={})
    fill(store.log("clicks", 0), 2)
    assert add_partitions(store, "clicks", 3).partitions == 3
    append(store.log("clicks", 2), b"new")
    store.close()
    assert values(store_reopened(disk).log("clicks", 2)) == [b"new"]


def test_a_partition_that_a_killed_process_had_begun_to_add_is_durable_once_it_is_added() -> None:
    """Its directory is there already, and was never synced."""
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store = store_open_store(disk)
        topic = create_topic(store, "clicks", partitions=1, config={})
        disk.faults.append(Fault({"sync_dir"}, error=None, path=f"*/{topic.id}"))
        with pytest.raises(Stopped):
            add_partitions(store, "clicks", 2)
        disk.faults.clear()
        store = store_reopened(disk)
        add_partitions(store, "clicks", 2)
        append(store.log("clicks", 1), b"acknowledged")
        store.log("clicks", 1).sync()
        disk.power_cut()
        assert values(store_open_store(disk).log("clicks", 1)) == [b"acknowledged"]


def test_partitions_that_could_not_be_added_are_not_there() -> None:
    disk = sim_disk()
    store = store_open_store(disk)
    create_topic(store, "clicks", partitions=1, config={})
    disk.faults.append(Fault({"rename"}, errno.EIO))
    with pytest.raises(StorageFailedError):
        add_partitions(store, "clicks", 3)
    with pytest.raises(UnknownPartitionError):
        store.log("clicks", 1)
    assert len(list(store.logs())) == 1


# -- deletion --------------------------------------------------------------------------------------


def test_a_topic_created_again_never_meets_the_files_of_the_first() -> None:
    """S19."""
    disk = sim_disk()
    store = store_open_store(disk)
    create_topic(store, "clicks", partitions=2, config={})
    fill(store.log("clicks", 1), 3)
    first = delete_topic(store, "clicks")
    second = create_topic(store, "clicks", partitions=2, config={})
    assert second.id != first.id
    assert store.log("clicks", 1).log_end_offset == 0
    fill(store.log("clicks", 1), 1)
    fill(store.log("clicks", 1), 1)
    assert disk.list_dir(f"{STORE_DATA}/topics/clicks") == [second.id]
    store.close()
    assert len(values(store_reopened(disk).log("clicks", 1))) == 2


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start() -> None:
    disk = sim_disk()
    store = store_open_store(disk)
    create_topic(store, "clicks", partitions=2, config={})
    fill(store.log("clicks", 0), 3)
    delete_topic(store, "clicks")
    store_reopened(disk)
    assert disk.list_dir(f"{STORE_DATA}/topics/clicks") == []


def test_strays_are_ignored() -> None:
    disk = sim_disk()
    store = store_open_store(disk)
    topic = create_topic(store, "clicks", partitions=1, config={})
    fill(store.log("clicks", 0), 2)
    store.close()
    for stray in ("lost+found", "topics/other/0123/0", f"topics/clicks/{topic.id}/7"):
        disk.make_dirs(f"{STORE_DATA}/{stray}")
    disk.write_atomic(f"{STORE_DATA}/topics/clicks/{topic.id}/0/notes.txt", b"mine")
    disk.write_atomic(f"{STORE_DATA}/catalog.tmp", b"half of a")
    store = store_open_store(disk)
    assert list(store.topics) == ["clicks"]
    assert len(values(store.log("clicks", 0))) == 2
    assert len(list(store.logs())) == 1


# -- closing ---------------------------------------------------------------------------------------


def test_closing_makes_everything_durable() -> None:
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store = store_open_store(disk)
        create_topic(store, "clicks", partitions=3, config={})
        for _, log in store.logs():
            fill(log, 2, sync=False)
        store.close()
        disk.power_cut()
        assert [len(values(log)) for _, log in store_open_store(disk).logs()] == [2, 2, 2]


def test_one_log_that_fails_to_close_keeps_no_other_from_it() -> None:
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store = store_open_store(disk)
        create_topic(store, "clicks", partitions=3, config={})
        for _, log in store.logs():
            fill(log, 2, sync=False)
        disk.faults.append(Fault({"sync"}, path="*/1/*.log"))
        with pytest.raises(StorageFailedError):
            store.close()
        disk.power_cut()
        lengths = [len(values(log)) for _, log in store_open_store(disk).logs()]
        assert (lengths[0], lengths[2]) == (2, 2)


def test_abandoning_writes_nothing_and_lets_go() -> None:
    disk = sim_disk()
    store = store_open_store(disk)
    create_topic(store, "clicks", partitions=1, config={})
    fill(store.log("clicks", 0), 2, sync=False)
    delete_topic(store, "clicks")
    changes = disk.changes
    store.abandon()
    assert disk.changes == changes
    store_open_store(disk)


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    """Also by a log of many segments, and by a start that fails."""

    def open_descriptors() -> set[str]:
        links = set()
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the one that listed them
                links.add(os.readlink(f"/proc/self/fd/{fd}"))
        return {link for link in links if str(tmp_path) in link}

    data = f"{tmp_path}/data"
    store = Store.open(OsDisk(), data)
    topic = create_topic(store, "clicks", partitions=2, config={"segment.bytes": "16384"})
    for _ in range(3):
        fill(store.log("clicks", 0), 60, size=1_000)
        store.close()
        assert open_descriptors() == set()
        store = Store.open(OsDisk(), data)
        assert len(open_descriptors()) <= 4
    assert store.log("clicks", 0).segment_count > 8
    fill(store.log("clicks", 0), 3, sync=False)
    store.abandon()  # so that the next start has a file to sync
    (tmp_path / "data" / "topics" / "clicks" / topic.id / "1").write_text("no directory")
    with pytest.raises(DataDirectoryError):
        Store.open(OsDisk(), data)
    assert open_descriptors() == set()


# -- topic logs ------------------------------------------------------------------------------------
#
# Where logs lie, which are open, and what is removed with them. As a whole: test_store.


TOPIC_LOGS_DATA = "data"
OLD = Topic("clicks", "old", 3, hosted=(0, 2))
NEW = Topic("clicks", "new", 1)


def copies_of(disk: SimDisk) -> Copies:
    return Copies(disk, TOPIC_LOGS_DATA, new_id=lambda: "new", is_new=True)


def logs_of(*topics: Topic) -> tuple[SimDisk, TopicLogs]:
    disk = sim_disk()
    disk.make_dirs(TOPIC_LOGS_DATA)
    logs = TopicLogs(disk, LogDirs(disk, TOPIC_LOGS_DATA), copies_of(disk))
    for topic in topics:
        logs.open_all(topic)
    return disk, logs


def test_a_log_lies_under_name_id_and_number() -> None:
    disk, logs = logs_of(OLD, NEW)
    assert logs.path(OLD, 2) == f"{TOPIC_LOGS_DATA}/topics/clicks/old/2"
    assert disk.list_dir(f"{TOPIC_LOGS_DATA}/topics/clicks") == ["new", "old"]
    assert disk.list_dir(f"{TOPIC_LOGS_DATA}/topics/clicks/old") == [], "with the first record"
    for log in logs.logs():
        append(log, b"x")
    assert disk.list_dir(f"{TOPIC_LOGS_DATA}/topics/clicks/old") == ["0", "2"]
    assert [key for key, _ in logs.entries()] == [
        LogKey("old", 0),
        LogKey("old", 2),
        LogKey("new", 0),
    ]
    assert len(logs.logs()) == 3


def test_an_open_log_is_not_opened_again() -> None:
    _, logs = logs_of(OLD)
    log = logs.get("old", 2)
    assert log is not None
    append(log, b"x")
    logs.open_all(OLD)
    assert logs.get("old", 2) is log
    assert logs.get("old", 1) is None


def test_who_takes_logs_has_to_close_them() -> None:
    _, logs = logs_of(OLD, NEW)
    taken = logs.take("old", 0)
    assert taken is not None
    assert logs.take("old", 0) is None
    assert logs.take("old", 2) is not None
    assert [key for key, _ in logs.entries()] == [LogKey("new", 0)]


def test_settings_reach_the_logs_that_are_open() -> None:
    _, logs = logs_of(OLD)
    logs.take("old", 0)
    config = TopicConfig(flush_policy="os")
    logs.show_config(Topic("clicks", "old", 3, config=config, hosted=(0, 2)))
    assert [log.config for log in logs.logs()] == [config]


def test_removing_one_partition_leaves_the_others() -> None:
    disk, logs = logs_of(OLD, NEW)
    for log in logs.logs():
        append(log, b"x")
    disk.make_dirs(f"{TOPIC_LOGS_DATA}/topics/clicks/old/2.quarantine-1")
    logs.remove_partitions([Dropping("clicks", "old", 2)])
    assert disk.list_dir(f"{TOPIC_LOGS_DATA}/topics/clicks/old") == ["0"]
    logs.remove_topic(OLD)
    logs.remove_topic(OLD)
    logs.remove_partitions([Dropping("clicks", "old", 0)])
    disk.power_cut()
    assert disk.list_dir(f"{TOPIC_LOGS_DATA}/topics/clicks") == ["new"]
    log = TopicLogs(disk, LogDirs(disk, TOPIC_LOGS_DATA), copies_of(disk)).open(NEW, 0)
    assert values(log) == []


# -- full disk -------------------------------------------------------------------------------------
#
# S31: no room, at any write: refused, nothing lost, reads go on, and with room so do writes.


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
        create_topic(store, "new", partitions=2, config={})
        add_partitions(store, "old", 2)
        settings = {"retention.ms": "5"}
        store.update_topic(store.topic("old").id, overrides=settings, total_partitions=2)

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
            lambda store=store: create_topic(store, "new", partitions=2, config={}),
            lambda store=store: add_partitions(store, "old", 2),
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
        create_topic(store, "old", partitions=1, config={})
        fill(store.log("old", 0), 1)
    return store


def test_a_store_says_how_much_room_there_is() -> None:
    disk = sim_disk(capacity_bytes=1 << 20)
    store = store_on(disk)
    before = store.free_bytes()
    fill(store.log("old", 0), 1)
    assert before - store.free_bytes() == len(stored(store.log("old", 0))[-1])


# -- hosting ---------------------------------------------------------------------------------------
#
# Single partitions of topics that a cluster has placed: hosted, brought up to date, dropped.


chances = chances_of(1, 20)


# -- hosting ---------------------------------------------------------------------------------------


def test_only_the_hosted_partitions_are_here_and_they_stay() -> None:
    disk = sim_disk()
    store = open_store(disk)
    append(host(store, 2, segment_bytes="20000"), b"two")
    append(host(store, 0, segment_bytes="20000"), b"zero")
    assert paths_of(disk) == [f"clicks/{FIRST}/0", f"clicks/{FIRST}/2"]
    store.close()
    store = reopened(disk)
    topic = store.topic("clicks")
    assert (topic.id, topic.partitions, tuple(topic.local)) == (FIRST, 4, (0, 2))
    assert topic.config == TopicConfig(segment_bytes=20_000)
    assert values(store.log("clicks", 0)) == values(store.hosted_log(FIRST, 0)) == [b"zero"]
    assert values(store.log("clicks", 2)) == [b"two"]
    assert store.log("clicks", 2).config == topic.config
    assert sorted(key for key, _ in store.logs()) == [
        TopicPartition("clicks", 0),
        TopicPartition("clicks", 2),
    ]
    with pytest.raises(UnknownPartitionError, match="not on this broker"):
        store.log("clicks", 1)
    for id_, partition in ((FIRST, 1), ("other", 0)):
        with pytest.raises(UnknownPartitionError, match="not on this broker"):
            store.hosted_log(id_, partition)


def test_hosting_again_gives_the_same_log_and_writes_nothing() -> None:
    disk = sim_disk()
    store = open_store(disk)
    log = host(store, 1, count=3)
    changes = disk.changes
    assert host(store, 1) is log
    assert disk.changes == changes


def test_a_hosted_partition_is_durable_at_once() -> None:
    for seed in range(8):
        disk = sim_disk(seed)
        host(open_store(disk), 3, count=2)
        assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 3): 2}


@pytest.mark.parametrize("path", ["*/clicks", f"*/{FIRST}"])
def test_a_partition_that_a_killed_process_had_begun_to_host_is_durable_too(path: str) -> None:
    """Its directory, or that of its topic, is there already, and was never synced."""
    for seed in range(10):
        disk = sim_disk(seed)
        store = open_store(disk)
        if path != "*/clicks":
            host(store, 0)
        disk.faults.append(Fault({"sync_dir"}, error=None, path=path))
        with pytest.raises(Stopped):
            host(store, 1, count=1)
        disk.faults.clear()
        store = reopened(disk)
        host(store, 0)
        host(store, 1, count=1)
        again = reopened(disk, power_cut=True)
        assert hosted(again) == {(FIRST, 0): 0, (FIRST, 1): 1}
        log = again.hosted_log(FIRST, 1)
        assert log is not None
        assert not log.damage, "its directory did not vanish"


def test_several_are_hosted_with_one_write_of_the_catalog() -> None:
    disk = sim_disk()
    store = open_store(disk)
    counter = Fault({"rename"}, path="*catalog.tmp", skip=100)
    disk.faults.append(counter)
    logs = store.host_partitions("clicks", FIRST, [3, 1], total_partitions=4, overrides={})
    assert logs == [store.hosted_log(FIRST, 3), store.hosted_log(FIRST, 1)]
    assert counter.skip == 99


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "a/b"}, InvalidTopicError),
        ({"total": 0}, InvalidPartitionsError),
        ({"segment_bytes": "1"}, InvalidConfigError),
        ({"id_": "../.."}, AssertionError),
        ({"partition": 4}, AssertionError),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    changes: dict[str, object], error: type[Exception]
) -> None:
    disk = sim_disk()
    store = open_store(disk)
    before = disk.changes
    with pytest.raises(error):
        host(store, **{"partition": 0, **changes})  # type: ignore[arg-type]
    assert disk.changes == before


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)]
)
@pytest.mark.parametrize("operation", ["make_dir", "sync_dir", "rename"])
def test_a_partition_that_could_not_be_hosted_is_not_here(
    operation: str, code: int, error: type[Exception]
) -> None:
    disk = sim_disk()
    store = open_store(disk)
    id_ = SECOND if operation == "make_dir" else FIRST  # of a topic that has its directory
    host(store, 0, id_=id_)
    disk.faults.append(Fault({operation}, code))
    with pytest.raises(error, match=r"clicks|catalog"):
        host(store, 1)
    assert hosted(store) == {(id_, 0): 0}
    fill(host(store, 1), 2)
    assert hosted(reopened(disk)) == {(id_, 0): 0, (FIRST, 1): 2}


# -- keeping up to date ----------------------------------------------------------------------------


def test_settings_and_the_partition_count_are_brought_up_to_date() -> None:
    disk = sim_disk()
    store = open_store(disk)
    log = host(store, 1)
    changes = disk.changes
    store.update_topic(FIRST, overrides={}, total_partitions=4)
    store.update_topic("not-here", overrides={}, total_partitions=9)
    assert disk.changes == changes
    store.update_topic(FIRST, overrides={"flush.policy": "os"}, total_partitions=6)
    for found in (store, reopened(disk, power_cut=True)):
        topic = found.topic("clicks")
        assert (topic.partitions, tuple(topic.local)) == (6, (1,))
        assert topic.config.flush_policy == "os"
    assert log.config.flush_policy == "os"
    assert reopened(disk).log("clicks", 1).config.flush_policy == "os"


# -- one name, two ids (S19) -----------------------------------------------------------------------


def test_a_topic_created_again_never_meets_the_files_of_the_first_in_hosting() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=5)
    host(store, 1, count=5)
    host(store, 0, id_=SECOND, total=1, count=2)
    assert store.topic("clicks").id == SECOND
    assert store.log("clicks", 0).log_end_offset == 2
    assert hosted(store) == {(FIRST, 0): 5, (FIRST, 1): 5, (SECOND, 0): 2}
    store = reopened(disk)
    assert hosted(store) == {(FIRST, 0): 5, (FIRST, 1): 5, (SECOND, 0): 2}
    assert store.topic("clicks").id == SECOND
    store.drop_partitions(FIRST, [0])
    store.drop_partitions(FIRST, [1])
    for found in (store, reopened(disk)):
        assert hosted(found) == {(SECOND, 0): 2}
        assert found.topic("clicks").id == SECOND
    assert paths_of(disk) == [f"clicks/{SECOND}/0"]


# -- dropping --------------------------------------------------------------------------------------


def test_a_dropped_partition_is_gone_with_its_files() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=2)
    host(store, 3, count=2)
    store.drop_partitions(FIRST, [3])
    store.drop_partitions(FIRST, [3])
    assert paths_of(disk) == [f"clicks/{FIRST}/0"]
    store = reopened(disk, power_cut=True)
    assert hosted(store) == {(FIRST, 0): 2}
    store.drop_partitions(FIRST, [0])
    assert paths_of(disk) == []
    with pytest.raises(UnknownTopicError):
        store.topic("clicks")
    assert hosted(reopened(disk, power_cut=True)) == {}
    assert disk.list_dir(f"{DATA}/topics/clicks") == []


def test_a_partition_that_comes_back_is_empty() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=5)
    host(store, 1, count=5)
    store.drop_partitions(FIRST, [1])
    assert host(store, 1).log_end_offset == 0
    store.drop_partitions(FIRST, [1])
    disk.faults.append(Fault({"remove"}, errno.ENOSPC))  # a removal that is cut short
    host(store, 1, count=3)
    with pytest.raises(DiskFullError):
        store.drop_partitions(FIRST, [1])
    assert host(store, 1).log_end_offset == 0
    assert hosted(reopened(disk)) == {(FIRST, 0): 5, (FIRST, 1): 0}


def test_a_drop_without_room_for_the_catalog_has_not_happened() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=5)
    disk.faults.append(Fault({"rename"}, errno.ENOSPC, times=2))  # also of the spare space
    with pytest.raises(DiskFullError):
        store.drop_partitions(FIRST, [0])
    assert values(store.hosted_log(FIRST, 0))
    assert hosted(reopened(disk)) == {(FIRST, 0): 5}


class CountingDisk(SimDisk):
    """Counts the syncs of directories: of new names, and of replaced state files."""

    syncs = 0

    def sync_dir(self, path: str) -> None:
        self.syncs += 1
        super().sync_dir(path)


def test_many_partitions_take_as_many_syncs_as_few() -> None:
    """On a disk that takes a millisecond for each, a topic of 1,000 took seconds."""

    def syncs(count: int) -> tuple[int, int]:
        disk = CountingDisk(Random(1))
        disk.make_dirs("var")
        store = open_store(disk)
        before = disk.syncs
        store.host_partitions("clicks", FIRST, range(count), total_partitions=count, overrides={})
        made = disk.syncs
        store.drop_partitions(FIRST, range(count))
        assert hosted(reopened(disk, power_cut=True)) == {}
        return made - before, disk.syncs - made

    assert syncs(30) == syncs(2)


# -- directories -----------------------------------------------------------------------------------


def test_a_partition_gets_its_directory_with_its_first_record() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0)
    host(store, 1)
    assert paths_of(disk) == [f"clicks/{FIRST}"]
    fill(store.hosted_log(FIRST, 1), 2)
    assert paths_of(disk) == [f"clicks/{FIRST}/1"]
    assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 0): 0, (FIRST, 1): 2}
    disk.lose(f"{DATA}/topics/clicks/{FIRST}")
    store = reopened(disk)
    assert store.hosted_log(FIRST, 1).damage, "it had records"
    assert not store.hosted_log(FIRST, 0).damage
    fill(store.hosted_log(FIRST, 0), 1)


def test_a_directory_is_not_created_where_that_of_its_topic_was_lost() -> None:
    """Another file system can be in its place."""
    disk = sim_disk()
    store = open_store(disk)
    log = host(store, 1)
    disk.lose(f"{DATA}/topics/clicks")
    with pytest.raises(DamagedLogError, match="missing"):
        fill(log, 1)
    assert not disk.exists(f"{DATA}/topics/clicks")
    assert log.damage


def operations_of(disk: SimDisk) -> list[str]:
    """The changes to the disk from now on, with their paths below the data directory."""
    found: list[str] = []

    def note(operation: str, path: str) -> None:
        found.append(f"{operation} {path.removeprefix(DATA).removeprefix('/')}")

    disk.before = note
    return found


def test_the_first_record_syncs_nothing_on_the_event_loop_and_each_file_once_in_the_task() -> None:
    disk = sim_disk()
    log = host(open_store(disk), 1)
    operations = operations_of(disk)
    append(log, b"x")
    assert [each for each in operations if each.startswith("sync")] == []
    task = log.begin_sync()
    assert task is not None
    operations.clear()
    task.run()
    home, partition = f"topics/clicks/{FIRST}", f"topics/clicks/{FIRST}/1"
    assert [each for each in operations if each.startswith("sync")] == [
        f"sync {partition}/{0:020d}.log",
        f"sync {partition}/epochs.tmp",
        f"sync_dir {partition}",
        f"sync_dir {home}",
        f"sync {partition}/checkpoint",
        "sync copies.tmp",
        "sync_dir ",
    ]


def test_names_are_durable_before_a_slot_is_written_and_the_slots_before_the_record() -> None:
    """A kill in between leaves a checkpoint which shows that the names need no other sync."""
    disk = sim_disk()
    log = host(open_store(disk), 1)
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    append(log, b"x")
    task = log.begin_sync()
    assert task is not None
    seen = []

    def check(operation: str, at: str) -> None:
        if operation == "write" and at == f"{path}/checkpoint":
            assert disk.durable_bytes(f"{path}/{0:020d}.log")
            assert disk.durable_bytes(at) is not None
            seen.append("slot")
        elif operation == "create" and at == f"{DATA}/copies.tmp":
            found = decode_slots(disk.durable_bytes(f"{path}/checkpoint") or b"")
            assert found is not None
            assert (found[0], found[1].durable_end_offset) == (2, 1)
            seen.append("record")

    disk.before = check
    task.run()
    assert seen == ["slot", "slot", "record"]


def test_names_are_durable_before_a_slot_of_a_log_that_restarts_at_an_offset() -> None:
    """There is no sync task: the first write to the checkpoint syncs them."""
    disk = sim_disk()
    log = host(open_store(disk), 1)
    log.restart_at(7)
    assert disk.durable_bytes(f"{DATA}/topics/clicks/{FIRST}/1/checkpoint")
    assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 1): 7}


def test_a_full_disk_does_not_excuse_a_name_that_is_not_durable() -> None:
    """Other errors of a full disk are ignored after the records are durable."""
    disk = sim_disk()
    log = host(open_store(disk), 1)
    append(log, b"x")
    disk.faults.append(Fault({"sync_dir"}, errno.ENOSPC, path=f"{DATA}/topics/clicks/{FIRST}"))
    with pytest.raises(StorageFailedError):
        log.sync()


@pytest.mark.parametrize("is_full", [False, True])
def test_records_of_a_killed_process_have_a_durable_directory_once_they_are_open(
    is_full: bool,
) -> None:
    """They count as durable, and no sync task follows."""
    disk = sim_disk()
    append(host(open_store(disk), 1), b"x")
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    disk.crash()
    disk.lose(f"{path}/checkpoint")  # as a power failure may
    if is_full:
        disk.capacity_bytes = disk.used_bytes
    log = open_store(disk).hosted_log(FIRST, 1)
    assert log.durable_end_offset == 1
    assert disk.durable_bytes(f"{path}/{0:020d}.log")
    assert is_full or disk.durable_bytes(f"{path}/checkpoint") is not None
    disk.capacity_bytes = None
    fill(log, 1)
    assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 1): 2}


def test_names_that_a_killed_process_has_created_are_made_durable() -> None:
    disk = sim_disk()
    log = host(open_store(disk), 1)
    disk.faults.append(Fault({"create"}, error=None, path="*.log"))
    with pytest.raises(Stopped):
        append(log, b"x")
    log = reopened(disk).hosted_log(FIRST, 1)
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    assert disk.exists(f"{path}/checkpoint")
    fill(log, 1)
    assert disk.durable_bytes(f"{path}/{0:020d}.log")


def without_checkpoint(disk: SimDisk) -> Log:
    """A log with a record that opened without a checkpoint, because the disk was full."""
    append(host(open_store(disk), 1, segment_bytes="16384"), b"x")
    disk.crash()
    disk.lose(f"{DATA}/topics/clicks/{FIRST}/1/checkpoint")
    disk.faults.append(Fault({"create"}, errno.ENOSPC, path="*/checkpoint"))
    return open_store(disk).hosted_log(FIRST, 1)


def test_a_checkpoint_that_is_created_before_a_truncation_is_named() -> None:
    disk = sim_disk()
    log = without_checkpoint(disk)
    append(log, b"y")
    path = f"{DATA}/topics/clicks/{FIRST}/1/checkpoint"
    disk.faults.append(Fault({"sync_dir"}, errno.ENOSPC, path=f"*/{FIRST}/1"))
    with pytest.raises(StorageFailedError):
        log.truncate_to(1)
    assert disk.exists(path)


def test_a_checkpoint_that_is_created_while_a_task_runs_is_not_covered_by_it() -> None:
    """The task has synced the directory before, if the disk was full at the start."""
    disk = sim_disk()
    log = without_checkpoint(disk)
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    append(log, b"y", leader_epoch=4)
    task = log.begin_sync()
    assert task is not None
    sync_dir = disk.sync_dir

    def sync_dir_and_roll(at: str) -> None:
        sync_dir(at)
        if log.segment_count == 1:
            append(log, bytes(16_300))

    disk.sync_dir = sync_dir_and_roll  # type: ignore[method-assign]
    task.run()
    assert log.segment_count == 2
    assert disk.durable_bytes(f"{path}/checkpoint") is not None


# -- crashes ---------------------------------------------------------------------------------------


@dataclass
class Hosts:
    """Which records of which partitions a crash may leave: one of these."""

    store: Store
    legal: list[dict[tuple[str, int], int]]


def prepare_two(disk: SimDisk) -> Hosts:
    store = open_store(disk)
    host(store, 0, count=2)
    host(store, 2, count=3)
    return Hosts(store, [{(FIRST, 0): 2, (FIRST, 2): 3}])


def check_hosts(disk: SimDisk, state: Hosts) -> None:
    store = open_store(disk)
    found = hosted(store)
    assert found in state.legal
    assert not any(log.damage for _, log in store.logs())
    for (id_, partition), end in found.items():
        log = store.hosted_log(id_, partition)
        append(log, b"on")
        log.sync()
        found[id_, partition] = end + 1
    store = reopened(disk, power_cut=True)
    assert hosted(store) == found
    state.legal = [found]
    hosts = {f"clicks/{id_}/{partition}" for id_, partition in found}
    for path in set(paths_of(disk)) - hosts:  # hosted by half
        assert files(disk, ".log", f"{DATA}/topics/{path}") == []
    store.abandon()
    disk.crash()


def test_hosting_partitions(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Hosts) -> None:
        (before,) = state.legal
        for id_, partition in ((FIRST, 1), (SECOND, 0)):
            after = {**before, (id_, partition): 0}
            state.legal = [before, after]
            host(state.store, partition, id_=id_)
            before = after
            state.legal = [after]

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_the_first_records_of_a_partition(chances: int, seed: int) -> None:
    """Without its directory, the partition is empty; no record that was durable is lost."""

    def act(disk: SimDisk, state: Hosts) -> None:
        (before,) = state.legal

        def ends(*counts: int) -> list[dict[tuple[str, int], int]]:
            return [{**before, (FIRST, 1): count} for count in counts]

        state.legal = [before, *ends(0)]
        log = host(state.store, 1)
        for count in (1, 2):
            state.legal = ends(count - 1, count)
            fill(log, 1)
            state.legal = ends(count)

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_dropping_partitions(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Hosts) -> None:
        state.legal = [{(FIRST, 0): 2, (FIRST, 2): 3}, {(FIRST, 0): 2}]
        state.store.drop_partitions(FIRST, [2])
        state.legal = [{(FIRST, 0): 2}, {}]
        state.store.drop_partitions(FIRST, [0])
        state.legal = [{}]

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_dropping_and_hosting_again(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Hosts) -> None:
        state.legal = [{(FIRST, 0): 2, (FIRST, 2): 3}, {(FIRST, 0): 2}]
        state.store.drop_partitions(FIRST, [2])
        state.legal = [{(FIRST, 0): 2}, {(FIRST, 0): 2, (FIRST, 2): 0}]
        host(state.store, 2)
        state.legal = [{(FIRST, 0): 2, (FIRST, 2): 0}]

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_a_restored_copy_that_was_removed_is_quarantined() -> None:
    """A replica that comes back to the broker must not continue with its older records."""
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0)
    host(store, 1, count=3)
    image = disk.image("var/data/topics")
    store.drop_partitions(FIRST, [1])
    store.abandon()
    disk.crash()
    disk.put_back("var/data/topics", image)
    store = open_store(disk)
    assert hosted(store) == {(FIRST, 0): 0}
    assert [note.split()[1:5] for note in store.notes] == [["is", "no", "copy", "of"]]
    assert disk.list_dir(f"var/data/topics/clicks/{FIRST}") == ["1.quarantine-1"]
    host(store, 1)
    assert hosted(store) == {(FIRST, 0): 0, (FIRST, 1): 0}


def test_a_copy_that_an_older_catalog_lacks_is_kept() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0)
    older = disk.image("var/data/catalog")
    host(store, 1, count=3)
    store.close()
    disk.put_back("var/data/catalog", older)
    store = open_store(disk)
    assert store.notes == []
    host(store, 1)
    assert hosted(store) == {(FIRST, 0): 0, (FIRST, 1): 3}
