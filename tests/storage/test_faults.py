"""Tests of raftlog.storage.state_files."""

from __future__ import annotations

import errno
import os

import pytest

from raftlog.disk import NoInodeError
from raftlog.errors import DiskFullError, FileLimitError, StorageFailedError
from raftlog.storage.state_files import storage_error


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_an_error_that_passes(code: int) -> None:
    error = storage_error("writing x", OSError(code, os.strerror(code)))
    assert isinstance(error, DiskFullError)
    assert str(error).startswith(f"writing x: no space ({os.strerror(code)})")
    assert "Free disk space" in str(error)


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "RLIMIT_NOFILE"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (NoInodeError(errno.ENOSPC, "No inode left", "/data/x"), "/data/x has no inode left"),
    ],
)
def test_a_limit_of_files_is_no_full_disk(error: OSError, limit: str) -> None:
    found = storage_error("writing x", error)
    assert isinstance(found, FileLimitError)
    assert limit in str(found)
    assert "disk space" not in str(found)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EBADF, errno.EFBIG, errno.EACCES])
def test_any_other_error_means_the_disk_is_not_to_be_trusted(code: int) -> None:
    error = storage_error("writing x", OSError(code, os.strerror(code), "some/file"))
    assert isinstance(error, StorageFailedError)
    assert str(error).startswith("writing x failed: ")
    assert os.strerror(code) in str(error)
    assert "some/file" in str(error)


def test_an_error_without_a_code_is_not_taken_for_no_room() -> None:
    assert isinstance(storage_error("writing x", OSError("odd")), StorageFailedError)
