"""Throughput and latency of one producer, compared with the baseline."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.bench.figures import (
    TOPIC_TIMEOUT_MS,
    Figure,
    FloorClient,
    empty_files,
    fill,
    floor_server,
    new_topic,
    percentile_us,
    scratch,
    target,
    throughput,
    warm_page_cache,
)
from raftlog.clock import SystemClock
from raftlog.config import TopicConfig
from raftlog.config.address import parse_address
from raftlog.disk import OsDisk, sync_data
from raftlog.limits import MIB, PRODUCER_BATCHES_REMEMBERED
from raftlog.protocol.api import API_VERSIONS
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.record import encode, seal, validate
from raftlog.storage import Log


def produce(
    bootstrap: str,
    directory: Path,
    *,
    records: int,
    value_bytes: int,
    one_by_one: bool = False,
    rounds: int = 3,
    compression: str = "none",
    replicas: int = 1,
) -> Figure:
    """Alternate rounds of the baseline and of a producer. ``directory``: on the disk to measure.

    ``replicas``: of the topic; the baseline is a pipeline of as many processes.

    Each round starts with empty files and the order of the two changes, because earlier writes
    affect the speed of the page cache (see ``warm_page_cache``).
    """
    value = b"x" * value_bytes
    records_per_batch = max(1, MIB // (value_bytes + 12) - 8)  # a batch of about 1 MiB
    frame = _sealed([value] * records_per_batch)
    frames = max(1, records // records_per_batch)
    floor_rates, rates = [], []
    warm_page_cache(directory, 2 * replicas * frames * len(frame))
    with floor_server(directory, sync="thread", followers=replicas - 1) as address:

        def floor_round() -> None:
            client = FloorClient(address)
            seconds = client.stream(frame, frames=frames, in_flight_max=PRODUCER_BATCHES_REMEMBERED)
            client.close()
            empty_files(directory)
            floor_rates.append(frames * records_per_batch / seconds)

        def product_round() -> None:
            with new_topic(bootstrap, replicas=replicas) as topic:
                chunk = [value] * (1 if one_by_one else records_per_batch)
                rates.append(_produce_round(bootstrap, topic, chunk, records, compression))

        for number in range(rounds):
            pair = (floor_round, product_round)
            for run in pair if number % 2 else reversed(pair):
                run()
    rate = statistics.median(rates)
    return throughput(
        _name("send" if one_by_one else "send_many", replicas),
        records=records,
        value_bytes=value_bytes,
        rounds=rounds,
        records_per_s=rate,
        megabytes_per_s=rate * len(frame) / records_per_batch / 1e6,
        floor_records_per_s=statistics.median(floor_rates),
    )


def _name(call: str, replicas: int) -> str:
    return call if replicas == 1 else f"{call}, {replicas} replicas"


def _sealed(values: list[bytes]) -> bytes:
    body = encode(values, timestamps_ms=SystemClock().wall_ms())
    return seal(body) + body.payload


def _produce_round(
    bootstrap: str, topic: str, chunk: list[bytes], records: int, compression: str
) -> float:
    """Return records per second from the first call until all are acknowledged.

    Calls ``send`` for a chunk of one record, ``send_many`` for larger ones.
    """
    calls = max(1, records // len(chunk))
    with Producer(bootstrap, compression=compression) as producer:
        producer.send(topic, chunk[0]).result(timeout=30)  # connects and fetches metadata
        start = time.perf_counter()
        if len(chunk) == 1:
            send, value = producer.send, chunk[0]
            for _ in range(calls):
                send(topic, value)
        else:
            for _ in range(calls):
                producer.send_many(topic, chunk)
        producer.flush(timeout=120)
        return calls * len(chunk) / (time.perf_counter() - start)


def round_trip(
    bootstrap: str,
    directory: Path,
    *,
    count: int,
    value_bytes: int,
    rounds: int = 3,
    replicas: int = 1,
) -> Figure:
    """Measure ``count`` round trips per round, alternately of the baseline and of a producer.

    Times are in microseconds. ``ratio``: p50 of the producer divided by p50 of the baseline.
    """
    value = b"x" * value_bytes
    frame = _sealed([value])
    floor_seconds: list[float] = []
    seconds: list[float] = []
    with (
        new_topic(bootstrap, replicas=replicas) as topic,
        floor_server(directory, sync="inline", followers=replicas - 1) as address,
        Producer(bootstrap, linger_ms=0) as producer,
    ):
        client = FloorClient(address)
        producer.send(topic, value).result(timeout=30)
        for _ in range(rounds):
            floor_seconds += client.round_trips(frame, count=count)
            seconds += round_trips(producer, topic, value, count)
        client.close()
    name = _name("send, one in flight", replicas)
    p50, p99 = percentile_us(seconds, 50), percentile_us(seconds, 99)
    floor_p50, floor_p99 = percentile_us(floor_seconds, 50), percentile_us(floor_seconds, 99)
    return Figure(
        {
            "name": name,
            "count": count * rounds,
            "p50_us": p50,
            "p99_us": p99,
            "floor_p50_us": floor_p50,
            "floor_p99_us": floor_p99,
            "ratio": p50 / floor_p50,
        },
        {
            "benchmark": name,
            "p50 us": f"{p50:.0f}",
            "p99 us": f"{p99:.0f}",
            "floor p50 us": f"{floor_p50:.0f}",
            "floor p99 us": f"{floor_p99:.0f}",
            "times the floor": f"{p50 / floor_p50:.2f}",
        },
    )


def round_trips(producer: Producer, topic: str, value: bytes, count: int) -> list[float]:
    """Return the seconds of each of ``count`` records, with one record in flight."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        producer.send(topic, value).result(timeout=30)
        seconds.append(time.perf_counter() - start)
    return seconds


