"""What hostile clients cost a broker, measured: ``python -m tests.server.attacks [NAME ...]``.

Each attack runs against a broker of this process, on 127.0.0.1, bounded in count and in time. Told
are the longest time for which the broker's loop did nothing else, the memory of the process, and
what became of the clients that do as they should. Timings belong here and not into tests: a busy
machine makes any of them late.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from raftlog import limits
from raftlog.clock import SystemClock
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import DescribeClusterRequest
from raftlog.protocol.connection import FRAME, LENGTH_BYTES, MAGIC, Response
from raftlog.protocol.records import (
    DeleteRecordsRequest,
    DescribeProducersRequest,
    DescribeTopicsRequest,
    FetchPartition,
    FetchRequest,
    ProducePartition,
    ProduceRequest,
    ProducersQuery,
    RecordsToDelete,
)
from raftlog.record import Codec
from raftlog.types import Buffer
from tests.server.harness import Client, RunningBroker, batch_of, running

PATIENCE_SECONDS: Final = 60.0
UNPACKED_BYTES: Final = 60 * limits.MIB


class LoopLag:
    """The longest time between two turns of a broker's loop, while the block lasts.

    ``worst_cpu_seconds``: the most of the processor's time that its thread took in between, which a
    busy machine does not change.
    """

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._on = True
        self._last = self._last_cpu = 0.0
        self.worst_seconds = self.worst_cpu_seconds = 0.0

    def __enter__(self) -> LoopLag:
        self._broker.call(self._begin)
        return self

    def __exit__(self, *_error: object) -> None:
        self._on = False
        self._broker.call(self._look)

    def _begin(self) -> None:
        self._last, self._last_cpu = time.perf_counter(), time.thread_time()
        self._tick()

    def _tick(self) -> None:
        self._look()
        if self._on:
            self._broker.broker.context.loop.call_soon(self._tick)

    def _look(self) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        self.worst_seconds = max(self.worst_seconds, now - self._last)
        self.worst_cpu_seconds = max(self.worst_cpu_seconds, cpu - self._last_cpu)
        self._last, self._last_cpu = now, cpu


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def watched(name: str, broker: RunningBroker) -> Iterator[LoopLag]:
    """Tell how long the block took, and the longest hold of the loop in it."""
    began, before = time.perf_counter(), resident_bytes()
    with LoopLag(broker) as lag:
        yield lag
    seconds, grown = time.perf_counter() - began, resident_bytes() - before
    sys.stdout.write(
        f"{name}: {seconds:.2f} s, loop held {lag.worst_seconds * 1_000:.0f} ms at most "
        f"({lag.worst_cpu_seconds * 1_000:.0f} ms of the processor), "
        f"memory {grown / limits.MIB:+.0f} MiB\n"
    )
    sys.stdout.flush()


def _await(client: Client, correlation_id: int) -> Response:
    client.socket.settimeout(PATIENCE_SECONDS)
    return client.answer(correlation_id)


# -- one frame -------------------------------------------------------------------------------------


def _bomb() -> bytes:
    return batch_of(b"\0" * UNPACKED_BYTES, codec=Codec.ZSTD)


def produce_bombs(broker: RunningBroker, *, same: bool = False) -> None:
    """300 batches of 2 KB that unpack to 60 MB each, for as many partitions."""
    bomb = _bomb()
    with broker.client() as client:
        client.create("bombs", partitions=300, max_message_bytes=str(limits.BATCH_BYTES_MAX))
        parts = [
            ProducePartition(topic="bombs", partition=0 if same else index, length=len(bomb))
            for index in range(300)
        ]
        with watched(f"produce, 300 batches, {'one partition' if same else '300'}", broker):
            request = ProduceRequest(acks=1, partitions=parts)
            _await(client, client.send(apis.PRODUCE, request, [bomb] * 300))


def produce_one_bomb(broker: RunningBroker) -> None:
    """One batch of 2 KB that unpacks to 60 MB."""
    bomb = _bomb()
    with broker.client() as client:
        client.create("bomb", max_message_bytes=str(limits.BATCH_BYTES_MAX))
        with watched("produce, 1 batch", broker):
            _await(client, client.send_batch("bomb", bomb, acks=1))


def delete_records(broker: RunningBroker) -> None:
    with broker.client() as client:
        client.create("d", partitions=10)
        client.produce("d", batch_of(b"x"))
        parts = [RecordsToDelete(topic="d", partition=0, before_offset=-1)] * 10_000
        with watched("delete_records, one partition 10,000 times", broker):
            _await(client, client.send(apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=parts)))


def delete_records_wide(broker: RunningBroker) -> None:
    with broker.client() as client:
        client.create("w", partitions=1_000)
        parts = [
            RecordsToDelete(topic="w", partition=index, before_offset=-1) for index in range(1_000)
        ]
        with watched("delete_records, 1,000 partitions", broker):
            _await(client, client.send(apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=parts)))


def fetch_repeated(broker: RunningBroker) -> None:
    with broker.client() as client:
        client.create("f")
        client.produce("f", batch_of(b"x"))
        parts = [FetchPartition(topic="f", partition=0, offset=0)] * 10_000
        with watched("fetch, one partition 10,000 times", broker):
            _await(client, client.send(apis.FETCH, FetchRequest(partitions=parts, wait_ms_max=0)))


def fetch_wide(broker: RunningBroker) -> None:
    with broker.client() as client:
        client.create("fw", partitions=1_000)
        for partition in range(1_000):
            client.produce("fw", batch_of(b"x"), partition=partition, acks=1)
        parts = [FetchPartition(topic="fw", partition=index, offset=0) for index in range(1_000)]
        with watched("fetch, 1,000 partitions", broker):
            _await(client, client.send(apis.FETCH, FetchRequest(partitions=parts, wait_ms_max=0)))


def fetch_unknown(broker: RunningBroker) -> None:
    with broker.client() as client:
        parts = [FetchPartition(topic=f"no{n}", partition=0, offset=0) for n in range(10_000)]
        with watched("fetch, 10,000 topics that are not there", broker):
            _await(client, client.send(apis.FETCH, FetchRequest(partitions=parts, wait_ms_max=0)))


def describe_topics(broker: RunningBroker) -> None:
    with broker.client() as client:
        client.create("wide", partitions=100)
        with watched("describe_topics, one of 100 partitions 1,000 times", broker):
            request = DescribeTopicsRequest(topics=["wide"] * 1_000)
            _await(client, client.send(apis.DESCRIBE_TOPICS, request))


def describe_all(broker: RunningBroker) -> None:
    with broker.client() as client:
        for number in range(10):
            client.create(f"all{number}", partitions=1_000)
        with watched("describe_topics, all 10,000 partitions", broker):
            _await(client, client.send(apis.DESCRIBE_TOPICS, DescribeTopicsRequest()))


def describe_cluster(broker: RunningBroker) -> None:
    with broker.client() as client:
        for number in range(10):
            client.create(f"all{number}", partitions=200)
        with watched("describe_cluster, all 2,000 partitions", broker):
            _await(client, client.send(apis.DESCRIBE_CLUSTER, DescribeClusterRequest()))


def describe_producers(broker: RunningBroker) -> None:
    with broker.client() as client:
        client.create("p")
        ids = list(range(limits.PRODUCERS_PER_REQUEST_MAX))
        query = ProducersQuery(topic="p", partition=0, producer_ids=ids)
        with watched(f"describe_producers, {len(ids)} of one partition", broker):
            request = DescribeProducersRequest(partitions=[query])
            _await(client, client.send(apis.DESCRIBE_PRODUCERS, request))


def describe_groups(broker: RunningBroker) -> None:
    with broker.client() as client:
        names = [f"g{number}" for number in range(limits.GROUPS_PER_REQUEST_MAX)]
        for what in ("describe_groups", "delete_groups"):
            api = apis.DESCRIBE_GROUPS if what == "describe_groups" else apis.DELETE_GROUPS
            with watched(f"{what}, {len(names)} groups", broker):
                _await(client, client.send(api, api.request(groups=names)))


# -- memory and slots ------------------------------------------------------------------------------


def _claim(size: int) -> bytes:
    return FRAME.pack(size - LENGTH_BYTES, MAGIC, apis.PRODUCE.number, 0, 0, 1, 100)


def claims(broker: RunningBroker) -> None:
    """500 connections that claim 100 MB, and send 20 bytes."""
    with contextlib.ExitStack() as stack, watched("500 connections with 20 bytes each", broker):
        for _ in range(500):
            raw = stack.enter_context(socket.create_connection(broker.address))
            raw.sendall(_claim(limits.FRAME_BYTES_MAX))
        with broker.client() as client:
            client.create("after-claims")
        budget = broker.broker.connections.requests
        sys.stdout.write(f"  in the budget: {broker.call(lambda: budget.bytes)} bytes\n")


def parked_fetches(broker: RunningBroker) -> None:
    """12 connections with 100 waiting fetches each, of 1,000 partitions each."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.client()) for _ in range(12)]
        clients[0].create("parked", partitions=1_000)
        parts = [FetchPartition(topic="parked", partition=n, offset=0) for n in range(1_000)]
        request = FetchRequest(partitions=parts, wait_ms_max=60_000)
        with watched("12 connections, 100 wide fetches each", broker):
            for client in clients:
                client.socket.settimeout(PATIENCE_SECONDS)
                for _ in range(100):
                    client.send(apis.FETCH, request)
            with broker.client() as other:
                other.create("after-parked")
            purgatory = broker.broker.context.purgatory
            sys.stdout.write(f"  waiting fetches: {broker.call(lambda: len(purgatory))}\n")


