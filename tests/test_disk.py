"""What every ``Disk`` does, on the machine's own and on the simulated one; and ``OsDisk`` alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TypeAlias

import pytest

from raftlog.disk import (
    DIRECTORY_MODE,
    FILE_MODE,
    NO_ROOM,
    TEMPORARY_SUFFIX,
    Disk,
    NoInodeError,
    OsDisk,
    PooledFile,
)
from raftlog.testing.disk import SimDisk
from raftlog.types import Buffer

Place: TypeAlias = tuple[Disk, str]


@pytest.fixture(params=["os", "sim"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A disk and a directory on it."""
    disk: Disk = OsDisk() if request.param == "os" else SimDisk(Random(1))
    directory = f"{tmp_path}/data"
    disk.make_dirs(directory)
    return disk, directory


def test_a_file_is_what_was_appended_to_it(place: Place) -> None:
    disk, directory = place
    file = disk.open(f"{directory}/a", create=True)
    file.append([b"one ", bytearray(b"two "), memoryview(b"three")])
    file.append([b"!"])
    assert (file.size(), file.path) == (14, f"{directory}/a")
    assert file.pread(14, 0) == b"one two three!"
    assert disk.read_file(f"{directory}/a", bytes_max=14) == b"one two three!"
    file.close()


@pytest.mark.parametrize("what", ["file", "directory", "replaced"])
def test_a_file_knows_whether_its_path_leads_to_it(place: Place, what: str) -> None:
    disk, directory = place
    disk.make_dirs(f"{directory}/d")
    file = disk.open(f"{directory}/d/a", create=True)
    other = disk.open(f"{directory}/d/b", create=True)
    assert file.is_in_place()
    if what == "replaced":
        disk.rename(f"{directory}/d/b", f"{directory}/d/a")
        assert not other.is_in_place()
    elif what == "file":
        disk.remove(f"{directory}/d/a")
    else:
        disk.remove_tree(f"{directory}/d")
    assert not file.is_in_place()
    file.append([b"goes on without its name"])
    assert file.pread(4, 0) == b"goes"
    file.close()
    other.close()


def test_a_read_is_short_only_at_the_end(place: Place) -> None:
    disk, directory = place
    file = disk.open(f"{directory}/a", create=True)
    file.append([b"0123456789"])
    assert file.pread(4, 3) == b"3456"
    assert file.pread(100, 8) == b"89"
    assert file.pread(1, 10) == b""
    file.close()


def test_a_write_in_place_changes_what_it_covers_and_may_extend_the_file(place: Place) -> None:
    disk, directory = place
    file = disk.open(f"{directory}/a", create=True)
    file.append([b"0123456789"])
    file.pwrite(b"xy", 3)
    assert (file.pread(99, 0), file.size()) == (b"012xy56789", 10)
    file.pwrite(b"end", 12)
    assert (file.pread(99, 0), file.size()) == (b"012xy56789\0\0end", 15)
    file.close()


