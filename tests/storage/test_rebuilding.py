"""What a start rebuilds from the batches: indexes, the epoch cache, the log start (S18)."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.storage import inspect
from raftlog.storage.checkpoint import SLOT_BYTES
from raftlog.storage.segment import EpochStart
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.harm import overwrite, problems
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    append,
    base_offsets_of,
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
from tests.storage.replicas import follow, leader_of

CHECKPOINT = f"{DIRECTORY}/checkpoint"


# -- indexes ---------------------------------------------------------------------------------------


def closed_log(disk: SimDisk, config: TopicConfig = SMALL) -> list[bytes]:
    log = open_log(disk, config)
    fill(log, 20)
    log.close()
    return stored(killed(disk, config))


def test_a_bad_index_is_rebuilt() -> None:
    for number in [0, 1, -1]:
        for harm in ["lost", "garbage", "empty", "rot", "half", "another's", "EIO"]:
            disk = sim_disk()
            whole = closed_log(disk)
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
    whole = closed_log(disk)
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
