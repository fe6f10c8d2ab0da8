"""A file's sync asks the system for its data: no other test on a real disk can tell."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest

from raftlog.disk import OsDisk


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