class _Trickler:
    """Connections that begin a large request each, and go on a byte at a time, for ever."""

    def __init__(self, broker: RunningBroker, count: int, size: int, first: int) -> None:
        self._sockets: list[socket.socket] = []
        self._broker, self._size, self._first = broker, size, first
        self._ended = threading.Event()
        for _ in range(count):
            self._sockets.append(self._begin())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _begin(self) -> socket.socket:
        raw = socket.create_connection(self._broker.address)
        raw.setblocking(False)
        with contextlib.suppress(OSError):
            raw.send(_claim(self._size) + bytes(self._first))
        return raw

    def _run(self) -> None:
        while not self._ended.is_set():
            for index, raw in enumerate(self._sockets):
                try:
                    raw.send(b"\0")
                except BlockingIOError:
                    continue
                except OSError:
                    raw.close()
                    self._sockets[index] = self._begin()
            self._ended.wait(0.2)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        for raw in self._sockets:
            raw.close()


def tricklers(broker: RunningBroker, *, first: int = 0, seconds: float = 15.0) -> None:
    """A producer of 400 KB records beside 200 connections that send a byte now and then."""
    name = f"200 tricklers that begin with {first} bytes"
    with broker.client() as client:
        client.create("large")
        client.socket.settimeout(PATIENCE_SECONDS)
        batch: Buffer = batch_of(os.urandom(400_000))
        alone = _produced_in(client, bytes(batch), 3.0)
        slow = _Trickler(broker, 200, 400_000, first)
        try:
            with watched(name, broker):
                count = _produced_in(client, bytes(batch), seconds)
        finally:
            slow.stop()
        sys.stdout.write(
            f"  400 KB records: {alone / 3.0:.1f}/s alone, {count / seconds:.1f}/s beside them\n"
        )


