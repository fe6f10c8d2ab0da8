"""Histories of a cluster: which of two is the continuation of the other."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.protocol.peer import HISTORY_CHARS_MAX
from raftlog.replication.histories import ID_CHARS, Relation, decode, encode, extended, relation
from raftlog.replication.leadership import (
    Diverged,
    OutOfRange,
    divergence,
    last_epoch,
    truncation_point,
)
from raftlog.replication.partition_state import Accepted, ChangeIsr, ChangeReplicas, Elect, apply
from raftlog.storage.segment import EpochCache, EpochStart
from tests.replication.partition_mutants import (
    ActsOnOldStates,
    CountsOldFetches,
    CutsToWatermark,
    LeadsOnAfterRestart,
    ObeysOldLeaders,
)
from tests.replication.partition_world import LAG_MAX_S, World
from tests.replication.samples import Leader, accepted, disk, disks, reason, state_of


@pytest.mark.parametrize(
    ("mine", "theirs", "how"),
    [
        ("", "", "same"),
        ("", "a", "behind"),
        ("a", "a,b", "behind"),
        ("a", "a,b,c", "behind"),
        ("b", "b,c", "behind"),  # the beginning is no longer kept
        ("a,b", "a,b", "same"),
        ("a", "b", "diverged"),
        ("a,b", "a,c", "diverged"),
        ("a,b", "a,c,d", "diverged"),
    ],
)
def test_one_is_the_continuation_of_the_other_or_they_have_diverged(
    mine: str, theirs: str, how: Relation
) -> None:
    other: dict[Relation, Relation] = {"behind": "ahead", "same": "same", "diverged": "diverged"}
    assert relation(decode(mine), decode(theirs)) == how
    assert relation(decode(theirs), decode(mine)) == other[how]


def test_the_newest_recoveries_are_kept_and_fit_an_identity() -> None:
    history: tuple[str, ...] = ()
    for number in range(limits.RECOVERIES_KEPT + 2):
        history = extended(history, f"{number:0{ID_CHARS}x}")
    assert len(history) == limits.RECOVERIES_KEPT
    assert int(history[-1], 16) == limits.RECOVERIES_KEPT + 1
    assert len(encode(history)) < HISTORY_CHARS_MAX
    assert decode(encode(history)) == history


# -- scenarios pure --------------------------------------------------------------------------------
#
# The named scenarios of replication, each told once: those that need no disk, socket or clock.
#
# Where a scenario is about a guard, it is told to a world without that guard too, and breaks there.


def agree(world: World) -> None:
    """All that is proposed is decided, and everybody who is up hears of it."""
    while world.proposals:
        world.decide(0)
    while world.outcomes:
        world.tell_outcome(0)
    for broker in world.nodes:
        world.hear(broker, skip=len(world.history))


def copy_all(world: World) -> None:
    """Followers have, and acknowledge, all that the leader has; it knows, and they know that."""
    for _ in range(3):
        for broker in world.nodes:
            world.sync(broker)
            for _ in range(5):
                world.exchange(broker)


def elect(world: World, leader: int) -> None:
    """The others think the present leader dead; ``leader`` is its own arbiter."""
    world.suspected = {world.state.leader or 0}
    world.elect(leader)
    agree(world)
    world.suspected = set()
    assert world.state.leader == leader


def values(world: World, broker: int) -> list[int]:
    return [entry.value for entry in world.nodes[broker].log]


@pytest.mark.parametrize("make_world", [World, CutsToWatermark])
def test_s01_hw_truncation_loss(make_world: type[World]) -> None:
    """A follower that starts again keeps what it has acknowledged, whatever watermark it knows."""
    world = make_world(2, 1, 2)
    world.append(1, 2)
    world.sync(1)
    world.exchange(2)
    world.sync(2)
    world.fetch(2)
    world.deliver(0)  # the leader commits; its answer is on its way
    assert world.nodes[1].high_watermark == 2
    assert world.nodes[2].high_watermark == 0
    world.crash(2)
    world.restart(2)
    world.crash(1)
    if make_world is CutsToWatermark:
        with pytest.raises(AssertionError, match="I4"):
            world.check()
        assert values(world, 2) == []
        return
    elect(world, 2)
    world.check()
    assert values(world, 2) == [1, 2]


def test_s02_hw_divergence_power() -> None:
    """Both lose what they had not synced; the offsets are used again for other records."""
    world = World(2, 1, 1)
    world.append(1, 2)
    copy_all(world)
    world.append(1, 3)
    world.exchange(2)
    world.power_cut(1, keep=2)  # two of the three reach the disk by chance
    world.power_cut(2)
    world.restart(2)
    elect(world, 2)
    world.append(2, 1)
    world.restart(1)
    agree(world)
    assert (values(world, 1), values(world, 2)) == ([1, 2, 3, 4], [1, 2, 6])
    copy_all(world)
    world.check()
    assert values(world, 1) == values(world, 2) == [1, 2, 6]
    assert world.nodes[2].high_watermark == 3


def test_s03_two_elections_without_records() -> None:
    world = World(3, 0, 1)
    world.append(1, 1)
    copy_all(world)
    world.append(1, 2)
    elect(world, 2)
    elect(world, 3)
    elect(world, 1)
    world.append(1, 1)
    copy_all(world)
    world.check()
    assert values(world, 1) == values(world, 2) == values(world, 3) == [1, 2, 3, 4]


@pytest.mark.parametrize("make_world", [World, CountsOldFetches])
def test_s04_fetch_fencing(make_world: type[World]) -> None:
    """What a follower had in an old epoch, it may have cut since."""
    world = make_world(3, 0, 1)
    world.append(1, 2)
    world.sync(1)
    world.exchange(2)
    world.sync(2)
    world.fetch(2)  # it has two records, durably; and this is still on its way
    (late,) = world.messages
    world.messages.clear()
    elect(world, 3)  # which has none
    world.exchange(2)
    assert values(world, 2) == []
    elect(world, 1)
    for _ in range(2):
        world.exchange(3)
        world.sync(3)
    world.exchange(3)
    if make_world is CountsOldFetches:
        with pytest.raises(AssertionError, match="I7"):
            world.receive(late)
    else:
        world.receive(late)
        assert world.nodes[1].high_watermark == 0
        world.exchange(2)
        world.sync(2)
        world.exchange(2)
        assert world.nodes[1].high_watermark == 2
        world.check()


@pytest.mark.parametrize("make_world", [World, ObeysOldLeaders])
def test_s05_truncation_fenced(make_world: type[World]) -> None:
    """An old leader's order to cut comes when the records in question are committed."""
    world = make_world(3, 0, 2)
    world.append(1, 1)
    for broker in (1, 2):
        world.exchange(broker)
        world.sync(broker)
    elect(world, 3)  # it has no record
    world.append(3, 1)
    world.fetch(2)
    (fetch,) = world.messages
    world.messages.clear()
    world.receive(fetch)
    (order,) = world.messages  # to cut its log to nothing
    world.messages.clear()
    elect(world, 1)
    copy_all(world)
    assert world.nodes[1].high_watermark == 1
    if make_world is ObeysOldLeaders:
        world.receive(order)
        with pytest.raises(AssertionError, match="I4"):
            world.check()
    else:
        world.receive(order)
        world.check()
        assert values(world, 2) == [1]


