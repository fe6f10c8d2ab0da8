"""What a start makes of the files: bad bytes are cut or reported, and indexes rebuilt."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import OsDisk
from raftlog.errors import (
    DamagedLogError,
    DiskFullError,
    OffsetOutOfRangeError,
    StorageFailedError,
    UnknownPartitionError,
)
from raftlog.record import parse_header, seal, validate
from raftlog.record.codec import hole_of
from raftlog.storage import DeleteTask, Log, Store, inspect, quarantine
from raftlog.storage.checkpoint import SLOT_BYTES
from raftlog.storage.quarantine import QUARANTINES_KEPT
from raftlog.storage.segment import EpochStart, base_offsets
from raftlog.testing.disk import CHANGES, FOREVER, Fault, SimDisk, Stopped
from tests.record.batches import stamped
from tests.storage.crashes import chances_of, sweep
from tests.storage.directories import (
    DATA,
    FIRST,
    SimDiskOfTrees,
    host,
    hosted,
    open_store,
    paths_of,
    reopened,
)
from tests.storage.harm import overwrite, problems
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    base_offsets_of,
    batch_of,
    files,
    fill,
    killed,
    open_log,
    searched,
    sim_disk,
    stored,
    value_at,
    values,
)
from tests.storage.replicas import SEGMENTED, follow, leader_of

# -- damage ----------------------------------------------------------------------------------------

# What a start makes of bad, torn and missing bytes: cut, rebuilt, or reported and never cut.
#
# S28: torn bytes above the durable end go; below it they are damage.


CHECKPOINT = f"{DIRECTORY}/checkpoint"


def contents(disk: SimDisk) -> dict[str, bytes]:
    names = disk.list_dir(DIRECTORY)
    return {n: disk.read_file(f"{DIRECTORY}/{n}", bytes_max=limits.GIB) for n in names}


def position_of(disk: SimDisk, path: str, offset: int) -> int:
    """Where in a segment the batch of an offset starts."""
    rows = inspect.scan(disk, path)
    return next(row.position for row in rows if row.header and row.header.base_offset == offset)


# -- torn tails ------------------------------------------------------------------------------------


def test_a_tail_torn_at_any_byte_is_cut_and_nothing_else() -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 2)
    durable = stored(log)
    append(log, b"torn", b"to", b"pieces")
    (path,) = files(disk, ".log")
    whole = contents(disk)
    first, last = log._segments[0].size_bytes - len(stored(log)[-1]), log._segments[0].size_bytes
    for size in range(first, last + 1):
        for name, data in whole.items():
            overwrite(disk, f"{DIRECTORY}/{name}", data)
        disk.cut_off(path, size)
        log = killed(disk, ONE_SEGMENT)
        assert stored(log)[:2] == durable
        assert log.log_end_offset == (5 if size == last else 2)
        assert bool(log.notes) == (size not in {first, last})
        assert log.damage == ""
        append(log, b"on")
        log.abandon()


def test_a_flipped_bit_above_the_durable_end_is_a_torn_tail() -> None:
    for bit in range(0, 100 * 8, 37):
        disk = sim_disk()
        log = open_log(disk, ONE_SEGMENT)
        fill(log, 2)
        fill(log, 2, sync=False)
        (path,) = files(disk, ".log")
        disk.flip_bit(path, position_of(disk, path, 2) * 8 + bit)
        log = killed(disk, ONE_SEGMENT)
        assert (log.log_end_offset, log.damage) == (2, "")
        assert "above the durable end" in log.notes[0]
        assert problems(disk) == set()


def test_segments_after_a_torn_one_go_with_it() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3)
    fill(log, 20, sync=False)
    disk.cut_off(files(disk, ".log")[1], 400)
    log = killed(disk)
    assert log.damage == ""
    assert 3 < log.log_end_offset < 13
    assert values(log) == [value_at(offset) for offset in range(log.log_end_offset)]
    assert len(files(disk, ".log")) == 2


def test_bytes_behind_a_segment_that_another_follows_are_no_part_of_the_log() -> None:
    """A write that failed and was taken back, and that a power cut has brought back."""
    disk = sim_disk()
    fill(open_log(disk), 20)
    whole = stored(killed(disk))
    overwrite(disk, CHECKPOINT, b"")
    for path in files(disk, ".index"):
        disk.remove(path)
    first = files(disk, ".log")[0]
    disk.open(first).append([b"brought back"])
    assert problems(disk) == {inspect.TORN}
    log = killed(disk)
    assert stored(log) == whole
    assert "torn write above the durable end offset: bytes=12 " in log.notes[0]
    assert problems(disk) == set()


def test_a_log_that_starts_with_a_hole_was_never_promised() -> None:
    """Of two segments under way at once, a power cut may keep the second one's name alone."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 8, sync=False)
    disk.remove(files(disk, ".log")[0])
    log = killed(disk)
    assert (log.log_start_offset, log.log_end_offset, log.damage) == (0, 0, "")
    fill(log, 3)
    assert values(killed(disk)) == [value_at(offset) for offset in range(3)]


