"""``raftlog log``: what lies in the files, and a word on every byte that should not."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.testing import cluster
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped broker: ten batches of a record each in one partition."""
    directory = tmp_path_factory.mktemp("written")
    with cluster(directory=directory) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("t")])
        with Producer(running.bootstrap, linger_ms=0) as producer:
            for number in range(10):
                headers = [("h", b"\xff")]
                future = producer.send("t", b"value %d" % number, b"key", headers, 1_000 + number)
                future.result(timeout=20)
        running.stop()
    return directory


def segments(directory: Path) -> list[Path]:
    return list(directory.rglob("0*.log"))


def test_a_dump_shows_every_batch(raftlog: Raftlog, written: Path) -> None:
    ran = raftlog("log", "dump", written, "--json")
    assert ran.status == 0
    rows = ran.json_lines
    assert [row["base_offset"] for row in rows] == list(range(10))
    assert {row["records"] for row in rows} == {1}
    assert all(row["error"] == "" for row in rows)


def test_a_dump_shows_records_if_asked(raftlog: Raftlog, written: Path) -> None:
    (path,) = segments(written)
    rows = raftlog("log", "dump", path, "--records", "--json").json_lines
    assert rows[3]["content"] == [
        {
            "offset": 3,
            "timestamp_ms": 1_003,
            "key": "key",
            "value": "value 3",
            "headers": [["h", {"base64": "/w=="}]],
        }
    ]
    text = raftlog("log", "dump", path, "--records").out.decode()
    assert "b'value 3'" in text
    assert text.splitlines()[0] == str(path)


def test_sound_files_verify(raftlog: Raftlog, written: Path) -> None:
    assert raftlog("log", "verify", written).out.decode().splitlines()[1].endswith("sound")
    verdict = raftlog("log", "verify", written, "--json").json
    assert verdict["sound"] is True
    (report,) = verdict["partitions"]
    assert (report["batches"], report["records"], report["problems"]) == (10, 10, [])


def test_damage_is_found_shown_and_a_failure(
    raftlog: Raftlog, written: Path, tmp_path: Path
) -> None:
    (original,) = segments(written)
    copy = tmp_path / original.parent.name
    copy.mkdir()
    for file in original.parent.iterdir():
        data = bytearray(file.read_bytes())
        if file == original:
            data[len(data) // 2] ^= 1
        (copy / file.name).write_bytes(data)
    ran = raftlog("log", "verify", copy)
    assert ran.status == 1
    assert "DAMAGED" in ran.out.decode()
    assert "damage: " in ran.out.decode()
    assert "corrupt partitions: 1 of 1" in ran.err
    dumped = raftlog("log", "dump", copy)
    assert dumped.status == 1
    assert "BAD: " in dumped.out.decode()
    assert raftlog("log", "dump", copy, "--json").json_lines[-1]["error"] != ""


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_directory_without_a_log_is_refused(
    raftlog: Raftlog, tmp_path: Path, command: str
) -> None:
    ran = raftlog("log", command, tmp_path)
    assert ran.status == 1
    assert "holds no partition" in ran.err
    assert raftlog("log", command, tmp_path / "nowhere").status == 2
