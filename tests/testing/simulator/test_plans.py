"""Seeds stand for workloads that differ in everything that may matter."""

from __future__ import annotations

from random import Random

from raftlog.testing.simulator.plans import WorkloadPlan


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
