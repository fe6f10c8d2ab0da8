"""Two slots, overwritten in turns: what is read back after every way of losing one or both."""

from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.storage.checkpoint import (
    SLOT_BYTES,
    SLOTS,
    Anchor,
    Checkpoint,
    CheckpointFile,
    decode_slots,
    encode_slot,
)
from raftlog.testing.disk import Fault, SimDisk

PATH = "log/checkpoint"
offsets = st.integers(0, (1 << 63) - 1)
anchors = st.builds(Anchor, offsets, st.integers(0, (1 << 64) - 1), st.integers(-1, 1 << 31))


def disk_with_log(seed: int = 1) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.make_dirs("log")
    return disk


def loaded(disk: SimDisk) -> CheckpointFile:
    checkpoint = CheckpointFile(disk, PATH)
    assert checkpoint.load() == ""
    return checkpoint


def slots(first: bytes, second: bytes) -> bytes:
    return first.ljust(SLOT_BYTES, b"\0") + second.ljust(SLOT_BYTES, b"\0")


@given(st.builds(Checkpoint, offsets, offsets, offsets, anchors), st.integers(1, 1 << 40))
def test_a_slot_is_read_back(checkpoint: Checkpoint, sequence: int) -> None:
    assert decode_slots(encode_slot(sequence, checkpoint)) == (sequence, checkpoint)


def test_the_bytes_are_as_drawn() -> None:
    data = encode_slot(5, Checkpoint(1, 2, 3, Anchor(4, (1 << 64) - 6, 7), (1 << 64) - 9))
    assert (len(data), data[:4]) == (72, b"RLC2")
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(8, 72, 8)]
    assert words == [(1 << 64) - 9, 5, 1, 2, 3, 4, (1 << 64) - 6, 7]
    assert SLOT_BYTES * SLOTS == 8_192


def test_the_newest_slot_counts() -> None:
    old, new = encode_slot(5, Checkpoint(1, 1, 1)), encode_slot(6, Checkpoint(2, 2, 2))
    assert decode_slots(slots(old, new)) == (6, Checkpoint(2, 2, 2))
    assert decode_slots(slots(new, old)) == (6, Checkpoint(2, 2, 2))