def _produced_in(client: Client, batch: bytes, seconds: float) -> int:
    end, count, pause = time.perf_counter() + seconds, 0, threading.Event()
    while time.perf_counter() < end:
        client.produce("large", batch, acks=1)
        count += 1
        pause.wait(0.02)
    return count


ATTACKS: Final[dict[str, Callable[[RunningBroker], None]]] = {
    "produce-one-bomb": produce_one_bomb,
    "produce-bombs": produce_bombs,
    "delete-records": delete_records,
    "delete-records-wide": delete_records_wide,
    "fetch-repeated": fetch_repeated,
    "fetch-wide": fetch_wide,
    "fetch-unknown": fetch_unknown,
    "describe-topics": describe_topics,
    "describe-all": describe_all,
    "describe-cluster": describe_cluster,
    "describe-producers": describe_producers,
    "describe-groups": describe_groups,
    "claims": claims,
    "parked-fetches": parked_fetches,
    "tricklers": tricklers,
    "tricklers-300k": lambda broker: tricklers(broker, first=300_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", metavar="NAME", help=f"of {', '.join(ATTACKS)}")
    names = parser.parse_args().attacks or list(ATTACKS)
    for name in names:
        with (
            tempfile.TemporaryDirectory(prefix="raftlog-attack-") as directory,
            running(Path(directory) / "data", clock=SystemClock()) as broker,
        ):
            ATTACKS[name](broker)


if __name__ == "__main__":
    main()
