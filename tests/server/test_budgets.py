"""Memory over all connections is bounded, and somebody can always go on."""

from __future__ import annotations

from raftlog.server.scheduling import RequestBudget, ResponseBudget


class Conn:
    """A connection, as the request budget sees it."""

    def __init__(self) -> None:
        self.paused = False

    def pause_for_memory(self) -> None:
        self.paused = True

    def resume_from_memory(self) -> None:
        self.paused = False


def test_over_the_budget_only_the_oldest_request_goes_on() -> None:
    budget = RequestBudget(100)
    first, second, third = Conn(), Conn(), Conn()
    budget.set(first, 60)
    budget.set(second, 30)
    assert [first.paused, second.paused] == [False, False]
    budget.set(second, 50)
    budget.set(first, 80)
    budget.set(third, 1)
    assert [c.paused for c in (first, second, third)] == [False, True, True]
    assert budget.bytes == 131
    budget.set(first, 0)  # it is complete
    assert [c.paused for c in (first, second, third)] == [False, False, False]
    assert budget.bytes == 51


def test_when_the_oldest_goes_the_next_goes_on_even_over_the_budget() -> None:
    budget = RequestBudget(100)
    first, second, third = Conn(), Conn(), Conn()
    for conn in (first, second, third):
        budget.set(conn, 90)
    assert [c.paused for c in (first, second, third)] == [False, True, True]
    budget.forget(first)
    assert [c.paused for c in (second, third)] == [False, True]
    budget.forget(third)
    assert budget.bytes == 90
    budget.forget(second)
    assert budget.bytes == 0


def test_a_connection_that_is_gone_is_not_resumed() -> None:
    budget = RequestBudget(10)
    first, second = Conn(), Conn()
    budget.set(first, 10)
    budget.set(second, 10)
    budget.forget(second)
    budget.forget(second)
    budget.set(first, 0)
    assert second.paused
    assert budget.bytes == 0


def test_fetches_wait_for_room_in_their_order() -> None:
    budget = ResponseBudget(100)
    reader, other, turns = object(), object(), list[str]()

    def fill() -> None:
        turns.append("second")
        budget.set(other, 200)

    assert not budget.full
    budget.set(reader, 150)
    assert budget.full
    budget.when_room(lambda: turns.append("first"))
    budget.when_room(fill)
    budget.when_room(lambda: turns.append("third"))
    budget.set(reader, 100)
    assert turns == []
    budget.set(reader, 20)
    assert turns == ["first", "second"]  # the second filled it again
    budget.set(other, 0)
    assert turns == ["first", "second", "third"]
    budget.set(reader, 0)
    assert budget.bytes == 0