def test_s10_an_emptied_disk_is_not_elected_for_the_old_one() -> None:
    world = World(2, 1, 1)
    world.append(1, 2)
    copy_all(world)
    world.wipe(2)
    world.restart(2)
    world.crash(1)
    for registered in (False, True):  # the cluster may know of the new disk, or not yet
        if registered:
            world.register(2)
        world.elect(3)
        agree(world)
        assert world.nodes[2].leadership is None
    world.restart(1)
    world.elect(3)
    agree(world)
    copy_all(world)
    world.check()
    assert world.state.leader == 1
    assert values(world, 2) == [1, 2]


def test_s11_last_replica_standing() -> None:
    """ISR 3, 2, 1: who left last is eligible, and nobody cuts to a log that lost its tail."""
    world = World(3, 2, 2)
    world.append(1, 1)
    copy_all(world)
    for dead in (3, 2):
        world.crash(dead)
        world.append(1, 1)
        copy_all(world)
        world.review_isr(1)
        agree(world)
    assert (world.state.isr, world.state.elr, world.state.former) == (
        disks((1,)),
        disks((2,)),
        disks((3,)),
    )
    assert world.nodes[1].high_watermark == 2  # frozen: the third record is on one disk only
    world.power_cut(1)
    world.restart(3)
    world.elect(5)
    agree(world)
    assert world.nodes[3].leadership is None  # it lacks what was committed without it
    world.restart(2)
    world.elect(5)
    agree(world)
    assert (world.state.leader, world.state.isr, world.state.elr) == (2, disks((2,)), disks((1,)))
    copy_all(world)
    world.review_isr(2)
    agree(world)
    world.append(2, 1)
    copy_all(world)
    world.check()
    assert world.state.elr == {}
    assert values(world, 2) == [1, 2, 4]


