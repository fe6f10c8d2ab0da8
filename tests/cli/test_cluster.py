"""``raftlog cluster`` on three real brokers: well, with one down, and again and again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from raftlog.testing import Cluster, wait_until
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration
Spawn = Callable[..., "subprocess.Popen[bytes]"]
TOPIC = "clicks"
SOON_S = 30.0


@pytest.fixture
def well(three: Cluster, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Three brokers with a topic of two partitions, all replicas in sync."""
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", three.bootstrap)
    three.start()
    made = raftlog("topic", "create", TOPIC, "--partitions", 2, "--if-not-exists")
    assert made.status == 0, made.err
    for partition in (0, 1):
        wait_until(
            lambda partition=partition: three.is_in_sync(TOPIC, partition),
            timeout_s=SOON_S,
            what="replicas in sync",
        )
    return three


@pytest.fixture
def with_2_down(well: Cluster, raftlog: Raftlog) -> Cluster:
    """Broker 2 was killed, and the others have noticed."""
    well.broker(2).kill()
    wait_until(
        lambda: all(
            part["isr"] == [1, 3]
            for part in raftlog("topic", "describe", TOPIC, "--json").json["partitions"]
        ),
        timeout_s=SOON_S,
        what="shrunk ISRs",
    )
    return well


def test_a_cluster_that_is_well(well: Cluster, raftlog: Raftlog) -> None:
    status = raftlog("cluster", "status", "--json").json
    assert status["controller"] in {1, 2, 3}
    assert re.fullmatch(r"[0-9a-f]{32}", status["cluster_id"])
    counts = {"brokers": 3, "brokers_up": 3, "brokers_fenced": 0, "topics": 1, "partitions": 2}
    fine = {"under_replicated": 0, "unavailable": 0, "at_min_isr": 0, "damage": [], "ok": True}
    assert {**counts, **fine}.items() <= status.items()
    text = raftlog("cluster", "status").out.decode()
    assert "brokers  3 of 3 up\n" in text
    assert "damage  none found\n" in text


def test_brokers_are_listed_with_what_they_hold(well: Cluster, raftlog: Raftlog) -> None:
    rows = raftlog("cluster", "brokers", "--json").json
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert [f"{row['host']}:{row['port']}" for row in rows] == well.bootstrap.split(",")
    assert {row["state"] for row in rows} == {"up"}
    assert sum(row["leads"] for row in rows) == 2
    assert {row["replicas"] for row in rows} == {2}
    assert sum(row["controller"] for row in rows) == 1
    lines = raftlog("cluster", "brokers").out.decode().splitlines()
    assert lines[0].split()[:3] == ["id", "address", "state"]
    assert str(well.broker(3).address) in lines[3]


def test_features_have_the_versions_of_every_broker(well: Cluster, raftlog: Raftlog) -> None:
    ran = raftlog("cluster", "features", "--json")
    assert ran.status == 0
    assert [broker["id"] for broker in ran.json["brokers"]] == [1, 2, 3]
    assert all(each["level"] is not None for each in ran.json["features"])
    assert "peer.protocol" in {each["name"] for each in ran.json["features"]}
    lines = raftlog("cluster", "features").out.decode().splitlines()
    assert lines[1].split()[:2] == ["1", "raftlog"]
    assert any(line.startswith("record.batch") for line in lines)


def test_partitions_are_listed_with_every_replica(well: Cluster, raftlog: Raftlog) -> None:
    assert raftlog("produce", TOPIC, "-p", 0, stdin=b"1\n2\n").status == 0
    rows = raftlog("cluster", "partitions", "--json").json
    assert [(row["topic"], row["partition"]) for row in rows] == [(TOPIC, 0), (TOPIC, 1)]
    first = rows[0]
    assert first["leader"] == well.leader(TOPIC, 0)
    assert sorted(first["replicas"]) == sorted(first["isr"]) == [1, 2, 3]
    assert (first["min_isr"], first["high_watermark"], first["state"]) == (2, 2, "ok")
    assert {state["log_end_offset"] for state in first["replica_states"]} == {2}
    assert len({state["chain"] for state in first["replica_states"]}) == 1
    line = raftlog("cluster", "partitions").out.decode().splitlines()[1]
    assert line.startswith(f"{TOPIC}:0 ")
    assert line.endswith("ok")
    for option in ("--under-replicated", "--unavailable", "--at-min-isr"):
        assert raftlog("cluster", "partitions", option, "--json").json == []


