"""Tests of ``raftlog demo``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.testing import Cluster
from raftlog_cli.demo import Ledger, Verdict, page_views
from tests.cli.conftest import Raftlog


@pytest.mark.integration
@pytest.mark.parametrize("records", [1, 2, 3, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_a_broker_alone_loses_nothing(raftlog: Raftlog, records: int) -> None:
    verdict = raftlog("demo", "--brokers", 1, "--records", records, "--json").json
    assert (verdict["acknowledged"], verdict["found"]) == (records, records)
    assert (verdict["lost"], verdict["duplicated"]) == (0, 0)
    assert verdict["in_order"]
    assert verdict["identical"]
    assert (verdict["brokers"], verdict["failovers"], verdict["wiped"]) == (1, 1, None)
    assert verdict["acknowledged_before_kill"] < records
    assert verdict["seconds"] > verdict["unavailable_seconds"] > 0


@pytest.mark.integration
@pytest.mark.parametrize("records", [pytest.param(1, marks=pytest.mark.nightly), 20_000])
def test_three_brokers_lose_nothing_with_two_leaders_and_a_disk(
    raftlog: Raftlog, records: int
) -> None:
    verdict = raftlog("demo", "--records", records, "--json").json
    assert (verdict["acknowledged"], verdict["found"]) == (records, records)
    assert (verdict["lost"], verdict["duplicated"]) == (0, 0)
    assert verdict["in_order"]
    assert verdict["identical"]
    assert (verdict["brokers"], verdict["failovers"]) == (3, 2)
    assert verdict["wiped"] in {1, 2, 3}
    assert verdict["replicas_identical"]
    assert [copy["end"] for copy in verdict["replicas"]] == [records] * 3
    assert len({copy["chain"] for copy in verdict["replicas"]}) == 1
    assert len(verdict["failover_seconds"]) == 2
    assert verdict["unavailable_seconds"] >= max(verdict["failover_seconds"])


def test_a_file_without_lines_is_refused(raftlog: Raftlog, tmp_path: Path) -> None:
    with (tmp_path / "binary").open("wb") as file:
        file.truncate(limits.BATCH_BYTES_MAX + 1)
    ran = raftlog("demo", "--input", tmp_path / "binary")
    assert (ran.status, "a line is longer than" in ran.err) == (2, True)


@pytest.mark.integration
def test_a_files_lines_are_the_records(raftlog: Raftlog, tmp_path: Path) -> None:
    source, kept = tmp_path / "lines", tmp_path / "kept"
    source.write_bytes(b"".join(b"line %d \xff\r\n" % number for number in range(3_000)))
    ran = raftlog("demo", "--input", source, "--keep", kept)
    assert ran.status == 0
    text = ran.out.decode()
    assert "acknowledged  3,000 records" in text
    assert "lost  0" in text
    assert "byte for byte" in text
    assert "kill -9 " in ran.err
    assert "restarted empty" in text
    assert "identical: 3 of " in text
    found = raftlog("log", "verify", kept, "--json").json["partitions"]
    assert [partition["records"] for partition in found] == [3_000] * 3
    record = json.loads((kept / "cluster.json").read_bytes())
    assert [broker["pid"] for broker in record["brokers"]] == [None, None, None]


@pytest.mark.integration
def test_replicas_that_differ_are_told_and_are_status_1(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Cluster.stop

    def spoiled(cluster: Cluster) -> None:
        stopped(cluster)
        segment = next(cluster.brokers[0].data_dir.rglob("*.log"))
        data = bytearray(segment.read_bytes())
        data[-1] ^= 1
        segment.write_bytes(data)

    monkeypatch.setattr(Cluster, "stop", spoiled)
    ran = raftlog("demo", "--brokers", 1, "--records", 10)
    assert ran.status == 1
    assert "lost  0" in ran.out.decode()
    assert "replicas  DIFFERENT" in ran.out.decode()
    assert "FAILED: acknowledged records" in ran.out.decode()


@pytest.mark.integration
def test_a_loss_is_told_and_is_status_1(raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Ledger.verdict

    def robbed(ledger: Ledger) -> Verdict:
        ledger.acknowledge([b"one that was never stored"], [1_000])
        return honest(ledger)

    monkeypatch.setattr(Ledger, "verdict", robbed)
    ran = raftlog("demo", "--brokers", 1, "--records", 10)
    assert ran.status == 1
    assert "lost  1" in ran.out.decode()
    assert "FAILED: acknowledged records" in ran.out.decode()


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--brokers", "2"], 2, "not a majority"),
        (["--brokers", "0"], 2, "--brokers"),
        (["--input", "/nowhere"], 2, "/nowhere"),
        (["--records", "0"], 2, "--records"),
    ],
)
def test_what_cannot_be_is_refused(
    raftlog: Raftlog, arguments: list[str], status: int, reason: str
) -> None:
    ran = raftlog("demo", *arguments)
    assert ran.status == status
    assert reason in ran.err


@pytest.mark.integration
def test_an_empty_input_and_a_used_directory_are_refused(raftlog: Raftlog, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert raftlog("demo", "--input", tmp_path / "empty").status == 2
    ran = raftlog("demo", "--keep", tmp_path)
    assert ran.status == 2
    assert "is not empty" in ran.err


# -- events ----------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_events() -> None:
    assert list(page_views(50, seed=7)) == list(page_views(50, seed=7))
    assert list(page_views(50, seed=7)) != list(page_views(50, seed=8))


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    assert list(page_views(50, seed=7))[:20] == list(page_views(20, seed=7))


def test_events_are_json_lines_in_order_of_time() -> None:
    events = [json.loads(line) for line in page_views(1_000, seed=1)]
    assert [event["event"] for event in events] == list(range(1_000))
    times = [event["time_ms"] for event in events]
    assert times == sorted(times)
    assert not any(b"\n" in line for line in page_views(1_000, seed=1))
