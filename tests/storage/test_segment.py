"""One segment: where batches are found, where a read stops, what times it has, how it is cut."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import DamagedLogError
from raftlog.record import BatchHeader, find_timestamp, parse_header, seal, stamp
from raftlog.record.codec import hole_of
from raftlog.storage import segment as segment_list
from raftlog.storage import segment as segment_module
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.segment import (
    ENTRY_BYTES,
    SNAPSHOTS_KEPT,
    EpochCache,
    EpochStart,
    LogFiles,
    Segment,
    SparseIndex,
    Summary,
    base_offsets,
    decode,
    encode,
    file_name,
)
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    batch_of,
    files,
    fill,
    open_log,
    sim_disk,
    stored,
    values,
)
from tests.storage.test_producer_state import header_of

INTERVAL = 300
BASE = 100


def segment_of(
    *batches: bytes, base_offset: int = BASE, interval: int = INTERVAL, append_ms: int = NOW_MS
) -> tuple[SimDisk, Segment]:
    disk = SimDisk(Random(1))
    disk.make_dirs("log")
    segment = Segment(disk, "log", base_offset)
    segment.create()
    for batch in batches:
        add(segment, batch, interval=interval, append_ms=append_ms)
    return disk, segment


def add(
    segment: Segment, batch: bytes, *, interval: int = INTERVAL, append_ms: int = NOW_MS
) -> BatchHeader:
    section, _ = stamp(
        parse_header(batch),
        base_offset=segment.next_offset,
        leader_epoch=0,
        append_timestamp_ms=append_ms,
        log_append_time=False,
        previous_chain=segment.summary.chain,
    )
    header = parse_header(section + batch[len(section) :])
    segment.append((section, batch[len(section) :]), header, index_interval_bytes=interval)
    return header


def batches_of(*counts: int) -> list[bytes]:
    """Batches of so many records each, of about a hundred bytes."""
    return [batch_of([b"x" * 20] * count) for count in counts]


def positions(segment: Segment) -> list[int]:
    return [position for position, _ in segment.headers()]


def test_names_sort_as_offsets_do() -> None:
    names = [file_name(offset, ".log") for offset in (0, 9, 10, 181_372, (1 << 63) - 1)]
    assert names == sorted(names)
    assert names[3] == "00000000000000181372.log"


def test_only_names_of_twenty_digits_are_segments() -> None:
    strays = ["1.log", "x" * 20 + ".log", "\u0661" * 20 + ".index", ".log", "checkpoint"]
    names = [file_name(7, ".log"), file_name(3, ".log"), file_name(5, ".index"), *strays]
    assert base_offsets(names, ".log") == [3, 7]
    assert base_offsets(names, ".index") == [5]


def test_the_batch_of_any_offset_is_found() -> None:
    for interval in (0, INTERVAL, 1 << 30):
        _, segment = segment_of(*batches_of(1, 4, 2, 1, 3, 1, 1), interval=interval)
        for position, header in segment.headers():
            for offset in range(header.base_offset, header.next_offset):
                assert segment.find(offset) == (position, header)


def test_an_index_entry_comes_so_many_bytes_after_the_one_before() -> None:
    batches = batches_of(*[1] * 12)
    _, segment = segment_of(*batches)
    entries = [0, *segment.index.positions]
    assert all(INTERVAL <= b - a < INTERVAL + len(batches[0]) for a, b in zip(entries, entries[1:]))  # noqa: B905, RUF007 - neighbours
    assert set(segment.index.positions) <= set(positions(segment))


def test_headers_are_walked_across_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    _, segment = segment_of(*batches_of(1, 2, 3, 1, 2, 3))
    whole = list(segment.headers())
    for size in (88, 89, 150, 400):
        monkeypatch.setattr(segment_module, "_WALK_BYTES", size)
        assert list(segment.headers()) == whole
        assert list(segment.headers(whole[2][0])) == whole[2:]


def test_a_read_stops_at_the_last_batch_that_fits_and_takes_one_at_least() -> None:
    for interval in (0, INTERVAL, 1 << 30):
        _, segment = segment_of(*batches_of(1, 5, 2, 1, 3, 1, 1), interval=interval)
        ends = [*positions(segment)[1:], segment.size_bytes]
        for start, first in segment.headers():
            for end in (e for e in ends if e > start):
                for bytes_max in range(0, 900, 13):
                    fitting = [e for e in ends if start < e <= min(end, start + bytes_max)]
                    stop = segment.end_of_read(start=start, end=end, bytes_max=bytes_max)
                    assert stop == (fitting[-1] if fitting else start + first.length)


def test_the_first_record_of_a_time_is_found_wherever_the_log_starts() -> None:
    times = [[5, 9], [3, 3], [20, 7], [8], [30, 2, 31]]
    batches = [batch_of([b"x"] * len(row), timestamps_ms=row) for row in times]
    for interval in (0, INTERVAL):
        _, segment = segment_of(*batches, interval=interval)
        flat = list(enumerate((at for row in times for at in row), start=BASE))
        for timestamp_ms in range(35):
            for start in range(BASE, BASE + len(flat) + 1):
                expected = [(o, at) for o, at in flat if o >= start and at >= timestamp_ms]
                newer = segment.find_newer(timestamp_ms, from_offset=start)
                found = None
                while newer is not None and found is None:
                    position, header = newer
                    batch = segment.pread(header.length, position)
                    found = find_timestamp(batch, timestamp_ms, from_offset=start)
                    newer = segment.find_newer(timestamp_ms, from_offset=header.next_offset)
                assert found == (expected[0] if expected else None)


def test_a_segment_is_as_old_as_its_newest_record_but_no_younger_than_its_append() -> None:
    """ADR 0005: a clock that runs ahead must not keep records for ever."""
    _, segment = segment_of(batch_of([b"x"], timestamps_ms=NOW_MS - 5_000))
    assert segment.summary.newest_age_ms == NOW_MS - 5_000
    add(segment, batch_of([b"x"], timestamps_ms=NOW_MS * 2), append_ms=NOW_MS + 7)
    assert segment.summary.newest_age_ms == NOW_MS + 7
    assert segment.summary.newest_timestamp_ms == NOW_MS * 2
    assert segment.summary.first_append_ms == NOW_MS


def test_offsets_that_a_corrupt_batch_gives_up_are_damage_and_not_skipped() -> None:
    """A batch without records has any count of offsets, so that its header alone proves none."""
    body = hole_of(4)
    disk, segment = segment_of(*batches_of(1), seal(body) + body.payload, *batches_of(1))
    assert segment.find(BASE + 3)[1].base_offset == BASE + 1
    position = positions(segment)[1]
    disk.flip_bit(segment.path, 8 * (position + 52) + 1)  # of last_offset_delta: 1 instead of 3
    message = f"corrupt at byte {position}: the batch at offset {BASE + 1} ends at {BASE + 3}, "
    for look in (lambda: segment.find(BASE + 3), lambda: positions(segment)):
        with pytest.raises(DamagedLogError, match=message):
            look()


def test_cutting_leaves_what_was_there_before_the_batch() -> None:
    batches = batches_of(2, 1, 3, 1)
    for offset in range(BASE, BASE + 7):
        disk, segment = segment_of(*batches)
        header = segment.find(offset)[1]
        kept = [b for b in segment.headers() if b[1].next_offset <= header.base_offset]
        segment.truncate(segment.kept_before(offset), index_interval_bytes=INTERVAL)
        _, expected = segment_of(*batches[: len(kept)])
        assert list(segment.headers()) == kept
        assert (segment.summary, segment.index) == (expected.summary, expected.index)
        assert disk.durable_bytes(segment.path) is None  # its name was never synced
        disk.sync_dir("log")
        assert len(disk.durable_bytes(segment.path) or b"") == segment.size_bytes


def test_a_cut_reads_what_is_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all headers of a segment of gigabytes, while a broker does nothing else."""
    _, segment = segment_of(*batches_of(*[1] * 60))
    read: list[int] = []
    pread = Segment.pread

    def counted(self: Segment, size: int, position: int) -> bytes:
        read.append(position)
        return pread(self, size, position)

    monkeypatch.setattr(Segment, "pread", counted)
    kept = segment.kept_before(BASE + 55)
    assert kept.headers[-1].next_offset == BASE + 55
    assert min(read) > segment.size_bytes * 0.85
    segment.truncate(kept, index_interval_bytes=INTERVAL)
    _, expected = segment_of(*batches_of(*[1] * 55))
    assert (segment.summary, segment.index) == (expected.summary, expected.index)


