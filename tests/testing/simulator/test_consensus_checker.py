"""The judge of simulated consensus: whatever it is there to find, it finds, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack
import pytest

from raftlog.consensus import Applied, NotProposed, Unknown, journal
from raftlog.consensus.journal import Kind
from raftlog.consensus.transport import COMMAND, SEAL
from raftlog.testing.simulator.consensus import VIOLATIONS_MAX, Checker, DurableView

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
