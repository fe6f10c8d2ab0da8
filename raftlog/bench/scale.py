"""A topic with many partitions on many brokers.

Creates a topic with replication factor 3, kills the broker that leads most partitions, restarts
it, and adds a broker to which ``raftlog cluster rebalance`` moves replicas. Measures the times and
the processor time of all brokers.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from raftlog import Admin, NewTopic
from raftlog.bench.broker import cpu_s
from raftlog.bench.figures import TOPIC_TIMEOUT_MS, Figure, scratch
from raftlog.client.descriptions import PartitionOverview
from raftlog.testing.cluster import Cluster, cluster

TOPIC: Final = "wide"
REPLICAS: Final = 3
LIMIT_S: Final = 300.0
POLL_S: Final = 0.05


class Steps:
    """Steps of the run with their durations, in seconds."""

    def __init__(self, running: Cluster, admin: Admin) -> None:
        self._running = running
        self._admin = admin
        self.rows: list[tuple[str, float, float]] = []
        self._work_s: dict[int, float] = {}  # by process, including killed ones

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start, before = time.perf_counter(), self._cpu_s()
        yield
        self.rows.append((name, time.perf_counter() - start, self._cpu_s() - before))
        sys.stderr.write(f"{name}: {self.rows[-1][1]:.2f} s\n")

    def until(self, condition: Callable[[list[PartitionOverview]], bool]) -> None:
        """Wait until the partitions satisfy the condition. Raises ``TimeoutError``."""
        deadline = time.perf_counter() + LIMIT_S
        while not condition(self.partitions()):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"not reached within {LIMIT_S:g} s")
            time.sleep(POLL_S)

    def partitions(self) -> list[PartitionOverview]:
        return [p for p in self._admin.describe_cluster().partitions if p.topic == TOPIC]

    def _cpu_s(self) -> float:
        pids = [broker.pid for broker in self._running.brokers]
        self._work_s.update({pid: cpu_s(pid) for pid in pids if pid is not None})
        return sum(self._work_s.values())


def run(steps: Steps, running: Cluster, admin: Admin, count: int) -> None:
    with steps.step("creation"):
        admin.create_topics([NewTopic(TOPIC, count, REPLICAS)])
    with steps.step("creation, until all in-sync replicas are reported"):
        steps.until(lambda found: _are_whole(found, count))
    leaders = Counter(partition.leader for partition in steps.partitions())
    victim, led = leaders.most_common(1)[0]
    assert victim is not None
    with steps.step(
        f"SIGKILL of broker {victim}, which leads {led}, until all have another leader"
    ):
        running.broker(victim).kill()
        steps.until(
            lambda found: len(found) == count and all(p.leader not in {victim, None} for p in found)
        )
    with steps.step("its restart, until all replicas are in sync"):
        running.broker(victim).start()
        steps.until(lambda found: _are_whole(found, count))
    with steps.step("a new broker joins"):
        (new,) = running.join()
    with steps.step("rebalance, until no replica moves"):
        subprocess.run(
            [
                *(sys.executable, "-m", "raftlog", "cluster", "rebalance"),
                *("--bootstrap", running.bootstrap),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        steps.until(lambda found: any(new.id in p.replicas for p in found))
    with steps.step("deletion"):
        admin.delete_topics([TOPIC])


def _are_whole(found: list[PartitionOverview], count: int) -> bool:
    return len(found) == count and all(
        p.leader is not None and len(p.isr) == REPLICAS for p in found
    )


def scale(directory: Path | None, *, brokers: int, partitions: int) -> list[Figure]:
    """Run the steps on a new cluster. ``brokers``: at the start, at least ``REPLICAS``."""
    with (
        scratch(directory) as home,
        cluster(brokers=brokers, directory=home, with_relays=False) as running,
        Admin(running.bootstrap, request_timeout_ms=TOPIC_TIMEOUT_MS) as admin,
    ):
        steps = Steps(running, admin)
        run(steps, running, admin, partitions)
    return [
        Figure(
            {"step": name, "seconds": seconds, "cpu_s": work},
            {"step": name, "s": f"{seconds:.2f}", "CPU of all brokers, s": f"{work:.1f}"},
        )
        for name, seconds, work in steps.rows
    ]
