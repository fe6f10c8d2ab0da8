"""``raftlog.scan`` of files: the directory of a log, and a backup, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import raftlog
from raftlog.backup import open_store, write_backup
from raftlog.embedded import ADDRESS
from raftlog.errors import (
    CorruptBatchError,
    DataDirectoryError,
    InvalidRequestError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.types import TopicPartition

pytest.importorskip("pyarrow")

VALUES = [b"%d" % number for number in range(1_000)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with 1,000 records in batches of 100, and in ``backup`` its backup."""
    path = tmp_path / "log"
    with raftlog.open(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for start in range(0, 1_000, 100):
                producer.send_many("t", VALUES[start : start + 100]).result(timeout=20)
        store = open_store(str(tmp_path / "backup"))
        write_backup(str(ADDRESS), store, now_ms=1, host=log._open_host())
    return path


def test_the_directory_of_a_log_is_open_only_while_it_is_read(directory: Path) -> None:
    scan = raftlog.scan("t", directory=directory, columns=["value"], rows_max=10)
    one, other = scan.reader(), scan.reader()
    assert one.read_next_batch().num_rows == other.read_next_batch().num_rows == 10
    assert other.read_all().num_rows == 990
    with pytest.raises(DataDirectoryError):
        raftlog.open(directory)
    del one
    with raftlog.open(directory) as log:
        assert log.scan("t").to_arrow().num_rows == 1_000
        with pytest.raises(DataDirectoryError):
            scan.to_arrow()


def test_a_backup_is_read_without_a_broker(directory: Path) -> None:
    backup = directory.parent / "backup"
    scan = raftlog.scan("t", directory=backup, start=95, end=905, rows_max=64)
    batches = list(scan.reader())
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == (
        VALUES[95:905]
    )
    assert max(batch.num_rows for batch in batches) <= 64
    late = [("timestamp", ">", datetime(2100, 1, 1, tzinfo=UTC))]
    assert raftlog.scan("t", directory=backup, where=late).to_arrow().num_rows == 0
    with pytest.raises(InvalidRequestError, match="no index of times"):
        raftlog.scan("t", directory=backup, start=datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(UnknownTopicError, match="'T' does not exist"):
        raftlog.scan("T", directory=backup)
    (chunk,) = (path for path in backup.rglob("*") if path.is_file() and "json" not in path.name
                and path.stat().st_size > 1_000)  # fmt: skip
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="corrupt"):
        raftlog.scan("t", directory=backup).to_arrow()


@pytest.mark.parametrize("start", [0, 1_050])
def test_a_backup_without_deleted_records_is_read(directory: Path, start: int) -> None:
    backup = directory.parent / "backup"
    with raftlog.open(directory) as log:
        with log.producer() as producer:
            for _ in range(3):
                producer.send_many("t", VALUES[:100]).result(timeout=20)
        with log.admin() as admin:
            admin.delete_records({TopicPartition("t", 0): 1_100})
        store = open_store(str(backup))
        assert write_backup(str(ADDRESS), store, now_ms=1, host=log._open_host()).skipped == 100
    found = raftlog.scan("t", directory=backup, start=start).to_arrow().column("offset").to_pylist()
    assert found == [*range(start, 1_000), *range(1_100, 1_300)]


def test_other_directories_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="neither a backup nor the data directory"):
        raftlog.scan("t", directory=tmp_path / "nothing")
    with pytest.raises(InvalidRequestError, match="excludes bootstrap"):
        raftlog.scan("t", directory=tmp_path, bootstrap="127.0.0.1:1")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["", "../backup"])
def test_typed_values_need_the_registry_of_a_cluster(directory: Path, name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"registry .* bootstrap="):
        raftlog.scan("t", directory=directory / name, value="typed")
