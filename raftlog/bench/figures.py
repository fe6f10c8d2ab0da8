"""Result of a benchmark, as JSON values and as a table row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """Result of one benchmark.

    ``values``: by name, unrounded, as printed by ``--json``. ``cells``: table row, by column. All
    results of one table have the same columns.
    """

    values: Mapping[str, Any]
    cells: Mapping[str, str]


def throughput(
    name: str,
    *,
    records: int,
    value_bytes: int,
    rounds: int,
    records_per_s: float,
    megabytes_per_s: float,
    floor_records_per_s: float | None = None,
) -> Figure:
    """Return medians over the rounds. ``megabytes_per_s``: 1e6 bytes of stored batches.

    With a baseline, ``ratio`` is the rate of the product divided by that of the baseline.
    """
    ratio = None if floor_records_per_s is None else records_per_s / floor_records_per_s
    cells = {
        "benchmark": name,
        "value bytes": f"{value_bytes}",
        "records/s": f"{records_per_s:,.0f}",
        "MB/s": f"{megabytes_per_s:,.0f}",
    }
    if ratio is not None:
        cells["floor records/s"] = f"{floor_records_per_s:,.0f}"
        cells["share of floor"] = f"{ratio:.0%}"
    values = {
        "name": name,
        "records": records,
        "value_bytes": value_bytes,
        "rounds": rounds,
        "records_per_s": records_per_s,
        "megabytes_per_s": megabytes_per_s,
        "floor_records_per_s": floor_records_per_s,
        "ratio": ratio,
    }
    return Figure(values, cells)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the median from order statistics: the values with the
    ranks of a sign test. For less than six values, this is their range.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, tail = 0, 1  # tail: sum of the binomial coefficients up to ``rank``
    while 40 * (tail + math.comb(count, rank + 1)) <= 2**count:  # 2 tails of 1 in 40
        rank += 1
        tail += math.comb(count, rank)
    return ordered[rank], ordered[-1 - rank]


def percentile_us(seconds: Sequence[float], percent: int) -> float:
    """Return the ``percent`` percentile (1 to 99) of ``seconds``, in microseconds."""
    return statistics.quantiles(seconds, n=100)[percent - 1] * 1e6
