"""A request with another leader epoch than the replica's is refused, and says which way it is."""

from __future__ import annotations

import pytest

from raftlog.errors import FencedLeaderEpochError, RaftlogError, UnknownLeaderEpochError
from raftlog.server.partition import check_epoch
from raftlog.types import TopicPartition

TP = TopicPartition("t", 3)


@pytest.mark.parametrize("known", [-1, 7])
def test_the_replicas_own_epoch_and_none_at_all_pass(known: int) -> None:
    check_epoch(known, 7, TP)


@pytest.mark.parametrize(
    ("known", "refusal"), [(6, FencedLeaderEpochError), (8, UnknownLeaderEpochError)]
)
def test_any_other_is_refused_by_name(known: int, refusal: type[RaftlogError]) -> None:
    with pytest.raises(refusal, match=f"t:3.*epoch.*{known}"):
        check_epoch(known, 7, TP)
