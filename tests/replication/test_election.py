"""Who is proposed to lead, and who to store, in which view of the brokers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config.keys import INT64_MAX
from raftlog.replication.election import (
    UNSEEN_ELECTIONS,
    Blocked,
    Copy,
    CopyReport,
    GoOn,
    Nothing,
    Report,
    Standing,
    Survivor,
    choose_leader,
    choose_member,
    choose_preferred,
    choose_replacement,
    choose_unsure,
    fitting_voters,
    group_loss,
    has_leader,
    next_step,
    plan,
    surplus_witness,
    transfer,
)
from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    ChangeReplicas,
    Command,
    Elect,
    ElectUnclean,
    PartitionState,
    apply,
    initial_state,
)
from raftlog.replication.placement import voters_count
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


def test_a_corrupt_copy_leads_if_there_is_no_other() -> None:
    """It is served up to the corruption. The end of an offline one is not known."""
    alone = replace(state_of(isr=(1,)), replicas=(1,))
    damaged = report(1, 3, standing=Standing.DAMAGED)
    assert chosen(alone, damaged) == Elect(7, 1, disk(1), 1)
    assert chosen(state_of(isr=(1,)), damaged) is None
    assert chosen(alone, report(1, 3, standing=Standing.UNSURE)) is None
    assert chosen(alone, report(1, INT64_MAX, standing=Standing.DAMAGED)) is None


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


# -- reassignment ----------------------------------------------------------------------------------
#
# Steps of a move: copies, leadership and voters, with failures between any two steps.


BROKERS = range(1, 8)
DISKS = {broker: f"disk-{broker}" for broker in BROKERS}


class Moving:
    """One partition in a cluster of ``brokers``, whose copies are in sync when the test says so."""

    def __init__(
        self, replicas: tuple[int, ...], witnesses: tuple[int, ...] = (), *, brokers: int = 7
    ) -> None:
        self.brokers = list(BROKERS)[:brokers]
        self.live = set(self.brokers)
        self.state = initial_state(replicas, witnesses, DISKS, 1)
        self.voters = {broker: DISKS[broker] for broker in sorted({*replicas, *witnesses})}
        self.copies_before = len(replicas)

    def is_live(self, broker: int) -> bool:
        return broker in self.live

    def wants(self, *target: int) -> Command | None:
        return next_step(
            self.state,
            target,
            View(self.is_live, DISKS.get),
            copies_before=self.copies_before,
            voters_wanted=voters_count(len(target), max(len(self.brokers), len(target))),
            brokers=self.brokers,
        )

    def accept(self, command: Command | None) -> None:
        assert command is not None
        result = apply(self.state, command)
        assert isinstance(result, Accepted), result
        self.state = result.state

    def linked(self, broker: int) -> str | None:
        return DISKS[broker] if broker in self.live else None

    def seal(self) -> None:
        self.voters = fitting_voters(self.state, self.voters, self.linked)

    def set_isr(self, isr: Collection[int]) -> None:
        members = {broker: DISKS[broker] for broker in isr}
        if members != dict(self.state.isr):
            epoch = self.state.leader_epoch
            self.accept(ChangeIsr(self.state.version, epoch, members, self.state.min_isr))

    def sync(self) -> None:
        """All live replicas copy everything; the leader is live."""
        self.set_isr([broker for broker in self.state.replicas if broker in self.live])

    def run(self, *target: int) -> list[tuple[set[int], int | None, set[int]]]:
        """Take all steps; the replicas, the leader and the voters after each."""
        seen = []
        for _ in range(50):
            command = self.wants(*target) or surplus_witness(
                self.state, voters_most=2 * len(target) - 1, is_live=self.is_live
            )
            if command is None:
                return seen
            self.accept(command)
            self.seal()
            self.sync()
            seen.append((set(self.state.replicas), self.state.leader, set(self.voters)))
        raise AssertionError("it does not end")


def test_one_copy_moves_at_a_time_and_the_last_one_is_the_leaders() -> None:
    m = Moving((1, 2, 3), (4, 5), brokers=5)
    assert m.run(5, 4, 3) == [
        ({1, 2, 3, 5}, 1, {1, 2, 3, 4, 5}),
        ({1, 3, 5}, 1, {1, 2, 3, 4, 5}),
        ({1, 3, 4, 5}, 1, {1, 2, 3, 4, 5}),
        ({1, 3, 4, 5}, 5, {1, 2, 3, 4, 5}),
        ({3, 4, 5}, 5, {1, 2, 3, 4, 5}),
    ]
    assert m.state.replicas == (5, 4, 3), "the preferred leader is first"
    assert set(m.state.witnesses) == {1, 2}, "2n-1 voters"


def test_a_new_voter_has_a_helper_until_a_copy_has_left() -> None:
    m = Moving((1,), brokers=3)
    assert m.run(2) == [
        ({1, 2}, 1, {1, 2, 3}),
        ({1, 2}, 2, {1, 2, 3}),
        ({2}, 2, {2, 3}),
        ({2}, 2, {2}),
    ]


def test_without_another_broker_a_new_voter_has_no_helper() -> None:
    m = Moving((1,), brokers=2)
    assert m.run(2)[0] == ({1, 2}, 1, {1, 2})


def test_nothing_leaves_before_the_learner_is_in_sync() -> None:
    m = Moving((1, 2, 3))
    m.accept(m.wants(1, 2, 4))
    m.seal()
    assert m.wants(1, 2, 4) is None
    m.sync()
    left = m.wants(1, 2, 4)
    assert isinstance(left, ChangeReplicas)
    assert left.replicas == (1, 2, 4)


def test_one_learner_at_a_time() -> None:
    m = Moving((1,))
    m.accept(m.wants(1, 2, 3))
    assert m.wants(1, 2, 3) is None
    m.sync()
    m.accept(m.wants(1, 2, 3))
    assert m.state.replicas == (1, 2, 3)


def test_nothing_leaves_while_a_copy_that_stays_has_failed() -> None:
    m = Moving((1, 2, 3))
    m.accept(m.wants(1, 2, 4))
    m.sync()
    m.live -= {2}
    assert m.wants(1, 2, 4) is None, "it is in the ISR still, and does not respond"
    m.set_isr([1, 3, 4])
    assert m.wants(1, 2, 4) is None


def test_a_copy_of_a_failed_broker_does_not_count() -> None:
    m = Moving((1, 2, 3))
    m.accept(m.wants(1, 4, 5))
    m.sync()
    m.live -= {2}
    assert m.wants(1, 4, 5) is None, "brokers 1, 3 and 4 are left, and they are three"
    m.live |= {2}
    assert m.wants(1, 4, 5) is not None


def test_a_copy_that_leaves_and_is_not_in_sync_makes_place_at_once() -> None:
    m = Moving((1, 2, 3))
    m.live -= {3}
    m.set_isr([1, 2])
    step = m.wants(1, 2, 4)
    assert isinstance(step, ChangeReplicas)
    assert set(step.replicas) == {1, 2, 4}


def test_a_learner_that_is_not_live_is_waited_for() -> None:
    m = Moving((1, 2, 3))
    m.live -= {4}
    assert m.wants(1, 2, 4) is None


def test_with_fewer_replicas_the_leader_that_leaves_transfers_first() -> None:
    m = Moving((1, 2, 3))
    m.accept(m.wants(2, 3))
    assert (m.state.leader, m.state.replicas) == (2, (1, 2, 3))
    m.accept(m.wants(2, 3))
    assert (m.state.leader, m.state.replicas) == (2, (2, 3))


def test_all_copies_of_a_smaller_target_are_added_before_one_leaves() -> None:
    m = Moving((1, 2))
    m.accept(m.wants(3))
    assert set(m.state.replicas) == {1, 2, 3}


def test_an_order_is_a_move() -> None:
    m = Moving((1, 2, 3))
    m.accept(m.wants(3, 2, 1))
    assert (m.state.replicas, m.state.leader_epoch) == ((3, 2, 1), 0)
    assert m.wants(3, 2, 1) is None


def test_members_of_the_elr_stay() -> None:
    m = Moving((1, 2, 3))
    m.state = replace(m.state, min_isr=2, isr={1: DISKS[1]}, elr={3: DISKS[3]})
    assert m.wants(1, 2, 4) is None, "broker 2 may lack records; broker 3 has all of them"


@pytest.mark.parametrize(
    ("linked", "voters"),
    [({1, 2, 3}, {1, 2, 3}), ({1, 2}, {1, 2}), ({1, 3}, {1, 2, 3}), (set(), {1, 2})],
)
def test_voters_are_the_members_and_a_new_one_has_to_be_connected(
    linked: set[int], voters: set[int]
) -> None:
    state = initial_state((1, 2), (3,), DISKS, 1)
    current = {1: DISKS[1], 2: DISKS[2], 4: DISKS[4]}
    found = fitting_voters(state, current, lambda b: DISKS[b] if b in linked else None)
    assert set(found) == voters


def test_a_voter_with_a_new_disk_votes_with_that() -> None:
    state = initial_state((1, 2), (), DISKS, 1)
    found = fitting_voters(state, DISKS, lambda b: "new" if b == 2 else None)
    assert found == {1: DISKS[1], 2: "new"}


def test_a_group_always_has_a_voter() -> None:
    state = initial_state((1,), (), DISKS, 1)
    assert fitting_voters(state, {2: DISKS[2]}, lambda _b: None) == {2: DISKS[2]}


def test_of_surplus_witnesses_one_that_is_not_live_goes_first() -> None:
    state = initial_state((1,), (2, 3), DISKS, 1)
    live = {1, 3}
    command = surplus_witness(state, voters_most=1, is_live=live.__contains__)
    assert command == ChangeReplicas(0, (1,), (3,))
    assert surplus_witness(state, voters_most=3, is_live=live.__contains__) is None


@given(st.data())
def test_any_move_ends_and_never_has_fewer_copies(data: st.DataObject) -> None:
    """With failures, ISR changes, cancellations and other targets between any two steps."""
    brokers = data.draw(st.integers(2, 7))
    ids = list(BROKERS)[:brokers]
    sets = st.lists(st.sampled_from(ids), unique=True, min_size=1, max_size=min(4, brokers))
    origin = tuple(data.draw(sets))
    voters = voters_count(len(origin), brokers)
    others = [broker for broker in ids if broker not in origin]
    m = Moving(origin, tuple(others[: voters - len(origin)]), brokers=brokers)
    target = tuple(data.draw(sets))
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["step", "step", "step", "sync", "fail", "back", "other"])):
            case "step":
                _step(m, target)
            case "sync" if m.state.leader in m.live:
                m.sync()
            case "fail" if len(m.live) > 1:
                m.live.discard(data.draw(st.sampled_from(ids)))
            case "back":
                m.live.add(data.draw(st.sampled_from(ids)))
            case "other":
                target = data.draw(st.sampled_from([origin, tuple(data.draw(sets))]))
    m.live = set(ids)
    m.seal()
    m.sync()
    m.run(*target)
    assert m.state.replicas == target
    assert m.state.leader in target
    assert set(m.voters) == {*target, *m.state.witnesses}
    assert len(m.voters) <= max(2 * len(target) - 1, len(target))


def _step(m: Moving, target: tuple[int, ...]) -> None:
    if m.voters != fitting_voters(m.state, m.voters, m.linked):
        before = set(m.voters)
        m.seal()
        assert set(m.voters) <= {*m.state.replicas, *m.state.witnesses}
        assert m.state.leader in m.voters
        shared = len(before & set(m.voters))
        assert shared > len(before) - (len(before) // 2 + 1), "one of them knows the seal"
        return
    command = m.wants(*target)
    in_sync = {broker for broker in m.state.isr if broker in m.live}
    if isinstance(command, ChangeReplicas):
        dropped = in_sync - set(command.replicas)
        assert len(dropped) <= 1
        assert not dropped or len(in_sync) - 1 >= len(target)
        assert not set(m.state.elr) - set(command.replicas)
        assert m.state.leader in command.replicas
    if isinstance(command, Elect):
        assert m.state.leader not in target
    if command is not None:
        m.accept(command)


# -- recovery --------------------------------------------------------------------------------------
#
# Who goes on after the loss of a majority, from what, and what that costs: the plan alone.


RECOVERY_DISKS = {broker: f"d{broker}" for broker in range(1, 6)}
BIRTH = initial_state((1, 2, 3), (), RECOVERY_DISKS, 2)


def state(*isr: int, version: int = 5, elr: tuple[int, ...] = (), **fields: Any) -> PartitionState:
    changed = {
        "isr": {b: RECOVERY_DISKS[b] for b in isr},
        "elr": {b: RECOVERY_DISKS[b] for b in elr},
        "leader": isr[0],
        "leader_epoch": 4,
        "version": version,
    }
    return replace(BIRTH, **{**changed, **fields})


def standing(
    broker: int,
    *,
    disk: str = "",
    voters: tuple[int, ...] = (1, 2, 3),
    rank: tuple[int, int, int] = (1, 2, 9),
    leader: int | None = None,
) -> Survivor:
    generation, term, index = rank
    return Survivor(
        broker=broker,
        directory_id=disk or RECOVERY_DISKS[broker],
        generation=generation,
        term=term,
        index=index,
        voters={voter: RECOVERY_DISKS[voter] for voter in voters},
        leader=leader,
    )


def recovery_report(
    at: Survivor, knows: PartitionState | None, end: int = -1, *, epoch: int = 4, damage: str = ""
) -> Report:
    copy = Copy(end=end, last_epoch=epoch, high_watermark=end, damage=damage) if end >= 0 else None
    return Report(
        broker=at.broker,
        directory_id=at.directory_id,
        boot=7,
        standing=at,
        state=knows,
        copy=copy,
    )


def test_a_member_that_has_not_opened_its_copy_is_waited_for() -> None:
    """It is the only one that has records: two new disks know the first state of the group."""
    new = [recovery_report(standing(b, disk="new", rank=(0, 0, 0)), BIRTH, 0) for b in (2, 3)]
    survivor = standing(1)
    step = plan([*new, Report(broker=1, directory_id=RECOVERY_DISKS[1], boot=7)], BIRTH)
    assert isinstance(step, Blocked)
    assert "broker 1 has just started" in step.reason
    step = plan([*new, recovery_report(survivor, state(1, 2, 3), 11)], BIRTH)
    assert isinstance(step, GoOn)
    assert step.leader == 1


# -- what is left of a group


def test_directories_count_and_not_links() -> None:
    loss = group_loss([standing(1, disk="wiped"), standing(2, disk="wiped too"), standing(3)])
    assert loss.lost == {1: "d1", 2: "d2"}
    assert not loss.has_majority
    assert group_loss([standing(2), standing(3)]).has_majority


def test_a_broker_that_has_contact_with_the_leader_forbids_a_recovery() -> None:
    """The operator's broker does not reach the majority, but another survivor does."""
    voters = (1, 2, 3, 4, 5)
    left = recovery_report(standing(1, voters=voters), state(1, 2, 3), 9)
    between = recovery_report(standing(4, voters=voters, leader=2), state(1, 2, 3))
    step = plan([left, between], BIRTH)
    assert isinstance(step, Blocked)
    assert "broker 4 has contact with broker 2, the leader of the partition" in step.reason
    assert isinstance(plan([left], BIRTH), GoOn)


