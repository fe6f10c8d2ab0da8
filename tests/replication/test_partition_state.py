"""``apply``: what each command needs to be accepted, and what it makes of the ISR and the ELR."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    ChangeReplicas,
    Command,
    Elect,
    ElectUnclean,
    PartitionMachine,
    PartitionState,
    Rejected,
    apply,
    decode_state,
    initial_state,
)
from tests.replication.samples import accepted, disk, disks, reason, state_of


def change_isr(state: PartitionState, *isr: int, min_isr: int | None = None) -> PartitionState:
    wanted = state.min_isr if min_isr is None else min_isr
    return accepted(apply(state, ChangeIsr(state.version, state.leader_epoch, disks(isr), wanted)))


# -- a new partition -------------------------------------------------------------------------------


def test_a_new_partition_has_all_replicas_in_sync_and_is_led_by_the_preferred_one() -> None:
    state = initial_state((3, 1, 2), (4, 5), disks(range(1, 6)), 2)
    assert state == state_of((3, 1, 2), leader=3, leader_epoch=0, version=0)
    assert list(state.isr) == [1, 2, 3]


# -- compare and set -------------------------------------------------------------------------------

STATE = state_of(isr=(1, 2), elr=(), former=(3,))
GOOD: list[Command] = [
    Elect(7, 2, disk(2)),
    ChangeIsr(7, 5, disks((1, 2, 3)), 2),
    ChangeReplicas(7, (1, 2, 4), (3, 5)),
    ElectUnclean(7, 3, disk(3)),
]


@pytest.mark.parametrize("command", GOOD, ids=lambda command: type(command).__name__)
def test_every_accepted_command_makes_the_next_version(command: Command) -> None:
    assert accepted(apply(STATE, command)).version == STATE.version + 1


@pytest.mark.parametrize("version", [6, 8])
@pytest.mark.parametrize("command", GOOD, ids=lambda command: type(command).__name__)
def test_a_command_for_another_version_is_rejected(command: Command, version: int) -> None:
    result = apply(STATE, replace(command, version=version))
    assert result == Rejected(f"made for version {version} of 7", STATE)


@pytest.mark.parametrize("epoch", [4, 6])
def test_an_isr_change_of_another_leader_epoch_is_rejected(epoch: int) -> None:
    assert "leader epoch" in reason(apply(STATE, ChangeIsr(7, epoch, disks((1, 2)), 2)))


# -- elections -------------------------------------------------------------------------------------


def test_a_partition_with_a_first_leader_is_as_if_it_had_elected_it() -> None:
    places = (3, 1, 2), (4, 5), disks(range(1, 6)), 2
    elected = accepted(apply(initial_state(*places), Elect(0, 3, disk(3), 7)))
    assert initial_state(*places, leader_boot=7) == elected


def test_a_member_of_the_isr_is_elected_and_the_isr_stays() -> None:
    state = accepted(apply(STATE, Elect(7, 2, disk(2), 9)))
    assert state == replace(STATE, leader=2, leader_epoch=6, version=8, leader_boot=9)


def test_the_same_broker_elected_again_has_a_new_epoch() -> None:
    assert accepted(apply(STATE, Elect(7, 1, disk(1)))).leader_epoch == 6


@pytest.mark.parametrize(
    ("leader", "directory_id"), [(3, disk(3)), (4, disk(4)), (2, "new disk"), (9, disk(9))]
)
def test_who_is_not_in_the_isr_or_elr_on_that_disk_is_not_elected(
    leader: int, directory_id: str
) -> None:
    assert "not in the ISR or ELR" in reason(apply(STATE, Elect(7, leader, directory_id)))


def test_a_member_of_the_elr_becomes_the_isr_alone_and_all_others_stay_eligible() -> None:
    before = state_of(isr=(1,), elr=(2, 3))
    state = accepted(apply(before, Elect(7, 2, disk(2))))
    assert (state.leader, state.leader_epoch) == (2, 6)
    assert state.isr == disks((2,))
    assert state.elr == disks((1, 3))


def test_a_member_of_the_elr_with_another_disk_is_not_elected() -> None:
    before = state_of(isr=(1,), elr=(2,), former=(3,))
    assert "not in the ISR" in reason(apply(before, Elect(7, 2, "new disk")))


def test_an_unclean_election_takes_any_replica_and_only_that() -> None:
    before = state_of(isr=(1,), elr=(2,), former=(3,))
    state = accepted(apply(before, ElectUnclean(7, 3, "new disk", 4)))
    assert (state.leader, state.leader_epoch, state.leader_boot) == (3, 6, 4)
    assert (state.isr, state.elr, state.former) == ({3: "new disk"}, {}, disks((1, 2)))
    assert "not a replica" in reason(apply(before, ElectUnclean(7, 4, disk(4))))


def test_the_epoch_of_an_unclean_election_is_marked_and_no_other() -> None:
    state = accepted(apply(state_of(), ElectUnclean(7, 3, disk(3))))
    assert state.unclean_epoch == state.leader_epoch == 6
    state = accepted(apply(state, ChangeIsr(8, 6, disks((2, 3)), 2)))
    state = accepted(apply(state, ChangeIsr(9, 6, disks((3,)), 2, (2,))))
    assert state.unclean_epoch == state.leader_epoch == 7
    state = accepted(apply(state, Elect(10, 3, disk(3))))
    assert (state.unclean_epoch, state.leader_epoch) == (7, 8)
    state = accepted(apply(state, ChangeIsr(11, 8, disks((3,)), 2, (2,))))
    assert (state.unclean_epoch, state.leader_epoch) == (7, 9)


# -- the ISR ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "min_isr", "lost", "why"),
    [
        ({}, 2, (), "must contain the leader"),
        (disks((2, 3)), 2, (), "must contain the leader"),
        ({1: "new disk", 2: disk(2)}, 2, (), "must contain the leader"),
        (disks((1, 4)), 2, (), "not replicas"),  # a witness (I10)
        (disks((1, 9)), 2, (), "not replicas"),
        (disks((1, 2)), 0, (), "min_isr"),
        (disks((1, 2)), 2, (2,), "in sync and lost"),
        (disks((1, 2)), 2, (4,), "not replicas"),
    ],
)
def test_a_senseless_isr_is_rejected(
    isr: dict[int, str], min_isr: int, lost: tuple[int, ...], why: str
) -> None:
    assert why in reason(apply(STATE, ChangeIsr(7, 5, isr, min_isr, lost)))


def test_an_isr_change_where_nobody_leads_is_rejected() -> None:
    nobody = state_of(leader=None)
    assert "must contain the leader" in reason(apply(nobody, ChangeIsr(7, 5, disks((1, 2)), 2)))


def test_who_leaves_an_isr_that_is_large_enough_is_a_former_member() -> None:
    state = change_isr(state_of(), 1, 2)
    assert (state.isr, state.elr, state.former) == (disks((1, 2)), {}, disks((3,)))


def test_who_leaves_an_isr_that_is_then_too_small_is_eligible() -> None:
    state = change_isr(state_of(isr=(1, 2), former=(3,)), 1)
    assert (state.isr, state.elr, state.former) == (disks((1,)), disks((2,)), disks((3,)))


def test_those_that_leave_together_are_eligible_together() -> None:
    state = change_isr(state_of(), 1)
    assert (state.elr, state.former) == (disks((2, 3)), {})


def test_the_elr_is_cleared_once_the_isr_is_large_enough() -> None:
    state = change_isr(state_of(isr=(1,), elr=(2,), former=(3,)), 1, 3)
    assert (state.isr, state.elr, state.former) == (disks((1, 3)), {}, disks((2,)))


def test_who_rejoins_leaves_the_elr_and_the_others_stay() -> None:
    state = change_isr(state_of(isr=(1,), elr=(2, 3), min_isr=3), 1, 2)
    assert (state.isr, state.elr, state.former) == (disks((1, 2)), disks((3,)), {})


def test_an_eligible_copy_whose_disk_was_replaced_vanishes() -> None:
    before = state_of(isr=(1,), elr=(2, 3), min_isr=3)
    command = ChangeIsr(7, 5, {1: disk(1), 2: "new disk"}, 3)
    state = accepted(apply(before, command))
    assert (state.isr, state.elr, state.former) == ({1: disk(1), 2: "new disk"}, disks((3,)), {})


def test_a_member_whose_disk_was_replaced_in_one_step_is_not_eligible_with_the_old_one() -> None:
    command = ChangeIsr(7, 5, {1: disk(1), 2: "new disk"}, 3)
    state = accepted(apply(state_of(isr=(1, 2), former=(3,), min_isr=3), command))
    assert (state.elr, state.former) == ({}, disks((3,)))


def test_a_lost_copy_is_forgotten_and_the_epoch_fences_what_it_said() -> None:
    for before in (STATE, state_of(isr=(1,), elr=(2,), former=(3,))):
        isr = {broker: disk(broker) for broker in before.isr}
        state = accepted(apply(before, ChangeIsr(7, 5, isr, 2, (3,))))
        assert state == replace(before, former={}, leader_epoch=6, version=8)


def test_a_lost_copy_is_neither_eligible_nor_former() -> None:
    state = accepted(apply(state_of(), ChangeIsr(7, 5, disks((1,)), 2, (2,))))
    assert (state.elr, state.former) == (disks((3,)), {})
    again = accepted(apply(state, ChangeIsr(8, 6, disks((1,)), 2, (3,))))
    assert (again.elr, again.former) == ({}, {})


def test_a_lower_min_isr_clears_the_elr_in_the_same_step() -> None:
    state = change_isr(state_of(isr=(1,), elr=(2,), former=(3,)), 1, min_isr=1)
    assert (state.min_isr, state.elr, state.former) == (1, {}, disks((2, 3)))


def test_a_higher_min_isr_makes_nobody_eligible_who_was_not() -> None:
    before = state_of(isr=(1,), former=(2, 3), min_isr=1)
    state = change_isr(before, 1, min_isr=2)
    assert (state.min_isr, state.elr, state.former) == (2, {}, disks((2, 3)))


# -- replicas and witnesses ------------------------------------------------------------------------


def change_replicas(
    state: PartitionState, replicas: tuple[int, ...], witnesses: tuple[int, ...]
) -> Accepted | Rejected:
    return apply(state, ChangeReplicas(7, replicas, witnesses))


def test_a_new_replica_is_not_in_sync() -> None:
    state = accepted(change_replicas(state_of(), (1, 2, 3, 4), (5,)))
    assert (state.replicas, state.witnesses) == ((1, 2, 3, 4), (5,))
    assert state.isr == disks((1, 2, 3))
    assert state.leader_epoch == 5


def test_a_dropped_replica_is_forgotten_and_the_epoch_fences_what_it_said() -> None:
    before = state_of(isr=(1, 2), former=(3,))
    state = accepted(change_replicas(before, (1, 2, 4), (3, 5)))
    assert (state.isr, state.elr, state.former) == (disks((1, 2)), {}, {})
    assert (state.leader, state.leader_epoch) == (1, 6)


def test_a_member_of_a_large_enough_isr_can_be_dropped() -> None:
    assert accepted(change_replicas(state_of(), (1, 2), (4, 5))).isr == disks((1, 2))


@pytest.mark.parametrize(
    ("before", "replicas", "witnesses", "why"),
    [
        (state_of(), (), (1, 2), "at least one replica"),
        (state_of(), (1, 2, 2), (), "different brokers"),
        (state_of(), (1, 2, 3), (3, 4), "different brokers"),
        (state_of(), (1, 2, 3), (4, 4), "different brokers"),
        (state_of(), (2, 3, 4), (1, 5), "is the leader"),
        (state_of(isr=(1, 2), former=(3,)), (1, 3), (2,), "needed"),
        (state_of(isr=(1,), elr=(2,), former=(3,)), (1, 3), (2,), "needed"),
        (state_of(leader=None, isr=(1,), former=(2, 3)), (2, 3), (), "no member of the ISR"),
    ],
)
def test_a_change_that_drops_what_is_needed_is_rejected(
    before: PartitionState, replicas: tuple[int, ...], witnesses: tuple[int, ...], why: str
) -> None:
    assert why in reason(change_replicas(before, replicas, witnesses))


# -- the machine -----------------------------------------------------------------------------------


def test_the_machine_applies_bytes_and_tells_of_changes() -> None:
    changes: list[int] = []
    machine = PartitionMachine(STATE.encode())
    machine.on_change = lambda: changes.append(machine.state.version)
    assert accepted(machine.apply(Elect(7, 2, disk(2)).encode())) is machine.state
    assert "version" in reason(machine.apply(Elect(7, 2, disk(2)).encode()))
    assert "unknown kind of command" in reason(machine.apply(b"nonsense"))
    assert changes == [8]


def test_a_snapshot_restores_the_state() -> None:
    machine = PartitionMachine(PartitionMachine.encode(STATE))
    machine.apply(Elect(7, 2, disk(2)).encode())
    changes: list[int] = []
    other = PartitionMachine(STATE.encode(), on_change=lambda: changes.append(1))
    other.restore(machine.snapshot())
    assert other.state == machine.state
    assert changes == [1]


members = st.dictionaries(st.integers(0, 50), st.text("ab", min_size=1), max_size=4)
states = st.builds(
    PartitionState,
    replicas=st.lists(st.integers(0, 50), max_size=4).map(tuple),
    witnesses=st.lists(st.integers(0, 50), max_size=4).map(tuple),
    min_isr=st.integers(1, 9),
    leader=st.none() | st.integers(0, 50),
    leader_epoch=st.integers(0, 1 << 40),
    isr=members,
    elr=members,
    former=members,
    version=st.integers(0, 1 << 40),
    leader_boot=st.integers(0, 1 << 40),
    unclean_epoch=st.integers(-1, 1 << 40),
)


@given(state=states)
def test_a_state_survives_its_encoding(state: PartitionState) -> None:
    assert decode_state(state.encode()) == state


def test_equal_states_have_equal_bytes() -> None:
    other = replace(STATE, isr={2: disk(2), 1: disk(1)})
    assert other == STATE
    assert other.encode() == STATE.encode()


@given(data=st.binary(max_size=80))
def test_other_bytes_are_no_state(data: bytes) -> None:
    for bad in (data, STATE.encode()[: len(data)], b"\x01" + STATE.encode()[1:]):
        if bad != STATE.encode():
            with pytest.raises(ValueError, match="partition state"):
                decode_state(bad)


some = st.lists(st.integers(0, 6), max_size=4).map(tuple)
on_disks = st.lists(st.integers(0, 6), max_size=4).map(disks)
broker_ids = st.integers(0, 6)
any_commands = st.one_of(
    st.builds(Elect, st.just(7), broker_ids, broker_ids.map(disk)),
    st.builds(ElectUnclean, st.just(7), broker_ids, broker_ids.map(disk)),
    st.builds(ChangeReplicas, st.just(7), some, some),
    st.builds(ChangeIsr, st.just(7), st.just(5), on_disks, st.integers(1, 1 << 33), some),
)


@given(commands=st.lists(any_commands, max_size=6))
def test_whatever_is_accepted_can_be_restored_and_keeps_the_invariants(
    commands: list[Command],
) -> None:
    machine = PartitionMachine(STATE.encode())
    for command in commands:
        now = {"version": machine.state.version}
        if isinstance(command, ChangeIsr):
            now["leader_epoch"] = machine.state.leader_epoch
        machine.apply(replace(command, **now).encode())
        state = machine.state
        assert decode_state(machine.snapshot()) == state
        members = [*state.isr, *state.elr, *state.former]
        assert len(members) == len(set(members))
        assert set(members) <= set(state.replicas)
        assert state.leader in state.isr
        assert not state.elr or len(state.isr) < state.min_isr


@given(data=st.binary(max_size=80))
def test_no_bytes_make_apply_raise(data: bytes) -> None:
    machine = PartitionMachine(STATE.encode())
    for command in (data, *(bytes([kind]) + data for kind in range(6))):
        assert isinstance(machine.apply(command), Accepted | Rejected)
