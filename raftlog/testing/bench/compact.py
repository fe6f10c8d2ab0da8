"""How fast a log is compacted, next to copying its bytes; and what that does to those who produce.

Half of the records are superseded by a later one of the same key. Rates count the bytes of the log
as it was before, in one thread's time: reading, deciding, writing and syncing.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from raftlog import Admin, NewTopic, Producer
from raftlog.config import TopicConfig
from raftlog.disk import OsDisk, sync_data
from raftlog.limits import MIB
from raftlog.record import encode, seal, validate
from raftlog.storage import Log
from raftlog.testing.bench.figures import Figure, percentile_us
from raftlog.testing.cluster import cluster

BATCH_BYTES: Final = 256 * 1_024  # of values, about: what a busy producer sends
SEGMENT_BYTES: Final = 64 * MIB
MEMORY_BYTES: Final = 128 * MIB
COPY_BYTES: Final = MIB  # read and written at a time
NOW_MS: Final = 1_700_000_000_000
BEGIN_S_MAX: Final = 60.0
FILL_RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Compaction(Figure):
    """Medians over the rounds. ``ratio``: the share of a plain copy's rate; 1.0 is equal."""

    name: str
    records: int
    value_bytes: int
    rounds: int
    megabytes_per_s: float  # 1e6 bytes of the log as it was, by the wall clock
    megabytes_per_cpu_s: float  # the same, by the thread's own time
    kept_share: float  # of the bytes
    copy_megabytes_per_s: float
    ratio: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": self.name,
            "value bytes": f"{self.value_bytes}",
            "MB/s": f"{self.megabytes_per_s:,.0f}",
            "MB per CPU second": f"{self.megabytes_per_cpu_s:,.0f}",
            "kept": f"{self.kept_share:.0%}",
            "copy MB/s": f"{self.copy_megabytes_per_s:,.0f}",
            "share of copy": f"{self.ratio:.0%}",
        }


@dataclass(frozen=True, slots=True)
class Beside(Figure):
    """Round trips of one producer, in microseconds: with nothing else, and beside a compaction."""

    name: str
    megabytes_per_s: float  # of the compaction
    count: int
    p50_us: float
    p99_us: float
    beside_count: int
    beside_p50_us: float
    beside_p99_us: float
    beside_worst_us: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": self.name,
            "p50 us": f"{self.p50_us:.0f}",
            "p99 us": f"{self.p99_us:.0f}",
            "beside a compaction: p50 us": f"{self.beside_p50_us:.0f}",
            "p99 us ": f"{self.beside_p99_us:.0f}",
            "worst us": f"{self.beside_worst_us:.0f}",
            "compaction MB/s": f"{self.megabytes_per_s:.0f}",
        }


# -- how fast --------------------------------------------------------------------------------------


def compact(
    directory: Path | None, *, records: int, value_bytes: int, rounds: int = 3
) -> Compaction:
    """A log of ``records`` is compacted in each round, and its files are copied, by turns."""
    wall: list[float] = []
    thread: list[float] = []
    copied: list[float] = []
    with _home(directory) as home:
        for number in range(rounds):
            log = _filled(home / f"log-{number}", records=records, value_bytes=value_bytes)
            files = sorted((home / f"log-{number}").glob("*.log"))
            before = log.size_bytes
            copied.append(before / _copy(files, home / "copy"))
            seconds, own_seconds = _run(log)
            wall.append(before / seconds)
            thread.append(before / own_seconds)
            kept_share = log.size_bytes / before
            log.close()
    rate, copy_rate = statistics.median(wall), statistics.median(copied)
    return Compaction(
        name="compaction, half of it superseded",
        records=records,
        value_bytes=value_bytes,
        rounds=rounds,
        megabytes_per_s=rate / 1e6,
        megabytes_per_cpu_s=statistics.median(thread) / 1e6,
        kept_share=kept_share,
        copy_megabytes_per_s=copy_rate / 1e6,
        ratio=rate / copy_rate,
    )


