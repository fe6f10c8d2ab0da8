"""Seeds stand for workloads that differ in everything that may matter."""

from __future__ import annotations

from random import Random

from raftlog.config import TopicConfig
from raftlog.testing.simulator.workload import RACKS, CompactionPlan, GroupPlan, WorkloadPlan


def test_plans_differ_from_seed_to_seed() -> None:
    drawn = [WorkloadPlan.draw(Random(seed), replication_factor=2) for seed in range(100)]
    producers = [producer for plan in drawn for producer in plan.producers]
    assert {producer.acks for producer in producers} == {-1, 0, 1}
    assert {p.idempotent for p in producers if p.acks == -1} == {True, False}
    assert not any(p.idempotent for p in producers if p.acks != -1)
    assert {consumer.begin for plan in drawn for consumer in plan.consumers} == {
        "earliest",
        "latest",
        "middle",
    }
    assert {plan.replication_factor for plan in drawn} == {2}


def test_a_topic_may_ask_for_more_replicas() -> None:
    key = "min.insync.replicas"
    assert key not in WorkloadPlan.draw(Random(1), replication_factor=2).topic_config
    plan = WorkloadPlan.draw(Random(1), replication_factor=2, min_isr=2)
    assert plan.topic_config[key] == "2"


def test_compacted_topics_differ_and_are_legal() -> None:
    drawn = [CompactionPlan.draw(Random(seed)) for seed in range(100)]
    assert {plan.keeps_tombstones for plan in drawn} == {True, False}
    assert {plan.keys for plan in drawn} == {1, 5, 50}
    plan = WorkloadPlan.draw(Random(1), replication_factor=2)
    for compaction in drawn:
        compacted = plan.with_compaction(compaction)
        config = TopicConfig.from_text(compacted.topic_config)
        assert config.is_compacted
        assert config.retention_ms == -1
        assert compacted.producers == plan.producers
        assert compacted.lightened().compaction == compaction


def test_most_consumers_may_read_from_replicas() -> None:
    drawn = [WorkloadPlan.draw(Random(seed), replication_factor=2) for seed in range(50)]
    changed = [plan.with_replica_reads(Random(seed)) for seed, plan in enumerate(drawn)]
    consumers = [consumer for plan in changed for consumer in plan.consumers]
    assert {consumer.read_from for consumer in consumers} == {"leader", "replica"}
    assert {consumer.rack for consumer in consumers} == {None, *RACKS}
    assert not any(c.asks_ends for c in consumers if c.read_from == "replica")
    assert [plan.producers for plan in changed] == [plan.producers for plan in drawn]


def test_members_differ_from_seed_to_seed() -> None:
    drawn = [GroupPlan.draw(Random(seed)) for seed in range(50)]
    assert {plan.read_from for plan in drawn} == {"leader", "replica"}
    assert {plan.is_static for plan in drawn} == {True, False}
    assert all(plan.members > 1 for plan in drawn)


def test_a_light_plan_is_the_same_with_less_to_do() -> None:
    for seed in range(50):
        plan = WorkloadPlan.draw(Random(seed), replication_factor=2)
        light = plan.lightened()
        assert 2 <= len(light.producers) <= 3
        for producer, before in zip(light.producers, plan.producers, strict=False):
            assert producer.pause_s >= 0.15
            assert (producer.acks, producer.burst_max) == (before.acks, before.burst_max)
        assert len(light.consumers) == len(plan.consumers)
        assert light.administrates <= plan.administrates
        assert light.lightened() == light
