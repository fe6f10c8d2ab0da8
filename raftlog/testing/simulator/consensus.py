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
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgpack

from raftlog.consensus import (
    Applied,
    ConsensusNode,
    ConsensusSettings,
    Journal,
    JournalSyncTask,
    NotProposed,
    Outcome,
    journal,
)
from raftlog.consensus.journal import Entry, Kind, RaftJournal
from raftlog.consensus.transport import COMMAND, SEAL, decode
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.testing.disk import FREE_BYTES, Fault, SimDisk, Stopped
from raftlog.testing.simulator.loop import NodeLoop, SimLoop

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
        broker, raft_id = self.harm.any_broker(), self.random.choice(sorted(self.world.groups))
        for _ in range(self.random.choice((1, 1, 1, 2, 10))):
            self._propose_at(broker, raft_id)

    def _propose_at(
        self, broker: Broker, raft_id: str, done: Callable[[Outcome], None] | None = None
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

        self.world.propose(process, raft_id, command, answered, size=size)

    # -- operators ---------------------------------------------------------------------------------

    def _administer(self) -> None:
        """Seal with the new directories of wiped voters; else, if selected, without a reason."""
        random = self.random
        raft_id = random.choice(sorted(self.world.groups))
        members = sorted(self.world.newest(raft_id)[1])
        if self._has_lost_voters(raft_id):
            self._seal(raft_id, members)
        elif self.harm.has("voters") and random.random() < 0.5:
            everyone = sorted(self.world.brokers)
            size = random.randint(3 if self.harm.has("wipe") else 1, len(everyone))
            self._seal(raft_id, random.sample(everyone, size))
        elif self.harm.has("seal") and random.random() < 0.5:
            self._seal(raft_id, members)

    def _seal(self, raft_id: str, members: Sequence[int]) -> None:
        process = self.harm.any_broker().process
        if process is not None:
            brokers = self.world.brokers
            voters = {number: brokers[number].directory_id for number in sorted(members)}
            self.world.seal(process, raft_id, voters)

    def _has_lost_voters(self, raft_id: str) -> bool:
        voters = self.world.newest(raft_id)[1]
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
            for raft_id in self.world.groups:
                for process in self._processes():
                    self._propose_at(process.broker, raft_id, _noting(moved, raft_id))
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
                (process.broker.directory_id, raft_id): ledger.commands
                for process in self._processes()
                for raft_id, ledger in process.ledgers.items()
            }
        )

    def _processes(self) -> list[Process]:
        return [b.process for b in self.world.brokers.values() if b.process is not None]

    def _all_vote(self) -> str:
        """Seal until every broker is a voter of every group. Returns the missing ones, as text."""
        everyone = {n: broker.directory_id for n, broker in self.world.brokers.items()}
        outside = [g for g in self.world.groups if self.world.newest(g)[1] != everyone]
        for raft_id in outside:
            self._seal(raft_id, list(everyone))
        return f"not every broker is a voter of {outside}" if outside else ""

    def _all_apply(self) -> str:
        """Propose at every broker until its command is applied. Returns the missing ones."""
        waiting = []
        for process in self._processes():
            for raft_id in self.world.groups:
                place = process.broker.broker_id, raft_id
                if place not in self._well:
                    waiting.append(place)
                    self._propose_at(process.broker, raft_id, _noting(self._well, place))
        return f"no command that was proposed at {waiting} was applied" if waiting else ""

    def _all_agree(self) -> str:
        """Check that each group has one leader, one generation and one state."""
        apart = []
        for raft_id in self.world.groups:
            found = [process.node.status(raft_id) for process in self._processes()]
            leaders = [status for status in found if status.role == "leader"]
            views = {(s.leader, s.generation, s.term, s.applied_index) for s in found}
            if len(leaders) != 1 or len(views) != 1 or len(found) != len(self.world.brokers):
                apart.append(f"{raft_id}: {found}")
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


# -- consensus checker -----------------------------------------------------------------------------
#
# Checks of the Raft groups of a simulated cluster, during the run.
#
# - The commands that state machines apply are prefixes of one history per group. Each command is
#   applied once. When first applied, it is durable in a majority of the voters' directories.
# - There is one leader per group, generation and term. In a directory, generations and terms never
#   decrease, and there is one vote per term.
# - A command with the outcome ``Applied`` is in the history at the reported place; one with
#   ``NotProposed`` never is. Each command has one outcome.
#
# The checker does not influence the run, and uses no random numbers. It reads durable state from
# the bytes that a disk would have after a power cut, independent of the state of processes.


GroupId: TypeAlias = str
VIOLATIONS_MAX: Final = 20  # of one run; further ones are ignored


class Begun(NamedTuple):
    """Start of a generation of a group."""

    raft_id: GroupId
    generation: int
    voters: Mapping[int, str]
    base: bytes


