"""What a log starts from, and what it leaves alone. See also test_damage and test_durability."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import DamagedLogError
from raftlog.record import check_batches
from raftlog.storage import Log, opening
from raftlog.storage.checkpoint import Anchor
from raftlog.storage.opening import (
    live_bases,
    load_leftovers,
    read_index,
    rebuild_producers,
    recover,
)
from raftlog.storage.opening import open_log as open_parts
from raftlog.storage.segment import LOG_SUFFIX, Segment, file_name
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.compactions import COMPACT, compact, put, seal
from tests.storage.harm import overwrite, problems
from tests.storage.logs import (
    DIRECTORY,
    ONE_SEGMENT,
    SMALL,
    append,
    count_reads,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
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
    for end in range(10):
        table = as_model(rebuild_producers(log._files, log._segments, end))
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