def test_a_segment_of_an_earlier_life_is_no_part_of_the_log() -> None:
    """It was cut off, a power cut has brought it back, and the log has grown up to it since."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    second = files(disk, ".log")[1]
    base = log._segments[1].base_offset
    old = disk.read_file(second, bytes_max=limits.MIB)
    log.truncate_to(base - 2)
    for _ in range(2):
        append(log, b"another" * 30)
    log.sync()
    assert log.log_end_offset == base
    overwrite(disk, second, old)
    log = killed(disk)
    assert (log.log_end_offset, log.damage) == (base, "")
    assert "chain" in log.notes[0]
    assert values(log)[-2:] == [b"another" * 30] * 2


def test_an_epoch_does_not_go_back() -> None:
    """Whoever wrote that was no leader any more."""
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 2, leader_epoch=5)
    late = stamped(batch_of([b"late"]), base_offset=2, leader_epoch=4, previous_chain=log.chain)
    disk.open(files(disk, ".log")[0]).append([late])
    log = killed(disk, ONE_SEGMENT)
    assert (log.log_end_offset, log.damage) == (2, "")
    assert "epoch 4 after epoch 5" in log.notes[0]


# -- damage ----------------------------------------------------------------------------------------


def damaged_log(disk: SimDisk, config: TopicConfig, harm: Callable[[str, int], None]) -> Log:
    """Twelve durable batches of which the one at offset 5 was harmed; no index covers any."""
    log = open_log(disk, config)
    fill(log, 12)
    log.abandon()
    for path in files(disk, ".index"):
        disk.remove(path)
    path = next(
        path
        for path in reversed(files(disk, ".log"))
        if int(path.rpartition("/")[2].removesuffix(".log")) <= 5
    )
    harm(path, position_of(disk, path, 5))
    return killed(disk, config)


HARMS = {
    "length": lambda disk: lambda path, at: disk.flip_bit(path, (at + 4) * 8),
    "base offset": lambda disk: lambda path, at: disk.flip_bit(path, (at + 8) * 8),
    "payload": lambda disk: lambda path, at: disk.flip_bit(path, (at + 150) * 8),
    "zeros": lambda disk: lambda path, at: disk.open(path).pwrite(bytes(60), at),
    "truncation": lambda disk: lambda path, at: disk.cut_off(path, at + 100),
    "unreadable": lambda disk: (
        lambda path, at: disk.faults.append(Fault({"read"}, path=path, skip=1))
    ),
}


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT], ids=["segments", "one segment"])
@pytest.mark.parametrize("harm", ["length", "base offset", "payload", "zeros", "truncation"])
def test_a_bad_batch_below_the_durable_end_is_damage(harm: str, config: TopicConfig) -> None:
    disk = sim_disk()
    log = damaged_log(disk, config, HARMS[harm](disk))
    assert "offset 5" in log.damage or "at offset 5" in log.damage
    assert (log.log_start_offset, log.log_end_offset) == (0, 12)
    # Reads below are served, also those that ask for more.
    assert values(log, 0) == [value_at(offset) for offset in range(5)]
    for start in (5, 7, 11):
        with pytest.raises(DamagedLogError, match="offset 5"):
            log.read(start_offset=start, end_offset=12, bytes_max=1)
    with pytest.raises(DamagedLogError):
        append(log, b"more")
    with pytest.raises(DamagedLogError):
        log.truncate_to(3)
    with pytest.raises(DamagedLogError):
        searched(log.offset_for_timestamp(NOW_MS + 1, end_offset=12))
    assert problems(disk) == {inspect.DAMAGE}


def test_a_payload_that_rots_is_damage_to_a_search_by_time() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"x" * 300)
    (path,) = files(disk, ".log")
    disk.flip_bit(path, 200 * 8)
    with pytest.raises(DamagedLogError, match=r"\.log is corrupt at byte 0: .*verify"):
        searched(log.offset_for_timestamp(NOW_MS, end_offset=1))


MAX_TIMESTAMP_AT = 64  # of a batch


@pytest.mark.parametrize("before", [0, 1, 20], ids=str)
@pytest.mark.parametrize("after", [0, 20], ids=str)
def test_a_search_by_time_skips_no_corrupt_batch(before: int, after: int) -> None:
    """Only the CRC of the whole batch covers the highest timestamp of its records."""
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, before, timestamps_ms=NOW_MS)
    append(log, b"x", b"y", timestamps_ms=[NOW_MS, NOW_MS + 2])
    fill(log, after, timestamps_ms=NOW_MS + 3)
    found = searched(log.offset_for_timestamp(NOW_MS + 1, end_offset=log.log_end_offset))
    assert found is not None
    assert found.offset == before + 1
    (path,) = files(disk, ".log")
    disk.flip_bit(path, 8 * (position_of(disk, path, before) + MAX_TIMESTAMP_AT) + 1)
    with pytest.raises(DamagedLogError, match="their CRC disagree"):
        searched(log.offset_for_timestamp(NOW_MS + 1, end_offset=log.log_end_offset))


@pytest.mark.parametrize("harm", ["length", "payload", "truncation"])
def test_a_damaged_log_is_left_as_it_is(harm: str) -> None:
    """Not cut, not rebuilt, not snapshotted: all that is left is evidence."""
    disk = sim_disk()
    log = damaged_log(disk, SMALL, HARMS[harm](disk))
    before = contents(disk)
    assert files(disk, ".producers")
    assert log.begin_sync(snapshot=True) is None
    assert log.apply_retention(now_ms=NOW_MS * 2, high_watermark=12) is None
    assert not log.roll_if_due(now_ms=NOW_MS * 2)
    log.close()
    log = killed(disk)
    assert log.damage
    log.close()
    assert contents(disk) == before


def test_a_damaged_log_can_be_deleted_past_the_damage() -> None:
    disk = sim_disk()
    log = damaged_log(disk, SMALL, HARMS["payload"](disk))
    next_segment = int(files(disk, ".log")[1].rpartition("/")[2].removesuffix(".log"))
    log.advance_log_start(next_segment).run()
    with pytest.raises(DamagedLogError):
        append(log, b"more")
    log = killed(disk)
    assert log.damage == ""
    assert values(log) == [value_at(offset) for offset in range(next_segment, 12)]
    append(log, b"more")


def test_a_missing_segment_is_damage() -> None:
    for number in (0, 1, -1):
        disk = sim_disk()
        fill(open_log(disk), 20)
        segments = files(disk, ".log")
        disk.remove(segments[number])
        log = killed(disk)
        assert log.damage
        assert log.log_end_offset == 20
        assert problems(disk) == {inspect.DAMAGE}
        assert len(files(disk, ".log")) == len(segments) - 1


@pytest.mark.parametrize("number", [0, 1, -1])
def test_an_index_alone_proves_that_a_segment_was_durable(number: int) -> None:
    """After a power cut the checkpoint may be as old as the kernel pleases."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.close()
    overwrite(disk, CHECKPOINT, bytes(2 * SLOT_BYTES))
    disk.remove(files(disk, ".log")[number])
    log = killed(disk)
    assert log.damage
    assert problems(disk) == {inspect.DAMAGE}


