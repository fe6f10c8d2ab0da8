"""Looking at files: what ``dump`` shows and ``verify`` finds, also under a log at work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.disk import Disk, OsDisk
from raftlog.errors import DataDirectoryError
from raftlog.storage import Log, Store, inspect
from raftlog.storage.inspect import DAMAGE, INDEX, TORN, PartitionReport
from raftlog.testing.disk import SimDisk
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    after_power_cut,
    append,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    value_at,
)

Place = tuple[Disk, str]


@pytest.fixture(params=["sim", "os"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return (sim_disk() if request.param == "sim" else OsDisk()), f"{tmp_path}/log"


def verified(disk: Disk, directory: str = DIRECTORY) -> PartitionReport:
    (report,) = inspect.verify(disk, directory)
    return report


# -- dump ------------------------------------------------------------------------------------------


def test_a_dump_shows_every_batch_in_order(place: Place) -> None:
    disk, directory = place
    log = open_log(disk, directory=directory)
    fill(log, 10)
    rows = list(inspect.dump(disk, directory))
    assert [row.header.base_offset for row in rows if row.header] == list(range(10))
    assert [row.path for row in rows] == sorted(row.path for row in rows)
    assert len({row.path for row in rows}) == log.segment_count
    assert rows[0].position == 0 < rows[1].position
    assert not any(row.error for row in rows)
    log.close()


def test_a_row_tells_all_about_a_batch_and_its_records_when_asked() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"a", b"b", producer=(7, 1, 0), leader_epoch=3, timestamps_ms=[NOW_MS, NOW_MS - 5])
    (row,) = inspect.dump(disk, DIRECTORY)
    assert row.header is not None
    shown = row.to_dict()
    assert shown == {
        "file": files(disk, ".log")[0],
        "position": 0,
        "error": "",
        "base_offset": 0,
        "last_offset": 1,
        "records": 2,
        "bytes": row.header.length,
        "codec": "none",
        "compacted": False,
        "leader_epoch": 3,
        "append_timestamp_ms": NOW_MS,
        "first_timestamp_ms": NOW_MS,
        "max_timestamp_ms": NOW_MS,
        "producer_id": 7,
        "producer_epoch": 1,
        "base_sequence": 0,
        "crc32c": f"{row.header.crc32c:08x}",
        "chain": f"{log.chain:016x}",
    }
    assert row.to_dict(records=True)["content"] == [
        {"offset": 0, "timestamp_ms": NOW_MS, "key": None, "value": b"a", "headers": ()},
        {"offset": 1, "timestamp_ms": NOW_MS - 5, "key": None, "value": b"b", "headers": ()},
    ]


def test_one_segment_can_be_dumped() -> None:
    disk = sim_disk()
    fill(open_log(disk), 10)
    second = files(disk, ".log")[1]
    rows = list(inspect.dump(disk, second))
    assert {row.path for row in rows} == {second}


@pytest.mark.parametrize("byte", [0, 10, 130])
def test_a_dump_ends_a_segment_at_its_first_bad_batch_and_says_why(byte: int) -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 10)
    first, second, *_ = files(disk, ".log")
    bad = next(row for row in inspect.dump(disk, first) if row.header and row.header[4] == 2)
    disk.flip_bit(first, (bad.position + byte) * 8)
    rows = list(inspect.dump(disk, first))
    assert [row.position for row in rows if row.error] == [bad.position]
    assert rows[-1].error
    assert "content" not in rows[-1].to_dict(records=True)
    assert any(row.path == second for row in inspect.dump(disk, DIRECTORY))


def test_bytes_that_the_disk_cannot_read_end_a_dump_and_are_damage() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 10)
    log.close()
    first = files(disk, ".log")[0]
    bad = next(row for row in inspect.dump(disk, first) if row.header and row.header[4] == 2)
    disk.spoil(first, bad.position + 20, 1)
    *_, last = inspect.dump(disk, first)
    assert (last.position, last.error) == (bad.position, "cannot be read: Input/output error")
    assert next(problem.kind for problem in verified(disk).problems) == DAMAGE


# -- verify ----------------------------------------------------------------------------------------


def test_a_sound_log_has_no_problems_and_adds_up(place: Place) -> None:
    disk, directory = place
    log = open_log(disk, directory=directory)
    fill(log, 5)
    append(log, b"a", b"b", b"c")
    fill(log, 5)
    log.advance_log_start(3).run()
    log.close()
    report = verified(disk, directory)
    assert (report.problems, report.is_damaged) == ([], False)
    assert (report.log_start_offset, report.log_end_offset) == (3, 13)
    assert report.durable_end_offset == 13
    assert (report.batches, report.records) == (11, 13)
    assert (report.segments, report.size_bytes) == (log.segment_count, log.size_bytes)


def sound_logs() -> Iterator[tuple[str, SimDisk]]:
    """Logs that have seen something, and are sound."""
    disk = sim_disk()
    log = open_log(disk)
    yield "empty", disk
    fill(log, 3, sync=False)
    yield "unsynced", disk
    fill(log, 20)
    yield "several segments", disk
    log.advance_log_start(11).run()
    yield "dropped", disk
    log.advance_log_start(log.log_end_offset).run()
    yield "all dropped", disk
    fill(log, 9)
    log.truncate_to(27)
    yield "cut", disk
    fill(log, 1, leader_epoch=4)
    log = killed(disk)
    yield "recovered", disk
    fill(log, 2)
    log = after_power_cut(disk)
    yield "after a power cut", disk
    log.close()
    yield "closed", disk


def test_no_sound_log_is_called_damaged() -> None:
    for what, disk in sound_logs():
        if disk.exists(f"{DIRECTORY}/checkpoint"):
            kinds = {problem.kind for problem in verified(disk).problems}
            assert kinds <= ({INDEX} if what == "after a power cut" else set()), what


def damaged(disk: SimDisk) -> Log:
    log = open_log(disk)
    fill(log, 20)
    log.close()
    return log


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("byte", [2, 9, 20, 50, 200])
def test_every_flipped_bit_below_the_durable_end_is_found(number: int, byte: int) -> None:
    disk = sim_disk()
    damaged(disk)
    path = files(disk, ".log")[number]
    disk.flip_bit(path, byte * 8)
    problem = verified(disk).problems[0]
    assert (problem.kind, problem.path, problem.position) == (DAMAGE, path, 0)
    assert problem.offset == int(path.rpartition("/")[2].removesuffix(".log"))


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_missing_segment_is_found(number: int) -> None:
    disk = sim_disk()
    damaged(disk)
    disk.remove(files(disk, ".log")[number])
    assert verified(disk).is_damaged


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_segment_that_was_cut_short_is_found(number: int) -> None:
    for size in (0, 50, 400):
        disk = sim_disk()
        damaged(disk)
        disk.cut_off(files(disk, ".log")[number], size)
        assert verified(disk).is_damaged


def test_a_segment_of_another_log_is_found() -> None:
    """Every sum is right; only the chain tells."""
    disk, other = sim_disk(), sim_disk()
    damaged(disk)
    log = open_log(other)
    for offset in range(20):
        append(log, value_at(offset).replace(b".", b"-"))
    log.close()
    for suffix in (".log", ".index"):
        path = files(disk, suffix)[1]
        disk.write_atomic(path, other.read_file(path, bytes_max=1 << 20))
    kinds = [(problem.kind, problem.path) for problem in verified(disk).problems]
    assert kinds[0] == (DAMAGE, files(disk, ".log")[1])
    assert any("chain" in problem.message for problem in verified(disk).problems)


def test_a_torn_tail_is_told_from_damage() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    fill(log, 1, sync=False)
    log.abandon()
    path = files(disk, ".log")[-1]
    size = len(disk.read_file(path, bytes_max=1 << 20))
    disk.cut_off(path, size - 1)
    report = verified(disk)
    assert [problem.kind for problem in report.problems] == [TORN]
    assert not report.is_damaged
    assert (report.log_end_offset, report.problems[0].offset) == (20, 20)


@pytest.mark.parametrize("harm", ["rot", "garbage", "another's"])
def test_a_bad_index_is_found_and_is_no_damage(harm: str) -> None:
    disk = sim_disk()
    damaged(disk)
    path, other, *_ = files(disk, ".index")
    if harm == "rot":
        disk.flip_bit(path, 200)
    elif harm == "garbage":
        disk.write_atomic(path, b"garbage")
    else:
        disk.write_atomic(path, disk.read_file(other, bytes_max=1 << 20))
    report = verified(disk)
    assert [(problem.kind, problem.path) for problem in report.problems] == [(INDEX, path)]
    assert not report.is_damaged


def test_an_index_whose_entries_lead_nowhere_is_found() -> None:
    disk = sim_disk()
    log = damaged(disk)
    segment = log._segments[0]
    segment.index.positions[0] += 1
    disk.write_atomic(segment.index_path, segment.encode_index())
    (problem,) = verified(disk).problems
    assert (problem.kind, problem.path) == (INDEX, segment.index_path)
    assert "no batch with offset" in problem.message


def test_a_checkpoint_without_a_good_slot_is_found() -> None:
    disk = sim_disk()
    damaged(disk)
    disk.write_atomic(f"{DIRECTORY}/checkpoint", b"x" * 8_192)
    (problem,) = verified(disk).problems
    assert (problem.kind, problem.path) == (DAMAGE, f"{DIRECTORY}/checkpoint")


def test_looking_changes_nothing() -> None:
    disk = sim_disk()
    damaged(disk)
    disk.flip_bit(files(disk, ".log")[0], 99)
    changes = disk.changes
    list(inspect.verify(disk, DIRECTORY))
    list(inspect.dump(disk, DIRECTORY))
    assert disk.changes == changes


# -- where -----------------------------------------------------------------------------------------


def test_every_partition_below_a_directory_is_looked_at(tmp_path: Path) -> None:
    for disk, data in ((sim_disk(), "data"), (OsDisk(), f"{tmp_path}/data")):
        store = Store.open(disk, data)
        for name in ("clicks", "views"):
            store.create_topic(name, partitions=2, config={})
            fill(store.log(name, 0), 2)
        store.close()
        reports = list(inspect.verify(disk, data))
        assert [report.directory for report in reports] == [
            f"{data}/topics/{name}/{store.topic(name).id}/0" for name in ("clicks", "views")
        ]
        assert sum(report.records for report in reports) == 4
        assert len(list(inspect.dump(disk, data))) == 4


def test_what_a_symbolic_link_leads_to_is_counted_once(tmp_path: Path) -> None:
    disk = OsDisk()
    (tmp_path / "data" / "t-0").mkdir(parents=True)
    (tmp_path / "data" / "t-0" / "checkpoint").touch()
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data" / "t-0")
    (tmp_path / "data" / "round").symlink_to(tmp_path / "data")
    assert len(inspect.partition_directories(disk, str(tmp_path / "data"))) == 1


def test_a_directory_without_a_partition_says_what_to_give() -> None:
    disk = sim_disk()
    disk.make_dirs("data/empty")
    for act in (inspect.verify, inspect.dump):
        with pytest.raises(DataDirectoryError, match="holds no partition"):
            list(act(disk, "data"))


# -- a log at work ---------------------------------------------------------------------------------


def test_a_log_can_be_looked_at_while_it_is_written() -> None:
    disk = sim_disk()
    log = open_log(disk)
    for number in range(40):
        fill(log, 1, sync=number % 3 == 0)
        if number == 25:
            log.advance_log_start(17).run()
        report = verified(disk)
        assert report.problems == []
        assert report.log_end_offset == log.log_end_offset


@pytest.mark.parametrize("listing", [1, 2])
def test_what_retention_removes_under_ones_eyes_is_no_damage(
    listing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 40)
    log.advance_log_start(8).run()
    whole, listings = disk.list_dir, []

    def list_and_drop(path: str) -> list[str]:
        names = whole(path)
        listings.append(path)
        if len(listings) == listing:
            log.advance_log_start(27).run()
        return names

    monkeypatch.setattr(disk, "list_dir", list_and_drop)
    assert verified(disk).problems == []
    assert len(files(disk, ".log")) == 3


def test_the_newest_bytes_may_be_in_motion() -> None:
    disk = sim_disk()
    log = open_log(disk, SMALL)
    fill(log, 5)
    path = files(disk, ".log")[-1]
    disk.open(path).append([b"the first half of a batch"])
    report = verified(disk)
    assert [problem.kind for problem in report.problems] == [TORN]
    assert report.log_end_offset == 5
