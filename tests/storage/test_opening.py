"""What a log starts from, and what it leaves alone. See also test_damage."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import Disk, OsDisk
from raftlog.errors import DamagedLogError, DataDirectoryError, DiskFullError, StorageFailedError
from raftlog.record import check_batches
from raftlog.storage import Log, Store, inspect, opening, state_files
from raftlog.storage.checkpoint import Anchor
from raftlog.storage.inspect import DAMAGE, INDEX, TORN, PartitionReport
from raftlog.storage.log_dirs import PROBE_BYTES, LogDir
from raftlog.storage.opening import (
    live_bases,
    load_leftovers,
    read_index,
    recover,
)
from raftlog.storage.opening import open_log as open_parts
from raftlog.storage.segment import LOG_SUFFIX, Segment, file_name
from raftlog.testing.disk import CHANGES, FOREVER, Fault, SimDisk, Stopped
from tests.storage.compactions import COMPACT, compact, put, seal
from tests.storage.directories import add_partitions, create_topic, delete_topic
from tests.storage.harm import overwrite, problems
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    count_reads,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    value_at,
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
    for end in range(9, -1, -1):
        log.truncate_to(end)
        table = as_model(log.producers)
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


# -- recovery --------------------------------------------------------------------------------------
#
# Recovery's parts: which files are live, what an index is believed, what it costs.
#
# What a start makes of bad bytes: test_damage. What is durable after it: test_durability.


@pytest.mark.parametrize(
    ("start", "live"),
    [
        (0, [0, 10, 20]),
        (9, [0, 10, 20]),
        (10, [10, 20]),
        (19, [10, 20]),
        (20, [20]),
        (99, [20]),
    ],
)
def test_segments_that_end_at_or_below_the_start_are_dead(start: int, live: list[int]) -> None:
    assert live_bases([0, 10, 20], start) == live


def test_without_a_segment_below_the_start_all_are_live() -> None:
    assert live_bases([10, 20], 5) == [10, 20]
    assert live_bases([], 5) == []


def recovered(disk: SimDisk, *, start: int = 0, durable: int = 0) -> opening.Recovered:
    return recover(
        disk,
        DIRECTORY,
        log_start_offset=start,
        durable_offset=durable,
        anchor=Anchor(),
        index_interval_bytes=300,
    )


def test_an_index_is_proof_that_what_it_covers_was_durable() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.close()
    disk.crash()
    assert recovered(disk).durable_offset == 20
    for path in files(disk, ".index"):
        disk.remove(path)
    assert recovered(disk).durable_offset == 0
    assert recovered(disk, durable=7).durable_offset == 7


def test_below_the_log_start_nothing_has_to_be_durable() -> None:
    disk = sim_disk()
    fill(open_log(disk), 20)
    disk.crash()
    assert recovered(disk, start=20, durable=20).durable_offset == 0


def test_only_what_no_index_covers_is_read_and_to_be_synced() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    log.close()
    disk.crash()
    assert recovered(disk).scanned == []
    second = files(disk, ".index")[1]
    disk.remove(second)
    (scanned,) = recovered(disk).scanned
    assert scanned.index_path == second


def test_every_batch_is_read_once_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_WINDOW_BYTES", 1_000)
    disk = sim_disk()
    log = open_log(disk)
    for size in (10, 5_000, 300, 300, 300, 3_000, 10):
        append(log, b"x" * size)
    log.sync()
    disk.crash()
    reads = count_reads(disk)
    result = recovered(disk)
    assert [s.summary for s in result.segments] == [s.summary for s in log._segments]
    assert [s.index for s in result.segments] == [s.index for s in log._segments]
    assert sum(reads) < 2 * log.size_bytes


def test_one_segment_is_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log may have more segments than a process may have descriptors."""
    disk = sim_disk()
    fill(open_log(disk), 60)
    disk.crash()
    open_now: list[Segment] = []
    whole = Segment.file.fget
    assert whole is not None

    def noting(segment: Segment) -> object:
        if segment._disk is not disk:  # of a log of another thread
            return whole(segment)
        if segment not in open_now:
            open_now.append(segment)
        open_now[:] = [other for other in open_now if other.is_open or other is segment]
        assert len(open_now) <= 2
        return whole(segment)

    monkeypatch.setattr(Segment, "file", property(noting))
    assert len(recovered(disk).segments) > 8


