"""What the benchmarks of Spark report: plain values that print and compare."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.testing.bench.figures import Figure


@dataclass(frozen=True, slots=True)
class Rate(Figure):
    """Records per second, the median of the rounds. ``ratio``: those of ``subject`` over these."""

    name: str
    records: int
    value_bytes: int
    rounds: int
    records_per_s: float
    subject: str
    ratio: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": self.name,
            "records": f"{self.records:,}",
            "value bytes": f"{self.value_bytes}",
            "records/s": f"{self.records_per_s:,.0f}",
            f"{self.subject} over it": f"{self.ratio:.2f}",
        }


@dataclass(frozen=True, slots=True)
class PlanTime(Figure):
    """Seconds from ``load()`` until Spark knows the tasks of a topic, a task for each partition.

    ``first_s``: the first in a session, which starts the Python processes that plan, and loads
    Spark's classes; ``later_s``: the median of others; ``cluster_s``: the part of those that is
    spent asking the brokers, and deciding.
    """

    partitions: int
    first_s: float
    later_s: float
    cluster_s: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": f"plan {self.partitions:,} partitions",
            "s": f"{self.later_s:.2f}",
            "of that, cluster s": f"{self.cluster_s:.2f}",
            "first in a session s": f"{self.first_s:.2f}",
        }


@dataclass(frozen=True, slots=True)
class WorkerMemory(Figure):
    """Resident memory of the Python worker that took most, while a topic was read; in MiB.

    ``rest_mib``: what the same process has before it reads anything.
    """

    records: int
    value_bytes: int
    workers: int
    rest_mib: float
    peak_mib: float

    def table(self) -> dict[str, str]:
        return {
            "Python workers' memory": f"reading {self.records:,} of {self.value_bytes} bytes",
            "workers": f"{self.workers}",
            "at rest MiB": f"{self.rest_mib:.0f}",
            "peak MiB": f"{self.peak_mib:.0f}",
        }
