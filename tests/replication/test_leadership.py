"""One leader in one epoch: what is committed, who is in sync, what it proposes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.replication.partition_state import ChangeIsr, PartitionState, apply
from tests.replication.samples import LAG_MAX_S, Leader, accepted, disk, disks, state_of

ISR_OF_ONE = state_of(isr=(1,), former=(2, 3), min_isr=1)


def after(change: ChangeIsr, state: PartitionState) -> PartitionState:
    return accepted(apply(state, change))


# -- the high watermark ----------------------------------------------------------------------------


def test_the_high_watermark_is_the_least_durable_end_over_the_isr() -> None:
    leader = Leader()
    assert not leader.fetch(2, 9)
    assert leader.high_watermark == 4
    assert leader.fetch(3, 7)
    assert leader.high_watermark == 7
    assert leader.fetch(3, 10)
    assert leader.high_watermark == 9


def test_the_last_broker_that_has_a_batch_advances_the_high_watermark() -> None:
    leader = Leader(durable_end=5)
    last = [leader.leadership.advanced_by]
    for follower, durable in ((2, 5), (3, 5), (3, 10), (2, 10)):
        leader.fetch(follower, 10, durable=durable)
        last.append(leader.leadership.advanced_by)
    assert leader.leadership.on_local(log_end=10, durable_end=10)
    assert [*last, leader.leadership.advanced_by] == [1, 1, 3, 3, 3, 1]
    leader.fetch(2, 10)
    assert leader.leadership.advanced_by == 1


def test_what_a_follower_said_in_an_older_epoch_is_not_known() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    again = Leader(replace(leader.leadership.state, leader_epoch=6, version=8))
    assert again.high_watermark == 4
    assert again.leadership.followers(0.0)[2].end == -1


def test_only_what_is_durable_counts() -> None:
    leader = Leader()
    leader.fetch(2, 10, durable=6)
    leader.fetch(3, 10)
    assert leader.high_watermark == 6


def test_the_leaders_own_disk_counts_like_any_other() -> None:
    leader = Leader(durable_end=5)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.high_watermark == 5
    assert not leader.leadership.on_local(log_end=12, durable_end=5)
    assert leader.leadership.on_local(log_end=12, durable_end=8)
    assert leader.high_watermark == 8


def test_a_leader_alone_commits_by_its_own_disk() -> None:
    leader = Leader(ISR_OF_ONE)
    assert leader.high_watermark == 10
    assert leader.leadership.on_local(log_end=15, durable_end=12)
    assert leader.high_watermark == 12


def test_the_high_watermark_never_goes_back() -> None:
    leader = Leader(state_of(min_isr=1), high_watermark=8)
    leader.fetch(2, 5)
    leader.fetch(3, 5)
    assert leader.high_watermark == 8


def test_a_late_or_repeated_fetch_changes_nothing() -> None:
    leader = Leader()
    leader.fetch(3, 10)
    leader.fetch(2, 9)
    assert not leader.fetch(2, 6)
    leader.append(1)
    assert leader.high_watermark == 9


def test_the_high_watermark_is_frozen_below_min_isr() -> None:
    leader = Leader(state_of(isr=(1,), elr=(2,), former=(3,)))
    leader.append(5)
    assert leader.high_watermark == 4
    assert not leader.leadership.has_quorum
    leader.fetch(2, 15)
    leader.learn(after(leader.proposed(), leader.leadership.state))
    assert leader.leadership.has_quorum
    assert leader.high_watermark == 15


def test_a_watermark_beyond_the_log_is_cut_to_its_end() -> None:
    """An unclean election, or ``flush.policy=os``: the log may have lost what was committed."""
    assert Leader(high_watermark=30).high_watermark == 10


@pytest.mark.parametrize(("end", "durable"), [(11, 3), (9, 10), (11, 11), (5, -1), (-1, -1)])
def test_a_fetch_that_claims_too_much_is_refused_and_counted(end: int, durable: int) -> None:
    leader = Leader()
    leader.fetch(3, 10)
    assert not leader.fetch(2, end, durable)
    assert leader.leadership.refused == 1
    assert leader.leadership.followers(0.0)[2].end == -1
    assert leader.high_watermark == 4


@pytest.mark.parametrize("stranger", [1, 4, 9])
def test_a_fetch_of_no_follower_changes_nothing(stranger: int) -> None:
    """Itself, a witness (I10), and a broker that has no part in the partition."""
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    leader.append(5)
    assert not leader.fetch(stranger, 15)
    assert stranger not in leader.leadership.followers(0.0)


def test_it_is_ready_when_the_watermark_has_reached_the_start_of_its_epoch() -> None:
    leader = Leader()
    leader.append(5)
    leader.fetch(2, 12)
    leader.fetch(3, 9)
    assert not leader.leadership.is_ready
    leader.fetch(3, 10)
    assert leader.leadership.is_ready


# -- the log's start -------------------------------------------------------------------------------


def test_a_start_is_committed_when_every_member_of_the_isr_starts_there() -> None:
    leader = Leader()
    leader.leadership.on_local_start(6)
    assert leader.leadership.committed_start == -1, "members may start anywhere"
    leader.fetch(2, 10, log_start=6)
    leader.fetch(3, 10, log_start=3)
    assert leader.leadership.committed_start == 3
    leader.fetch(3, 10, log_start=8)
    assert leader.leadership.committed_start == 6
    leader.fetch(3, 10, log_start=2)
    assert leader.leadership.committed_start == 6


def test_a_leader_alone_commits_its_own_start() -> None:
    leader = Leader(ISR_OF_ONE, log_start=5)
    assert leader.leadership.committed_start == 5
    leader.leadership.on_local_start(7)
    assert leader.leadership.committed_start == 7


def test_no_start_is_committed_below_min_isr() -> None:
    """Members of the ELR may lead, and are not asked."""
    leader = Leader(state_of(isr=(1,), elr=(2,), former=(3,)), log_start=5)
    assert leader.leadership.committed_start == -1


def test_a_member_that_has_left_is_not_waited_for() -> None:
    leader = Leader(log_start=6)
    leader.fetch(2, 10, log_start=6)
    assert leader.leadership.committed_start == -1
    leader.dead.add(3)
    leader.learn(after(leader.proposed(), leader.leadership.state))
    assert leader.leadership.committed_start == 6


def test_a_follower_joins_when_its_log_starts_where_an_earlier_leaders_may_have() -> None:
    leader = Leader(state_of(isr=(1, 2), former=(3,)), log_start=6)
    leader.fetch(3, 10, log_start=5)
    assert leader.review() is None
    leader.fetch(3, 10, log_start=6)
    assert 3 in leader.proposed().isr


# -- directories -----------------------------------------------------------------------------------


def test_another_disk_of_a_member_does_not_move_the_watermark() -> None:
    leader = Leader()
    leader.fetch(3, 10)
    leader.fetch(2, 10, on="new disk")
    assert leader.high_watermark == 4


def test_what_was_said_about_the_old_disk_does_not_count_for_the_new_one() -> None:
    leader = Leader(state_of(isr=(1, 3), former=(2,)))
    leader.fetch(2, 10)
    leader.fetch(2, 0, on="new disk")
    leader.directories[2] = "new disk"
    assert leader.review() is None
    leader.fetch(2, 10, on="new disk")
    assert leader.proposed().isr == {1: disk(1), 2: "new disk", 3: disk(3)}


def test_a_member_that_fetches_with_another_disk_leaves_at_once() -> None:
    leader = Leader()
    leader.fetch(2, 10, on="new disk")
    assert leader.proposed().isr == disks((1, 3))


def test_a_member_that_lacks_what_is_committed_leaves_as_one_that_is_lost() -> None:
    leader = Leader(high_watermark=8)
    leader.fetch(3, 8)
    assert leader.review() is None, "broker 2 has said nothing yet"
    leader.fetch(2, 10, durable=7)
    change = leader.proposed()
    assert change.isr == disks((1, 3))
    assert change.lost == (2,)
    leader.fetch(2, 10)
    again = Leader(after(change, leader.leadership.state), high_watermark=8)
    assert again.leadership.state.elr == {}
    again.fetch(2, 10)
    assert again.proposed().isr == disks((1, 2, 3))


def test_what_a_member_said_before_does_not_make_it_lost() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    leader.fetch(2, 3)
    assert leader.high_watermark == 10
    assert leader.review() is None


def test_a_member_with_another_registered_disk_leaves_at_once() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.directories[2] = "new disk"
    assert leader.proposed().isr == disks((1, 3))


# -- leaving ---------------------------------------------------------------------------------------


def test_a_member_that_is_dead_leaves_at_once() -> None:
    leader = Leader()
    leader.dead = {3}
    assert leader.proposed() == ChangeIsr(7, 5, disks((1, 2)), 2)


def test_a_member_that_lags_for_too_long_leaves() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 10)
    leader.append(5)
    leader.fetch(2, 15)
    leader.now += LAG_MAX_S
    assert leader.review() is None
    leader.now += 0.1
    assert leader.proposed().isr == disks((1, 2))


def test_a_member_that_has_not_fetched_in_this_epoch_has_the_same_time() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.now += LAG_MAX_S
    assert leader.review() is None
    leader.now += 0.1
    assert leader.proposed().isr == disks((1, 2))


def test_a_member_that_is_always_a_little_behind_stays() -> None:
    """It was caught up with the log as it was at the fetch before."""
    leader = Leader()
    leader.fetch(3, 10)
    for _ in range(50):
        end = leader.leadership.log_end
        leader.append(5)
        leader.now += 1.0
        leader.fetch(2, end)
        leader.fetch(3, leader.leadership.log_end)
        assert leader.review() is None


def test_a_member_whose_disk_hangs_leaves_although_it_fetches() -> None:
    """S36: or nothing would be committed for ever."""
    leader = Leader()
    leader.fetch(3, 10)
    while leader.review() is None:
        assert leader.now < 100.0 + LAG_MAX_S + 1.0
        leader.append(5)
        leader.now += 1.0
        leader.fetch(2, leader.leadership.log_end, durable=10)
        leader.fetch(3, leader.leadership.log_end)
    change = leader.leadership.maximal_isr() - set(disks((1, 3)).items())
    assert change == {(2, disk(2))}


def test_a_member_that_has_everything_need_not_say_so_again() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 10)
    for _ in range(10):
        leader.now += LAG_MAX_S
        assert leader.review() is None
    leader.append(1)
    leader.now += LAG_MAX_S
    assert leader.review() is None


def test_a_member_that_joined_has_time_to_catch_up() -> None:
    """It has the high watermark, and may have lacked the newest records for long."""
    leader = Leader(OUTSIDE)
    leader.leadership.on_local(log_end=100, durable_end=60)
    leader.now += 3 * LAG_MAX_S
    leader.fetch(2, 100)
    leader.fetch(3, 60)
    assert leader.high_watermark == 60
    leader.learn(after(leader.proposed(), OUTSIDE))
    leader.now += LAG_MAX_S
    leader.fetch(2, 100)
    assert leader.review() is None
    leader.now += 0.1
    leader.fetch(2, 100)
    assert leader.proposed().isr == disks((1, 2))


def test_the_leader_itself_never_leaves() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 10)
    leader.dead = {1, 2, 3}
    leader.directories[1] = "new disk"
    assert leader.proposed().isr == disks((1,))


# -- joining ---------------------------------------------------------------------------------------

OUTSIDE = state_of(isr=(1, 2), former=(3,))


def caught_up(**at: int) -> Leader:
    leader = Leader(OUTSIDE, **at)
    leader.fetch(2, 10)
    return leader


def test_a_follower_that_has_the_watermark_and_the_epochs_start_joins() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    assert leader.proposed() == ChangeIsr(7, 5, disks((1, 2, 3)), 2)


def test_a_follower_below_the_watermark_stays_out() -> None:
    leader = caught_up(epoch_start=5)
    leader.fetch(3, 9)
    assert leader.high_watermark == 10
    assert leader.review() is None


def test_a_follower_below_the_epochs_start_stays_out() -> None:
    leader = Leader(OUTSIDE)
    leader.fetch(3, 9)
    assert leader.high_watermark == 4
    assert leader.review() is None


def test_what_is_not_durable_does_not_let_a_follower_join() -> None:
    leader = caught_up()
    leader.fetch(3, 10, durable=9)
    assert leader.review() is None


def test_one_that_left_joins_again_when_it_has_what_the_leader_had_then() -> None:
    """Both followers' disks let nothing grow, and each holds the watermark back for the other."""
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    leader.append(5)
    state = after(ChangeIsr(7, 5, disks((1, 3)), 2), leader.leadership.state)
    leader.learn(state)
    leader.fetch(2, 15, 14)
    assert leader.high_watermark == 10
    assert leader.review() is None
    leader.append(5)
    leader.fetch(2, 15)
    assert leader.proposed().isr == disks((1, 2, 3))