def test_a_new_segment_follows_the_one_before() -> None:
    disk, first = segment_of(*batches_of(1))
    second = Segment(disk, "log", first.next_offset)
    second.follow(first.anchor)
    assert second.summary.chain == first.summary.chain
    assert second.summary.leader_epoch == first.summary.leader_epoch == 0
    assert second.size_bytes == 0


@pytest.mark.parametrize("harm", ["rot", "loss", "EIO"])
def test_bytes_that_are_bad_or_gone_are_damage_and_name_their_place(harm: str) -> None:
    disk, segment = segment_of(*batches_of(1, 1, 1))
    second = positions(segment)[1]
    place = second + 10 if harm == "loss" else second
    if harm == "rot":
        disk.flip_bit(segment.path, (second + 8) * 8)
    elif harm == "loss":
        disk.cut_off(segment.path, second + 10)
    else:
        disk.faults.append(Fault({"read"}))
    with pytest.raises(DamagedLogError, match=rf"\.log is corrupt at byte {place}: .*verify"):
        segment.header_at(second)


def test_a_closed_segment_opens_when_it_is_read() -> None:
    _, segment = segment_of(*batches_of(1))
    segment.close()
    segment.close()
    assert not segment.is_open
    assert segment.header_at(0).base_offset == BASE
    assert segment.is_open