# -- who goes on


def test_there_is_nothing_to_do_while_a_majority_and_a_member_are_there() -> None:
    reports = [recovery_report(standing(b), state(1, 2), 9) for b in (2, 3)]
    assert plan(reports, BIRTH) == Nothing()


@pytest.mark.parametrize("known", [state(1, 3), state(1, elr=(3,)), state(3), state(1, 2, 3)])
def test_a_recovery_without_a_majority_names_every_directory_that_it_gives_up(
    known: PartitionState,
) -> None:
    """Also if the survivor was in sync, and if half of the voters remain."""
    for voters in ((1, 2, 3), (1, 3)):
        step = plan([recovery_report(standing(3, voters=voters), known, 9)], BIRTH)
        assert isinstance(step, GoOn)
        assert step.gone == {
            b: RECOVERY_DISKS[b] for b in (1, 2) if b in voters or b in {**known.isr, **known.elr}
        }


def test_a_survivor_in_sync_may_have_left_the_isr_since() -> None:
    left = recovery_report(standing(3), state(1, 2, 3), 9)
    step = plan([left], BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.command) == (3, None)
    assert step.base is not None
    assert dict(step.base.isr) == {3: "d3"}
    assert step.base.leader_epoch == 4 + UNSEEN_ELECTIONS + 1 == step.base.unclean_epoch
    assert step.base.version == 5 + UNSEEN_ELECTIONS + 1
    assert "when it last had contact with brokers 1, 2" in step.note


