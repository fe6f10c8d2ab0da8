"""Simulation of the consensus layer alone, with faults. One seed determines all events.

``run(seed)`` starts brokers with real nodes and journals, proposes commands, injects faults and
heals everything. Then it requires that each broker is a voter, each group has a leader, new
commands are applied, and all states are equal. The same seed gives the same events in every
process. ``python -m raftlog.testing.simulator.consensus --help`` runs seeds and replays them.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from raftlog.consensus import Applied, Outcome
from raftlog.testing.simulator.consensus_checker import first_directory
from raftlog.testing.simulator.consensus_faults import FAULTS, Harm
from raftlog.testing.simulator.consensus_process import Broker, Process
from raftlog.testing.simulator.consensus_world import World

T = TypeVar("T")
LARGE_BYTES: Final = 59_000  # of a command; four of them fill an append request
PROGRESS_S_MAX: Final = 15.0  # within which a connected majority commits a command
HEAL_S_MAX: Final = 30.0  # within which the cluster must recover after healing


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Parameters of a run. The seed determines those that are None."""

    brokers: int | None = None  # None: 3 or 5
    groups: int | None = None  # None: 1 to 3
    faults: frozenset[str] | None = None  # of ``FAULTS``; None: a random subset
    duration_s: float = 9.0  # virtual time with faults, before healing