def test_s12_unclean_member_excluded() -> None:
    """Without fsync for each record, an unclean stop makes it another copy: see ``wipe``."""
    world = World(2, 1, 1)
    world.append(1, 3)
    copy_all(world)
    world.wipe(2)
    world.nodes[2].log, world.nodes[2].durable = world.nodes[1].log[:2], 2  # most of it is there
    world.nodes[2].epochs.assign(0, 0)
    world.restart(2)
    world.register(2)
    world.review_isr(1)
    agree(world)
    assert world.state.isr == disks((1,))
    world.append(1, 1)
    copy_all(world)
    world.review_isr(1)
    agree(world)
    assert world.state.isr == {1: disk(1), 2: world.nodes[2].directory_id}
    world.check()


def test_s13_zombie_leader_min_isr_1() -> None:
    """Stopped past every timeout and started again: it cannot shrink the ISR to itself."""
    world = World(2, 1, 1)
    world.suspected = {1}
    world.elect(2)
    while world.proposals:
        world.decide(0)
    for broker in (2, 3):
        world.hear(broker)
    world.suspected = {2}
    world.append(1, 1)
    world.sync(1)
    world.review_isr(1)
    world.decide(0)
    world.tell_outcome(0)
    world.tell_outcome(0)
    zombie = world.nodes[1]
    assert zombie.leadership is not None
    assert zombie.high_watermark == 0
    agree(world)
    copy_all(world)
    world.check()
    assert values(world, 1) == []


def test_s15_a_follower_behind_the_leaders_start_catches_up() -> None:
    world = World(2, 0, 1)
    world.append(1, 1)
    copy_all(world)
    world.crash(2)
    world.review_isr(1)
    agree(world)
    world.append(1, 4)
    world.sync(1)
    world.trim(1, 4)
    assert world.nodes[1].start == world.nodes[1].end == 5
    world.crash(1)
    world.restart(1)
    world.elect(1)
    agree(world)
    world.restart(2)
    agree(world)
    copy_all(world)
    assert (world.nodes[2].start, world.nodes[2].end) == (5, 5)
    world.append(1, 1)
    copy_all(world)
    world.check()
    assert values(world, 1) == values(world, 2) == [6]


def test_s16_last_fetched_epoch_after_empty_fetch() -> None:
    world = World(2, 0, 2)
    world.append(1, 2)
    copy_all(world)
    before = world.nodes[2].position
    for _ in range(3):
        world.exchange(2)
    assert world.nodes[2].position == before == (0, 2)


@pytest.mark.parametrize("make_world", [World, LeadsOnAfterRestart])
def test_s17_same_epoch_after_restart(make_world: type[World]) -> None:
    """A leader that lost what it had not synced would write other records into the same epoch."""
    world = make_world(2, 0, 1)
    world.append(1, 1)
    world.exchange(2)
    world.power_cut(1)

    def start_again() -> None:
        world.restart(1)
        world.elect(1)
        agree(world)
        world.append(1, 1)
        copy_all(world)

    if make_world is LeadsOnAfterRestart:
        with pytest.raises(AssertionError, match="I1"):
            start_again()
        return
    start_again()
    world.check()
    assert world.state.leader_epoch == 1
    assert values(world, 1) == values(world, 2) == [2]


def test_s20_remove_readd_one_batch() -> None:
    """Dropped, emptied and added again between two looks of the leader: what it said is void."""
    world = World(3, 1, 1)
    world.append(1, 2)
    copy_all(world)
    world.crash(3)
    world.review_isr(1)
    agree(world)
    world.restart(3)
    agree(world)
    copy_all(world)
    world.sync(3)
    world.fetch(3)  # it has everything; and this is still on its way
    for replicas, witnesses in (((1, 2, 4), (3,)), ((1, 2, 3), (4,))):
        world.propose(ChangeReplicas(world.state.version, replicas, witnesses))
        world.decide(0)
        world.hear(3)
    assert values(world, 3) == []
    world.hear(1, skip=1)
    world.deliver(0)
    world.review_isr(1)
    agree(world)
    assert world.state.isr == disks((1, 2))
    copy_all(world)
    world.review_isr(1)
    agree(world)
    world.check()
    assert world.state.isr == disks((1, 2, 3))
    assert values(world, 3) == [1, 2]