def test_a_broker_that_is_down_shows(with_2_down: Cluster, raftlog: Raftlog) -> None:
    ran = raftlog("cluster", "status", "--json")
    assert ran.status == 3
    status = json.loads(ran.out)
    assert not status["ok"]
    assert [problem["kind"] for problem in status["problems"]] == [
        *("broker", "under-replicated", "under-replicated")
    ]
    assert (status["brokers"], status["brokers_up"]) == (3, 2)
    assert (status["under_replicated"], status["at_min_isr"], status["unavailable"]) == (2, 2, 0)
    text = raftlog("cluster", "status").out.decode()
    assert "2 of 3 up" in text
    assert "broker 2 is down: " in text
    assert [row["state"] for row in raftlog("cluster", "brokers", "--json").json] == [
        *("up", "down", "up")
    ]
    for option in ("--under-replicated", "--at-min-isr"):
        rows = raftlog("cluster", "partitions", option, "--json").json
        assert [row["partition"] for row in rows] == [0, 1]
    both = raftlog("cluster", "partitions", "--unavailable", "--at-min-isr", "--json").json
    assert len(both) == 2


def test_events_and_explanations_name_the_broker_that_is_down(
    with_2_down: Cluster, raftlog: Raftlog
) -> None:
    found = [json.loads(line) for line in raftlog("cluster", "events", "--json").out.splitlines()]
    shrunk = [event for event in found if event["kind"] == "isr-shrunk"]
    assert {(event["topic"], event["partition"]) for event in shrunk} == {(TOPIC, 0), (TOPIC, 1)}
    assert len(shrunk) == len({(e["partition"], e["version"]) for e in shrunk})
    assert "broker 2 left the ISR; the ISR is 1,3" in shrunk[-1]["text"]
    since = f"@{shrunk[-1]['at_ms'] + 1}"
    later = raftlog("cluster", "events", "--since", since).out.decode()
    assert "isr-shrunk" not in later
    noted = raftlog("explain", "partition", f"{TOPIC}:0").out.decode()
    assert "The replica on broker 2 is missing. Broker 2 does not respond" in noted
    assert "broker 2 left the ISR; the ISR is 1,3." in noted
    assert "Broker 2 at " in raftlog("explain", "broker", 2).out.decode()
    disks = raftlog("explain", "disk", "--json").json
    assert [disk["broker"] for disk in disks["disks"] if not disk["problem"]] == [1, 3]
    assert [t["replicas"] for t in disks["disks"][0]["topics"] if t["topic"] == TOPIC] == [2]
    assert "Broker 2 does not report its disk" in " ".join(disks["sentences"])
    assert "of its disk are free" in raftlog("explain", "disk", 1).out.decode()
    for wrong, why in (
        ("partition", f"{TOPIC}:9"),
        ("broker", "9"),
        ("disk", "9"),
        ("lag", "no-such-group"),
    ):
        ran = raftlog("explain", wrong, why)
        assert (ran.status, ran.out) == (1, b"")


def test_a_topic_shows_its_replicas(with_2_down: Cluster, raftlog: Raftlog) -> None:
    part = raftlog("topic", "describe", TOPIC, "--json").json["partitions"][0]
    assert sorted(part["replicas"]) == [1, 2, 3]
    assert part["isr"] == [1, 3]
    assert (part["min_isr"], part["elr"], part["witnesses"]) == (2, [], [])
    assert [state["broker"] for state in part["replica_states"]] == part["replicas"]
    lines = raftlog("topic", "describe", TOPIC).out.decode().splitlines()
    assert lines[2].split()[:6] == ["partition", "leader", "epoch", "replicas", "isr", "lag"]
    assert lines[3].split()[4] == "1,3"


def test_watching_goes_on_until_it_is_interrupted(well: Cluster, spawn: Spawn) -> None:
    process = spawn("cluster", "status", "--watch", "--json")
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(process.stdout.readline())["brokers"] == 3
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130


def test_a_cluster_that_cannot_be_reached_is_status_1(raftlog: Raftlog) -> None:
    ran = raftlog("cluster", "status", "--bootstrap", "127.0.0.1:1")
    assert ran.status == 1
    assert "127.0.0.1:1" in ran.err