def test_temporary_files_are_removed() -> None:
    disk = sim_disk()
    fill(open_log(disk), 3)
    disk.crash()
    disk.write_atomic(f"{DIRECTORY}/{0:020d}.index.tmp", b"half")
    recovered(disk)
    assert [name for name in disk.list_dir(DIRECTORY) if name.endswith(".tmp")] == []


def leftovers(disk: SimDisk, *, live: int, from_offset: int = 0) -> list[Segment]:
    return load_leftovers(
        disk,
        DIRECTORY,
        live_offset=live,
        from_offset=from_offset,
        index_interval_bytes=300,
    )


def test_leftovers_are_what_lies_below_the_start_and_is_asked_for() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 30)
    disk.crash()
    bases = [segment.base_offset for segment in log._segments]
    assert leftovers(disk, live=0) == []
    assert [s.base_offset for s in leftovers(disk, live=bases[3])] == bases[:3]
    assert [s.base_offset for s in leftovers(disk, live=bases[3], from_offset=bases[2])] == [
        bases[2]
    ]
    assert leftovers(disk, live=bases[3], from_offset=bases[3]) == []


def test_leftovers_are_taken_as_far_as_they_are_good() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 30)
    disk.crash()
    first, second, third, *_ = files(disk, ".log")
    disk.remove(second)
    disk.flip_bit(third, 0)
    for path in files(disk, ".index"):
        disk.remove(path)
    found = leftovers(disk, live=30)
    whole = log._segments[0]
    assert (found[0].path, found[0].next_offset) == (first, whole.next_offset)
    assert found[1].size_bytes == 0


def test_an_index_that_cannot_be_read_is_none() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    assert read_index(disk, DIRECTORY, 0) is not None
    assert read_index(disk, DIRECTORY, 1) is None
    assert opening._INDEX_FILE_BYTES_MAX > limits.MIB


def compacted_segments(disk: SimDisk) -> list[str]:
    """Paths of segments that begin with compacted batches. Nothing but the checkpoint vouches."""
    log = open_log(disk, COMPACT)
    for number in range(20):
        keys = [b"%d" % (n % 15) for n in range(3 * number, 3 * number + 3)]
        put(log, *((key, b"x" * 90) for key in keys), producer=(number, 0, 0))
    seal(log)
    compact(log)
    disk.crash()
    for path in files(disk, ".index"):
        disk.remove(path)
    return files(disk, ".log")[:2]


def test_a_compacted_batch_does_not_prove_a_torn_tail() -> None:
    """A batch that does, by its chain value, makes what is before it bytes of no concern."""
    disk = sim_disk()
    first, _second = compacted_segments(disk)
    disk.open(first).append([b"x" * 50])
    log = open_log(disk, COMPACT)
    assert f"{first} is corrupt at byte" in log.damage


def test_segments_that_overlap_are_damage() -> None:
    """As a compaction leaves them whose file says nothing of it any more."""
    disk = sim_disk()
    first, second = compacted_segments(disk)
    data = disk.read_file(first, bytes_max=10_000)
    header, *_rest = check_batches(data)
    assert header.next_offset < int(second[-24:-4])
    name = first.replace("0" * 20, f"{header.next_offset:020d}")
    overlapping = disk.open(name, create=True)
    overlapping.append([data[header.length :]])
    overlapping.sync()
    disk.sync_dir(DIRECTORY)
    log = open_log(disk, COMPACT)
    assert "starts below the expected offset" in log.damage


