"""Defects of transactions that are planted in the product are found by a seed."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client.fetcher import _Dropped
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.transactions import LogTransactions
from raftlog.testing.simulator import world
from raftlog.testing.simulator.transacting import TransactionPlan, run

SEED = 2


def no_stable_offset(_self: LogTransactions, high_watermark: int) -> int:
    return high_watermark


def no_aborted(_self: _Dropped, header: Any) -> bool:
    return bool(header.is_control)


def no_verification(_self: ProducerTable, _producer: int, _epoch: int) -> bool:
    return True


def none_listed(self: LogTransactions, producer: int, _offset: int, *, is_commit: bool) -> None:
    self._open.pop(producer, None)


@pytest.mark.parametrize(
    ("owner", "name", "planted", "kinds"),
    [
        (
            LogTransactions,
            "last_stable_offset",
            no_stable_offset,
            {"PRECOMMITTED-READ", "STABLE-OFFSET"},
        ),
        (_Dropped, "has", no_aborted, {"ABORTED-READ", "INVISIBLE"}),
        (LogTransactions, "end", none_listed, {"ABORTED-READ", "ABORTED-LIST"}),
        # No coordinator knows them: their leaders abort them, also those that are acknowledged.
        (
            ProducerTable,
            "has_open",
            no_verification,
            {"LOST-WRITE", "NOT-A-PART", "UNDECIDED-MARKER"},
        ),
    ],
)
def test_a_planted_defect_is_found_from_outside_and_from_inside(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: object, kinds: set[str]
) -> None:
    monkeypatch.setattr(owner, name, planted)
    monkeypatch.setattr(world, "VIOLATIONS_MAX", 1_000)
    result = run(TransactionPlan.draw(SEED))
    assert kinds <= {violation.kind for violation in result.violations}


def test_the_seed_is_good_without_them_and_not_empty() -> None:
    result = run(TransactionPlan.draw(SEED))
    assert not result.violations
    assert min(result.counts[what] for what in ("committed", "aborted", "fenced", "records")) > 0
