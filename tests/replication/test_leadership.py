"""One leader in one epoch: what is committed, who is in sync, what it proposes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftlog.replication.leadership import (
    Diverged,
    FollowerProgress,
    OutOfRange,
    copied_without,
    divergence,
    lacks_committed,
    last_epoch,
    may_lose_committed,
    must_restart,
    truncation_point,
)
from raftlog.replication.partition_state import ChangeIsr, ChangeReplicas, PartitionState, apply
from raftlog.storage.segment import EpochCache, EpochStart
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


# -- following -------------------------------------------------------------------------------------
#
# Where a follower's log parts from the leader's: KIP-101, KIP-279 and KIP-595 by example.


def cache(*starts: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochStart(epoch, start) for epoch, start in starts)


LEADER = cache((1, 0), (3, 10), (6, 20))  # and its log ends at 30, in epoch 6


def asked(
    epoch: int, offset: int, epochs: EpochCache = LEADER, *, log_start: int = 0
) -> Diverged | OutOfRange | None:
    return divergence(
        epochs, log_end=30, log_start=log_start, last_epoch=epoch, fetch_offset=offset
    )


@pytest.mark.parametrize(
    ("epoch", "offset"), [(-1, 0), (1, 5), (1, 10), (3, 11), (3, 20), (6, 21), (6, 30)]
)
def test_a_prefix_does_not_diverge(epoch: int, offset: int) -> None:
    assert asked(epoch, offset) is None


@pytest.mark.parametrize(
    ("epoch", "offset", "answer"),
    [
        (1, 11, Diverged(1, 10)),  # wrote on in an epoch that had ended
        (3, 25, Diverged(3, 20)),
        (6, 31, Diverged(6, 30)),  # more than the leader has
        (2, 12, Diverged(1, 10)),  # an epoch that the leader never saw (KIP-279)
        (5, 15, Diverged(3, 20)),  # the same, and the follower is the shorter one
        (9, 30, Diverged(6, 30)),
    ],
)
def test_another_log_diverges_at_the_end_of_the_largest_common_epoch(
    epoch: int, offset: int, answer: Diverged
) -> None:
    assert asked(epoch, offset) == answer


@pytest.mark.parametrize(("epoch", "offset"), [(1, 9), (-1, 9), (-1, 0), (9, 9)])
def test_a_log_that_ends_below_the_leaders_start_begins_anew(epoch: int, offset: int) -> None:
    epochs = cache((3, 10), (6, 20))
    assert asked(epoch, offset, epochs, log_start=10) == OutOfRange(10)


def test_an_empty_log_may_begin_anywhere_in_the_leaders() -> None:
    assert asked(-1, 10, cache((3, 10), (6, 20)), log_start=10) is None
    assert asked(-1, 25) is None
    assert asked(-1, 30) is None
    assert asked(-1, 31) == OutOfRange(0)


def test_a_log_with_nothing_in_common_begins_anew() -> None:
    assert asked(2, 15, cache((3, 10), (6, 20)), log_start=10) == OutOfRange(10)


def test_what_is_common_may_lie_below_the_leaders_start() -> None:
    """Its epochs may be trimmed late: where they end below its start, there is nothing to keep."""
    assert asked(1, 15, LEADER, log_start=12) == OutOfRange(12)


def test_an_epoch_without_records_is_common_too() -> None:
    epochs = cache((1, 0), (4, 30))  # elected, and nothing written yet
    assert asked(1, 30, epochs) is None
    assert asked(4, 30, epochs) is None
    assert asked(3, 20, epochs) == Diverged(1, 30)


# -- the follower's side ---------------------------------------------------------------------------

FOLLOWER = cache((1, 0), (2, 8), (5, 18))  # and its log ends at 25


def point(diverged: Diverged, epochs: EpochCache = FOLLOWER, *, log_start: int = 0) -> int:
    return truncation_point(epochs, log_end=25, log_start=log_start, diverged=diverged)


@pytest.mark.parametrize(
    ("diverged", "offset"),
    [
        (Diverged(5, 22), 22),  # both know the epoch, the leader's ends first
        (Diverged(1, 10), 8),  # the follower's ends first
        (Diverged(1, 5), 5),
        (Diverged(4, 20), 18),  # the follower's largest one below is 2
        (Diverged(3, 12), 12),
    ],
)
def test_the_follower_cuts_to_the_common_part_of_both(diverged: Diverged, offset: int) -> None:
    assert point(diverged) == offset


def test_a_follower_that_knows_only_larger_epochs_keeps_nothing() -> None:
    epochs = cache((5, 10), (6, 20))
    assert point(Diverged(3, 15), epochs, log_start=10) == 10
    assert point(Diverged(3, 4), epochs, log_start=10) == 4


def test_what_a_follower_asks_with_is_the_epoch_of_its_last_batch() -> None:
    epochs = cache((1, 0), (3, 10), (6, 20), (7, 20))
    assert last_epoch(cache(), log_end=0) == -1
    assert last_epoch(cache((1, 0)), log_end=0) == -1  # an epoch, and nothing written
    assert last_epoch(epochs, log_end=10) == 1
    assert last_epoch(epochs, log_end=20) == 3  # not 6 or 7, which start right there
    assert last_epoch(epochs, log_end=21) == 7


# -- both, until they agree ------------------------------------------------------------------------

Log = list[int]  # the epoch of each record: one epoch has one leader, and so one record there


def epochs_of(log: Log) -> EpochCache:
    found = EpochCache()
    for offset, epoch in enumerate(log):
        found.assign(epoch, offset)
    return found


@st.composite
def diverged_logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two logs with a common beginning, then epochs of their own, or the end of one."""
    common = sorted(draw(st.lists(st.integers(1, 4), max_size=6)))
    first = (common[-1] if common else 0) + 1
    owner = draw(st.lists(st.booleans(), min_size=8, max_size=8))

    def tail(mine: bool) -> Log:
        own = [first + number for number, is_mine in enumerate(owner) if is_mine is mine]
        return sorted(draw(st.lists(st.sampled_from(own), max_size=6))) if own else []

    return common + tail(True), common + tail(False)


