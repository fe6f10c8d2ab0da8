"""Counting votes and pre-votes, and how long to wait between elections."""

from __future__ import annotations

import pytest

from raftlog.consensus.raft_group import Ballot, Timing
from raftlog.consensus.settings import ConsensusSettings


def ballot(voters: int = 5, *, chance: float = 0.0) -> Ballot:
    return Ballot(1, voters, Timing(ConsensusSettings()), lambda: chance)


def test_the_same_vote_twice_is_one_vote() -> None:
    one = ballot(5)  # hazard 4
    assert not one.stand()
    assert not one.vote(2)
    assert not one.vote(2)
    assert one.vote(3)


def test_the_same_pre_vote_twice_is_one() -> None:
    one = ballot(5)
    number = one.ask()
    assert not one.would_vote(2, number)
    assert not one.would_vote(2, number)
    assert one.would_vote(3, number)


def test_answers_to_an_older_round_do_not_count() -> None:
    one = ballot(3)
    old = one.ask()
    one.ask()
    assert not one.would_vote(2, old)


def test_nothing_counts_before_it_is_asked_for_or_after_it_is_moot() -> None:
    one = ballot(3)
    assert not one.vote(2)
    assert not one.would_vote(2, 0)
    number = one.ask()
    one.stand()
    assert not one.would_vote(2, number), "the election has begun"
    one.close()
    assert not one.vote(2)


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_a_quorum_is_more_than_half(voters: int, quorum: int) -> None:
    one = ballot(voters)
    assert one.is_quorum(quorum)
    assert not one.is_quorum(quorum - 1)
    assert one.stand() is (voters == 1)


def test_waits_double_up_to_the_election_timeout_and_start_again_with_a_leader() -> None:
    one = ballot()
    assert [one.next_wait() for _ in range(5)] == [0.4, 0.8, 1.6, 3.0, 3.0]
    for _ in range(100):
        one.next_wait()
    assert one.next_wait() == 3.0
    one.leader_found()
    assert one.next_wait() == 0.4


@pytest.mark.parametrize(("chance", "patience", "short"), [(0.0, 3.0, 0.1), (0.5, 4.5, 0.25)])
def test_chance_spreads_the_waits(chance: float, patience: float, short: float) -> None:
    one = ballot(chance=chance)
    assert one.patience() == patience
    assert one.short_wait() == short