class DurableView:
    """The durable groups of one data directory, independent of power cuts."""

    def __init__(self) -> None:
        self.trouble: list[str] = []  # violations within the directory
        self.begun: list[Begun] = []  # generations, in the order in which they were read
        self._groups: dict[GroupId, RaftJournal] = {}
        self._end = 0
        self._newest: dict[GroupId, tuple[int, int]] = {}  # generation and term

    def group(self, raft_id: GroupId) -> RaftJournal:
        found = self._groups.get(raft_id)
        return RaftJournal(raft_id, _no_record) if found is None else found

    def read_all(self, data: bytes) -> None:
        """Read a file that was replaced or truncated."""
        self._groups, self._end = {}, 0
        self.read_on(data)

    def read_on(self, data: bytes) -> None:
        """Read the blocks that were appended to the file."""
        while (header := journal.decode_header(data, self._end)) is not None:
            start = self._end + journal.HEADER_BYTES
            self._end = start + header.length
            records = msgpack.unpackb(data[start : self._end - 1], strict_map_key=False)
            for kind, *fields in records:
                self._take(kind, fields)
        for raft_id, group in self._groups.items():
            newest = group.generation, group.getCurrentTerm()
            if newest < self._newest.get(raft_id, newest):
                self.trouble.append(
                    f"{raft_id}: from generation and term {self._newest[raft_id]} to {newest}"
                )
            self._newest[raft_id] = newest

    def _take(self, kind: int, fields: list[Any]) -> None:
        if kind in (Kind.BOOT, Kind.PEER):
            return
        raft_id, *rest = fields
        if kind == Kind.DROP:
            del self._groups[raft_id]
            return
        group = self._groups.setdefault(raft_id, RaftJournal(raft_id, _no_record))
        if kind == Kind.GENERATION:
            generation, voters, base = rest
            self.begun.append(Begun(raft_id, generation, dict(voters), base))
        if kind == Kind.TERM and rest[0] == group.getCurrentTerm():
            vote = group.getVotedForNodeId()
            if vote is not None and vote != rest[1]:
                self.trouble.append(f"{raft_id}: votes {vote} and {rest[1]} in term {rest[0]}")
        group.apply(kind, rest)