@given(logs=diverged_logs())
def test_rounds_of_truncation_end_at_the_common_prefix(logs: tuple[Log, Log]) -> None:
    leader, follower = logs[0], list(logs[1])
    common = 0
    while common < min(map(len, logs)) and leader[common] == follower[common]:
        common += 1
    epochs = epochs_of(leader)
    epochs.assign(20, len(leader))
    rounds = 0
    while True:
        own = epochs_of(follower)
        found = divergence(
            epochs,
            log_end=len(leader),
            log_start=0,
            last_epoch=last_epoch(own, log_end=len(follower)),
            fetch_offset=len(follower),
        )
        if found is None:
            break
        if isinstance(found, OutOfRange):
            follower.clear()
            continue
        cut = truncation_point(own, log_end=len(follower), log_start=0, diverged=found)
        assert common <= cut < len(follower)
        del follower[cut:]
        rounds += 1
    assert follower == leader[: len(follower)]
    assert len(follower) == common or len(follower) == len(logs[1])
    assert rounds <= len(set(logs[1])) + 1


# -- what is committed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_epoch", "unclean_epoch", "may"),
    [(5, -1, False), (-1, -1, False), (5, 6, True), (5, 5, False), (6, 5, False), (-1, 0, True)],
)
def test_committed_records_may_be_lost_only_to_a_later_unclean_election(
    last_epoch: int, unclean_epoch: int, may: bool
) -> None:
    assert may_lose_committed(last_epoch=last_epoch, unclean_epoch=unclean_epoch) is may


@pytest.mark.parametrize(
    ("differs", "lacks"),
    [
        (Diverged(3, 6), True),
        (Diverged(3, 7), False),
        (OutOfRange(6), True),
        (OutOfRange(7), False),
    ],
)
def test_a_leader_lacks_what_its_follower_knows_is_committed(
    differs: Diverged | OutOfRange, lacks: bool
) -> None:
    assert lacks_committed(differs, high_watermark=7) is lacks


# -- compacted logs --------------------------------------------------------------------------------


# -- tombstones ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_end", "copied_below", "removed_below", "restarts"),
    [
        (10, 0, 0, False),  # the leader has removed none
        (10, 0, 10, False),  # none that the follower has not received
        (10, 0, 11, True),
        (10, 10, 11, True),
        (10, 11, 11, False),  # its copy began when the leader had removed them
        (10, 20, 21, True),  # and has removed more since
        (0, 0, 1, True),  # also an empty log notes it first
    ],
)
def test_a_follower_restarts_that_ends_below_tombstones_which_its_leader_removed(
    log_end: int, copied_below: int, removed_below: int, restarts: bool
) -> None:
    found = must_restart(log_end=log_end, copied_below=copied_below, removed_below=removed_below)
    assert found is restarts


def test_a_copy_may_lack_what_its_leader_lacks_or_may_remove_next() -> None:
    assert copied_without(removed_below=5, clean_end=9) == 9
    assert copied_without(removed_below=7, clean_end=3) == 7


