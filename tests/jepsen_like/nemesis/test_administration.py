"""The administrator's faults do what they say on a real cluster, and say so when they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from raftlog import Admin, NewTopic
from raftlog.testing import Cluster
from raftlog.testing.cluster import cluster
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.membership import (
    ADMINISTRATION_KINDS,
    SIDE_TOPIC,
    AdministrationNemesis,
)
from raftlog_jepsen.plan import Shape, TopicShape

SHAPE = Shape(
    brokers=3, topics=(TopicShape(name="events", partitions=3, replication_factor=3, min_isr=2),)
)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(3, with_relays=False) as made:
        with Admin(made.bootstrap) as admin:
            admin.create_topics([NewTopic("events", 3, 3)])
        yield made


@pytest.mark.parametrize("kind", ADMINISTRATION_KINDS)
def test_the_same_chance_draws_the_same_fault(kind: str) -> None:
    nemesis = AdministrationNemesis(Cluster([]))
    one, other = (nemesis.draw(kind, Random(4), SHAPE) for _ in range(2))
    assert one == other
    assert one.kind == kind
    assert one.expects == "available"


@pytest.mark.integration
def test_leaders_are_moved(running: Cluster) -> None:
    nemesis = AdministrationNemesis(running)
    before = running.leader("events", 1)
    effect = nemesis.begin(FaultPlan(kind="transfer", args={"topic": "events", "partitions": [1]}))
    assert effect.injected
    assert effect.seen["leaders"]["1"] != before


def test_a_topic_is_made_extended_deleted_and_made_again(running: Cluster) -> None:
    nemesis = AdministrationNemesis(running)
    fault = nemesis.draw("topics", Random(1), SHAPE)
    assert nemesis.begin(fault).seen == {"created": SIDE_TOPIC}
    assert nemesis.begin(fault).seen == {"recreated": SIDE_TOPIC}
    assert nemesis.end(fault).seen == {"deleted": SIDE_TOPIC}
    assert nemesis.end(fault).seen.keys() == {"gone"}


def test_a_setting_is_changed(running: Cluster) -> None:
    nemesis = AdministrationNemesis(running)
    args = {"topic": "events", "segment.bytes": "65536"}
    assert nemesis.begin(FaultPlan(kind="settings", args=args)).injected
    with Admin(running.bootstrap) as admin:
        assert admin.describe_topics(["events"])[0].config["segment.bytes"] == "65536"


def test_what_is_refused_was_not_injected(running: Cluster) -> None:
    args = {"topic": "nowhere", "partitions": [0]}
    effect = AdministrationNemesis(running).begin(FaultPlan(kind="transfer", args=args))
    assert not effect.injected
    assert "nowhere" in effect.seen["why"]


def test_an_unknown_kind_cannot_be_injected() -> None:
    assert AdministrationNemesis(Cluster([])).why_not("kill")
