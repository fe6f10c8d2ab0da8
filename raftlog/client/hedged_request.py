"""Sends a request to several brokers, without waiting for slow ones: the first response counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from raftlog.errors import ClosedError, RaftlogError

K = TypeVar("K")
T = TypeVar("T")


class Attempt(NamedTuple, Generic[K, T]):
    """One way to the answer. After ``patience_s`` without it, the next is tried beside it."""

    key: K
    patience_s: float
    start: Callable[[], Coroutine[Any, Any, T]]


class NoAnswerError(Exception):
    """Every attempt failed. ``reasons`` has the error of each, by its key."""

    def __init__(self, reasons: Mapping[Any, RaftlogError]) -> None:
        super().__init__("; ".join(map(str, reasons.values())))
        self.reasons = reasons


async def first_answer(attempts: Sequence[Attempt[K, T]]) -> T:
    """What the first attempt to succeed gives; the others are cancelled.

    They are begun in their order: the next one when the one before has failed, or has been without
    an answer for its patience. Raises ``NoAnswerError`` when all have failed, ``ClosedError`` as
    soon as one does.
    """
    running: dict[asyncio.Task[T], K] = {}  # in the order in which they were begun
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
