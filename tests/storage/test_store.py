"""A data directory: whose it is, what it refuses, and topics with their logs."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from raftlog.config import TopicConfig
from raftlog.disk import OsDisk
from raftlog.errors import (
    DataDirectoryError,
    InvalidPartitionsError,
    InvalidTopicError,
    StorageFailedError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.storage import Store, state_files
from raftlog.storage.catalog import Dropping, Topic
from raftlog.storage.checkpoint import Copies
from raftlog.storage.log_dirs import LogDirs
from raftlog.storage.store import LogKey, TopicLogs
from raftlog.testing.disk import CHANGES, FOREVER, Fault, SimDisk, Stopped
from raftlog.types import TopicPartition
from tests.storage.logs import append, fill, sim_disk, values

DATA = "var/data"


def open_store(disk: SimDisk, **options: object) -> Store:
    return Store.open(disk, DATA, **options)  # type: ignore[arg-type]


def reopened(disk: SimDisk) -> Store:
    disk.crash()
    return open_store(disk)


# -- whose it is -----------------------------------------------------------------------------------


def test_a_new_directory_gets_an_identity_and_keeps_it() -> None:
    disk = sim_disk()
    first = open_store(disk, broker_id=3, cluster_id="c").identity
    assert (first.broker_id, first.cluster_id) == (3, "c")
    disk.power_cut()
    assert open_store(disk).identity == first
    disk.crash()
    assert open_store(disk, broker_id=3, cluster_id="c").identity == first


def test_a_wiped_directory_is_another_one() -> None:
    """A replica that lost its disk must not pass for what it was (S21)."""
    first = open_store(sim_disk(), broker_id=3).identity
    again = open_store(sim_disk(), broker_id=3).identity
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
    open_store(disk, broker_id=3, cluster_id="c").close()
    with pytest.raises(DataDirectoryError, match=message):
        open_store(disk, **options)
    open_store(disk).close()  # the refusal has let go of the lock


def test_a_directory_in_use_is_refused() -> None:
    disk = sim_disk()
    store = open_store(disk)
    with pytest.raises(DataDirectoryError, match="in use by another process"):
        open_store(disk)
    store.close()
    open_store(disk)


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
        open_store(disk).create_topic("clicks", partitions=1, config={})
        disk.crash()
    disk.faults.append(Fault({*CHANGES, "open", "lock"}, errno.EROFS, times=FOREVER))
    with pytest.raises(DataDirectoryError, match=r"cannot be written.*Read-only.*read-only"):
        open_store(disk)


def test_a_directory_that_turns_bad_while_it_is_opened_is_refused() -> None:
    disk = sim_disk()
    open_store(disk).create_topic("clicks", partitions=1, config={})
    disk.crash()
    fill(open_store(disk).log("clicks", 0), 2, sync=False)
    disk.crash()
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(DataDirectoryError, match=r"cannot be used.*Input/output"):
        open_store(disk)
    assert values(open_store(disk).log("clicks", 0))


def test_a_directory_of_another_format_is_refused() -> None:
    disk = sim_disk()
    open_store(disk).close()
    path = f"{DATA}/identity"
    state = state_files.read(disk, path)
    assert state is not None
    state_files.write(disk, path, {**state, "version": 2})
    with pytest.raises(DataDirectoryError, match=r"format version 2.*version 1"):
        open_store(disk)


@pytest.mark.parametrize("name", ["identity", "catalog"])
def test_damage_to_what_cannot_be_rebuilt_is_told_and_nothing_is_overwritten(name: str) -> None:
    """S29: topics that were there once must not look as if they never were."""
    disk = sim_disk()
    open_store(disk).create_topic("clicks", partitions=1, config={})
    disk.crash()
    disk.flip_bit(f"{DATA}/{name}", 200)
    before = disk.read_file(f"{DATA}/{name}", bytes_max=9_999)
    with pytest.raises(DataDirectoryError, match=f"{name} is corrupt.*backup"):
        open_store(disk)
    assert disk.read_file(f"{DATA}/{name}", bytes_max=9_999) == before


def test_the_directorys_own_name_is_durable() -> None:
    for seed in range(10):
        disk = SimDisk(Random(seed))
        disk.make_dirs("var")
        disk.faults.append(Fault({"sync_dir"}, error=None, path="var"))
        with pytest.raises(Stopped):  # just before that name is synced
            open_store(disk)
        disk.faults.clear()
        disk.crash()
        store = open_store(disk)
        disk.power_cut()
        assert open_store(disk).identity == store.identity


# -- topics ----------------------------------------------------------------------------------------


def test_a_topic_has_a_log_for_each_partition() -> None:
    disk = sim_disk()
    store = open_store(disk)
    topic = store.create_topic("clicks", partitions=3, config={"segment.bytes": "20000"})
    assert topic.config == TopicConfig(segment_bytes=20_000)
    for partition in range(3):
        append(store.log("clicks", partition), b"%d" % partition)
        assert store.log("clicks", partition).config == topic.config
    assert [key for key, _ in store.logs()] == [TopicPartition("clicks", n) for n in range(3)]
    store.close()
    store = reopened(disk)
    assert store.topic("clicks") == topic
    assert [values(store.log("clicks", n)) for n in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_what_is_not_there_is_told() -> None:
    store = open_store(sim_disk())
    store.create_topic("clicks", partitions=2, config={})
    with pytest.raises(UnknownPartitionError, match="no partition 2: it has 2"):
        store.log("clicks", 2)
    for act in (lambda: store.log("missing", 0), lambda: store.topic("missing")):
        with pytest.raises(UnknownTopicError):
            act()
    with pytest.raises(InvalidTopicError):
        store.topic("a/b")
    with pytest.raises(TopicExistsError):
        store.create_topic("clicks", partitions=1, config={})


def test_a_new_setting_reaches_the_logs() -> None:
    store = open_store(sim_disk())
    store.create_topic("clicks", partitions=2, config={})
    topic = store.alter_topic("clicks", {"segment.ms": "5"})
    assert all(log.config == topic.config for _, log in store.logs())


def test_partitions_are_added_with_their_logs() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=1, config={})
    fill(store.log("clicks", 0), 2)
    assert store.add_partitions("clicks", 3).partitions == 3
    append(store.log("clicks", 2), b"new")
    store.close()
    assert values(reopened(disk).log("clicks", 2)) == [b"new"]


def test_a_partition_that_a_killed_process_had_begun_to_add_is_durable_once_it_is_added() -> None:
    """Its directory is there already, and was never synced."""
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store = open_store(disk)
        topic = store.create_topic("clicks", partitions=1, config={})
        disk.faults.append(Fault({"sync_dir"}, error=None, path=f"*/{topic.id}"))
        with pytest.raises(Stopped):
            store.add_partitions("clicks", 2)
        disk.faults.clear()
        store = reopened(disk)
        store.add_partitions("clicks", 2)
        append(store.log("clicks", 1), b"acknowledged")
        store.log("clicks", 1).sync()
        disk.power_cut()
        assert values(open_store(disk).log("clicks", 1)) == [b"acknowledged"]


@pytest.mark.parametrize("total", [1, 0, -5, 1_000_000_000])
def test_a_bad_partition_count_makes_no_directories(total: int) -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=1, config={})
    changes = disk.changes
    with pytest.raises(InvalidPartitionsError):
        store.add_partitions("clicks", total)
    assert disk.changes == changes


def test_partitions_that_could_not_be_added_are_not_there() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=1, config={})
    disk.faults.append(Fault({"rename"}, errno.EIO))
    with pytest.raises(StorageFailedError):
        store.add_partitions("clicks", 3)
    with pytest.raises(UnknownPartitionError):
        store.log("clicks", 1)
    assert len(list(store.logs())) == 1


def test_a_topic_that_could_not_be_created_leaves_nothing() -> None:
    disk = sim_disk()
    store = open_store(disk)
    for operation in ("make_dir", "rename"):
        disk.faults.append(Fault({operation}, errno.EIO, skip=operation == "make_dir"))
        with pytest.raises(StorageFailedError, match=r"clicks|catalog"):
            store.create_topic("clicks", partitions=2, config={})
        assert list(store.logs()) == []
        assert disk.list_dir(f"{DATA}/topics/clicks") == []
    store.create_topic("clicks", partitions=2, config={})


# -- deletion --------------------------------------------------------------------------------------


def test_a_deleted_topics_logs_stay_open_until_they_are_discarded() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=1, config={})
    log = store.log("clicks", 0)
    fill(log, 2)
    topic = store.delete_topic("clicks")
    with pytest.raises(UnknownTopicError):
        store.log("clicks", 0)
    assert len(values(log)) == 2
    store.discard(topic)
    assert disk.list_dir(f"{DATA}/topics/clicks") == []
    assert reopened(disk).topics == {}


def test_a_topic_created_again_never_meets_the_files_of_the_first() -> None:
    """S19; also while the first one's logs are not discarded yet."""
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=2, config={})
    fill(store.log("clicks", 1), 3)
    first = store.delete_topic("clicks")
    second = store.create_topic("clicks", partitions=2, config={})
    assert second.id != first.id
    assert store.log("clicks", 1).log_end_offset == 0
    fill(store.log("clicks", 1), 1)
    store.discard(first)
    fill(store.log("clicks", 1), 1)
    assert disk.list_dir(f"{DATA}/topics/clicks") == [second.id]
    store.close()
    assert len(values(reopened(disk).log("clicks", 1))) == 2


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=2, config={})
    fill(store.log("clicks", 0), 3)
    store.delete_topic("clicks")
    reopened(disk)
    assert disk.list_dir(f"{DATA}/topics/clicks") == []


