"""Simulated consensus: its world, and its judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack
import pytest

from raftlog.consensus import Applied, NotProposed, Outcome, Unknown, journal
from raftlog.consensus.journal import Kind
from raftlog.consensus.transport import COMMAND, SEAL
from raftlog.testing.simulator.consensus import (
    SYNC_MEANS_MAX,
    VIOLATIONS_MAX,
    Checker,
    DurableView,
    World,
)
from tests.testing.simulator.consensus_worlds import GROUP, process_of, world_of

# -- the world -------------------------------------------------------------------------------------

# The world of simulated consensus: events in order, wires that do what they are told.


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What nodes receive, taken down instead."""
    taken: list[bytes] = []

    def take(self: object, peer: int, data: bytes, now: float) -> None:
        taken.append(data)

    monkeypatch.setattr("raftlog.consensus.node.ConsensusNode.receive", take)
    return taken


# -- events ----------------------------------------------------------------------------------------


def test_events_come_in_the_order_of_time_and_then_of_asking() -> None:
    world = world_of(started=False)
    seen: list[str] = []
    for wait, name in ((2.0, "late"), (1.0, "a"), (1.0, "b"), (-5.0, "now")):
        world.at(wait, name, seen.append, name)
    world.run_until(1.5)
    assert (seen, world.now) == (["now", "a", "b"], 1.5)
    world.run_until(9.0)
    assert (seen[-1], world.now, world.events) == ("late", 9.0, 4)


def test_no_sync_takes_longer_than_the_groups_have_to_recover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of(started=False)
    broker = world.brokers[1]
    broker.sync_s = 2.0
    monkeypatch.setattr(world.random, "random", lambda: 1 - 2**-53)  # of which expovariate is made
    assert world.sync_time(broker) == SYNC_MEANS_MAX * broker.sync_s


def test_the_hash_is_of_what_happened_and_when() -> None:
    def hash_of(happen: Callable[[World], None]) -> str:
        world = world_of(started=False)
        happen(world)
        world.run_until(10)
        return world.hash

    def note(wait: float, name: str) -> Callable[[World], None]:
        return lambda world: world.at(wait, name, lambda: None)

    plain = hash_of(note(1.0, "a"))
    assert plain == hash_of(note(1.0, "a"))
    assert len({plain, hash_of(note(1.1, "a")), hash_of(note(1.0, "b"))}) == 3


# -- a cluster -------------------------------------------------------------------------------------


def test_brokers_find_a_leader_and_apply_commands() -> None:
    world = world_of()
    outcomes: list[Outcome] = []
    assert len(world.leaders()) == 1
    for number in world.brokers:
        world.propose(process_of(world, number), GROUP, b"c%d" % number, outcomes.append)
    world.run_until(8.0)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Applied"] * 3
    (history,) = {tuple(process_of(world, n).ledgers[GROUP].commands) for n in world.brokers}
    assert sorted(history) == [b"c1", b"c2", b"c3"]
    assert world.checker.violations == []
    assert world.counts["Applied"] == len(world.checker.acked) == 3


def test_a_large_command_has_a_short_name() -> None:
    world = world_of()
    outcomes: list[Outcome] = []
    world.propose(process_of(world, 1), GROUP, b"c1", outcomes.append, size=40_000)
    world.run_until(8.0)
    assert process_of(world, 2).ledgers[GROUP].commands == [b"c1"]
    assert process_of(world, 2).journal.group(GROUP)[-1][0].startswith(b"\x10c1....")
    assert world.checker.violations == []


def test_a_seal_is_answered_and_noted() -> None:
    world = world_of()
    assert world.newest(GROUP) == (0, {1: "1.0", 2: "2.0", 3: "3.0"})
    world.seal(process_of(world, 2), GROUP, {1: "1.0", 2: "2.0"})
    world.run_until(8.0)
    assert world.newest(GROUP) == (1, {1: "1.0", 2: "2.0"})
    assert world.counts["seal"] == 1


def test_nothing_is_on_any_disk_before_the_first_start() -> None:
    world = world_of(started=False)
    assert world.newest(GROUP) == (0, {1: "1.0", 2: "2.0", 3: "3.0"})
    assert world.leaders() == []


# -- starts and stops ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["kill", "power", "disk"])
def test_a_stopped_broker_is_gone_and_comes_back(way: str) -> None:
    world = world_of()
    broker, before = world.brokers[2], process_of(world, 2)
    boot = before.journal.boot
    world.stop(broker, way)
    world.stop(broker, way)
    assert (broker.process, before.is_alive, world.counts[way]) == (None, False, 1)
    assert not any(link.number for pair, link in world.links.items() if 2 in pair)
    before.do(lambda: pytest.fail("it is gone"))
    world.run_until(9.0)
    world.start(broker)
    world.start(broker)
    assert process_of(world, 2).journal.boot == boot + 1
    assert all(link.number for link in world.links.values())


