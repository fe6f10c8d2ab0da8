"""Log directories on several disks: which one a replica is in, and what a failed one takes down."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raftlog.disk import OsDisk
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    DiskFullError,
    StorageFailedError,
)
from raftlog.storage import Log, Store
from raftlog.storage.log_dirs import PROBE_BYTES, LogDir
from raftlog.testing.disk import CHANGES, FOREVER, Fault, SimDisk, Stopped
from tests.storage.logs import append, fill, sim_disk, values

DATA, MORE, THIRD = "data", "disks/2", "disks/3"


def open_store(disk: SimDisk, *log_dirs: str, **options: object) -> Store:
    return Store.open(disk, DATA, log_dirs=log_dirs, **options)  # type: ignore[arg-type]


def reopened(disk: SimDisk, *log_dirs: str, **options: object) -> Store:
    disk.crash()
    return open_store(disk, *log_dirs, **options)


def filled(disk: SimDisk, *log_dirs: str, partitions: int = 4, **options: object) -> Store:
    """A store with a record in each log."""
    store = open_store(disk, *log_dirs, **options)
    host(store, range(partitions))
    for _, log in store.logs():
        fill(log, 1)
    return store


def host(store: Store, partitions: range, total: int = 100) -> list[Log]:
    return store.host_partitions("t", "id", list(partitions), total_partitions=total, overrides={})


def roots(store: Store) -> list[str]:
    """The log directory of each partition."""
    return [log.log_dir.path for _, log in sorted(store.logs())]


def in_root(store: Store, path: str) -> list[Log]:
    return [log for _, log in sorted(store.logs()) if log.log_dir.path == path]


# -- placement -------------------------------------------------------------------------------------


def test_replicas_are_spread_over_all_directories_and_stay_there() -> None:
    disk = sim_disk()
    store = filled(disk, MORE, THIRD, partitions=5)
    assert roots(store) == [DATA, MORE, THIRD, DATA, MORE]
    assert disk.exists(f"{MORE}/topics/t/id/1")
    assert not disk.exists(f"{DATA}/topics/t/id/1")
    again = reopened(disk, MORE, THIRD)
    assert roots(again) == roots(store)
    assert all(len(values(log)) == 1 and not log.damage for _, log in again.logs())


def test_a_topic_of_a_single_broker_is_spread_too() -> None:
    disk = sim_disk()
    store = open_store(disk, MORE)
    store.create_topic("clicks", partitions=2, config={})
    store.add_partitions("clicks", 4)
    assert roots(store) == [DATA, MORE, DATA, MORE]
    store.discard(store.delete_topic("clicks"))
    assert disk.list_dir(f"{MORE}/topics/clicks") == []
    assert roots(reopened(disk, MORE)) == []


def test_existing_data_stays_where_it_is_and_without_the_setting_nothing_is_written() -> None:
    disk = sim_disk()
    filled(disk, partitions=2).close()
    before = disk.read_file(f"{DATA}/catalog", bytes_max=10_000)
    assert b"log_dirs" not in before
    store = open_store(disk, MORE)
    assert roots(store) == [DATA, DATA]
    host(store, range(4))
    assert roots(store) == [DATA, DATA, MORE, MORE]


def test_an_interrupted_creation_is_continued_where_it_was() -> None:
    disk = sim_disk()
    open_store(disk, MORE).close()
    disk.make_dirs(f"{MORE}/topics/t/id/0")
    store = open_store(disk, MORE)
    host(store, range(1))
    assert roots(store) == [MORE]


def test_avoided_and_failed_directories_get_no_new_replicas() -> None:
    store = open_store(sim_disk(), MORE, THIRD)
    more, third = store.log_dirs.further
    more.is_avoided = lambda: True
    third.fail("out of order")
    host(store, range(3))
    assert roots(store) == [DATA] * 3


# -- a disk fails while the store is open ----------------------------------------------------------


def test_a_failed_disk_takes_down_its_replicas_only() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    failed = []
    store.log_dirs.further[0].on_failed = failed.append
    disk.faults.append(Fault(path=f"{MORE}/*", times=FOREVER))
    first, second = in_root(store, MORE)
    with pytest.raises(DamagedLogError, match=f"log directory {MORE} has failed"):
        append(first, b"x")
    assert first.is_offline
    assert [log_dir.path for log_dir in failed] == [MORE]
    changes = disk.changes
    second.check_place()
    assert second.damage == first.damage
    assert disk.changes == changes, "nothing is written to a failed disk"
    with pytest.raises(DamagedLogError):
        values(second)
    for log in in_root(store, DATA):
        append(log, b"y")
        log.sync()
    store.close()
    disk.faults.clear()
    again = reopened(disk, MORE)
    assert [len(values(log)) for _, log in sorted(again.logs())] == [2, 1, 2, 1]


def test_a_failed_sync_takes_down_its_replicas_only() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    log, _ = in_root(store, MORE)
    append(log, b"x")
    disk.faults.append(Fault({"sync"}, errno.EROFS, path=f"{MORE}/*", times=FOREVER))
    with pytest.raises(DamagedLogError, match="Read-only file system"):
        log.sync()


def test_a_failure_of_the_data_directory_is_not_blamed_on_another_disk() -> None:
    """The first sync of a process also records the copy, in the data directory (ADR 20)."""
    disk = sim_disk()
    filled(disk, MORE)
    store = reopened(disk, MORE)
    log, _ = in_root(store, MORE)
    append(log, b"x")
    disk.faults.append(Fault(path=f"{DATA}/copies*", times=FOREVER))
    with pytest.raises(StorageFailedError):
        log.sync()
    assert not log.is_offline


def test_a_full_disk_is_no_failed_one() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    log, _ = in_root(store, MORE)
    disk.faults.append(Fault({"write"}, errno.ENOSPC, path=f"{MORE}/*"))
    with pytest.raises(DiskFullError):
        append(log, b"x")
    append(log, b"x")
    assert not log.is_offline


def test_a_directory_that_is_gone_is_not_made_again() -> None:
    """Its path may lead to the disk below the mount point now."""
    disk = sim_disk()
    store = filled(disk, MORE)
    disk.lose(MORE)
    log, other = in_root(store, MORE)
    log.check_place()
    assert log.is_offline
    other.check_place()
    assert other.is_offline
    with pytest.raises(DamagedLogError, match="has failed"):
        store.quarantine("id", 1)
    assert not disk.exists(MORE)


def test_nothing_is_created_where_another_disk_is_mounted() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    disk.lose(MORE)
    disk.make_dirs(MORE)  # the mount point
    store.log_dirs[""].is_avoided = lambda: True
    host(store, range(4, 5))
    assert disk.list_dir(MORE) == []
    (log,) = in_root(store, MORE)[2:]
    assert log.is_offline


def test_a_quarantine_that_fails_takes_the_directory_down() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    log, _ = in_root(store, MORE)
    log.note_damage("a bad batch", offset=0)
    disk.faults.append(Fault({"rename"}, path=f"{MORE}/*", times=FOREVER))
    with pytest.raises(DamagedLogError, match="has failed"):
        store.quarantine("id", 1)
    assert log.is_offline


def test_partitions_of_a_failed_directory_are_removed_when_it_is_back() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    store.log_dirs.further[0].fail("out of order")
    store.drop_partitions("id", [0, 1])
    assert disk.exists(f"{MORE}/topics/t/id/1")
    host(store, range(2))  # again, and not on the failed disk
    assert roots(store) == [DATA, DATA, DATA, MORE]
    fill(in_root(store, DATA)[1], 2)
    store.close()
    again = open_store(disk, MORE)
    assert disk.list_dir(f"{MORE}/topics/t/id") == ["3"]
    assert [len(values(log)) for _, log in sorted(again.logs())] == [0, 2, 1, 1]
    assert not any(log.damage for _, log in again.logs())
    disk.crash()
    disk.lose(f"{DATA}/topics/t/id/1")
    assert "missing" in open_store(disk, MORE).hosted_log("id", 1).damage


def test_a_topic_is_removed_from_a_failed_directory_when_it_is_back() -> None:
    disk = sim_disk()
    store = open_store(disk, MORE)
    store.create_topic("clicks", partitions=2, config={})
    store.log_dirs.further[0].fail("out of order")
    store.discard(store.delete_topic("clicks"))
    assert disk.list_dir(f"{DATA}/topics/clicks") == []
    assert disk.list_dir(f"{MORE}/topics/clicks") != []
    reopened(disk, MORE)
    assert disk.list_dir(f"{MORE}/topics/clicks") == []


# -- a disk is missing at the start ----------------------------------------------------------------


def test_a_directory_that_is_missing_at_the_start_is_damage_of_its_replicas() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    image = disk.image(MORE)
    disk.lose(MORE)
    store = open_store(disk, MORE, has_peers=True)
    assert not disk.exists(MORE), "never created again"
    offline = in_root(store, MORE)
    assert all(log.is_offline and log.log_end_offset == 1 for log in offline)
    assert all("has failed" in log.damage and not log.is_torn for log in offline)
    assert all(not log.damage for log in in_root(store, DATA))
    assert any(MORE in note for note in store.notes)
    store.close()
    disk.put_back(MORE, image)
    assert all(len(values(log)) == 1 for _, log in open_store(disk, MORE).logs())


@pytest.mark.parametrize("operations", [{"lock"}, {"open"}, {"read"}, {"sync_dir"}, CHANGES])
def test_a_disk_that_fails_at_the_start_takes_down_its_replicas_only(
    operations: set[str],
) -> None:
    disk = sim_disk()
    filled(disk, MORE)
    disk.crash()
    disk.faults.append(Fault(operations, path=f"{MORE}*", times=FOREVER))
    store = open_store(disk, MORE)
    assert all(not log.damage for log in in_root(store, DATA))
    assert all(log.is_offline and log.damage for log in in_root(store, MORE))
    store.close()


def test_a_disk_that_fails_between_two_logs_takes_down_both() -> None:
    disk = sim_disk()
    filled(disk, MORE)
    disk.crash()
    disk.faults.append(Fault(path=f"{MORE}/topics/t/id/3*", times=FOREVER))
    store = open_store(disk, MORE)
    assert all(log.is_offline and log.damage for log in in_root(store, MORE))


def test_an_empty_disk_in_its_place_has_lost_all_records_of_its_replicas() -> None:
    """They are copied again: nothing that was there counts as stored."""
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.lose(MORE)
    disk.make_dirs(f"{MORE}/lost+found")
    store = open_store(disk, MORE, has_peers=True)
    lost = in_root(store, MORE)
    assert len(lost) == 2
    assert all("missing" in log.damage and not log.is_offline for log in lost)
    assert any("replaced by an empty directory" in note for note in store.notes)
    store.quarantine("id", 1)
    assert not store.hosted_log("id", 1).damage
    store.close()
    assert roots(open_store(disk, MORE)) == [DATA, MORE, DATA, MORE]


def test_a_mount_point_without_its_file_system_is_no_empty_disk() -> None:
    disk = sim_disk()
    disk.mounts.add(MORE)
    filled(disk, MORE).close()
    disk.lose(MORE)
    disk.mounts.clear()
    disk.make_dirs(MORE)
    store = open_store(disk, MORE)
    assert all("not mounted" in log.damage for log in in_root(store, MORE))
    assert disk.list_dir(MORE) == []
    store.close()
    disk.mounts.add(MORE)  # a new, empty disk
    assert not any(log.is_offline for _, log in open_store(disk, MORE).logs())


def test_files_without_their_identity_are_not_used() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.lose(f"{MORE}/log-dir")
    store = open_store(disk, MORE)
    assert all("its file is missing" in log.damage for log in in_root(store, MORE))
    disk.crash()
    disk.make_dirs(f"{THIRD}/holidays")
    with pytest.raises(DataDirectoryError, match="not empty"):
        open_store(disk, MORE, THIRD)


def test_a_path_may_change_and_disks_may_be_exchanged() -> None:
    disk = sim_disk()
    filled(disk, MORE, THIRD).close()
    more, third = disk.image(MORE), disk.image(THIRD)
    disk.put_back(MORE, third)
    disk.put_back(THIRD, more)
    store = open_store(disk, MORE, THIRD)
    assert roots(store) == [DATA, THIRD, MORE, DATA]
    assert all(len(values(log)) == 1 and not log.damage for _, log in store.logs())


def test_a_start_that_is_cut_short_anywhere_is_continued() -> None:
    """At the first use of a directory, and of an empty one in the place of a known one."""
    for is_known in (False, True):
        for skip in range(100):
            disk = sim_disk()
            filled(disk, *[MORE] * is_known).close()
            if is_known:
                disk.lose(MORE)
                disk.make_dirs(MORE)
            disk.faults.append(Fault(CHANGES, None, skip=skip))
            try:
                open_store(disk, MORE, has_peers=True)
            except Stopped:
                pass
            else:
                break
            disk.faults.clear()
            disk.power_cut()
            store = open_store(disk, MORE, has_peers=True)
            assert not any(log.is_offline for _, log in store.logs())
            assert all(log.damage for log in in_root(store, MORE))
            assert all(len(values(log)) == 1 for log in in_root(store, DATA))
        assert skip > 5


# -- settings that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "paths",
    [(MORE, MORE), (DATA,), (f"{DATA}/inside",), (MORE, f"{MORE}/inside"), ("disks", MORE)],
)
def test_one_directory_twice_or_inside_another_is_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(DataDirectoryError, match="inside the other"):
        open_store(sim_disk(), *paths)


def test_a_link_to_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(DataDirectoryError, match="are the same directory"):
        Store.open(
            OsDisk(),
            str(tmp_path / "data"),
            log_dirs=[str(tmp_path / "a"), str(tmp_path / "b")],
        )


def test_a_copy_of_another_one_is_refused() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.put_back(THIRD, disk.image(MORE))
    with pytest.raises(DataDirectoryError, match="one is a copy of the other"):
        open_store(disk, MORE, THIRD)


def test_the_directory_of_another_broker_is_refused() -> None:
    disk = sim_disk()
    other = Store.open(disk, "other", broker_id=7, log_dirs=[MORE])
    with pytest.raises(DataDirectoryError, match="in use by another process"):
        open_store(disk, MORE)
    other.close()
    with pytest.raises(DataDirectoryError, match="belongs to broker id 7"):
        open_store(disk, MORE)


def test_a_directory_of_a_wiped_data_directory_is_refused() -> None:
    """Which replicas are in it is not known any longer."""
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.lose(DATA)
    with pytest.raises(DataDirectoryError, match="another data directory"):
        open_store(disk, MORE)


def test_a_removed_directory_must_have_no_replicas() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    store.close()
    with pytest.raises(DataDirectoryError, match=r"2 replicas .* \(t:1, t:3\). Add it"):
        open_store(disk)
    store = open_store(disk, MORE)
    store.drop_partitions("id", [1, 3])
    store.close()
    assert roots(open_store(disk)) == [DATA, DATA]
    assert b"log_dirs" not in disk.read_file(f"{DATA}/catalog", bytes_max=10_000)


def test_a_new_directory_that_cannot_be_used_is_refused() -> None:
    disk = sim_disk()
    disk.faults.append(Fault(path=f"{MORE}*", times=FOREVER))
    with pytest.raises(DataDirectoryError, match=f"log directory {MORE} cannot be used"):
        open_store(disk, MORE)


def test_old_copies_in_a_directory_that_is_added_again_are_moved_aside() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    old = disk.image(MORE)
    disk.lose(MORE)
    disk.make_dirs(MORE)
    open_store(disk, MORE).close()  # another disk in its place
    disk.put_back(THIRD, old)
    store = open_store(disk, MORE, THIRD)
    assert disk.list_dir(f"{THIRD}/topics/t/id") == ["1.quarantine-1", "3.quarantine-1"]
    assert in_root(store, THIRD) == []


def test_a_measurement_tries_a_write_when_asked() -> None:
    disk = sim_disk()
    disk.make_dirs("d")
    log_dir = LogDir(disk, "d")
    assert log_dir.measure(tries_write=True).failure == ""
    assert not disk.exists("d/probe.tmp")
    disk.capacity_bytes = PROBE_BYTES - 1
    assert log_dir.measure().failure == ""
    assert "no space" in log_dir.measure(tries_write=True).failure
    assert not disk.exists("d/probe.tmp"), "it takes no space"