@pytest.mark.parametrize("is_torn", [True, False], ids=["torn", "bytes of a failed write"])
def test_a_segment_behind_bad_bytes_that_cannot_be_opened_is_damage(is_torn: bool) -> None:
    """Its records may have been acknowledged. The log opens, as does the broker."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 2)
    fill(log, 20, sync=False)
    first, second, *_others = paths = files(disk, ".log")
    if is_torn:
        disk.flip_bit(first, 8 * (len(disk.read_file(first, bytes_max=10_000)) - 1))
    else:
        disk.open(first).append([b"x" * 50])
    disk.crash()
    disk.faults.append(Fault({"open"}, errno.EIO, path=second, times=FOREVER))
    log = open_log(disk)
    assert f"{first} is corrupt" in log.damage
    assert second in log.damage
    assert not log.is_torn
    assert files(disk, ".log") == paths
    disk.faults.clear()
    disk.crash()
    disk.faults.append(Fault({"open"}, errno.EMFILE, path=second, times=FOREVER))
    with pytest.raises(OSError, match="open files"):
        open_log(disk)


# -- the torn end of a replica ---------------------------------------------------------------------


def test_the_torn_end_of_a_replica_stays_until_it_is_decided_on() -> None:
    """It may be damage to what was acknowledged: only the other replicas know."""
    disk = sim_disk()
    fill(open_log(disk, TopicConfig()), 4, sync=False)
    size = len(disk.read_file(f"{DIRECTORY}/{file_name(0, LOG_SUFFIX)}", bytes_max=1 << 20))
    disk.flip_bit(f"{DIRECTORY}/{file_name(0, LOG_SUFFIX)}", 8 * (size // 4 * 2 + 150))
    for _ in range(2):
        disk.crash()
        log = Log.open(disk, DIRECTORY, TopicConfig(), cuts_torn=False)
        assert log.is_torn
        assert (log.readable_end_offset, log.log_end_offset) == (2, 2)
        assert "A valid batch at offset 3 follows" in log.damage
        with pytest.raises(DamagedLogError):
            fill(log, 1)
        assert len(stored(log)) == 2
    disk.crash()
    log = Log.open(disk, DIRECTORY, TopicConfig())
    assert (log.damage, log.log_end_offset) == ("", 2)
    assert "A valid batch at offset 3 follows" in "".join(log.notes)
    fill(log, 1)


def test_a_log_that_a_start_did_not_cut_grows_no_further_bad_bytes() -> None:
    disk = sim_disk()
    fill(open_log(disk, TopicConfig()), 2, sync=False)
    path = f"{DIRECTORY}/{file_name(0, LOG_SUFFIX)}"
    before = disk.read_file(path, bytes_max=1 << 20)
    disk.flip_bit(path, 8 * (len(before) - 1))
    bad = disk.read_file(path, bytes_max=1 << 20)
    disk.crash()
    log = Log.open(disk, DIRECTORY, TopicConfig(), cuts_torn=False)
    assert log.is_torn
    log.close()
    assert disk.read_file(path, bytes_max=1 << 20) == bad


# -- inspect ---------------------------------------------------------------------------------------
#
# Looking at files: what ``dump`` shows and ``verify`` finds, also under a log at work.


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
            create_topic(store, name, partitions=2, config={})
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


# -- log dirs --------------------------------------------------------------------------------------
#
# Log directories on several disks: which one a replica is in, and what a failed one takes down.


DATA, MORE, THIRD = "data", "disks/2", "disks/3"


def open_store(disk: SimDisk, *log_dirs: str, **options: object) -> Store:
    return Store.open(disk, DATA, log_dirs=log_dirs, **options)  # type: ignore[arg-type]


def reopened(disk: SimDisk, *log_dirs: str, **options: object) -> Store:
    disk.crash()
    return open_store(disk, *log_dirs, **options)


def filled(disk: SimDisk, *log_dirs: str, partitions: int = 4, **options: object) -> Store:
    """A store with a record in each log."""
    store = open_store(disk, *log_dirs, **options)
    host(store, range(partitions))
    for _, log in store.logs():
        fill(log, 1)
    return store


def host(store: Store, partitions: range, total: int = 100) -> list[Log]:
    return store.host_partitions("t", "id", list(partitions), total_partitions=total, overrides={})


def roots(store: Store) -> list[str]:
    """The log directory of each partition."""
    return [log.log_dir.path for _, log in sorted(store.logs())]


def in_root(store: Store, path: str) -> list[Log]:
    return [log for _, log in sorted(store.logs()) if log.log_dir.path == path]


# -- placement -------------------------------------------------------------------------------------


def test_replicas_are_spread_over_all_directories_and_stay_there() -> None:
    disk = sim_disk()
    store = filled(disk, MORE, THIRD, partitions=5)
    assert roots(store) == [DATA, MORE, THIRD, DATA, MORE]
    assert disk.exists(f"{MORE}/topics/t/id/1")
    assert not disk.exists(f"{DATA}/topics/t/id/1")
    again = reopened(disk, MORE, THIRD)
    assert roots(again) == roots(store)
    assert all(len(values(log)) == 1 and not log.damage for _, log in again.logs())


def test_a_topic_of_a_single_broker_is_spread_too() -> None:
    disk = sim_disk()
    store = open_store(disk, MORE)
    create_topic(store, "clicks", partitions=2, config={})
    add_partitions(store, "clicks", 4)
    assert roots(store) == [DATA, MORE, DATA, MORE]
    delete_topic(store, "clicks")
    assert disk.list_dir(f"{MORE}/topics/clicks") == []
    assert roots(reopened(disk, MORE)) == []


def test_existing_data_stays_where_it_is_and_without_the_setting_nothing_is_written() -> None:
    disk = sim_disk()
    filled(disk, partitions=2).close()
    before = disk.read_file(f"{DATA}/catalog", bytes_max=10_000)
    assert b"log_dirs" not in before
    store = open_store(disk, MORE)
    assert roots(store) == [DATA, DATA]
    host(store, range(4))
    assert roots(store) == [DATA, DATA, MORE, MORE]


def test_an_interrupted_creation_is_continued_where_it_was() -> None:
    disk = sim_disk()
    open_store(disk, MORE).close()
    disk.make_dirs(f"{MORE}/topics/t/id/0")
    store = open_store(disk, MORE)
    host(store, range(1))
    assert roots(store) == [MORE]


def test_avoided_and_failed_directories_get_no_new_replicas() -> None:
    store = open_store(sim_disk(), MORE, THIRD)
    more, third = store.log_dirs.further
    more.is_avoided = lambda: True
    third.fail("out of order")
    host(store, range(3))
    assert roots(store) == [DATA] * 3


# -- a disk fails while the store is open ----------------------------------------------------------


def test_a_failed_disk_takes_down_its_replicas_only() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    failed = []
    store.log_dirs.further[0].on_failed = failed.append
    disk.faults.append(Fault(path=f"{MORE}/*", times=FOREVER))
    first, second = in_root(store, MORE)
    with pytest.raises(DamagedLogError, match=f"log directory {MORE} has failed"):
        append(first, b"x")
    assert first.is_offline
    assert [log_dir.path for log_dir in failed] == [MORE]
    changes = disk.changes
    second.check_place()
    assert second.damage == first.damage
    assert disk.changes == changes, "nothing is written to a failed disk"
    with pytest.raises(DamagedLogError):
        values(second)
    for log in in_root(store, DATA):
        append(log, b"y")
        log.sync()
    store.close()
    disk.faults.clear()
    again = reopened(disk, MORE)
    assert [len(values(log)) for _, log in sorted(again.logs())] == [2, 1, 2, 1]


def test_a_failed_sync_takes_down_its_replicas_only() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    log, _ = in_root(store, MORE)
    append(log, b"x")
    disk.faults.append(Fault({"sync"}, errno.EROFS, path=f"{MORE}/*", times=FOREVER))
    with pytest.raises(DamagedLogError, match="Read-only file system"):
        log.sync()


def test_a_failure_of_the_data_directory_is_not_blamed_on_another_disk() -> None:
    """The first sync of a process also records the copy, in the data directory (ADR 20)."""
    disk = sim_disk()
    filled(disk, MORE)
    store = reopened(disk, MORE)
    log, _ = in_root(store, MORE)
    append(log, b"x")
    disk.faults.append(Fault(path=f"{DATA}/copies*", times=FOREVER))
    with pytest.raises(StorageFailedError):
        log.sync()
    assert not log.is_offline


def test_a_full_disk_is_no_failed_one() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    log, _ = in_root(store, MORE)
    disk.faults.append(Fault({"write"}, errno.ENOSPC, path=f"{MORE}/*"))
    with pytest.raises(DiskFullError):
        append(log, b"x")
    append(log, b"x")
    assert not log.is_offline


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("read", errno.EMFILE),
        ("read", errno.ENFILE),
        ("create", errno.EMFILE),
        ("create", errno.ENOSPC),
    ],
)
def test_a_probe_without_room_or_descriptors_tells_nothing(operation: str, code: int) -> None:
    """An error would end the broker's watch of the disk, until its next start."""
    disk = sim_disk()
    (log_dir,) = filled(disk, MORE).log_dirs.further
    disk.faults.append(Fault({operation}, code, path=f"{MORE}/*"))
    log_dir.probe()
    assert not disk.faults[0].times
    assert not log_dir.failure
    disk.lose(MORE)
    log_dir.probe()
    assert log_dir.failure


