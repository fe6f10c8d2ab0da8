"""Files of a backup, in a directory and at a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.backup.store import Directory, FileSystem, open_store
from raftlog.errors import InvalidRequestError


def test_files_are_written_and_read(tmp_path: Path) -> None:
    for store in (
        open_store(str(tmp_path / "a")),
        open_store(f"file://{tmp_path}/b"),
        open_store(f"memory://{tmp_path}/c/"),
    ):
        assert store.read("x/y") is None
        store.write("x/y", b"first")
        store.write("x/y", b"second")
        assert store.read("x/y") == b"second"
    assert isinstance(store, FileSystem)
    assert isinstance(open_store("relative"), Directory)


def test_a_url_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="nowhere://x"):
        open_store("nowhere://x")


def test_an_error_of_a_file_system_names_the_file() -> None:
    store = open_store("memory://")
    store.write("file", b"x")
    with pytest.raises(OSError, match=r"memory://.*file/below: .+Error"):
        store.write("file/below", b"y")