def test_the_newest_journal_says_who_is_in_sync() -> None:
    voters = (1, 2, 3, 4, 5)
    stale = recovery_report(standing(3, voters=voters, rank=(1, 2, 9)), state(1, 2, 3), 9)
    good = recovery_report(standing(2, voters=voters, rank=(1, 2, 10)), state(1, 2, version=6), 19)
    step = plan([good, stale], BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.base is not None and step.base.version) == (2, 7 + UNSEEN_ELECTIONS)


def test_with_the_operators_word_the_longest_log_leads() -> None:
    """By the epoch of its end first; and what is known to be lost is counted."""
    voters = (1, 2, 3, 4, 5)
    one = standing(1, voters=voters)
    other = standing(2, voters=voters)
    knows = state(3)
    long = recovery_report(one, knows, 30, epoch=3)
    newer = recovery_report(other, knows, 20, epoch=4)
    step = plan([long, newer], BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.lost) == (2, 10)
    assert "(brokers 3) are not available with their disks: 10 records are lost" in step.note


def test_a_group_with_its_majority_is_asked_to_elect_it() -> None:
    reports = [recovery_report(standing(b), state(1), 9 + b) for b in (2, 3)]
    step = plan(reports, BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.base, step.gone) == (3, None, {1: "d1"})
    assert step.command is not None
    assert (step.command.version, step.command.directory_id, step.command.boot) == (5, "d3", 7)


