"""What a leader proposes, one change at a time, and what it makes of each outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.replication.leadership import FollowerProgress
from raftlog.replication.partition_state import ChangeIsr, ChangeReplicas, PartitionState, apply
from tests.replication.samples import Leader, accepted, disks, state_of

ISR_OF_ONE = state_of(isr=(1,), former=(2, 3), min_isr=1)


def after(change: ChangeIsr, state: PartitionState) -> PartitionState:
    return accepted(apply(state, change))


OUTSIDE = state_of(isr=(1, 2), former=(3,))


def caught_up(**at: int) -> Leader:
    leader = Leader(OUTSIDE, **at)
    leader.fetch(2, 10)
    return leader


# -- min_isr ---------------------------------------------------------------------------------------


def test_a_changed_min_isr_is_proposed() -> None:
    leader = Leader()
    assert leader.proposed(min_isr=3) == ChangeIsr(7, 5, disks((1, 2, 3)), 3)


def test_min_isr_is_at_least_one() -> None:
    assert Leader().proposed(min_isr=0).min_isr == 1


def test_a_higher_min_isr_counts_from_the_proposal_on() -> None:
    leader = Leader(ISR_OF_ONE)
    leader.proposed(min_isr=2)
    leader.append(5)
    assert leader.high_watermark == 10


def test_a_lower_min_isr_counts_once_it_is_committed() -> None:
    leader = Leader(state_of(isr=(1,), elr=(2,), former=(3,)))
    change = leader.proposed(min_isr=1)
    assert leader.high_watermark == 4
    leader.leadership.proposal_done(change, True)
    assert leader.high_watermark == 4
    leader.learn(after(change, leader.leadership.state))
    assert leader.high_watermark == 10


# -- proposals -------------------------------------------------------------------------------------


def test_nothing_is_proposed_where_all_is_well() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.review() is None


def test_one_proposal_at_a_time() -> None:
    leader = Leader()
    leader.dead = {2}
    leader.proposed()
    leader.dead = {2, 3}
    assert leader.review() is None


def test_nothing_is_proposed_by_a_leader_that_would_not_hear_of_it() -> None:
    leader = Leader()
    leader.dead = {2}
    leader.may_propose = False
    assert leader.review() is None
    assert leader.leadership.maximal_isr() == set(disks((1, 2, 3)).items())
    leader.may_propose = True
    change = leader.proposed()
    leader.leadership.proposal_done(change, None)
    leader.may_propose = False
    assert leader.review() is None, "nor again"
    leader.may_propose = True
    assert leader.review() == change


def test_a_proposed_addition_counts_at_once() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    leader.proposed()
    leader.append(5)
    leader.fetch(2, 15)
    assert leader.high_watermark == 10
    leader.fetch(3, 12)
    assert leader.high_watermark == 12


def test_a_proposed_removal_counts_once_it_is_committed() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.dead = {3}
    change = leader.proposed()
    leader.leadership.proposal_done(change, True)
    assert leader.high_watermark == 4
    leader.learn(after(change, leader.leadership.state))
    assert leader.high_watermark == 10


def test_a_rejected_proposal_leaves_no_trace() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    change = leader.proposed()
    leader.append(5)
    leader.fetch(2, 15)
    leader.leadership.proposal_done(change, False)
    assert leader.high_watermark == 15
    assert leader.leadership.maximal_isr() == set(disks((1, 2)).items())
    assert leader.review() is None  # it has fallen behind meanwhile


def test_an_unknown_outcome_keeps_the_proposal_in_flight() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    change = leader.proposed()
    leader.leadership.proposal_done(change, None)
    leader.append(5)
    leader.fetch(2, 15)
    assert leader.high_watermark == 10
    leader.learn(after(change, leader.leadership.state))
    assert leader.leadership.maximal_isr() == set(disks((1, 2, 3)).items())
    leader.fetch(3, 15)
    assert leader.high_watermark == 15


def test_a_newer_version_without_it_settles_an_unknown_proposal_too() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    leader.leadership.proposal_done(leader.proposed(), None)
    grown = accepted(apply(OUTSIDE, ChangeReplicas(7, (1, 2, 3, 4), (5,))))
    leader.learn(grown)
    assert leader.leadership.maximal_isr() == set(disks((1, 2)).items())
    assert leader.proposed() == ChangeIsr(8, 5, disks((1, 2, 3)), 2)


def test_an_unknown_proposal_is_made_again_as_it_was() -> None:
    """Or a command that got lost would be in flight for ever."""
    leader = caught_up()
    leader.fetch(3, 10)
    change = leader.proposed()
    assert leader.review() is None
    leader.leadership.proposal_done(change, None)
    leader.dead = {2, 3}
    assert leader.review() == change
    assert leader.review() is None


def test_a_second_try_that_is_rejected_says_nothing_about_the_first() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    change = leader.proposed()
    leader.leadership.proposal_done(change, None)
    assert leader.review() == change
    leader.leadership.proposal_done(change, False)
    assert leader.leadership.maximal_isr() == set(disks((1, 2, 3)).items())
    assert leader.review() == change


def test_the_late_outcome_of_an_earlier_proposal_changes_nothing() -> None:
    leader = caught_up()
    leader.dead = {2}
    early = leader.proposed()
    leader.learn(after(early, OUTSIDE))
    leader.fetch(3, 10)
    late = leader.proposed()
    assert late.version == 8
    leader.leadership.proposal_done(early, False)
    assert leader.leadership.maximal_isr() == set(disks((1, 3)).items())
    assert leader.review() is None


def test_a_state_that_is_known_already_settles_nothing() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    leader.proposed()
    leader.learn(OUTSIDE)
    assert leader.leadership.maximal_isr() == set(disks((1, 2, 3)).items())


def test_a_state_of_another_epoch_is_for_another_leadership() -> None:
    with pytest.raises(AssertionError):
        Leader().learn(state_of(leader_epoch=6, version=8))


def test_a_leader_that_is_not_named_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        Leader(state_of(leader=2))


def test_a_log_that_shrinks_under_its_leader_is_our_mistake() -> None:
    leader = Leader()
    with pytest.raises(AssertionError):
        leader.leadership.on_local(log_end=9, durable_end=9)


# -- replicas that come and go ---------------------------------------------------------------------


def test_a_replica_that_is_added_joins_when_it_has_caught_up() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 10)
    grown = accepted(apply(leader.leadership.state, ChangeReplicas(7, (1, 2, 3, 4), (5,))))
    leader.learn(grown)
    assert leader.review() is None
    leader.fetch(4, 10)
    assert leader.proposed().isr == disks((1, 2, 3, 4))


def test_a_follower_that_is_a_replica_no_more_is_forgotten() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    leader.learn(replace(OUTSIDE, replicas=(1, 2), former={}, version=8))
    assert list(leader.leadership.followers(0.0)) == [2]
    leader.learn(replace(OUTSIDE, version=9))
    assert leader.leadership.followers(0.0)[3].durable_end == -1


def test_followers_are_described() -> None:
    leader = Leader(OUTSIDE)
    leader.fetch(2, 10, durable=8)
    leader.now += 3.0
    assert leader.leadership.followers(leader.now) == {
        2: FollowerProgress(end=10, durable_end=8, lag_s=3.0, in_isr=True),
        3: FollowerProgress(end=-1, durable_end=-1, lag_s=3.0, in_isr=False),
    }
    leader.fetch(2, 10)
    assert leader.leadership.followers(leader.now)[2].lag_s == 0.0
    leader.fetch(2, 10, on="new disk")
    assert not leader.leadership.followers(leader.now)[2].in_isr