def test_truncating_cuts_and_appending_goes_on_from_there(place: Place) -> None:
    disk, directory = place
    file = disk.open(f"{directory}/a", create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    file.append([b"x"])
    assert (file.pread(99, 0), file.size()) == (b"0123x", 5)
    file.truncate(7)
    assert file.pread(99, 0) == b"0123x\0\0"
    file.sync()
    file.close()


def test_opening_again_goes_on_where_the_file_ends(place: Place) -> None:
    disk, directory = place
    disk.open(f"{directory}/a", create=True).append([b"one"])
    file = disk.open(f"{directory}/a", create=True)
    assert file.size() == 3
    file.append([b" two"])
    reader = disk.open(f"{directory}/a", write=False)
    assert reader.pread(99, 0) == b"one two"


def test_closing_twice_is_harmless_and_a_closed_file_is_dead(place: Place) -> None:
    disk, directory = place
    file = disk.open(f"{directory}/a", create=True)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.pread(1, 0)


@pytest.mark.parametrize(
    "act",
    [
        lambda disk, path: disk.open(path),
        lambda disk, path: disk.remove(path),
        lambda disk, path: disk.rename(path, path + "2"),
        lambda disk, path: disk.read_file(path, bytes_max=1),
        lambda disk, path: disk.sync_dir(path),
        lambda disk, path: disk.open(f"{path}/below", create=True),
    ],
    ids=["open", "remove", "rename", "read_file", "sync_dir", "create below"],
)
def test_what_is_not_there_is_not_found(place: Place, act: Callable[[Disk, str], object]) -> None:
    disk, directory = place
    with pytest.raises(FileNotFoundError):
        act(disk, f"{directory}/missing")
    assert not disk.exists(f"{directory}/missing")


def test_a_directory_lists_its_names_in_order_and_anything_else_lists_none(place: Place) -> None:
    disk, directory = place
    for name in ("b", "a", "c"):
        disk.open(f"{directory}/{name}", create=True).close()
    disk.make_dirs(f"{directory}/d/e")
    assert disk.list_dir(directory) == ["a", "b", "c", "d"]
    assert disk.list_dir(f"{directory}/d") == ["e"]
    assert disk.list_dir(f"{directory}/missing") == []
    assert disk.list_dir(f"{directory}/a") == []


def test_making_directories_that_are_there_is_harmless(place: Place) -> None:
    disk, directory = place
    disk.make_dirs(f"{directory}/x/y")
    disk.make_dirs(f"{directory}/x/y")
    assert disk.exists(f"{directory}/x/y")


def test_a_file_is_in_the_way_of_a_directory(place: Place) -> None:
    disk, directory = place
    disk.write_atomic(f"{directory}/a", b"")
    for path in (f"{directory}/a", f"{directory}/a/b"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            disk.make_dirs(path)


def test_renaming_replaces_the_target(place: Place) -> None:
    disk, directory = place
    for name in ("a", "b"):
        disk.open(f"{directory}/{name}", create=True).append([name.encode()])
    disk.rename(f"{directory}/a", f"{directory}/b")
    assert disk.list_dir(directory) == ["b"]
    assert disk.read_file(f"{directory}/b", bytes_max=9) == b"a"


def test_an_open_file_outlives_its_name(place: Place) -> None:
    disk, directory = place
    file = disk.open(f"{directory}/a", create=True)
    file.append([b"still here"])
    disk.remove(f"{directory}/a")
    assert not disk.exists(f"{directory}/a")
    assert file.pread(99, 0) == b"still here"
    file.close()


def test_removing_a_tree_takes_all_below_and_none_is_harmless(place: Place) -> None:
    disk, directory = place
    disk.make_dirs(f"{directory}/x/y")
    disk.open(f"{directory}/x/y/a", create=True).close()
    disk.remove_tree(f"{directory}/x")
    disk.remove_tree(f"{directory}/x")
    assert disk.list_dir(directory) == []


def test_an_atomic_write_replaces_all_and_leaves_nothing_beside(place: Place) -> None:
    disk, directory = place
    disk.write_atomic(f"{directory}/a", b"a long first version")
    disk.write_atomic(f"{directory}/a", b"second")
    assert disk.read_file(f"{directory}/a", bytes_max=99) == b"second"
    assert disk.list_dir(directory) == ["a"]


def test_an_atomic_write_is_not_misled_by_what_an_earlier_one_left(place: Place) -> None:
    disk, directory = place
    left = disk.open(f"{directory}/a{TEMPORARY_SUFFIX}", create=True)
    left.append([b"half of something much longer"])
    left.close()
    disk.write_atomic(f"{directory}/a", b"whole")
    assert disk.read_file(f"{directory}/a", bytes_max=99) == b"whole"


def test_reading_a_whole_file_is_bounded(place: Place) -> None:
    disk, directory = place
    disk.write_atomic(f"{directory}/a", b"12345")
    assert disk.read_file(f"{directory}/a", bytes_max=5) == b"12345"
    with pytest.raises(OSError, match="a") as raised:
        disk.read_file(f"{directory}/a", bytes_max=4)
    assert raised.value.errno == errno.EFBIG


def test_a_lock_is_held_by_one_until_it_is_released(place: Place) -> None:
    disk, directory = place
    lock = disk.lock(f"{directory}/lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{directory}/lock")
    lock.release()
    lock.release()
    disk.lock(f"{directory}/lock").release()


def test_there_is_room(place: Place) -> None:
    disk, directory = place
    assert disk.free_bytes(directory) > 0


def test_room_is_kept_behind_a_file_and_the_file_stays_as_it_is(place: Place) -> None:
    disk, directory = place
    path = f"{directory}/file"
    file = disk.open(path, create=True)
    file.append([b"abc"])
    disk.reserve(path, 1 << 20)
    assert disk.open(path).size() == 3
    file.append([b"def"])
    file.sync()
    assert disk.read_file(path, bytes_max=10) == b"abcdef"
    with pytest.raises(FileNotFoundError):
        disk.reserve(f"{directory}/none", 1)


# -- the machine's own disk alone ------------------------------------------------------------------


def test_an_append_goes_on_after_a_short_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As near a full disk, on a signal, or over 2 GiB."""
    whole, rest = os.pwritev, os.pwrite

    def short_pwritev(fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return whole(fd, [b"".join(buffers)[:3]], position)

    def short_pwrite(fd: int, data: Buffer, position: int) -> int:
        return rest(fd, bytes(data)[:2], position)

    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pwrite", short_pwrite)
    file = OsDisk().open(f"{tmp_path}/a", create=True)
    file.append([b"0123", b"456789"])
    file.pwrite(b"abcde", 5)
    assert (file.pread(99, 0), file.size()) == (b"01234abcde", 10)
    file.close()


def test_a_read_goes_on_after_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    file = OsDisk().open(f"{tmp_path}/a", create=True)
    file.append([b"0123456789"])
    monkeypatch.setattr(os, "pread", lambda fd, size, position: whole(fd, min(size, 3), position))
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(99, 5) == b"56789"
    file.close()


def test_a_failed_append_leaves_the_size_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsDisk().open(f"{tmp_path}/a", create=True)
    file.append([b"whole"])

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", no_room)
        with pytest.raises(OSError, match="no room"):
            file.append([b"more"])
    assert file.size() == 5
    file.append([b"!"])
    assert file.pread(99, 0) == b"whole!"
    file.close()


def test_what_durability_is_promised_is_asked_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated disk takes this order for granted."""
    asked: list[str] = []
    fsync, replace = os.fsync, os.replace
    own = threading.get_ident()  # threads of other tests may still end

    def noting_fsync(fd: int) -> None:
        if threading.get_ident() == own:
            asked.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        fsync(fd)

    def noting_replace(source: str, target: str) -> None:
        if threading.get_ident() == own:
            asked.append(f"replace {os.path.basename(target)}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    disk = OsDisk()
    disk.make_dirs(f"{tmp_path}/data/x/y")
    disk.make_dirs(f"{tmp_path}/data/x/y")
    assert asked == [f"fsync {tmp_path.name}", "fsync data", "fsync x"]
    asked.clear()
    disk.write_atomic(f"{tmp_path}/data/a", b"state")
    assert asked == ["fsync a.tmp", "replace a", "fsync data"]


@pytest.mark.integration
def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    other = (
        "import os, sys; from raftlog.disk import OsDisk; "
        "lock = OsDisk().lock(sys.argv[1]); os._exit(7)"
    )
    run = subprocess.run([sys.executable, "-c", other, f"{tmp_path}/lock"], check=False)
    assert run.returncode == 7
    OsDisk().lock(f"{tmp_path}/lock").release()


def test_a_full_disk_is_told_from_a_broken_one() -> None:
    assert {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE} == NO_ROOM


@pytest.mark.parametrize(("free", "error"), [(0, NoInodeError), (1, OSError)])
@pytest.mark.parametrize(
    "create",
    [
        lambda disk, path: disk.open(path, create=True),
        lambda disk, path: disk.make_dir(path),
        lambda disk, path: disk.write_atomic(path, b""),
    ],
)
def test_a_file_system_without_inodes_is_told_from_a_full_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    create: Callable[[OsDisk, str], object],
    free: int,
    error: type[OSError],
) -> None:
    def full(path: str, *_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    disk, path = OsDisk(), f"{tmp_path}/x"
    status = SimpleNamespace(f_favail=free, f_files=100)
    monkeypatch.setattr("os.statvfs", lambda _path: status)
    monkeypatch.setattr("os.open", full)
    monkeypatch.setattr("os.mkdir", full)
    with pytest.raises(OSError, match="left") as raised:
        create(disk, path)
    assert type(raised.value) is error
    assert raised.value.errno in NO_ROOM


def test_open_descriptors_are_counted() -> None:
    before, limit = OsDisk().open_files()
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    try:
        assert OsDisk().open_files() == (before + 10, limit)
    finally:
        for fd in fds:
            os.close(fd)


@pytest.fixture
def no_descriptors() -> Iterator[Callable[[], None]]:
    """Call it: from then on this process can open nothing more, until the test is over."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def take() -> None:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    yield take
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for fd in taken:
        os.close(fd)


def test_a_directory_is_synced_without_a_descriptor_to_be_had(
    tmp_path: Path, no_descriptors: Callable[[], None]
) -> None:
    """What was renamed has to be made durable; to create is what may fail."""
    disk = OsDisk()
    no_descriptors()
    for _ in range(3):
        with pytest.raises(OSError) as refused:
            disk.open(f"{tmp_path}/a", create=True)
        assert refused.value.errno in NO_ROOM
        disk.sync_dir(str(tmp_path))
    assert not os.path.exists(f"{tmp_path}/a")


def test_a_spare_descriptor_that_another_thread_got_is_replaced(
    tmp_path: Path, no_descriptors: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()

    def refuse(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, "none left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(OSError, match="none left"):
            disk.sync_dir(str(tmp_path))
    disk.sync_dir(str(tmp_path))
    no_descriptors()
    disk.sync_dir(str(tmp_path))


def test_a_directory_that_is_not_there_is_an_error_without_descriptors_too(
    tmp_path: Path, no_descriptors: Callable[[], None]
) -> None:
    disk = OsDisk()
    no_descriptors()
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(f"{tmp_path}/nowhere")
    disk.sync_dir(str(tmp_path))


def test_what_is_stored_is_for_its_owner_alone(tmp_path: Path) -> None:
    disk, directory = OsDisk(), tmp_path / "a" / "b"
    disk.make_dirs(str(directory))
    disk.open(f"{directory}/log", create=True).close()
    disk.write_atomic(f"{directory}/state", b"x")
    disk.lock(f"{directory}/lock").release()
    assert stat.S_IMODE(directory.stat().st_mode) == DIRECTORY_MODE
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {FILE_MODE}


def test_a_directory_that_others_may_enter_is_closed_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    OsDisk().make_private(str(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == DIRECTORY_MODE


# -- the pool of descriptors -----------------------------------------------------------------------


def opened(disk: OsDisk, directory: Path, count: int) -> list[PooledFile]:
    files = [disk.open(f"{directory}/{n}", create=True, pooled=True) for n in range(count)]
    found = [file for file in files if isinstance(file, PooledFile)]
    if len(found) < count:
        pytest.skip("files on this file system have no stable inode numbers")
    return found


def is_open(files: list[PooledFile]) -> list[bool]:
    return [file.fd >= 0 for file in files]


def test_the_least_recently_used_file_is_closed_and_opened_again(tmp_path: Path) -> None:
    files = opened(OsDisk(pooled_files_max=2), tmp_path, 4)
    assert is_open(files) == [False, False, True, True]
    for n, file in enumerate(files):
        file.append([b"%d" % n])
        file.sync()
    assert is_open(files) == [False, False, True, True]
    assert files[0].pread(9, 0) == b"0"
    assert is_open(files) == [True, False, False, True]
    files[3].truncate(0)
    assert [file.size() for file in files] == [1, 1, 1, 0]
    for file in files:
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.pread(1, 0)


def test_a_written_file_is_synced_before_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(pooled_files_max=1)
    files = opened(disk, tmp_path, 3)
    for file in files:
        file.append([b"x"])
    assert is_open(files) == [True, True, True], "only a sync can make them closable"
    synced: list[int] = []
    monkeypatch.setattr("raftlog.disk.sync_data", synced.append)
    fds = [file.fd for file in files]
    disk.close_surplus(str(tmp_path))
    assert sorted(synced) == sorted(
        fd for fd, still in zip(fds, is_open(files), strict=True) if not still
    )
    assert len(synced) == 2
    for file in files:
        file.sync()
    assert len(synced) == 3, "those that were closed are durable already"


def test_the_error_of_a_sync_before_a_close_is_raised_by_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    disk = OsDisk(pooled_files_max=0)
    (file,) = opened(disk, tmp_path, 1)
    file.append([b"x"])
    with monkeypatch.context() as patch:
        patch.setattr("raftlog.disk.sync_data", fails)
        disk.close_surplus(str(tmp_path))
    disk.close_surplus(str(tmp_path))
    assert is_open([file]) == [True], "another sync may succeed without the lost bytes"
    assert file.pread(1, 0) == b"x"
    with pytest.raises(OSError, match="broken"):
        file.sync()


def test_the_error_of_a_sync_by_the_pool_is_that_of_a_sync_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports it to one of two syncs of a descriptor, and the other one succeeds."""
    disk = OsDisk(pooled_files_max=0)
    (file,) = opened(disk, tmp_path, 1)
    file.append([b"x"])
    errors: list[OSError] = []
    has_begun, has_succeeded = threading.Event(), threading.Event()

    def sync_at_the_same_time() -> None:
        has_begun.set()
        try:
            file.sync()
        except OSError as error:
            errors.append(error)

    owner = threading.Thread(target=sync_at_the_same_time)

    def sync(_fd: int) -> None:
        if has_begun.is_set():
            has_succeeded.set()
            return
        owner.start()
        has_begun.wait()
        has_succeeded.wait(0.2)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("raftlog.disk.sync_data", sync)
    disk.close_surplus(str(tmp_path))
    owner.join()
    assert [error.errno for error in errors] == [errno.EIO]


def test_a_write_that_ends_after_a_sync_began_is_not_counted_as_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(pooled_files_max=1)
    first, _other = opened(disk, tmp_path, 2)
    first.append([b"x"])

    def sync(_fd: int) -> None:
        first.append([b"y"])

    with monkeypatch.context() as patch:
        patch.setattr("raftlog.disk.sync_data", sync)
        first.sync()
    assert first.is_dirty


def test_another_file_at_the_path_of_a_closed_one_is_not_written(tmp_path: Path) -> None:
    disk = OsDisk(pooled_files_max=1)
    first, _other = opened(disk, tmp_path, 2)
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "0")
    with pytest.raises(FileNotFoundError):
        first.append([b"x"])
    assert (tmp_path / "0").read_bytes() == b""


def test_a_file_that_is_closed_during_a_sync_stays_open_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = opened(OsDisk(), tmp_path, 1)

    def sync(fd: int) -> None:
        file.close()
        os.fstat(fd)

    monkeypatch.setattr("raftlog.disk.sync_data", sync)
    file.sync()
    assert is_open([file]) == [False]


def test_without_a_descriptor_the_pool_gives_one_up(
    tmp_path: Path, no_descriptors: Callable[[], None]
) -> None:
    disk = OsDisk()
    files = opened(disk, tmp_path, 1)
    no_descriptors()
    more = disk.open(f"{tmp_path}/more", create=True, pooled=True)
    more.append([b"x"])
    assert is_open(files) == [False]


def test_every_file_may_have_a_descriptor_of_the_pool(
    tmp_path: Path, no_descriptors: Callable[[], None]
) -> None:
    disk = OsDisk()
    opened(disk, tmp_path, 1)
    no_descriptors()
    disk.write_atomic(f"{tmp_path}/state", b"x")
    assert disk.read_file(f"{tmp_path}/state", bytes_max=1) == b"x"
    disk.open(f"{tmp_path}/cleaned", create=True).close()
    disk.lock(f"{tmp_path}/lock").release()


# -- guards disk -----------------------------------------------------------------------------------
#
# A file's sync asks the system for its data: no other test on a real disk can tell.


def test_a_files_sync_is_an_fdatasync_of_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    fdatasync = os.fdatasync

    def noting_fdatasync(fd: int) -> None:
        asked.append(os.readlink(f"/proc/self/fd/{fd}"))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", noting_fdatasync)
    file = OsDisk().open(f"{tmp_path}/a", create=True)
    file.append([b"data"])
    assert asked == []
    file.sync()
    assert asked == [f"{tmp_path}/a"]
    file.close()


@pytest.mark.parametrize(("refusal", "fallback"), [(None, False), (errno.ENOTSUP, True)])
def test_on_macos_a_sync_empties_the_drives_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None, fallback: bool
) -> None:
    asked: list[str] = []

    def noting_fcntl(_fd: int, command: int) -> None:
        assert command == 51, "F_FULLFSYNC"
        asked.append("F_FULLFSYNC")
        if refusal is not None:
            raise OSError(refusal, "not on this file system")

    file = OsDisk().open(f"{tmp_path}/a", create=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", noting_fcntl)
    monkeypatch.setattr(os, "fsync", lambda _fd: asked.append("fsync"))
    file.sync()
    assert asked == ["F_FULLFSYNC", *(["fsync"] if fallback else [])]
    file.close()