def test_removing_takes_both_files() -> None:
    disk, segment = segment_of(*batches_of(1))
    disk.write_atomic(segment.index_path, segment.encode_index())
    segment.remove()
    assert disk.list_dir("log") == []


# -- epoch cache -----------------------------------------------------------------------------------
#
# Tests of raftlog.storage.segment.


Entries = list[tuple[int, int]]
# Epoch 3 wrote nothing: epoch 5 starts where it does. Epochs 2 and 4 never led this partition.
ENTRIES = ((0, 0), (1, 10), (3, 20), (5, 20), (6, 30))
LOG_END_OFFSET = 40


def cache_of(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochStart(*entry) for entry in entries)


@st.composite
def entries_of_caches(draw: st.DrawFn) -> Entries:
    """Epochs that strictly ascend from starts that never descend."""
    epochs = sorted(draw(st.sets(st.integers(0, 15), max_size=6)))
    starts = draw(st.lists(st.integers(0, 20), min_size=len(epochs), max_size=len(epochs)))
    return list(zip(epochs, sorted(starts), strict=True))


def test_an_empty_cache_knows_no_epoch() -> None:
    cache = EpochCache()
    assert cache.latest == -1
    assert len(cache) == 0
    assert cache.epoch_at(0) == -1
    assert cache.end_of(0, log_end_offset=LOG_END_OFFSET) == (-1, -1)
    assert not cache.cut(0)
    assert not cache.advance_start(5)


def test_a_new_epoch_is_noted_once() -> None:
    cache = EpochCache()
    assert cache.assign(2, 7)
    assert not cache.assign(2, 9)
    assert list(cache) == [(2, 7)]
    assert cache.latest == 2


def test_an_epoch_in_which_nothing_was_written_is_noted_too() -> None:
    cache = cache_of((0, 5))
    assert cache.assign(1, 5)
    assert cache.assign(4, 5)
    assert list(cache) == [(0, 5), (1, 5), (4, 5)]


