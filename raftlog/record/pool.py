"""Spare objects, for codecs whose state is expensive to create. No locks, no thread-local state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from raftlog import limits

T = TypeVar("T")


class Pool(Generic[T]):
    """Spare objects that are expensive to create and must not be used by two threads at once.

    An object in use is out of the pool, so no other thread can hold it. That needs no lock and no
    thread-local state: ``list.pop`` and ``list.append`` are atomic, and an empty pool only means
    that a new object is created.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._spares: list[T] = []

    def take(self) -> T:
        try:
            return self._spares.pop()
        except IndexError:
            return self._make()

    def give_back(self, spare: T, *, size_bytes: int) -> None:
        """Keep ``spare`` for the next caller, unless it has grown large or enough are kept."""
        if (
            size_bytes <= limits.CODEC_STATE_BYTES_MAX
            and len(self._spares) < limits.CODEC_STATES_KEPT_MAX
        ):
            self._spares.append(spare)
