"""One segment: where batches are found, where a read stops, what times it has, how it is cut."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.errors import DamagedLogError
from raftlog.record import BatchHeader, find_timestamp, parse_header, stamp
from raftlog.storage import segment as segment_module
from raftlog.storage.segment import Segment, base_offsets, file_name
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.logs import NOW_MS, batch_of

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


def test_cutting_leaves_what_was_there_before_the_batch() -> None:
    batches = batches_of(2, 1, 3, 1)
    for offset in range(BASE, BASE + 7):
        disk, segment = segment_of(*batches)
        header = segment.find(offset)[1]
        kept = [b for b in segment.headers() if b[1].next_offset <= header.base_offset]
        segment.truncate(offset, index_interval_bytes=INTERVAL)
        _, expected = segment_of(*batches[: len(kept)])
        assert list(segment.headers()) == kept
        assert (segment.summary, segment.index) == (expected.summary, expected.index)
        assert disk.durable_bytes(segment.path) is None  # its name was never synced
        disk.sync_dir("log")
        assert len(disk.durable_bytes(segment.path) or b"") == segment.size_bytes


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
