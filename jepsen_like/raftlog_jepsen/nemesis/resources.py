"""The kinds fds, memory and cpu (R1, R2): the resources of a broker are limited for some time.

The broker may be slow, reject requests, or be killed. Its acknowledgements must be correct. It must
work normally when the limit has been removed or the broker has been restarted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from raftlog.config.address import Address
from raftlog.protocol.api import API_VERSIONS, PRODUCE
from raftlog.protocol.frame import encode_request
from raftlog.protocol.handshake import ApiVersionsRequest
from raftlog.protocol.produce import ProducePartition, ProduceRequest
from raftlog.testing.probes import answers
from raftlog_jepsen.control import limits
from raftlog_jepsen.control.limits import Burners, Controller, Group
from raftlog_jepsen.nemesis.aftermath import Startable, Words, poll, try_start
from raftlog_jepsen.nemesis.base import Effect, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.plan import Shape

KIB: Final = 1 << 10
MIB: Final = 1 << 20
REQUEST_BYTES: Final = 8 * MIB  # size of each request that is sent incompletely
UNKNOWN_TOPIC: Final = "half-sent"  # the topic does not exist
CLIENT_ID: Final = "raftlog_jepsen"
CONNECTIONS: Final = 64  # connections that are opened to use up free descriptors
CONNECT_TIMEOUT_S: Final = 0.5
EFFECT_S: Final = 3.0  # time limit for a limit to have an effect
RESOURCES_POLL_S: Final = 0.1
NO_FILES: Final = "Too many open files"
RESOURCES_KINDS: Final[Mapping[str, str]] = {
    "fds": "A broker gets almost no new file descriptors, for connections or segments.",
    "memory": "A broker gets almost no additional memory, and is killed if it exceeds the limit.",
    "cpu": "A broker gets a small share of one CPU.",
}


class ResourceProcess(Protocol):
    @property
    def log_path(self) -> Path: ...

    @property
    def running(self) -> bool: ...

    @property
    def tls(self) -> ssl.SSLContext | None: ...


class HostLike(Protocol):
    """Interface of one broker's host."""

    @property
    def process(self) -> ResourceProcess: ...

    @property
    def broker_pid(self) -> int | None: ...

    @property
    def address(self) -> Address: ...


class Cluster(Startable, Protocol):
    """Interface of the cluster."""

    @property
    def hosts(self) -> Mapping[int, HostLike]: ...


@dataclass
class _Squeeze:
    """A resource limit of one broker. ``undo``: removes the limit."""

    fault: FaultPlan
    broker: int
    pid: int
    words: Words
    undo: ExitStack = field(default_factory=ExitStack)
    group: Group | None = None
    waited_ns: int = 0  # CPU wait time of the process before the fault


