"""Transactions in the log of a partition: which are open, and which were aborted.

A function of the log's headers, on the leader and on its followers: a producer's first
transactional batch opens a transaction, and its marker (a control batch) ends it. Readers of
committed records read up to the last stable offset (LSO): below it, each transaction has ended by a
committed marker. They drop the records of the aborted ones, which ``aborted`` lists.

Source: KIP-98; ``ProducerStateManager`` and ``TransactionIndex`` of Kafka's broker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from raftlog.types import Offset


class Aborted(NamedTuple):
    """An aborted transaction. ``stable_offset``: LSO at its marker, once that was committed: no
    transaction that ended later begins below it.
    """

    producer_id: int
    first_offset: Offset
    marker_offset: Offset
    stable_offset: Offset


class _Ending(NamedTuple):
    """A transaction whose marker may not be committed yet."""

    marker_offset: Offset
    first_offset: Offset


class LogTransactions:
    """Call ``begin`` and ``end`` in the order of the log."""

    __slots__ = ("_aborted", "_ending", "_open")

    def __init__(self) -> None:
        self._open: dict[int, Offset] = {}  # first offset by producer, the oldest first
        self._ending: deque[_Ending] = deque()  # by marker
        self._aborted: list[Aborted] = []  # by marker

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def __contains__(self, producer_id: int) -> bool:
        """Whether the producer has an open transaction."""
        return producer_id in self._open

    @property
    def aborted_count(self) -> int:
        return len(self._aborted)

    @property
    def last_aborted(self) -> Offset:
        """The newest marker of an aborted transaction; -1 without one."""
        return self._aborted[-1].marker_offset if self._aborted else -1

    def first_offset(self, producer_id: int) -> Offset | None:
        """Return the first offset of the producer's open transaction; None if it has none."""
        return self._open.get(producer_id)

    def opened(self) -> list[tuple[int, Offset]]:
        """Return the producers with open transactions and their first offsets, oldest first."""
        return list(self._open.items())

    # -- events ------------------------------------------------------------------------------------

    def begin(self, producer_id: int, offset: Offset) -> None:
        """Note a transactional batch of the producer."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, marker_offset: Offset, *, is_commit: bool) -> None:
        """Note a marker. One of an empty transaction changes nothing (KAFKA-10702)."""
        first = self._open.pop(producer_id, None)
        if first is None:
            return
        # guard: a marker counts once it is committed
        self._ending.append(_Ending(marker_offset, first))
        if not is_commit:
            stable = min(self._open.values(), default=marker_offset + 1)
            self._aborted.append(Aborted(producer_id, first, marker_offset, stable))

    def forget_below(self, log_start: Offset) -> None:
        """Forget the aborted transactions whose records are deleted."""
        if self._aborted and self._aborted[0].marker_offset < log_start:
            count = bisect_left(self._aborted, log_start, key=_marker_offset)
            del self._aborted[:count]

    def keep_aborted(self, is_kept: Callable[[Aborted], bool]) -> None:
        """Forget the other aborted transactions."""
        self._aborted = [each for each in self._aborted if is_kept(each)]

    # -- queries -----------------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the end of the records whose transactions have all ended by committed markers."""
        ending = self._ending
        while ending and ending[0].marker_offset < high_watermark:
            ending.popleft()
        stable = high_watermark
        # guard: an open transaction holds the last stable offset
        if self._open:
            stable = min(stable, next(iter(self._open.values())))
        for each in ending:
            stable = min(stable, each.first_offset)
        return stable

    def aborted(self, start: Offset, end: Offset) -> list[Aborted]:
        """Return the aborted transactions with records from ``start`` to below ``end``, by the
        order of their markers. ``end`` is not above the LSO.
        """
        found: list[Aborted] = []
        index = bisect_left(self._aborted, start, key=_marker_offset)
        while index < len(self._aborted):
            each = self._aborted[index]
            if each.first_offset < end:
                found.append(each)
            if each.stable_offset >= end:
                break
            index += 1
        return found

    # -- state -------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the content of a state file. Markers that may not be committed are in it."""
        return {
            "open": [list(each) for each in self._open.items()],
            "ending": [list(each) for each in self._ending],
            "aborted": [list(each) for each in self._aborted],
        }

    @classmethod
    def from_snapshot(cls, state: dict[str, Iterable[Iterable[int]]]) -> Self:
        made = cls()
        made._open = {int(producer): int(first) for producer, first in state["open"]}
        made._ending = deque(_Ending(*each) for each in state["ending"])
        made._aborted = [Aborted(*each) for each in state["aborted"]]
        return made


def _marker_offset(aborted: Aborted) -> Offset:
    return aborted.marker_offset
