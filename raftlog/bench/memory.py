"""Memory of a broker under load, and with idle partitions and connections."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

from raftlog import Consumer, TopicPartition
from raftlog.bench.consume import read
from raftlog.bench.figures import Figure
from raftlog.bench.target import fill, new_topic, target
from raftlog.config.address import parse_address
from raftlog.limits import MIB
from raftlog.protocol.api import API_VERSIONS
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.handshake import ApiVersionsRequest

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
