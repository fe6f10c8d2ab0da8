"""Who waits for an offset."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import ClosedError, RaftlogError
from raftlog.server.scheduling import OffsetWaiters

GONE = ClosedError("gone")


class Scene:
    def __init__(self) -> None:
        self.waiters = OffsetWaiters()
        self.told: list[tuple[str, RaftlogError | None]] = []

    def note(self, name: str) -> Callable[[RaftlogError | None], None]:
        return lambda error: self.told.append((name, error))


def test_they_are_told_in_their_order_as_far_as_the_log_has_come() -> None:
    s = Scene()
    for name, offset in (("a", 3), ("b", 5), ("c", 9)):
        s.waiters.add(offset, s.note(name))
    s.waiters.reached(2)
    assert s.told == []
    s.waiters.reached(5)
    s.waiters.reached(5)
    assert s.told == [("a", None), ("b", None)]


def test_a_duplicate_behind_newer_ones_waits_for_its_turn() -> None:
    s = Scene()
    s.waiters.add(9, s.note("new"))
    s.waiters.add(3, s.note("duplicate"))
    s.waiters.reached(5)
    assert s.told == []
    s.waiters.reached(9)
    assert s.told == [("new", None), ("duplicate", None)]


def test_refused_they_are_told_why_and_only_once() -> None:
    s = Scene()
    s.waiters.add(3, s.note("a"))
    s.waiters.add(5, s.note("b"))
    s.waiters.refuse(GONE)
    s.waiters.reached(9)
    assert s.told == [("a", GONE), ("b", GONE)]


def test_who_comes_while_others_are_refused_is_refused_too() -> None:
    s = Scene()
    s.waiters.add(3, lambda _error: s.waiters.add(4, s.note("late")))
    s.waiters.refuse(GONE)
    assert s.told == [("late", GONE)]
