"""A data directory that is a copy: it is another member of the cluster, unless it may move."""

from __future__ import annotations

import errno
import shutil
from itertools import count
from pathlib import Path
from random import Random

import pytest

from raftlog.disk import KEEP_INODES, OsDisk, _file_system
from raftlog.storage import Store, place
from raftlog.storage.place import Place
from raftlog.testing.disk import Fault, SimDisk


class Directory:
    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        self.disk.make_dirs("data")
        self.ids = count(1)

    def take(self, *, directory_id: str = "d", may_move: bool = False) -> Place:
        return place.take(
            self.disk,
            "data",
            directory_id=directory_id,
            may_move=may_move,
            new_id=lambda: f"new-{next(self.ids)}",
        )

    def restore_a_copy(self) -> None:
        self.disk.put_back("data", self.disk.image("data"))


def test_a_directory_that_stays_in_its_place_keeps_its_id() -> None:
    at = Directory()
    for _ in range(3):
        assert at.take() == Place("d")
        at.disk.power_cut()


def test_a_copy_gets_another_id_and_keeps_that() -> None:
    at = Directory()
    at.take()
    at.restore_a_copy()
    found = at.take()
    assert found == Place("new-1", "d")
    assert "former_id=d" in found.notes()[0]
    at.disk.power_cut()
    assert at.take() == Place("new-1")
    assert Place("new-1").notes() == []
    at.restore_a_copy()
    assert at.take() == Place("new-2", "new-1")


def test_a_directory_that_was_closed_cleanly_may_be_moved() -> None:
    at = Directory()
    at.take()
    at.restore_a_copy()
    assert at.take(may_move=True) == Place("d")
    assert at.take() == Place("d"), "it is in its place now"


@pytest.mark.parametrize("has_peers", [True, False])
def test_a_data_directory_that_was_closed_may_be_moved(has_peers: bool) -> None:
    disk = SimDisk(Random(1))

    def ids(*, closes: bool) -> str:
        store = Store.open(disk, "data", has_peers=has_peers)
        if closes:
            store.close()
        else:
            disk.power_cut()
        disk.put_back("data", disk.image("data"))
        return store.place.member_id

    first = ids(closes=True)
    assert ids(closes=False) == first
    copied = ids(closes=True)
    assert (copied != first) == has_peers, "without peers nothing contradicts a copy"
    assert ids(closes=True) == copied


def test_without_inode_numbers_and_without_a_valid_file_no_copy_is_recognized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Directory()
    at.take()
    at.disk.write_atomic("data/place", b"nonsense")
    assert at.take() == Place("d")
    with monkeypatch.context() as without:
        without.setattr(SimDisk, "inode", lambda _disk, _path: 0)
        at.restore_a_copy()
        assert at.take() == Place("d")
    assert at.take() == Place("d"), "there was no number to compare with"


def test_a_file_of_another_directory_does_not_count() -> None:
    at = Directory()
    at.take(directory_id="another")
    assert at.take() == Place("d")


def test_a_copy_does_not_start_on_a_full_disk_and_the_original_does() -> None:
    at = Directory()
    at.disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    assert at.take() == Place("d")
    at.take()
    at.restore_a_copy()
    at.disk.faults.append(Fault(("write",), error=errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        at.take()
    assert at.take() == Place("new-2", "d")


@pytest.mark.skipif(_file_system("/tmp") not in KEEP_INODES, reason="no file system for it")
def test_a_copy_on_a_real_disk(tmp_path: Path) -> None:
    def take(directory: Path) -> Place:
        return place.take(
            OsDisk(), str(directory), directory_id="d", may_move=False, new_id=lambda: "new"
        )

    original, copy = tmp_path / "data", tmp_path / "copy"
    original.mkdir()
    take(original)
    shutil.copytree(original, copy)
    assert take(original) == Place("d")
    original.rename(tmp_path / "renamed")
    assert take(tmp_path / "renamed") == Place("d")
    assert take(copy) == Place("new", "d")
