"""What can go wrong with transactions: see ``mutations``. Good histories have none, so a mutation
adds some, with one anomaly.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from raftlog.testing.history import AnyEntry, Transact, TxnRead
from tests.testing.checker.history_editor import HistoryEditor

A, B, OUT = "txn:0", "txn:1", "txn-out:0"


def transactions() -> list[AnyEntry]:
    """Without an anomaly: a committed and an aborted transaction, a worker's, and a reader.

    The times are even numbers, from 0 on.
    """

    def transact(type_: Any, name: str, **fields: Any) -> Transact:
        return Transact(time=0, process="writer", type=type_, name=name, **fields)

    def read(process: str, **fields: Any) -> TxnRead:
        return TxnRead(time=0, process=process, type="ok", **fields)

    entries: list[AnyEntry] = [
        transact("invoke", "one", sent=[(A, 1), (B, 2)]),
        transact("ok", "one", sent=[(A, 1), (B, 2)], ending=1),
        transact("invoke", "two", sent=[(A, 3)]),
        transact("fail", "two", sent=[(A, 3)]),
        read("reader", records={A: [(0, 1)]}),
        transact("invoke", "copy", sent=[(OUT, 4)], read=[(A, 1)]),
        transact("ok", "copy", sent=[(OUT, 4)], read=[(A, 1)], ending=11),
        read("final", records={A: [(0, 1)], B: [(0, 2)]}, is_final=True),
        read("final", records={OUT: [(0, 4)]}, is_final=True),
        read("final", is_final=True, is_complete=True, has_group=True, committed={A: 1}),
    ]
    return [replace(entry, time=2 * number) for number, entry in enumerate(entries)]


def _add(tape: HistoryEditor, *changes: tuple[int, dict[str, Any]]) -> None:
    """Add transactions, with other fields in some of the entries, before the end of the run."""
    entries = transactions()
    for line, fields in changes:
        entries[line] = replace(entries[line], **fields)
    start = tape.when("heal")
    for entry in entries:
        entry.time += start
        if isinstance(entry, Transact) and entry.ending:
            entry.ending += start
    tape.insert(*entries)


def show_an_aborted_record(tape: HistoryEditor) -> None:
    _add(tape, (4, {"records": {A: [(0, 1), (1, 3)]}}))


def lose_a_commit(tape: HistoryEditor) -> None:
    _add(tape, (7, {"records": {A: [(0, 1)]}}))


def lose_what_a_reader_got(tape: HistoryEditor) -> None:
    sent = {"sent": [(B, 2)]}
    _add(tape, (0, sent), (1, sent | {"type": "info"}), (4, {"records": {B: [(0, 2)]}}),
         (5, {"read": []}), (6, {"read": []}), (7, {"records": {}}),
         (9, {"committed": {}}))  # fmt: skip


def keep_half_of_a_transaction(tape: HistoryEditor) -> None:
    _add(tape, (1, {"type": "info"}), (7, {"records": {A: [(0, 1)]}}))


def show_a_record_before_its_commit(tape: HistoryEditor) -> None:
    _add(tape, (1, {"ending": 9}))


def store_a_record_twice(tape: HistoryEditor) -> None:
    _add(tape, (7, {"records": {A: [(0, 1), (3, 1)], B: [(0, 2)]}}))


def store_an_unknown_record(tape: HistoryEditor) -> None:
    _add(tape, (7, {"records": {A: [(0, 1), (3, 9)], B: [(0, 2)]}}))


def show_another_record_at_an_offset(tape: HistoryEditor) -> None:
    _add(tape, (4, {"records": {A: [(0, 1)], B: [(3, 2)]}}),
         (7, {"records": {A: [(0, 1)], B: [(0, 2), (3, 5)]}}))  # fmt: skip


def swap_records_of_a_transaction(tape: HistoryEditor) -> None:
    sent = {"sent": [(A, 2), (A, 1)]}
    _add(tape, (0, sent), (1, sent), (7, {"records": {A: [(0, 1), (1, 2)]}}))


def go_back_in_a_partition(tape: HistoryEditor) -> None:
    _add(tape, (4, {"records": {A: [(0, 1), (0, 1)]}}))


def skip_a_record(tape: HistoryEditor) -> None:
    sent = {"sent": [(A, 1), (A, 2), (A, 5)]}
    _add(tape, (0, sent), (1, sent), (4, {"records": {A: [(0, 1), (2, 5)]}}),
         (7, {"records": {A: [(0, 1), (1, 2), (2, 5)]}}))  # fmt: skip


def read_each_other(tape: HistoryEditor) -> None:
    _add(tape, (0, {"read": [(OUT, 4)]}), (1, {"read": [(OUT, 4)]}))


def commit_an_output_without_its_input(tape: HistoryEditor) -> None:
    _add(tape, (9, {"committed": {}}))


def commit_an_input_without_its_output(tape: HistoryEditor) -> None:
    _add(tape, (9, {"committed": {A: 1, B: 1}}))


def commit_after_a_fence(tape: HistoryEditor) -> None:
    _add(tape, (1, {"after_fence": True}))


def leave_a_transaction_open(tape: HistoryEditor) -> None:
    _add(tape, (9, {"unsettled": [f"{A} is stable up to 1 of 2"]}))


def leave_the_records_of_transactions_unread(tape: HistoryEditor) -> None:
    _add(tape, (9, {"is_complete": False}))
