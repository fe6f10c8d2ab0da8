"""What follows from a cluster's shape."""

from __future__ import annotations

import pytest

from raftlog_jepsen.plan import Shape, TopicShape


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
