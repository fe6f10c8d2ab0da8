"""Transactions in a history are judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from raftlog.testing.checker import transactions
from raftlog.testing.checker.gather_transactions import TransactionsGatherer
from raftlog.testing.checker.judge import judge
from raftlog.testing.checker.verdict import KINDS, TRANSACTIONS, UNSETTLED, Verdict
from raftlog.testing.history.entries import AnyEntry, Phase, Transact, TxnRead

A, B, OUT = "t:0", "t:1", "out:0"


def history() -> list[AnyEntry]:
    """A committed and an aborted transaction, a worker's, and a reader."""

    def transact(type_: Any, name: str, **fields: Any) -> Transact:
        return Transact(time=0, process="w", type=type_, name=name, **fields)

    def read(process: str, **fields: Any) -> TxnRead:
        return TxnRead(time=0, process=process, type="ok", **fields)

    entries: list[AnyEntry] = [
        transact("invoke", "one", sent=[(A, 1), (B, 2)]),
        transact("ok", "one", sent=[(A, 1), (B, 2)], ending=1),
        transact("invoke", "two", sent=[(A, 3)]),
        transact("fail", "two", sent=[(A, 3)]),
        read("r", records={A: [(0, 1)]}),
        transact("invoke", "copy", sent=[(OUT, 4)], read=[(A, 1)]),
        transact("ok", "copy", sent=[(OUT, 4)], read=[(A, 1)], ending=5),
        read("final", records={A: [(0, 1)], B: [(0, 2)]}, is_final=True),
        read("final", records={OUT: [(0, 4)]}, is_final=True),
        read("final", is_final=True, is_complete=True, has_group=True, committed={A: 1}),
        Phase(time=0, process="runner", type="info", name="end"),
    ]
    for number, entry in enumerate(entries):
        entry.time = 2 * number
    return entries


def judged(line: int, **changes: Any) -> Verdict:
    entries = history()
    entries[line] = msgspec.structs.replace(entries[line], **changes)
    return judge(entries)


def test_a_history_without_anomalies_is_valid() -> None:
    verdict = judge(history())
    assert (verdict.valid, verdict.troubles) == ("valid", ())
    assert verdict.stats["transactions"] == {"ok": 2, "fail": 1}
    assert {kind for kind in KINDS if kind.startswith(TRANSACTIONS)} == {
        UNSETTLED, *(TRANSACTIONS + kind for kind in transactions.KINDS)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "line", "changes"),
    [
        ("TXN-LOST-WRITE", 7, {"records": {A: [(0, 1)]}}),
        ("TXN-ABORTED-READ", 4, {"records": {A: [(0, 1), (1, 3)]}}),
        ("TXN-PRECOMMITTED-READ", 1, {"ending": 9}),
        ("TXN-OFFSETS-SPLIT", 9, {"committed": {}}),
        ("TXN-OFFSETS-SPLIT", 9, {"committed": {A: 1, B: 1}}),
        ("TXN-ZOMBIE", 1, {"after_fence": True}),
        ("TXN-PHANTOM", 8, {"records": {OUT: [(0, 5)]}}),
        ("TXN-UNSETTLED", 9, {"unsettled": ["t:0 is stable up to 1 of 2"]}),
    ],
)
def test_anomalies_are_found(kind: str, line: int, changes: dict[str, Any]) -> None:
    verdict = judged(line, **changes)
    assert verdict.valid == "invalid"
    assert kind in verdict.kinds


def test_without_the_final_read_the_verdict_is_unknown() -> None:
    verdict = judged(9, is_complete=False)
    assert verdict.valid == "unknown"
    assert "were not read at the end" in verdict.troubles[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entries: entries[0], "begins one again"),
        (lambda entries: entries[1], "completes one, which was not begun"),
    ],
)
def test_entries_that_do_not_fit_are_troubles(
    change: Callable[[list[AnyEntry]], Transact], words: str
) -> None:
    troubles: list[str] = []
    gatherer = TransactionsGatherer(troubles.append)
    entries = history()
    again = change(entries)
    for entry in (*entries[:2], again):
        assert isinstance(entry, Transact)
        gatherer.transact(entry, 1)
    assert words in troubles[0]


def test_a_transaction_without_a_completion_may_be_committed() -> None:
    entries = history()
    del entries[1]
    assert judge(entries).valid == "valid"
    entries[6] = msgspec.structs.replace(entries[6], records={A: [(0, 1)]})
    assert "TXN-TORN" in judge(entries).kinds