ANYTHING: Final = Mix()
DESCRIBED_MAX: Final = 10  # with more seeds, only failed ones are described


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a seed. ``counts``: number of events of each kind."""

    seed: int
    violations: tuple[str, ...]
    acked: int
    events: int
    hash: str
    faults: tuple[str, ...]
    counts: Mapping[str, int]
    simulated_s: float
    trace: Sequence[str] = ()


def run(seed: int, mix: Mix = ANYTHING, *, trace: bool = False) -> Report:
    """Run one seed. ``trace``: the report contains a line for each event."""
    day = _Day(seed, mix)
    world = day.world
    if trace:
        world.trace = []
    try:
        day.live()
    except Exception:  # noqa: BLE001 - any exception of the code under test is a finding
        world.checker.violated(traceback.format_exc())
    return Report(
        seed=seed,
        violations=tuple(world.checker.violations),
        acked=len(world.checker.acked),
        events=world.events,
        hash=world.hash,
        faults=day.faults,
        counts=dict(world.counts),
        simulated_s=world.now,
        trace=world.trace or (),
    )


class _Day:
    """One simulated run."""

    def __init__(self, seed: int, mix: Mix) -> None:
        random = Random(seed)
        brokers = mix.brokers or random.choice((3, 3, 3, 5))
        groups = mix.groups or random.choice((1, 2, 3))
        share = random.choice((0.2, 0.4, 0.7))
        drawn = [fault for fault in FAULTS if random.random() < share]
        chosen = drawn if mix.faults is None else mix.faults
        self.faults = tuple(fault for fault in FAULTS if fault in chosen)
        voters = {n: first_directory(n) for n in range(1, brokers + 1)}
        self.world = World(seed, brokers, {f"g{number}": voters for number in range(groups)})
        self.harm = Harm(self.world, self.faults)
        self.random = self.world.random
        self._duration_s = mix.duration_s
        self._commands = 0
        self._open: dict[bytes, Process] = {}  # proposed, without a result yet
        self._well: set[tuple[int, str]] = set()  # applied a command after healing
        self._is_over = False

    def live(self) -> None:
        self._set_out()
        self.world.run_until(self._duration_s)
        self._is_over = True
        self.harm.heal()
        if not (self.harm.has("voters") or self.harm.has("wipe")):
            self.harm.keep_one()  # groups must tolerate it: the others are a majority
            self._check_progress()
            self.harm.heal()
        self._check_recovery()

    def _set_out(self) -> None:
        world, random = self.world, self.random
        self.harm.set_out()
        for broker in world.brokers.values():
            world.at(random.uniform(0, 0.5), "", world.start, broker)
        self._now_and_then(random.choice((2.0, 8.0)), self._propose, start=0.3)
        self._now_and_then(random.choice((1.0, 3.0, 8.0)), self.harm.do, start=1.5)
        self._now_and_then(0.7, self._administer, start=2.0)

    def _now_and_then(self, per_s: float, action: Callable[[], object], *, start: float) -> None:
        def again() -> None:
            if not self._is_over:
                action()
                self.world.at(self.random.expovariate(per_s), "", again)

        self.world.at(start, "", again)

    # -- clients -----------------------------------------------------------------------------------

    def _propose(self) -> None:
        """Propose one command, or several at once."""
        broker, group_id = self.harm.any_broker(), self.random.choice(sorted(self.world.groups))
        for _ in range(self.random.choice((1, 1, 1, 2, 10))):
            self._propose_at(broker, group_id)

    def _propose_at(
        self, broker: Broker, group_id: str, done: Callable[[Outcome], None] | None = None
    ) -> None:
        process = broker.process
        if process is None:
            return
        self._commands += 1
        command = b"c%d" % self._commands
        size = LARGE_BYTES if self.harm.has("large") and self.random.random() < 0.8 else 0
        self._open[command] = process

        def answered(outcome: Outcome) -> None:
            self._open.pop(command, None)
            if done is not None:
                done(outcome)

        self.world.propose(process, group_id, command, answered, size=size)

    # -- operators ---------------------------------------------------------------------------------

    def _administer(self) -> None:
        """Seal with the new directories of wiped voters; else, if selected, without a reason."""
        random = self.random
        group_id = random.choice(sorted(self.world.groups))
        members = sorted(self.world.newest(group_id)[1])
        if self._has_lost_voters(group_id):
            self._seal(group_id, members)
        elif self.harm.has("voters") and random.random() < 0.5:
            everyone = sorted(self.world.brokers)
            size = random.randint(3 if self.harm.has("wipe") else 1, len(everyone))
            self._seal(group_id, random.sample(everyone, size))
        elif self.harm.has("seal") and random.random() < 0.5:
            self._seal(group_id, members)

    def _seal(self, group_id: str, members: Sequence[int]) -> None:
        process = self.harm.any_broker().process
        if process is not None:
            brokers = self.world.brokers
            voters = {number: brokers[number].directory_id for number in sorted(members)}
            self.world.seal(process, group_id, voters)

    def _has_lost_voters(self, group_id: str) -> bool:
        voters = self.world.newest(group_id)[1]
        return any(self.world.brokers[n].directory_id != d for n, d in voters.items())

    # -- the end -----------------------------------------------------------------------------------

    def _check_progress(self) -> None:
        """Check that each group applies a new command while one fault persists."""
        deadline = self.world.now + PROGRESS_S_MAX
        moved: set[str] = set()
        while len(moved) < len(self.world.groups):
            if self.world.now >= deadline:
                stuck = sorted(set(self.world.groups) - moved)
                self.world.checker.violated(f"{PROGRESS_S_MAX} s with one fault: {stuck} stalled")
                return
            for group_id in self.world.groups:
                for process in self._processes():
                    self._propose_at(process.broker, group_id, _noting(moved, group_id))
            self.world.run_until(self.world.now + 1.0)

    def _check_recovery(self) -> None:
        """Check that the cluster recovers within ``HEAL_S_MAX`` seconds of healing."""
        deadline = self.world.now + HEAL_S_MAX
        while missing := (
            self._all_vote() or self._all_apply() or self._all_agree() or self._all_answered()
        ):
            if self.world.now >= deadline:
                self.world.checker.violated(f"{HEAL_S_MAX} s after healing: {missing}")
                return
            self.world.run_until(self.world.now + 0.5)
        self.world.checker.ends(
            {
                (process.broker.directory_id, group_id): ledger.commands
                for process in self._processes()
                for group_id, ledger in process.ledgers.items()
            }
        )

    def _processes(self) -> list[Process]:
        return [b.process for b in self.world.brokers.values() if b.process is not None]

    def _all_vote(self) -> str:
        """Seal until every broker is a voter of every group. Returns the missing ones, as text."""
        everyone = {n: broker.directory_id for n, broker in self.world.brokers.items()}
        outside = [g for g in self.world.groups if self.world.newest(g)[1] != everyone]
        for group_id in outside:
            self._seal(group_id, list(everyone))
        return f"not every broker is a voter of {outside}" if outside else ""

    def _all_apply(self) -> str:
        """Propose at every broker until its command is applied. Returns the missing ones."""
        waiting = []
        for process in self._processes():
            for group_id in self.world.groups:
                place = process.broker.broker_id, group_id
                if place not in self._well:
                    waiting.append(place)
                    self._propose_at(process.broker, group_id, _noting(self._well, place))
        return f"no command that was proposed at {waiting} was applied" if waiting else ""

    def _all_agree(self) -> str:
        """Check that each group has one leader, one generation and one state."""
        apart = []
        for group_id in self.world.groups:
            found = [process.node.status(group_id) for process in self._processes()]
            leaders = [status for status in found if status.role == "leader"]
            views = {(s.leader, s.generation, s.term, s.applied_index) for s in found}
            if len(leaders) != 1 or len(views) != 1 or len(found) != len(self.world.brokers):
                apart.append(f"{group_id}: {found}")
        return f"brokers do not agree: {apart}" if apart else ""

    def _all_answered(self) -> str:
        """Check that every running broker has responded to its requests."""
        silent = [name for name, process in self._open.items() if process.is_alive]
        return f"no result for {silent}" if silent else ""


def _noting(where: set[T], what: T) -> Callable[[Outcome], None]:
    """Return a function that adds ``what`` if a command was applied."""

    def done(outcome: Outcome) -> None:
        if isinstance(outcome, Applied):
            where.add(what)

    return done


# -- the command line ------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds. Returns the exit status: 1 if a seed has a violation."""
    parser = argparse.ArgumentParser(prog="python -m raftlog.testing.simulator.consensus")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--count", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--brokers", type=int, help="number of brokers (default: random, 3, 5)")
    parser.add_argument("--groups", type=int, help="number of Raft groups (default: random, 1-3)")
    parser.add_argument("--seconds", type=float, default=ANYTHING.duration_s, help="of faults")
    parser.add_argument("--mix", help=f"comma-separated faults, of: {', '.join(FAULTS)}")
    parser.add_argument("--trace", action="store_true", help="print all events")
    options = parser.parse_args(arguments)
    faults = None if options.mix is None else frozenset(filter(None, options.mix.split(",")))
    if unknown := sorted((faults or frozenset()) - set(FAULTS)):
        parser.error(f"unknown fault {unknown[0]!r}. Valid faults: {', '.join(FAULTS)}")
    mix = Mix(
        brokers=options.brokers, groups=options.groups, faults=faults, duration_s=options.seconds
    )
    bad, total = [], Counter[str]()
    for seed in range(options.seed, options.seed + options.count):
        report = run(seed, mix, trace=options.trace)
        total.update({**report.counts, "acked": report.acked, "events": report.events})
        if report.violations:
            bad.append(seed)
        if options.trace or report.violations or options.count <= DESCRIBED_MAX:
            _say("\n".join(report.trace))
            _say(describe(report))
    _say(f"{options.count} seeds, {len(bad)} failed {bad[:20]}; {dict(total)}")
    return 1 if bad else 0


def describe(report: Report) -> str:
    """Return a report in a few lines."""
    head = (
        f"seed {report.seed}: {len(report.violations)} violations, {report.acked} acked, "
        f"{report.events} events, {report.simulated_s:.1f} s, hash {report.hash}"
    )
    faults = f"  faults: {', '.join(report.faults)}"
    counts = f"  counts: {dict(report.counts)}"
    violations = [f"  VIOLATION: {violation}" for violation in report.violations]
    return "\n".join([head, faults, counts, *violations])


def _say(text: str) -> None:
    if text:
        sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