@pytest.mark.parametrize(("epoch", "start_offset"), [(1, 20), (3, 9)])
def test_neither_epochs_nor_their_starts_go_back(epoch: int, start_offset: int) -> None:
    cache = cache_of((2, 10))
    with pytest.raises(AssertionError):
        cache.assign(epoch, start_offset)
    assert list(cache) == [(2, 10)]


@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(0, 0), (9, 0), (10, 1), (19, 1), (20, 5), (29, 5), (30, 6), (1_000, 6)],
)
def test_an_offset_belongs_to_the_last_epoch_that_starts_at_or_before_it(
    offset: int, epoch: int
) -> None:
    assert cache_of(*ENTRIES).epoch_at(offset) == epoch


def test_an_offset_before_the_first_epoch_belongs_to_none_that_is_known() -> None:
    assert cache_of((3, 20)).epoch_at(19) == -1


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, (0, 10)),  # known: it ends where the next one starts
        (1, (1, 20)),
        (2, (1, 20)),  # not known: the largest below it
        (3, (3, 20)),  # known, and empty
        (4, (3, 20)),
        (5, (5, 30)),
        (6, (6, LOG_END_OFFSET)),  # the latest: it ends where the log does
        (9, (6, LOG_END_OFFSET)),
    ],
)
def test_an_epoch_ends_where_the_largest_known_up_to_it_does(
    epoch: int, expected: tuple[int, int]
) -> None:
    cache = cache_of(*ENTRIES)
    assert cache.end_of(epoch, log_end_offset=LOG_END_OFFSET) == expected


def test_an_epoch_below_all_that_are_known_has_no_end() -> None:
    assert cache_of((3, 20)).end_of(2, log_end_offset=LOG_END_OFFSET) == (-1, -1)


@pytest.mark.parametrize(
    ("log_end_offset", "left"),
    [
        (30, 5),  # epoch 6 starts at the end: it wrote nothing, and was still seen
        (29, 4),
        (20, 4),
        (19, 2),
        (0, 1),
    ],
)
def test_a_cut_log_forgets_epochs_that_start_beyond_its_end(log_end_offset: int, left: int) -> None:
    cache = cache_of(*ENTRIES)
    assert cache.cut(log_end_offset) is (left < len(ENTRIES))
    assert list(cache) == list(ENTRIES[:left])
    assert not cache.cut(log_end_offset)


@pytest.mark.parametrize(
    ("log_start_offset", "forgotten"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 3), (30, 4), (90, 4)]
)
def test_deleting_old_records_forgets_epochs_wholly_below_them(
    log_start_offset: int, forgotten: int
) -> None:
    cache = cache_of(*ENTRIES)
    assert cache.advance_start(log_start_offset) is (forgotten > 0)
    assert list(cache) == list(ENTRIES[forgotten:])
    assert not cache.advance_start(log_start_offset)


@given(entries=entries_of_caches(), offset=st.integers(0, 25))
def test_the_epoch_of_an_offset_is_what_a_search_of_all_entries_finds(
    entries: Entries, offset: int
) -> None:
    expected = max((epoch for epoch, start in entries if start <= offset), default=-1)
    assert cache_of(*entries).epoch_at(offset) == expected


@given(entries=entries_of_caches(), start=st.integers(0, 25), length=st.integers(0, 25))
def test_what_remains_of_a_log_keeps_its_epochs(entries: Entries, start: int, length: int) -> None:
    whole, kept = cache_of(*entries), cache_of(*entries)
    end = start + length
    kept.cut(end)
    kept.advance_start(start)
    for offset in range(start, end):
        assert kept.epoch_at(offset) == whole.epoch_at(offset)


@given(entries=entries_of_caches(), epoch=st.integers(0, 16))
def test_the_end_of_an_epoch_is_where_a_larger_one_begins(entries: Entries, epoch: int) -> None:
    known = [other for other, _ in entries if other <= epoch]
    starts = [start for other, start in entries if other > epoch]
    expected = (known[-1], min(starts, default=LOG_END_OFFSET)) if known else (-1, -1)
    assert cache_of(*entries).end_of(epoch, log_end_offset=LOG_END_OFFSET) == expected


