"""The epoch cache and the producer snapshots on the disk."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.segment import SNAPSHOTS_KEPT, EpochCache, EpochStart, LogFiles
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.logs import DIRECTORY, files, sim_disk
from tests.storage.test_producer_state import header_of

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