def test_what_an_earlier_run_said_does_not_let_a_follower_join() -> None:
    """Its files may have vanished since."""
    leader = caught_up()
    leader.fetch(3, 10)
    leader.boots[3] = 1
    assert leader.review() is None
    leader.fetch(3, 10, boot=1)
    assert leader.proposed().isr == disks((1, 2, 3))


def test_a_dead_follower_does_not_join() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    leader.dead = {3}
    assert leader.review() is None


@pytest.mark.parametrize("registered", ["new disk", None])
def test_a_follower_on_a_disk_that_is_not_registered_does_not_join(registered: str | None) -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    if registered is None:
        del leader.directories[3]
    else:
        leader.directories[3] = registered
    assert leader.review() is None


def test_some_leave_and_others_join_in_one_step() -> None:
    leader = caught_up()
    leader.fetch(3, 10)
    leader.dead = {2}
    assert leader.proposed().isr == disks((1, 3))


def test_a_member_with_a_new_disk_leaves_and_joins_in_one_step() -> None:
    """Its old disk holds the watermark where it is, so that is where the new one has to be."""
    leader = Leader(high_watermark=10)
    leader.fetch(3, 10)
    leader.directories[2] = "new disk"
    leader.fetch(2, 10, on="new disk")
    assert leader.proposed().isr == {1: disk(1), 2: "new disk", 3: disk(3)}