def test_files_that_are_missing_are_noted_without_a_descriptor() -> None:
    """An error would end the checks of all logs, and a failed sync would end no wait."""
    disk = sim_disk()
    log, _ = in_root(filled(disk, MORE), MORE)
    append(log, b"x")
    task = log.begin_sync()
    assert task is not None
    disk.lose(log.directory)
    disk.faults.append(Fault({"read"}, errno.EMFILE, path=f"{MORE}/*", times=2))
    with pytest.raises(OSError, match=r"\.log") as caught:
        task.run()
    assert isinstance(log.failed_sync(task, caught.value), DamagedLogError)
    assert "missing" in log.damage
    assert not log.is_offline
    log.check_place()


def test_a_directory_that_is_gone_is_not_made_again() -> None:
    """Its path may lead to the disk below the mount point now."""
    disk = sim_disk()
    store = filled(disk, MORE)
    disk.lose(MORE)
    log, other = in_root(store, MORE)
    log.check_place()
    assert log.is_offline
    other.check_place()
    assert other.is_offline
    with pytest.raises(DamagedLogError, match="has failed"):
        store.quarantine("id", 1)
    assert not disk.exists(MORE)


def test_nothing_is_created_where_another_disk_is_mounted() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    disk.lose(MORE)
    disk.make_dirs(MORE)  # the mount point
    store.log_dirs[""].is_avoided = lambda: True
    host(store, range(4, 5))
    assert disk.list_dir(MORE) == []
    (log,) = in_root(store, MORE)[2:]
    assert log.is_offline


