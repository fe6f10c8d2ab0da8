"""The list of a backup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

import raftlog
from raftlog.backup.writer import (
    LEASE,
    LEASE_MS,
    NAME,
    RENEW_MS,
    Chunk,
    CommittedOffset,
    Directory,
    FileSystem,
    Manifest,
    PartitionFiles,
    Progress,
    TopicFiles,
    _add,
    _flush,
    _parts,
    _Verified,
    chunk_name,
    decode,
    encode,
    open_store,
    verify,
)
from raftlog.client.administration.admin import Admin
from raftlog.client.descriptions import PartitionDescription, TopicDescription
from raftlog.errors import InvalidRequestError, UnsupportedVersionError
from raftlog.record import parse_header
from raftlog.types import Offset
from tests.client.test_virtual import compacted
from tests.server.harness import FakeClock

MADE = Manifest(
    1,
    "cluster",
    123,
    {"t": TopicFiles("id", 3, {"retention.ms": "1"}, [
        PartitionFiles(5, 9, [Chunk("f", 5, 9, 100, (1 << 64) - 1)])
    ])},
    {"g": [CommittedOffset("t", 0, 7, "note")]},
)  # fmt: skip


def test_it_is_read_as_it_was_written() -> None:
    assert decode(encode(MADE)) == MADE


def test_other_files_and_formats_are_refused() -> None:
    for data in (b"", b"{}", b"[1]", b"\xff", encode(MADE).replace(b'"end": 9', b'"end": "9"')):
        with pytest.raises(InvalidRequestError, match="not the manifest of a backup"):
            decode(data)
    with pytest.raises(UnsupportedVersionError, match="has the format 2"):
        decode(encode(MADE).replace(b'"format": 1', b'"format": 2'))


def test_files_are_sorted_by_offset() -> None:
    names = [chunk_name("t", "id", 0, offset, b"") for offset in (0, 9, 10, 10**18)]
    assert names == sorted(names)
    assert names[1] == "topics/t/id/0/00000000000000000009-e3b0c44298fc1c14.batches"


def test_files_of_other_content_have_other_names() -> None:
    assert chunk_name("t", "id", 0, 9, b"a") != chunk_name("t", "id", 0, 9, b"b")


class Answering:
    """An ``Admin`` whose topic has a partition more than when it was described. All are empty."""

    start: Offset = 0

    def offsets(self, _topic: str, _at: str) -> dict[int, Offset | None]:
        return dict.fromkeys(range(3), self.start)


def test_partitions_that_are_added_while_a_backup_begins_are_in_the_next_one() -> None:
    parts = tuple(
        PartitionDescription(number, 1, 3, (1,), (1,), (), 0, 0, 0, 1, "") for number in (0, 1)
    )
    described = TopicDescription("t", "id", {}, (), parts)
    made, admin = Manifest(1, "cluster", 123, {}, {}), cast(Admin, Answering())
    assert len(_parts(made, [described], admin)) == 2
    assert len(made.topics["t"].partitions) == 2


def test_offsets_that_were_deleted_are_counted_once(tmp_path: Path) -> None:
    """Also if a partition remains empty for some backups."""
    part = PartitionDescription(0, 1, 3, (1,), (1,), (), 0, 0, 0, 1, "")
    described = TopicDescription("t", "id", {}, (), (part,))
    made, admin = Manifest(1, "cluster", 123, {}, {}), Answering()
    counts = []
    for admin.start, batches in ((0, [b"a"]), (10, []), (10, []), (15, [b"b"])):
        progress = Progress()
        (found,) = _parts(made, [described], cast(Admin, admin)).values()
        found.batches, found.end, found.chain = batches, admin.start + len(batches), 0
        _flush(_Verified(Directory(tmp_path), lambda: None), found, progress)
        counts.append(progress.skipped)
    assert counts == [0, 0, 0, 14]


def test_a_batch_that_compaction_joined_during_a_backup_is_read(tmp_path: Path) -> None:
    """It begins before the end of the last batch that was read."""
    pytest.importorskip("pyarrow")
    part = PartitionDescription(0, 1, 3, (1,), (1,), (), 0, 0, 0, 1, "")
    described = TopicDescription("t", "id", {}, (), (part,))
    made, store = Manifest(1, "cluster", 123, {}, {}), Directory(tmp_path)
    ((tp, found),) = _parts(made, [described], cast(Admin, Answering())).items()
    for data in (compacted(0, 10, 3, 7), compacted(0, 20, 3, 7, 12), compacted(20, 30, 25)):
        _add(tp, found, (parse_header(data), memoryview(data)))
    _flush(_Verified(store, lambda: None), found, Progress())
    store.write(NAME, encode(made))
    assert [problem for _tp, _files, problem in verify(store)] == [""]
    for rows_max in (1, 100):
        records = raftlog.scan("t", directory=tmp_path, columns=["offset"], rows_max=rows_max)
        assert records.to_arrow().column("offset").to_pylist() == [3, 7, 12, 25]


# -- store -----------------------------------------------------------------------------------------
#
# Files of a backup, in a directory and at a URL.


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


def test_a_directory_has_one_writer_at_a_time(tmp_path: Path) -> None:
    with Directory(tmp_path / "a").hold() as still_held:
        still_held()
        again = Directory(tmp_path / "a").hold()
        with pytest.raises(InvalidRequestError, match="another backup writes to"), again:
            pass
        with Directory(tmp_path / "b").hold():
            pass
    with Directory(tmp_path / "a").hold():
        pass


def leased(clock: FakeClock, url: str = "memory://leased") -> FileSystem:
    return FileSystem(url, clock=clock, sleep=lambda _s: None)


def test_a_url_has_one_writer_at_a_time_which_renews_its_lease() -> None:
    clock = FakeClock(1_000_000)
    with leased(clock).hold() as still_held:
        for _ in range(10):
            clock.now_ms += RENEW_MS
            still_held()
            with pytest.raises(InvalidRequestError, match=r"memory:.*120 s"), leased(clock).hold():
                pass
    with leased(clock).hold():
        pass
    assert leased(clock).read(LEASE) is None


def test_a_lease_that_cannot_be_deleted_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(1_000_000)
    store = leased(clock, "memory://undeletable")

    def refuse(_path: str) -> None:
        raise RuntimeError("no permission to delete")  # libraries have errors of their own

    monkeypatch.setattr(store._files, "rm_file", refuse)
    with store.hold():
        pass
    clock.now_ms += LEASE_MS + 1
    with store.hold():
        pass


def test_a_writer_that_was_away_for_too_long_ends() -> None:
    clock = FakeClock(1_000_000)
    with leased(clock).hold() as still_held:
        clock.now_ms += LEASE_MS + 1
        with leased(clock).hold():
            clock.now_ms += 1
            with pytest.raises(InvalidRequestError, match="another backup writes to"):
                still_held()
    assert leased(clock).read(LEASE) is None


def test_of_two_writers_that_begin_at_once_one_ends() -> None:
    clock = FakeClock(1_000_000)
    other = leased(clock)

    def meanwhile(_s: float) -> None:
        lease = other.read(LEASE)
        assert lease is not None
        first = json.loads(lease)
        other.write(LEASE, json.dumps({**first, "token": "other"}).encode())

    first = FileSystem("memory://leased", clock=clock, sleep=meanwhile)
    with pytest.raises(InvalidRequestError, match="another backup writes to"), first.hold():
        pass
    other._files.rm_file(f"{other._root}/{LEASE}")