# -- a leader whose disk is slower than the others' ------------------------------------------------


def test_a_leader_trails_by_the_time_since_it_had_what_all_others_had() -> None:
    leader = Leader(durable_end=10)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.leadership.trails_s(leader.now) == 0
    leader.leadership.on_local(log_end=20, durable_end=10)
    leader.fetch(2, 20)
    leader.now += 3
    assert leader.leadership.trails_s(leader.now) == 0, "broker 3 has no more than it"
    leader.fetch(3, 15)
    assert leader.leadership.trails_s(leader.now) == 0, "since now"
    leader.now += 4
    assert leader.leadership.trails_s(leader.now) == 4
    leader.leadership.on_local(log_end=20, durable_end=15)
    assert leader.leadership.trails_s(leader.now) == 0


def test_a_leader_whose_disk_is_a_little_slower_does_not_trail_for_ever() -> None:
    leader = Leader(durable_end=10)
    for end in range(20, 200, 10):
        leader.fetch(2, end - 10)
        leader.fetch(3, end - 10)
        leader.leadership.on_local(log_end=end, durable_end=end - 20 if end > 20 else 10)
        leader.fetch(2, end)
        leader.fetch(3, end)
        leader.now += 1
        assert leader.leadership.trails_s(leader.now) <= 4, "twice what it is slower, at most"


