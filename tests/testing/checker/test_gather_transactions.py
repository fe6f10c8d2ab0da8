"""Transactions in a history are judged. ``test_mutations`` has the anomalies."""

from __future__ import annotations

import pytest

from raftlog.testing.checker import transactions as checks
from raftlog.testing.checker.gather_transactions import TransactionsGatherer
from raftlog.testing.checker.judge import judge
from raftlog.testing.checker.verdict import KINDS, TRANSACTIONS, UNSETTLED
from raftlog.testing.history.entries import AnyEntry, Phase, Transact
from tests.testing.checker.mutations_of_transactions import transactions


def history() -> list[AnyEntry]:
    end = Phase(time=1_000, process="runner", type="info", name="end")
    return [*transactions(), end]


def test_a_history_without_anomalies_is_valid() -> None:
    verdict = judge(history())
    assert (verdict.valid, verdict.troubles) == ("valid", ())
    assert verdict.stats["transactions"] == {"ok": 2, "fail": 1}
    assert {kind for kind in KINDS if kind.startswith(TRANSACTIONS)} == {
        UNSETTLED, *(TRANSACTIONS + kind for kind in checks.KINDS)
    }  # fmt: skip


def test_a_transaction_without_a_completion_may_be_committed() -> None:
    entries = history()
    del entries[1]
    assert judge(entries).valid == "valid"


@pytest.mark.parametrize(
    ("line", "words"), [(0, "begins one again"), (1, "completes one, which was not begun")]
)
def test_entries_that_do_not_fit_are_troubles(line: int, words: str) -> None:
    troubles: list[str] = []
    gatherer = TransactionsGatherer(troubles.append)
    entries = history()
    for entry in (*entries[:2], entries[line]):
        assert isinstance(entry, Transact)
        gatherer.transact(entry, 1)
    assert words in troubles[0]
