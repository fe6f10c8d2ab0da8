"""Findings, rows and rates, from descriptions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from raftlog.client.administration.describe import topics_in
from raftlog.client.administration.groups import GroupDescription, PartitionLag
from raftlog.client.descriptions import ClusterDescription, PartitionOverview
from raftlog_cli import overview as health
from raftlog_cli import overview as module
from raftlog_cli.overview import Sample, findings, overview, rates_of, topic_rows
from tests.cli.test_health import DOWN, FENCED, GONE, SHORT, UP, WELL, replica

DAMAGED = replace(WELL, partition=3, replica_states=(replica(2, damage="a bad batch"),))
FAST = replace(UP, id=4, clock_error_ms=120_000)


def cluster(*partitions: PartitionOverview, controller: int | None = 1) -> ClusterDescription:
    return ClusterDescription("c", (UP,), controller, partitions)


def test_a_healthy_cluster_has_no_findings() -> None:
    assert findings(cluster(WELL)) == []


def test_every_finding_has_a_next_step_and_the_worst_is_first() -> None:
    everything = ClusterDescription(
        "c", (UP, DOWN, FENCED, FAST), None, (WELL, SHORT, GONE, DAMAGED)
    )
    found = findings(everything)
    assert [each.kind for each in found] == [
        *("no-controller", "unavailable", "damage", "broker", "broker", "clock"),
        "under-replicated",
    ]
    assert all(each.what.endswith(".") and each.do.endswith(".") for each in found)
    assert [each.is_critical for each in found] == [True] * 3 + [False] * 4
    assert found[1].what == "1 partition has no leader: no reads, no writes (t:2)."
    assert "raftlog explain partition t:2" in found[1].do
    assert "Broker 2 (h:9101) does not respond: connection refused." in found[3].what
    assert "Broker 4: the wall clock is 120 s ahead" in found[5].what


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
    shown = overview(now, before, described, sort=sort)
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
    shown, expected = overview(later, before), overview(later, Sample(0.0, full))
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
