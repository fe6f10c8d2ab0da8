"""Retry rules and back-off. Pure: random numbers and time are arguments.

The class of an error decides (see ``raftlog.errors``):

    RetriableError        nothing was done: retried until the deadline
    OutcomeUnknownError   retried only if repeating is safe (idempotent API, sequenced batch)
    all others            raised immediately: a retry would give the same response

Some errors show that the client or the broker has stale metadata. The client then requests metadata
from other brokers (``is_old_news``, ``is_behind``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from raftlog.errors import (
    ClosedError,
    CommitUnknownError,
    FencedLeaderEpochError,
    KeyRequiredError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    RaftlogError,
    RecordTooLargeError,
    RetriableError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)

Chance: TypeAlias = Callable[[], float]  # as random.random: 0 <= x < 1

# Errors of a supposed partition leader that fresh metadata may resolve.
_OLD_NEWS: Final = (
    NotLeaderError,
    LeaderNotAvailableError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    NotEnoughReplicasError,
    CommitUnknownError,
    UnknownTopicError,
    UnknownPartitionError,
    KeyRequiredError,  # the cleanup.policy or max.message.bytes of the topic has changed
    RecordTooLargeError,
)
# Of these, the errors of a broker that lags or is isolated itself.
_BEHIND: Final = (
    LeaderNotAvailableError,
    UnknownLeaderEpochError,
    NotEnoughReplicasError,
    UnknownTopicError,
    UnknownPartitionError,
)
_DOUBLINGS_MAX: Final = 30  # 2**30 times any first delay exceeds any longest delay


def may_retry(error: BaseException, *, repeatable: bool) -> bool:
    """Return True if the same request may be sent again after ``error``.

    ``repeatable``: repeating the request has no further effect.
    """
    if isinstance(error, RetriableError):
        return True
    return repeatable and isinstance(error, OutcomeUnknownError)


def may_pass(error: BaseException, *, repeatable: bool) -> bool:
    """``may_retry`` for a request to the leader of a partition that the metadata contains.

    A broker that does not know the partition lags: the metadata decides whether it exists.
    """
    if isinstance(error, UnknownTopicError | UnknownPartitionError):
        return True
    return may_retry(error, repeatable=repeatable)


def is_old_news(error: BaseException) -> bool:
    """Return True if ``error``, about one partition, requires fresh metadata."""
    return isinstance(error, _OLD_NEWS)


def is_behind(error: BaseException) -> bool:
    """Return True if the broker that returned ``error`` may lag: prefer other brokers."""
    return isinstance(error, _BEHIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential back-off with full jitter, so that clients do not retry at the same time."""

    first_ms: int
    longest_ms: int

    def seconds(self, attempt: int, chance: Chance) -> float:
        """Return the delay in seconds after failed attempt number ``attempt``, counted from 0."""
        ceiling_ms = min(self.longest_ms, self.first_ms << min(attempt, _DOUBLINGS_MAX))
        # At least 10 %, so that small random numbers do not cause a busy loop.
        return ceiling_ms * (0.1 + 0.9 * chance()) / 1_000


# -- hedged request --------------------------------------------------------------------------------
#
# Hedged requests: start another attempt if one is slow, and use the first result.


K = TypeVar("K")
T = TypeVar("T")


class Attempt(NamedTuple, Generic[K, T]):
    """One attempt. If it has no result after ``patience_s`` seconds, the next one also starts."""

    key: K
    patience_s: float
    start: Callable[[], Coroutine[Any, Any, T]]


class NoAnswerError(Exception):
    """Every attempt failed. ``reasons``: the error of each attempt, by its key."""

    def __init__(self, reasons: Mapping[Any, RaftlogError]) -> None:
        super().__init__("; ".join(map(str, reasons.values())))
        self.reasons = reasons


async def first_answer(attempts: Sequence[Attempt[K, T]]) -> T:
    """Return the result of the first attempt that succeeds. The others are cancelled.

    Attempts start in order: the next one starts when the previous one has failed, or has no result
    within its patience. Raises ``NoAnswerError`` if all attempts fail, and ``ClosedError`` as soon
    as one attempt raises it.
    """
    running: dict[asyncio.Task[T], K] = {}  # in start order
    reasons: dict[K, RaftlogError] = {}
    waiting = list(attempts)
    try:
        while running or waiting:
            patience_s = None
            if waiting:
                attempt = waiting.pop(0)
                running[asyncio.ensure_future(attempt.start())] = attempt.key
                patience_s = attempt.patience_s if waiting else None
            while running:
                done, _ = await asyncio.wait(
                    running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in [task for task in running if task in done]:
                    try:
                        return task.result()
                    except ClosedError:
                        raise
                    except RaftlogError as error:
                        reasons[running.pop(task)] = error
                if waiting:
                    break
        raise NoAnswerError(reasons)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
