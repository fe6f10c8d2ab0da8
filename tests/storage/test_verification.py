"""Verification of a running log, and its handling of corrupt and missing files."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.errors import (
    DamagedLogError,
    DiskFullError,
    OffsetOutOfRangeError,
    StorageFailedError,
)
from raftlog.storage import Log
from raftlog.storage.segment import base_offsets
from raftlog.testing.disk import CHANGES, FOREVER, Fault, SimDisk
from tests.storage.logs import (
    DIRECTORY,
    after_power_cut,
    append,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    value_at,
    values,
)
from tests.storage.replicas import SEGMENTED, follow, leader_of


def closed_log(disk: SimDisk, count: int = 10) -> Log:
    """A log of segments of three batches that was closed and opened again: indexes vouch for all
    of it."""
    log = open_log(disk, SEGMENTED)
    follow(log, leader_of((0, count)))
    log.close()
    return killed(disk, SEGMENTED)


def harm(disk: SimDisk, log: Log, offset: int, *, byte: int = 200) -> None:
    """Flip a bit of the batch at ``offset``, in its payload unless told otherwise."""
    bases = base_offsets(disk.list_dir(DIRECTORY), ".log")
    base = max(b for b in bases if b <= offset)
    position = sum(map(len, stored(log, base)[: offset - base]))
    disk.flip_bit(f"{DIRECTORY}/{base:020d}.log", 8 * (position + byte))


# -- verifying -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [0, 500, 1_000, limits.MIB])
def test_a_sound_log_is_read_to_its_end(bytes_max: int) -> None:
    log = closed_log(sim_disk())
    offset, steps = 0, 0
    while offset < log.log_end_offset:
        following = log.verify(offset, bytes_max=bytes_max)
        assert following > offset
        offset, steps = following, steps + 1
    assert steps == {0: 10, 500: 10, 1_000: 5, limits.MIB: 1}[bytes_max]
    assert log.verify(10, bytes_max=1) == 10
    with pytest.raises(OffsetOutOfRangeError):
        log.verify(11, bytes_max=1)


@pytest.mark.parametrize("byte", [3, 20, 41, 100, 350], ids=lambda byte: f"byte {byte}")
@pytest.mark.parametrize("offset", [0, 4, 9])
def test_a_bad_batch_is_found_noted_and_served_no_more(offset: int, byte: int) -> None:
    """P6: neither its bytes nor anything after it; and it may not lead with them either."""
    disk = sim_disk()
    log = closed_log(disk)
    harm(disk, log, offset, byte=byte)

    def verify_all() -> None:
        following = 0
        while following < log.log_end_offset:
            following = log.verify(following, bytes_max=limits.MIB)

    with pytest.raises(DamagedLogError) as raised:
        verify_all()
    assert log.damage == str(raised.value)
    assert log.readable_end_offset <= offset
    assert log.log_end_offset == 10
    with pytest.raises(DamagedLogError):
        log.read(start_offset=offset, end_offset=10, bytes_max=1)
    with pytest.raises(DamagedLogError):
        append(log, b"x")
    assert log.begin_sync() is None


def test_a_batch_of_another_log_is_found_by_its_chain() -> None:
    disk = sim_disk()
    log = closed_log(disk)
    other = leader_of((0, 4))
    changed = other.fork(3)
    changed.append(value_at(103, 300), producer=(7, 0, 3))
    assert len(changed.batches[3]) == len(other.batches[3])
    disk.open(f"{DIRECTORY}/{3:020d}.log").pwrite(changed.batches[3], 0)
    assert log.verify(0, bytes_max=1) == 1
    with pytest.raises(DamagedLogError, match="offset 4: it does not follow"):
        log.verify(2, bytes_max=limits.MIB)


def test_a_disk_that_cannot_be_read_is_damage() -> None:
    disk = sim_disk()
    log = closed_log(disk)
    disk.faults.append(Fault({"read"}, path="*.log"))
    with pytest.raises(DamagedLogError, match="Input/output"):
        log.verify(5, bytes_max=limits.MIB)
    assert log.readable_end_offset == 5


@pytest.mark.parametrize("byte", [3, 20, 100], ids=lambda byte: f"byte {byte}")
@pytest.mark.parametrize("offset", [1, 4, 5, 9])
@pytest.mark.parametrize("bytes_max", [1, 900, limits.MIB])
def test_what_is_good_before_the_damage_stays_readable(
    offset: int, byte: int, bytes_max: int
) -> None:
    """Also of a header: neither a reader nor the log's own looking-up has to read it."""
    disk = sim_disk()
    log = closed_log(disk)
    harm(disk, log, offset, byte=byte)

    def verify_all() -> None:
        following = 0
        while following < log.log_end_offset:
            following = log.verify(following, bytes_max=bytes_max)

    with pytest.raises(DamagedLogError):
        verify_all()
    assert log.readable_end_offset == offset
    for start in range(offset):
        parts = log.read(start_offset=start, end_offset=10, bytes_max=limits.MIB)
        assert len(b"".join(parts)) > 300 * (offset - start)
        assert len(log.read(start_offset=start, end_offset=10, bytes_max=1)) == 1


