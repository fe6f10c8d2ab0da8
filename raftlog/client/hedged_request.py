"""Hedged requests: start another attempt if one is slow, and use the first result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from raftlog.errors import ClosedError, RaftlogError

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
