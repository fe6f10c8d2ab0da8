"""The file of access rules: what is saved is read, and what is damaged is not taken for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.disk import OsDisk
from raftlog.errors import DamagedLogError, DataDirectoryError
from raftlog.storage import state_files


def test_a_state_is_read_as_it_was_saved(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    assert state_files.read_access(disk, directory) == b""
    state_files.write_access(disk, directory, b"\x00state\xff")
    assert state_files.read_access(disk, directory) == b"\x00state\xff"


def test_damage_is_an_error(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    state_files.write_access(disk, directory, b"state")
    path = tmp_path / "access"
    path.write_bytes(path.read_bytes().replace(b"state", b"State", 1))
    with pytest.raises(DamagedLogError):
        state_files.read_access(disk, directory)
    state_files.write(disk, str(path), {"state": "not base64"})
    with pytest.raises(DataDirectoryError):
        state_files.read_access(disk, directory)