def test_strays_are_ignored() -> None:
    disk = sim_disk()
    store = open_store(disk)
    topic = store.create_topic("clicks", partitions=1, config={})
    fill(store.log("clicks", 0), 2)
    store.close()
    for stray in ("lost+found", "topics/other/0123/0", f"topics/clicks/{topic.id}/7"):
        disk.make_dirs(f"{DATA}/{stray}")
    disk.write_atomic(f"{DATA}/topics/clicks/{topic.id}/0/notes.txt", b"mine")
    disk.write_atomic(f"{DATA}/catalog.tmp", b"half of a")
    store = open_store(disk)
    assert list(store.topics) == ["clicks"]
    assert len(values(store.log("clicks", 0))) == 2
    assert len(list(store.logs())) == 1


def test_a_discard_that_fails_is_told() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=1, config={})
    topic = store.delete_topic("clicks")
    disk.faults.append(Fault({"remove"}))
    with pytest.raises(StorageFailedError, match="clicks"):
        store.discard(topic)


# -- closing ---------------------------------------------------------------------------------------


def test_closing_makes_everything_durable() -> None:
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store = open_store(disk)
        store.create_topic("clicks", partitions=3, config={})
        for _, log in store.logs():
            fill(log, 2, sync=False)
        store.close()
        disk.power_cut()
        assert [len(values(log)) for _, log in open_store(disk).logs()] == [2, 2, 2]


def test_one_log_that_fails_to_close_keeps_no_other_from_it() -> None:
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store = open_store(disk)
        store.create_topic("clicks", partitions=3, config={})
        for _, log in store.logs():
            fill(log, 2, sync=False)
        disk.faults.append(Fault({"sync"}, path="*/1/*.log"))
        with pytest.raises(StorageFailedError):
            store.close()
        disk.power_cut()
        lengths = [len(values(log)) for _, log in open_store(disk).logs()]
        assert (lengths[0], lengths[2]) == (2, 2)


def test_abandoning_writes_nothing_and_lets_go() -> None:
    disk = sim_disk()
    store = open_store(disk)
    store.create_topic("clicks", partitions=1, config={})
    fill(store.log("clicks", 0), 2, sync=False)
    store.delete_topic("clicks")
    changes = disk.changes
    store.abandon()
    assert disk.changes == changes
    open_store(disk)


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
    topic = store.create_topic("clicks", partitions=2, config={"segment.bytes": "16384"})
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
    assert len(logs.take_all(OLD)) == 1
    assert [key for key, _ in logs.entries()] == [LogKey("new", 0)]
    assert logs.take_all(NEW, first=1) == []


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
