"""Outcomes of the parts of one request, which are known at different times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Outcomes(Generic[T]):
    """``complete`` is called once every part has an outcome, with all of them in order.

    Without parts, it is called at once.
    """

    __slots__ = ("_complete", "_missing", "_outcomes")

    def __init__(self, count: int, complete: Callable[[list[T]], None]) -> None:
        self._outcomes: list[T | None] = [None] * count
        self._missing = count
        self._complete = complete
        if not count:
            complete([])

    def resolve(self, index: int, outcome: T) -> None:
        """Set the outcome of a part."""
        assert self._outcomes[index] is None, "a part of a request has one outcome"
        self._outcomes[index] = outcome
        self._missing -= 1
        if not self._missing:
            self._complete(cast(list[T], self._outcomes))

    @property
    def missing(self) -> list[int]:
        """The parts without an outcome."""
        return [index for index, outcome in enumerate(self._outcomes) if outcome is None]