def test_a_changed_bit_gives_the_other_slot() -> None:
    old, new = encode_slot(5, Checkpoint(1, 1, 1)), encode_slot(6, Checkpoint(2, 2, 2))
    for bit in range(len(new) * 8):
        rotten = bytearray(new)
        rotten[bit // 8] ^= 1 << bit % 8
        assert decode_slots(slots(old, bytes(rotten))) == (5, Checkpoint(1, 1, 1)), bit


@given(st.binary(min_size=1, max_size=2 * SLOT_BYTES))
def test_any_bytes_are_slots_or_none(data: bytes) -> None:
    found = decode_slots(data)
    assert found is None or found == (0, Checkpoint())


def test_a_new_log_has_none_and_needs_none() -> None:
    assert loaded(disk_with_log()).latest == Checkpoint()


def test_a_change_is_kept_by_a_killed_process_and_leaves_the_rest() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.update(log_start_offset=3)
    checkpoint.update(durable_end_offset=9, high_watermark=8)
    checkpoint.update(durable_end_offset=10)
    disk.crash()
    assert loaded(disk).latest == Checkpoint(3, 8, 10)


def test_a_synced_change_survives_a_power_cut_and_later_ones_are_old_or_new() -> None:
    seen = set()
    for seed in range(40):
        disk = disk_with_log(seed)
        checkpoint = loaded(disk)
        checkpoint.update(durable_end_offset=10, sync=True)
        for end in (11, 12, 13):
            checkpoint.update(durable_end_offset=end)
        disk.power_cut()
        seen.add(loaded(disk).latest.durable_end_offset)
    assert seen == {10, 11, 12, 13}


def test_the_name_is_durable_before_the_first_slot_is_written() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    assert disk.durable_bytes(PATH) is None

    def check(operation: str, _path: str) -> None:
        assert operation != "write" or disk.durable_bytes(PATH) is not None

    disk.before = check
    checkpoint.update(durable_end_offset=1)
    assert checkpoint.is_written


@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_synced_change_survives_the_loss_of_either_slot(slot: int) -> None:
    """Falling back to the start before would look like missing segments."""
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.update(log_start_offset=1, sync=True)
    checkpoint.update(log_start_offset=2, sync=True)
    disk.flip_bit(PATH, slot * SLOT_BYTES * 8 + 99)
    assert loaded(disk).latest.log_start_offset == 2


def test_a_torn_first_write_is_what_a_new_log_says() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    disk.faults.append(Fault({"write"}))
    with pytest.raises(OSError, match="Input/output"):
        checkpoint.update(durable_end_offset=9)
    disk.crash()
    assert loaded(disk).latest in (Checkpoint(), Checkpoint(0, 0, 9))


def test_two_bad_slots_are_told() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    for end in (1, 2):
        checkpoint.update(durable_end_offset=end)
    for slot in range(SLOTS):
        disk.flip_bit(PATH, slot * SLOT_BYTES * 8 + 99)
    checkpoint = CheckpointFile(disk, PATH)
    assert "no valid slot" in checkpoint.load()
    assert checkpoint.latest == Checkpoint()


def test_a_file_that_cannot_be_read_is_told() -> None:
    disk = disk_with_log()
    loaded(disk).update(durable_end_offset=1)
    disk.faults.append(Fault({"read"}))
    assert "cannot be read" in CheckpointFile(disk, PATH).load()


def test_writing_goes_on_in_the_older_slot() -> None:
    disk = disk_with_log()
    loaded(disk).update(durable_end_offset=1)
    for end in (2, 3, 4):
        loaded(disk).update(durable_end_offset=end)
        assert loaded(disk).latest.durable_end_offset == end


def test_raising_the_log_start_never_lowers_it() -> None:
    """Two tasks may run in any order; lowering is truncation's, and says so."""
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.raise_log_start(60)
    checkpoint.raise_log_start(50)
    assert loaded(disk).latest.log_start_offset == 60
    checkpoint.update(log_start_offset=40, sync=True)
    disk.power_cut()
    assert loaded(disk).latest.log_start_offset == 40


def test_all_room_is_taken_when_the_file_is_made() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    disk.capacity_bytes = 0
    checkpoint.prepare()
    for end in range(5):
        checkpoint.update(durable_end_offset=end, sync=True)
    disk.power_cut()
    assert loaded(disk).latest.durable_end_offset == 4


def test_making_the_file_on_a_full_disk_fails_and_works_later() -> None:
    disk = disk_with_log()
    disk.capacity_bytes = 5_000
    checkpoint = loaded(disk)
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as raised:
            checkpoint.prepare()
        assert raised.value.errno == errno.ENOSPC
    disk.capacity_bytes = None
    checkpoint.update(durable_end_offset=7, sync=True)
    disk.power_cut()
    assert loaded(disk).latest.durable_end_offset == 7


def test_closing_twice_is_harmless_and_writing_opens_again() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.update(durable_end_offset=1)
    checkpoint.close()
    checkpoint.close()
    checkpoint.update(durable_end_offset=2)
    assert loaded(disk).latest.durable_end_offset == 2


def test_an_anchor_goes_with_the_log_start_and_never_back() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.raise_log_start(60, Anchor(50, 5, 1))
    checkpoint.raise_log_start(40, Anchor(30, 3, 1))
    checkpoint.raise_log_start(70)
    disk.power_cut()
    assert loaded(disk).latest == Checkpoint(70, 0, 0, Anchor(50, 5, 1))
    checkpoint = loaded(disk)
    checkpoint.update(anchor=Anchor(7), log_start_offset=7, sync=True)
    disk.power_cut()
    assert loaded(disk).latest == Checkpoint(7, 0, 0, Anchor(7, 0, -1))


def test_an_anchor_speaks_of_one_offset() -> None:
    assert Anchor().is_known_at(0)
    assert not Anchor().is_known_at(5)
    assert Anchor(5, 77, 1).is_known_at(5)
    assert not Anchor(5, 77, 1).is_known_at(6)
    assert not Anchor(5).is_known_at(5)


def test_it_is_written_once_it_has_said_something() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    assert not checkpoint.is_written
    checkpoint.update(durable_end_offset=1)
    assert checkpoint.is_written
    assert loaded(disk).is_written


def test_where_the_file_is_open_a_segment_is_begun_beside_a_sync() -> None:
    """The event loop must not wait for a thread that is in a sync."""
    taken: list[str] = []

    class Mutex:
        def __enter__(self) -> None:
            taken.append("taken")

        def __exit__(self, *_error: object) -> None:
            """Another thread may have it."""

    disk = SimDisk(Random(1))
    disk.make_mutex = Mutex
    disk.make_dirs("log")
    checkpoint = CheckpointFile(disk, "log/checkpoint")
    for _ in range(3):
        checkpoint.prepare()
    assert taken == ["taken"]
