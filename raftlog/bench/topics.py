"""Creation and deletion of a topic with many partitions, and its idle cost."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Final

from raftlog import Admin, NewTopic
from raftlog.bench.figures import Figure
from raftlog.bench.memory import cpu_s
from raftlog.bench.target import TOPIC_TIMEOUT_MS, scratch, target
from raftlog.disk import sync_data

BROKERS: Final = 3
REST_S: Final = 15.0  # from the creation until partitions count as idle
QUIET_S: Final = 10.0  # measurement of idle partitions


def topics(directory: Path | None, *, partitions: int, rounds: int) -> Figure:
    """Measure the creation and deletion of a topic with as many replicas as brokers.

    Returns medians of the rounds. ``creation_s``: until the partitions have leaders. ``floor_s``:
    one process writes and syncs a file with 100 bytes per partition for each broker. ``ratio``:
    ``floor_s`` divided by ``creation_s``. ``creation_cpu_s``: processor time of all brokers in
    seconds. ``idle_cores``: of all brokers, while the last topic is idle; 1.0 is one core.
    """
    created, deleted, worked, floors = [], [], [], []
    idle_cores = 0.0
    with (
        target(directory, brokers=BROKERS) as brokers,
        Admin(brokers.bootstrap, request_timeout_ms=TOPIC_TIMEOUT_MS) as admin,
    ):
        for number in range(rounds):
            floors.append(_floor_s(brokers.directory, partitions))
            name = f"many-{number}"
            before = _cpu_s(brokers.pids)
            start = time.perf_counter()
            admin.create_topics([NewTopic(name, partitions, BROKERS)])
            created.append(time.perf_counter() - start)
            worked.append(_cpu_s(brokers.pids) - before)
            if number == rounds - 1:
                time.sleep(REST_S)
                before = _cpu_s(brokers.pids)
                time.sleep(QUIET_S)
                idle_cores = (_cpu_s(brokers.pids) - before) / QUIET_S
            start = time.perf_counter()
            admin.delete_topics([name])
            deleted.append(time.perf_counter() - start)
    creation_s, floor_s = statistics.median(created), statistics.median(floors)
    deletion_s, work_s = statistics.median(deleted), statistics.median(worked)
    return Figure(
        {
            "partitions": partitions,
            "replicas": BROKERS,
            "rounds": rounds,
            "creation_s": creation_s,
            "creation_cpu_s": work_s,
            "deletion_s": deletion_s,
            "floor_s": floor_s,
            "ratio": floor_s / creation_s,
            "idle_cores": idle_cores,
        },
        {
            "benchmark": f"topic of {partitions:,} partitions",
            "created s": f"{creation_s:.2f}",
            "brokers' CPU s": f"{work_s:.2f}",
            "deleted s": f"{deletion_s:.2f}",
            "floor s": f"{floor_s:.2f}",
            "floor / created": f"{floor_s / creation_s:.0%}",
            "idle": f"{idle_cores:.1%} of a core",
        },
    )


def _cpu_s(pids: tuple[int, ...]) -> float:
    return sum(map(cpu_s, pids))


def _floor_s(directory: Path, partitions: int) -> float:
    start = time.perf_counter()
    with scratch(directory) as home:
        for broker in range(BROKERS):
            with (home / f"journal-{broker}").open("wb") as file:
                file.write(bytes(100 * partitions))
                file.flush()
                sync_data(file.fileno())
        return time.perf_counter() - start
