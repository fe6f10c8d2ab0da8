"""Several attempts at one answer: begun one after the other, the first to succeed counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftlog.client.retry import Attempt, NoAnswerError, first_answer
from raftlog.errors import BrokerUnavailableError, ClosedError
from tests.client.world import FakeCluster, run
from tests.running import runs


class Tries:
    """Attempts that take a while, and what became of them."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        self.events.append((round(now() - 1_000, 3), what))

    def attempt(
        self, name: str, takes_s: float, error: Exception | None = None, *, patience_s: float = 1.0
    ) -> Attempt[str, str]:
        async def work() -> str:
            self.note(f"{name} begins")
            try:
                await asyncio.sleep(takes_s)
            except asyncio.CancelledError:
                self.note(f"{name} is cancelled")
                raise
            if error is not None:
                raise error
            return name

        return Attempt(name, patience_s, work)


def now() -> float:
    return asyncio.get_running_loop().time()


def played(scene: Callable[[Tries], Coroutine[Any, Any, None]]) -> list[tuple[float, str]]:
    tries = Tries()

    async def test(_fake: FakeCluster) -> None:
        await scene(tries)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(test)
    return tries.events


def test_a_quick_one_is_the_only_one() -> None:
    async def scene(tries: Tries) -> None:
        assert await first_answer([tries.attempt("a", 0.5), tries.attempt("b", 0.1)]) == "a"

    assert played(scene) == [(0, "a begins")]


def test_a_slow_one_is_joined_by_the_next_and_may_still_win() -> None:
    async def scene(tries: Tries) -> None:
        attempts = [tries.attempt("a", 1.5), tries.attempt("b", 3), tries.attempt("c", 3)]
        assert await first_answer(attempts) == "a"

    assert played(scene) == [(0, "a begins"), (1, "b begins"), (1.5, "b is cancelled")]


def test_a_failure_brings_the_next_at_once() -> None:
    async def scene(tries: Tries) -> None:
        attempts = [tries.attempt("a", 0.2, BrokerUnavailableError("no")), tries.attempt("b", 9)]
        assert await first_answer(attempts) == "b"

    assert played(scene) == [(0, "a begins"), (0.2, "b begins")]


@runs(played)
async def test_when_all_fail_each_reason_is_told(tries: Tries) -> None:
    attempts = [
        tries.attempt("slow", 5, BrokerUnavailableError("late")),
        tries.attempt("quick", 0, BrokerUnavailableError("early")),
    ]
    with pytest.raises(NoAnswerError) as caught:
        await first_answer(attempts)
    assert {key: str(error) for key, error in caught.value.reasons.items()} == {
        "quick": "early",
        "slow": "late",
    }
    with pytest.raises(NoAnswerError):
        await first_answer([])


def test_a_closed_client_ends_it() -> None:
    async def scene(tries: Tries) -> None:
        attempts = [tries.attempt("a", 9), tries.attempt("b", 0, ClosedError("closed"))]
        with pytest.raises(ClosedError):
            await first_answer(attempts)

    assert played(scene)[-1] == (1, "a is cancelled")


def test_cancelling_it_cancels_what_runs() -> None:
    async def scene(tries: Tries) -> None:
        task = asyncio.ensure_future(first_answer([tries.attempt("a", 9), tries.attempt("b", 9)]))
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert [what for _, what in played(scene)][2:] == ["a is cancelled", "b is cancelled"]
