"""Disks that are harmed are harmed as they should be: what was synced stays, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from raftlog.storage.segment import LOG_SUFFIX
from raftlog_jepsen.control import disks
from raftlog_jepsen.control.disks import (
    MODES,
    REGIONS,
    WRITEBACK,
    WRITEBACK_DEFAULT,
    LoopDisk,
    LoopDiskError,
    Mode,
    Place,
    Region,
    Writeback,
    why_not,
)
from tests.jepsen_like.nemesis.stores import BATCH_BYTES, make_data

SIZE_BYTES = 64 << 20
HOLD = """
import sys
from pathlib import Path
from raftlog_jepsen.control.disks import Writeback
with Writeback(value=Path(sys.argv[1]), lock=Path(sys.argv[2])):
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""

WAIT = "import sys; sys.stdout.write('here\\n'); sys.stdout.flush(); sys.stdin.read()"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    if why_not():
        pytest.skip(f"no disk can be harmed here: {why_not()}")
    with LoopDisk(tmp_path / "run", "disk-1", SIZE_BYTES) as made:
        yield made


def write(path: Path, data: bytes, *, sync: bool, at: int = 0) -> None:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file:
        file.seek(at)
        file.write(data)
        if sync:
            os.fsync(file.fileno())


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def content(directory: Path) -> dict[str, bytes]:
    """All files of a disk, apart from its marks."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith("mark-")
    }


def harm(root: Path, random: Random) -> None:
    """Change what is there in every way that needs a sync, without one."""
    write(root / "new", random.randbytes(100_000), sync=False)
    write(root / "over", b"x" * 5_000, sync=False)
    write(root / "longer", b"x" * 5_000, sync=False, at=5_000)
    os.truncate(root / "shorter", 100)
    (root / "before").rename(root / "after")
    write(root / "draft", b"x" * 5_000, sync=False)
    (root / "draft").rename(root / "replaced")
    (root / "removed").unlink()
    (root / "folder").mkdir()


# -- power


@pytest.mark.integration
def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(disk: LoopDisk) -> None:
    random = Random(1)
    for _ in range(20):
        root = disk.mount_point
        names = ("over", "longer", "shorter", "before", "replaced", "removed")
        synced = {name: random.randbytes(5_000) for name in names}
        for name, data in synced.items():
            write(root / name, data, sync=True)
        sync(root)
        harm(root, random)
        disk.mark()
        assert disk.marked()
        assert disk.dirty_bytes() >= 100_000
        disk.cut_power()
        assert not disk.marked()
        assert content(root) == synced
        assert not (root / "folder").exists()
        assert disk.dirty_bytes() == 0


@pytest.mark.integration
def test_with_the_journal_kept_names_are_there_and_data_is_not(disk: LoopDisk) -> None:
    root = disk.mount_point
    for name in ("over", "longer", "shorter", "before", "replaced", "removed"):
        write(root / name, b"s" * 5_000, sync=True)
    sync(root)
    harm(root, Random(2))
    disk.mark()
    disk.cut_power(journal="kept")
    assert not disk.marked()
    left = content(root)
    assert left["over"] == b"s" * 5_000
    assert left["shorter"] == b"s" * 100
    assert left["after"] == b"s" * 5_000
    assert left["replaced"] == left["new"] == b""
    assert left["longer"] == b"s" * 5_000 + bytes(8192 - 5_000)
    assert not {"removed", "before", "draft"} & left.keys()
    assert (root / "folder").is_dir()


@pytest.mark.integration
def test_a_power_cut_leaves_what_the_file_under_the_disk_has(
    disk: LoopDisk, tmp_path: Path
) -> None:
    """The same thing by other means: nothing but the copy of that file, made while it is in use."""
    root = disk.mount_point
    for name in ("over", "longer", "shorter", "before", "replaced", "removed"):
        write(root / name, b"s" * 5_000, sync=True)
    harm(root, Random(3))
    copy = tmp_path / "copy.img"
    shutil.copyfile(disk.image, copy)
    disk.cut_power()
    place = tmp_path / "copy"
    place.mkdir()
    subprocess.run(["mount", "-o", "loop", copy, place], check=True)
    try:
        assert content(place) == content(root)
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.integration
def test_a_mark_takes_the_room_that_is_said(disk: LoopDisk) -> None:
    assert disk.dirty_bytes() == 0
    disk.mark()
    assert disk.dirty_bytes() == disks.MARK_ROOM


@pytest.mark.integration
def test_one_of_two_disks_loses_power(disk: LoopDisk, tmp_path: Path) -> None:
    with LoopDisk(tmp_path / "run", "disk-2", SIZE_BYTES) as other:
        disk.mark()
        other.mark()
        disk.cut_power()
        assert (disk.marked(), other.marked()) == (False, True)


@pytest.mark.integration
def test_what_is_synced_is_not_counted_as_lost(disk: LoopDisk) -> None:
    """So a machine that writes back by itself is found out."""
    disk.mark()
    subprocess.run(["sync", "--file-system", disk.mount_point], check=True)
    disk.cut_power()
    assert disk.marked()


# -- room


@pytest.mark.integration
def test_a_full_disk_takes_nothing_until_it_is_freed(disk: LoopDisk) -> None:
    disk.free()  # nothing to free
    room = disk.free_bytes()
    disk.fill()
    assert disk.free_bytes() == 0
    assert disk.probe() == "ENOSPC"
    with pytest.raises(OSError, match="No space left"):
        disk.mark()
    disk.free()
    assert disk.free_bytes() == room
    assert disk.probe(1 << 20) == ""


@pytest.mark.integration
def test_some_room_is_left_if_it_is_to_be(disk: LoopDisk) -> None:
    write(disk.mount_point / "file", bytes(1 << 20), sync=True)
    disk.fill(leave_bytes=16384)
    assert 16384 <= disk.free_bytes() < 16384 + 4096
    assert disk.probe(4096) == ""
    assert disk.probe(1 << 20) == "ENOSPC"
    (disk.mount_point / "file").unlink()
    assert disk.probe(1 << 19) == ""
    disk.fill(leave_bytes=4096)
    assert disk.free_bytes() < 8192


@pytest.mark.integration
def test_room_that_was_given_back_stays_so_without_power(disk: LoopDisk) -> None:
    disk.fill()
    disk.cut_power()
    assert disk.free_bytes() == 0
    disk.free()
    disk.cut_power()
    assert disk.probe(1 << 20) == ""


# -- errors


@pytest.mark.integration
@pytest.mark.parametrize(
    ("harming", "error"),
    [(LoopDisk.trigger_error, errno.EROFS), (LoopDisk.shutdown, errno.EIO)],
    ids=["read-only", "broken"],
)
def test_who_has_files_open_gets_errors_until_the_disk_is_mounted_again(
    disk: LoopDisk, harming: Callable[[LoopDisk], None], error: int
) -> None:
    path = disk.mount_point / "file"
    write(path, b"synced", sync=True)
    with path.open("r+b", buffering=0) as file:
        harming(disk)
        with pytest.raises(OSError) as caught:
            file.write(b"x")
        assert caught.value.errno == error
    assert disk.probe() == errno.errorcode[error]
    disk.remount()
    assert disk.probe() == ""
    assert path.read_bytes() == b"synced"
    disk.cut_power()
    assert path.read_bytes() == b"synced"


@pytest.mark.integration
def test_a_sync_of_what_was_written_before_fails_too(disk: LoopDisk) -> None:
    with (disk.mount_point / "file").open("wb", buffering=0) as file:
        file.write(b"x")
        disk.shutdown()
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file.fileno())


# -- there or not


@pytest.mark.integration
def test_nothing_is_done_to_the_directory_of_a_disk_that_is_not_mounted(disk: LoopDisk) -> None:
    disk.unmount()
    disk.unmount()
    for act in (disk.mark, disk.fill, disk.probe, disk.cut_power, disk.shutdown):
        with pytest.raises(LoopDiskError, match="is not mounted"):
            act()
    assert list(disk.mount_point.iterdir()) == []
    disk.mount()
    disk.mount()
    assert disk.probe() == ""


@pytest.mark.integration
def test_what_holds_a_disk_may_be_kept(disk: LoopDisk, tmp_path: Path) -> None:
    with LoopDisk(tmp_path / "run", "kept", SIZE_BYTES) as other:
        other.close(keep=True)
        assert other.image.exists()
        other.close()
        assert not other.image.exists()
        assert not other.mount_point.exists()


@pytest.mark.integration
def test_a_disk_that_cannot_be_made_leaves_nothing(disk: LoopDisk, tmp_path: Path) -> None:
    with pytest.raises(LoopDiskError, match=r"mkfs\.ext4 ended with status 1: .+"):
        LoopDisk(tmp_path / "run", "tiny", 1 << 10)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"disk-1", "disk-1.img"}


@pytest.mark.integration
def test_a_file_system_that_others_have_mounted_is_not_mounted_again(
    disk: LoopDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be the one that was shut down, and not what is on the disk."""
    monkeypatch.setattr(disks, "RELEASE_TIMEOUT_S", 0.1)
    command = ["unshare", "--mount", "--wd", str(disk.mount_point), sys.executable, "-c", WAIT]
    with piped(command) as other:  # which stands in it
        with pytest.raises(TimeoutError, match="no other mount"):
            disk.cut_power()
        assert not disk.mounted
        other.communicate("")
    monkeypatch.undo()
    disk.mount()
    assert disk.probe() == ""