class Checker:
    """Checker of one run. ``violations``: sentences; empty if the run is valid."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.history: dict[GroupId, list[bytes]] = {}
        self.acked: dict[bytes, tuple[GroupId, int]] = {}  # by command: group, and place from 1
        self.views: dict[str, DurableView] = {}  # by directory, including lost ones
        self._refused: set[bytes] = set()
        self._answered: set[bytes] = set()
        self._leaders: dict[tuple[GroupId, int, int], str] = {}
        self._begun: dict[tuple[GroupId, int], Begun] = {}

    def violated(self, sentence: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX and sentence not in self.violations:
            self.violations.append(sentence)

    # -- state machines ----------------------------------------------------------------------------

    def applied(
        self,
        raft_id: GroupId,
        place: int,
        command: bytes,
        entry: tuple[int, int, Entry] | None,
        voters: Mapping[int, str],
    ) -> None:
        """Check a command that a state machine applies as its ``place``-th one (from 1).

        ``entry``: generation, position and entry of the command in the journal of its broker; None
        if the journal does not contain it.
        """
        history = self.history.setdefault(raft_id, [])
        if place <= len(history):
            if history[place - 1] != command:
                self.violated(
                    f"{raft_id}: command {place} is {history[place - 1]!r} and {command!r}"
                )
            return
        if command in history:
            self.violated(f"{raft_id}: {command!r} is applied twice")
        if command in self._refused:
            self.violated(f"{raft_id}: {command!r} was not proposed, and is applied")
        if place != len(history) + 1:
            self.violated(f"{raft_id}: command {place} is applied after {len(history)}")
            return
        history.append(command)
        if entry is None:
            self.violated(f"{raft_id}: {command!r} is applied and not in the journal")
            return
        generation, position, stored = entry
        holders = [
            directory
            for directory in self._directories(voters)
            if self._holds(directory, raft_id, generation, position, stored)
        ]
        if len(holders) <= len(voters) // 2:
            self.violated(
                f"{raft_id}: {command!r} is committed and durable only on {holders} of {voters}"
            )

    def _directories(self, voters: Mapping[int, str]) -> list[str]:
        return [voters[broker_id] for broker_id in sorted(voters)]

    def _holds(
        self, directory: str, raft_id: GroupId, generation: int, position: int, entry: Entry
    ) -> bool:
        group = self.durable(directory, raft_id)
        return group.generation == generation and group[position : position + 1] == [entry]

    def restored(self, raft_id: GroupId, commands: list[bytes]) -> None:
        """Check the state that a state machine restores at the start of a generation."""
        history = self.history.setdefault(raft_id, [])
        if history[: len(commands)] != commands:
            self.violated(f"{raft_id}: a generation begins with commands that were never applied")

    # -- nodes -------------------------------------------------------------------------------------

    def leads(self, raft_id: GroupId, generation: int, term: int, directory: str) -> None:
        known = self._leaders.setdefault((raft_id, generation, term), directory)
        if known != directory:
            self.violated(
                f"{raft_id}: {known} and {directory} lead generation {generation}, term {term}"
            )

    def _begins(self, begun: Begun) -> None:
        """Check that a generation begins in one way, once its seal is durable on a majority."""
        raft_id, generation = begun.raft_id, begun.generation
        known = self._begun.setdefault((raft_id, generation), begun)
        if known != begun:
            self.violated(f"{raft_id}: generation {generation} begins in two ways")
        if known is not begun or not generation:
            return
        before = self._begun.get((raft_id, generation - 1))
        voters = {} if before is None else before.voters
        sealed = [
            directory
            for directory in self._directories(voters)
            if self._has_sealed(directory, raft_id, generation)
        ]
        if len(sealed) <= len(voters) // 2:
            self.violated(
                f"{raft_id}: generation {generation} begins, and its seal is durable only on "
                f"{sealed} of {dict(voters)}"
            )

    def _has_sealed(self, directory: str, raft_id: GroupId, generation: int) -> bool:
        group = self.durable(directory, raft_id)
        if group.generation == generation - 1:
            return any(command[:1] == bytes([SEAL]) for command, _index, _term in group[:])
        return group.generation >= generation

    def stored(self, directory: str, data: bytes, *, replaced: bool) -> None:
        """Read the durable bytes of a directory's journal. ``replaced``: the file is a new one."""
        view = self.views.setdefault(directory, DurableView())
        if replaced:
            view.read_all(data)
        else:
            view.read_on(data)
        for trouble in view.trouble:
            self.violated(f"{directory}: {trouble}")
        for begun in view.begun:
            self._begins(begun)
        view.begun.clear()

    def durable(self, directory: str, raft_id: GroupId) -> RaftJournal:
        """Return the durable state of a group in a directory; empty for an unknown directory."""
        return self.views.get(directory, DurableView()).group(raft_id)

    # -- outcomes ----------------------------------------------------------------------------------

    def answered(self, raft_id: GroupId, command: bytes, outcome: Outcome) -> None:
        if command in self._answered:
            self.violated(f"{raft_id}: {command!r} has two outcomes")
        self._answered.add(command)
        history = self.history.setdefault(raft_id, [])
        if isinstance(outcome, Applied):
            place = outcome.result
            if not isinstance(place, int) or history[place - 1 : place] != [command]:
                self.violated(f"{raft_id}: {command!r}: outcome {outcome}, but not applied there")
            else:
                self.acked[command] = raft_id, place
        elif isinstance(outcome, NotProposed):
            self._refused.add(command)
            if command in history:
                self.violated(f"{raft_id}: {command!r} was not proposed, and is applied")

    # -- the end -----------------------------------------------------------------------------------

    def ends(self, machines: Mapping[tuple[str, GroupId], list[bytes]]) -> None:
        """Check the commands that each voter's directory has applied after the recovery."""
        for (directory, raft_id), commands in machines.items():
            if commands != self.history.get(raft_id, []):
                self.violated(f"{raft_id}: {directory} has {len(commands)} commands at the end")
            for command, (acked_group, place) in self.acked.items():
                if acked_group == raft_id and commands[place - 1 : place] != [command]:
                    self.violated(f"{raft_id}: {command!r} was acknowledged, and {directory} "
                                  "has lost it")  # fmt: skip


def first_directory(broker_id: int) -> str:
    """Return the ID of the first data directory of a simulated broker."""
    return f"{broker_id}.0"


def _no_record(record: list[object]) -> None:
    raise AssertionError(f"a view is read-only: {record}")


# -- consensus faults ------------------------------------------------------------------------------
#
# Faults of simulated consensus: of processes, disks, clocks, connections and administrators.
#
# Each fault is a method that injects it once and schedules its end. ``consensus`` selects the
# faults of a run and their frequency. Faults stay within the guarantees: no directory is lost while
# another lost one still counts as a voter.


