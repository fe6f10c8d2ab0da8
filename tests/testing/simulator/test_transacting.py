"""Defects of transactions that are planted in the product are found by a seed."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client.fetcher import _Dropped
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.transactions import LogTransactions
from raftlog.testing.simulator.transacting import TransactionPlan, run

SEED = 1


def no_stable_offset(_self: LogTransactions, high_watermark: int) -> int:
    return high_watermark


def no_aborted(_self: _Dropped, header: Any) -> bool:
    return bool(header.is_control)


def no_verification(_self: ProducerTable, _producer: int, _epoch: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("owner", "name", "planted", "kind"),
    [
        (LogTransactions, "last_stable_offset", no_stable_offset, "PRECOMMITTED-READ"),
        (_Dropped, "has", no_aborted, "ABORTED-READ"),
        # No coordinator knows them: their leaders abort them, also those that are acknowledged.
        (ProducerTable, "has_open", no_verification, "LOST-WRITE"),
    ],
)
def test_a_planted_defect_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: object, kind: str
) -> None:
    monkeypatch.setattr(owner, name, planted)
    result = run(TransactionPlan.draw(SEED))
    assert kind in {violation.kind for violation in result.violations}


def test_the_seed_is_good_without_them_and_not_empty() -> None:
    result = run(TransactionPlan.draw(SEED))
    assert not result.violations
    assert min(result.counts[what] for what in ("committed", "aborted", "fenced", "records")) > 0