def test_the_only_copy_begins_empty_above_what_anybody_was_told() -> None:
    birth = initial_state((1,), (), RECOVERY_DISKS, 1)
    noted = replace(birth, leader_epoch=9, version=12)
    wiped = recovery_report(
        standing(1, disk="new", voters=(1,), rank=(0, 0, 1)), birth, 0, epoch=-1
    )
    other = Report(broker=2, directory_id="d2", boot=1, state=noted)
    step = plan([wiped, other], birth)
    assert isinstance(step, GoOn)
    assert step.base is not None
    assert dict(step.base.isr) == {1: "new"}
    assert step.base.leader_epoch > 9
    assert step.base.version > 12
    assert "has nothing, so the log restarts at offset 0" in step.note


def test_a_copy_that_may_lack_its_end_leads_before_an_empty_one_and_needs_the_operators_word() -> (
    None
):
    # Simulator, safety seed 7001177: the empty disk led, and committed offsets were lost.
    torn = recovery_report(standing(3), state(3, 1, 2), 9)
    assert torn.copy is not None
    torn = replace(torn, copy=replace(torn.copy, is_unsure=True))
    empty = Report(broker=2, directory_id="new", boot=1)
    step = plan([torn, empty], BIRTH)
    assert isinstance(step, GoOn)
    assert step.leader == 3