class Harm:
    """Injects the named faults into a simulation."""

    def __init__(self, world: World, faults: Sequence[str]) -> None:
        self.world = world
        self.random = world.random
        self._faults = frozenset(faults)
        self._harms = [name for name in HARMS if name in self._faults]

    def has(self, fault: str) -> bool:
        return fault in self._faults

    def do(self) -> None:
        """Inject one of the faults."""
        if self._harms:
            HARMS[self.random.choice(self._harms)](self)

    def set_out(self) -> None:
        """Set the properties of connections, disks and clocks for the entire run."""
        random, network = self.random, self.world.network
        network.latency_s = random.choice((0.001, 0.005, 0.03, 0.1))
        network.late = 0.5 if self.has("late") else 0.0
        network.duplicate = 0.05 if self.has("duplicate") else 0.0
        network.reorder = 0.3 if self.has("reorder") else 0.0
        for link in self.world.links.values():
            link.slowness = random.choice((1.0, 1.0, 5.0))
        for broker in self.world.brokers.values():
            broker.sync_s = random.choice((0.0005, 0.005, 0.02))
            if self.has("drift"):
                broker.clock_offset = random.uniform(0, 1e6)
                broker.clock_rate = random.uniform(0.9, 1.1)

    def heal(self) -> None:
        """End all faults. A pause in progress ends automatically."""
        world = self.world
        world.note("heal")
        world.network.latency_s = min(world.network.latency_s, 0.01)
        for link in world.links.values():
            link.is_cut, link.slowness = False, 1.0
            link.blackholes.clear()
        for broker in world.brokers.values():
            broker.disk.capacity_bytes, broker.sync_s = None, min(broker.sync_s, 0.02)
            broker.disk.faults.clear()
            world.start(broker)
        world.connect_all()

    def keep_one(self) -> None:
        """Inject one fault until the next ``heal``; the unaffected brokers are a majority."""
        world = self.world
        a, b = self._victim_and_other()
        kind = self.random.choice(("down", "pair", "one way"))
        world.note(f"keep {kind} {a} {b}")
        if kind == "down":
            world.stop(world.brokers[a], "kill")
        elif kind == "pair":
            world.link(a, b).is_cut = True
            world.disconnect(a, b)
        else:
            world.link(a, b).blackholes.add(a)

    def any_broker(self) -> Broker:
        return self.world.brokers[self.random.choice(sorted(self.world.brokers))]

    def victim(self) -> Broker:
        """Return a broker, with a preference for a leader."""
        leaders = self.world.leaders() if self.random.random() < 0.5 else []
        return self.random.choice(leaders) if leaders else self.any_broker()

    def _victim_and_other(self) -> tuple[int, int]:
        first = self.victim().broker_id
        return first, self.random.choice([n for n in self.world.brokers if n != first])

    # -- processes ---------------------------------------------------------------------------------

    def crash(self) -> None:
        self._stop("kill")

    def cut_power(self) -> None:
        self._stop("power")

    def _stop(self, way: str) -> None:
        """Stop one broker, or sometimes all at once."""
        everyone = list(self.world.brokers.values())
        for broker in everyone if self.random.random() < 0.15 else [self.victim()]:
            self.world.stop(broker, way)
            self._start_later(broker, 3.0)

    def _start_later(self, broker: Broker, at_most_s: float) -> None:
        wait_s = self.random.uniform(0.01, self.random.choice((0.1, at_most_s)))
        self.world.at(wait_s, "", self.world.start, broker)

    def wipe(self) -> None:
        """Delete a broker's directory, and restart the broker with a new one."""
        broker = self.victim()
        if all(self._may_lose(raft_id) for raft_id in self.world.groups):
            self.world.wipe(broker)
            self._start_later(broker, 2.0)

    def _may_lose(self, raft_id: str) -> bool:
        """Return whether every voter has its directory, and in it the newest generation."""
        generation, voters = self.world.newest(raft_id)
        checker = self.world.checker
        return len(voters) >= 3 and all(
            directory == self.world.brokers[number].directory_id
            and checker.durable(directory, raft_id).generation == generation
            for number, directory in voters.items()
        )

    def pause(self) -> None:
        process = self.victim().process
        if process is not None:
            process.paused_until = self.world.now + self.random.choice((0.2, 1.0, 3.0))

    # -- disks -------------------------------------------------------------------------------------

    def break_disk(self) -> None:
        """Fail a write, an fdatasync or a rename. The data may be stored or not."""
        broker = self.victim()
        if broker.process is not None:
            operations = self.random.choice((("write",), ("sync",), ("rename", "sync_dir")))
            broker.disk.faults.append(Fault(operations, forgets=self.random.random() < 0.5))
            for wait_s in (0.5, 1.5, 3.0):
                self.world.at(wait_s, "", self.world.start, broker)

    def fill_disk(self) -> None:
        disk = self.victim().disk
        disk.capacity_bytes = FREE_BYTES
        used = FREE_BYTES - disk.free_bytes(".")
        disk.capacity_bytes = used + self.random.randrange(300)
        self.world.at(self.random.uniform(0.2, 2), "", setattr, disk, "capacity_bytes", None)

    def slow_disk(self) -> None:
        broker = self.victim()
        usual = min(broker.sync_s, 0.02)
        broker.sync_s = self.random.choice((0.1, 0.5, 2.0))
        self.world.at(self.random.uniform(0.3, 3), "", setattr, broker, "sync_s", usual)

    # -- connections -------------------------------------------------------------------------------

    def cut(self) -> None:
        """Partition the network: one pair, one broker, two halves, or all pairs but a chain."""
        shape = self.random.choice(sorted(SHAPES))
        numbers = self.random.sample(sorted(self.world.brokers), len(self.world.brokers))
        pairs = [
            (a, b)
            for i, a in enumerate(numbers)
            for j, b in enumerate(numbers)
            if i < j and SHAPES[shape](i, j, len(numbers))
        ]
        for a, b in pairs:
            self.world.link(a, b).is_cut = True
            self.world.disconnect(a, b, notice_s=self._notice_s())
        self.world.at(self.random.uniform(0.1, 4), "", self._join, pairs)

    def _join(self, pairs: Sequence[tuple[int, int]]) -> None:
        for a, b in pairs:
            link = self.world.link(a, b)
            link.is_cut = False
            link.blackholes.clear()
            self.world.connect(a, b)

    def _notice_s(self) -> float:
        return self.random.choice((0.0, 0.5, 3.0)) if self.has("half open") else 0.0

    def flap(self) -> None:
        a, b = self._victim_and_other()
        self.world.disconnect(a, b, notice_s=self._notice_s())
        self.world.connect(a, b)

    def silence(self) -> None:
        """Lose all bytes that a broker sends to one other broker, or to all others."""
        a, b = self._victim_and_other()
        others = [b] if self.random.random() < 0.6 else [n for n in self.world.brokers if n != a]
        for other in others:
            self.world.link(a, other).blackholes.add(a)
        pairs = [(a, other) for other in others]
        self.world.at(self.random.uniform(0.2, 3), "", self._join, pairs)