def test_a_bad_batch_in_an_early_segment_is_damage_when_a_later_index_says_so() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.close()
    overwrite(disk, CHECKPOINT, bytes(2 * SLOT_BYTES))
    first = files(disk, ".log")[0]
    disk.remove(files(disk, ".index")[0])
    disk.flip_bit(first, 700)
    log = killed(disk)
    assert (log.damage != "", log.log_end_offset) == (True, 20)
    assert len(files(disk, ".log")) > 3


def test_rot_under_an_index_is_damage_when_a_start_or_a_reader_meets_it() -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 12)
    log.close()
    (path,) = files(disk, ".log")
    disk.flip_bit(path, position_of(disk, path, 5) * 8)
    log = killed(disk, ONE_SEGMENT)  # what an index covers is not read again
    with pytest.raises(DamagedLogError, match="verify"):
        log.read(start_offset=5, end_offset=12, bytes_max=1)
    assert problems(disk) == {inspect.DAMAGE}
    log.abandon()
    disk.remove(f"{DIRECTORY}/epochs")  # now this start has to read all headers
    log = killed(disk, ONE_SEGMENT)
    assert log.damage
    assert values(log, 0) == [value_at(offset) for offset in range(5)]


def test_a_sector_that_cannot_be_read_is_damage_and_stops_no_other_log() -> None:
    disk = sim_disk()
    fill(open_log(disk, ONE_SEGMENT), 12)
    (path,) = files(disk, ".log")
    disk.faults.append(Fault({"read"}, path=path, times=-1))
    log = killed(disk, ONE_SEGMENT)
    assert "cannot be read" in log.damage
    assert files(disk, ".log") == [path]


def test_an_unreadable_sector_is_damage_to_the_reader_and_passes() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 5)
    disk.faults.append(Fault({"read"}))
    with pytest.raises(DamagedLogError, match="Input/output"):
        stored(log)
    assert len(stored(log)) == 5


def test_damage_on_a_real_disk(tmp_path: Path) -> None:
    disk, directory = OsDisk(), f"{tmp_path}/log"
    log = open_log(disk, ONE_SEGMENT, directory)
    fill(log, 6)
    log.abandon()
    path = tmp_path / "log" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    log = open_log(disk, ONE_SEGMENT, directory)
    assert log.damage
    assert 0 < len(values(log, 0)) < 6
    log.abandon()
    assert path.read_bytes() == data


# -- bad disk --------------------------------------------------------------------------------------
#
# S30: a write or a sync that fails ends all writing; what was acknowledged is still there.


CHANCES = range(10)


def log_with(disk: SimDisk, count: int = 8) -> Log:
    log = open_log(disk)
    fill(log, count)
    return log


def check_it_writes_no_more(log: Log, disk: SimDisk) -> None:
    """Also when the disk works again: what it holds is unknown."""
    disk.faults.clear()
    before = disk.changes
    with pytest.raises(StorageFailedError):
        append(log, b"late")
    with pytest.raises(StorageFailedError):
        log.truncate_to(log.log_start_offset)
    assert log.begin_sync(snapshot=True) is None
    assert log.apply_retention(now_ms=1 << 45, high_watermark=log.log_end_offset) is None
    assert not log.roll_if_due(now_ms=1 << 45)
    assert log._failure is not None
    log.close()
    assert disk.changes == before


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("write", "*.log"),
        ("create", "*.log"),
    ],
)
def test_a_failed_write_ends_all_writing(operation: str, path: str) -> None:
    disk = sim_disk()
    log = log_with(disk)
    disk.faults.append(Fault({operation}, path=path))
    with pytest.raises(StorageFailedError, match="Input/output error"):
        append(log, b"x" * 2_000, leader_epoch=1)  # a new epoch, a new segment, a batch
    assert values(log) == [value_at(offset) for offset in range(8)]
    check_it_writes_no_more(log, disk)


