"""From options to a plan: the same for the same, and refused with a sentence when senseless."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from raftlog_jepsen.nemesis.driver import KINDS
from raftlog_jepsen.plan import WORKLOADS, WorkloadName
from raftlog_jepsen.runner import LOSSY, MEMBER_KINDS, MEMBERSHIP_KINDS, RunOptions, draw_plan


def options(**others: Any) -> RunOptions:
    given = {"workload": "append", "nemeses": ("kill",), "time_s": 30.0, "seed": 1, **others}
    return RunOptions(directory=Path("reports"), **given)


def test_the_same_options_draw_the_same_plan_and_another_seed_another() -> None:
    assert draw_plan(options()) == draw_plan(options())
    plans = {repr(draw_plan(options(seed=seed))) for seed in range(20)}
    assert len(plans) == 20


def test_the_plan_has_what_was_asked_for() -> None:
    plan = draw_plan(
        options(workload="replay", nemeses=("process",), pairs=True, rate=50.0, brokers=5, seed=9)
    )
    assert plan.workload.name == "replay"
    assert plan.nemeses == ("kill", "storm", "pause")
    assert (plan.pairs, plan.rate, plan.shape.brokers, plan.seed) == (True, 50.0, 5, 9)
    assert sum(producer.rate for producer in plan.workload.producers) < 3 * 50


def test_all_kinds_include_those_that_lose_data_and_no_change_of_the_membership() -> None:
    kinds = set(draw_plan(options(nemeses=("all",))).nemeses)
    assert kinds >= LOSSY
    assert kinds.isdisjoint(MEMBERSHIP_KINDS)


@pytest.mark.parametrize("kind", sorted(LOSSY))
def test_where_disks_are_lost_everything_has_copies(kind: str) -> None:
    assert kind in KINDS
    for seed in range(30):
        shape = draw_plan(options(nemeses=("kill", kind), seed=seed)).shape
        assert all(topic.replication_factor >= 3 and topic.min_isr >= 2 for topic in shape.topics)


def test_most_runs_and_not_all_have_topics_that_go_on_without_a_replica() -> None:
    shapes = [draw_plan(options(seed=seed)).shape for seed in range(60)]
    going_on = [
        all(topic.min_isr < topic.replication_factor for topic in shape.topics) for shape in shapes
    ]
    assert 60 > sum(going_on) > 40


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"workload": "juggle"}, "'juggle'. Use append, replay, admin"),
        ({"nemeses": ("explode",)}, "'explode'"),
        ({"nemeses": ("membership", "wipe")}, "not together with faults that lose data"),
        ({"time_s": 1.0}, "5 s to"),
        ({"time_s": float("nan")}, "5 s to"),
        ({"brokers": 0}, "1 to 9"),
        ({"brokers": 10}, "1 to 9"),
        ({"nemeses": ("kill", "power"), "bootstrap": "10.0.0.1:9100"}, "power. Use kill"),
        ({"nemeses": ("wipe",), "brokers": 1}, "for three replicas"),
        ({"nemeses": ("kill", "member-pause")}, "member-pause needs consumer groups"),
    ],
)
def test_senseless_options_are_refused_with_a_sentence(
    others: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        draw_plan(options(**others))


def test_a_plan_is_plain_data() -> None:
    assert dataclasses.asdict(draw_plan(options()))["shape"]["brokers"] == 3


def test_members_are_harmed_where_there_are_some() -> None:
    assert MEMBER_KINDS.isdisjoint(draw_plan(options(nemeses=("all",))).nemeses)
    drawn = draw_plan(options(nemeses=("all",), workload="groups"))
    assert set(drawn.nemeses) >= MEMBER_KINDS
    members = draw_plan(options(nemeses=("members",), workload="groups"))
    assert set(members.nemeses) == MEMBER_KINDS


@pytest.mark.parametrize("workload", ["offsets", "groups"])
def test_the_topic_of_groups_is_as_safe_as_the_others(workload: WorkloadName) -> None:
    for seed in range(20):
        plan = draw_plan(options(workload=workload, seed=seed, nemeses=("wipe",), brokers=5))
        settings = dict(plan.settings)
        assert int(settings["offsets.topic.num.partitions"]) == plan.shape.coordinators > 0
        factors = [topic.replication_factor for topic in plan.shape.topics]
        assert int(settings["offsets.topic.replication.factor"]) == max(factors)


def test_groups_and_keys_are_of_their_workloads() -> None:
    for name in WORKLOADS:
        plan = draw_plan(options(workload=name))
        assert bool(plan.workload.groups) == (name in {"offsets", "groups"})
        assert any(group.members for group in plan.workload.groups) == (name == "groups")
        assert all(bool(topic.keys) == (name == "compact") for topic in plan.shape.topics)
        assert bool(plan.shape.coordinators) == bool(plan.workload.groups)


def test_kafka_clients_have_the_same_plan_and_groups_of_both_protocols() -> None:
    seen = set()
    for seed in range(10):
        ours = draw_plan(options(workload="groups", seed=seed))
        kafkas = draw_plan(options(workload="groups", seed=seed, client="kafka"))
        assert (kafkas.client, kafkas.shape) == ("kafka", ours.shape)
        assert kafkas.workload.producers == ours.workload.producers
        session_ms = int(dict(kafkas.settings)["group.consumer.session.timeout.ms"])
        for group in kafkas.workload.groups:
            seen.add(group.protocol)
            assert group.protocol == "classic" or group.session_timeout_s * 1_000 == session_ms
    assert seen == {"classic", "consumer"}
    with pytest.raises(ValueError, match="unknown client"):
        draw_plan(options(client="pulsar"))