def _pair(_first: int, second: int, _brokers: int) -> bool:
    return second == 1


def _one(first: int, _second: int, _brokers: int) -> bool:
    return first == 0


def _halves(first: int, second: int, brokers: int) -> bool:
    return first < brokers // 2 <= second


def _chain(first: int, second: int, _brokers: int) -> bool:
    return second - first > 1


# Whether two brokers are disconnected. Arguments: their places, ascending, and the broker count.
SHAPES: Final[Mapping[str, Callable[[int, int, int], bool]]] = {
    "pair": _pair,
    "one": _one,
    "halves": _halves,
    "chain": _chain,
}
HARMS: Final[Mapping[str, Callable[[Harm], None]]] = {
    "crash": Harm.crash,
    "power": Harm.cut_power,
    "wipe": Harm.wipe,
    "pause": Harm.pause,
    "broken disk": Harm.break_disk,
    "full disk": Harm.fill_disk,
    "slow disk": Harm.slow_disk,
    "cut": Harm.cut,
    "flap": Harm.flap,
    "one way": Harm.silence,
}
# The others are not events: clock drift, properties of connections, "large" commands, and seals by
# administrators ("seal": without a reason, "voters": with other voters).
FAULTS: Final = (
    *HARMS,
    *("drift", "half open", "late", "duplicate", "reorder", "large"),
    *("seal", "voters"),
)


# -- consensus process -----------------------------------------------------------------------------
#
# One broker of simulated consensus: its machine, its process, and the host of its node.
#
# The node and the journal are the real ones. This module has the duties of their host (see
# ``raftlog.consensus.node``): syncs that take time, ticks when they are due, and bytes to peers. A
# process can end at any time, and its machine starts another one.


PATH: Final = "data/consensus.journal"
REWRITE_BYTES: Final = 6_000  # small, so journals are rewritten often
RETRY_S: Final = 0.2  # between two attempts on a full disk
FOREVER_S: Final = 1e6
PADDING: Final = b"."
SETTINGS: Final = ConsensusSettings(
    election_timeout_ms=900,
    suspect_timeout_ms=100,
    heartbeat_ms=300,
    tick_ms=50,
    propose_timeout_ms=2_000,
    seal_after_entries=40,
    groups_per_turn=1,
)


class Ledger:
    """A state machine: the list of its commands. The result of each is its place, from 1."""

    def __init__(self, process: Process, raft_id: str) -> None:
        self.commands: list[bytes] = []
        self._process = process
        self._raft_id = raft_id
        self._journal: RaftJournal = process.journal.group(raft_id)
        self._generation = 0
        self._position = 0  # in the journal, after the last applied entry

    def apply(self, command: bytes) -> object:
        name = command.rstrip(PADDING)
        self.commands.append(name)
        place = len(self.commands)
        entry = self._find(bytes([COMMAND]) + command)
        self._process.world.checker.applied(self._raft_id, place, name, entry, self._journal.voters)
        return place

    def _find(self, stored: bytes) -> tuple[int, int, Entry] | None:
        if self._generation != self._journal.generation:
            self._generation, self._position = self._journal.generation, 0
        for position in range(self._position, len(self._journal)):
            entry = self._journal[position]
            if entry[0] == stored:
                self._position = position + 1
                return self._generation, position, entry
        return None

    def snapshot(self) -> bytes:
        return bytes(msgpack.packb(self.commands))

    def restore(self, snapshot: bytes) -> None:
        self.commands = msgpack.unpackb(snapshot) if snapshot else []
        self._process.world.checker.restored(self._raft_id, self.commands)