def test_half_a_batch_that_cannot_be_taken_back_ends_all_writing_too() -> None:
    disk = sim_disk()
    log = log_with(disk)
    disk.capacity_bytes = 1
    disk.faults.append(Fault({"truncate"}))
    with pytest.raises(StorageFailedError, match="truncating a partial write"):
        append(log, b"x")
    disk.capacity_bytes = None
    check_it_writes_no_more(log, disk)


def test_a_failed_sync_ends_all_writing_and_is_not_tried_again() -> None:
    for forgets in [False, True]:
        for operation, path in [
            ("sync", "*.log"),
            ("sync_dir", "*"),
            ("create", "*/epochs.tmp"),
            ("write", "*/epochs.tmp"),
            ("sync", "*/epochs.tmp"),
            ("rename", "*/epochs.tmp"),
            ("write", "*/checkpoint"),
            ("write", "*.index.tmp"),
            ("rename", "*.index.tmp"),
            ("sync", "*.producers.tmp"),
        ]:
            for seed in CHANCES:
                disk = sim_disk(seed)
                log = log_with(disk)
                fill(log, 7, sync=False, leader_epoch=1)  # a new epoch, and a new segment
                fault = Fault({operation}, path=path, forgets=forgets, times=FOREVER)
                disk.faults.append(fault)
                task = log.begin_sync()
                assert task is not None
                with pytest.raises(OSError, match="Input/output") as raised:
                    task.run()
                assert fault.times == FOREVER - 1, "it was tried again"
                error = log.failed_sync(task, raised.value)
                assert isinstance(error, StorageFailedError)
                assert (log.durable_end_offset, log.log_end_offset) == (8, 15)
                assert log.acknowledged_end_offset == 8
                check_it_writes_no_more(log, disk)
                log = after_power_cut(disk)
                assert log.damage == ""
                assert values(log)[:8] == [value_at(offset) for offset in range(8)]


def test_syncing_here_and_now_raises_what_failed() -> None:
    disk = sim_disk()
    log = log_with(disk)
    fill(log, 1, sync=False)
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(StorageFailedError, match="syncing log failed"):
        log.sync()
    check_it_writes_no_more(log, disk)


def test_closing_raises_what_failed_and_lets_go_of_the_files() -> None:
    disk = sim_disk()
    log = log_with(disk)
    fill(log, 1, sync=False)
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(StorageFailedError):
        log.close()
    assert not any(segment.is_open for segment in log._segments)


def test_a_disk_that_drops_what_it_could_not_sync_takes_nothing_acknowledged_along() -> None:
    """A kill keeps the pages, so the next process sees them; after it, power goes (ATC'20)."""
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_with(disk)
        fill(log, 3, sync=False)
        disk.faults.append(Fault({"sync"}, forgets=True))
        with pytest.raises(StorageFailedError):
            log.sync()
        log = killed(disk)
        found = log.log_end_offset
        assert found == 11
        fill(log, 2)  # acknowledged, behind what was dropped
        log = after_power_cut(disk)
        assert log.damage == ""
        assert values(log) == [value_at(offset) for offset in range(13)]


OFFSETS_AT = 52  # of last_offset_delta in a batch: its producer's CRC covers it, the leader's not


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT], ids=["segments", "one segment"])
@pytest.mark.parametrize(
    ("bit", "offset", "start"),
    [
        pytest.param(8 * OFFSETS_AT + 5, 6, 4, id="it claims later batches"),
        pytest.param(8 * OFFSETS_AT + 5, 5, 4, id="it claims later batches, cut inside"),
        pytest.param(8 * OFFSETS_AT + 1, 7, 4, id="it claims some of the batch that is cut"),
    ],
)
def test_a_truncation_believes_no_corrupt_header(
    bit: int, offset: int, start: int, config: TopicConfig
) -> None:
    disk = sim_disk()
    log = open_log(disk, config)
    for _ in range(2):
        append(log, b"a", b"b")
    segment = log._segments[-1]
    position = segment.size_bytes
    append(log, b"c", b"d")
    append(log, b"e", b"f")
    log.sync()
    disk.flip_bit(segment.path, 8 * position + bit)
    with pytest.raises(DamagedLogError, match=f"corrupt at byte {position}"):
        log.truncate_to(offset)
    assert (log.log_end_offset, log.durable_end_offset, log.is_torn) == (8, 8, False)
    assert f"corrupt at byte {position}" in log.damage
    assert log.readable_end_offset <= start
    assert killed(disk, config).damage


@pytest.mark.parametrize("bit", [1, 6], ids=["fewer offsets", "later offsets"])
def test_a_start_that_reads_headers_keeps_none_that_lies(bit: int) -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    append(log, b"a", producer=(7, 0, 0))
    body = hole_of(4)
    hole = seal(body) + body.payload
    log.append(hole, validate(hole), leader_epoch=0, now_ms=NOW_MS)
    append(log, b"b", producer=(7, 0, 1))
    log.close()
    for path in files(disk, ".producers"):
        disk.remove(path)  # so that the headers are replayed
    (path,) = files(disk, ".log")
    position = parse_header(disk.read_file(path, bytes_max=limits.MIB)).length
    disk.flip_bit(path, 8 * (position + OFFSETS_AT) + bit)
    log = killed(disk, ONE_SEGMENT)
    assert f"corrupt at byte {position}: the batch at offset 1 ends at" in log.damage
    assert (log.readable_end_offset, log.log_end_offset) == (1, 6)
    assert values(log) == [b"a"]