def test_a_bad_batch_before_a_bad_header_is_found_first() -> None:
    disk = sim_disk()
    log = closed_log(disk)
    harm(disk, log, 1)
    harm(disk, log, 2, byte=3)
    with pytest.raises(DamagedLogError, match="offset 1: "):
        log.verify(0, bytes_max=limits.MIB)
    assert log.readable_end_offset == 1


def test_no_file_stays_open_that_was_not() -> None:
    log = closed_log(sim_disk())
    for segment in log._segments:
        segment.close()
    open_one = log._segments[1]
    assert open_one.file
    assert log.verify(0, bytes_max=limits.MIB) == 10
    assert [segment for segment in log._segments if segment.is_open] == [open_one]


def test_a_log_that_begins_inside_a_batch_can_be_verified() -> None:
    log = open_log(sim_disk())
    append(log, b"a", b"b", b"c")
    append(log, b"d")
    log.sync()
    log.advance_log_start(2).run()
    assert log.verify(2, bytes_max=1) == 3


# -- noting ----------------------------------------------------------------------------------------


def test_what_was_noted_is_found_again_at_the_next_start() -> None:
    for seed in range(12):
        disk = sim_disk(seed)
        log = closed_log(disk)
        harm(disk, log, 4)
        assert closed_again(disk).damage == ""  # an index vouches for it
        log = killed(disk, SEGMENTED)
        log.note_damage("a bad batch", offset=4)
        log = after_power_cut(disk, SEGMENTED) if seed else killed(disk, SEGMENTED)
        assert "bytes and their CRC disagree" in log.damage
        assert len(values(log)) == log.readable_end_offset == 4
        assert log.log_end_offset == 10


def closed_again(disk: SimDisk) -> Log:
    log = killed(disk, SEGMENTED)
    log.close()
    return log


def test_what_proves_sound_at_the_next_start_is_served_again() -> None:
    """A read may fail for other reasons than the disk's."""
    disk = sim_disk()
    log = closed_log(disk)
    log.note_damage("it looked bad", offset=4)
    log = killed(disk, SEGMENTED)
    assert (log.damage, len(values(log))) == ("", 10)


def test_only_damage_further_down_changes_what_is_known() -> None:
    log = closed_log(sim_disk())
    log.note_damage("first", offset=6)
    log.note_damage("second", offset=8)
    assert (log.damage, log.readable_end_offset) == ("first", 6)
    log.note_damage("third", offset=2)
    assert (log.damage, log.readable_end_offset) == ("third", 2)


