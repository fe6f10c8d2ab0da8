"""Simulated consensus: builds that must not pass, and the same events twice.

``python -m raftlog.testing.simulator.consensus --seed S --trace`` replays what a failure names.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from raftlog.consensus import hosted_group, journal, raft_group, transport
from raftlog.consensus import raft_group as groups
from raftlog.consensus.journal import Journal, JournalSyncTask, RaftJournal, RaftLog
from raftlog.consensus.node import NEVER, ConsensusNode
from raftlog.consensus.settings import NotProposed
from raftlog.consensus.transport import HELLO, Envelope, encode
from raftlog.disk import Disk, File
from raftlog.testing.disk import Fault
from raftlog.testing.simulator import consensus
from raftlog.testing.simulator.consensus import (
    FAULTS,
    HARMS,
    RETRY_S,
    SHAPES,
    Harm,
    Ledger,
    Mix,
    World,
    describe,
    run,
)
from tests.testing.simulator.consensus_worlds import GROUP, process_of, world_of

MODULE: Final = "raftlog.testing.simulator.consensus"


# -- the same events -------------------------------------------------------------------------------


def test_a_seed_gives_the_same_events_again() -> None:
    for seed in range(8):
        one, other = run(seed, trace=True), run(seed, trace=True)
        assert (one.hash, one.trace) == (other.hash, other.trace)
        assert one == other


def test_other_seeds_give_other_events() -> None:
    assert len({run(seed).hash for seed in range(8)}) == 8


@pytest.mark.integration
def test_a_seed_gives_the_same_events_in_every_process() -> None:
    """Whatever the order in which that process hashes text."""
    outputs = set()
    for hash_seed in ("0", "4242"):
        finished = subprocess.run(
            [sys.executable, "-m", MODULE, "--seed", "40", "--count", "6"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(finished.stdout)
    (output,) = outputs
    found = re.findall(r"seed (\d+): 0 violations, .* hash ([0-9a-f]{16})", output)
    assert found == [(str(seed), run(seed).hash) for seed in range(40, 46)]


# -- faults have effects ---------------------------------------------------------------------------

# What is counted of a fault that is alone, over a few seeds.
EFFECTS: Final = {
    "crash": "kill",
    "power": "power",
    "wipe": "wipe",
    "pause": "paused",
    "broken disk": "disk",
    "full disk": "refused sync",
    "cut": "disconnect",
    "flap": "disconnect",
    "one way": "lost",
    "duplicate": "duplicate",
    "reorder": "overtaken",
    "seal": "seal",
    "voters": "seal",
}


@pytest.mark.parametrize(("fault", "effect"), EFFECTS.items())
def test_a_fault_has_an_effect(fault: str, effect: str) -> None:
    """One without would test nothing. And what others do does not happen."""
    quiet, total = Counter[str](), Counter[str]()
    for seed in range(4):
        quiet.update(run(seed, Mix(brokers=3, groups=1, faults=frozenset())).counts)
        report = run(seed, Mix(brokers=3, groups=1, faults=frozenset({fault})))
        assert not report.violations, describe(report)
        assert report.faults == (fault,)
        total.update(report.counts)
    assert total[effect] > 3 * quiet[effect] + 3


def test_late_bytes_arrive_only_where_they_may() -> None:
    for faults in ({"flap", "slow disk"}, {"flap", "slow disk", "late"}):
        counts = Counter[str]()
        for seed in range(6):
            counts.update(run(seed, Mix(faults=frozenset(faults))).counts)
        assert (counts["late"] > 0) == ("late" in faults)


@pytest.mark.parametrize("fault", ["drift", "slow disk", "large", "half open"])
def test_a_fault_changes_what_happens(fault: str) -> None:
    plain = run(3, Mix(brokers=3, groups=2, faults=frozenset({"cut"})))
    with_it = run(3, Mix(brokers=3, groups=2, faults=frozenset({"cut", fault})))
    assert plain.hash != with_it.hash
    assert not with_it.violations, describe(with_it)


def test_a_quiet_day_is_quiet() -> None:
    report = run(5, Mix(brokers=5, groups=3, faults=frozenset()))
    assert not report.violations
    # The fault that is kept may end a process, and with it its connections.
    assert (report.counts["kill"], report.counts["disconnect"]) <= (1, 4)
    assert report.acked == report.counts["Applied"] > 30
    assert report.counts["Unknown"] <= 5


# -- bad builds are found --------------------------------------------------------------------------


def forget_votes(patch: pytest.MonkeyPatch) -> None:
    """Terms and votes are not journaled (hazard 6)."""

    def set_in_memory(self: RaftJournal, term: int, vote: Any) -> None:
        self._term, self._vote = term, vote

    patch.setattr(RaftJournal, "setCurrentTerm", set_in_memory)


def skip_fdatasync(patch: pytest.MonkeyPatch) -> None:
    """The journal is written and not synced (hazard 6)."""

    def write_only(self: JournalSyncTask) -> None:
        position, payload = self.file.size(), journal._array(self.records)
        self.file.append([journal.encode(payload, sequence=self.sequence, position=position)])

    patch.setattr(JournalSyncTask, "_append", write_only)


def skip_sync_of_a_rewrite(patch: pytest.MonkeyPatch) -> None:
    """A rewritten journal takes the name of the old one before it is durable (hazard 8)."""

    def write_only(disk: Disk, path: str, payload: bytes, *, sequence: int) -> File:
        file = disk.open(path, create=True)
        file.truncate(0)
        file.append([journal.encode(payload, sequence=sequence, position=0)])
        return file

    patch.setattr(journal, "write_file", write_only)


def trust_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """What a failed fdatasync has left is taken for durable."""
    patch.setattr(Journal, "_make_durable", lambda self, found: None)


def send_at_once(patch: pytest.MonkeyPatch) -> None:
    """Messages leave before what they speak of is durable (hazard 6)."""
    work = ConsensusNode._work

    def work_and_send(self: ConsensusNode, now: float) -> None:
        work(self, now)
        for peer, link in self._links.items():
            if link.has_mail:
                journal = self._journal
                for data in link.collect(journal.boot, self._directory_id, journal.sequence):
                    self._send(peer, data)

    patch.setattr(ConsensusNode, "_work", work_and_send)


def truncate_what_matches(patch: pytest.MonkeyPatch) -> None:
    """An append cuts all that follows it, whether it contradicts it or not (hazard 2)."""

    def cut_and_add(self: RaftLog, previous: int, entries: list[Any], *, commit_index: int) -> None:
        self._cut(previous + 1)
        for index, (term, entry) in enumerate(entries, start=previous + 1):
            self.add(entry, index, term)

    patch.setattr(RaftLog, "merge", cut_and_add)


def count_votes_of_one(patch: pytest.MonkeyPatch) -> None:
    """An election needs no majority (hazard 4, at its worst)."""
    patch.setattr(raft_group.Ballot, "stand", lambda self: True)


def vote_for_any_log(patch: pytest.MonkeyPatch) -> None:
    """Whether a candidate's log is up to date is not asked."""
    longest = [1 << 60, 1 << 60]
    vote, pre_vote = groups.RaftGroup._on_vote, groups.RaftGroup._on_pre_vote
    patch.setitem(
        groups.RaftGroup._HANDLERS,
        transport.VOTE,
        lambda self, peer, term, fields, now: vote(self, peer, term, longest, now),
    )
    patch.setitem(
        groups.RaftGroup._HANDLERS,
        transport.PRE_VOTE,
        lambda self, peer, term, fields, now: pre_vote(
            self, peer, term, [fields[0], *longest], now
        ),
    )


