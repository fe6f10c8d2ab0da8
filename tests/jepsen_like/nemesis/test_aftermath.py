"""What a broker says when its disk was harmed is found, and an empty disk is given with consent."""

from __future__ import annotations

from pathlib import Path

from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import Start, Words, poll, replace_disk, try_start
from tests.jepsen_like.nemesis.stores import FakeLedger, fake_cluster


def test_only_what_was_said_since_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert Words(path).text() == ""
    path.write_text("the damage of yesterday\n")
    words = Words(path)
    assert words.lines() == []
    with path.open("a") as log:
        log.write("all is well\nthere is damage\nthere is damage\nsomething torn\n")
    assert words.lines() == ["there is damage", "something torn"]
    assert words.lines(("well",)) == ["all is well"]


def test_a_broker_that_starts(tmp_path: Path) -> None:
    cluster = fake_cluster(tmp_path)
    cluster.kill([2])
    start = try_start(cluster, 2)
    assert start.started
    assert start.to_history() == {"started_after_s": 0.25}
    assert cluster.expected == {2}


def test_a_broker_that_refuses_says_so_in_a_sentence(tmp_path: Path) -> None:
    cluster = fake_cluster(tmp_path)
    cluster.kill([2])
    (cluster.hosts[2].data_dir / "identity").write_text("nonsense")
    start = try_start(cluster, 2)
    assert not start.started
    assert start.is_refusal
    assert "identity is corrupt" in start.to_history()["refused"]
    assert cluster.up() == {1, 3}


def test_a_traceback_is_no_sentence() -> None:
    start = Start(False, 0.1, "broker 2 ended with status 1: KeyError: 'topics'")
    assert start.to_history()["in_a_sentence"] is False


def test_an_empty_disk_is_given_with_the_ledgers_consent(tmp_path: Path) -> None:
    cluster, ledger = fake_cluster(tmp_path), FakeLedger(["not now"])
    data_dir = cluster.hosts[2].data_dir
    old = disks.directory_id(data_dir)
    assert replace_disk(cluster, ledger, 2) == {"disk": "kept", "why": "not now"}
    assert disks.directory_id(data_dir) == old
    assert cluster.up() == {1, 3}
    assert replace_disk(cluster, ledger, 2)["disk"].startswith("replaced")
    assert disks.directory_id(data_dir) not in {"", old}
    assert cluster.up() == {1, 2, 3}
    assert ledger.asked == [(2,), (2,)]


def test_polling_ends_with_the_time_or_the_condition() -> None:
    answers = [False, False, True]
    assert poll(lambda: answers.pop(0), 60.0, interval_s=0.0)
    assert not poll(lambda: False, 0.0)
