"""Which bounds the text of a filter of Arrow has: never more than the filter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.compute as pc  # noqa: E402

from raftlog.client.scan_dataset import ScanDataset, conditions  # noqa: E402

OFFSET, TIME, LEVEL = pc.field("offset"), pc.field("timestamp"), pc.field("level")
T0 = datetime(2026, 1, 1, 0, 0, 0, 500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        (OFFSET >= 10, [("offset", ">=", 10)]),
        ((OFFSET > -1) & (OFFSET < 20), [("offset", ">", -1), ("offset", "<", 20)]),
        ((pa.scalar(T0) >= TIME) & (LEVEL == "error"), [("timestamp", "<=", T0)]),
        ((LEVEL == b"x") & (pc.field("partition") == 1), [("partition", "==", 1)]),
        ((OFFSET < 1) | (OFFSET > 5), []),
        (((OFFSET < 1) | (LEVEL == "a")) & (OFFSET < 9), [("offset", "<", 9)]),
        (~(OFFSET < 1), []),
        (OFFSET < 1.5, []),
        (OFFSET + 1 < 5, []),
        (OFFSET.isin([1, 2]), []),
        (LEVEL == "x) and (offset > 5", []),
        ((LEVEL == 'x" and (offset > 5) and "') & (OFFSET < 3), []),
        ((LEVEL == "\\") & (OFFSET < 3), []),
    ],
)
def test_only_plain_conditions_that_all_rows_fulfil_are_taken(
    filter_: Any, expected: list[Any]
) -> None:
    assert sorted(conditions(str(filter_))) == sorted(expected)


def test_a_dataset_refuses_to_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"Call raftlog\.scan in each process"):
        ScanDataset(None).__reduce__()  # type: ignore[arg-type]
