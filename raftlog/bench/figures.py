"""Result of a benchmark, as JSON values and as a table row."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from raftlog import Admin, NewTopic, Producer
from raftlog.disk import sync_data
from raftlog.limits import MIB
from raftlog.standard_streams import occupy
from raftlog.testing.certificates import create
from raftlog.testing.cluster import cluster


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


# -- target ----------------------------------------------------------------------------------------
#
# Targets of benchmarks: new brokers and topics, on the disk to be measured.


FILL_RECORDS: Final = 1_000
TOPIC_TIMEOUT_MS: Final = 300_000  # for 1,000 replicated partitions on a busy machine


@dataclass(frozen=True, slots=True)
class Target:
    """Running brokers, their process IDs, and a directory on their disk for the baseline."""

    bootstrap: str
    pids: tuple[int, ...]
    directory: Path

    @property
    def pid(self) -> int:
        """Process ID of the first broker."""
        return self.pids[0]


@contextmanager
def scratch(directory: Path | None) -> Iterator[Path]:
    """Create a temporary directory below ``directory`` (None: that of the system)."""
    with tempfile.TemporaryDirectory(prefix="raftlog-bench-", dir=directory) as home:
        yield Path(home)


@contextmanager
def target(
    directory: Path | None,
    *,
    brokers: int = 1,
    settings: Mapping[str, str] | None = None,
    secure: bool = False,
) -> Iterator[Target]:
    """Run a new broker or cluster in a directory of ``scratch``.

    ``secure``: with TLS, which environment variables enable for the clients of this process.
    """
    with ExitStack() as stack:
        home = stack.enter_context(scratch(directory))
        if secure:
            files = create(home / "tls")
            settings = {**(settings or {}), **files.broker_settings()}
            stack.enter_context(_environment(files.environment()))
        running = stack.enter_context(
            cluster(brokers=brokers, directory=home, settings=settings, with_relays=False)
        )
        pids = tuple(broker.pid for broker in running.brokers if broker.pid is not None)
        assert len(pids) == brokers
        yield Target(running.bootstrap, pids, home)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables until the block ends."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def new_topic(
    bootstrap: str,
    partitions: int = 1,
    *,
    replicas: int = 0,
    config: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Create a topic for the block. ``replicas``: of each partition; 0: default of the cluster."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap, request_timeout_ms=TOPIC_TIMEOUT_MS) as admin:
        admin.create_topics([NewTopic(name, partitions, replicas, config or {})])
        try:
            yield name
        finally:
            admin.delete_topics([name])


def fill(
    bootstrap: str, topic: str, records: int, value: bytes, *, partitions: int = 1, keys: int = 0
) -> None:
    """Write ``value`` repeatedly, in calls of ``FILL_RECORDS``, to the partitions in turn.

    ``keys``: number of different keys, which are used equally often; 0: no keys.
    """
    with Producer(bootstrap) as producer:
        for start in range(0, records, FILL_RECORDS):
            numbers = range(start, min(start + FILL_RECORDS, records))
            producer.send_many(
                topic,
                [value] * len(numbers),
                [b"key-%012d" % (number % keys) for number in numbers] if keys else None,
                partition=start // FILL_RECORDS % partitions,
            )
        producer.flush(timeout=300)


# -- floor -----------------------------------------------------------------------------------------
#
# Baseline: the same bytes, sockets, writes and fdatasyncs without the code of the log.
#
# A server process receives frames, appends each to a file, and acknowledges it when it is synced. A
# client sends frames with a fixed number in flight. There are no checksums, offsets, indexes,
# topics, retries or records. The result is the minimum cost of a log in Python that syncs before it
# acknowledges.
#
#     frame  | length 4 | bytes |        response  | 1 byte for each frame |       little-endian
#
# With followers, this is a minimal replication pipeline: the server forwards each received frame to
# server processes of the same kind, and acknowledges it when all of them and its own disk have it.
#
# There are two sync modes: ``thread`` (group commit: one fdatasync for all frames that were
# received during the previous one) for throughput, ``inline`` (no thread switch) for latency.


_LENGTH: Final = struct.Struct("<I")
_SCRATCH_BYTES: Final = 1 << 18
HOST: Final = "127.0.0.1"
ANSWER: Final = b"\x01"


class _FloorProtocol(asyncio.BufferedProtocol):
    """One connection. Frames are received directly into the buffer that is written to the file."""

    def __init__(self, fd: int, pool: ThreadPoolExecutor | None, followers: _Followers) -> None:
        self._fd = fd
        self._pool = pool
        self._followers = followers
        self._loop = asyncio.get_running_loop()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._held = b""
        self._frame: memoryview | None = None
        self._filled = 0
        self._written = 0
        self._syncing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._followers.begin(self.answer)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._scratch if self._frame is None else self._frame[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._frame is None:
            self._parse(self._held + bytes(self._scratch[:count]))
        else:
            self._filled += count
            self._finish()
        if self._written and not self._syncing:
            self._sync()

    def _parse(self, data: bytes) -> None:
        while len(data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data)
            self._frame = memoryview(bytearray(length))
            body = data[_LENGTH.size : _LENGTH.size + length]
            self._frame[: len(body)] = body
            self._filled = len(body)
            data = data[_LENGTH.size + length :]
            self._finish()
        self._held = data

    def _finish(self) -> None:
        if self._frame is not None and self._filled == len(self._frame):
            self._followers.pass_on(self._frame)
            os.write(self._fd, self._frame)
            self._frame = None
            self._written += 1

    def _sync(self) -> None:
        self._syncing, self._written = self._written, 0
        if self._pool is None:
            sync_data(self._fd)
            self._synced()
        else:
            done = self._pool.submit(sync_data, self._fd)
            done.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._synced))

    def _synced(self) -> None:
        self._followers.own_disk_has(self._syncing)
        self._syncing = 0
        if self._written:
            self._sync()

    def answer(self, frames: int) -> None:
        self._transport.write(ANSWER * frames)


class _Followers:
    """Followers of a server, and the number of frames that each has acknowledged."""

    def __init__(self) -> None:
        self._links: list[_FollowerLink] = []
        self._own = 0
        self._answered = 0
        self._answer: Callable[[int], None] = lambda _frames: None

    async def connect(self, ports: Iterable[str]) -> None:
        loop = asyncio.get_running_loop()
        for port in ports:
            transport, link = await loop.create_connection(
                partial(_FollowerLink, self._respond), HOST, int(port)
            )
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links.append(link)

    def begin(self, answer: Callable[[int], None]) -> None:
        """Set the callback of a new client. The client before it has received all responses."""
        self._answer = answer

    def pass_on(self, frame: memoryview) -> None:
        for link in self._links:
            link.transport.writelines((_LENGTH.pack(len(frame)), frame))

    def own_disk_has(self, frames: int) -> None:
        self._own += frames
        self._respond()

    def _respond(self) -> None:
        everywhere = min([self._own, *(link.answers for link in self._links)])
        if everywhere > self._answered:
            self._answer(everywhere - self._answered)
            self._answered = everywhere


class _FollowerLink(asyncio.Protocol):
    """Connection to one follower: sends frames, receives one byte for each."""

    def __init__(self, on_answers: Callable[[], None]) -> None:
        self._on_answers = on_answers
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.answers += len(data)
        self._on_answers()


async def _serve(listener: socket.socket, path: str, how: str, ports: Iterable[str]) -> None:
    followers = _Followers()
    await followers.connect(ports)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pool = ThreadPoolExecutor(1) if how == "thread" else None
    server = await asyncio.get_running_loop().create_server(
        lambda: _FloorProtocol(fd, pool, followers), sock=listener
    )
    await server.serve_forever()


@contextmanager
def floor_server(directory: Path, *, sync: str, followers: int = 0) -> Iterator[tuple[str, int]]:
    """Run a baseline server process with ``followers``. ``sync``: ``thread`` or ``inline``.

    Yields its address.
    """
    with ExitStack() as stack:
        ports = [
            str(stack.enter_context(_process(directory / f"floor-{number}", sync, ()))[1])
            for number in range(followers)
        ]
        yield stack.enter_context(_process(directory / "floor", sync, ports))


@contextmanager
def _process(path: Path, sync: str, ports: Iterable[str]) -> Iterator[tuple[str, int]]:
    with socket.create_server((HOST, 0)) as listener:
        number = str(listener.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, number, str(path), sync, *ports],
            pass_fds=[listener.fileno()],
        )
        try:
            yield listener.getsockname()
        finally:
            process.kill()
            process.wait()


def empty_files(directory: Path) -> None:
    """Truncate the files of the servers, to release disk space."""
    for path in directory.glob("floor*"):
        os.truncate(path, 0)


def warm_page_cache(directory: Path, size_bytes: int) -> None:
    """Write and remove ``size_bytes``, so that measurements use warm memory pages.

    On a virtual machine the first use of a memory page can cost ten times as much as the second.
    Otherwise the first measurement would include this cost.
    """
    path = directory / "warm"
    with path.open("wb", buffering=0) as file:
        for _ in range(size_bytes // MIB + 1):
            file.write(bytes(MIB))
    path.unlink()


class FloorClient:
    """Client that sends frames with several in flight. Blocking."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def stream(self, frame: bytes, *, frames: int, in_flight_max: int) -> float:
        """Send ``frames`` copies of ``frame``. Returns the seconds until all are acknowledged."""
        parts = [_LENGTH.pack(len(frame)), frame]
        size = len(frame) + _LENGTH.size
        in_flight = 0
        start = time.perf_counter()
        for _ in range(frames):
            while in_flight >= in_flight_max:
                in_flight -= len(self._socket.recv(4_096))
            sent = self._socket.sendmsg(parts)
            if sent < size:
                self._socket.sendall(b"".join(parts)[sent:])
            in_flight += 1
        while in_flight:
            in_flight -= len(self._socket.recv(4_096))
        return time.perf_counter() - start

    def round_trips(self, frame: bytes, *, count: int) -> list[float]:
        """Return the seconds of each of ``count`` round trips with one frame in flight."""
        whole = _LENGTH.pack(len(frame)) + frame
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            self._socket.sendall(whole)
            self._socket.recv(1)
            seconds.append(time.perf_counter() - start)
        return seconds

    def close(self) -> None:
        self._socket.close()


