"""Who goes on after the loss of a majority, from what, and what that costs: the plan alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raftlog.replication.partition_state import PartitionState, initial_state
from raftlog.replication.recovery import (
    UNSEEN_ELECTIONS,
    Blocked,
    Copy,
    GoOn,
    Nothing,
    Report,
    Standing,
    group_loss,
    plan,
)

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


def above_unseen(known: PartitionState) -> PartitionState:
    """Whatever those that are gone agreed on last has another version and epoch."""
    version, epoch = known.version + UNSEEN_ELECTIONS, known.leader_epoch + UNSEEN_ELECTIONS
    return replace(known, version=version, leader_epoch=epoch)


def standing(
    broker: int,
    *,
    disk: str = "",
    voters: tuple[int, ...] = (1, 2, 3),
    rank: tuple[int, int, int] = (1, 2, 9),
    saw_end: tuple[int, ...] = (),
    is_known: bool = True,
) -> Standing:
    generation, term, index = rank
    return Standing(
        broker=broker,
        directory_id=disk or DISKS[broker],
        generation=generation,
        term=term,
        index=index,
        voters={voter: DISKS[voter] for voter in voters},
        saw_end=frozenset(saw_end),
        is_known=is_known,
    )


def report(
    at: Standing, knows: PartitionState | None, end: int = -1, *, epoch: int = 4, damage: str = ""
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
    assert loss.lost == (1, 2)
    assert not loss.has_majority
    assert group_loss([standing(2), standing(3)]).has_majority


@pytest.mark.parametrize(
    ("saw_end", "is_known", "is_certain"),
    [
        ((1, 2), True, True),
        ((2,), True, True),  # the other one alone is no majority
        ((), True, False),  # both fell silent, and may live behind a cut
        ((1, 2), False, False),  # since it started it has heard of no leader
    ],
)
def test_a_survivor_is_certain_of_what_it_knows_if_it_saw_the_others_end(
    saw_end: tuple[int, ...], is_known: bool, is_certain: bool
) -> None:
    left = standing(3, saw_end=saw_end, is_known=is_known)
    assert group_loss([left]).is_certain == is_certain


def test_an_older_generation_and_an_empty_disk_are_certain_of_nothing() -> None:
    old = standing(3, saw_end=(1, 2, 4, 5), rank=(1, 2, 9), voters=(1, 2, 3, 4, 5))
    new = standing(2, rank=(2, 2, 9), voters=(1, 2, 3, 4, 5), is_known=False)
    loss = group_loss([old, new])
    assert (loss.newest, loss.is_certain) == (new, False)
    wiped = standing(3, disk="wiped", saw_end=(1, 2))
    assert not group_loss([wiped]).is_certain


def test_half_of_an_even_number_of_voters_is_certain() -> None:
    """The other half alone can have agreed on nothing."""
    loss = group_loss([standing(1, voters=(1, 2), is_known=False)])
    assert (loss.has_majority, loss.is_certain) == (False, True)


# -- who goes on


@pytest.mark.parametrize(
    ("replicas", "witnesses", "isr", "damage", "may_lose"),
    [
        ((3,), (1, 2), (3,), "", False),
        ((3,), (1, 2), (3,), "a bad batch", None),
        ((3, 2), (1,), (3,), "", True),  # it may have proposed that broker 2 is in sync
        ((2,), (1, 3), (2,), "", None),
    ],
)
def test_a_restarted_broker_with_the_only_replica_has_missed_nothing(
    replicas: tuple[int, ...],
    witnesses: tuple[int, ...],
    isr: tuple[int, ...],
    damage: str,
    may_lose: bool | None,
) -> None:
    restarted = standing(3, is_known=False)
    known = state(*isr, replicas=replicas, witnesses=witnesses, min_isr=1)
    step = plan([report(restarted, known, 9, damage=damage)], BIRTH)
    assert (step.may_lose if isinstance(step, GoOn) else None) == may_lose


def test_there_is_nothing_to_do_while_a_majority_and_a_member_are_there() -> None:
    reports = [report(standing(b), state(1, 2), 9) for b in (2, 3)]
    assert plan(reports, BIRTH) == Nothing()


def test_a_survivor_in_sync_goes_on_without_loss() -> None:
    for known in (state(1, 3), state(1, elr=(3,))):
        left = report(standing(3, saw_end=(1, 2)), known, 9)
        assert plan([left], BIRTH) == GoOn(3, 1, above_unseen(known), None, may_lose=False)


def test_a_survivor_that_may_have_left_the_isr_needs_the_operators_word() -> None:
    left = report(standing(3, is_known=False), state(1, 2, 3), 9)
    step = plan([left], BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.may_lose, step.command) == (3, True, None)
    assert step.base is not None
    assert dict(step.base.isr) == {3: "d3"}
    assert step.base.leader_epoch == 4 + UNSEEN_ELECTIONS + 1 == step.base.unclean_epoch
    assert step.base.version == 5 + UNSEEN_ELECTIONS + 1
    assert "when it last had contact with brokers 1, 2" in step.note


def test_the_newest_journal_says_who_is_in_sync() -> None:
    voters = (1, 2, 3, 4, 5)
    stale = report(standing(3, voters=voters, rank=(1, 2, 9), saw_end=voters), state(1, 2, 3), 9)
    good = report(
        standing(2, voters=voters, rank=(1, 2, 10), saw_end=(1, 4, 5)), state(1, 2, version=6), 19
    )
    step = plan([good, stale], BIRTH)
    base = above_unseen(state(1, 2, version=6))
    assert step == GoOn(2, 1, base, None, may_lose=False)


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
    assert (step.leader, step.may_lose, step.lost) == (2, True, 10)
    assert "(brokers 3) are not available with their disks: 10 records are lost" in step.note


def test_a_group_with_its_majority_is_asked_to_elect_it() -> None:
    reports = [report(standing(b), state(1), 9 + b) for b in (2, 3)]
    step = plan(reports, BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.base, step.may_lose) == (3, None, True)
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
    torn = report(standing(3, saw_end=(1, 2)), state(3, 1, 2), 9)
    assert torn.copy is not None
    torn = replace(torn, copy=replace(torn.copy, is_unsure=True))
    empty = Report(broker=2, directory_id="new", boot=1)
    step = plan([torn, empty], BIRTH)
    assert isinstance(step, GoOn)
    assert (step.leader, step.may_lose) == (3, True)


def test_without_a_sound_copy_or_an_empty_disk_nothing_can_be_done() -> None:
    birth = initial_state((1,), (), DISKS, 1)
    step = plan([Report(broker=2, directory_id="d2", boot=1)], birth)
    assert isinstance(step, Blocked)
    assert "(brokers 1) is available" in step.reason
    damaged = report(standing(3, saw_end=(1, 2)), state(3), 9, damage="bad")
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
