"""The named scenarios that one rule decides: an epoch lookup, a leader's books, one command.

Those that take a whole partition are in ``test_scenarios_pure``.
"""

from __future__ import annotations

import pytest

from raftlog.replication.leadership import (
    Diverged,
    OutOfRange,
    divergence,
    last_epoch,
    truncation_point,
)
from raftlog.replication.partition_state import Accepted, ChangeIsr, Elect, apply
from raftlog.storage.segment import EpochCache, EpochStart
from tests.replication.samples import Leader, accepted, disk, disks, reason, state_of


def epochs(*starts: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochStart(*start) for start in starts)


def test_s03_fast_failover_divergence() -> None:
    """KIP-279: the follower's epoch is one that the leader never saw, and nothing is as long."""
    leader, follower = epochs((1, 0), (3, 15)), epochs((1, 0), (2, 10))
    found = divergence(leader, log_end=20, log_start=0, last_epoch=2, fetch_offset=14)
    assert found == Diverged(1, 15)  # the leader's epoch 1 goes further than the follower's log
    cut = truncation_point(follower, log_end=14, log_start=0, diverged=Diverged(1, 15))
    assert cut == 10
    follower.cut(cut)
    asked = last_epoch(follower, log_end=cut)
    assert asked == 1
    assert divergence(leader, log_end=20, log_start=0, last_epoch=asked, fetch_offset=cut) is None


def test_s06_isr_expand_needs_epoch_start() -> None:
    """The new leader's watermark is a stale one: joining at it would let in one that lacks more."""
    leader = Leader(state_of(isr=(1, 2), former=(3,)), epoch_start=10, high_watermark=4)
    for end in (4, 9):
        leader.fetch(3, end)
        assert leader.review() is None
    leader.fetch(3, 10)
    assert leader.proposed().isr == disks((1, 2, 3))


@pytest.mark.parametrize("outcome", ["accepted", "rejected", "lost"])
def test_s07_maximal_isr(outcome: str) -> None:
    """An addition in flight counts, a removal does not, until the group has decided."""
    before = state_of(isr=(1, 2), former=(3,), min_isr=1)
    leader = Leader(before)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    leader.dead = {2}
    change = leader.proposed()
    assert change.isr == disks((1, 3))
    leader.append(5)
    for follower, watermark in ((2, 10), (3, 15)):  # only when both have it
        leader.fetch(follower, 15)
        assert leader.high_watermark == watermark
    leader.append(5)
    leader.leadership.proposal_done(change, {"accepted": True, "rejected": False}.get(outcome))
    leader.fetch(2, 20)
    assert leader.high_watermark == (20 if outcome == "rejected" else 15)
    if outcome != "rejected":
        leader.learn(accepted(apply(before, change)))
        assert leader.high_watermark == 15
        leader.fetch(3, 20)
        assert leader.high_watermark == 20


def test_s08_stale_partition_epoch_cas() -> None:
    state = state_of()
    late = ChangeIsr(state.version, state.leader_epoch, disks((1,)), 2)
    elected = accepted(apply(state, Elect(state.version, 2, disk(2))))
    assert "version" in reason(apply(elected, late))
    current = ChangeIsr(elected.version, state.leader_epoch, disks((1, 2)), 2)
    assert "leader epoch" in reason(apply(elected, current))


def test_s09_fenced_replica_join() -> None:
    leader = Leader(state_of(isr=(1, 2), former=(3,)))
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    leader.dead = {3}  # fenced, or shutting down: not live, although it fetches
    assert leader.review() is None
    leader.dead = set()
    assert leader.proposed().isr == disks((1, 2, 3))


def test_s10_reboot_aba() -> None:
    """Caught up, rebooted with an empty disk, and then the old addition is committed."""
    leader = Leader(state_of(isr=(1, 2), former=(3,), min_isr=1))
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    change = leader.proposed()
    leader.directories[3] = "new disk"
    leader.fetch(3, 0, on="new disk")
    leader.learn(accepted(apply(leader.leadership.state, change)))
    leader.append(5)
    leader.fetch(2, 15)
    leader.fetch(3, 15, on="new disk")
    assert leader.high_watermark == 10  # the member is the old disk, and that is gone
    assert leader.proposed().isr == {1: disk(1), 2: disk(2), 3: "new disk"}


def test_s15_empty_epoch_cache() -> None:
    """Epochs without records, and none at all: nobody asks the same for ever."""
    leader = epochs((4, 100))  # elected where its log begins, which holds nothing
    assert divergence(leader, log_end=100, log_start=100, last_epoch=-1, fetch_offset=100) is None
    for offset in (50, 100, 120):
        found = divergence(leader, log_end=100, log_start=100, last_epoch=3, fetch_offset=offset)
        assert found == OutOfRange(100)
    found = divergence(epochs((3, 90), (4, 100)), log_end=100, log_start=90,
                       last_epoch=3, fetch_offset=100)  # fmt: skip
    assert found is None


def test_s18_sparse_epoch_cache() -> None:
    """A leader that lost old epochs says where its log begins, never to cut to 0."""
    rebuilt = epochs((6, 40))
    found = divergence(rebuilt, log_end=60, log_start=40, last_epoch=5, fetch_offset=55)
    assert found == OutOfRange(40)
    follower = epochs((6, 40))  # and one that has lost them keeps nothing that it cannot vouch for
    cut = truncation_point(follower, log_end=55, log_start=40, diverged=Diverged(3, 50))
    assert cut == 40


def test_the_group_decides_between_two_that_compete() -> None:
    """An election and an ISR change for the same version: one wins, whichever comes first."""
    state = state_of()
    election = Elect(7, 2, disk(2))
    shrink = ChangeIsr(7, 5, disks((1, 3)), 2)
    for first, second in ((election, shrink), (shrink, election)):
        won = apply(state, first)
        assert isinstance(won, Accepted)
        assert "version" in reason(apply(won.state, second))
