"""A whole partition under every fault: the design's invariants hold, and each guard is needed.

Once by Hypothesis, which shrinks what it finds to a short story; once by seeds, which are quick. A
guard that can be switched off unnoticed is untested: each is, and the same runs must then fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raftlog.replication import leadership, partition_state
from raftlog.replication.leadership import Diverged, Leadership
from raftlog.replication.partition_state import (
    Accepted,
    ChangeIsr,
    ChangeReplicas,
    Command,
    PartitionState,
    Rejected,
)
from tests.replication import partition_driver
from tests.replication.partition_mutants import (
    ActsOnOldStates,
    CountsOldFetches,
    CutsToWatermark,
    ForgetsDamage,
    ForgetsDamageEarly,
    LeadsOnAfterRestart,
    LeadsOnAnyDisk,
    ObeysOldAnswers,
)
from tests.replication.partition_world import Oracle, World

STEPS = 400
SEEDS_FOR_A_MUTANT = 3_000


class PartitionMachine(RuleBasedStateMachine):
    """Up to three replicas and two witnesses; every operation of the driver is a rule."""

    @initialize(replicas=st.integers(2, 3), witnesses=st.integers(0, 2), min_isr=st.integers(1, 3))
    def begin(self, replicas: int, witnesses: int, min_isr: int) -> None:
        self.world = World(replicas, witnesses, min(min_isr, replicas))

    @invariant()
    def nothing_committed_is_lost(self) -> None:
        if hasattr(self, "world"):
            self.world.check()


def as_rule(name: str, operation: partition_driver.Operation) -> Callable[..., None]:
    """A small number stands for what else has to be chosen: which broker, which message."""

    def step(self: PartitionMachine, number: int) -> None:
        operation(self.world, Random(number))

    step.__name__ = name
    return rule(number=st.integers(0, 200))(step)


OPERATIONS = partition_driver.ALWAYS | partition_driver.FAULTS
RULES = {name: as_rule(name, operation) for name, (_, operation) in OPERATIONS.items()}
PartitionTimeline = type("PartitionStory", (PartitionMachine,), RULES)
TestPartitionTimeline = PartitionTimeline.TestCase
TestPartitionTimeline.settings = settings(stateful_step_count=80)


def test_seeded_runs_break_no_promise(seed: int) -> None:
    for number in range(seed, seed + 100):
        partition_driver.run(number, STEPS)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(1_250, marks=pytest.mark.seeds),
        pytest.param(100_000, marks=pytest.mark.nightly),
    ],
)
def test_many_seeded_runs_break_no_promise(seed: int, runs: int) -> None:
    for number in range(seed, seed + runs):
        partition_driver.run(number, STEPS)


def convergence(world: World) -> list[str]:
    """What is still wrong after all faults have ended."""
    partition_driver.converge(world)
    state = world.state
    leader = world.nodes[state.leader or 0]
    assert leader.leadership is not None, "nobody leads"
    wrong = {
        "the leader has not heard of the newest state": leader.state != state,
        "the leader is not ready": not leader.leadership.is_ready,
        "records are not committed": leader.high_watermark != leader.end,
        "replicas are out of sync": set(state.isr) != set(state.replicas),
        "too many or too few replicas": len(state.replicas) != world.replication_factor,
        "a copy is lost for good": any(node.is_damaged for node in world.nodes.values()),
        "min_isr is not what was asked for": state.min_isr != world.min_isr,
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]


def test_when_faults_end_all_is_well_again(seed: int) -> None:
    for number in range(seed, seed + 30):
        assert convergence(partition_driver.run(number, STEPS)) == [], f"seed {number}"


def test_seeded_runs_get_somewhere(seed: int) -> None:
    """Runs in which nothing is committed, nobody elected and no log cut could break no promise."""
    worlds = [partition_driver.run(number, STEPS) for number in range(seed, seed + 100)]
    assert sum(world.oracle.true_end for world in worlds) > 1_000
    assert sum(world.state.leader_epoch for world in worlds) > 200
    assert sum(world.cuts for world in worlds) > 50
    assert any(world.state.elr for world in worlds)


def test_a_seed_gives_the_same_run_again(seed: int) -> None:
    first, second = (partition_driver.run(seed, STEPS) for _ in range(2))
    assert first.history == second.history
    assert first.oracle.committed == second.oracle.committed


# -- every guard is needed -------------------------------------------------------------------------


# Each with the faults that bring it out sooner than any.
WORLDS: dict[type[World], tuple[str, ...]] = {
    CountsOldFetches: ("transfer", "trim", "replace_replica"),
    ObeysOldAnswers: (),
    CutsToWatermark: (),
    LeadsOnAfterRestart: (),
    LeadsOnAnyDisk: ("wipe",),
    ActsOnOldStates: ("crash", "swap_roles"),
    ForgetsDamage: ("damage",),
    ForgetsDamageEarly: ("damage", "suspect"),
}

Patch = tuple[object, str, Any]


def counts_what_is_proposed() -> Patch:
    """The ISR as it will be, instead of the maximal one (S07)."""

    def maximal_isr(self: Leadership) -> set[tuple[int, str]]:
        isr = self.state.isr if self._pending is None else self._pending.isr
        return set(isr.items())

    return Leadership, "maximal_isr", maximal_isr


def counts_what_is_committed() -> Patch:
    """The committed ISR, whatever addition is in flight (S07)."""
    return Leadership, "maximal_isr", lambda self: set(self.state.isr.items())


def forgets_what_is_unknown() -> Patch:
    """A proposal whose outcome is unknown counts as rejected (S07)."""

    def proposal_done(self: Leadership, change: ChangeIsr, accepted: bool | None) -> None:
        self._end_proposal()

    return Leadership, "proposal_done", proposal_done


def forgets_that_it_was_in_doubt() -> Patch:
    """A second try is rejected because the first was not; that counts as rejected (S07)."""
    original = Leadership.proposal_done

    def proposal_done(self: Leadership, change: ChangeIsr, accepted: bool | None) -> None:
        self._is_doubtful = False
        original(self, change, accepted)

    return Leadership, "proposal_done", proposal_done


def waits_for_a_higher_min_isr() -> Patch:
    """One that is proposed counts only once the leader knows that it is committed."""
    has_quorum = property(lambda self: len(self.state.isr) >= self.state.min_isr)
    return Leadership, "has_quorum", has_quorum


def joins_below_the_epochs_start() -> Patch:
    """S06."""

    def may_join(self: Leadership, follower: Any, directory_id: str) -> bool:
        return bool(
            follower.directory_id == directory_id and follower.durable_end >= self.high_watermark
        )

    return Leadership, "_may_join", may_join


def joins_below_the_watermark() -> Patch:
    def may_join(self: Leadership, follower: Any, directory_id: str) -> bool:
        return bool(
            follower.directory_id == directory_id and follower.durable_end >= self.epoch_start
        )

    return Leadership, "_may_join", may_join


def joins_on_any_disk() -> Patch:
    """S10."""

    def may_join(self: Leadership, follower: Any, directory_id: str) -> bool:
        return bool(follower.durable_end >= max(self.high_watermark, self.epoch_start))

    return Leadership, "_may_join", may_join


def counts_any_disk() -> Patch:
    """S20: a follower with another disk stands for the member of the ISR."""

    def copy(self: Leadership, broker: int, _directory_id: str) -> Any:
        return self._followers.get(broker)

    return Leadership, "_copy", copy


def counts_what_is_not_durable() -> Patch:
    original = Leadership.on_fetch

    def on_fetch(self: Leadership, follower: int, directory_id: str, **at: Any) -> bool:
        at["durable_offset"] = at["fetch_offset"]
        return original(self, follower, directory_id, **at)

    return Leadership, "on_fetch", on_fetch


def does_not_wait_for_its_own_disk() -> Patch:
    original = Leadership.on_local

    def on_local(self: Leadership, *, log_end: int, durable_end: int) -> bool:
        return original(self, log_end=log_end, durable_end=log_end)

    return Leadership, "on_local", on_local


def commits_below_min_isr() -> Patch:
    """S11."""
    return Leadership, "has_quorum", True


def keeps_the_elr() -> Patch:
    """It is not cleared when the ISR is large enough to commit without it."""
    return partition_state, "_elr_after", lambda isr, min_isr, left: left


def keeps_no_elr() -> Patch:
    return partition_state, "_elr_after", lambda isr, min_isr, left: {}


def applies_whatever_the_version() -> Patch:
    """S08."""
    original = partition_state.apply

    def apply(state: PartitionState, command: Command) -> Accepted | Rejected:
        command = replace(command, version=state.version)
        if isinstance(command, partition_state.ChangeIsr):
            command = replace(command, leader_epoch=state.leader_epoch)
        return original(state, command)

    return partition_state, "apply", apply


def elects_in_the_same_epoch() -> Patch:
    """S17."""
    original = partition_state._elect

    def elect(state: PartitionState, command: partition_state.Elect) -> PartitionState | str:
        changed = original(state, command)
        if isinstance(changed, PartitionState) and changed.leader == state.leader:
            return replace(changed, leader_epoch=state.leader_epoch)
        return changed

    return partition_state, "_elect", elect


def drops_replicas_in_the_same_epoch() -> Patch:
    """S20."""
    original = partition_state._change_replicas

    def change(state: PartitionState, command: ChangeReplicas) -> PartitionState | str:
        changed = original(state, command)
        if isinstance(changed, PartitionState):
            return replace(changed, leader_epoch=state.leader_epoch)
        return changed

    return partition_state, "_change_replicas", change


def never_finds_a_difference() -> Patch:
    """S02."""
    return leadership, "divergence", lambda *_, **__: None


def looks_at_the_end_only() -> Patch:
    """S03: KIP-101 without KIP-279: the epoch that answers is not looked at."""
    original = leadership.divergence

    def divergence(epochs: Any, **at: int) -> Any:
        found = original(epochs, **at)
        if isinstance(found, Diverged) and found.end_offset >= at["fetch_offset"]:
            return None
        return found

    return leadership, "divergence", divergence


def cuts_to_the_leaders_end_only() -> Patch:
    """S03: the follower does not look where that epoch ends in its own log."""

    def point(epochs: Any, *, log_end: int, log_start: int, diverged: Diverged) -> int:
        return min(diverged.end_offset, log_end)

    return leadership, "truncation_point", point


def believes_the_lost() -> Patch:
    """P6: a copy that is lost leaves the ISR as one that may be elected."""
    original = partition_state._change_isr

    def change(state: PartitionState, command: ChangeIsr) -> PartitionState | str:
        return original(state, replace(command, lost=()))

    return partition_state, "_change_isr", change


def loses_copies_in_the_same_epoch() -> Patch:
    """P6: what the lost copy acknowledged still counts."""
    original = partition_state._change_isr

    def change(state: PartitionState, command: ChangeIsr) -> PartitionState | str:
        changed = original(state, command)
        if isinstance(changed, PartitionState):
            return replace(changed, leader_epoch=state.leader_epoch)
        return changed

    return partition_state, "_change_isr", change


IN_FLIGHT = [counts_what_is_proposed, counts_what_is_committed, forgets_what_is_unknown]
PATCHES: dict[Callable[[], Patch], tuple[str, ...]] = {
    counts_what_is_proposed: (),
    counts_what_is_committed: (),
    forgets_what_is_unknown: ("forget_outcome",),
    forgets_that_it_was_in_doubt: ("forget_outcome", "suspect"),
    waits_for_a_higher_min_isr: ("set_min_isr",),
    joins_below_the_epochs_start: ("suspect", "power_cut"),
    joins_below_the_watermark: (),
    joins_on_any_disk: ("wipe",),
    counts_any_disk: ("wipe",),
    counts_what_is_not_durable: (),
    does_not_wait_for_its_own_disk: (),
    commits_below_min_isr: (),
    keeps_the_elr: (),
    keeps_no_elr: (),
    applies_whatever_the_version: (),
    elects_in_the_same_epoch: (),
    drops_replicas_in_the_same_epoch: ("drop_and_add",),
    never_finds_a_difference: (),
    looks_at_the_end_only: (),
    cuts_to_the_leaders_end_only: (),
}


def first_failure(faults: tuple[str, ...], make_world: type[World] = World) -> str:
    """What breaks first, with the seed of the run; raises when nothing does."""
    for number in range(SEEDS_FOR_A_MUTANT):
        try:
            partition_driver.run(number, STEPS, make_world, faults)
        except AssertionError as error:
            return f"seed {number}: {error}"
    raise RuntimeError("nothing noticed that the guard is gone")


@pytest.mark.parametrize("patch", IN_FLIGHT, ids=lambda patch: patch.__name__)
def test_without_the_maximal_isr_more_breaks_than_its_own_rule(
    patch: Callable[[], Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6 says nearly in so many words what these break; what it is there for breaks too."""
    monkeypatch.setattr(Oracle, "check_maximal", lambda *_: None)
    monkeypatch.setattr(*patch())
    assert first_failure(PATCHES[patch])


