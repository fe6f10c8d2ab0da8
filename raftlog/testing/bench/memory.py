"""How much memory a broker takes: while much streams through it, and while much lies idle on it."""

from __future__ import annotations

import contextlib
import socket
import uuid
from pathlib import Path

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.config.address import parse_address
from raftlog.limits import MIB
from raftlog.protocol.api import API_VERSIONS
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.handshake import ApiVersionsRequest
from raftlog.testing.bench.figures import Memory
from raftlog.testing.bench.target import target

CHUNK_RECORDS = 1_000


def measure(
    directory: Path | None,
    *,
    stream_bytes: int,
    partitions: int = 1_000,
    connections: int = 500,
) -> list[Memory]:
    """Both figures, each of a new broker below ``directory``."""
    with target(directory) as broker:
        busy = streaming(broker.bootstrap, broker.pid, stream_bytes=stream_bytes)
    with target(directory) as broker:
        return [
            busy,
            idle(broker.bootstrap, broker.pid, partitions=partitions, connections=connections),
        ]


def streaming(bootstrap: str, pid: int, *, stream_bytes: int, value_bytes: int = 1_024) -> Memory:
    """Memory of process ``pid`` after ``stream_bytes`` of values went in and came out again."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    chunk = [b"x" * value_bytes] * CHUNK_RECORDS
    chunks = stream_bytes // (CHUNK_RECORDS * value_bytes)
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic)])
        with Producer(bootstrap) as producer:
            for _ in range(chunks):
                producer.send_many(topic, chunk)
            producer.flush(timeout=300)
        with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            seen = 0
            while seen < chunks * CHUNK_RECORDS:
                seen += len(consumer.poll(timeout_ms=10_000, max_records=10_000))
        figure = _memory(f"{stream_bytes // MIB} MiB streamed in and out", pid)
        admin.delete_topics([topic])
    return figure


def idle(bootstrap: str, pid: int, *, partitions: int, connections: int) -> Memory:
    """Memory of process ``pid`` with so many empty partitions and silent connections."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    address = parse_address(bootstrap)
    with Admin(bootstrap) as admin, contextlib.ExitStack() as stack:
        admin.create_topics([NewTopic(topic, partitions=partitions)])
        for _ in range(connections):
            _greet(stack.enter_context(socket.create_connection(address)))
        figure = _memory(f"{partitions} partitions and {connections} connections, idle", pid)
        admin.delete_topics([topic])
    return figure


def _greet(connection: socket.socket) -> None:
    """One request and its answer, as every client begins."""
    state = ClientConnectionState()
    _, buffers = state.send(API_VERSIONS, ApiVersionsRequest(client_id="raftlog bench"))
    connection.sendall(b"".join(buffers))
    while not state.received(connection.recv_into(state.get_buffer())):
        pass


def _memory(name: str, pid: int) -> Memory:
    """From the kernel's account of the process."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    mib = {key: int(fields[key].split()[0]) / 1_024 for key in ("VmHWM", "VmRSS")}
    return Memory(name, peak_mib=mib["VmHWM"], after_mib=mib["VmRSS"])