# -- index -----------------------------------------------------------------------------------------
#
# Tests of raftlog.storage.segment.


BASE_OFFSET = 1_000
INT64_MAX = (1 << 63) - 1
Entry = tuple[int, int, int]  # offset, newest timestamp before it, position

offsets = st.integers(0, INT64_MAX)
timestamps = st.integers(-1, INT64_MAX)
index_positions = st.integers(1, (1 << 32) - 1)
summaries = st.builds(
    Summary,
    next_offset=offsets,
    log_bytes=offsets,
    chain=st.integers(0, (1 << 64) - 1),
    leader_epoch=st.integers(-1, (1 << 31) - 1),
    newest_timestamp_ms=timestamps,
    newest_age_ms=timestamps,
    first_append_ms=timestamps,
)
EXAMPLE = Summary(1_050, 2_900, 77, 3, NOW_MS + 5, NOW_MS + 4, NOW_MS)


def index_of(*entries: Entry) -> SparseIndex:
    index = SparseIndex()
    for offset, newest_before_ms, position in entries:
        index.add(offset=offset, newest_before_ms=newest_before_ms, position=position)
    return index


@st.composite
def entries_of_indexes(draw: st.DrawFn) -> list[Entry]:
    """Offsets and positions strictly ascend; timestamps never descend."""
    count = draw(st.integers(0, 8))
    few = st.integers(1, 30)
    entry_offsets = draw(st.sets(few, min_size=count, max_size=count))
    entry_positions = draw(st.sets(few, min_size=count, max_size=count))
    newest_before = draw(st.lists(few, min_size=count, max_size=count))
    columns = (sorted(entry_offsets), sorted(newest_before), sorted(entry_positions))
    return list(zip(*columns, strict=True))


# -- the file --------------------------------------------------------------------------------------


@given(
    entries=st.lists(st.tuples(offsets, timestamps, index_positions), max_size=20),
    summary=summaries,
)
def test_what_was_written_is_read(entries: list[Entry], summary: Summary) -> None:
    data = encode(BASE_OFFSET, index_of(*entries), summary)
    assert decode(data, base_offset=BASE_OFFSET) == (index_of(*entries), summary)


def test_an_index_takes_room_for_its_entries_alone() -> None:
    empty = len(encode(BASE_OFFSET, index_of(), EXAMPLE))
    entries = [(BASE_OFFSET + n, NOW_MS, 100 * n) for n in range(1, 8)]
    assert len(encode(BASE_OFFSET, index_of(*entries), EXAMPLE)) == empty + 7 * ENTRY_BYTES


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_no_damaged_byte_goes_unnoticed(mask: int) -> None:
    data = encode(BASE_OFFSET, index_of((1_010, NOW_MS, 700), (1_020, NOW_MS, 1_500)), EXAMPLE)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= mask
        assert decode(bytes(damaged), base_offset=BASE_OFFSET) is None, f"byte {position}"


def test_an_index_of_another_length_is_not_read() -> None:
    data = encode(BASE_OFFSET, index_of((1_010, NOW_MS, 700)), EXAMPLE)
    for size in range(len(data)):
        assert decode(data[:size], base_offset=BASE_OFFSET) is None, f"{size} bytes"
    assert decode(data + b"\0", base_offset=BASE_OFFSET) is None
    assert decode(data + data, base_offset=BASE_OFFSET) is None


@pytest.mark.parametrize("data", [b"", bytes(4_096), b"RLIX" + bytes(200)])
def test_what_is_no_index_is_not_read(data: bytes) -> None:
    assert decode(data, base_offset=0) is None


def test_the_index_of_another_segment_is_not_read() -> None:
    data = encode(BASE_OFFSET, index_of(), EXAMPLE)
    assert decode(data, base_offset=BASE_OFFSET + 1) is None