# -- consume ---------------------------------------------------------------------------------------
#
# Throughput of one consumer that reads record objects or Arrow batches.


POLL_RECORDS = 10_000


def consume(
    bootstrap: str, *, records: int, value_bytes: int, arrow: bool = False, rounds: int = 3
) -> Figure:
    """Write ``records`` once, and read all of them in each round."""
    with new_topic(bootstrap) as topic:
        fill(bootstrap, topic, records, b"x" * value_bytes)
        rate = statistics.median(
            _read(bootstrap, topic, records, arrow=arrow) for _ in range(rounds)
        )
    return throughput(
        "consume (Arrow)" if arrow else "consume (records)",
        records=records,
        value_bytes=value_bytes,
        rounds=rounds,
        records_per_s=rate,
        megabytes_per_s=rate * (value_bytes + 12) / 1e6,
    )


def read(consumer: Consumer, records: int) -> None:
    """Poll until ``records`` records were received."""
    while records > 0:
        records -= len(consumer.poll(timeout_ms=10_000, max_records=POLL_RECORDS))


def _read(bootstrap: str, topic: str, records: int, *, arrow: bool) -> float:
    """Read the topic. Returns records per second."""
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        start = time.perf_counter()
        if arrow:
            seen = 0
            while seen < records:
                batch = consumer.poll_arrow(timeout_ms=10_000)
                seen += 0 if batch is None else batch.num_rows
        else:
            read(consumer, records)
        return records / (time.perf_counter() - start)


# -- topics ----------------------------------------------------------------------------------------
#
# Creation and deletion of a topic with many partitions, and its idle cost.


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


# -- memory ----------------------------------------------------------------------------------------
#
# Memory of a broker under load, and with idle partitions and connections.


PROC: Final = Path("/proc")


def measure(
    directory: Path | None,
    *,
    stream_bytes: int,
    partitions: int = 1_000,
    connections: int = 500,
) -> list[Figure]:
    """Return both results, each of a new broker below ``directory``."""
    with target(directory) as broker:
        busy = streaming(broker.bootstrap, broker.pid, stream_bytes=stream_bytes)
    with target(directory) as broker:
        return [
            busy,
            idle(broker.bootstrap, broker.pid, partitions=partitions, connections=connections),
        ]


def streaming(bootstrap: str, pid: int, *, stream_bytes: int, value_bytes: int = 1_024) -> Figure:
    """Measure the memory of process ``pid`` after ``stream_bytes`` were written and read."""
    records = stream_bytes // value_bytes
    with new_topic(bootstrap) as topic:
        fill(bootstrap, topic, records, b"x" * value_bytes)
        with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            read(consumer, records)
        return _figure(f"{stream_bytes // MIB} MiB streamed in and out", pid)


def idle(bootstrap: str, pid: int, *, partitions: int, connections: int) -> Figure:
    """Measure the memory of process ``pid`` with empty partitions and idle connections."""
    address = parse_address(bootstrap)
    with new_topic(bootstrap, partitions), contextlib.ExitStack() as stack:
        for _ in range(connections):
            _greet(stack.enter_context(socket.create_connection(address)))
        return _figure(f"{partitions} partitions and {connections} connections, idle", pid)


def _greet(connection: socket.socket) -> None:
    """Send the first request of every client, and receive the response."""
    state = ClientConnectionState()
    _, buffers = state.send(API_VERSIONS, ApiVersionsRequest(client_id="raftlog bench"))
    connection.sendall(b"".join(buffers))
    while not state.received(connection.recv_into(state.get_buffer())):
        pass


def _figure(name: str, pid: int) -> Figure:
    now, peak = memory_mib(pid)
    return Figure(
        {"name": name, "peak_mib": peak, "after_mib": now},
        {"broker memory": name, "peak MiB": f"{peak:.0f}", "after MiB": f"{now:.0f}"},
    )


# -- /proc of a process; Linux only ----------------------------------------------------------------


def memory_mib(pid: int) -> tuple[float, float]:
    """Return the current and the peak resident memory of a process in MiB."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    now, peak = (int(fields[key].split()[0]) / 1_024 for key in ("VmRSS", "VmHWM"))
    return now, peak


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    # pid (name) state parent ...: the name can contain spaces and brackets.
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- compact ---------------------------------------------------------------------------------------
#
# Compaction rate of a log, compared with a copy of its bytes, and its effect on produce latency.
#
# Half of the records are superseded by a later one of the same key. Rates are bytes of the log
# before the compaction, per second of one thread, which reads, selects, writes and syncs.


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
