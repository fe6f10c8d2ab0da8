"""A file's sync asks the system for its data: no other test on a real disk can tell."""

from __future__ import annotations

import os
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
