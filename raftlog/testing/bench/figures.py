"""What benchmarks report, as plain values that print and compare."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure(ABC):
    """A result that can be printed: as JSON, or as a row of named cells for people."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @abstractmethod
    def table(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Throughput(Figure):
    """Medians over the rounds. ``ratio``: the product's share of the floor's rate, 1.0 is equal."""

    name: str
    records: int
    value_bytes: int
    rounds: int
    records_per_s: float
    megabytes_per_s: float  # 1e6 bytes of batches as they are stored
    floor_records_per_s: float | None = None
    ratio: float | None = None

    def table(self) -> dict[str, str]:
        cells = {
            "benchmark": self.name,
            "value bytes": f"{self.value_bytes}",
            "records/s": f"{self.records_per_s:,.0f}",
            "MB/s": f"{self.megabytes_per_s:,.0f}",
        }
        if self.floor_records_per_s is not None and self.ratio is not None:
            cells["floor records/s"] = f"{self.floor_records_per_s:,.0f}"
            cells["share of floor"] = f"{self.ratio:.0%}"
        return cells


@dataclass(frozen=True, slots=True)
class Latency(Figure):
    """Round trips in microseconds. ``ratio``: the product's p50 over the floor's, 1.0 is equal."""

    name: str
    count: int
    p50_us: float
    p99_us: float
    floor_p50_us: float
    floor_p99_us: float
    ratio: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": self.name,
            "p50 us": f"{self.p50_us:.0f}",
            "p99 us": f"{self.p99_us:.0f}",
            "floor p50 us": f"{self.floor_p50_us:.0f}",
            "floor p99 us": f"{self.floor_p99_us:.0f}",
            "times the floor": f"{self.ratio:.2f}",
        }


@dataclass(frozen=True, slots=True)
class Memory(Figure):
    """A process's resident memory in MiB: the highest that it was, and after the work."""

    name: str
    peak_mib: float
    after_mib: float

    def table(self) -> dict[str, str]:
        return {
            "broker memory": self.name,
            "peak MiB": f"{self.peak_mib:.0f}",
            "after MiB": f"{self.after_mib:.0f}",
        }


@dataclass(frozen=True, slots=True)
class Floor(Figure):
    """The floor by itself."""

    streamed_megabytes_per_s: float
    p50_us: float
    p99_us: float

    def table(self) -> dict[str, str]:
        return {
            "streamed MB/s": f"{self.streamed_megabytes_per_s:.0f}",
            "round trip p50 us": f"{self.p50_us:.0f}",
            "round trip p99 us": f"{self.p99_us:.0f}",
        }


def percentile_us(seconds: Sequence[float], percent: int) -> float:
    """The ``percent`` percentile (1 to 99) of ``seconds``, in microseconds."""
    return statistics.quantiles(seconds, n=100)[percent - 1] * 1e6
