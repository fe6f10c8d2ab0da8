"""What a power cut leaves of unsynced changes: anything that a real one may, and nothing else."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from raftlog.testing.disk import SECTOR_BYTES, CachedDirectory, CachedFile, Change

CHANCES = range(200)

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
    kept = {after(b"", [write], seed).data.count(b"x") // SECTOR_BYTES for seed in CHANCES}
    assert kept == {0, 1, 2, 3, 4}


def test_sectors_are_torn_in_order_and_out_of_order() -> None:
    write = Change(0, b"x" * 3 * SECTOR_BYTES)
    patterns = set()
    for seed in CHANCES:
        data = after(b"", [write], seed).data
        patterns.add("".join("x" if byte else "." for byte in data[::SECTOR_BYTES]))
    assert {"", "x..", "xx.", "xxx", ".xx", ".x.", "..x", "..."} <= patterns


def test_a_later_change_may_stay_without_an_earlier_one() -> None:
    pending = [Change(0, b"a" * SECTOR_BYTES), Change(SECTOR_BYTES, b"b" * SECTOR_BYTES)]
    outcomes = {bytes(after(b"", pending, seed).data) for seed in CHANCES}
    assert b"\0" * SECTOR_BYTES + b"b" * SECTOR_BYTES in outcomes


def test_of_the_writes_to_one_sector_the_first_ones_stay() -> None:
    pending = [Change(0, b"1"), Change(1, b"2"), Change(2, b"3")]
    outcomes = {bytes(after(b"...", pending, seed).data) for seed in CHANCES}
    assert outcomes == {b"...", b"1..", b"12.", b"123"}


def test_a_truncation_may_come_undone() -> None:
    outcomes = {bytes(after(b"12345", [Change(2, None)], seed).data) for seed in CHANCES}
    assert {b"12", b"12345"} <= outcomes


def test_names_stay_in_the_same_three_ways() -> None:
    outcomes = set()
    for seed in CHANCES:
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