def test_a_read_index_can_grow() -> None:
    found = decode(encode(BASE_OFFSET, index_of((1_010, NOW_MS, 700)), EXAMPLE), base_offset=1_000)
    assert found is not None
    index, _summary = found
    index.add(offset=1_020, newest_before_ms=NOW_MS, position=1_500)
    assert index == index_of((1_010, NOW_MS, 700), (1_020, NOW_MS, 1_500))


# -- looking things up -----------------------------------------------------------------------------


def test_an_empty_index_starts_every_search_at_the_segments_first_batch() -> None:
    index = index_of()
    assert index.last_position == 0
    assert index.position_for_offset(5) == 0
    assert index.positions_for_timestamp(NOW_MS) == (0, None)
    assert index.batch_start_before(5) == 0


@pytest.mark.parametrize(
    ("offset", "position"), [(0, 0), (9, 0), (10, 300), (11, 300), (19, 300), (20, 700), (99, 700)]
)
def test_a_search_for_an_offset_starts_at_or_before_it(offset: int, position: int) -> None:
    assert index_of((10, 1, 300), (20, 2, 700)).position_for_offset(offset) == position


@pytest.mark.parametrize(
    ("timestamp_ms", "positions"),
    [
        (49, (0, 300)),
        (50, (0, 300)),  # a record before the first entry has it
        (51, (300, 700)),
        (60, (300, 700)),  # a record between the two has it
        (61, (1_100, None)),
    ],
)
def test_a_search_for_a_time_starts_after_all_that_is_older(
    timestamp_ms: int, positions: tuple[int, int | None]
) -> None:
    index = index_of((10, 50, 300), (20, 60, 700), (30, 60, 1_100))
    assert index.positions_for_timestamp(timestamp_ms) == positions


@given(entries=entries_of_indexes(), wanted=st.integers(0, 35))
def test_searches_find_what_reading_all_entries_finds(entries: list[Entry], wanted: int) -> None:
    index = index_of(*entries)
    by_offset = [position for offset, _, position in entries if offset <= wanted]
    by_time = [position for _, newest_before, position in entries if newest_before < wanted]
    by_position = [position for _, _, position in entries if position <= wanted]
    assert index.position_for_offset(wanted) == max(by_offset, default=0)
    later = [position for _, newest_before, position in entries if newest_before >= wanted]
    expected = max(by_time, default=0), min(later, default=None)
    assert index.positions_for_timestamp(wanted) == expected
    assert index.batch_start_before(wanted) == max(by_position, default=0)
    assert index.last_position == max((position for _, _, position in entries), default=0)


# -- log files -------------------------------------------------------------------------------------
#
# The epoch cache and the producer snapshots on the disk.


EPOCHS = [EpochStart(0, 0), EpochStart(3, 17)]


def new_files(seed: int = 1) -> tuple[SimDisk, LogFiles]:
    disk = sim_disk(seed)
    disk.make_dirs(DIRECTORY)
    return disk, LogFiles(disk, DIRECTORY)


def state_at(offset: int) -> dict[str, Any]:
    """A table that tells its offset."""
    table = ProducerTable()
    table.note(header_of(0, offset=offset - 1))
    return table.snapshot()


def test_epochs_are_durable_when_they_are_written() -> None:
    disk, log_files = new_files()
    assert log_files.read_epochs() is None
    log_files.write_epochs(EpochCache(EPOCHS))
    disk.power_cut()
    assert list(log_files.read_epochs() or ()) == EPOCHS


@pytest.mark.parametrize("harm", ["rot", "loss", "EIO"])
def test_a_damaged_epoch_cache_is_none_and_noted(harm: str) -> None:
    disk, log_files = new_files()
    log_files.write_epochs(EpochCache(EPOCHS))
    if harm == "rot":
        disk.flip_bit(f"{DIRECTORY}/epochs", 100)
    elif harm == "loss":
        disk.cut_off(f"{DIRECTORY}/epochs", 10)
    else:
        disk.faults.append(Fault({"read"}))
    assert log_files.read_epochs() is None
    (note,) = log_files.notes
    assert "rebuilt from the log" in note