def test_a_copy_that_may_lack_its_end_needs_the_operators_word_though_a_majority_votes() -> None:
    torn = recovery_report(standing(3), state(3), 9)
    assert torn.copy is not None
    torn = replace(torn, copy=replace(torn.copy, is_unsure=True))
    behind = recovery_report(standing(2), state(3), 5)
    step = plan([torn, behind], BIRTH)
    assert isinstance(step, GoOn)
    assert step.leader == 3


def test_without_a_sound_copy_or_an_empty_disk_nothing_can_be_done() -> None:
    birth = initial_state((1,), (), RECOVERY_DISKS, 1)
    step = plan([Report(broker=2, directory_id="d2", boot=1)], birth)
    assert isinstance(step, Blocked)
    assert "(brokers 1) is available" in step.reason
    damaged = recovery_report(standing(3), state(3), 9, damage="bad")
    assert isinstance(plan([damaged], BIRTH), Blocked)


def test_a_copy_on_a_disk_that_may_return_is_waited_for() -> None:
    """The operator has it repaired, or replaces the disk by an empty one: then it is lost."""
    new = [recovery_report(standing(b, disk="new", rank=(0, 0, 0)), BIRTH, 0) for b in (2, 3)]
    survivor = recovery_report(standing(1), state(1, 2, 3), 11, damage="/disk2 has failed")
    assert isinstance(plan([*new, survivor], BIRTH), GoOn)
    assert survivor.copy is not None
    offline = replace(survivor, copy=replace(survivor.copy, is_offline=True))
    step = plan([*new, offline], BIRTH)
    assert isinstance(step, Blocked)
    assert "broker 1 may be complete: /disk2 has failed" in step.reason


def test_without_voters_the_newest_copy_counts_not_the_former_voter() -> None:
    """The generation and term of a broker that has lost its vote say nothing about its copy."""
    former = standing(1, voters=(2, 3), rank=(5, 9, 10))
    newest = standing(4, voters=(2, 3), rank=(0, 0, 20))
    assert group_loss([former, newest]).newest is newest
    assert newest.newness > former.newness
    assert standing(2, rank=(1, 1, 1)).newness > newest.newness