def test_a_quarantine_that_fails_takes_the_directory_down() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    log, _ = in_root(store, MORE)
    log.note_damage("a bad batch", offset=0)
    disk.faults.append(Fault({"rename"}, path=f"{MORE}/*", times=FOREVER))
    with pytest.raises(DamagedLogError, match="has failed"):
        store.quarantine("id", 1)
    assert log.is_offline


def test_partitions_of_a_failed_directory_are_removed_when_it_is_back() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    store.log_dirs.further[0].fail("out of order")
    store.drop_partitions("id", [0, 1])
    assert disk.exists(f"{MORE}/topics/t/id/1")
    host(store, range(2))  # again, and not on the failed disk
    assert roots(store) == [DATA, DATA, DATA, MORE]
    fill(in_root(store, DATA)[1], 2)
    store.close()
    again = open_store(disk, MORE)
    assert disk.list_dir(f"{MORE}/topics/t/id") == ["3"]
    assert [len(values(log)) for _, log in sorted(again.logs())] == [0, 2, 1, 1]
    assert not any(log.damage for _, log in again.logs())
    disk.crash()
    disk.lose(f"{DATA}/topics/t/id/1")
    assert "missing" in open_store(disk, MORE).hosted_log("id", 1).damage


def test_a_topic_is_removed_from_a_failed_directory_when_it_is_back() -> None:
    disk = sim_disk()
    store = open_store(disk, MORE)
    topic = create_topic(store, "clicks", partitions=2, config={})
    store.log_dirs.further[0].fail("out of order")
    delete_topic(store, "clicks")
    assert disk.list_dir(f"{DATA}/topics/clicks/{topic.id}") == []
    assert disk.list_dir(f"{MORE}/topics/clicks") != []
    reopened(disk, MORE)
    assert disk.list_dir(f"{MORE}/topics/clicks") == []


def test_a_deletion_by_an_earlier_release_goes_on_once_its_directory_is_back() -> None:
    """The catalog lists the topic until a start has removed its files everywhere."""
    disk = sim_disk()
    filled(disk, MORE).close()
    path = f"{DATA}/catalog"
    state = state_files.read(disk, path)
    state_files.write(disk, path, {**state, "deleting": state["topics"], "topics": []})
    image = disk.image(MORE)
    disk.lose(MORE)
    open_store(disk, MORE, has_peers=True).close()
    assert disk.list_dir(f"{DATA}/topics/t") == []
    disk.put_back(MORE, image)
    open_store(disk, MORE, has_peers=True).close()
    assert disk.list_dir(f"{MORE}/topics/t") == []
    assert state_files.read(disk, path)["deleting"] == []