class Process:
    """One incarnation of a broker: from its start to its crash."""

    def __init__(self, broker: Broker, world: World) -> None:
        self.broker = broker
        self.world = world
        self.is_alive = True
        self.paused_until = 0.0
        self.journal = Journal.open(broker.disk, PATH, rewrite_bytes=REWRITE_BYTES)
        self.stored(replaced=True)
        self.ledgers: dict[str, Ledger] = {}
        self.task: JournalSyncTask | None = None
        self._timer = 0
        self._retry_at = 0.0  # time of the next attempt on a full disk
        self._changed: dict[str, None] = {}  # groups to check after the current call
        chance = Random(world.random.getrandbits(64))
        self.node = ConsensusNode(
            broker.broker_id,
            broker.directory_id,
            self.journal,
            settings=SETTINGS,
            chance=chance.random,
            send=self._send,
            on_state=self._note_change,
        )
        for raft_id, voters in world.groups.items():
            self.ledgers[raft_id] = Ledger(self, raft_id)
            self.node.open_group(
                raft_id, self.ledgers[raft_id], voters=voters, base=b"", now=self.now
            )
            self._note_change(raft_id)

    @property
    def now(self) -> float:
        """Time of this broker's monotonic clock, in seconds."""
        return self.broker.clock_offset + self.world.now * self.broker.clock_rate

    def do(self, action: Callable[[], object]) -> None:
        """Call the node, now or when the process is resumed; then report changes, and sync."""
        if not self.is_alive:
            return
        if self.paused_until > self.world.now:
            self.world.counts["paused"] += 1
            self.world.at(self.paused_until - self.world.now, "resumed", self.do, action)
            return
        action()
        self._report_changes()
        self._go_on()

    def _go_on(self) -> None:
        """Start a sync if the node has one; else set the timer of its next tick."""
        if not self.is_alive or self.task is not None:
            return
        if self._retry_at > self.world.now:
            return
        self.task = self.node.begin_sync()
        if self.task is None:
            self._set_timer()
        else:
            wait = self.world.sync_time(self.broker)
            self.world.at(wait, f"sync {self.broker.broker_id}", self.do, self._finish_sync)

    def _set_timer(self) -> None:
        self._timer += 1
        timer, due = self._timer, self.node.next_tick(self.now)
        wait = max(0.0, (due - self.now) / self.broker.clock_rate)
        if wait < FOREVER_S:
            self.world.at(wait, "", self._on_timer, timer)

    def _on_timer(self, timer: int) -> None:
        if timer == self._timer and self.task is None:
            self.do(lambda: self.node.tick(self.now))

    def _finish_sync(self) -> None:
        task, self.task = self.task, None
        assert task is not None
        file = task.file
        try:
            task.run()
        except OSError as error:
            failure = self.node.failed_sync(task, error)
            if isinstance(failure, StorageFailedError):
                self.world.stop(self.broker, "disk")
            else:
                self.world.counts["refused sync"] += 1
                self._retry_at = self.world.now + RETRY_S
                self.world.at(RETRY_S, "", self.do, lambda: None)
            return
        self.stored(replaced=task.file is not file)
        self.node.complete_sync(task, self.now)

    def stored(self, *, replaced: bool = False) -> None:
        data = self.broker.disk.durable_bytes(PATH) or b""
        self.world.checker.stored(self.broker.directory_id, data, replaced=replaced)

    def end(self, way: str) -> None:
        """End the process. A sync in progress may have done any part of its work."""
        self.is_alive = False
        disk, random = self.broker.disk, self.world.random
        if self.task is not None and random.random() < 0.7:
            disk.faults = [Fault(error=None, skip=random.randrange(3))]
            with suppress(Stopped, OSError):
                self.task.run()
        disk.faults = []
        if way == "power":
            disk.power_cut()
        else:
            disk.crash()

    # -- calls from the node -----------------------------------------------------------------------

    def _send(self, peer: int, envelope: bytes) -> None:
        if self.journal.is_dirty and decode(envelope).messages:
            self.world.checker.violated(f"{self.broker.broker_id} sends state that is not durable")
        self.world.transmit(self.broker.broker_id, peer, envelope)

    def _note_change(self, raft_id: str) -> None:
        """Remember that a role, a leader or a generation has changed."""
        self._changed[raft_id] = None

    def _report_changes(self) -> None:
        changed, self._changed = self._changed, {}
        if not self.is_alive:
            return
        checker = self.world.checker
        for raft_id in changed:
            status = self.node.status(raft_id)
            if status.role == "leader":
                directory = self.broker.directory_id
                checker.leads(raft_id, status.generation, status.term, directory)
            self.world.note(
                f"{self.broker.broker_id} {raft_id} {status.role} of generation "
                f"{status.generation}, term {status.term}, leader {status.leader}"
            )


@dataclass(slots=True)
class Broker:
    """The machine of a broker: the state that remains between its processes."""

    broker_id: int
    disk: SimDisk
    directory_id: str
    directories: int = 1
    clock_offset: float = 0.0
    clock_rate: float = 1.0
    sync_s: float = 0.005  # mean; longer while its disk is slow
    process: Process | None = None


