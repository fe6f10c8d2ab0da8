"""Compaction rate of a log, compared with a copy of its bytes, and its effect on produce latency.

Half of the records are superseded by a later one of the same key. Rates are bytes of the log before
the compaction, per second of one thread, which reads, selects, writes and syncs.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from raftlog import Admin, Producer
from raftlog.bench.figures import Figure, percentile_us
from raftlog.bench.produce import round_trips
from raftlog.bench.target import fill, new_topic, scratch, target
from raftlog.config import TopicConfig
from raftlog.disk import OsDisk, sync_data
from raftlog.limits import MIB
from raftlog.record import encode, seal, validate
from raftlog.storage import Log

BATCH_BYTES: Final = 256 * 1_024  # approximate bytes of values, as from a busy producer
SEGMENT_BYTES: Final = 64 * MIB
MEMORY_BYTES: Final = 128 * MIB
COPY_BYTES: Final = MIB  # per read and write
NOW_MS: Final = 1_700_000_000_000
BEGIN_S_MAX: Final = 60.0
VALUE: Final = b"x" * 100


# -- rate ------------------------------------------------------------------------------------------


def compact(directory: Path | None, *, records: int, value_bytes: int, rounds: int = 3) -> Figure:
    """Measure compactions of a log of ``records``, in alternate rounds with copies of its files.

    Returns medians over the rounds. Rates: 1e6 bytes of the log before the compaction, per second
    of the wall clock and of the CPU time of the thread. ``kept_share``: of the bytes. ``ratio``:
    compaction rate divided by copy rate.
    """
    wall: list[float] = []
    thread: list[float] = []
    copied: list[float] = []
    with scratch(directory) as home:
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
    rate, own_rate, copy_rate = (statistics.median(found) / 1e6 for found in (wall, thread, copied))
    name = "compaction, half of it superseded"
    return Figure(
        {
            "name": name,
            "records": records,
            "value_bytes": value_bytes,
            "rounds": rounds,
            "megabytes_per_s": rate,
            "megabytes_per_cpu_s": own_rate,
            "kept_share": kept_share,
            "copy_megabytes_per_s": copy_rate,
            "ratio": rate / copy_rate,
        },
        {
            "benchmark": name,
            "value bytes": f"{value_bytes}",
            "MB/s": f"{rate:,.0f}",
            "MB per CPU second": f"{own_rate:,.0f}",
            "kept": f"{kept_share:.0%}",
            "copy MB/s": f"{copy_rate:,.0f}",
            "share of copy": f"{rate / copy_rate:.0%}",
        },
    )


def _filled(directory: Path, *, records: int, value_bytes: int) -> Log:
    """Return a log in which each key occurs twice, and all segments can be compacted."""
    config = TopicConfig(
        cleanup_policy="compact", segment_bytes=SEGMENT_BYTES, min_cleanable_dirty_ratio=0.0
    )
    log = Log.open(OsDisk(), str(directory), config)
    random = Random(1)  # values that cannot be compressed
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
    log.config = replace(config, segment_ms=1)  # so that the last segment is compacted, too
    log.roll_if_due(now_ms=NOW_MS + 2)
    log.sync()
    return log


def _run(log: Log) -> tuple[float, float]:
    """Compact the log. Returns seconds of the wall clock and of the CPU time of this thread."""
    began, own = time.perf_counter(), time.thread_time()
    while (
        task := log.begin_compaction(
            now_ms=NOW_MS + 2,
            high_watermark=log.log_end_offset,
            chance_seed=1,
            memory_bytes=MEMORY_BYTES,
        )
    ) is not None:
        task.run()
        log.complete_compaction(task)
        log.sync()
    return time.perf_counter() - began, time.thread_time() - own


def _copy(paths: list[Path], to: Path) -> float:
    """Copy files into one, and sync it. Returns the seconds."""
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


# -- latency during a compaction -------------------------------------------------------------------


def while_compacting(
    directory: Path | None, *, records: int, value_bytes: int, count: int
) -> Figure:
    """Measure round trips to an idle broker, and to a broker that compacts a topic.

    Times are in microseconds. ``megabytes_per_s``: of the compaction.
    """
    settings = {"log.cleaner.interval.ms": "50", "log.retention.check.interval.ms": "50"}
    segments = {"segment.bytes": str(SEGMENT_BYTES)}
    with (
        target(directory, settings=settings) as broker,
        new_topic(broker.bootstrap, config=segments) as load,
        new_topic(broker.bootstrap) as topic,
        Admin(broker.bootstrap) as admin,
        Producer(broker.bootstrap, linger_ms=0) as producer,
    ):
        fill(broker.bootstrap, load, records, os.urandom(value_bytes), keys=records // 2)
        (partition,) = broker.directory.glob(f"**/{load}/*/0")
        before = sum(path.stat().st_size for path in partition.glob("*.log"))
        alone = round_trips(producer, topic, VALUE, count)
        # The active segment is not compacted. After segment.ms, it is no longer active.
        cleaning = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        admin.alter_topic(load, {**cleaning, "segment.ms": "1"})
        began = time.perf_counter()
        loaded = round_trips(producer, topic, VALUE, 20)
        while not (partition / "compaction").exists():
            loaded += round_trips(producer, topic, VALUE, 20)
            if time.perf_counter() - began > BEGIN_S_MAX:
                raise TimeoutError(f"no compaction of {partition} within {BEGIN_S_MAX:g} s")
        rate = before / (time.perf_counter() - began) / 1e6
    return _while_compacting(alone, loaded, rate)


def _while_compacting(alone: list[float], loaded: list[float], megabytes_per_s: float) -> Figure:
    name = "send, one in flight"
    p50, p99 = percentile_us(alone, 50), percentile_us(alone, 99)
    loaded_p50, loaded_p99 = percentile_us(loaded, 50), percentile_us(loaded, 99)
    worst = max(loaded) * 1e6
    return Figure(
        {
            "name": name,
            "megabytes_per_s": megabytes_per_s,
            "count": len(alone),
            "p50_us": p50,
            "p99_us": p99,
            "beside_count": len(loaded),
            "beside_p50_us": loaded_p50,
            "beside_p99_us": loaded_p99,
            "beside_worst_us": worst,
        },
        {
            "benchmark": name,
            "p50 us": f"{p50:.0f}",
            "p99 us": f"{p99:.0f}",
            "during a compaction: p50 us": f"{loaded_p50:.0f}",
            "p99 us ": f"{loaded_p99:.0f}",
            "worst us": f"{worst:.0f}",
            "compaction MB/s": f"{megabytes_per_s:.0f}",
        },
    )
