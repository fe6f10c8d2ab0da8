"""Requests for new replicas, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from raftlog.client.administration.admin import reassignment
from raftlog.errors import RaftlogError
from raftlog.protocol.cluster import PartitionMove


def test_moves_are_in_the_order_of_the_partitions() -> None:
    request = reassignment("t", {2: (3, 1), 0: (1,)}, {2: (1, 2)}, 2)
    assert request.moves == [
        PartitionMove(partition=0, replicas=[1]),
        PartitionMove(partition=2, replicas=[3, 1], before=[1, 2]),
    ]
    assert (request.topic, request.replication_factor) == ("t", 2)


@pytest.mark.parametrize(
    ("topic", "replicas", "factor"),
    [("a b", {0: [1]}, 0), ("t", {-1: [1]}, 0), ("t", {0: [-1]}, 0), ("t", {0: [1]}, 99)],
)
def test_wrong_arguments_are_refused(
    topic: str, replicas: Mapping[int, Sequence[int]], factor: Any
) -> None:
    with pytest.raises((RaftlogError, ValueError)):
        reassignment(topic, replicas, {}, factor)