def hear_any_directory(patch: pytest.MonkeyPatch) -> None:
    """A voter that lost its disk votes on (hazard 13)."""

    def is_voter(self: hosted_group.HostedGroup, peer: int) -> bool:
        link = self._services.links.get(peer)
        return link is not None and link.is_up and peer in self.voters

    build = hosted_group.HostedGroup._build

    def build_as_voter(self: hosted_group.HostedGroup, now: float) -> None:
        services = self._services
        own = self.journal.voters.get(services.broker_id, services.directory_id)
        self._services = replace(services, directory_id=own)
        try:
            build(self, now)
        finally:
            self._services = services

    patch.setattr(hosted_group.HostedGroup, "_is_voter", is_voter)
    patch.setattr(hosted_group.HostedGroup, "_build", build_as_voter)


def admit_any_envelope(patch: pytest.MonkeyPatch) -> None:
    """Sessions and sequence numbers are not looked at (hazard 5)."""
    patch.setattr(transport.Link, "admits", lambda self, arrived: self.is_up)


def claim_to_know(patch: pytest.MonkeyPatch) -> None:
    """What may have been applied is said not to be proposed (hazard 21)."""
    patch.setattr(hosted_group, "Unknown", NotProposed)


def go_on_after_a_seal(patch: pytest.MonkeyPatch) -> None:
    """Commands after a seal are applied by those who happen to see them (hazard 12)."""
    apply = groups.RaftGroup._SyncObj__doApplyCommand

    def apply_anything(self: groups.RaftGroup, entry: bytes) -> object:
        if self.seal is not None and entry[0] == transport.COMMAND:
            return self._apply(entry[1:])
        return apply(self, entry)

    patch.setattr(groups.RaftGroup, "_SyncObj__doApplyCommand", apply_anything)
    patch.setattr(groups.RaftGroup, "accepts", property(lambda self: self.is_leader))


