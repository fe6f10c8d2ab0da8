"""A disk with failpoints does what the disk does, and comes by its failpoints in order."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from raftlog.disk import OsDisk
from raftlog.failpoints import SITES
from raftlog.failpoints.disk import FailpointDisk, role
from raftlog.failpoints.sites import CHANGES, READS, SENDS
from raftlog.protocol.api import APIS
from raftlog.storage import Store
from raftlog.testing.disk import SimDisk
from tests.storage.directories import create_topic

IN_LOG = "topics/t/0123/0"


def test_a_path_has_a_role() -> None:
    for path, what in [
        ("", "data-dir"),
        (".", "data-dir"),
        ("..", "parent-dir"),
        ("identity.tmp", "identity"),
        ("catalog", "catalog"),
        ("clean", "clean"),
        ("clock.tmp", "clock"),
        ("brokers.tmp", "brokers"),
        ("lock", "lock"),
        ("consensus.journal", "journal"),
        ("consensus.journal.tmp", "journal-draft"),
        ("topics", "topics-dir"),
        ("topics/t", "topic-dir"),
        ("topics/t/0123", "topic-dir"),
        (IN_LOG, "partition-dir"),
        (f"{IN_LOG}.quarantine-1", "partition-dir"),
        (f"{IN_LOG}/00000000000000000000.log", "segment"),
        (f"{IN_LOG}/00000000000000000000.index.tmp", "index"),
        (f"{IN_LOG}/00000000000000000007.producers", "producers"),
        (f"{IN_LOG}/checkpoint", "checkpoint"),
        (f"{IN_LOG}/epochs.tmp", "epochs"),
        (f"{IN_LOG}/00000000000000000000.cleaned", "cleaned"),
        (f"{IN_LOG}/compaction", "compaction"),
        (f"{IN_LOG}/compaction.tmp", "compaction"),
        (f"{IN_LOG}/notes", "other"),
        (f"{IN_LOG}/a/b", "other"),
        ("a/b", "other"),
        ("notes", "other"),
    ]:
        assert role(path) == what


def test_operations_come_by_failpoints_before_and_after(tmp_path: Path) -> None:
    hits: list[str] = []
    disk = FailpointDisk(OsDisk(), hits.append, str(tmp_path))

    def came_by() -> list[str]:
        found, hits[:] = list(hits), []
        return found

    path = f"{tmp_path}/catalog"
    file = disk.open(path, create=True)
    assert came_by() == ["catalog.create.before", "catalog.create.after"]
    file.append([b"abc", b"de"])
    file.pwrite(b"x", 1)
    assert came_by() == ["catalog.write.before", "catalog.write.after"] * 2
    assert file.pread(3, 0) == b"axc"
    assert disk.read_file(path, bytes_max=9) == b"axcde"
    assert came_by() == ["catalog.read.before"] * 2
    file.truncate(2)
    file.sync()
    assert (file.size(), file.path) == (2, path)
    assert came_by() == [f"catalog.{what}.{m}" for what in ("truncate", "sync")
                         for m in ("before", "after")]  # fmt: skip
    file.close()
    disk.open(path, create=True).close()
    disk.rename(path, f"{tmp_path}/clean")
    disk.sync_dir(str(tmp_path))
    disk.remove(f"{tmp_path}/clean")
    assert came_by() == [f"{what}.{m}" for what in ("clean.rename", "data-dir.sync", "clean.remove")
                         for m in ("before", "after")]  # fmt: skip
    assert disk.list_dir(str(tmp_path)) == []
    assert came_by() == []
    assert disk.free_bytes(str(tmp_path)) > 0
    disk.open(path, create=True).close()
    disk.reserve(path, 4096)
    disk.remove(path)
    came_by()
    disk.lock(f"{tmp_path}/lock").release()
    assert disk.exists(f"{tmp_path}/lock")


def test_replacing_a_file_has_failpoints_in_between(tmp_path: Path) -> None:
    hits: list[str] = []
    disk = FailpointDisk(OsDisk(), hits.append, str(tmp_path))
    for data in (b"old, and long", b"new"):
        hits.clear()
        disk.write_atomic(f"{tmp_path}/identity", data)
        assert (tmp_path / "identity").read_bytes() == data
        steps = ("create", "truncate", "write", "sync", "rename")
        assert hits[::2] == [*(f"identity.{step}.before" for step in steps), "data-dir.sync.before"]
    assert os.listdir(tmp_path) == ["identity"]


def test_directories_are_made_and_removed_one_by_one(tmp_path: Path) -> None:
    hits: list[str] = []
    disk = FailpointDisk(OsDisk(), hits.append, str(tmp_path))
    disk.make_dirs(f"{tmp_path}/{IN_LOG}")
    disk.make_dirs(f"{tmp_path}/{IN_LOG}")
    assert hits[::2] == [f"{what}.create.before" for what in
                         ("topics-dir", "topic-dir", "topic-dir", "partition-dir")]  # fmt: skip
    (tmp_path / IN_LOG / "epochs").touch()
    (tmp_path / IN_LOG / "empty").mkdir()
    hits.clear()
    disk.remove_tree(f"{tmp_path}/topics/t")
    assert not (tmp_path / "topics/t").exists()
    assert "epochs.remove.before" in hits
    assert [hit for hit in hits if hit.endswith("-dir.remove.after")] == [
        "partition-dir.remove.after",
        "topic-dir.remove.after",
        "topic-dir.remove.after",
    ]
    disk.remove_tree(f"{tmp_path}/topics/t")


def test_what_fails_before_is_not_done_and_what_fails_after_is(tmp_path: Path) -> None:
    failing = ""

    def hit(site: str) -> None:
        if site == failing:
            raise OSError(errno.EIO, "no")

    disk = FailpointDisk(OsDisk(), hit, str(tmp_path))
    file = disk.open(f"{tmp_path}/catalog", create=True)
    failing = "catalog.write.before"
    with pytest.raises(OSError, match="no"):
        file.append([b"a"])
    assert file.size() == 0
    failing = "catalog.write.after"
    with pytest.raises(OSError, match="no"):
        file.append([b"a"])
    file.close()
    assert (tmp_path / "catalog").read_bytes() == b"a"


def test_a_store_works_on_it_and_comes_by_listed_failpoints_only() -> None:
    hits: list[str] = []
    sim = SimDisk(Random(1))
    disk = FailpointDisk(sim, hits.append, "/data")
    store = Store.open(disk, "/data")
    create_topic(store, "t", partitions=1, config={})
    store.close()
    with_out = Store.open(sim, "/data")
    assert list(with_out.topics) == ["t"]
    with_out.close()
    assert set(hits) <= SITES, sorted(set(hits) - SITES)
    assert len(set(hits)) > 40


def test_the_list_holds_each_kind_and_no_send_of_an_unknown_api() -> None:
    assert SITES == READS | CHANGES | SENDS
    assert {site.split(".")[1] for site in SENDS} <= {api.name for api in APIS.values()}