def test_on_a_full_disk_no_epochs_are_better_than_wrong_ones() -> None:
    disk, log_files = new_files()
    log_files.write_epochs(EpochCache(EPOCHS))
    disk.capacity_bytes = 0
    log_files.write_epochs(EpochCache(EPOCHS[:1]))
    disk.power_cut()
    assert log_files.read_epochs() is None
    log_files.write_epochs(EpochCache(EPOCHS[:1]))
    disk.capacity_bytes = None
    log_files.write_epochs(EpochCache(EPOCHS[:1]))
    assert list(log_files.read_epochs() or ()) == EPOCHS[:1]


def test_the_newest_snapshot_at_or_below_the_end_counts() -> None:
    _, log_files = new_files()
    for offset in (10, 20, 30):
        log_files.write_snapshot(offset, state_at(offset))
    assert log_files.snapshot_offset == 30
    for end, found in ((30, 30), (29, 20), (20, 20), (10, 10), (9, 0)):
        table = log_files.read_snapshot(log_end_offset=end)
        assert log_files.snapshot_offset == found
        assert table.snapshot() == (state_at(found) if found else {"producers": []})


def test_a_damaged_snapshot_gives_the_one_before() -> None:
    disk, log_files = new_files()
    for offset in (10, 20):
        log_files.write_snapshot(offset, state_at(offset))
    disk.flip_bit(files(disk, ".producers")[-1], 100)
    assert log_files.read_snapshot(log_end_offset=99).snapshot() == state_at(10)
    assert len(log_files.notes) == 1


def test_few_snapshots_are_kept() -> None:
    disk, log_files = new_files()
    for offset in range(10, 100, 10):
        log_files.write_snapshot(offset, state_at(offset))
    assert len(files(disk, ".producers")) == SNAPSHOTS_KEPT
    assert log_files.read_snapshot(log_end_offset=99).snapshot() == state_at(90)


def test_a_snapshot_of_a_shorter_log_is_not_given_up_for_those_of_a_longer_one() -> None:
    """Before a truncation cuts them, there are newer ones."""
    _, log_files = new_files()
    for offset in (50, 60, 70, 40):
        log_files.write_snapshot(offset, state_at(offset))
    assert log_files.read_snapshot(log_end_offset=40).snapshot() == state_at(40)


def test_snapshots_beyond_the_end_are_deleted_for_good() -> None:
    """Else one would pass for true when the log has grown past it with other batches."""
    for seed in range(20):
        disk, log_files = new_files(seed)
        for offset in (10, 20, 30):
            log_files.write_snapshot(offset, state_at(offset))
        log_files.cut_snapshots(20)
        disk.power_cut()
        log_files.read_snapshot(log_end_offset=99)
        assert log_files.snapshot_offset == 20


def test_without_room_a_snapshot_is_not_written_and_leaves_no_litter() -> None:
    disk, log_files = new_files()
    assert log_files.try_write_snapshot(10, state_at(10))
    disk.capacity_bytes = 0
    assert not log_files.try_write_snapshot(20, state_at(20))
    assert log_files.snapshot_offset == 10
    assert disk.list_dir(DIRECTORY) == ["00000000000000000010.producers"]


def test_a_broken_disk_is_no_lack_of_room() -> None:
    disk, log_files = new_files()
    disk.faults.append(Fault({"sync"}))
    with pytest.raises(OSError, match="Input/output"):
        log_files.try_write_snapshot(10, state_at(10))