Sabotage = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    ("sabotage", "faults", "seeds", "words"),
    [
        (forget_votes, {"crash", "cut"}, range(100), "lead generation"),
        (skip_fdatasync, {"power"}, range(3), "durable only on"),
        (skip_sync_of_a_rewrite, {"power"}, range(60), "durable only on|damaged|goes back|to \\("),
        (trust_the_page_cache, {"broken disk"}, range(10), "durable only on|damaged"),
        (send_at_once, {"crash"}, range(3), "sends state that is not durable"),
        (
            truncate_what_matches,
            {"large", "late", "flap", "crash"},
            range(100, 400),  # seed 104 finds it
            "durable only on|not applied there",
        ),
        (count_votes_of_one, {"crash", "cut"}, range(20), "lead generation"),
        (vote_for_any_log, {"crash", "cut"}, range(60), "command \\d+ is|durable only on"),
        (hear_any_directory, {"wipe", "crash"}, range(20), "durable only on|lead generation"),
        (admit_any_envelope, {"duplicate"}, range(5), "applied twice"),
        (claim_to_know, {"crash"}, range(30), "was not proposed, and is applied"),
        (go_on_after_a_seal, {"seal", "slow disk"}, range(200), "begins in two ways|not proposed"),
    ],
)
def test_a_bad_build_is_found(
    sabotage: Sabotage,
    faults: set[str],
    seeds: range,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first seed with a violation of that kind ends the search. Others may only stall."""
    sabotage(monkeypatch)
    mix = Mix(brokers=3, groups=2, faults=frozenset(faults))
    found: list[str] = []
    for seed in seeds:
        report = run(seed, mix)
        found += report.violations
        if any(re.search(words, violation) for violation in report.violations):
            return
    raise AssertionError(f"no seed of {seeds} finds {words!r}: {found[:10]}")


def test_what_the_code_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ConsensusNode, peer: int, data: bytes, now: float) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(ConsensusNode, "receive", fail)
    report = run(0)
    assert "a defect" in report.violations[0]


def test_a_cluster_that_does_not_recover_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_group.Ballot, "vote", lambda self, peer: False)
    report = run(0, Mix(brokers=3, groups=1, faults=frozenset({"drift"})))
    stuck, lost = report.violations
    assert "s with one fault: ['g0'] stalled" in stuck
    assert "s after healing: no command that was proposed" in lost


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert consensus.main(["--seed", "7", "--count", "2"]) == 0
    printed = capsys.readouterr().out
    for seed in (7, 8):
        assert describe(run(seed)) in printed
    assert printed.splitlines()[-1].startswith("2 seeds, 0 failed []")


def test_the_command_line_takes_a_mix(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--mix", "crash,late", "--brokers", "5", "--groups", "1", "--seconds", "3"]
    assert consensus.main([*arguments, "--trace"]) == 0
    printed = capsys.readouterr().out
    assert "faults: crash, late\n" in printed
    assert re.search(r"\d\.\d{6} start 5\n", printed)
    assert re.search(r"leader of generation 0, term \d, leader \d\n", printed)


def test_a_bad_seed_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send_at_once(monkeypatch)
    assert consensus.main(["--count", "30"]) == 1
    printed = capsys.readouterr().out
    assert "VIOLATION: " in printed
    assert "30 failed [0, 1, 2," in printed


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        consensus.main(["--mix", "crash,gremlins"])
    printed = capsys.readouterr().err
    assert "unknown fault 'gremlins'" in printed
    assert all(fault in " ".join(printed.split()) for fault in FAULTS)


# -- consensus faults ------------------------------------------------------------------------------
#
# Harm to simulated consensus: what each fault does, that it ends, and what is never done.


def harm_to(world: World, *faults: str) -> Harm:
    harm = Harm(world, faults)
    harm.set_out()
    return harm


def is_whole(world: World) -> bool:
    """Everything runs, is linked, has room and is no slower than it ever is."""
    return all(
        broker.process is not None
        and broker.disk.capacity_bytes is None
        and broker.sync_s <= 0.02
        and broker.process.paused_until <= world.now
        for broker in world.brokers.values()
    ) and all(link.number and not link.blackholes for link in world.links.values())


@pytest.mark.parametrize("fault", HARMS)
@pytest.mark.parametrize("brokers", [3, 5])
def test_a_harm_ends_by_itself(fault: str, brokers: int) -> None:
    world = world_of(brokers)
    harm = harm_to(world, fault)
    for _ in range(10):
        harm.do()
        world.run_until(world.now + 0.3)
    world.run_until(world.now + 8.0)
    for broker in world.brokers.values():
        broker.disk.faults.clear()
    assert is_whole(world)
    assert world.checker.violations == []


@pytest.mark.parametrize("fault", [fault for fault in HARMS if fault not in {"flap", "wipe"}])
def test_a_harm_does_harm(fault: str) -> None:
    world = world_of()
    harm_to(world, fault).do()
    assert not is_whole(world) or any(broker.disk.faults for broker in world.brokers.values())


def test_without_faults_nothing_is_done() -> None:
    world = world_of()
    harm = harm_to(world)
    for _ in range(20):
        harm.do()
    assert is_whole(world)
    network = world.network
    assert (network.late, network.duplicate, network.reorder) == (0.0, 0.0, 0.0)
    assert {broker.clock_rate for broker in world.brokers.values()} == {1.0}


def test_healing_ends_all_at_once() -> None:
    world = world_of(5)
    harm = harm_to(world, *FAULTS)
    for _ in range(60):
        harm.do()
        world.run_until(world.now + 0.05)
    harm.heal()
    for broker in world.brokers.values():
        assert broker.process is not None
        broker.process.paused_until = 0.0
    assert is_whole(world)


@pytest.mark.parametrize("brokers", [3, 5])
def test_one_fault_may_be_kept_until_the_next_healing(brokers: int) -> None:
    kept = set()
    for seed in range(12):
        world = world_of(brokers, seed=seed)
        harm = harm_to(world)
        harm.heal()
        harm.keep_one()
        world.run_until(world.now + 10.0)
        down = sum(broker.process is None for broker in world.brokers.values())
        cut = sum(link.is_cut for link in world.links.values())
        silent = sum(bool(link.blackholes) for link in world.links.values())
        assert down + cut + silent == 1
        kept.add((down, cut, silent))
        assert len(world.leaders()) == 1
        harm.heal()
        assert is_whole(world)
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("shape", "brokers", "cut"),
    [
        ("pair", 3, [(0, 1)]),
        ("one", 3, [(0, 1), (0, 2)]),
        ("halves", 5, [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]),
        ("chain", 4, [(0, 2), (0, 3), (1, 3)]),
    ],
)
def test_shapes_of_a_netsplit(shape: str, brokers: int, cut: Sequence[tuple[int, int]]) -> None:
    found = [
        (i, j)
        for i in range(brokers)
        for j in range(i + 1, brokers)
        if SHAPES[shape](i, j, brokers)
    ]
    assert found == cut


def test_a_directory_is_lost_only_while_no_other_is() -> None:
    """And the next one once all groups have new voters, all of whom are there."""
    world = world_of()
    harm = harm_to(world, "wipe")
    for _ in range(5):
        harm.wipe()
    assert world.counts["wipe"] == 1
    world.run_until(world.now + 5.0)
    harm.wipe()
    assert world.counts["wipe"] == 1
    voters = {number: broker.directory_id for number, broker in world.brokers.items()}
    for _ in range(5):
        world.seal(process_of(world, 1), GROUP, voters)
        world.seal(process_of(world, 2), GROUP, voters)
        world.run_until(world.now + 2.0)
    assert world.newest(GROUP)[1] == voters
    harm.wipe()
    assert world.counts["wipe"] == 2
    assert world.checker.violations == []


def test_no_directory_of_two_voters_is_lost() -> None:
    world = world_of(2)
    harm = harm_to(world, "wipe")
    harm.wipe()
    assert world.counts["wipe"] == 0


def test_leaders_are_harmed_more_often() -> None:
    world = world_of(5)
    (leader,) = world.leaders()
    harm = harm_to(world)
    victims = [harm.victim().broker_id for _ in range(200)]
    assert victims.count(leader.broker_id) > 90
    assert set(victims) == set(world.brokers)


# -- consensus process -----------------------------------------------------------------------------
#
# One broker of simulated consensus: its clock, its pauses, its disk, and its end.


def propose(world: World, number: int, command: bytes) -> None:
    world.propose(process_of(world, number), GROUP, command, lambda outcome: None)


def test_a_ledger_is_the_list_of_its_commands() -> None:
    world = world_of()
    for number in range(5):
        propose(world, 1, b"c%d" % number)
    world.run_until(7.0)
    ledger = process_of(world, 1).ledgers[GROUP]
    other = Ledger(process_of(world, 2), GROUP)
    other.restore(ledger.snapshot())
    assert other.commands == ledger.commands == [b"c%d" % number for number in range(5)]
    other.restore(b"")
    assert other.commands == []
    assert world.checker.violations == []


def test_a_clock_has_its_own_base_and_rate() -> None:
    world = world_of(started=False)
    broker = world.brokers[1]
    broker.clock_offset, broker.clock_rate = 1_000.0, 1.1
    world.start(broker)
    world.run_until(10.0)
    assert process_of(world, 1).now == pytest.approx(1_011.0)


def test_a_slow_clock_still_ticks_when_its_node_wants_it() -> None:
    world = world_of(1, started=False)
    world.brokers[1].clock_offset, world.brokers[1].clock_rate = 5e5, 0.5
    world.start(world.brokers[1])
    world.run_until(5.0)
    assert len(world.leaders()) == 1


def test_a_paused_process_does_everything_when_it_goes_on() -> None:
    world = world_of()
    process = process_of(world, 2)
    done: list[int] = []
    process.paused_until = 7.0
    for number in range(3):
        process.do(lambda number=number: done.append(number))
    world.run_until(6.9)
    assert done == []
    world.run_until(7.1)
    assert done == [0, 1, 2]
    assert world.counts["paused"] >= 3


def test_a_sync_takes_time_and_nothing_leaves_before_it_is_done() -> None:
    world = world_of()
    (leader,) = world.leaders()
    process = process_of(world, leader.broker_id)
    leader.sync_s = 50.0
    process.node._beat_due = NEVER  # beats report only what is durable
    world.transmit = lambda *_: pytest.fail("nothing is durable yet")  # type: ignore[method-assign]
    propose(world, leader.broker_id, b"c1")
    while process.task is None:
        process.do(lambda: process.node.tick(process.now))
    assert process.task is not None
    assert process.journal.is_dirty


def test_a_refused_sync_is_tried_again() -> None:
    world = world_of()
    (leader,) = world.leaders()
    process = process_of(world, leader.broker_id)
    leader.disk.faults.append(Fault(("write",), errno.ENOSPC, times=3))
    propose(world, leader.broker_id, b"c1")
    world.run_until(5.0 + 2.5 * RETRY_S)
    assert process.ledgers[GROUP].commands == []
    world.run_until(9.0)
    assert process.ledgers[GROUP].commands == [b"c1"]
    assert world.counts["refused sync"] == 3


def test_a_failed_sync_ends_the_process() -> None:
    world = world_of()
    (leader,) = world.leaders()
    leader.disk.faults.append(Fault(("sync",), errno.EIO))
    propose(world, leader.broker_id, b"c1")
    world.run_until(6.0)
    assert leader.process is None
    assert world.counts["disk"] == 1


def test_what_a_power_cut_leaves_of_a_sync_under_way_is_by_chance() -> None:
    """All of the block, none of it, or a part that the next start cuts."""
    ends = set()
    for seed in range(40):
        world = world_of(1, seed=seed)
        broker = world.brokers[1]
        broker.sync_s = 50.0
        world.propose(process_of(world, 1), GROUP, b"c1", lambda outcome: None, size=3_000)
        world.run_until(world.now + 0.01)
        world.stop(broker, "power")
        world.start(broker)
        process = process_of(world, 1)
        ends.add((len(process.journal.group(GROUP)), bool(process.journal.notes)))
    assert len({entries for entries, _ in ends}) == 2
    assert len({torn for _, torn in ends}) == 2


def test_sending_what_is_not_durable_is_a_violation() -> None:
    world = world_of()
    process = process_of(world, 1)
    hello = encode(Envelope(1, 1, 1, "1.0", 0, [[GROUP, 0, 0, HELLO, True]]))
    process._send(2, hello)
    process.journal.note_peer(9, "9.0", 1)
    process._send(2, encode(Envelope(1, 1, 2, "1.0", 0, [])))  # a beat
    assert world.checker.violations == []
    process._send(2, hello)
    assert world.checker.violations == ["1 sends state that is not durable"]
