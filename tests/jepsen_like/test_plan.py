"""What follows from a cluster's shape."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.aio import AsyncConsumer, AsyncProducer
from raftlog.config.topic import TopicConfig
from raftlog.testing.checker.judge import RETENTION_MS_MIN
from raftlog.testing.history import PADDING_MAX
from raftlog_jepsen import plan
from raftlog_jepsen.member import Settings, Work
from raftlog_jepsen.plan import (
    FEW_CLIENTS,
    MEMBERS_ALL_MAX,
    RATE_MODES,
    RATES,
    WORKLOADS,
    RateMode,
    Shape,
    TopicShape,
    WorkloadName,
    draw_groups,
    draw_shape,
    draw_workload,
)


def shape(brokers: int, *factors: int) -> Shape:
    return Shape(
        brokers=brokers,
        topics=tuple(
            TopicShape(name=f"t{factor}", partitions=1, replication_factor=factor, min_isr=1)
            for factor in factors
        ),
    )


@pytest.mark.parametrize(("brokers", "minority"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (7, 3)])
def test_a_minority_leaves_a_majority(brokers: int, minority: int) -> None:
    assert shape(brokers, 1).minority == minority
    assert 2 * (brokers - minority) > brokers


def test_ids_count_from_one() -> None:
    assert shape(3, 1).broker_ids == (1, 2, 3)


def test_losses_are_those_that_the_least_copied_topic_survives() -> None:
    assert shape(5, 3, 5).losses == 2
    assert shape(3, 1, 3).losses == 0


# -- generator -------------------------------------------------------------------------------------
#
# The same seed draws the same; whatever is drawn, brokers and clients can do it.


SEEDS = st.integers(0, 2**32)
MODES = st.sampled_from(RATE_MODES)
NAMES = st.sampled_from(WORKLOADS)


@given(SEEDS, st.integers(1, 7), NAMES, MODES)
def test_the_same_seed_draws_the_same(
    seed: int, brokers: int, name: WorkloadName, mode: RateMode
) -> None:
    def draw() -> tuple[Any, ...]:
        random = Random(seed)
        return (
            plan.draw_rate_mode(random),
            draw_shape(random, brokers=brokers, workload=name, mode=mode),
            draw_workload(random, name=name, mode=mode),
        )

    assert draw() == draw()


@given(SEEDS, st.integers(1, 7), NAMES, MODES, st.booleans(), st.booleans())
def test_topics_are_such_as_the_brokers_can_have(
    seed: int, brokers: int, name: WorkloadName, mode: RateMode, lossy: bool, available: bool
) -> None:
    options: dict[str, Any] = {"mode": mode, "lossy": lossy, "available": available}
    if brokers < 3 and (lossy or available):
        with pytest.raises(ValueError, match="three"):
            draw_shape(Random(seed), brokers=brokers, workload=name, **options)
        return
    shape = draw_shape(Random(seed), brokers=brokers, workload=name, **options)
    assert 1 <= sum(topic.partitions for topic in shape.topics) <= plan.PARTITIONS_MAX
    assert len({topic.name for topic in shape.topics}) == len(shape.topics)
    for topic in shape.topics:
        config = TopicConfig.from_text(dict(topic.config))
        assert config.retention_ms == -1 or config.retention_ms >= RETENTION_MS_MIN
        assert topic.partitions >= 1
        assert topic.replication_factor in {1, 3, 5}
        assert topic.replication_factor <= brokers
        assert 1 <= topic.min_isr <= topic.replication_factor
        if lossy:
            assert topic.replication_factor >= 3
            assert topic.min_isr >= 2
        if available:
            assert topic.min_isr < topic.replication_factor


@given(SEEDS, NAMES, MODES)
def test_clients_are_such_as_can_be_made(seed: int, name: WorkloadName, mode: RateMode) -> None:
    shape = draw_workload(Random(seed), name=name, mode=mode)
    few = name in FEW_CLIENTS
    assert (3 if few else 8) <= len(shape.producers) <= (6 if few else 32)
    assert (2 if few else 4) <= len(shape.consumers) <= (4 if few else 16)
    assert shape.admin_rate == 0 or name in {"admin", "groups"}
    assert shape.admin_rate > 0 or name != "admin"
    for producer in shape.producers:
        AsyncProducer(
            "broker:1",
            acks=producer.acks,
            idempotent=producer.idempotent,
            compression=producer.compression,
            linger_ms=producer.linger_ms,
            request_timeout_ms=int(producer.delivery_timeout_s * 500),
            delivery_timeout_ms=int(producer.delivery_timeout_s * 1_000),
        )
        assert 1 <= producer.in_flight_max <= 5
        assert 1 <= producer.group_max <= 100
        assert 0 <= producer.padding_max <= PADDING_MAX
        assert producer.rate > 0
        assert producer.delivery_timeout_s <= 30
    for consumer in shape.consumers:
        AsyncConsumer(
            "broker:1",
            read_from=consumer.source,
            fetch_max_wait_ms=consumer.wait_ms,
            max_partition_fetch_bytes=consumer.fetch_bytes_max,
        )


@given(SEEDS, MODES)
def test_the_rate_is_what_was_asked_for(seed: int, mode: RateMode) -> None:
    shape = draw_workload(Random(seed), name="append", mode=mode)
    small = sum(p.rate for p in shape.producers if p.padding_max < plan.LARGE_BYTES)
    large = sum(p.rate for p in shape.producers if p.padding_max >= plan.LARGE_BYTES)
    assert RATES[mode] / 2 <= small <= RATES[mode] * 1.001
    assert large <= len(shape.producers)
    groups = sum(p.rate / ((p.group_max + 1) / 2) for p in shape.producers)
    assert groups <= 40 * len(shape.producers), "each group is an operation that is recorded"


def test_counts_can_be_given() -> None:
    shape = draw_workload(Random(1), name="replay", rate=50, producers=1, consumers=2)
    assert (len(shape.producers), len(shape.consumers)) == (1, 2)
    assert shape.producers[0].rate == 50


def test_each_kind_of_client_comes_up() -> None:
    drawn = [draw_workload(Random(seed), name="append", mode="bursts") for seed in range(20)]
    producers = [producer for shape in drawn for producer in shape.producers]
    consumers = [consumer for shape in drawn for consumer in shape.consumers]
    assert {producer.idempotent for producer in producers} == {True, False}
    assert {producer.acks for producer in producers} == {-1, 1}
    assert {producer.in_flight_max for producer in producers} == {1, 2, 3, 4, 5}
    assert {producer.compression for producer in producers} == {"none", "lz4", "zstd"}
    assert max(producer.padding_max for producer in producers) == 1_000_000
    assert all(producer.bursts for producer in producers)
    assert {consumer.source for consumer in consumers} == {"leader", "replica"}
    assert {consumer.begin for consumer in consumers} == {"earliest", "latest", "middle"}
    assert min(consumer.fetch_bytes_max for consumer in consumers) < 1_000


@given(SEEDS)
def test_members_are_such_as_can_be_made(seed: int) -> None:
    random = Random(seed)
    topics = draw_shape(random, brokers=3, workload="groups").topics
    groups = draw_groups(random, workload="groups", topics=topics)
    assert 2 <= len(groups) <= 4
    assert sum(len(group.members) for group in groups) <= MEMBERS_ALL_MAX
    instances = [m.instance for group in groups for m in group.members if m.instance]
    assert len(instances) == len(set(instances))
    for group in groups:
        assert 3 <= len(group.members) <= 6
        assert set(group.topics) <= {topic.name for topic in topics}
        assert not group.by_pattern or len(group.topics) == len(topics)
        assert len({member.commits for member in group.members}) == 1
        for number, member in enumerate(group.members):
            made = Work(
                Settings(
                    bootstrap="broker:1",
                    name=f"{group.name}/m{number}.1",
                    group=group.name,
                    topics=list(group.topics),
                    style=member.style,
                    commits=member.commits,
                    instance=member.instance,
                    assignor=group.assignor,
                    session_timeout_s=group.session_timeout_s,
                )
            )
            AsyncConsumer("broker:1", **made.consumer_settings())


def test_each_kind_of_member_comes_up() -> None:
    topics = draw_shape(Random(1), brokers=3, workload="groups").topics
    drawn = [
        group
        for seed in range(30)
        for group in draw_groups(Random(seed), workload="groups", topics=topics)
    ]
    members = [member for group in drawn for member in group.members]
    assert {member.style for member in members} == {"poll", "iterate", "aio"}
    assert {member.commits for member in members} == {"manual", "auto"}
    assert {bool(member.instance) for member in members} == {True, False}
    assert {group.by_pattern for group in drawn} == {True, False}
    assert {group.assignor for group in drawn} == {"", "range", "uniform"}


@given(SEEDS)
def test_compacted_topics_are_such_as_can_be_made(seed: int) -> None:
    for topic in draw_shape(Random(seed), brokers=3, workload="compact").topics:
        config = TopicConfig.from_text(dict(topic.config))
        assert config.is_compacted
        assert config.retention_ms == -1 or config.retention_ms >= RETENTION_MS_MIN
        assert config.retention_bytes == -1
        assert topic.keys > 0
