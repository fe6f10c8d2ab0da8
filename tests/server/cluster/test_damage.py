"""The steps by which a damaged copy is given up: at no moment may it be elected, or be counted."""

from __future__ import annotations

from dataclasses import replace

from raftlog.replication.commands import ChangeIsr, Elect
from raftlog.replication.partition_state import Accepted, PartitionState, apply
from raftlog.server.cluster.damage import SET_ASIDE, next_step
from tests.server.cluster.paper import DISKS, state_of


def step(
    state: PartitionState,
    *,
    me: int = 1,
    fenced_in: int | None = None,
    live: set[int] = frozenset(DISKS),  # type: ignore[assignment]
    disks: dict[int, str] = DISKS,
) -> Elect | ChangeIsr | str | None:
    return next_step(
        state,
        me,
        fenced_in=fenced_in,
        is_live=lambda broker: broker in live,
        directory_of=disks.get,
        boot_of=lambda broker: 10 + broker,
    )


def test_a_leader_hands_over_to_who_is_in_sync_and_there() -> None:
    state = state_of(1, 2, 3, leader=1, isr=[1, 2, 3])
    assert step(state) == Elect(1, 2, "disk-2", 12)
    assert step(state, live={1, 3}) == Elect(1, 3, "disk-3", 13)
    assert step(state, disks={**DISKS, 2: "new"}) == Elect(1, 3, "disk-3", 13)
    assert isinstance(apply(state, Elect(1, 2, "disk-2", 12)), Accepted)


def test_a_leader_hands_over_to_the_elr_when_nobody_else_is_in_sync() -> None:
    state = state_of(1, 2, 3, isr=[1], elr=[3], min_isr=2)
    elect = step(state)
    assert elect == Elect(1, 3, "disk-3", 13)
    accepted = apply(state, elect)
    assert isinstance(accepted, Accepted)
    # This broker is eligible still, until it has said that its copy is lost.
    lost = step(accepted.state)
    assert isinstance(lost, ChangeIsr)
    assert lost.lost == (1,)


def test_a_leader_that_nobody_can_replace_stays() -> None:
    assert step(state_of(1, 2, isr=[1])) is None
    assert step(state_of(1, 2, isr=[1, 2]), live={1}) is None


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
        assert step(accepted.state, fenced_in=7) == SET_ASIDE


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
    assert step(state, fenced_in=6) == SET_ASIDE
    assert step(replace(state, leader_epoch=9), fenced_in=6) == SET_ASIDE


def test_nothing_is_set_aside_that_was_made_a_member_again() -> None:
    for members in ({"isr": [1, 2]}, {"isr": [2], "elr": [1], "min_isr": 2}):
        state = state_of(1, 2, leader=2, epoch=8, **members)  # type: ignore[arg-type]
        assert isinstance(step(state, fenced_in=6), ChangeIsr)


def test_the_copy_of_a_broker_that_is_no_replica_is_not_its_business() -> None:
    assert step(state_of(2, 3, witnesses=[1])) is None