def test_a_corrupt_header_below_an_index_does_not_prevent_a_start() -> None:
    """The bytes after the durable end are written again. That needs no batch from before it."""
    config = TopicConfig(retention_ms=-1)  # one entry in the index of many batches
    disk = sim_disk()
    log = open_log(disk, config)
    fill(log, 3)
    task = log.begin_sync(snapshot=True)
    assert task is not None
    task.run()
    log.complete_sync(task)
    fill(log, 3)
    fill(log, 2, sync=False)
    (path,) = files(disk, ".log")
    position = position_of(disk, path, 1)
    disk.flip_bit(path, 8 * (position + OFFSETS_AT))
    log = killed(disk, config)
    assert f"corrupt at byte {position}: the batch at offset 1 ends at 3" in log.damage
    assert (log.log_end_offset, values(log)) == (8, [value_at(0)])


@pytest.mark.parametrize("operation", ["remove", "sync_dir", "truncate", "sync", "write"])
def test_a_failed_truncation_ends_all_writing(operation: str) -> None:
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_with(disk, 20)
        disk.faults.append(Fault({operation}))
        with pytest.raises(StorageFailedError, match="Input/output"):
            log.truncate_to(7)
        check_it_writes_no_more(log, disk)
        log = after_power_cut(disk)
        assert log.damage == ""
        assert values(log)[:7] == [value_at(offset) for offset in range(7)]


@pytest.mark.parametrize("operation", ["write", "sync", "sync_dir", "remove"])
@pytest.mark.parametrize("restart", [killed, after_power_cut])
def test_a_failed_deletion_is_told_and_leaves_a_log_that_starts(
    operation: str, restart: Callable[[SimDisk], Log]
) -> None:
    for seed in CHANCES:
        disk = sim_disk(seed)
        log = log_with(disk, 20)
        task = log.advance_log_start(14)
        assert isinstance(task, DeleteTask)
        disk.faults.append(Fault({operation}))
        with pytest.raises(OSError, match="Input/output"):
            task.run()
        disk.faults.clear()
        log = restart(disk)
        assert log.damage == ""
        assert log.log_start_offset in {0, 14}
        assert values(log) == [value_at(o) for o in range(log.log_start_offset, 20)]


def test_a_disk_that_fails_at_a_start_keeps_what_it_has() -> None:
    disk = sim_disk()
    fill(log_with(disk), 3, sync=False)
    disk.crash()
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(OSError, match="Input/output"):
        open_log(disk)
    disk.faults.clear()
    assert values(killed(disk)) == [value_at(offset) for offset in range(11)]
    assert disk.list_dir(DIRECTORY)


# -- quarantine ------------------------------------------------------------------------------------
#
# Damaged logs moved aside: the evidence stays, the partition goes on empty, old evidence goes.


PARTITION = f"{DATA}/topics/clicks/{FIRST}/1"


chances = chances_of(3, 40)


def new_disk(seed: int = 1) -> SimDisk:
    return SimDiskOfTrees(Random(seed))


def quarantine_contents(disk: SimDisk, directory: str) -> dict[str, bytes]:
    return {
        name: disk.read_file(f"{directory}/{name}", bytes_max=limits.MIB)
        for name in disk.list_dir(directory)
    }


def test_a_damaged_log_makes_room_for_an_empty_one() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = host(store, 1, count=5)
    fill(host(store, 0), 2)
    log.note_damage("bad", offset=3)
    before = quarantine_contents(disk, PARTITION)
    path = store.quarantine(FIRST, 1)
    assert path == f"{PARTITION}.quarantine-1"
    assert quarantine_contents(disk, path) == before
    assert store.quarantined_bytes(store.log_dirs[""]) == sum(map(len, before.values())) > 0
    fresh = store.hosted_log(FIRST, 1)
    assert (fresh.damage, fresh.log_end_offset, fresh.leader_epoch) == ("", 0, -1)
    assert f"quarantined in {path}" in fresh.notes[-1]
    append(fresh, b"from a peer")
    fresh.sync()
    store = reopened(disk, power_cut=True)
    assert hosted(store) == {(FIRST, 0): 2, (FIRST, 1): 1}
    assert list(quarantine_contents(disk, path)) == list(before)


def test_only_the_newest_are_kept() -> None:
    disk = new_disk()
    store = open_store(disk)
    notes: list[str] = []
    for number in range(12):
        append(host(store, 1), b"%d" % number)
        store.quarantine(FIRST, 1)
        notes += store.hosted_log(FIRST, 1).notes
    kept = [f"{PARTITION}.quarantine-{n}" for n in range(13 - QUARANTINES_KEPT, 13)]
    assert quarantine.quarantines(disk, PARTITION) == kept
    assert sum("removed" in note for note in notes) == 12 - QUARANTINES_KEPT
    assert f"removed {PARTITION}.quarantine-1," in " ".join(notes)
    assert len(paths_of(disk)) == QUARANTINES_KEPT, "the new log has no files yet"


