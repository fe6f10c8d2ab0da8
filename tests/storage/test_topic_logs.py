"""Where logs lie, which are open, and what is removed with them. As a whole: test_store."""

from __future__ import annotations

from raftlog.config import TopicConfig
from raftlog.storage.catalog import Dropping, Topic
from raftlog.storage.checkpoint import Copies
from raftlog.storage.log_dirs import LogDirs
from raftlog.storage.store import LogKey, TopicLogs
from raftlog.testing.disk import SimDisk
from tests.storage.logs import append, sim_disk, values

DATA = "data"
OLD = Topic("clicks", "old", 3, hosted=(0, 2))
NEW = Topic("clicks", "new", 1)


def copies_of(disk: SimDisk) -> Copies:
    return Copies(disk, DATA, new_id=lambda: "new", is_new=True)


def logs_of(*topics: Topic) -> tuple[SimDisk, TopicLogs]:
    disk = sim_disk()
    disk.make_dirs(DATA)
    logs = TopicLogs(disk, LogDirs(disk, DATA), copies_of(disk))
    for topic in topics:
        logs.open_all(topic)
    return disk, logs


def test_a_log_lies_under_name_id_and_number() -> None:
    disk, logs = logs_of(OLD, NEW)
    assert logs.path(OLD, 2) == f"{DATA}/topics/clicks/old/2"
    assert disk.list_dir(f"{DATA}/topics/clicks") == ["new", "old"]
    assert disk.list_dir(f"{DATA}/topics/clicks/old") == [], "with the first record"
    for log in logs.logs():
        append(log, b"x")
    assert disk.list_dir(f"{DATA}/topics/clicks/old") == ["0", "2"]
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
    disk.make_dirs(f"{DATA}/topics/clicks/old/2.quarantine-1")
    logs.remove_partitions([Dropping("clicks", "old", 2)])
    assert disk.list_dir(f"{DATA}/topics/clicks/old") == ["0"]
    logs.remove_topic(OLD)
    logs.remove_topic(OLD)
    logs.remove_partitions([Dropping("clicks", "old", 0)])
    disk.power_cut()
    assert disk.list_dir(f"{DATA}/topics/clicks") == ["new"]
    log = TopicLogs(disk, LogDirs(disk, DATA), copies_of(disk)).open(NEW, 0)
    assert values(log) == []
