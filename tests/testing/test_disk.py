"""The simulated disk: what a crash and a power cut leave, and failures that were planned.

What it shares with every disk is tested in ``tests/test_disk.py``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.disk import Disk
from raftlog.testing.disk import (
    CHANGES,
    FOREVER,
    SECTOR_BYTES,
    CachedDirectory,
    CachedFile,
    Change,
    Fault,
    SimDisk,
    SimFile,
    Stopped,
)

CHANCES = range(40)


def disk_with(data: bytes, *, seed: int = 1) -> tuple[SimDisk, SimFile]:
    """A disk with a durable file ``d/a`` that holds ``data``."""
    disk = SimDisk(Random(seed))
    disk.make_dirs("d")
    disk.write_atomic("d/a", data)
    return disk, disk.open("d/a")


def read(disk: Disk, path: str = "d/a") -> bytes:
    return disk.read_file(path, bytes_max=1 << 20)


def test_it_is_a_disk() -> None:
    disk: Disk = SimDisk(Random(1))
    assert disk.list_dir("/") == []


# -- the end of a process --------------------------------------------------------------------------


def test_a_crash_keeps_all_that_was_written() -> None:
    disk, file = disk_with(b"old")
    file.append([b" new"])
    disk.open("d/b", create=True).append([b"b"])
    disk.remove("d/a")
    disk.crash()
    assert disk.list_dir("d") == ["b"]
    assert read(disk, "d/b") == b"b"


@pytest.mark.parametrize("end", [SimDisk.crash, SimDisk.power_cut])
def test_handles_and_locks_end_with_their_process(end: Callable[[SimDisk], None]) -> None:
    disk, file = disk_with(b"old")
    lock = disk.lock("d/lock")
    end(disk)
    for act in (lambda: file.append([b"x"]), lambda: file.pread(1, 0), file.sync):
        with pytest.raises(OSError, match="Bad file descriptor"):
            act()
    file.close()
    disk.lock("d/lock")
    lock.release()  # the dead process's: it frees nothing any more
    with pytest.raises(BlockingIOError):
        disk.lock("d/lock")


def test_a_power_cut_keeps_what_was_synced() -> None:
    for seed in CHANCES:
        disk, file = disk_with(b"old", seed=seed)
        file.append([b" and synced"])
        file.sync()
        file.append([b", and not"])
        disk.power_cut()
        assert read(disk).startswith(b"old and synced")
        assert disk.durable_bytes("d/a") == read(disk)


def test_a_power_cut_after_a_crash_takes_what_the_crash_had_kept() -> None:
    lengths = set()
    for seed in CHANCES:
        disk, file = disk_with(b"old", seed=seed)
        file.append([b" new"])
        disk.crash()
        assert read(disk) == b"old new"
        disk.power_cut()
        lengths.add(len(read(disk)))
    assert {3, 7} <= lengths


def test_a_new_name_is_durable_once_its_directory_was_synced() -> None:
    survived = {False: 0, True: 0}
    for seed in CHANCES:
        for synced in survived:
            disk, _ = disk_with(b"", seed=seed)
            file = disk.open("d/b", create=True)
            file.append([b"b"])
            file.sync()
            if synced:
                disk.sync_dir("d")
            disk.power_cut()
            survived[synced] += disk.exists("d/b")
    assert survived[True] == len(CHANCES)
    assert 0 < survived[False] < len(CHANCES)


def test_a_removal_may_come_undone_until_the_directory_was_synced() -> None:
    outcomes = set()
    for seed in CHANCES:
        disk, _ = disk_with(b"old", seed=seed)
        disk.remove("d/a")
        disk.power_cut()
        outcomes.add(disk.exists("d/a"))
    assert outcomes == {False, True}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in CHANCES:
        disk, _ = disk_with(b"old", seed=seed)
        disk.rename("d/a", "d/b")
        disk.power_cut()
        outcomes.add(tuple(disk.list_dir("d")))
    assert outcomes == {("a",), ("b",)}


def test_what_is_below_a_lost_directory_is_lost() -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("d/e")  # durable, as ``make_dirs`` promises
    disk.write_atomic("d/e/a", b"kept")
    disk.power_cut()
    assert read(disk, "d/e/a") == b"kept"
    disk.remove_tree("d/e")
    disk.sync_dir("d")
    disk.power_cut()
    assert disk.list_dir("d") == []


def test_an_atomic_write_leaves_the_old_or_the_new_wherever_it_is_stopped() -> None:
    for seed in CHANCES:
        for skip in range(7):
            disk, _ = disk_with(b"old", seed=seed)
            disk.faults.append(Fault(error=None, skip=skip))
            try:
                disk.write_atomic("d/a", b"new state")
            except Stopped:
                legal = {b"old", b"new state"}
            else:
                legal = {b"new state"}
            disk.power_cut()
            assert read(disk) in legal


def test_the_same_seed_gives_the_same_outcome() -> None:
    def outcome(seed: int) -> list[bytes]:
        disk, file = disk_with(b"old" * 1_000, seed=seed)
        for number in range(5):
            file.pwrite(bytes([number]) * 700, number * 600)
        disk.power_cut()
        return [read(disk), repr(disk.list_dir("d")).encode()]

    assert outcome(7) == outcome(7)
    assert len({outcome(seed)[0] for seed in CHANCES}) > 1


def test_durable_bytes_are_of_durable_names() -> None:
    disk, file = disk_with(b"old")
    file.append([b" new"])
    assert disk.durable_bytes("d/a") == b"old"
    disk.open("d/b", create=True).sync()
    assert disk.durable_bytes("d/b") is None
    disk.sync_dir("d")
    assert disk.durable_bytes("d/b") == b""
    assert disk.durable_bytes("d") is None
    assert disk.durable_bytes("x/y") is None


# -- no room ---------------------------------------------------------------------------------------


def test_a_full_disk_takes_what_there_is_room_for_and_refuses() -> None:
    disk, file = disk_with(b"12345")
    disk.capacity_bytes = 8
    assert disk.free_bytes("d") == 3
    with pytest.raises(OSError, match="No space") as raised:
        file.append([b"abcdef"])
    assert raised.value.errno == errno.ENOSPC
    assert (read(disk), file.size()) == (b"12345abc", 5)
    file.truncate(5)
    file.append([b"abc"])
    assert read(disk) == b"12345abc"


def test_overwriting_in_place_and_naming_take_no_room() -> None:
    disk, file = disk_with(b"12345")
    disk.capacity_bytes = 5
    file.pwrite(b"abcde", 0)
    file.sync()
    disk.open("d/b", create=True)
    disk.rename("d/b", "d/c")
    assert (read(disk), disk.free_bytes("d")) == (b"abcde", 0)


def test_room_comes_back_with_a_removal_or_a_larger_disk() -> None:
    disk, file = disk_with(b"12345")
    disk.write_atomic("d/b", b"123")
    disk.capacity_bytes = 8
    with pytest.raises(OSError, match="No space"):
        file.append([b"x"])
    disk.remove("d/b")
    file.append([b"678"])
    disk.capacity_bytes = None
    file.append([b"9" * 100])
    assert file.size() == 108


# -- failures that were planned --------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "read", "sync", "truncate"])
def test_an_operation_on_a_file_fails_when_it_is_its_turn(operation: str) -> None:
    disk, file = disk_with(b"12345")
    acts = {
        "write": lambda: file.pwrite(b"x", 0),
        "read": lambda: file.pread(1, 0),
        "sync": file.sync,
        "truncate": lambda: file.truncate(3),
    }
    disk.faults.append(Fault({operation}, errno.EIO, path="d/*", skip=1, times=2))
    acts[operation]()
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            acts[operation]()
    acts[operation]()


@pytest.mark.parametrize(
    "operation", ["create", "open", "make_dir", "rename", "remove", "sync_dir", "lock", "read"]
)
def test_an_operation_on_a_name_fails_and_changes_nothing(operation: str) -> None:
    disk, _ = disk_with(b"12345")
    acts = {
        "create": lambda: disk.open("d/new", create=True),
        "open": lambda: disk.open("d/a"),
        "make_dir": lambda: disk.make_dirs("d/new"),
        "rename": lambda: disk.rename("d/a", "d/new"),
        "remove": lambda: disk.remove("d/a"),
        "sync_dir": lambda: disk.sync_dir("d"),
        "lock": lambda: disk.lock("d/new"),
        "read": lambda: read(disk),
    }
    disk.faults.append(Fault({operation}, errno.EROFS, times=FOREVER))
    for _ in range(3):
        with pytest.raises(OSError, match="Read-only"):
            acts[operation]()
    assert disk.list_dir("d") == ["a"]


def test_a_fault_strikes_only_the_paths_it_names() -> None:
    disk, file = disk_with(b"")
    other = disk.open("d/a.log", create=True)
    disk.faults.append(Fault({"write"}, path="*.log"))
    file.append([b"x"])
    with pytest.raises(OSError, match=r"d/a\.log"):
        other.append([b"x"])


def test_a_failing_write_may_have_written_any_part() -> None:
    lengths = set()
    for seed in CHANCES:
        disk, file = disk_with(b"", seed=seed)
        disk.faults.append(Fault({"write"}))
        with pytest.raises(OSError, match="Input/output"):
            file.append([b"1234"])
        assert b"1234".startswith(read(disk))
        lengths.add(len(read(disk)))
    assert lengths == {0, 1, 2, 3}


def test_a_failed_sync_keeps_the_pages_dirty_unless_it_forgets_them() -> None:
    for forgets in (False, True):
        disk, file = disk_with(b"old")
        file.append([b" new"])
        disk.faults.append(Fault({"sync"}, forgets=forgets))
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()  # as ext4 has it: success, and nothing was written
        assert file.pread(99, 0) == b"old new"
        assert disk.durable_bytes("d/a") == (b"old" if forgets else b"old new")
        disk.power_cut()
        assert read(disk) == disk.durable_bytes("d/a")


def test_bytes_that_a_sync_forgot_are_durable_once_they_are_written_again() -> None:
    disk, file = disk_with(b"old")
    file.append([b" new"])
    disk.faults.append(Fault({"sync"}, forgets=True))
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.pwrite(file.pread(4, 3), 3)
    file.sync()
    assert disk.durable_bytes("d/a") == b"old new"


def test_a_stopped_process_does_nothing_more() -> None:
    disk, file = disk_with(b"old")
    disk.faults.append(Fault(error=None, skip=1))
    file.append([b" new"])
    for act in (file.sync, file.sync, lambda: disk.remove("d/a"), lambda: file.pread(1, 0)):
        with pytest.raises(Stopped):
            act()
    file.close()  # what cleans up on the way out does no harm
    disk.crash()
    assert read(disk) == b"old new"
    assert disk.durable_bytes("d/a") == b"old"


def test_changes_are_counted_so_that_each_can_be_the_last() -> None:
    disk, file = disk_with(b"old")
    before = disk.changes
    file.append([b"x"])
    file.pread(1, 0)
    file.sync()
    disk.open("d/a")
    disk.open("d/b", create=True)
    disk.sync_dir("d")
    assert disk.changes - before == 4
    assert {"write", "sync", "create", "sync_dir"} <= CHANGES
    assert not {"read", "open", "lock"} & CHANGES


# -- bytes at rest ---------------------------------------------------------------------------------


def test_a_bit_that_rots_stays_rotten() -> None:
    disk, _ = disk_with(b"\x00\x00")
    disk.flip_bit("d/a", 9)
    assert read(disk) == b"\x00\x02"
    disk.power_cut()
    assert read(disk) == b"\x00\x02"


def test_bytes_that_are_cut_off_are_gone() -> None:
    disk, file = disk_with(b"12345")
    file.append([b"67"])
    disk.cut_off("d/a", 6)
    assert read(disk) == disk.durable_bytes("d/a") == b"123456"


def test_what_is_reserved_is_there_when_the_disk_is_full() -> None:
    disk = SimDisk(Random(1))
    disk.make_dirs("d")
    file, other = disk.open("d/file", create=True), disk.open("d/other", create=True)
    file.append([b"abc"])
    disk.reserve("d/file", 10)
    disk.capacity_bytes = disk.used_bytes
    assert (disk.used_bytes, disk.free_bytes("d")) == (13, 0)
    with pytest.raises(OSError, match="No space"):
        other.append([b"x"])
    file.append([bytes(10)])
    with pytest.raises(OSError, match="No space"):
        file.append([b"x"])
    file.truncate(3)
    assert disk.free_bytes("d") == 10, "shortening it gives the room back"
    with pytest.raises(OSError, match="No space"):
        disk.reserve("d/file", 11)
    disk.reserve("d/file", 10)
    disk.power_cut()
    assert disk.free_bytes("d") >= 10, "a power cut forgets it"


def test_a_write_that_was_lost_or_misdirected_shows_after_a_power_cut() -> None:
    for misdirected in (False, True):
        disk = SimDisk(Random(1))
        disk.make_dirs("d")
        disk.write_atomic("d/f", b"a" * 512 + b"b" * 512)
        if misdirected:
            disk.misdirect_write("d/f", 512, 512, 0)
        else:
            disk.lose_write("d/f", 512, 512)
        disk.crash()
        assert disk.read_file("d/f", bytes_max=9_999) == b"a" * 512 + b"b" * 512
        disk.power_cut()
        first = b"b" if misdirected else b"a"
        assert disk.read_file("d/f", bytes_max=9_999) == first * 512 + bytes(512)


def test_bytes_that_cannot_be_read_are_so_until_their_file_is_removed() -> None:
    disk, file = disk_with(b"0123456789", seed=1)
    disk.spoil("d/a", 4, 2)
    assert file.pread(4, 0) == b"0123"
    with pytest.raises(OSError, match="Input/output error"):
        file.pread(2, 5)
    disk.crash()
    with pytest.raises(OSError, match="Input/output error"):
        read(disk)
    disk.remove("d/a")
    disk.write_atomic("d/a", b"new")
    assert read(disk) == b"new"


# -- page cache ------------------------------------------------------------------------------------
#
# What a power cut leaves of unsynced changes: anything that a real one may, and nothing else.


PAGE_CACHE_CHANCES = range(200)

changes = st.lists(
    st.builds(
        Change,
        st.integers(0, 3 * SECTOR_BYTES),
        st.none() | st.binary(max_size=2 * SECTOR_BYTES),
    ),
    max_size=6,
)


def after(durable: bytes, pending: list[Change], seed: int) -> CachedFile:
    file = CachedFile(bytearray(durable), bytearray(durable))
    for change in pending:
        file.change(change)
    file.power_cut(Random(seed))
    return file


def test_some_bytes_of_a_file_cannot_be_read() -> None:
    file = CachedFile(unreadable=range(10, 20))
    ranges = [(0, 10), (0, 11), (19, 30), (20, 30), (12, 15), (0, 40)]
    assert [file.can_read(*each) for each in ranges] == [True, False, False, True, False, False]
    assert CachedFile().can_read(0, 100)


@given(changes)
def test_data_is_durable_bytes_and_pending_changes(pending: list[Change]) -> None:
    file, image = CachedFile(), bytearray()
    for number, change in enumerate(pending):
        if number == len(pending) // 2:
            file.sync()
            assert file.durable == file.data
        file.change(change)
        change.apply(image)
    assert file.data == image
    file.sync()
    assert file.durable == image
    assert file.pending == []


@given(changes)
def test_a_change_tells_every_sector_that_it_changed(pending: list[Change]) -> None:
    image = bytearray()
    for change in pending:
        before = bytes(image).ljust(6 * SECTOR_BYTES, b"\0")
        sectors = change.apply(image)
        now = bytes(image).ljust(6 * SECTOR_BYTES, b"\0")
        for sector in range(6):
            part = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
            assert sector in sectors or before[part] == now[part]


@given(changes, st.integers(0, 1 << 16))
def test_each_sector_is_left_as_it_was_at_some_moment(pending: list[Change], seed: int) -> None:
    durable = b"\xff" * 700
    image = bytearray(durable)
    moments = [bytes(image)]
    for change in pending:
        change.apply(image)
        moments.append(bytes(image))
    left = after(durable, pending, seed)
    assert left.data == left.durable
    assert len(left.data) in {len(moment) for moment in moments}
    for start in range(0, len(left.data), SECTOR_BYTES):
        end = min(start + SECTOR_BYTES, len(left.data))
        sector = bytes(left.data[start:end])
        assert sector in {moment[start:end].ljust(end - start, b"\0") for moment in moments}


def test_all_of_a_write_may_stay_or_none_or_some_sectors_of_it() -> None:
    write = Change(0, b"x" * 4 * SECTOR_BYTES)
    kept = {
        after(b"", [write], seed).data.count(b"x") // SECTOR_BYTES for seed in PAGE_CACHE_CHANCES
    }
    assert kept == {0, 1, 2, 3, 4}


def test_sectors_are_torn_in_order_and_out_of_order() -> None:
    write = Change(0, b"x" * 3 * SECTOR_BYTES)
    patterns = set()
    for seed in PAGE_CACHE_CHANCES:
        data = after(b"", [write], seed).data
        patterns.add("".join("x" if byte else "." for byte in data[::SECTOR_BYTES]))
    assert {"", "x..", "xx.", "xxx", ".xx", ".x.", "..x", "..."} <= patterns


def test_a_later_change_may_stay_without_an_earlier_one() -> None:
    pending = [Change(0, b"a" * SECTOR_BYTES), Change(SECTOR_BYTES, b"b" * SECTOR_BYTES)]
    outcomes = {bytes(after(b"", pending, seed).data) for seed in PAGE_CACHE_CHANCES}
    assert b"\0" * SECTOR_BYTES + b"b" * SECTOR_BYTES in outcomes


def test_of_the_writes_to_one_sector_the_first_ones_stay() -> None:
    pending = [Change(0, b"1"), Change(1, b"2"), Change(2, b"3")]
    outcomes = {bytes(after(b"...", pending, seed).data) for seed in PAGE_CACHE_CHANCES}
    assert outcomes == {b"...", b"1..", b"12.", b"123"}


def test_a_truncation_may_come_undone() -> None:
    outcomes = {bytes(after(b"12345", [Change(2, None)], seed).data) for seed in PAGE_CACHE_CHANCES}
    assert {b"12", b"12345"} <= outcomes


def test_names_stay_in_the_same_three_ways() -> None:
    outcomes = set()
    for seed in PAGE_CACHE_CHANCES:
        directory = CachedDirectory()
        for name in "abc":
            directory.change({name: CachedFile()})
        directory.power_cut(Random(seed))
        assert directory.names == directory.durable
        outcomes.add("".join(directory.names))
    assert outcomes == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_directory_has_the_files_below_it() -> None:
    inner, outer = CachedDirectory(), CachedDirectory()
    inner.change({"x": CachedFile(bytearray(b"x"))})
    outer.change({"inner": inner, "y": CachedFile(bytearray(b"y"))})
    assert [bytes(file.data) for file in outer.files()] == [b"x", b"y"]