def test_only_this_partitions_are_counted() -> None:
    disk = new_disk()
    for name in ("1", "1.quarantine-2", "1.quarantine-x", "11.quarantine-7", "1.other"):
        disk.make_dirs(f"{DATA}/{name}")
    assert quarantine.quarantines(disk, f"{DATA}/1") == [f"{DATA}/1.quarantine-2"]
    assert quarantine.move_aside(disk, f"{DATA}/1") == (f"{DATA}/1.quarantine-3", [])


def test_what_is_in_quarantine_is_verified_only_when_asked_for() -> None:
    disk = new_disk()
    store = open_store(disk)
    append(host(store, 1), b"x")
    store.close()
    store = reopened(disk)
    path = store.quarantine(FIRST, 1)
    append(store.hosted_log(FIRST, 1), b"y")
    store.close()
    assert [report.directory for report in inspect.verify(disk, DATA)] == [PARTITION]
    assert [report.directory for report in inspect.verify(disk, path)] == [path]


def test_a_dropped_partition_takes_its_quarantine_along() -> None:
    disk = new_disk()
    store = open_store(disk)
    host(store, 0, count=1)
    host(store, 1, count=2)
    store.quarantine(FIRST, 1)
    store.drop_partitions(FIRST, [1])
    assert paths_of(disk) == [f"clicks/{FIRST}/0"]


def test_a_partition_that_is_not_here_cannot_be_moved() -> None:
    store = open_store(new_disk())
    host(store, 0)
    with pytest.raises(UnknownPartitionError):
        store.quarantine(FIRST, 1)


def test_a_move_that_fails_is_told_and_the_next_start_goes_on() -> None:
    for code, error in ((errno.EIO, StorageFailedError), (errno.ENOSPC, DiskFullError)):
        disk = new_disk()
        store = open_store(disk)
        host(store, 1, count=3)
        disk.faults.append(Fault({"rename"}, code, PARTITION))
        with pytest.raises(error, match="quarantining"):
            store.quarantine(FIRST, 1)
        assert hosted(reopened(disk)) == {(FIRST, 1): 3}


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EMFILE])
def test_a_log_is_moved_once_however_often_an_old_one_cannot_be_removed(code: int) -> None:
    """Else empty directories take the place of what is kept for diagnosis."""
    disk = new_disk()
    store = open_store(disk)
    for _ in range(QUARANTINES_KEPT):
        host(store, 1, count=1)
        store.quarantine(FIRST, 1)
    host(store, 1, count=4)
    disk.faults.append(Fault({"remove"}, code, path="*.quarantine-1/*", times=5))
    path = ""
    while not path:
        with suppress(DiskFullError):
            path = store.quarantine(FIRST, 1)
    kept = quarantine.quarantines(disk, PARTITION)
    assert kept == [f"{PARTITION}.quarantine-{n}" for n in range(2, 2 + QUARANTINES_KEPT)]
    assert all(quarantine_contents(disk, path) for path in kept)


def test_the_move_is_durable_before_the_empty_log_is_begun() -> None:
    disk = new_disk()
    store = open_store(disk)
    host(store, 1, count=3)
    before = quarantine_contents(disk, PARTITION)
    store.quarantine(FIRST, 1)
    disk.faults.append(Fault({"make_dir"}, error=None))
    with pytest.raises(Stopped):
        append(store.hosted_log(FIRST, 1), b"from a peer")
    for name in before:
        assert disk.durable_bytes(f"{PARTITION}.quarantine-1/{name}") is not None


# -- crashes ---------------------------------------------------------------------------------------


@dataclass
class Moved:
    store: Store
    batches: list[bytes]
    is_done: bool = False


def test_moving_aside(chances: int, seed: int) -> None:
    """The old log in its place, or moved whole and an empty one there; which then is durable."""

    def prepare(disk: SimDisk) -> Moved:
        store = open_store(disk)
        for _ in range(QUARANTINES_KEPT):
            host(store, 1, count=1)
            store.quarantine(FIRST, 1)
        log = host(store, 1, count=4)
        return Moved(store, stored(log))

    def act(disk: SimDisk, state: Moved) -> None:
        state.store.quarantine(FIRST, 1)
        state.is_done = True

    def check(disk: SimDisk, state: Moved) -> None:
        store = open_store(disk)
        log = store.hosted_log(FIRST, 1)
        assert log.damage == ""
        assert stored(log) in ([[]] if state.is_done else [[], state.batches])
        if not stored(log):
            state.is_done = True
            aside = quarantine.quarantines(disk, PARTITION)[-1]
            assert quarantine_contents(disk, aside)[f"{0:020d}.log"] == b"".join(state.batches)
            append(log, b"from a peer")
            log.sync()
            store = reopened(disk, power_cut=True)
            log = store.hosted_log(FIRST, 1)
            assert log.log_end_offset == 1
            log.truncate_to(0)
        assert len(quarantine.quarantines(disk, PARTITION)) <= QUARANTINES_KEPT + 1
        store.abandon()
        disk.crash()

    sweep(prepare, act, check, seed=seed, chances=chances, make_disk=SimDiskOfTrees)


@pytest.mark.parametrize("times", [3, FOREVER])
def test_a_directory_that_is_being_removed_is_moved_aside_in_the_end(times: int) -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(host(store, 1), 2)
    disk.faults.append(Fault({"rename"}, errno.ENOENT, path=PARTITION, times=times))
    if times == FOREVER:
        with pytest.raises(StorageFailedError):
            store.quarantine(FIRST, 1)
        return
    assert store.quarantine(FIRST, 1) == f"{PARTITION}.quarantine-1"
    assert store.hosted_log(FIRST, 1).log_end_offset == 0


