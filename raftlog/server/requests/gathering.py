"""Several results for one response: of the groups or the shards that a request is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Gathering(Generic[T]):
    """Results in order, sent when the last one arrives."""

    def __init__(self, count: int, send: Callable[[list[T]], None]) -> None:
        """Send at once if ``count`` is 0."""
        self._results: list[T | None] = [None] * count
        self._missing = count
        self._send = send
        if not count:
            send([])

    def put(self, index: int, result: T) -> None:
        """Set one result. It is set once."""
        assert self._results[index] is None, "each has one outcome"
        self._results[index] = result
        self._missing -= 1
        if self._missing == 0:
            self._send(cast(list[T], self._results))