def measure(directory: Path | None, *, rounds: int, frames: int = 300) -> Figure:
    """Measure only the baseline, in a temporary directory. Times are in microseconds."""
    rates, seconds = [], []
    frame = bytes(MIB)
    with scratch(directory) as home:
        with floor_server(home, sync="thread") as address:
            client = FloorClient(address)
            for _ in range(rounds):
                elapsed = client.stream(frame, frames=frames, in_flight_max=5)
                rates.append(frames * MIB / elapsed / 1e6)
            client.close()
        with floor_server(home, sync="inline") as address:
            client = FloorClient(address)
            for _ in range(rounds):
                seconds += client.round_trips(bytes(200), count=1_000)
            client.close()
    rate = statistics.median(rates)
    p50, p99 = percentile_us(seconds, 50), percentile_us(seconds, 99)
    return Figure(
        {"streamed_megabytes_per_s": rate, "p50_us": p50, "p99_us": p99},
        {
            "streamed MB/s": f"{rate:.0f}",
            "round trip p50 us": f"{p50:.0f}",
            "round trip p99 us": f"{p99:.0f}",
        },
    )


if __name__ == "__main__":
    listening = socket.socket(fileno=int(sys.argv[1]))
    occupy()
    uvloop.run(_serve(listening, sys.argv[2], sys.argv[3], sys.argv[4:]))