@contextmanager
def _home(directory: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-", dir=directory) as home:
        yield Path(home)


def _filled(directory: Path, *, records: int, value_bytes: int) -> Log:
    """A log all of whose records may be compacted: each key is there twice."""
    config = TopicConfig(
        cleanup_policy="compact", segment_bytes=SEGMENT_BYTES, min_cleanable_dirty_ratio=0.0
    )
    log = Log.open(OsDisk(), str(directory), config)
    random = Random(1)  # values that no codec would make smaller
    batch_records = max(BATCH_BYTES // value_bytes, 1)
    keys = records // 2
    for start in range(0, records, batch_records):
        count = min(batch_records, records - start)
        body = encode(
            [random.randbytes(value_bytes) for _ in range(count)],
            keys=[b"key-%012d" % ((start + number) % keys) for number in range(count)],
            timestamps_ms=NOW_MS,
        )
        batch = seal(body) + body.payload
        log.append(batch, validate(batch), leader_epoch=0, now_ms=NOW_MS)
    log.config = replace(config, segment_ms=1)  # so that the last segment is no exception
    log.roll_if_due(now_ms=NOW_MS + 2)
    log.sync()
    return log


def _run(log: Log) -> tuple[float, float]:
    """Compact all of it; seconds by the wall clock and of this thread alone."""
    began, own = time.perf_counter(), time.thread_time()
    while (
        ticket := log.begin_compaction(
            now_ms=NOW_MS + 2,
            high_watermark=log.log_end_offset,
            chance_seed=1,
            memory_bytes=MEMORY_BYTES,
        )
    ) is not None:
        ticket.run()
        log.complete_compaction(ticket)
        log.sync()
    return time.perf_counter() - began, time.thread_time() - own


def _copy(paths: list[Path], to: Path) -> float:
    """Seconds for reading files and writing one with the same bytes, synced."""
    began = time.perf_counter()
    target = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for path in paths:
            source = os.open(path, os.O_RDONLY)
            while data := os.read(source, COPY_BYTES):
                os.write(target, data)
            os.close(source)
        sync_data(target)
    finally:
        os.close(target)
    seconds = time.perf_counter() - began
    to.unlink()
    return seconds


# -- beside it -------------------------------------------------------------------------------------


def beside(directory: Path | None, *, records: int, value_bytes: int, count: int) -> Beside:
    """Round trips to a broker that has nothing else to do, and then that compacts a topic."""
    settings = {"log.cleaner.interval.ms": "50"}
    with (
        _home(directory) as home,
        cluster(directory=home, settings=settings, with_relays=False) as running,
        Admin(running.bootstrap) as admin,
        Producer(running.bootstrap, linger_ms=0) as producer,
    ):
        load, topic = f"load-{uuid.uuid4().hex[:8]}", f"trips-{uuid.uuid4().hex[:8]}"
        admin.create_topics(
            [NewTopic(load, config={"segment.bytes": str(SEGMENT_BYTES)}), NewTopic(topic)]
        )
        _fill(producer, load, records=records, value_bytes=value_bytes)
        (partition,) = home.glob(f"**/{load}/*/0")
        before = sum(path.stat().st_size for path in partition.glob("*.log"))
        trips = _Trips(producer, topic)
        alone = trips.run(count)
        admin.alter_topic(load, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        began = time.perf_counter()
        meanwhile = trips.run(20)
        while not (partition / "compaction").exists():
            meanwhile += trips.run(20)
            if time.perf_counter() - began > BEGIN_S_MAX:
                raise TimeoutError(f"no compaction of {partition} within {BEGIN_S_MAX:g} s")
        seconds = time.perf_counter() - began
    return Beside(
        name="send, one in flight",
        megabytes_per_s=before / seconds / 1e6,
        count=len(alone),
        p50_us=percentile_us(alone, 50),
        p99_us=percentile_us(alone, 99),
        beside_count=len(meanwhile),
        beside_p50_us=percentile_us(meanwhile, 50),
        beside_p99_us=percentile_us(meanwhile, 99),
        beside_worst_us=max(meanwhile) * 1e6,
    )


def _fill(producer: Producer, topic: str, *, records: int, value_bytes: int) -> None:
    value = os.urandom(value_bytes)
    for start in range(0, records, FILL_RECORDS):
        count = min(FILL_RECORDS, records - start)
        keys = [b"key-%012d" % ((start + number) % (records // 2)) for number in range(count)]
        producer.send_many(topic, [value] * count, keys)
    producer.flush(timeout=300)


class _Trips:
    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic

    def run(self, count: int) -> list[float]:
        """Seconds of each of ``count`` round trips."""
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            self._producer.send(self._topic, b"x" * 100).result(timeout=30)
            seconds.append(time.perf_counter() - start)
        return seconds
