"""The steps by which a damaged copy is given up: at no moment may it be elected, or be counted."""

from __future__ import annotations

from dataclasses import replace

from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    Command,
    Elect,
    PartitionState,
    apply,
)
from raftlog.server.cluster.elections import CopyChange
from raftlog.server.cluster.replicas import next_step
from tests.server.cluster.paper import state_of

OTHER = Elect(1, 2, "disk-2", 12)


def step(
    state: PartitionState,
    *,
    fenced_in: int | None = None,
    has_leader: bool = True,
    is_offline: bool = False,
    sound: tuple[int, ...] = (1, 2, 3),
) -> Command | CopyChange | None:
    return next_step(
        state,
        1,
        fenced_in=fenced_in,
        has_leader=has_leader,
        is_offline=is_offline,
        is_sound=lambda broker: broker in sound,
        choose_other=lambda: OTHER,
    )


def test_a_leader_hands_over_and_says_then_that_its_copy_is_lost() -> None:
    state = state_of(1, 2, 3, leader=1, isr=[1, 2, 3])
    assert step(state) == OTHER
    accepted = apply(state, OTHER)
    assert isinstance(accepted, Accepted)
    lost = step(accepted.state)
    assert isinstance(lost, ChangeIsr)
    assert lost.lost == (1,)


def test_without_a_leader_whose_copy_is_sound_the_copy_stays() -> None:
    """It may be the best that is left."""
    state = state_of(1, 2, leader=2, isr=[1, 2])
    assert step(state, has_leader=False) is None
    assert step(state, sound=(1, 3)) is None
    assert step(state_of(1, 2, leader=1), has_leader=False) is None


def test_a_follower_says_that_its_copy_is_lost_whether_it_is_in_sync_or_not() -> None:
    for isr in ([1, 2, 3], [2, 3]):
        state = state_of(1, 2, 3, leader=2, isr=isr, min_isr=2, version=4, epoch=6)
        lost = step(state)
        assert lost == ChangeIsr(4, 6, {2: "disk-2", 3: "disk-3"}, 2, (1,))
        accepted = apply(state, lost)
        assert isinstance(accepted, Accepted)
        assert 1 not in accepted.state.isr
        assert 1 not in accepted.state.elr
        assert accepted.state.leader_epoch == 7, "what was acknowledged before counts no more"
        assert step(accepted.state, fenced_in=7) == CopyChange.REPLACE


def test_it_is_lost_to_the_elr_too() -> None:
    state = state_of(1, 2, leader=2, isr=[2], elr=[1], min_isr=2)
    lost = step(state)
    accepted = apply(state, lost)  # type: ignore[arg-type]
    assert isinstance(accepted, Accepted)
    assert not accepted.state.elr


def test_nothing_is_set_aside_before_that_is_agreed_on() -> None:
    state = state_of(1, 2, leader=2, isr=[2], epoch=6)
    assert isinstance(step(state), ChangeIsr), "out of sync is not enough: it may be taken in again"
    assert isinstance(step(state, fenced_in=7), ChangeIsr), "the state here is an older one"
    assert step(state, fenced_in=6) == CopyChange.REPLACE
    assert step(replace(state, leader_epoch=9), fenced_in=6) == CopyChange.REPLACE


def test_nothing_is_set_aside_that_was_made_a_member_again() -> None:
    for members in ({"isr": [1, 2]}, {"isr": [2], "elr": [1], "min_isr": 2}):
        state = state_of(1, 2, leader=2, epoch=8, **members)  # type: ignore[arg-type]
        assert isinstance(step(state, fenced_in=6), ChangeIsr)


def test_the_copy_of_a_broker_that_is_no_replica_is_not_its_business() -> None:
    assert step(state_of(2, 3, witnesses=[1])) is None


def test_an_offline_copy_leaves_only_an_isr_that_can_do_without_it() -> None:
    """Its records may return: as one of too few members, it has to stay in the ELR."""
    state = state_of(1, 2, 3, leader=2, isr=[1, 2, 3], min_isr=2)
    assert isinstance(step(state, is_offline=True), ChangeIsr)
    needed = state_of(1, 2, 3, leader=2, isr=[1, 2], min_isr=2)
    assert isinstance(step(needed), ChangeIsr)
    assert step(needed, is_offline=True) is None
    assert step(state_of(1, 2, 3, leader=1, isr=[1, 2], min_isr=2), is_offline=True) == OTHER


def test_an_offline_copy_is_not_replaced() -> None:
    state = state_of(1, 2, 3, leader=2, isr=[2, 3], epoch=6)
    assert step(state, fenced_in=6) is CopyChange.REPLACE
    assert step(state, fenced_in=6, is_offline=True) is None