# They see the absence of these only after many runs.
RARE = (
    ForgetsDamageEarly,
    joins_below_the_epochs_start,
    joins_on_any_disk,
    drops_replicas_in_the_same_epoch,
)


def by_price(guards: Iterable[Any]) -> list[Any]:
    return [pytest.param(g, marks=[pytest.mark.nightly] * (g in RARE)) for g in guards]


@pytest.mark.parametrize("make_world", by_price(WORLDS), ids=lambda world: world.__name__)
def test_without_this_guard_of_the_broker_a_promise_breaks(make_world: type[World]) -> None:
    assert first_failure(WORLDS[make_world], make_world)


@pytest.mark.parametrize("patch", by_price(PATCHES), ids=lambda patch: patch.__name__)
def test_without_this_guard_a_promise_breaks(
    patch: Callable[[], Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*patch())
    assert first_failure(PATCHES[patch])


@pytest.mark.parametrize("patch", [believes_the_lost, loses_copies_in_the_same_epoch])
def test_without_this_guard_a_lost_copy_is_never_repaired(
    patch: Callable[[], Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: it waits to be forgotten, and nobody forgets it."""
    monkeypatch.setattr(*patch())
    worlds = [partition_driver.run(number, STEPS, World, ["damage"]) for number in range(20)]
    assert any("a copy is lost for good" in convergence(world) for world in worlds)
