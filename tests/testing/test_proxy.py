"""Relays pass bytes on, until they are cut; their thread ends and leaves nothing open."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from raftlog.config import Address
from raftlog.testing.probes import free_port
from raftlog.testing.proxy import Relay, Relays

SOON_S = 10.0


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SOON_S)
        yield server


@pytest.fixture
def relays() -> Iterator[Relays]:
    made = Relays()
    yield made
    made.close()


@pytest.fixture
def relay(relays: Relays, target: socket.socket) -> Relay:
    return relays.add(Address(*target.getsockname()))


def pair(relay: Relay, target: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection through the relay."""
    near = socket.create_connection(relay.address, timeout=SOON_S)
    far, _ = target.accept()
    far.settimeout(SOON_S)
    return near, far


def ends(connection: socket.socket) -> bool:
    """True when the other side closes; False if bytes come."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_bytes_pass_both_ways(relay: Relay, target: socket.socket) -> None:
    near, far = pair(relay, target)
    with near, far:
        near.sendall(b"there")
        assert far.recv(10) == b"there"
        far.sendall(b"back")
        assert near.recv(10) == b"back"


def test_a_side_that_ends_ends_the_other(relay: Relay, target: socket.socket) -> None:
    near, far = pair(relay, target)
    with near:
        far.close()
        assert ends(near)


def test_a_cut_closes_what_is_open_and_refuses_what_comes(
    relays: Relays, relay: Relay, target: socket.socket
) -> None:
    near, far = pair(relay, target)
    relays.do(relay.cut)
    with near, far:
        assert ends(near)
        assert ends(far)
    with socket.create_connection(relay.address, timeout=SOON_S) as refused:
        assert ends(refused)
    relays.do(relay.heal)
    near, far = pair(relay, target)
    with near, far:
        near.sendall(b"healed")
        assert far.recv(10) == b"healed"


def test_a_stalled_relay_keeps_connections_and_says_nothing(
    relays: Relays, relay: Relay, target: socket.socket
) -> None:
    near, far = pair(relay, target)
    with near, far:
        relays.do(relay.stall)
        near.sendall(b"late")
        far.settimeout(0.05)
        with pytest.raises(TimeoutError):
            far.recv(10)
        relays.do(relay.heal)
        far.settimeout(SOON_S)
        assert far.recv(10) == b"late"


def test_a_target_that_does_not_listen_closes_the_connection(relays: Relays) -> None:
    relay = relays.add(Address("127.0.0.1", free_port()))
    with socket.create_connection(relay.address, timeout=SOON_S) as near:
        assert ends(near)


@pytest.mark.parametrize("state", ["open", "stalled", "cut"])
def test_the_end_closes_everything(target: socket.socket, state: str) -> None:
    """A socket that is left open would be a ResourceWarning, and with it a failure."""
    relays = Relays()
    relay = relays.add(Address(*target.getsockname()))
    near, far = pair(relay, target)
    if state != "open":
        relays.do(relay.stall if state == "stalled" else relay.cut)
    relays.close()
    with near, far:
        assert ends(near)
        assert ends(far)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(relay.address, timeout=SOON_S)
    assert "raftlog-relays" not in {thread.name for thread in threading.enumerate()}