@pytest.mark.integration
def test_a_file_system_that_others_only_know_of_is_unmounted_there(disk: LoopDisk) -> None:
    """A mount namespace begins with a copy of all mounts."""
    with piped(["unshare", "--mount", sys.executable, "-c", WAIT]) as other:
        disk.mark()
        disk.cut_power()
        assert not disk.marked()
        other.communicate("")


def test_why_not_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not.__wrapped__() == "requires root, to mount file systems"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_not.__wrapped__() == "requires Linux"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(disks, "COMMANDS", ("sh", "mkfs.nothing"))
    assert why_not.__wrapped__() == "no mkfs.nothing"


# -- writeback


@pytest.fixture
def value(tmp_path: Path) -> Path:
    path = tmp_path / "centisecs"
    path.write_text("700\n")
    return path


@contextlib.contextmanager
def piped(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process, from its first line on."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def holder(value: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(value), str(value.with_name("lock"))]
    with piped(command) as process:
        yield process


def writeback(value: Path) -> Writeback:
    return Writeback(value=value, lock=value.with_name("lock"))


def test_writeback_is_off_in_the_block_and_then_as_before(value: Path) -> None:
    for _ in range(2):
        with writeback(value):
            assert value.read_text() == "0"
        assert value.read_text() == "700"


@pytest.mark.integration
def test_the_last_of_two_puts_it_back(value: Path) -> None:
    with writeback(value):
        with holder(value):
            assert value.read_text() == "0"
        assert value.read_text() == "0"
    assert value.read_text() == "700"


@pytest.mark.integration
def test_the_first_may_leave_first(value: Path) -> None:
    with contextlib.ExitStack() as later:
        with writeback(value):
            process = later.enter_context(holder(value))
        assert value.read_text() == "0"
        process.communicate("")
        assert value.read_text() == "700"


@pytest.mark.integration
def test_what_a_killed_process_left_is_put_back(value: Path) -> None:
    with holder(value) as process:
        process.kill()
        process.wait()
        assert value.read_text() == "0"
    with writeback(value):
        assert value.read_text() == "0"
    assert value.read_text() == "700"


@pytest.mark.parametrize("noted", ["", "0", "much"])
def test_a_zero_that_nobody_noted_is_not_kept(value: Path, noted: str) -> None:
    value.write_text("0\n")
    value.with_name("lock").write_text(noted)
    with writeback(value):
        pass
    assert value.read_text() == WRITEBACK_DEFAULT


@pytest.mark.integration
def test_the_machine_writes_nothing_back_while_there_is_a_disk(disk: LoopDisk) -> None:
    assert WRITEBACK.read_text().strip() == "0"


# -- files -----------------------------------------------------------------------------------------
#
# What lies in a data directory is found, harmed as was asked, and the harm is seen.


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    make_data(directory, 1, partitions=2)
    return directory


def one(data_dir: Path, region: Region) -> Place:
    return disks.places(data_dir, region)[0]


# -- which there are


def test_every_region_has_its_files(data_dir: Path) -> None:
    counts = {region: len(disks.places(data_dir, region)) for region in REGIONS}
    assert counts == {
        "closed": 4,  # two in each of two partitions
        "active": 2,
        "index": 6,
        "epochs": 2,
        "producers": 2,
        "checkpoint": 4,  # two slots in each
        "journal": 1,
        "identity": 1,
        "catalog": 1,
    }
    assert not [
        place for r in REGIONS for place in disks.places(data_dir, r) if disks.trouble(place)
    ]


def test_what_is_not_synced_is_no_place_to_harm(data_dir: Path) -> None:
    place = one(data_dir, "active")
    assert place.end == place.path.stat().st_size > place.indexed > 0
    disks.tear(place, Random(1))
    again = one(data_dir, "active")
    assert again.end == place.end < again.path.stat().st_size
    assert not disks.trouble(again), "torn bytes are no damage"


def test_of_one_partition_only_its_own(data_dir: Path) -> None:
    first, second = disks.partitions(data_dir)
    assert {place.path.parent for place in disks.places(data_dir, "closed", partition=second)} == {
        second
    }
    assert not disks.places(data_dir, "journal", partition=first)


def test_copies_that_were_set_aside_are_told_and_not_harmed(data_dir: Path) -> None:
    first, second = disks.partitions(data_dir)
    aside = first.rename(first.with_name("0.quarantine-1"))
    assert disks.quarantines(data_dir) == {aside}
    assert disks.partitions(data_dir) == [second]


def test_an_empty_directory_has_nothing(tmp_path: Path) -> None:
    assert disks.partitions(tmp_path) == []
    assert disks.quarantines(tmp_path) == set()
    assert disks.log_ends(tmp_path) == {}
    assert not [place for region in REGIONS for place in disks.places(tmp_path, region)]


def test_the_ends_of_logs(data_dir: Path) -> None:
    ends = disks.log_ends(data_dir)
    assert sorted(ends) == [str(p.relative_to(data_dir)) for p in disks.partitions(data_dir)]
    assert {end for _, end in ends.values()} == {20}


# -- harm


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("region", REGIONS)
def test_what_is_corrupted_is_seen_to_be(data_dir: Path, region: Region, mode: Mode) -> None:
    place = one(data_dir, region)
    before = place.path.read_bytes()
    change = disks.corrupt(place, mode, Random(3), bits=2)
    after = place.path.read_bytes()
    assert len(after) == len(before)
    assert place.start <= change.position
    end = change.position + len(change.before)
    assert end <= place.end
    assert before[: change.position] == after[: change.position]
    assert before[change.position : end] == change.before != change.after
    assert after[change.position : end] == change.after
    assert before[end:] == after[end:]
    if region != "checkpoint":  # of which the other slot is good
        assert disks.trouble(place)


def test_bits_are_flipped_one_by_one(data_dir: Path) -> None:
    change = disks.corrupt(one(data_dir, "closed"), "flip", Random(1), bits=1)
    (before,), (after,) = change.before, change.after
    assert (before ^ after).bit_count() == 1


def test_zeros_over_zeros_are_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(100))
    change = disks.corrupt(Place(path, "closed", 0, 100), "zero", Random(1))
    assert change.mode == "flip"
    assert any(path.read_bytes())