def test_a_wiped_broker_comes_back_with_another_directory_and_nothing_in_it() -> None:
    world = world_of()
    broker = world.brokers[2]
    world.wipe(broker)
    world.start(broker)
    assert broker.directory_id == "2.1"
    assert process_of(world, 2).journal.boot == 1
    assert len(process_of(world, 2).journal.group(GROUP)) == 0
    assert world.counts["wipe"] == 1


def test_a_broker_on_a_full_disk_starts_once_there_is_room() -> None:
    world = world_of(started=False)
    broker = world.brokers[1]
    broker.disk.capacity_bytes = 0
    world.start(broker)
    world.run_until(1.0)
    assert broker.process is None
    broker.disk.capacity_bytes = None
    world.run_until(2.0)
    assert process_of(world, 1).journal.boot == 1


# -- wires -----------------------------------------------------------------------------------------


def test_envelopes_arrive_in_their_order(arrived: list[bytes]) -> None:
    world = world_of()
    sent = [b"%d" % number for number in range(200)]
    arrived.clear()
    for envelope in sent:
        world.transmit(1, 2, envelope)
    world.run_until(6.0)
    assert [data for data in arrived if data in sent] == sent


def test_they_may_overtake_and_come_twice_where_the_network_is_such(arrived: list[bytes]) -> None:
    world = world_of()
    world.network.reorder, world.network.duplicate = 0.5, 0.2
    sent = [b"%d" % number for number in range(200)]
    for envelope in sent:
        world.transmit(1, 2, envelope)
    world.run_until(6.0)
    found = [data for data in arrived if data in sent]
    assert found != sorted(found, key=int)
    assert set(found) == set(sent)
    assert 220 < len(found) <= 200 + world.counts["duplicate"], "of these, and of beats"


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_bytes_of_a_connection_that_ended_are_lost_or_late(
    late: float, arrived: list[bytes]
) -> None:
    world = world_of()
    world.network.late = late
    world.transmit(1, 2, b"envelope")
    world.disconnect(1, 2)
    world.connect(1, 2)
    world.run_until(6.0)
    assert (b"envelope" in arrived) == bool(late)
    assert bool(world.counts["late"]) == bool(late)


def test_a_black_hole_takes_one_direction(arrived: list[bytes]) -> None:
    world = world_of()
    world.link(1, 2).blackholes.add(1)
    world.transmit(1, 2, b"into the hole")
    world.transmit(2, 1, b"out of it")
    world.run_until(6.0)
    assert (b"into the hole" in arrived, b"out of it" in arrived) == (False, True)


def test_nothing_passes_a_link_that_is_cut(arrived: list[bytes]) -> None:
    world = world_of()
    world.link(1, 2).is_cut = True
    world.disconnect(2, 1)
    world.connect_all()
    world.transmit(1, 2, b"over the cut")
    world.run_until(6.0)
    assert world.link(1, 2).number == 0
    assert b"over the cut" not in arrived


