"""What may be tried again, and the bounds of the back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.retry import (
    Attempt,
    Backoff,
    NoAnswerError,
    first_answer,
    is_behind,
    is_old_news,
    may_pass,
    may_retry,
)
from raftlog.errors import (
    ERRORS_BY_CODE,
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    CommitUnknownError,
    ConnectionLostError,
    FencedLeaderEpochError,
    InvalidRequestError,
    KeyRequiredError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    RaftlogError,
    RecordTooLargeError,
    RetriableError,
    ThrottledError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tests.client.world import FakeCluster, run
from tests.running import runs


def test_the_class_of_an_error_decides() -> None:
    for error in ERRORS_BY_CODE.values():
        nothing_was_done = issubclass(error, RetriableError)
        unknown = issubclass(error, OutcomeUnknownError)
        assert may_retry(error("x"), repeatable=False) is nothing_was_done
        assert may_retry(error("x"), repeatable=True) is (nothing_was_done or unknown)


def test_other_exceptions_are_never_retried() -> None:
    assert not may_retry(ValueError("x"), repeatable=True)
    assert not may_retry(UnknownTopicError("x"), repeatable=True)
    assert may_retry(ThrottledError("x"), repeatable=False)


@given(
    first_ms=st.integers(1, 1_000),
    longest_ms=st.integers(1_000, 60_000),
    attempt=st.integers(0, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_back_off_is_bounded_and_never_nothing(
    first_ms: int, longest_ms: int, attempt: int, chance: float
) -> None:
    backoff = Backoff(first_ms=first_ms, longest_ms=longest_ms)
    seconds = backoff.seconds(attempt, lambda: chance)
    assert 0 < seconds <= longest_ms / 1_000


def test_a_back_off_doubles() -> None:
    backoff = Backoff(first_ms=100, longest_ms=1_000)
    assert [backoff.seconds(attempt, lambda: 1.0) for attempt in range(6)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    )


@pytest.mark.parametrize(
    ("error", "old_news", "behind", "passes"),
    [
        (NotLeaderError("x"), True, False, True),
        (FencedLeaderEpochError("x"), True, False, True),
        (UnknownLeaderEpochError("x"), True, True, True),
        (LeaderNotAvailableError("x"), True, True, True),
        (NotEnoughReplicasError("x"), True, True, True),
        (UnknownTopicError("x"), True, True, True),
        (UnknownPartitionError("x"), True, True, True),
        (CommitUnknownError("x"), True, False, False),
        (KeyRequiredError("x"), True, False, False),
        (RecordTooLargeError("x"), True, False, False),
        (ClusterNotReadyError("x"), False, False, True),
        (ConnectionLostError("x"), False, False, False),
        (InvalidRequestError("x"), False, False, False),
    ],
)
def test_whose_news_are_old(
    error: RaftlogError, old_news: bool, behind: bool, passes: bool
) -> None:
    assert is_old_news(error) == old_news
    assert is_behind(error) == behind
    assert may_pass(error, repeatable=False) == passes
    assert may_pass(error, repeatable=True) == (passes or isinstance(error, OutcomeUnknownError))
    assert may_retry(error, repeatable=False) == isinstance(error, RetriableError)


# -- hedged request --------------------------------------------------------------------------------
#
# Several attempts at one answer: begun one after the other, the first to succeed counts.


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