# -- a disk is missing at the start ----------------------------------------------------------------


def test_a_directory_that_is_missing_at_the_start_is_damage_of_its_replicas() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    image = disk.image(MORE)
    disk.lose(MORE)
    store = open_store(disk, MORE, has_peers=True)
    assert not disk.exists(MORE), "never created again"
    offline = in_root(store, MORE)
    assert all(log.is_offline and log.log_end_offset == 1 for log in offline)
    assert all("has failed" in log.damage and not log.is_torn for log in offline)
    assert all(not log.damage for log in in_root(store, DATA))
    assert any(MORE in note for note in store.notes)
    store.close()
    disk.put_back(MORE, image)
    assert all(len(values(log)) == 1 for _, log in open_store(disk, MORE).logs())


@pytest.mark.parametrize("operations", [{"lock"}, {"open"}, {"read"}, {"sync_dir"}, CHANGES])
def test_a_disk_that_fails_at_the_start_takes_down_its_replicas_only(
    operations: set[str],
) -> None:
    disk = sim_disk()
    filled(disk, MORE)
    disk.crash()
    disk.faults.append(Fault(operations, path=f"{MORE}*", times=FOREVER))
    store = open_store(disk, MORE)
    assert all(not log.damage for log in in_root(store, DATA))
    assert all(log.is_offline and log.damage for log in in_root(store, MORE))
    store.close()


def test_a_disk_that_fails_between_two_logs_takes_down_both() -> None:
    disk = sim_disk()
    filled(disk, MORE)
    disk.crash()
    disk.faults.append(Fault(path=f"{MORE}/topics/t/id/3*", times=FOREVER))
    store = open_store(disk, MORE)
    assert all(log.is_offline and log.damage for log in in_root(store, MORE))


def test_an_empty_disk_in_its_place_has_lost_all_records_of_its_replicas() -> None:
    """They are copied again: nothing that was there counts as stored."""
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.lose(MORE)
    disk.make_dirs(f"{MORE}/lost+found")
    store = open_store(disk, MORE, has_peers=True)
    lost = in_root(store, MORE)
    assert len(lost) == 2
    assert all("missing" in log.damage and not log.is_offline for log in lost)
    assert any("replaced by an empty directory" in note for note in store.notes)
    store.quarantine("id", 1)
    assert not store.hosted_log("id", 1).damage
    store.close()
    assert roots(open_store(disk, MORE)) == [DATA, MORE, DATA, MORE]


def test_a_mount_point_without_its_file_system_is_no_empty_disk() -> None:
    disk = sim_disk()
    disk.mounts.add(MORE)
    filled(disk, MORE).close()
    disk.lose(MORE)
    disk.mounts.clear()
    disk.make_dirs(MORE)
    store = open_store(disk, MORE)
    assert all("not mounted" in log.damage for log in in_root(store, MORE))
    assert disk.list_dir(MORE) == []
    store.close()
    disk.mounts.add(MORE)  # a new, empty disk
    assert not any(log.is_offline for _, log in open_store(disk, MORE).logs())


def test_files_without_their_identity_are_not_used() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.lose(f"{MORE}/log-dir")
    store = open_store(disk, MORE)
    assert all("its file is missing" in log.damage for log in in_root(store, MORE))
    disk.crash()
    disk.make_dirs(f"{THIRD}/holidays")
    with pytest.raises(DataDirectoryError, match="not empty"):
        open_store(disk, MORE, THIRD)


def test_a_path_may_change_and_disks_may_be_exchanged() -> None:
    disk = sim_disk()
    filled(disk, MORE, THIRD).close()
    more, third = disk.image(MORE), disk.image(THIRD)
    disk.put_back(MORE, third)
    disk.put_back(THIRD, more)
    store = open_store(disk, MORE, THIRD)
    assert roots(store) == [DATA, THIRD, MORE, DATA]
    assert all(len(values(log)) == 1 and not log.damage for _, log in store.logs())