def test_s23_any_one_of_three_brokers_may_be_gone_with_two_copies() -> None:
    """The witness holds no record and is never asked to lead."""
    for gone in (1, 2, 3):
        world = World(2, 1, 1)
        world.append(1, 2)
        copy_all(world)
        world.crash(gone)
        for arbiter in {1, 2, 3} - {gone}:
            world.elect(arbiter)
        agree(world)
        leader = world.state.leader
        assert leader is not None
        assert world.nodes[leader].leadership is not None
        world.review_isr(leader)
        agree(world)
        world.append(leader, 1)
        world.sync(leader)
        copy_all(world)
        world.check()
        assert world.nodes[leader].high_watermark == 3
        assert world.nodes[3].log == []


def test_s24_metadata_commit_before_use() -> None:
    """What was only proposed has no effect but to hold the watermark back, and leaves no trace."""
    world = World(3, 0, 2)
    world.append(1, 2)
    copy_all(world)
    world.crash(3)
    world.review_isr(1)
    assert world.nodes[1].leadership is not None
    assert world.nodes[1].leadership.state.isr == disks((1, 2, 3))
    world.append(1, 1)
    copy_all(world)
    assert world.nodes[1].high_watermark == 2
    world.lose_proposal(0)
    world.tell_outcome(0)
    assert world.nodes[1].leadership.maximal_isr() == set(disks((1, 2, 3)).items())
    world.review_isr(1)
    agree(world)
    assert world.nodes[1].high_watermark == 3


@pytest.mark.parametrize("make_world", [World, ActsOnOldStates])
def test_s24_nobody_acts_on_an_older_state_after_a_restart(make_world: type[World]) -> None:
    """Raft's commit index is not durable: a restarted broker sees old states go by once more.

    By one of them it would follow a deposed leader, and cut what is committed since.
    """
    world = make_world(3, 0, 1)
    world.append(1, 1)
    world.exchange(2)
    world.sync(2)
    elect(world, 3)  # it has no record
    in_epoch_1 = len(world.history)
    world.suspected = {3}
    world.elect(1)
    world.decide(0)
    for broker in (1, 2):
        world.hear(broker)
    world.review_isr(1)
    world.decide(0)
    for broker in (1, 2):
        world.hear(broker)
    copy_all(world)
    assert world.state.isr == disks((1, 2))
    assert world.nodes[1].high_watermark == 1
    world.crash(2)
    world.restart(2, forgets=len(world.history) - in_epoch_1)
    world.exchange(2)
    if make_world is ActsOnOldStates:
        with pytest.raises(AssertionError, match="I4"):
            world.check()
    else:
        world.check()
        assert values(world, 2) == [1]


def test_a_lost_copy_of_a_member_is_made_again_and_counts_from_then_on() -> None:
    """P6: a bad batch in one copy; what that copy acknowledged is on its way and void."""
    world = World(3, 0, 2)
    world.append(1, 2)
    copy_all(world)
    world.fetch(2)
    world.damage(2)
    world.give_up(2)
    assert world.nodes[2].is_damaged
    agree(world)
    assert not world.nodes[2].is_damaged
    assert (world.state.isr, world.state.leader_epoch) == (disks((1, 3)), 1)
    world.deliver(0)
    world.review_isr(1)
    assert world.proposals == []
    copy_all(world)
    world.review_isr(1)
    agree(world)
    world.check()
    assert world.state.isr == disks((1, 2, 3))
    assert values(world, 2) == [1, 2]


def test_a_slow_follower_does_not_hold_up_the_others_for_long() -> None:
    """S36, as far as it is about decisions: it leaves after ``lag_max_s``."""
    world = World(3, 0, 2)
    world.append(1, 2)
    for broker in (1, 2):
        world.exchange(broker)
        world.sync(broker)
        world.exchange(broker)
    assert world.nodes[1].high_watermark == 0
    world.review_isr(1, LAG_MAX_S + 1)
    agree(world)
    assert world.state.isr == disks((1, 2))
    assert world.nodes[1].high_watermark == 2


# -- scenarios rules -------------------------------------------------------------------------------
#
# The named scenarios that one rule decides: an epoch lookup, a leader's books, one command.
#
# Those that take a whole partition are in ``test_scenarios_pure``.


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