def test_one_side_may_notice_the_end_of_a_connection_later(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed: list[tuple[float, int]] = []
    world = world_of()

    def take(self: object, peer: int, now: float) -> None:
        noticed.append((now, peer))

    monkeypatch.setattr("raftlog.consensus.node.ConsensusNode.peer_down", take)
    world.disconnect(1, 2, notice_s=3.0)
    world.run_until(9.0)
    assert noticed == [(5.0, 2), (8.0, 1)]


def test_a_new_connection_needs_no_notice_of_the_end_of_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of()
    monkeypatch.setattr(
        "raftlog.consensus.node.ConsensusNode.peer_down", lambda *_: pytest.fail("there is one")
    )
    world.disconnect(1, 2, notice_s=1.0)
    world.connect(1, 2)
    world.run_until(7.0)


def test_an_isolated_broker_answers_what_it_was_asked() -> None:
    world = world_of()
    outcomes: list[Outcome] = []
    for other in (2, 3):
        world.link(1, other).is_cut = True
        world.disconnect(1, other)
    world.run_until(8.0)
    world.propose(process_of(world, 1), GROUP, b"c1", outcomes.append)
    world.run_until(12.0)
    assert isinstance(outcomes[0], NotProposed)
    assert [broker.broker_id for broker in world.leaders()] != [1]


# -- the judge -------------------------------------------------------------------------------------

# The judge of simulated consensus: whatever it is there to find, it finds, and nothing else.


VOTERS: Final = {1: "1.0", 2: "2.0", 3: "3.0"}
PAIRS: Final = [list(pair) for pair in VOTERS.items()]


def stored(command: bytes) -> bytes:
    return bytes([COMMAND]) + command


def block(*records: Sequence[Any], sequence: int = 1, position: int = 0) -> bytes:
    return journal.encode(msgpack.packb(records), sequence=sequence, position=position)


def begun(generation: int = 0, *commands: bytes, group: str = "g", term: int = 1) -> list[Any]:
    entries = [[Kind.ADD, group, n, term, stored(c)] for n, c in enumerate(commands, start=1)]
    return [[Kind.GENERATION, group, generation, PAIRS, b""], *entries]


def checker_with(*commands: bytes, on: Sequence[str] = ("1.0", "2.0")) -> Checker:
    """These commands are entries in the journals of these directories."""
    checker = Checker()
    for directory in on:
        checker.stored(directory, block(*begun(0, *commands)), replaced=True)
    return checker


def apply(checker: Checker, place: int, command: bytes, *, position: int | None = None) -> None:
    position = place - 1 if position is None else position
    entry = (0, position, (stored(command), position + 1, 1))
    checker.applied("g", place, command, entry, VOTERS)


def test_a_good_day_has_no_violations() -> None:
    checker = checker_with(b"a", b"b")
    for _machine in range(3):
        apply(checker, 1, b"a")
        apply(checker, 2, b"b")
    checker.answered("g", b"a", Applied(1))
    checker.answered("g", b"b", Unknown("the leader changed"))
    checker.answered("g", b"c", NotProposed("no leader"))
    checker.leads("g", 0, 1, "1.0")
    checker.leads("g", 0, 1, "1.0")
    checker.leads("g", 0, 2, "2.0")
    checker.restored("g", [b"a"])
    checker.ends({("1.0", "g"): [b"a", b"b"], ("2.0", "g"): [b"a", b"b"]})
    assert checker.violations == []
    assert checker.acked == {b"a": ("g", 1)}


def other_history(checker: Checker) -> None:
    apply(checker, 1, b"a")
    apply(checker, 1, b"b", position=1)


def twice(checker: Checker) -> None:
    apply(checker, 1, b"a")
    apply(checker, 2, b"a", position=0)


def gap(checker: Checker) -> None:
    apply(checker, 2, b"b")


def not_in_the_journal(checker: Checker) -> None:
    checker.applied("g", 1, b"a", None, VOTERS)


def a_refused_command_applied(checker: Checker) -> None:
    checker.answered("g", b"a", NotProposed("no leader"))
    apply(checker, 1, b"a")


def an_applied_command_refused(checker: Checker) -> None:
    apply(checker, 1, b"a")
    checker.answered("g", b"a", NotProposed("no leader"))


def acked_and_never_applied(checker: Checker) -> None:
    checker.answered("g", b"a", Applied(1))


def acked_in_another_place(checker: Checker) -> None:
    apply(checker, 1, b"a")
    apply(checker, 2, b"b")
    checker.answered("g", b"a", Applied(2))


def acked_with_a_strange_result(checker: Checker) -> None:
    apply(checker, 1, b"a")
    checker.answered("g", b"a", Applied(None))


def answered_twice(checker: Checker) -> None:
    for _ in range(2):
        checker.answered("g", b"a", Unknown("lost"))


def two_leaders(checker: Checker) -> None:
    checker.leads("g", 0, 1, "1.0")
    checker.leads("g", 0, 1, "2.0")


def restored_from_nowhere(checker: Checker) -> None:
    checker.restored("g", [b"x"])


def lost_at_the_end(checker: Checker) -> None:
    apply(checker, 1, b"a")
    checker.answered("g", b"a", Applied(1))
    checker.ends({("1.0", "g"): [], ("2.0", "g"): [b"a"]})


def begun_without_a_seal(checker: Checker) -> None:
    checker.stored("3.0", block(*begun(1)), replaced=True)


def begun_in_two_ways(checker: Checker) -> None:
    checker.stored("3.0", block([Kind.GENERATION, "g", 0, PAIRS[:2], b""]), replaced=True)


def begun_with_two_states(checker: Checker) -> None:
    checker.stored("3.0", block([Kind.GENERATION, "g", 0, PAIRS, b"x"]), replaced=True)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (other_history, "command 1 is"),
        (twice, "applied twice"),
        (gap, "command 2 is applied after 0"),
        (not_in_the_journal, "not in the journal"),
        (a_refused_command_applied, "was not proposed, and is applied"),
        (an_applied_command_refused, "was not proposed, and is applied"),
        (acked_and_never_applied, "not applied there"),
        (acked_in_another_place, "not applied there"),
        (acked_with_a_strange_result, "not applied there"),
        (answered_twice, "two outcomes"),
        (two_leaders, "lead generation 0, term 1"),
        (restored_from_nowhere, "commands that were never applied"),
        (lost_at_the_end, "has lost it"),
        (begun_without_a_seal, "its seal is durable only on ['3.0']"),
        (begun_in_two_ways, "begins in two ways"),
        (begun_with_two_states, "begins in two ways"),
    ],
)
def test_it_sees(harm: Callable[[Checker], None], words: str) -> None:
    checker = checker_with(b"a", b"b")
    harm(checker)
    assert any(words in violation for violation in checker.violations), checker.violations


