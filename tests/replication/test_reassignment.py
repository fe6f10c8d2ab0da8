"""Steps of a move: copies, leadership and voters, with failures between any two steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.replication.election import fitting_voters, next_step, surplus_witness
from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    ChangeReplicas,
    Command,
    Elect,
    apply,
    initial_state,
)
from raftlog.replication.placement import voters_count
from tests.replication.samples import View

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