class Replica:
    """A log as a model: which offsets of one history are left of it."""

    def __init__(self) -> None:
        self.left: set[int] = set()
        self.end = self.clean_end = self.removed_below = 0
        self.copied_below, self.copied_in = 0, -1

    def compact(self, history: list[tuple[int, bool]], end: int, due: int) -> None:
        """A pass up to ``end`` that removes tombstones below ``due``, which is clean."""
        due = min(due, self.clean_end)
        end = max(min(end, self.end), self.clean_end)
        self.removed_below = max(self.removed_below, due)
        newest = {history[at][0]: at for at in sorted(self.left) if at < end}
        for at in sorted(self.left):
            key, is_tombstone = history[at]
            if at < end and (newest[key] > at or (is_tombstone and at < due)):
                self.left.discard(at)
        self.clean_end = end

    def fetch(self, leader: Replica, epoch: int, count: int) -> None:
        if must_restart(
            log_end=self.end,
            copied_below=self.copied_below if self.copied_in == epoch else 0,
            removed_below=leader.removed_below,
        ):
            lacks = copied_without(removed_below=leader.removed_below, clean_end=leader.clean_end)
            self.left.clear()
            self.end = self.clean_end = 0
            self.removed_below = self.copied_below = lacks
            self.copied_in = epoch
            return
        end = max(self.end, min(self.end + count, leader.end))
        self.left |= {at for at in leader.left if self.end <= at < end}
        self.end = end

    def truncate(self, end: int) -> None:
        self.left = {at for at in self.left if at < end}
        self.end, self.clean_end = end, min(self.clean_end, end)
        self.removed_below = min(self.removed_below, end)
        self.copied_in = -1

    def check(self, history: list[tuple[int, bool]]) -> None:
        """The newest record of each key is there, if the log ends above it; or that is a tombstone,
        and none of the key is."""
        newest = {key: at for at, (key, _) in enumerate(history)}
        found = {history[at][0]: at for at in sorted(self.left)}
        for key, at in newest.items():
            if at < self.end and found.get(key) != at:
                assert history[at][1], f"the newest record of key {key} is lost"
                assert key not in found, f"key {key} came back"


OTHERS = st.integers(0, 2)
STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("fetch"), OTHERS, st.sampled_from((1, 3, 100))),
    st.tuples(st.just("compact"), st.integers(-3, 2), st.sampled_from((0, 100))),
    st.tuples(st.sampled_from(("lead", "wipe", "truncate")), OTHERS, st.integers(1, 3)),
)


# The second leader has never compacted: what the first one had removed is copied from it.
CHANGES_OF_LEADER: list[tuple[str, int, Any]] = [
    ("lead", 2, 1),
    ("write", 0, False),
    ("compact", 2, 0),
    ("fetch", 1, 1),
    ("write", 0, True),
    ("compact", 2, 100),
    ("fetch", 1, 1),
    ("fetch", 0, 3),
    ("lead", 1, 1),
    ("fetch", 0, 1),
    ("lead", 2, 1),
    ("compact", 2, 100),
    ("fetch", 0, 1),
]


@given(st.lists(STEP, min_size=20, max_size=60))
@example(CHANGES_OF_LEADER)
@settings(max_examples=4 * settings().max_examples)
def test_no_deleted_key_comes_back_however_replicas_compact_and_copy(
    steps: list[tuple[str, int, Any]],
) -> None:
    """Without any clock: a tombstone is due as soon as its part is clean."""
    history: list[tuple[int, bool]] = []
    replicas = [Replica() for _ in range(3)]
    leader, epoch = replicas[0], 0
    for step, which, number in steps:
        replica = leader if which < 0 else replicas[which]
        if step == "write":
            history.append((which, number))
            leader.left.add(len(history) - 1)
            leader.end = len(history)
        elif step == "compact":
            replica.compact(history, 100, number)
        elif step == "lead" and replica.end == len(history):
            leader, epoch = replica, epoch + 1
        elif replica is leader:
            continue
        elif step == "fetch":
            replica.fetch(leader, epoch, number)
        elif step == "wipe":
            replicas[which] = Replica()
        elif step == "truncate":
            replica.truncate(max(replica.end - number, 0))
        for each in replicas:
            each.check(history)


# -- guards leading --------------------------------------------------------------------------------
#
# What a leader must not count, where no other test would notice that it does.


def test_a_lower_min_isr_that_is_only_proposed_commits_nothing() -> None:
    """Not even what is appended after it was proposed."""
    leader = Leader(state_of(isr=(1,), elr=(2,), former=(3,)))
    leader.proposed(min_isr=1)
    leader.append(5)
    assert leader.high_watermark == 4
    assert not leader.leadership.has_quorum


def test_a_fetch_that_comes_late_takes_nothing_back() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(2, 6)
    assert leader.leadership.followers(0.0)[2][:2] == (10, 10)
    leader.fetch(3, 9)
    assert leader.high_watermark == 9


def test_a_member_that_restarts_with_less_takes_no_committed_record_back() -> None:
    leader = Leader()
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.high_watermark == 10
    assert not leader.fetch(3, 6, boot=1)
    assert leader.high_watermark == 10


# -- isr proposals ---------------------------------------------------------------------------------
#
# What a leader proposes, one change at a time, and what it makes of each outcome.


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
