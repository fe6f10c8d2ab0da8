"""Looking at brokers from outside: free ports, whether one answers, whom it sees, and waiting."""

from __future__ import annotations

import errno
import random
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.protocol.api import API_VERSIONS, DESCRIBE_TOPICS, METADATA, Api
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.handshake import ApiVersionsRequest
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Message
from raftlog.protocol.topics import (
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionDescription,
)

HOST: Final = "127.0.0.1"
POLL_INTERVAL_S: Final = 0.01
ANSWER_TIMEOUT_S: Final = 2.0
# Below the ports that systems give to outgoing connections (from 32768 on Linux, 49152 elsewhere):
# while a broker is down, nobody's connection takes its port.
PORTS: Final = range(10_000, 32_000)
PORT_TRIES_MAX: Final = 1_000


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float = 10.0, what: str = "the condition"
) -> None:
    """Return once ``condition()`` is true; ``TimeoutError`` that says ``what`` did not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_INTERVAL_S)


def free_ports(count: int, host: str = HOST) -> list[int]:
    """``count`` different ports that nothing listens on at the moment."""
    chance = random.Random()
    found: list[int] = []
    with ExitStack() as stack:  # each stays taken until all are found
        for _ in range(PORT_TRIES_MAX):
            if len(found) == count:
                return found
            port = chance.choice(PORTS)
            probe = stack.enter_context(socket.socket(_family(host)))
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found.append(port)
    raise BrokerUnavailableError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def free_port(host: str = HOST) -> int:
    """A port that nothing listens on at the moment."""
    return free_ports(1, host)[0]


def check_free(address: Address, *, may_be_elsewhere: bool = False) -> None:
    """Raise if something listens at ``address``: its answers would be taken for our broker's.

    ``may_be_elsewhere``: an address that is not of this place (but of another network name space)
    is taken for free.
    """
    with socket.socket(_family(address.host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what closed just now is free
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


def ask(address: Address, api: Api, message: Message) -> Message | None:
    """The answer of the broker at ``address`` to one request; None if there is none."""
    try:
        with socket.create_connection(address, timeout=ANSWER_TIMEOUT_S) as connection:
            state = ClientConnectionState()
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
    except OSError:
        return None


def answers(address: Address) -> bool:
    """True if a raftlog broker at ``address`` answers an ``api_versions`` request."""
    return ask(address, API_VERSIONS, ApiVersionsRequest(client_id="raftlog.testing")) is not None


def members(address: Address) -> set[int]:
    """The brokers in the cluster, as the one at ``address`` sees it; none while nobody leads it."""
    answer = ask(address, METADATA, MetadataRequest(topics=[]))
    if not isinstance(answer, MetadataResponse) or answer.controller is None:
        return set()
    return {broker.id for broker in answer.brokers}


def describe_partition(address: Address, topic: str, partition: int) -> PartitionDescription | None:
    """What the broker at ``address`` itself says of a partition; None if it says nothing."""
    answer = ask(address, DESCRIBE_TOPICS, DescribeTopicsRequest(topics=[topic]))
    if not isinstance(answer, DescribeTopicsResponse):
        return None
    found = [part for part in answer.topics[0].partitions if part.info.partition == partition]
    return found[0] if found else None