def test_a_leader_alone_in_the_isr_trails_nobody() -> None:
    leader = Leader(ISR_OF_ONE, durable_end=5)
    leader.now += 100
    assert leader.leadership.trails_s(leader.now) == 0


# -- a follower that has lost what it acknowledged -------------------------------------------------


def test_a_new_run_of_a_follower_counts_by_what_its_disk_holds() -> None:
    """The run before it had acknowledged more: a power cut, and a bit that flipped."""
    leader = Leader(state_of((1, 2), (), min_isr=1, isr=(1, 2)))
    leader.fetch(2, 10, boot=1)
    assert leader.high_watermark == 10
    leader.append(5)
    leader.fetch(2, 9, boot=2)
    leader.fetch(2, 15, boot=1)  # late
    assert leader.high_watermark == 10
    assert leader.leadership.has_lost(2)


@pytest.mark.parametrize("boot", [1, 2])
def test_a_member_that_holds_less_than_it_acknowledged_leaves_without_being_eligible(
    boot: int,
) -> None:
    leader = Leader(state_of((1, 2, 3), (), min_isr=3, isr=(1, 2, 3)), high_watermark=8)
    if boot == 2:
        leader.fetch(2, 10, boot=1)
    leader.fetch(2, 7 if boot == 1 else 9, boot=boot)
    leader.fetch(3, 8, boot=1)
    change = leader.proposed()
    assert (change.isr, change.lost) == (disks((1, 3)), (2,))
    state = accepted(apply(leader.leadership.state, change))
    assert (2 in state.elr, state.leader_epoch) == (False, 6)


def test_a_member_that_holds_all_it_acknowledged_stays_after_a_restart() -> None:
    leader = Leader(state_of((1, 2), (), min_isr=1, isr=(1, 2)))
    leader.fetch(2, 10, boot=1)
    leader.fetch(2, 10, boot=2)
    assert not leader.leadership.has_lost(2)
    assert leader.review() is None
