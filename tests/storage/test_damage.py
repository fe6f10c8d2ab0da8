"""What a start makes of bad, torn and missing bytes: cut, rebuilt, or reported and never cut.

S28: torn bytes above the durable end go; below it they are damage.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import OsDisk
from raftlog.errors import DamagedLogError
from raftlog.storage import Log, inspect
from raftlog.storage.checkpoint import SLOT_BYTES
from raftlog.testing.disk import Fault, SimDisk
from tests.record.batches import stamped
from tests.storage.harm import overwrite, problems
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    append,
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