# -- verification ----------------------------------------------------------------------------------
#
# Verification of a running log, and its handling of corrupt and missing files.


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


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_found_during_a_sync_is_found_again_at_the_next_start(fails: bool) -> None:
    """The sync writes an index that vouches for the corrupt bytes."""
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 10)
    disk.flip_bit(files(disk, ".log")[0], 8 * 900)
    task = log.begin_sync(snapshot=True)
    assert task is not None
    with pytest.raises(DamagedLogError):
        log.verify(0, bytes_max=limits.MIB)
    if fails:
        disk.faults.append(Fault({"write"}, path="*.producers*"))
        with pytest.raises(OSError, match="error") as failure:
            task.run()
        assert files(disk, ".index")
        log.failed_sync(task, failure.value)
    else:
        task.run()
        log.complete_sync(task)
    assert "bytes and their CRC disagree" in killed(disk, ONE_SEGMENT).damage


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
    noted: list[str] = []
    log.on_missing = lambda: noted.append(log.damage)
    append(log, b"a")
    log.sync()
    log.check_place()
    assert log.damage == ""
    REMOVALS[how](disk, log)
    log.check_place()
    log.check_place()
    assert noted == [log.damage]
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


# -- rebuilding ------------------------------------------------------------------------------------

# What a start rebuilds from the batches: indexes, the epoch cache, the log start (S18).


# -- indexes ---------------------------------------------------------------------------------------


def rebuilding_closed_log(disk: SimDisk, config: TopicConfig = SMALL) -> list[bytes]:
    log = open_log(disk, config)
    fill(log, 20)
    log.close()
    return stored(killed(disk, config))


def test_a_bad_index_is_rebuilt() -> None:
    for number in [0, 1, -1]:
        for harm in ["lost", "garbage", "empty", "rot", "half", "another's", "EIO"]:
            disk = sim_disk()
            whole = rebuilding_closed_log(disk)
            paths = files(disk, ".index")
            path, other = paths[number], paths[number - 1]
            data = disk.read_file(path, bytes_max=limits.MIB)
            if harm == "lost":
                disk.remove(path)
            elif harm == "another's":
                overwrite(disk, path, disk.read_file(other, bytes_max=limits.MIB))
            elif harm == "EIO":
                disk.faults.append(Fault({"read"}, path=path))
            else:
                bad = {"garbage": b"\x5a" * 90, "empty": b"", "half": data[: len(data) // 2]}
                overwrite(disk, path, bad.get(harm, data[:30] + b"?" + data[31:]))
            log = killed(disk)
            assert (log.damage, stored(log)) == ("", whole)
            for offset in range(20):
                assert base_offsets_of(stored(log, offset))[0] == offset
                found = searched(log.offset_for_timestamp(NOW_MS, end_offset=20))
                assert found is not None
            fill(log, 1)
            log.close()
            assert problems(disk) == set()
            assert len(files(disk, ".index")) == len(files(disk, ".log"))


def test_an_old_index_is_taken_up_to_where_it_reaches() -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 5)
    log.close()
    (path,) = files(disk, ".index")
    old = disk.read_file(path, bytes_max=limits.MIB)
    log = killed(disk, ONE_SEGMENT)
    fill(log, 15)
    log.close()
    overwrite(disk, path, old)
    log = killed(disk, ONE_SEGMENT)
    assert values(log) == [value_at(offset) for offset in range(20)]
    assert log._segments[0].index.offsets[-1] > 15


def test_the_index_of_another_log_is_not_believed() -> None:
    """Same segment, same shape, other bytes: the chain tells."""
    disk = sim_disk()
    whole = rebuilding_closed_log(disk)
    other = sim_disk()
    log = open_log(other)
    for offset in range(20):
        append(log, value_at(offset).replace(b".", b"-"))
    log.close()
    for path in files(disk, ".index"):
        overwrite(disk, path, other.read_file(path, bytes_max=limits.MIB))
    log = killed(disk)
    assert (log.damage, stored(log)) == ("", whole)
    fill(log, 1)
    for path in files(disk, ".index"):
        disk.remove(path)
    assert killed(disk).damage == "", "what was appended follows another log's chain"


# -- the epoch cache -------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["lost", "garbage", "old", "rot", "of the future"])
def test_a_bad_epoch_cache_is_rebuilt_from_the_batches(harm: str) -> None:
    disk = sim_disk()
    log = open_log(disk)
    path = f"{DIRECTORY}/epochs"
    fill(log, 5)
    old = disk.read_file(path, bytes_max=limits.MIB)
    for epoch in (2, 3):
        fill(log, 5, leader_epoch=epoch)
    expected = list(log.epochs)
    if harm == "lost":
        disk.remove(path)
    elif harm == "rot":
        disk.flip_bit(path, 150)
    elif harm == "of the future":
        log._files.write_epochs(type(log.epochs)([*expected, EpochStart(9, 70)]))
    else:
        overwrite(disk, path, old if harm == "old" else b"garbage")
    log = killed(disk)
    assert list(log.epochs) == expected == [(0, 0), (2, 5), (3, 10)]
    assert log.log_end_offset == 15
    assert list(killed(disk).epochs) == expected


def test_an_epoch_of_batches_that_are_gone_does_not_come_back() -> None:
    """The log grows up to where it would have started, in the epoch before."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 5)
    log._files.write_epochs(type(log.epochs)([EpochStart(0, 0), EpochStart(9, 8)]))
    log = killed(disk)
    assert list(log.epochs) == [(0, 0)]
    fill(log, 3)
    assert list(killed(disk).epochs) == [(0, 0)]


def test_an_epoch_without_batches_survives_a_start() -> None:
    """KAFKA-15608: it is how a replica knows the newest epoch that it has seen."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 5)
    disk.capacity_bytes = 0
    with pytest.raises(Exception, match="no space"):
        fill(log, 1, leader_epoch=4)
    disk.capacity_bytes = None
    log.sync()
    log = killed(disk)
    assert (log.leader_epoch, log.log_end_offset) == (4, 5)
    assert log.epochs.end_of(0, log_end_offset=5) == EpochStart(0, 5)


def test_epochs_since_the_last_sync_are_those_of_the_batches_since_then() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 30)
    for epoch in (2, 3):
        fill(log, 5, leader_epoch=epoch, sync=False)
    for _ in range(2):
        log = killed(disk)
        assert list(log.epochs) == [(0, 0), (2, 30), (3, 35)]
        assert not any("rebuilt" in note for note in log.notes), "no other batch is read"