# -- consensus world -------------------------------------------------------------------------------
#
# The simulation of consensus: brokers, and the network between them.
#
# One process of ``loop`` runs all brokers, with one ``Random``: a seed determines all events, and
# they are part of the digest. Unlike ``network``, this network carries envelopes instead of bytes:
# it can duplicate them, reorder them, and deliver those of closed connections. ``consensus``
# selects faults and their times, ``consensus_checker`` checks the run.


# Maximum duration of a sync, as a multiple of the mean. Without it, one sync in three million takes
# 15 means: on a disk that is slow at the time of healing, too long for groups to recover in time.
SYNC_MEANS_MAX: Final = 10


@dataclass(slots=True)
class Link:
    """The link between two brokers. ``number``: of its connection; 0 without one."""

    number: int = 0
    is_cut: bool = False  # no connection can be established
    slowness: float = 1.0  # factor of the latency
    blackholes: set[int] = field(default_factory=set)  # senders whose bytes are lost
    last: dict[int, float] = field(default_factory=dict)  # arrival of a sender's last bytes


@dataclass(slots=True)
class Network:
    """Properties of all links. Times in seconds; others are probabilities."""

    latency_s: float = 0.002
    late: float = 0.0  # that bytes of a closed connection are delivered
    duplicate: float = 0.0
    reorder: float = 0.0  # that an envelope may overtake others