def test_one_snapshot_is_written_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks may save the same one, in two threads, and both would write the same file."""
    disk, log_files = new_files()
    rename, held = disk.rename, []

    def noting_rename(source: str, target: str) -> None:
        held.append(log_files._lock.locked())
        rename(source, target)

    monkeypatch.setattr(disk, "rename", noting_rename)
    log_files.write_snapshot(10, state_at(10))
    assert held == [True]
    assert not log_files._lock.locked()


def test_snapshots_that_were_cut_keep_no_producers_safe() -> None:
    disk, log_files = new_files()
    for offset in (5, 9):
        log_files.write_snapshot(offset, state_at(offset))
    log_files.cut_snapshots(9)
    assert log_files.snapshot_offset == 9
    log_files.cut_snapshots(7)
    assert log_files.snapshot_offset == 5
    log_files.cut_snapshots(-1)
    assert log_files.snapshot_offset == 0
    assert files(disk, ".producers") == []


# -- segment list ----------------------------------------------------------------------------------
#
# Reading across segments, and what is kept open and remembered to make that cheap.


def test_a_read_goes_on_in_the_next_segment() -> None:
    log = open_log(sim_disk())
    fill(log, 20)
    assert log.segment_count > 3
    parts = log.read(start_offset=0, end_offset=20, bytes_max=limits.GIB)
    assert len(parts) == log.segment_count
    assert len(b"".join(parts)) == log.size_bytes


@pytest.mark.parametrize("bytes_max", [0, 1, 290, 1_000, 2_500])
def test_a_reader_that_comes_back_for_more_sees_every_batch_once(bytes_max: int) -> None:
    log = open_log(sim_disk())
    fill(log, 20)
    whole, found, offset = stored(log), b"", 0
    while offset < 20:
        parts = log.read(start_offset=offset, end_offset=20, bytes_max=bytes_max)
        found += b"".join(parts)
        offset = sum(
            len(b) and 1 for b in whole if len(found) >= sum(map(len, whole[: 1 + whole.index(b)]))
        )
    assert found == b"".join(whole)


def test_where_readers_are_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_list, "_POSITIONS_REMEMBERED", 3)
    log = open_log(sim_disk())
    fill(log, 30)
    for offset in range(30):
        log.read(start_offset=offset, end_offset=30, bytes_max=1)
    assert len(log._segments._positions) == 3


def test_a_reader_who_comes_back_is_found_without_a_search() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 6)
    log.read(start_offset=0, end_offset=6, bytes_max=300)
    segment = log._segments[0]
    segment.index = type(segment.index)()
    segment.find = lambda offset: pytest.fail("a search")  # type: ignore[method-assign]
    parts = log.read(start_offset=1, end_offset=6, bytes_max=300)
    assert len(parts) == 1


def test_few_sealed_segments_stay_open_and_none_that_is_yet_to_be_synced_is_closed() -> None:
    log = open_log(sim_disk())
    for _ in range(10):
        fill(log, 6, sync=False)
    unsynced = list(log._segments)
    assert all(segment.is_open for segment in unsynced)
    log.sync()
    is_open = [segment.is_open for segment in log._segments[:-1]]  # type: ignore[index]
    assert sum(is_open) == limits.OPEN_SEALED_SEGMENTS_MAX
    assert values(log, 0)[0] is not None
    fill(log, 6)
    assert sum(s.is_open for s in list(log._segments)[:-1]) == limits.OPEN_SEALED_SEGMENTS_MAX


def test_dropping_never_takes_the_last_segment() -> None:
    log = open_log(sim_disk())
    fill(log, 20)
    segments = list(log._segments)
    assert log._segments.drop_below(segments[2].base_offset) == segments[:2]
    assert log._segments.drop_below(1_000) == segments[2:-1]
    assert list(log._segments) == segments[-1:]


def test_neighbours_are_swapped_for_one_and_where_readers_are_is_forgotten() -> None:
    log = open_log(sim_disk())
    fill(log, 30)
    segments = log._segments
    log.read(start_offset=4, end_offset=30, bytes_max=1)
    before = list(segments)
    one = Segment(log._disk, DIRECTORY, before[1].base_offset)
    one.summary.next_offset = before[2].next_offset
    segments.swap([before[1].base_offset, before[2].base_offset], one)
    assert list(segments) == [before[0], one, *before[3:]]
    assert not any(segment.is_open for segment in before[1:3])
    assert segments._positions == {}
    with pytest.raises(AssertionError):
        segments.swap([before[0].base_offset, before[3].base_offset], one)