def test_an_epoch_that_gave_way_does_not_cover_the_batches_since_the_last_sync() -> None:
    """The file has epoch 6, without a batch; the log continued in epochs 4 and 7."""
    leader = leader_of((1, 3))
    disk = sim_disk()
    log = open_log(disk)
    follow(log, leader)
    log._begin_epoch(6)
    log.sync()
    leader.fill(1, epoch=4)
    leader.fill(1, epoch=7)
    follow(log, leader)
    assert list(killed(disk).epochs) == [(1, 0), (4, 3), (7, 4)]


def test_epochs_below_the_log_start_are_forgotten() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for epoch in range(4):
        fill(log, 5, leader_epoch=epoch)
    log.advance_log_start(12).run()
    expected = [EpochStart(2, 10), EpochStart(3, 15)]
    assert list(log.epochs) == expected
    assert list(killed(disk).epochs) == expected


def test_a_start_that_falls_back_has_its_epochs_again() -> None:
    """The log start moved, epochs were written without those below it, and power went."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 5)
    fill(log, 5, leader_epoch=1)
    log.advance_log_start(7)  # its task never runs
    fill(log, 1, leader_epoch=2)
    log = killed(disk)
    assert log.log_start_offset == 0
    assert [log.epochs.epoch_at(offset) for offset in (0, 4, 5, 9, 10)] == [0, 0, 1, 1, 2]


# -- the checkpoint --------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [0, 1])
def test_one_bad_slot_changes_nothing(slot: int) -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.advance_log_start(14).run()
    disk.flip_bit(CHECKPOINT, slot * SLOT_BYTES * 8 + 70)
    log = killed(disk)
    assert (log.log_start_offset, log.log_end_offset, log.damage) == (14, 20, "")
    assert log.notes == []


def test_without_a_good_slot_a_log_starts_with_its_first_segment_and_says_so() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.advance_log_start(14).run()
    (first, *_) = files(disk, ".log")
    for slot in (0, 1):
        disk.flip_bit(CHECKPOINT, slot * SLOT_BYTES * 8 + 70)
    assert problems(disk) == {inspect.DAMAGE}
    log = killed(disk)
    assert first.endswith(f"{log.log_start_offset:020d}.log")
    assert 0 < log.log_start_offset <= 14
    assert (log.log_end_offset, log.damage) == (20, "")
    assert any("no valid slot" in note for note in log.notes)
    append(log, b"on")
    log.close()
    assert killed(disk).log_end_offset == 21
    assert problems(disk) == set()


# -- a log start that lies beyond what is left ----------------------------------------------------


def test_records_that_were_deleted_before_they_were_synced_leave_an_empty_log() -> None:
    """``flush.policy=os``: nothing below the log start can be missed."""
    config = TopicConfig(segment_bytes=2_000, flush_policy="os")
    starts = set()
    for seed in range(20):
        disk = sim_disk(seed)
        log = open_log(disk, config)
        fill(log, 3)
        fill(log, 9, sync=False)
        log.advance_log_start(8).run()
        disk.power_cut()
        log = open_log(disk, config)
        assert (log.log_start_offset, log.damage) == (8, "")
        assert values(log) == [value_at(offset) for offset in range(8, log.log_end_offset)]
        starts.add(log.log_end_offset)
        append(log, b"on")
        log.sync()
        disk.power_cut()
        assert values(open_log(disk, config))[-1] == b"on"
    assert 8 in starts


def test_a_deletion_that_was_half_done_is_no_damage() -> None:
    """Of the removals, a power cut may have kept any."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 30)
    segments = files(disk, ".log")
    log.advance_log_start(27).run()
    for number, path in enumerate(segments[:-1]):
        if number != 1 and not disk.exists(path):
            overwrite(disk, path, b"an old segment, or what is left of it")
    assert problems(disk) == set()
    log = killed(disk)
    assert (log.log_start_offset, log.damage, log.notes) == (27, "", [])
    assert len(files(disk, ".log")) == 1
    assert values(log) == [value_at(offset) for offset in range(27, 30)]