def test_a_start_that_is_cut_short_anywhere_is_continued() -> None:
    """At the first use of a directory, and of an empty one in the place of a known one."""
    for is_known in (False, True):
        for skip in range(100):
            disk = sim_disk()
            filled(disk, *[MORE] * is_known).close()
            if is_known:
                disk.lose(MORE)
                disk.make_dirs(MORE)
            disk.faults.append(Fault(CHANGES, None, skip=skip))
            try:
                open_store(disk, MORE, has_peers=True)
            except Stopped:
                pass
            else:
                break
            disk.faults.clear()
            disk.power_cut()
            store = open_store(disk, MORE, has_peers=True)
            assert not any(log.is_offline for _, log in store.logs())
            assert all(log.damage for log in in_root(store, MORE))
            assert all(len(values(log)) == 1 for log in in_root(store, DATA))
        assert skip > 5


# -- settings that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "paths",
    [(MORE, MORE), (DATA,), (f"{DATA}/inside",), (MORE, f"{MORE}/inside"), ("disks", MORE)],
)
def test_one_directory_twice_or_inside_another_is_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(DataDirectoryError, match="inside the other"):
        open_store(sim_disk(), *paths)


def test_a_link_to_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(DataDirectoryError, match="are the same directory"):
        Store.open(
            OsDisk(),
            str(tmp_path / "data"),
            log_dirs=[str(tmp_path / "a"), str(tmp_path / "b")],
        )


def test_a_copy_of_another_one_is_refused() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.put_back(THIRD, disk.image(MORE))
    with pytest.raises(DataDirectoryError, match="one is a copy of the other"):
        open_store(disk, MORE, THIRD)


def test_the_directory_of_another_broker_is_refused() -> None:
    disk = sim_disk()
    other = Store.open(disk, "other", broker_id=7, log_dirs=[MORE])
    with pytest.raises(DataDirectoryError, match="in use by another process"):
        open_store(disk, MORE)
    other.close()
    with pytest.raises(DataDirectoryError, match="belongs to broker id 7"):
        open_store(disk, MORE)


def test_a_directory_of_a_wiped_data_directory_is_refused() -> None:
    """Which replicas are in it is not known any longer."""
    disk = sim_disk()
    filled(disk, MORE).close()
    disk.lose(DATA)
    with pytest.raises(DataDirectoryError, match="another data directory"):
        open_store(disk, MORE)


def test_a_removed_directory_must_have_no_replicas() -> None:
    disk = sim_disk()
    store = filled(disk, MORE)
    store.close()
    with pytest.raises(DataDirectoryError, match=r"2 replicas .* \(t:1, t:3\). Add it"):
        open_store(disk)
    store = open_store(disk, MORE)
    store.drop_partitions("id", [1, 3])
    store.close()
    assert roots(open_store(disk)) == [DATA, DATA]
    assert b"log_dirs" not in disk.read_file(f"{DATA}/catalog", bytes_max=10_000)


def test_a_new_directory_that_cannot_be_used_is_refused() -> None:
    disk = sim_disk()
    disk.faults.append(Fault(path=f"{MORE}*", times=FOREVER))
    with pytest.raises(DataDirectoryError, match=f"log directory {MORE} cannot be used"):
        open_store(disk, MORE)


def test_old_copies_in_a_directory_that_is_added_again_are_moved_aside() -> None:
    disk = sim_disk()
    filled(disk, MORE).close()
    old = disk.image(MORE)
    disk.lose(MORE)
    disk.make_dirs(MORE)
    open_store(disk, MORE).close()  # another disk in its place
    disk.put_back(THIRD, old)
    store = open_store(disk, MORE, THIRD)
    assert disk.list_dir(f"{THIRD}/topics/t/id") == ["1.quarantine-1", "3.quarantine-1"]
    assert in_root(store, THIRD) == []


def test_a_measurement_tries_a_write_when_asked() -> None:
    disk = sim_disk()
    disk.make_dirs("d")
    log_dir = LogDir(disk, "d")
    assert log_dir.measure(tries_write=True).failure == ""
    assert not disk.exists("d/probe.tmp")
    disk.capacity_bytes = PROBE_BYTES - 1
    assert log_dir.measure().failure == ""
    assert "no space" in log_dir.measure(tries_write=True).failure
    assert not disk.exists("d/probe.tmp"), "it takes no space"
