"""The demo's judge finds every way in which a log could break its promise."""

from __future__ import annotations

import pytest

from raftlog.cli.ledger import Ledger, Verdict

SENT = [b"a", b"b", b"", b"a"]


def judge(
    found: list[tuple[int, bytes | None]], offsets: tuple[int, ...] = (0, 1, 2, 3)
) -> Verdict:
    ledger = Ledger()
    ledger.acknowledge(SENT[:2], offsets[:2])
    ledger.acknowledge(SENT[2:], offsets[2:])
    for offset, value in found:
        ledger.find(offset, value)
    return ledger.verdict()


def test_what_comes_back_as_it_was_sent_holds() -> None:
    verdict = judge(list(enumerate(SENT)))
    assert verdict.holds
    assert (verdict.acknowledged, verdict.found, verdict.lost, verdict.duplicated) == (4, 4, 0, 0)


@pytest.mark.parametrize(
    ("name", "found", "lost", "duplicated"),
    [
        ("a record is missing", [(0, b"a"), (1, b"b"), (2, b"")], 1, 0),
        ("the first is missing", [(1, b"b"), (2, b""), (3, b"a")], 1, 0),
        ("nothing is there", [], 4, 0),
        ("a byte has changed", [(0, b"a"), (1, b"B"), (2, b""), (3, b"a")], 1, 0),
        ("null for empty", [(0, b"a"), (1, b"b"), (2, None), (3, b"a")], 1, 0),
        ("two have changed places", [(0, b"b"), (1, b"a"), (2, b""), (3, b"a")], 2, 0),
        ("one is there twice", [*enumerate(SENT), (4, b"a")], 0, 1),
        ("an offset is read twice", [*enumerate(SENT), (3, b"a")], 0, 1),
    ],
)
def test_each_kind_of_loss_is_found(
    name: str, found: list[tuple[int, bytes | None]], lost: int, duplicated: int
) -> None:
    verdict = judge(found)
    assert not verdict.holds, name
    assert (verdict.lost, verdict.duplicated) == (lost, duplicated)


def test_gaps_between_acknowledged_offsets_are_allowed() -> None:
    offsets = (0, 1, 5, 6)
    assert judge(list(zip(offsets, SENT, strict=True)), offsets).holds


def test_acknowledgements_out_of_order_do_not_hold() -> None:
    verdict = judge([(0, b"a"), (1, b"b"), (2, b"a"), (3, b"")], (0, 1, 3, 2))
    assert not verdict.in_order
    assert not verdict.holds


def test_nothing_sent_and_nothing_found_holds() -> None:
    assert Ledger().verdict().holds