@pytest.mark.parametrize("region", sorted(set(REGIONS) - {"checkpoint"}))
def test_what_is_cut_off_is_seen_to_be(data_dir: Path, region: Region) -> None:
    place = one(data_dir, region)
    before = place.path.read_bytes()
    change = disks.cut(place, Random(5))
    assert place.path.read_bytes() + change.before == before
    assert disks.trouble(place)


def test_an_old_file_in_the_place_of_a_new_one(data_dir: Path) -> None:
    place = one(data_dir, "active")
    new = place.path.read_bytes()
    old = new[: -(BATCH_BYTES + 200)]
    change = disks.put_back(place, old)
    assert place.path.read_bytes() == old
    assert (change.position, change.before) == (len(old), new[len(old) :])
    assert disks.trouble(place), "what was synced is missing"


def test_what_was_done_is_told(data_dir: Path) -> None:
    place = one(data_dir, "closed")
    changed = disks.corrupt(place, "flip", Random(1), bits=1).to_history()
    assert changed["file"].endswith(LOG_SUFFIX)
    assert changed["before"] != changed["after"]
    assert changed["is_indexed"]


# -- whole directories


def test_a_directory_is_emptied_and_stays(data_dir: Path) -> None:
    (data_dir / "link").symlink_to(data_dir.parent)
    count = sum(path.is_file() and not path.is_symlink() for path in data_dir.rglob("*"))
    assert disks.empty(data_dir) == count + 1
    assert list(data_dir.iterdir()) == []
    assert data_dir.parent.exists()
    assert disks.empty(data_dir / "none") == 0


@pytest.mark.integration
def test_disks_are_exchanged(tmp_path: Path) -> None:
    one_dir, other_dir = tmp_path / "one", tmp_path / "other"
    make_data(one_dir, 1)
    make_data(other_dir, 2)
    ids = [disks.directory_id(one_dir), disks.directory_id(other_dir)]
    assert "" not in ids
    disks.exchange(one_dir, other_dir, tmp_path / "aside")
    assert [disks.directory_id(other_dir), disks.directory_id(one_dir)] == ids
    assert not (tmp_path / "aside").exists()
    assert len(disks.partitions(one_dir)) == 1


def test_a_directory_without_an_identity(data_dir: Path) -> None:
    (data_dir / "identity").write_text("nonsense")
    assert disks.directory_id(data_dir) == ""
    assert disks.directory_id(data_dir / "none") == ""