class ResourcesNemesis(OwnKinds):
    """Limits the resources of a running broker process."""

    kinds = RESOURCES_KINDS

    def __init__(self, cluster: Cluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._squeezes: list[_Squeeze] = []

    def _why_not(self, kind: str) -> str:
        if not Path("/proc/self/fd").exists():
            return "requires Linux"
        return limits.why_not("memory") if kind == "memory" else ""

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        args: dict[str, Any]
        if kind == "fds":
            args = {"spare": random.choice((0, 1, 3, 8))}
        elif kind == "memory":
            # Two cases: written data does not fit, so that the broker waits for the disk; or
            # incomplete client requests do not fit, so that the broker is killed.
            args = {"bytes": random.choice((KIB * 256, KIB * 512, MIB)), "requests": 0}
            if random.random() < 0.5:
                args = {"bytes": random.choice((2, 8)) * MIB, "requests": random.randint(3, 6)}
        else:
            args = {
                "means": random.choice(("quota", "quota", "neighbours")),
                "share": random.choice((0.05, 0.1, 0.2)),
                "neighbours": random.randint(2, 6),
            }
        return FaultPlan(
            kind=kind,
            targets=(random.choice(shape.broker_ids),),
            args=args,
            hold_s=random.uniform(2.0, 8.0),
            expects="available" if shape.minority else "outage",
        )

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        (broker,) = fault.targets
        host = self._cluster.hosts[broker]
        pid = host.broker_pid
        if pid is None or not host.process.running:
            return not_injected(f"broker {broker} is not running")
        squeeze = _Squeeze(fault, broker, pid, Words(host.process.log_path))
        self._squeezes.append(squeeze)
        self._cluster.expect_exit([broker])
        acts = {"fds": self._take_files, "memory": self._take_memory, "cpu": self._take_cpu}
        return acts[fault.kind](squeeze)

    def end(self, fault: FaultPlan) -> Effect:
        mine = [squeeze for squeeze in self._squeezes if squeeze.fault is fault]
        if not mine:
            return not_injected("no resource was limited")
        seen: dict[str, Any] = {}
        for squeeze in mine:
            self._squeezes.remove(squeeze)
            seen = self._give_back(squeeze)
        return Effect(True, seen)

    def heal(self) -> None:
        while self._squeezes:
            self._give_back(self._squeezes.pop())

    def _give_back(self, squeeze: _Squeeze) -> dict[str, Any]:
        """Remove the limit, and start the broker if it has ended."""
        host = self._cluster.hosts[squeeze.broker]
        if self._pressure(squeeze).get("killed"):
            poll(lambda: not host.process.running, EFFECT_S)  # a killed process may still run
        seen = self._pressure(squeeze)
        squeeze.undo.close()
        start = try_start(self._cluster, squeeze.broker)
        if not start.started:  # the process was still ending
            start = try_start(self._cluster, squeeze.broker)
        seen["ended"] = squeeze.words.lines((NO_FILES, "broker stops"))
        return {**seen, **start.to_history()}

    # -- file descriptors

    def _take_files(self, squeeze: _Squeeze) -> Effect:
        pid, address = squeeze.pid, self._cluster.hosts[squeeze.broker].address
        count = limits.open_files(pid)
        before = limits.limit_files(pid, count + squeeze.fault.args["spare"])
        squeeze.undo.callback(_limit_again, pid, before)
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
                squeeze.undo.callback(connection.close)
        is_shut = not answers(address, tls=self._cluster.hosts[squeeze.broker].process.tls)
        seen = {
            "open": count,
            "limit": count + squeeze.fault.args["spare"],
            "new_connection_is_answered": not is_shut,
            "said": squeeze.words.lines((NO_FILES,)),
        }
        if is_shut or seen["said"]:
            return Effect(True, seen)
        return Effect(False, {"why": "the broker still opened descriptors", **seen})

    # -- memory

    def _take_memory(self, squeeze: _Squeeze) -> Effect:
        group = self._group("memory", squeeze)
        if group is None:
            return not_injected("control groups are not available")
        group.limit_memory(squeeze.fault.args["bytes"])
        # In version 1, the limit applies to new memory only.
        group.add(squeeze.pid)
        for _ in range(squeeze.fault.args["requests"]):
            with contextlib.suppress(OSError):  # the broker may have ended
                self._send_half(squeeze)
        is_felt = poll(
            lambda: any(group.pressure().values()), EFFECT_S, interval_s=RESOURCES_POLL_S
        )
        seen = self._pressure(squeeze)
        # A later effect is reported at the end of the fault.
        return Effect(
            is_felt, seen if is_felt else {"why": "it requested no further memory", **seen}
        )

    def _send_half(self, squeeze: _Squeeze) -> None:
        """Send a large request without its last byte, so that the broker keeps the bytes in memory.

        Sends a small request first, because the first request of a connection must be small.
        """
        address = self._cluster.hosts[squeeze.broker].address
        connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
        squeeze.undo.callback(connection.close)
        hello = encode_request(
            API_VERSIONS.number,
            version=API_VERSIONS.version_max,
            correlation_id=0,
            message=ApiVersionsRequest(client_id=CLIENT_ID),
        )
        part = ProducePartition(topic=UNKNOWN_TOPIC, partition=0, length=REQUEST_BYTES)
        buffers = encode_request(
            PRODUCE.number,
            version=PRODUCE.version_max,
            correlation_id=1,
            message=ProduceRequest(acks=1, partitions=[part]),
            attachment=[bytes(REQUEST_BYTES)],
        )
        connection.sendall(b"".join([*hello, *buffers])[:-1])

    # -- CPU

    def _take_cpu(self, squeeze: _Squeeze) -> Effect:
        with contextlib.suppress(OSError):
            squeeze.waited_ns = limits.waited_ns(squeeze.pid)
        args = squeeze.fault.args
        group = self._group("cpu", squeeze) if args["means"] == "quota" else None
        if group is not None:
            group.limit_cpu(args["share"])
            group.add(squeeze.pid)
        else:
            burners = Burners(squeeze.pid, args["neighbours"])
            squeeze.undo.callback(burners.close)
        is_felt = poll(lambda: self._waits(squeeze), EFFECT_S, interval_s=RESOURCES_POLL_S)
        seen = self._pressure(squeeze)
        return Effect(is_felt, seen if is_felt else {"why": "it was not throttled", **seen})

    def _waits(self, squeeze: _Squeeze) -> bool:
        seen = self._pressure(squeeze)
        return bool(seen.get("throttled")) or seen.get("waited_ms", 0) >= 10

    # -- memory and CPU

    def _group(self, controller: Controller, squeeze: _Squeeze) -> Group | None:
        """Create a control group for this broker; None if control groups are not available."""
        place = limits.hierarchy(controller)
        if place is None or limits.why_not(controller):
            return None
        squeeze.group = Group(place, f"raftlog-{os.getpid()}-{controller}-{squeeze.broker}")
        squeeze.undo.callback(squeeze.group.close)
        return squeeze.group

    def _pressure(self, squeeze: _Squeeze) -> dict[str, Any]:
        seen: dict[str, Any] = {} if squeeze.group is None else dict(squeeze.group.pressure())
        if squeeze.fault.kind == "cpu":
            with contextlib.suppress(OSError):
                waited_ns = limits.waited_ns(squeeze.pid) - squeeze.waited_ns
                seen["waited_ms"] = max(0, waited_ns) // 1_000_000
        seen["runs"] = self._cluster.hosts[squeeze.broker].process.running
        return seen


def _limit_again(pid: int, count: int) -> None:
    with contextlib.suppress(OSError):  # the process has ended
        limits.limit_files(pid, count)
