"""The entries of transactions in a history: gathered for ``checker.transactions``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from raftlog.testing.checker.transactions import (
    Finding,
    Outcome,
    Place,
    Read,
    Transaction,
    check,
)
from raftlog.testing.checker.verdict import TRANSACTIONS, UNSETTLED
from raftlog.testing.history.entries import Placed, Transact, TxnRead
from raftlog.types import Offset, TopicPartition

SECOND: Final = 1_000_000_000
OUTCOMES: Final[dict[str, Outcome]] = {"ok": "committed", "fail": "aborted", "info": "unknown"}


class TransactionsGatherer:
    """Call it for every entry in order. ``partitions``: names of those that transactions wrote."""

    def __init__(self, trouble: Callable[[str], None]) -> None:
        self.partitions: set[str] = set()
        self.operations: dict[str, int] = {}  # completions, by type
        self._trouble = trouble
        self._transactions: dict[str, Transaction] = {}
        self._open: dict[str, int] = {}  # by name, the time of the invocation
        self._reads: list[Read] = []
        self._finals: dict[str, dict[TopicPartition, list[tuple[Offset, bytes]]]] = {}
        self._end: TxnRead | None = None

    def transact(self, entry: Transact, line: int) -> None:
        if entry.type == "invoke":
            if entry.name in self._transactions:
                self._trouble(f"line {line} begins {entry.name} again")
            self._open[entry.name] = entry.time
            self._transactions[entry.name] = Transaction(entry.name)
        elif self._open.pop(entry.name, None) is None:
            self._trouble(f"line {line} completes {entry.name}, which was not begun")
            return
        else:
            self.operations[entry.type] = self.operations.get(entry.type, 0) + 1
        made = self._transactions[entry.name]
        made.sent, made.read = _places(entry.sent), _places(entry.read)
        made.outcome = OUTCOMES.get(entry.type, "unknown")
        made.ending_s = entry.ending / SECOND if entry.ending else None
        made.after_fence = entry.after_fence
        self.partitions.update(name for name, _ in (*entry.sent, *entry.read))

    def read(self, entry: TxnRead) -> None:
        at_s = entry.time / SECOND
        for name, records in entry.records.items():
            where = _partition(name)
            for offset, value in records:
                self._reads.append(Read(entry.process, at_s, where, offset, b"%d" % value))
            if entry.is_final:
                final = self._finals.setdefault(entry.process, {})
                final.setdefault(where, []).extend((at, b"%d" % value) for at, value in records)
        if entry.is_complete:
            self._end = entry

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, with the kinds of ``verdict``."""
        for name, invoked in self._open.items():  # its end may have been requested
            self._transactions[name].ending_s = invoked / SECOND
        if self._transactions and self._end is None:
            self._trouble("transactions were written, and the records were not read at the end")
        if self._end is None:
            return
        final = self._finals.get(self._end.process, {})
        committed = {_partition(name): at for name, at in self._end.committed.items()}
        transactions = list(self._transactions.values())
        group = committed if self._end.has_group else None
        for kind, text in check(transactions, self._reads, final, group):
            yield Finding(TRANSACTIONS + kind, text)
        for text in self._end.unsettled:
            yield Finding(UNSETTLED, text)


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number))


def _places(placed: list[Placed]) -> list[Place]:
    return [Place(_partition(name), b"%d" % value) for name, value in placed]