class World:
    """A simulation (see the module). ``counts``: events by kind; they reveal ineffective faults."""

    def __init__(self, seed: int, brokers: int, groups: Mapping[str, Mapping[int, str]]) -> None:
        self.random = Random(seed)
        self.checker = Checker()
        self.groups = groups
        self.network = Network()
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self.trace: list[str] | None = None
        self.brokers = {number: self._broker(number) for number in range(1, brokers + 1)}
        self.links = {(a, b): Link() for a in self.brokers for b in self.brokers if a < b}
        self._loop = SimLoop()
        self._node = NodeLoop(self._loop, "world", step_ns=0)
        self._sessions = 0

    def _broker(self, number: int) -> Broker:
        return Broker(number, self._disk(), first_directory(number))

    def _disk(self) -> SimDisk:
        disk = SimDisk(Random(self.random.getrandbits(64)))
        disk.make_dirs("data")
        return disk

    # -- events ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start of the simulation."""
        return self._loop.now

    @property
    def events(self) -> int:
        return self._loop.events

    @property
    def hash(self) -> str:
        return self._loop.digest()

    def at(self, wait: float, name: str, action: Callable[..., object], *args: Any) -> None:
        """Call ``action`` in ``wait`` seconds; at the same time, in the order of these calls."""
        self._node.call_later(max(0.0, wait), self._do, name, action, args)

    def _do(self, name: str, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        if name:
            self.note(name)
        action(*args)

    def run_until(self, end: float) -> None:
        """Run events up to the time ``end``. Raises ``SimulationError`` if an event has raised."""
        self._loop.run_until(end)

    def note(self, what: str) -> None:
        self._loop.note(what)
        if self.trace is not None:
            self.trace.append(f"{self.now:.6f} {what}")

    # -- processes ---------------------------------------------------------------------------------

    def start(self, broker: Broker) -> None:
        if broker.process is not None:
            return
        self.note(f"start {broker.broker_id}")
        try:
            broker.process = Process(broker, self)
        except DiskFullError:
            broker.disk.crash()
            self.at(RETRY_S, "", self.start, broker)
            return
        broker.process.do(lambda: None)
        for other in self.brokers:
            if other != broker.broker_id:
                self.connect(broker.broker_id, other)

    def stop(self, broker: Broker, way: str) -> None:
        """End a broker's process: by "kill", by "power", or because of its "disk"."""
        process = broker.process
        if process is None:
            return
        self.note(f"stop {broker.broker_id} {way}")
        self.counts[way] += 1
        broker.process = None
        process.end(way)
        for pair in self.links:
            if broker.broker_id in pair:
                self.disconnect(*pair)

    def wipe(self, broker: Broker) -> None:
        """Stop the broker and give it an empty disk."""
        self.stop(broker, "kill")
        self.counts["wipe"] += 1
        broker.disk = self._disk()
        broker.directory_id = f"{broker.broker_id}.{broker.directories}"
        broker.directories += 1

    def leaders(self) -> list[Broker]:
        """Return the brokers that lead a group in their own view."""
        return [
            broker
            for broker in self.brokers.values()
            if (process := broker.process) is not None
            and any(process.node.status(each).role == "leader" for each in self.groups)
        ]

    def sync_time(self, broker: Broker) -> float:
        return min(self.random.expovariate(1 / broker.sync_s), SYNC_MEANS_MAX * broker.sync_s)

    # -- the network -------------------------------------------------------------------------------

    def link(self, a: int, b: int) -> Link:
        return self.links[min(a, b), max(a, b)]

    def connect(self, a: int, b: int) -> None:
        link, one, other = self.link(a, b), self.brokers[a].process, self.brokers[b].process
        if link.number or link.is_cut or one is None or other is None:
            return
        self._sessions += 1
        link.number, link.last = self._sessions, {}
        self.note(f"connect {a} {b}")
        for process, peer in ((one, other), (other, one)):
            process.do(partial(self._up, process, peer, link.number))

    def _up(self, process: Process, peer: Process, number: int) -> None:
        broker = peer.broker
        if self.link(process.broker.broker_id, broker.broker_id).number == number:
            self._check_journal(process, peer)
            process.node.peer_up(
                broker.broker_id, broker.directory_id, peer.journal.boot, process.now
            )

    def _check_journal(self, process: Process, peer: Process) -> None:
        """Check that a journal is never shorter than reported, after any fault of its machine."""
        broker, journal = peer.broker, peer.journal
        heard = process.node.heard(broker.broker_id)
        if heard is None or heard.directory_id != broker.directory_id:
            return
        if journal.boot > heard.boot and journal.opened_sequence < heard.sequence:
            self.checker.violated(
                f"boot {journal.boot} of {broker.directory_id}: its journal ended with block "
                f"{journal.opened_sequence}, after block {heard.sequence} was reported"
            )

    def connect_all(self) -> None:
        for a, b in self.links:
            self.connect(a, b)

    def disconnect(self, a: int, b: int, *, notice_s: float = 0.0) -> None:
        """End the connection. ``b`` detects it ``notice_s`` later than ``a``."""
        link = self.link(a, b)
        if not link.number:
            return
        self.note(f"disconnect {a} {b}")
        self.counts["disconnect"] += 1
        link.number = 0
        for one, other, wait in ((a, b, 0.0), (b, a, notice_s)):
            if (process := self.brokers[one].process) is not None:
                self.at(wait, "", process.do, partial(self._down, process, other))

    def _down(self, process: Process, peer: int) -> None:
        link = self.link(process.broker.broker_id, peer)
        if not link.number:  # else ``peer_up`` of a newer connection has reported it
            process.node.peer_down(peer, process.now)

    def transmit(self, source: int, target: int, envelope: bytes) -> None:
        link, receiver = self.link(source, target), self.brokers[target].process
        if receiver is None or source in link.blackholes or not link.number:
            self.counts["lost"] += 1
            return
        random, network = self.random, self.network
        copies = 2 if random.random() < network.duplicate else 1
        self.counts["duplicate"] += copies - 1
        for _ in range(copies):
            arrival = self.now + random.expovariate(1 / (network.latency_s * link.slowness))
            if random.random() >= network.reorder:
                arrival = max(arrival, link.last.get(source, 0.0))
                link.last[source] = arrival
            self.counts["overtaken"] += arrival < link.last.get(source, 0.0)
            self.at(arrival - self.now, "", self._arrive, source, receiver, envelope, link.number)

    def _arrive(self, source: int, receiver: Process, envelope: bytes, number: int) -> None:
        link = self.link(source, receiver.broker.broker_id)
        if link.number != number:
            if self.random.random() >= self.network.late:
                return
            self.counts["late"] += 1
        self.note(f"{source}>{receiver.broker.broker_id} {len(envelope)}")
        receiver.do(lambda: receiver.node.receive(source, envelope, receiver.now))

    # -- requests ----------------------------------------------------------------------------------

    def propose(
        self,
        process: Process,
        raft_id: str,
        command: bytes,
        done: Callable[[Outcome], None],
        *,
        size: int = 0,
    ) -> None:
        """Propose a command, padded to ``size`` bytes. State machines do not store the padding."""
        padded = command.ljust(size, PADDING)

        def answered(outcome: Outcome) -> None:
            self.note(f"{command.decode()} {type(outcome).__name__}")
            self.counts[type(outcome).__name__] += 1
            self.checker.answered(raft_id, command, outcome)
            done(outcome)

        process.do(lambda: process.node.propose(raft_id, padded, answered, process.now))

    def seal(self, process: Process, raft_id: str, voters: Mapping[int, str]) -> None:
        def answered(outcome: Outcome) -> None:
            self.note(f"seal {raft_id} {outcome}")
            self.counts["seal"] += isinstance(outcome, Applied)

        known, _ = self.newest(raft_id)
        process.do(lambda: process.node.seal(raft_id, voters, answered, process.now, known))

    def newest(self, raft_id: str) -> tuple[int, dict[int, str]]:
        """Return the newest generation on any disk, and its voters."""
        views = [view.group(raft_id) for view in self.checker.views.values()]
        group = max(views, key=lambda group: group.generation, default=None)
        voters = self.groups[raft_id] if group is None or group.is_new else group.voters
        return (0 if group is None else group.generation), dict(sorted(voters.items()))


COUNTED: Final = (
    *("kill", "power", "disk", "wipe", "paused", "refused sync", "seal"),
    *("disconnect", "lost", "late", "duplicate", "overtaken"),
    *("Applied", "NotProposed", "Unknown"),
)


if __name__ == "__main__":
    raise SystemExit(main())