# -- what is durable -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "is_enough"),
    [((), False), (("1.0",), False), (("1.0", "3.0"), True), (("1.0", "2.1"), False)],
)
def test_a_command_is_on_most_voters_disks_when_it_is_applied(
    on: Sequence[str], is_enough: bool
) -> None:
    """Of the directories that vote: another directory of the same broker does not count."""
    checker = checker_with(b"a", on=on)
    apply(checker, 1, b"a")
    assert (checker.violations == []) == is_enough


def test_another_entry_in_its_place_does_not_count() -> None:
    for other in (begun(0, b"x"), begun(0, b"a", term=2), begun(1, b"a"), begun(0, b"x", b"a")):
        checker = checker_with(b"a", on=["1.0"])
        for directory in ("2.0", "3.0"):
            checker.stored(directory, block(*other), replaced=True)
        apply(checker, 1, b"a")
        assert "committed and durable only on ['1.0']" in checker.violations[-1]


def test_a_generation_begins_once_its_seal_is_on_most_disks() -> None:
    seal = [[Kind.ADD, "g", 1, 1, bytes([SEAL]) + b"..."]]
    for on, is_enough in ((("1.0",), False), (("1.0", "2.0"), True)):
        checker = Checker()
        for directory in on:
            checker.stored(directory, block(*begun(0), *seal), replaced=True)
        checker.stored("1.0", block(*begun(1)), replaced=True)
        assert (checker.violations == []) == is_enough


# -- one directory ---------------------------------------------------------------------------------


def test_a_view_reads_on_where_it_stopped() -> None:
    view = DurableView()
    data = block(*begun(0, b"a"))
    view.read_on(data)
    data += block([Kind.ADD, "g", 2, 1, stored(b"b")], [Kind.BOOT, 1], sequence=2)
    view.read_on(data)
    assert [entry[0] for entry in view.group("g")[:]] == [stored(b"a"), stored(b"b")]
    view.read_on(data + block([Kind.DROP, "g"], [Kind.PEER, 2, "2.0", 1], sequence=3))
    assert len(view.group("g")) == 0
    view.read_all(data)
    assert len(view.group("g")) == 2
    assert view.trouble == []


def test_a_torn_end_is_not_durable() -> None:
    data = block(*begun(0, b"a"))
    view = DurableView()
    view.read_on(data + block([Kind.ADD, "g", 2, 1, b"b"], sequence=2)[:20])
    assert len(view.group("g")) == 1


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([[Kind.TERM, "g", 3, 1]], [[Kind.TERM, "g", 3, 2]], "votes 1 and 2 in term 3"),
        ([[Kind.TERM, "g", 3, 1]], [[Kind.TERM, "g", 2, None]], "from generation and term (1, 3)"),
        ([], begun(0), "from generation and term (1, 0) to (0, 0)"),
    ],
)
def test_a_directory_takes_nothing_back(before: Any, after: Any, words: str) -> None:
    view = DurableView()
    data = block(*begun(1), *before)
    view.read_all(data)
    assert view.trouble == []
    view.read_on(data + block(*after, sequence=2))
    assert words in view.trouble[0]


def test_a_directory_that_comes_back_older_took_something_back() -> None:
    checker = Checker()
    checker.stored("1.0", block(*begun(0), [Kind.TERM, "g", 3, 1]), replaced=True)
    assert checker.violations == []
    checker.stored("1.0", block(*begun(0)), replaced=True)
    assert checker.violations == ["1.0: g: from generation and term (0, 3) to (0, 0)"]


def test_violations_are_told_once_and_not_without_end() -> None:
    checker = Checker()
    for number in range(1_000):
        checker.violated(f"sentence {number % 500}")
    assert len(checker.violations) == len(set(checker.violations)) == VIOLATIONS_MAX
