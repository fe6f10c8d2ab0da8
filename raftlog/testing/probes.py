"""Probes of brokers from outside: free ports, responses, cluster membership, and waiting."""

from __future__ import annotations

import errno
import os
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.protocol.api import (
    API_VERSIONS,
    DESCRIBE_TOPICS,
    METADATA,
    OPERATOR_HELLO,
    OPERATOR_PROVE,
    Api,
)
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.handshake import ApiVersionsRequest
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.operator_auth import Asking, OperatorHelloResponse
from raftlog.protocol.peer import NONCE_BYTES
from raftlog.protocol.schema import Message
from raftlog.protocol.topics import (
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionDescription,
)

HOST: Final = "127.0.0.1"
POLL_INTERVAL_S: Final = 0.01
ANSWER_TIMEOUT_S: Final = 2.0
# Below the ports that systems assign to outgoing connections (from 32768 on Linux, 49152
# elsewhere): while a broker is down, no outgoing connection uses its port.
PORTS: Final = range(10_000, 32_000)
PORT_TRIES_MAX: Final = 1_000
PROGRESS_FACTOR: Final = 10
PROGRESS_CPU_TICKS: Final = 10  # 0.1 s of CPU; an idle broker needs it in 10 s or more
PORTS_RESERVED_MAX: Final = 200  # by one process


def wait_until(
    condition: Callable[[], bool],
    *,
    timeout_s: float = 10.0,
    what: str = "the condition",
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Return once ``condition()`` is true. Raises ``TimeoutError`` with ``what`` after
    ``timeout_s`` seconds without a change of ``progress()``."""
    stall = Stall(timeout_s)
    while not condition():
        if stall.has_come(progress()):
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_INTERVAL_S)


class Stall:
    """A limit of progress: ``has_come`` is true once a value has not changed for ``limit_s``
    seconds, or after ``PROGRESS_FACTOR`` times ``limit_s`` in any case.

    So a busy machine, on which everything takes long, is not mistaken for a process that hangs.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began = self._since = time.monotonic()
        self._last: object = None

    def has_come(self, value: object) -> bool:
        now = time.monotonic()
        if value != self._last:
            self._last, self._since = value, now
        has_ended = now - self._began > PROGRESS_FACTOR * self._limit_s
        return has_ended or now - self._since > self._limit_s


def progress(pid: int | None, log: Path) -> tuple[int, int]:
    """Return a value that changes while a process works: its CPU time in units of
    ``PROGRESS_CPU_TICKS`` (0 without /proc), and the bytes of its log."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime, stime; see proc(5)
    except OSError:
        ticks = 0
    return ticks // PROGRESS_CPU_TICKS, log.stat().st_size if log.exists() else 0


_reserved: Final[deque[int]] = deque()  # file descriptors of UDP sockets


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Return ``count`` different TCP ports on which no process listens now.

    Other processes that use this function do not get them until this process ends, or has found
    ``PORTS_RESERVED_MAX`` more: so a broker can be stopped and started again at its port. A UDP
    socket that is bound to the same number makes the reservation.
    """
    chance = random.Random()
    found: list[int] = []
    for _ in range(PORT_TRIES_MAX):
        if len(found) == count:
            return found
        port = chance.choice(PORTS)
        with (
            socket.socket(_family(host), socket.SOCK_DGRAM) as reservation,
            socket.socket(_family(host)) as probe,
        ):
            try:
                reservation.bind((host, port))
                probe.bind((host, port))
            except OSError:
                continue
            found.append(port)
            _reserved.append(reservation.detach())
        while len(_reserved) > PORTS_RESERVED_MAX:
            os.close(_reserved.popleft())
    raise BrokerUnavailableError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def free_port(host: str = HOST) -> int:
    """Return a port on which no process listens now."""
    return free_ports(1, host)[0]


def check_free(address: Address, *, may_be_elsewhere: bool = False) -> None:
    """Raise if a process listens at ``address``: its responses would be attributed to the broker.

    ``may_be_elsewhere``: accept an address that does not belong to this network namespace.
    """
    with socket.socket(_family(address.host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # accept recently closed ports
        try:
            probe.bind(address)
        except OSError as error:
            if may_be_elsewhere and error.errno == errno.EADDRNOTAVAIL:
                return
            raise BrokerUnavailableError(
                f"cannot listen on {address}: {error.strerror}. Stop the process that uses the "
                "port, or select another port"
            ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


Tls: TypeAlias = ssl.SSLContext | None  # None: the broker does not use TLS


def ask(
    address: Address, api: Api, message: Message, *, tls: Tls = None, secret: bytes = b""
) -> Message | None:
    """Send one request to the broker at ``address``. Returns its response; None if there is
    none.

    ``secret``: of the cluster, for a broker that requires authentication.
    """
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(
                socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
            )
            if tls is not None:
                connection = stack.enter_context(
                    tls.wrap_socket(connection, server_hostname=address.host)
                )
            state = ClientConnectionState()
            if secret:
                asking = Asking(secret, os.urandom(NONCE_BYTES))
                hello = _exchange(connection, state, OPERATOR_HELLO, asking.hello())
                if not isinstance(hello, OperatorHelloResponse):
                    return None
                _exchange(connection, state, OPERATOR_PROVE, asking.check(hello))
            return _exchange(connection, state, api, message)
    except OSError:
        return None


def _exchange(
    connection: socket.socket, state: ClientConnectionState, api: Api, message: Message
) -> Message | None:
    """Send one request and return its response; None if there is none, or an error."""
    _, buffers = state.send(api, message)
    connection.sendall(b"".join(buffers))
    while True:
        count = connection.recv_into(state.get_buffer())
        if count == 0:
            return None
        events = state.received(count)
        if events:
            answer = getattr(events[0], "message", None)
            return None if isinstance(answer, RaftlogError) else answer


def answers(address: Address, *, tls: Tls = None) -> bool:
    """Return whether a raftlog broker at ``address`` responds to an ``api_versions`` request."""
    request = ApiVersionsRequest(client_id="raftlog.testing")
    return ask(address, API_VERSIONS, request, tls=tls) is not None


def members(address: Address, *, tls: Tls = None, secret: bytes = b"") -> set[int]:
    """Return the brokers of the cluster, in the view of the one at ``address``; empty without a
    controller."""
    answer = ask(address, METADATA, MetadataRequest(topics=[]), tls=tls, secret=secret)
    if not isinstance(answer, MetadataResponse) or answer.controller is None:
        return set()
    return {broker.id for broker in answer.brokers}


def describe_partition(
    address: Address, topic: str, partition: int, *, tls: Tls = None, secret: bytes = b""
) -> PartitionDescription | None:
    """Return the view of a partition of the broker at ``address``; None without a response."""
    request = DescribeTopicsRequest(topics=[topic])
    answer = ask(address, DESCRIBE_TOPICS, request, tls=tls, secret=secret)
    if not isinstance(answer, DescribeTopicsResponse):
        return None
    found = [part for part in answer.topics[0].partitions if part.info.partition == partition]
    return found[0] if found else None