def test_a_disk_that_takes_no_note_is_no_reason_to_go_on_serving() -> None:
    disk = sim_disk()
    log = closed_log(disk)
    disk.faults.append(Fault(CHANGES, times=FOREVER))
    log.note_damage("bad", offset=3)
    assert (log.damage, log.readable_end_offset) == ("bad", 3)


def test_a_log_with_unsynced_records_is_not_all_durable() -> None:
    log = open_log(sim_disk())
    assert log.is_all_durable
    fill(log, 1, sync=False)
    assert not log.is_all_durable
    log.sync()
    assert log.is_all_durable


# -- files that go while the log is open -----------------------------------------------------------


def remove_file(disk: SimDisk, log: Log) -> None:
    disk.lose(f"{DIRECTORY}/{log.log_start_offset:020d}.log")


def put_older_back(disk: SimDisk, log: Log) -> None:
    log.sync()
    disk.put_back(DIRECTORY, disk.image(DIRECTORY))


REMOVALS = {
    "directory": lambda disk, _log: disk.lose(DIRECTORY),
    "segment": remove_file,
    "checkpoint": lambda disk, _log: disk.lose(f"{DIRECTORY}/checkpoint"),
    "put back": put_older_back,
}


@pytest.mark.parametrize("how", REMOVALS)
def test_a_log_notices_that_its_files_are_gone(how: str) -> None:
    disk = sim_disk()
    log = open_log(disk)
    told: list[str] = []
    log.on_missing = lambda: told.append(log.damage)
    append(log, b"a")
    log.sync()
    log.check_place()
    assert log.damage == ""
    REMOVALS[how](disk, log)
    log.check_place()
    log.check_place()
    assert told == [log.damage]
    assert log.damage.startswith(f"{DIRECTORY} was moved, or files in it are missing: ")
    assert log.readable_end_offset == 0
    with pytest.raises(DamagedLogError):
        append(log, b"b")
    log.close()


@pytest.mark.parametrize("how", REMOVALS)
def test_what_no_start_would_find_does_not_become_durable(how: str) -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"a")
    log.sync()
    append(log, b"b")
    task = log.begin_sync()
    assert task is not None
    REMOVALS[how](disk, log) if how != "put back" else disk.put_back(
        DIRECTORY, disk.image(DIRECTORY)
    )
    with pytest.raises(FileNotFoundError) as raised:
        task.run()
    assert isinstance(log.failed_sync(task, raised.value), DamagedLogError)
    assert (log.durable_end_offset, log._failure) == (1, None)


CHANGES_OF_LOGS = {
    "a new segment": lambda log: [append(log, b"x" * 1_500) for _ in range(3)],
    "a note of tombstones": lambda log: log.note_missing_tombstones(1),
    "a cut": lambda log: log.truncate_to(1),
    "a new beginning": lambda log: log.restart_at(1),
    "the end": lambda log: log.close(),
}


@pytest.mark.parametrize("what", CHANGES_OF_LOGS)
def test_a_change_that_finds_no_directory_is_damage_of_the_log_alone(what: str) -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"a")
    append(log, b"b")
    log.sync()
    append(log, b"c")
    disk.lose(DIRECTORY)
    if what == "the end":
        log.close()
    else:
        with pytest.raises(DamagedLogError, match="was moved, or files in it are missing"):
            CHANGES_OF_LOGS[what](log)
    assert "was moved, or files in it are missing" in log.damage
    assert log._failure is None


def test_a_log_that_is_deleted_from_tells_that_its_directory_is_gone() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"a")
    append(log, b"b")
    log.sync()
    disk.lose(DIRECTORY)
    task = log.advance_log_start(1)
    with pytest.raises(FileNotFoundError) as raised:
        task.run()
    assert isinstance(log.disk_failed("deleting", raised.value), DamagedLogError)
    assert isinstance(log.disk_failed("deleting", OSError(28, "full")), DiskFullError)
    assert isinstance(log.disk_failed("deleting", OSError(5, "bad")), StorageFailedError)
