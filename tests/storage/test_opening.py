"""What a log starts from, and what it leaves alone. See also test_damage and test_durability."""

from __future__ import annotations

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.storage.opening import open_log as open_parts
from raftlog.storage.opening import rebuild_producers
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.harm import overwrite, problems
from tests.storage.logs import (
    DIRECTORY,
    ONE_SEGMENT,
    SMALL,
    append,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    values,
)
from tests.storage.model import as_model

UNSYNCED = TopicConfig(flush_policy="os", segment_bytes=500, retention_ms=-1)


def test_a_new_directory_is_an_empty_log_and_takes_no_room() -> None:
    disk = sim_disk()
    opened = open_parts(disk, "a/b/log", SMALL)
    assert (opened.log_start_offset, opened.log_end_offset) == (0, 0)
    assert (opened.segments, opened.damage, opened.notes) == ([], "", [])
    assert disk.list_dir("a/b/log") == []
    disk.power_cut()
    assert disk.exists("a/b/log")


def test_opening_a_sound_log_writes_nothing() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20, leader_epoch=2)
    log.close()
    disk.crash()
    changes = disk.changes
    log = open_log(disk)
    assert disk.changes == changes
    assert (log.log_end_offset, log.durable_end_offset) == (20, 20)


def test_only_what_may_not_be_durable_is_written_again() -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 10)
    fill(log, 2, sync=False)
    size = log.size_bytes - sum(len(batch) for batch in stored(log, 10))
    disk.crash()
    disk.faults.append(Fault({"write"}, skip=1))  # one is enough
    written: list[int] = []
    open_file = disk.open

    def open_noting(path: str, *, create: bool = False, write: bool = True, pooled: bool = False):
        file = open_file(path, create=create, write=write)
        pwrite = file.pwrite
        file.pwrite = lambda data, position: (written.append(position), pwrite(data, position))
        return file

    disk.open = open_noting  # type: ignore[method-assign]
    assert open_log(disk, ONE_SEGMENT).log_end_offset == 12
    assert written == [size]


def test_producers_are_those_of_a_snapshot_and_of_the_batches_after_it() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for number in range(9):
        append(log, b"x" * 300, producer=(7, 0, number))
        if number % 4 == 0:
            log.sync()
    log.sync()
    expected = as_model(log.producers)
    assert len(files(disk, ".producers")) > 1
    for path in reversed(files(disk, ".producers")):
        log = killed(disk)
        assert as_model(log.producers) == expected
        disk.remove(path)
    assert as_model(killed(disk).producers) == expected


def test_producers_as_of_an_earlier_end_are_rebuilt_from_what_lies_before() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for number in range(9):
        append(log, b"x" * 300, producer=(7, 0, number))
    log.sync()
    for end in range(10):
        table = as_model(rebuild_producers(log._files, log._segments, end))
        assert (table[7].sent[-1].last_offset if table else -1) == end - 1


def deletion_stopped_before(disk: SimDisk, operation: str, path: str) -> None:
    """A deletion of everything below 14, ended just before an operation."""
    log = open_log(disk)
    for number in range(20):
        append(log, b"x" * 200, producer=(7, 0, number))
    log.sync()
    disk.faults.append(Fault({operation}, error=None, path=path))
    try:
        log.advance_log_start(14).run()
    except BaseException:  # noqa: BLE001 - Stopped, as it should be
        disk.crash()
    disk.faults.clear()


def test_a_deletion_that_a_kill_cut_short_is_finished() -> None:
    for operation, path in (("sync", "*/checkpoint"), ("remove", "*.index"), ("remove", "*.log")):
        disk = sim_disk()
        deletion_stopped_before(disk, operation, path)
        log = open_log(disk)
        assert (log.log_start_offset, log.damage) == (14, "")
        assert len(files(disk, ".log")) == log.segment_count
        assert not append(log, b"x", producer=(7, 0, 20)).duplicate


def test_producers_of_leftovers_are_saved_before_those_go() -> None:
    """The killed process had made the new start durable, and had not saved the producers."""
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"x" * 1_500, producer=(7, 0, 0))
    append(log, b"y" * 1_500)
    log.sync()
    for path in files(disk, ".producers"):
        disk.remove(path)
    log._checkpoint.raise_log_start(1)
    for _ in range(3):
        log = killed(disk)
        assert (log.log_start_offset, len(files(disk, ".log"))) == (1, 1)
        assert append(log, b"x" * 1_500, producer=(7, 0, 0)).duplicate
        assert len(files(disk, ".producers")) == 1


def deleted_and_never_synced(disk: SimDisk) -> None:
    """Three segments of one batch each, all deleted; then power fails before any was synced."""
    log = open_log(disk, UNSYNCED)
    for number in range(3):
        append(log, b"x" * 400, producer=(7, 0, number))
    log.advance_log_start(3).run()
    # Chance may keep the data of one and not of the others: here, of the second.
    second = disk.open(files(disk, ".log")[1])
    second.sync()
    disk.crash()
    for path in (files(disk, ".log")[0], files(disk, ".log")[2]):
        disk.cut_off(path, 0)


def test_what_lies_below_an_empty_log_goes_even_where_its_last_segment_held_nothing() -> None:
    """The start removes the last one, which ends below the log start. The one before it is not the
    log's either: it was left, and called torn, until a later start."""
    for damage in (False, True):
        disk = sim_disk()
        deleted_and_never_synced(disk)
        second = files(disk, ".log")[1]
        if damage:
            overwrite(disk, second, bytes(500))
        log = open_log(disk, UNSYNCED)
        assert (log.log_start_offset, log.log_end_offset, log.damage) == (3, 3, "")
        assert files(disk, ".log") == []
        assert problems(disk) == set()
        assert (7 in as_model(log.producers)) is not damage


def test_a_stray_file_is_left_alone() -> None:
    disk = sim_disk()
    fill(open_log(disk), 20)
    for name in ("notes.txt", "1.log", f"{7:019d}.log", "x" * 20 + ".log"):
        disk.write_atomic(f"{DIRECTORY}/{name}", b"mine")
    log = killed(disk)
    assert (log.log_end_offset, log.damage) == (20, "")
    assert disk.read_file(f"{DIRECTORY}/1.log", bytes_max=limits.KIB) == b"mine"


def test_another_segment_size_is_no_obstacle() -> None:
    disk = sim_disk()
    fill(open_log(disk), 20)
    before = values(killed(disk))
    for config in (ONE_SEGMENT, TopicConfig(segment_bytes=500, index_interval_bytes=0)):
        log = killed(disk, config)
        assert values(log) == before
        fill(log, 2)
        before = values(log)
