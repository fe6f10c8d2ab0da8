"""What a cluster's description comes to: counts, findings, rates, and whether brokers are ready."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from raftlog.client.administration.describe import topics_in
from raftlog.client.administration.groups import GroupDescription, PartitionLag
from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    CopyVerification,
    DiskDescription,
    LogDirDescription,
    PartitionOverview,
    ReplicaDescription,
)
from raftlog.testing.cluster import free_port
from raftlog_cli import overview
from raftlog_cli import overview as health
from raftlog_cli import overview as module
from raftlog_cli.overview import Sample, findings, rates_of, topic_rows
from raftlog_cli.overview import overview as overview_of
from tests.cli.conftest import Raftlog

# -- health ----------------------------------------------------------------------------------------

# What a cluster's description comes to: counts and words, for every kind of trouble.


def replica(broker: int, *, behind: int = 0, damage: str = "") -> ReplicaDescription:
    return ReplicaDescription(
        broker=broker,
        log_end_offset=10 - behind,
        durable_end_offset=10 - behind,
        lag_records=behind,
        lag_ms=0,
        in_isr=True,
        chain=255,
        damage=damage,
    )


WELL = PartitionOverview(
    topic="t",
    topic_id="id",
    partition=0,
    leader=1,
    leader_epoch=4,
    replicas=(1, 2, 3),
    isr=(1, 2, 3),
    witnesses=(4, 5),
    elr=(),
    min_isr=2,
    is_available=True,
    log_start_offset=0,
    high_watermark=10,
    replica_states=(replica(1), replica(2), replica(3)),
    problem="",
)
SHORT = replace(WELL, partition=1, isr=(1, 2))
ALONE = replace(WELL, topic="single", replicas=(1,), isr=(1,), min_isr=1)
GONE = replace(WELL, partition=2, leader=None, isr=(3,), is_available=False)
UP = BrokerDescription(1, "h", 9100)
DOWN = BrokerDescription(2, "h", 9101, live=False, problem="connection refused")
FENCED = BrokerDescription(3, "h", 9102, fenced=True)


@pytest.mark.parametrize(
    ("partition", "state"),
    [
        (WELL, "ok"),
        (SHORT, "under-replicated"),
        (ALONE, "ok"),
        (GONE, "unavailable"),
        (replace(WELL, min_isr=3), "at-min-isr"),
    ],
)
def test_the_worst_that_is_true_is_the_state(partition: PartitionOverview, state: str) -> None:
    assert overview.partition_state(partition) == state
    assert overview.partition_row(partition)["state"] == state


def test_brokers_are_up_down_or_fenced() -> None:
    assert [overview.broker_state(broker) for broker in (UP, DOWN, FENCED)] == [
        *("up", "down", "fenced")
    ]
    assert [overview.is_up(broker) for broker in (UP, DOWN, FENCED)] == [True, False, False]


def test_the_summary_counts() -> None:
    damaged = replace(WELL, partition=3, replica_states=(replica(2, damage="a bad batch"),))
    described = ClusterDescription("c", (UP, DOWN, FENCED), 1, (WELL, SHORT, ALONE, GONE, damaged))
    found = overview.summary(described)
    assert not found.pop("ok")
    assert [each["kind"] for each in found.pop("problems")] == [
        *("broker", "broker", "under-replicated", "unavailable", "damage")
    ]
    assert found == {
        "cluster_id": "c",
        "controller": 1,
        "brokers": 3,
        "brokers_up": 1,
        "brokers_fenced": 1,
        "topics": 2,
        "partitions": 5,
        "under_replicated": 2,
        "unavailable": 1,
        "at_min_isr": 2,
        "damage": [{"topic": "t", "partition": 3, "broker": 2, "damage": "a bad batch"}],
        "losses": [],
    }


def test_all_is_well_or_it_is_said_what_is_not() -> None:
    well = ClusterDescription("c", (UP,), 1, (WELL, ALONE))
    assert overview.summary(well)["ok"]
    assert overview.problems(well) == []
    (problem,) = overview.problems(replace(well, controller=None))
    assert problem["kind"] == "no-controller"
    alone = replace(WELL, down=(1, 2))
    assert [p["kind"] for p in overview.problems(replace(well, partitions=(alone,)))] == [
        "under-replicated"
    ]
    assert alone.is_at_min_isr
    assert not ALONE.is_at_min_isr, "with one replica there is none to spare"


@pytest.mark.parametrize(
    ("error_ms", "words"), [(700_500, "700 s ahead of"), (-86_400_000, "86400 s behind")]
)
def test_a_wrong_clock_is_a_problem(error_ms: int, words: str) -> None:
    wrong = ClusterDescription("c", (replace(UP, clock_error_ms=error_ms),), 1, (WELL,))
    (problem,) = overview.problems(wrong)
    assert (problem["kind"], problem["broker"]) == ("clock", 1)
    assert words in problem["message"]
    assert not overview.summary(wrong)["ok"]


def test_a_log_directory_that_has_failed_is_a_problem() -> None:
    failed = LogDirDescription("/disk2", -1, -1, True, "log directory /disk2 has failed")
    sound = LogDirDescription("/disk3", 50, 100, False, "")
    disk = DiskDescription(50, 100, "normal", "", (failed, sound))
    (problem,) = overview.problems(ClusterDescription("c", (replace(UP, disk=disk),), 1, (WELL,)))
    assert problem["kind"] == "disk"
    assert problem["message"] == "broker 1: log directory /disk2 has failed"


def test_a_disk_below_a_watermark_is_a_problem() -> None:
    disk = DiskDescription(1, 100, "no-producers", "producers are refused")
    low = ClusterDescription("c", (replace(UP, disk=disk, clock_error_ms=60_001),), 1, (WELL,))
    clock, problem = overview.problems(low)
    assert (clock["kind"], problem["kind"], problem["broker"]) == ("clock", "disk", 1)
    assert problem["message"] == "broker 1: producers are refused"


def test_an_accepted_loss_is_told_and_is_no_problem_of_now() -> None:
    lost = replace(ALONE, unclean_epoch=1_001, unclean_offset=0)
    summary = overview.summary(ClusterDescription("c", (UP,), 1, (lost,)))
    assert summary["ok"]
    assert summary["losses"] == [
        {"topic": "single", "partition": 0, "leader_epoch": 1_001, "offset": 0}
    ]


@pytest.mark.parametrize(
    ("behind", "text"),
    [([0, 0, 0], "0"), ([], "0"), ([0, 120, 0], "2:120"), ([0, -1, 7], "2:?,3:7")],
)
def test_lag_names_those_that_are_behind(behind: list[int], text: str) -> None:
    replicas = [replica(broker, behind=lack) for broker, lack in enumerate(behind, start=1)]
    assert overview.lag(replicas) == text


def test_chains_are_hexadecimal_in_json() -> None:
    rows = overview.replica_rows([replica(1), replace(replica(2), chain=None)])
    assert [row["chain"] for row in rows] == ["00000000000000ff", None]


@pytest.mark.parametrize(
    ("more", "state", "text"),
    [
        ({}, "equal", ""),
        ({"end_offset": 9}, "unverified", "the copy ends at offset 9"),
        ({"problem": "unreachable"}, "unverified", "unreachable"),
        ({"differs_at": 4}, "differs", "offset 4: not equal"),
        ({"end_offset": 5, "damage": "a flipped bit"}, "corrupt", "offset 5: a flipped bit"),
        ({"end_offset": 5, "is_partial": True}, "partial", ""),
    ],
)
def test_a_verified_copy_has_a_state(more: dict[str, Any], state: str, text: str) -> None:
    copy = replace(CopyVerification(2, 0, 10), **more)
    found, described = overview.copy_state(copy, 10)
    assert (found, described.startswith(text)) == (state, True)


# -- overview --------------------------------------------------------------------------------------

# Findings, rows and rates, from descriptions.


DAMAGED = replace(WELL, partition=3, replica_states=(replica(2, damage="a bad batch"),))
FAST = replace(UP, id=4, clock_error_ms=120_000)
FULL = replace(UP, id=5, disk=DiskDescription(1, 100, "no-producers", "producers are refused"))


def cluster(*partitions: PartitionOverview, controller: int | None = 1) -> ClusterDescription:
    return ClusterDescription("c", (UP,), controller, partitions)


def test_a_healthy_cluster_has_no_findings() -> None:
    assert findings(cluster(WELL)) == []


def test_every_finding_has_a_next_step_and_the_worst_is_first() -> None:
    everything = ClusterDescription(
        "c", (UP, DOWN, FENCED, FAST, FULL), None, (WELL, SHORT, GONE, DAMAGED)
    )
    found = findings(everything)
    assert [each.kind for each in found] == [
        *("no-controller", "unavailable", "damage", "disk", "broker", "broker", "clock"),
        "under-replicated",
    ]
    assert {each.kind for each in found} == {p["kind"] for p in overview.problems(everything)}
    assert all(each.what.endswith(".") and each.do.endswith(".") for each in found)
    assert [each.is_critical for each in found] == [True] * 4 + [False] * 4
    assert found[1].what == "1 partition has no leader: no reads, no writes (t:2)."
    assert "raftlog explain partition t:2" in found[1].do
    assert "Broker 2 (h:9101) does not respond: connection refused." in found[4].what
    assert "Broker 4: the wall clock is 120 s ahead" in found[6].what
    assert found[3].what == "Broker 5: producers are refused."
    assert "raftlog explain disk 5" in found[3].do


def test_partitions_with_the_same_problem_are_one_finding() -> None:
    many = [replace(SHORT, partition=number) for number in range(1_234)]
    (found,) = findings(cluster(*many))
    assert found.what == ("1,234 partitions have replicas that are not in sync (t:0, t:1, t:2, …).")


def test_rates_are_of_topics_whose_leaders_responded_to_both() -> None:
    moved = replace(WELL, topic="moved", topic_id="moved")
    before = Sample(10.0, cluster(WELL, moved, replace(moved, partition=1, is_available=False)))
    now = Sample(
        12.0,
        cluster(
            replace(WELL, high_watermark=30),
            moved,
            replace(moved, partition=1, high_watermark=500),  # unknown before
            replace(WELL, topic="new", topic_id="other", high_watermark=500),
        ),
    )
    assert rates_of(now, before) == {"t": 10.0, "moved": 0.0, "new": 0.0}
    assert rates_of(now, None) is None
    assert rates_of(before, before) is None
    again = Sample(14.0, cluster(replace(WELL, topic_id="again", high_watermark=3)))
    assert rates_of(again, now) == {"t": 0.0}


def test_a_topic_has_the_worst_state_of_its_partitions() -> None:
    (row,) = topic_rows(cluster(WELL, SHORT, GONE))
    assert (row.name, row.partitions, row.records, row.rate) == ("t", 3, 30, None)
    assert (row.under_replicated, row.unavailable, row.state) == (2, 1, "unavailable")


@pytest.mark.parametrize(
    ("sort", "topics", "groups"),
    [
        ("problems", ["t", "busy", "idle"], ["late", "early"]),
        ("rate", ["busy", "idle", "t"], ["late", "early"]),
        ("lag", ["busy", "idle", "t"], ["late", "early"]),
        ("name", ["busy", "idle", "t"], ["early", "late"]),
    ],
)
def test_rows_are_sorted(sort: str, topics: list[str], groups: list[str]) -> None:
    busy = replace(WELL, topic="busy", topic_id="b")
    idle = replace(WELL, topic="idle", topic_id="i")
    before = Sample(0.0, cluster(busy, idle, GONE))
    now = Sample(1.0, cluster(replace(busy, high_watermark=99), idle, GONE))
    described = [
        GroupDescription(name, "stable", 1, "", 1, (), (PartitionLag("t", 0, 0, lag=lag),))
        for name, lag in (("early", 1), ("late", 50))
    ]
    assert sort in module.SORTS
    shown = overview_of(now, before, described, sort=sort)
    assert [row.name for row in shown.topics] == topics
    assert [row.name for row in shown.groups] == groups
    assert shown.rate == 89.0
    assert json.loads(json.dumps(shown.to_json()))["records_per_second"] == 89.0


def test_a_summary_shows_what_a_full_description_shows() -> None:
    parts = (WELL, SHORT, GONE, replace(WELL, topic="u", topic_id="u", min_isr=3))
    full = ClusterDescription("c", (UP,), 1, parts)
    brief = replace(
        full,
        brokers=(replace(UP, leads=3, replicas=4),),
        partitions=(SHORT, GONE),
        topics=topics_in(parts),
    )
    before, later = Sample(0.0, brief), Sample(1.0, brief)
    shown, expected = overview_of(later, before), overview_of(later, Sample(0.0, full))
    assert shown.topics == expected.topics
    # Partitions at their minimal ISR are counted while their leader responds.
    assert shown.summary == {**health.summary(full), "at_min_isr": 2}
    assert shown.findings == findings(full)
    assert [(row["leads"], row["replicas"]) for row in shown.brokers] == [(3, 4)]
    assert [(row["leads"], row["replicas"]) for row in health.broker_rows(full)] == [(3, 4)]


def test_a_finding_counts_partitions_that_a_summary_does_not_name() -> None:
    many = [replace(SHORT, partition=number) for number in range(1_234)]
    brief = replace(cluster(*many[:2]), topics=topics_in(many))
    (found,) = findings(brief)
    assert found.what == "1,234 partitions have replicas that are not in sync (t:0, t:1, …)."
    assert findings(replace(brief, partitions=())) == []


# -- ready -----------------------------------------------------------------------------------------

# `raftlog ready`: waits, and says why a broker is not ready.


NOT_READY = json.dumps(
    {"ready": False, "not_ready": ["replicas lag"], "restart_safe": False, "not_safe": ["alone"]}
).encode()
READY = b'{"ready": true, "not_ready": [], "restart_safe": true, "not_safe": []}'


class Broker(HTTPServer):
    """Responds to /readyz with each of ``bodies`` in turn, and then with the last one."""

    bodies: list[bytes]
    asked: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: Broker

    def do_GET(self) -> None:
        bodies = self.server.bodies
        body = bodies.pop(0) if len(bodies) > 1 else bodies[0]
        self.server.asked.append(self.path)
        self.send_response(200 if body == READY else 503)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def broker() -> Iterator[Broker]:
    server = Broker(("127.0.0.1", 0), _Handler)
    server.bodies, server.asked = [READY], []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(broker: Broker) -> str:
    return f"http://127.0.0.1:{broker.server_port}"


def test_it_waits_until_the_broker_is_ready(
    broker: Broker, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_cli.broker.INTERVAL_S", 0.01)
    broker.bodies = [NOT_READY, NOT_READY, READY]
    ran = raftlog("ready", url(broker))
    assert (ran.status, ran.out.decode()) == (0, f"{url(broker)} is ready\n")
    assert broker.asked == ["/readyz"] * 3
    assert raftlog("ready", url(broker) + "/", "--restart", "--json").json["restart_safe"] is True
    assert broker.asked[-1] == "/readyz?restart"


def test_it_ends_with_the_reasons(broker: Broker, raftlog: Raftlog) -> None:
    broker.bodies = [NOT_READY]
    ran = raftlog("ready", url(broker), "--restart", "--timeout", 0)
    assert (ran.status, "not safe to restart: replicas lag; alone" in ran.err) == (1, True)
    broker.bodies = [b"not a broker"]
    ran = raftlog("ready", url(broker), "--timeout", 0)
    assert (ran.status, "Check that this is the http.listen of a broker" in ran.err) == (1, True)
    ran = raftlog("ready", f"http://127.0.0.1:{free_port()}", "--timeout", 0)
    assert (ran.status, "refused" in ran.err) == (1, True)
    assert raftlog("ready", "127.0.0.1:9200").status == 2
