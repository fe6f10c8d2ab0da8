"""Who goes on after the loss of a majority, from what, and what that costs: the plan alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raftlog.replication.election import (
    UNSEEN_ELECTIONS,
    Blocked,
    Copy,
    GoOn,
    Nothing,
    Report,
    Survivor,
    group_loss,
    plan,
)
from raftlog.replication.partition_state import PartitionState, initial_state

DISKS = {broker: f"d{broker}" for broker in range(1, 6)}
BIRTH = initial_state((1, 2, 3), (), DISKS, 2)


def state(*isr: int, version: int = 5, elr: tuple[int, ...] = (), **fields: Any) -> PartitionState:
    changed = {
        "isr": {b: DISKS[b] for b in isr},
        "elr": {b: DISKS[b] for b in elr},
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
        directory_id=disk or DISKS[broker],
        generation=generation,
        term=term,
        index=index,
        voters={voter: DISKS[voter] for voter in voters},
        leader=leader,
    )


def report(
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
    new = [report(standing(b, disk="new", rank=(0, 0, 0)), BIRTH, 0) for b in (2, 3)]
    survivor = standing(1)
    step = plan([*new, Report(broker=1, directory_id=DISKS[1], boot=7)], BIRTH)
    assert isinstance(step, Blocked)
    assert "broker 1 has just started" in step.reason
    step = plan([*new, report(survivor, state(1, 2, 3), 11)], BIRTH)
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
    left = report(standing(1, voters=voters), state(1, 2, 3), 9)
    between = report(standing(4, voters=voters, leader=2), state(1, 2, 3))
    step = plan([left, between], BIRTH)
    assert isinstance(step, Blocked)
    assert "broker 4 has contact with broker 2, the leader of the partition" in step.reason
    assert isinstance(plan([left], BIRTH), GoOn)


# -- who goes on


def test_there_is_nothing_to_do_while_a_majority_and_a_member_are_there() -> None:
    reports = [report(standing(b), state(1, 2), 9) for b in (2, 3)]
    assert plan(reports, BIRTH) == Nothing()


@pytest.mark.parametrize("known", [state(1, 3), state(1, elr=(3,)), state(3), state(1, 2, 3)])
def test_a_recovery_without_a_majority_names_every_directory_that_it_gives_up(
    known: PartitionState,
) -> None:
    """Also if the survivor was in sync, and if half of the voters remain."""
    for voters in ((1, 2, 3), (1, 3)):
        step = plan([report(standing(3, voters=voters), known, 9)], BIRTH)
        assert isinstance(step, GoOn)
        assert step.gone == {
            b: DISKS[b] for b in (1, 2) if b in voters or b in {**known.isr, **known.elr}
        }


def test_a_survivor_in_sync_may_have_left_the_isr_since() -> None:
    left = report(standing(3), state(1, 2, 3), 9)
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
    stale = report(standing(3, voters=voters, rank=(1, 2, 9)), state(1, 2, 3), 9)
    good = report(standing(2, voters=voters, rank=(1, 2, 10)), state(1, 2, version=6), 19)
    step = plan([good, stale], BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.base is not None and step.base.version) == (2, 7 + UNSEEN_ELECTIONS)


def test_with_the_operators_word_the_longest_log_leads() -> None:
    """By the epoch of its end first; and what is known to be lost is counted."""
    voters = (1, 2, 3, 4, 5)
    one = standing(1, voters=voters)
    other = standing(2, voters=voters)
    knows = state(3)
    long = report(one, knows, 30, epoch=3)
    newer = report(other, knows, 20, epoch=4)
    step = plan([long, newer], BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.lost) == (2, 10)
    assert "(brokers 3) are not available with their disks: 10 records are lost" in step.note


def test_a_group_with_its_majority_is_asked_to_elect_it() -> None:
    reports = [report(standing(b), state(1), 9 + b) for b in (2, 3)]
    step = plan(reports, BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.base, step.gone) == (3, None, {1: "d1"})
    assert step.command is not None
    assert (step.command.version, step.command.directory_id, step.command.boot) == (5, "d3", 7)


def test_the_only_copy_begins_empty_above_what_anybody_was_told() -> None:
    birth = initial_state((1,), (), DISKS, 1)
    told = replace(birth, leader_epoch=9, version=12)
    wiped = report(standing(1, disk="new", voters=(1,), rank=(0, 0, 1)), birth, 0, epoch=-1)
    other = Report(broker=2, directory_id="d2", boot=1, state=told)
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
    torn = report(standing(3), state(3, 1, 2), 9)
    assert torn.copy is not None
    torn = replace(torn, copy=replace(torn.copy, is_unsure=True))
    empty = Report(broker=2, directory_id="new", boot=1)
    step = plan([torn, empty], BIRTH)
    assert isinstance(step, GoOn)
    assert step.leader == 3


def test_without_a_sound_copy_or_an_empty_disk_nothing_can_be_done() -> None:
    birth = initial_state((1,), (), DISKS, 1)
    step = plan([Report(broker=2, directory_id="d2", boot=1)], birth)
    assert isinstance(step, Blocked)
    assert "(brokers 1) is available" in step.reason
    damaged = report(standing(3), state(3), 9, damage="bad")
    assert isinstance(plan([damaged], BIRTH), Blocked)


def test_a_copy_on_a_disk_that_may_return_is_waited_for() -> None:
    """The operator has it repaired, or replaces the disk by an empty one: then it is lost."""
    new = [report(standing(b, disk="new", rank=(0, 0, 0)), BIRTH, 0) for b in (2, 3)]
    survivor = report(standing(1), state(1, 2, 3), 11, damage="/disk2 has failed")
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
