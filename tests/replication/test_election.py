"""Who is proposed to lead, and who to store, in which view of the brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raftlog.replication.election import (
    CopyReport,
    Standing,
    choose_leader,
    choose_member,
    choose_preferred,
    choose_replacement,
    choose_unsure,
    has_leader,
    transfer,
)
from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    ChangeReplicas,
    Elect,
    ElectUnclean,
    PartitionState,
    apply,
)
from tests.replication.samples import View, accepted, disk, disks, state_of

DIRECTORIES = disks(range(1, 10))


def elected(
    state: PartitionState,
    *,
    arbiter: int = 4,
    dead: set[int] = frozenset(),  # type: ignore[assignment]
    new_disks: set[int] = frozenset(),  # type: ignore[assignment]
) -> Elect | None:
    directories = DIRECTORIES | dict.fromkeys(new_disks, "new disk")
    return choose_leader(
        state, View(lambda broker: broker not in dead, directories.get), arbiter=arbiter
    )


# -- leaders ---------------------------------------------------------------------------------------


def test_a_live_leader_on_its_disk_stays() -> None:
    assert elected(state_of(leader=2)) is None
    assert elected(state_of(leader=2), arbiter=1) is None
    assert elected(state_of(leader=2), dead={1, 3}) is None


def test_a_dead_leader_is_followed_by_the_first_in_preferred_order() -> None:
    state = state_of((3, 1, 2), leader=3)
    assert elected(state, dead={3}) == Elect(7, 1, disk(1))
    assert elected(state, dead={3, 1}) == Elect(7, 2, disk(2))


def test_the_arbiter_comes_first_if_it_can_lead() -> None:
    assert elected(state_of(), arbiter=3, dead={1}) == Elect(7, 3, disk(3))
    out = state_of(isr=(1, 2), former=(3,))
    assert elected(out, arbiter=3, dead={1}) == Elect(7, 2, disk(2))
    assert elected(state_of(), arbiter=4, dead={1}) == Elect(7, 2, disk(2))


def test_a_leader_on_another_disk_is_no_leader() -> None:
    assert elected(state_of(), new_disks={1}) == Elect(7, 2, disk(2))


def test_where_nobody_leads_somebody_is_chosen() -> None:
    assert elected(state_of(leader=None)) == Elect(7, 1, disk(1))


def test_a_member_on_another_disk_is_passed_over() -> None:
    assert elected(state_of(), dead={1}, new_disks={2}) == Elect(7, 3, disk(3))


def test_a_leader_of_another_run_is_elected_again() -> None:
    """S17: what it had not synced may be gone."""
    state = state_of(leader_boot=4)
    boots = {1: 4, 2: 9}

    def choose() -> Elect | None:
        return choose_leader(state, View(boot_of=boots.get), arbiter=1)

    assert choose() is None
    boots[1] = 5
    elect = choose()
    assert elect == Elect(7, 1, disk(1), 5)
    assert accepted(apply(state, elect)).leader_boot == 5


def test_what_is_not_known_of_a_live_leader_is_no_reason_for_an_election() -> None:
    """Just after a start others are given time to be seen."""
    assert has_leader(state_of(), View(directory_of=lambda _broker: None))
    assert not has_leader(state_of(leader=None), View())


def test_the_elr_leads_only_when_no_member_of_the_isr_can() -> None:
    state = state_of((1, 2, 3), isr=(1, 2), elr=(3,), min_isr=3)
    assert elected(state, dead={1}, arbiter=3) == Elect(7, 2, disk(2))
    assert elected(state, dead={1, 2}) == Elect(7, 3, disk(3))
    assert elected(state, dead={1}, new_disks={2}) == Elect(7, 3, disk(3))


def test_nobody_leads_who_may_lack_records() -> None:
    """The partition waits: a former member, a witness, another disk of a member."""
    state = state_of(isr=(1,), elr=(2,), former=(3,))
    assert elected(state, dead={1, 2}) is None
    assert elected(state, dead={1}, new_disks={2}) is None
    assert elected(state, dead={1, 2}, arbiter=4) is None


def test_a_witness_never_leads_whatever_the_state_says() -> None:
    wrong = replace(state_of(isr=(1,), former=(2, 3)), isr=disks((1, 4)))
    assert elected(wrong, dead={1}, arbiter=4) is None


def test_what_is_chosen_would_be_accepted() -> None:
    for state in (state_of(), state_of(isr=(1,), elr=(2, 3))):
        elect = elected(state, dead={1})
        assert elect is not None
        assert accepted(apply(state, elect)).leader == 2


# -- moving leadership -----------------------------------------------------------------------------


def moved(state: PartitionState, to: int, dead: int = 0, new_disk: int = 0) -> Elect | str:
    return transfer(
        state,
        to,
        View(
            lambda broker: broker != dead,
            (DIRECTORIES | {new_disk: "new disk"}).get,
            {2: 6}.get,
        ),
    )


def test_leadership_moves_to_a_member_of_the_isr() -> None:
    assert moved(state_of(), 2) == Elect(7, 2, disk(2), 6)
    assert moved(state_of(), 3) == Elect(7, 3, disk(3), 0)


@pytest.mark.parametrize(
    ("to", "why"),
    [(1, "leads already"), (4, "witness"), (9, "not a replica"), (3, "not in sync")],
)
def test_leadership_does_not_move_to_others(to: int, why: str) -> None:
    answer = moved(state_of(isr=(1, 2), former=(3,)), to)
    assert isinstance(answer, str)
    assert why in answer


def test_leadership_does_not_move_to_a_dead_broker_or_an_empty_disk() -> None:
    assert "not live" in str(moved(state_of(), 2, dead=2))
    assert "not in sync" in str(moved(state_of(), 2, new_disk=2))
    assert "not in sync" in str(moved(state_of(isr=(1,), elr=(2, 3)), 2))


def test_the_preferred_replica_gets_leadership_back_when_it_can() -> None:
    away = state_of(leader=2)
    assert choose_preferred(away, View()) == Elect(7, 1, disk(1))
    assert choose_preferred(state_of(), View()) is None
    out = state_of(leader=2, isr=(2, 3), former=(1,))
    assert choose_preferred(out, View()) is None
    assert choose_preferred(away, View(is_live=lambda b: b != 1)) is None


# -- replacing replicas ----------------------------------------------------------------------------


def replaced(
    state: PartitionState,
    dead: dict[int, float],
    *,
    replication_factor: int = 3,
    without_room: int = 0,
) -> ChangeReplicas | None:
    return choose_replacement(
        state,
        replication_factor=replication_factor,
        dead_seconds=lambda broker: dead.get(broker, 0.0),
        delay_seconds=60.0,
        is_live=lambda broker: broker not in dead,
        may_store=lambda broker: broker != without_room,
    )


OUT = state_of((1, 2, 3), (4, 5), isr=(1, 3), former=(2,))


def test_a_replica_that_is_dead_for_long_swaps_roles_with_a_witness() -> None:
    assert replaced(OUT, {2: 61.0}) == ChangeReplicas(7, (1, 4, 3), (2, 5))


def test_nothing_is_replaced_before_the_delay() -> None:
    assert replaced(OUT, {2: 60.0}) is None
    assert replaced(OUT, {}) is None


def test_the_witness_has_to_be_live_and_to_have_room() -> None:
    assert replaced(OUT, {2: 61.0, 4: 1.0}) == ChangeReplicas(7, (1, 5, 3), (4, 2))
    assert replaced(OUT, {2: 61.0}, without_room=4) == ChangeReplicas(7, (1, 5, 3), (4, 2))
    assert replaced(OUT, {2: 61.0, 4: 1.0, 5: 1.0}) is None


def test_a_dead_member_of_the_isr_is_the_leaders_to_remove_first() -> None:
    assert replaced(state_of(), {2: 61.0}) is None


def test_without_a_live_leader_nothing_is_replaced() -> None:
    """Nobody could be copied from."""
    assert replaced(OUT, {1: 1.0, 2: 61.0}) is None
    assert replaced(replace(OUT, leader=None), {2: 61.0}) is None


def test_two_dead_replicas_are_replaced_one_after_the_other() -> None:
    state = state_of(isr=(1,), former=(2, 3), min_isr=1)
    dead = {2: 61.0, 3: 61.0}
    first = replaced(state, dead)
    assert first == ChangeReplicas(7, (1, 4, 3), (2, 5))
    state = accepted(apply(state, first))
    second = replaced(state, dead)
    assert second == ChangeReplicas(8, (1, 4, 5), (2, 3))
    assert replaced(accepted(apply(state, second)), dead) is None


def test_a_dead_eligible_replica_stays_until_another_copy_is_in_sync() -> None:
    state = state_of((1, 2), (3,), isr=(1,), elr=(2,))
    dead = {2: 61.0}
    grown = replaced(state, dead, replication_factor=2)
    assert grown == ChangeReplicas(7, (1, 2, 3), ())
    state = accepted(apply(state, grown))
    assert state.elr == disks((2,))
    assert replaced(state, dead, replication_factor=2) is None
    state = accepted(apply(state, ChangeIsr(8, 5, disks((1, 3)), 2)))
    shrunk = replaced(state, dead, replication_factor=2)
    assert shrunk == ChangeReplicas(9, (1, 3), (2,))
    state = accepted(apply(state, shrunk))
    assert replaced(state, dead, replication_factor=2) is None


def test_a_replica_too_many_becomes_a_witness_again() -> None:
    """The dead one came back before the new one had caught up."""
    state = state_of((1, 2, 3), (), isr=(1,), elr=(2,), former=())
    assert replaced(state, {}, replication_factor=2) is None
    state = accepted(apply(state, ChangeIsr(7, 5, disks((1, 2)), 2)))
    assert replaced(state, {}, replication_factor=2) == ChangeReplicas(8, (1, 2), (3,))


def test_of_replicas_too_many_the_leader_is_not_dropped() -> None:
    state = state_of((1, 2, 3), (), leader=3)
    assert replaced(state, {}, replication_factor=2) == ChangeReplicas(7, (1, 3), (2,))
    assert replaced(state, {2: 1.0, 1: 1.0}, replication_factor=2) is None


# -- by what replicas report -----------------------------------------------------------------------


def report(
    broker: int, end: int, *, epoch: int = 5, standing: Standing = Standing.SOUND, boot: int = 1
) -> CopyReport:
    return CopyReport(standing, epoch, end, 7, disk(broker), boot)


def chosen(state: PartitionState, *reports: CopyReport | None, **options: Any) -> Elect | None:
    """The reports of brokers 1, 2 and so on; None of one that has sent none."""
    return choose_member(
        state,
        View(boot_of=lambda _broker: 1),
        reports={n: each for n, each in enumerate(reports, start=1) if each is not None},
        **options,
    )


def test_the_member_with_the_longest_log_leads() -> None:
    state = state_of()
    assert chosen(state, report(1, 9), report(2, 10), report(3, 8)) == Elect(7, 2, disk(2), 1)
    longer = report(3, 1, epoch=6)
    assert chosen(state, report(1, 9), report(2, 10), longer) == Elect(7, 3, disk(3), 1)
    equal = [report(broker, 9) for broker in (1, 2, 3)]
    assert chosen(state, *equal) == Elect(7, 1, disk(1), 1)
    assert chosen(state, *equal, first=3) == Elect(7, 3, disk(3), 1)
    assert chosen(state, *equal, without=1) == Elect(7, 2, disk(2), 1)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        report(2, 99, standing=Standing.UNSURE),
        report(2, 99, standing=Standing.DAMAGED),
        report(2, 99, boot=0),  # in an earlier run
    ],
)
def test_a_copy_that_is_not_known_to_be_sound_does_not_lead(bad: CopyReport | None) -> None:
    assert chosen(state_of(isr=(1, 2)), report(1, 3), bad) == Elect(7, 1, disk(1), 1)


def unsure(
    state: PartitionState, *reports: CopyReport | None, gone_s: float = 0.0
) -> ElectUnclean | None:
    return choose_unsure(
        state,
        reports={n: each for n, each in enumerate(reports, start=1) if each is not None},
        directory_of=DIRECTORIES.get,
        gone_seconds=lambda _broker: gone_s,
        wait_seconds=60,
    )


def torn(broker: int, end: int) -> CopyReport:
    return report(broker, end, standing=Standing.UNSURE)


def test_the_longest_of_all_unsure_copies_leads_once_all_members_have_reported() -> None:
    state = state_of(isr=(1, 2), elr=(3,), min_isr=3)
    elect = ElectUnclean(7, 2, disk(2), 1)
    assert unsure(state, torn(1, 3), torn(2, 9), torn(3, 5)) == elect
    assert isinstance(apply(state, elect), Accepted)
    assert unsure(state, torn(1, 3), torn(2, 9), None) is None, "it may hold more"
    assert unsure(state, torn(1, 3), None, torn(3, 5)) is None
    assert unsure(state, torn(1, 3), torn(2, 9), None, gone_s=60) == elect
    assert unsure(state, torn(1, 3), torn(2, 9), report(3, 1)) is None, "that one can lead"


def test_a_former_member_with_a_longer_log_leads_but_is_not_waited_for() -> None:
    state = state_of(isr=(1,), former=(2, 3), min_isr=1)
    assert unsure(state, torn(1, 3), report(2, 4), None) == ElectUnclean(7, 2, disk(2), 1)
    assert unsure(state, torn(1, 3), None, None) == ElectUnclean(7, 1, disk(1), 1)


def test_a_damaged_copy_leads_never_nor_does_one_that_is_shorter() -> None:
    state = state_of(isr=(1, 2), former=(3,), min_isr=1)
    bad = report(1, 5, standing=Standing.DAMAGED)
    assert unsure(state, bad, torn(2, 4), None) is None
    assert unsure(state, bad, torn(2, 5), None) == ElectUnclean(7, 2, disk(2), 1)


def test_a_member_whose_disk_was_lost_is_not_waited_for() -> None:
    state = replace(state_of(min_isr=1), isr={1: disk(1), 2: "lost"}, former={})
    assert unsure(state, torn(1, 3), None) == ElectUnclean(7, 1, disk(1), 1)
