"""Cuts are silent, of one direction, of old connections too, and healing undoes them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from raftlog.config.address import Address
from raftlog.testing.cluster import free_port, wait_until
from raftlog.testing.relays import BACKWARD, FORWARD, RelayLinks
from raftlog_jepsen.control.namespaces import CONTROL, Namespaces
from raftlog_jepsen.net import NamespaceNet, NoNet, RelayNet
from tests.jepsen_like.places import in_its_own_network

SOON_S = 20.0
PORT = 9100
PLACES = (CONTROL, 1, 2, 3)
PAIRS = {(a, b) for a in PLACES for b in PLACES if a != b}


@contextlib.contextmanager
def namespaced() -> Iterator[tuple[NamespaceNet, Namespaces]]:
    with Namespaces(3) as spaces:
        addresses = {broker: Address(spaces.address(broker), PORT) for broker in spaces.ids}
        yield NamespaceNet(spaces, addresses), spaces


@contextlib.contextmanager
def connected(spaces: Namespaces, a: int, b: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection from a to b."""
    with spaces.socket(b) as ear, spaces.socket(a) as near:
        ear.bind((spaces.address(b), 0))
        ear.listen()
        near.connect(ear.getsockname())
        far, _ = ear.accept()
        with far:
            for end in (near, far):
                end.settimeout(SOON_S)
            yield near, far


def retransmits(end: socket.socket) -> int:
    """How often TCP has sent its oldest bytes again; see struct tcp_info."""
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[2]


def unread(end: socket.socket) -> int:
    return struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, b"\0" * 4))[0]


def passing(net: NamespaceNet) -> set[tuple[int, int]]:
    with ThreadPoolExecutor(len(PAIRS)) as pool:
        looks = pool.map(lambda pair: (pair, net.passes(*pair)), PAIRS)
        return {pair for pair, passes in looks if passes}


@pytest.mark.integration
@in_its_own_network
def test_a_cut_is_silent_and_of_one_direction() -> None:
    with namespaced() as (net, _):
        assert passing(net) == PAIRS
        net.cut([(1, 2)])
        assert passing(net) == PAIRS - {(1, 2)}
        net.cut([(CONTROL, 3), (3, CONTROL)])
        assert passing(net) == PAIRS - {(1, 2), (CONTROL, 3), (3, CONTROL)}
        net.mend([(1, 2), (CONTROL, 3), (2, 3)])
        assert passing(net) == PAIRS - {(3, CONTROL)}
        net.heal()
        net.heal()
        assert passing(net) == PAIRS


@pytest.mark.integration
@in_its_own_network
def test_a_connection_that_was_made_before_stalls_and_goes_on() -> None:
    with namespaced() as (net, spaces), connected(spaces, 1, 2) as (near, far):
        net.cut([(1, 2)])
        near.sendall(b"lost and sent again")
        far.sendall(b"this way is open")
        assert near.recv(100) == b"this way is open"
        wait_until(lambda: retransmits(near) > 0)
        assert unread(far) == 0
        net.heal()
        assert far.recv(100) == b"lost and sent again"


@pytest.mark.integration
@in_its_own_network
def test_connections_need_both_directions() -> None:
    with namespaced() as (net, spaces):
        with spaces.socket(2) as ear:
            ear.bind((spaces.address(2), PORT))
            ear.listen()
            assert net.reaches(1, 2)
            assert net.reaches(CONTROL, 2)
            net.cut([(2, 1)])
            assert not net.reaches(1, 2)
            assert net.reaches(3, 2)
            net.heal()
            assert net.reaches(1, 2)
        assert net.reaches(1, 2), "who refuses is reached"


@pytest.mark.integration
@in_its_own_network
def test_a_cable_can_be_pulled_out() -> None:
    with namespaced() as (net, _):
        net.unplug(2)
        assert passing(net) == {pair for pair in PAIRS if 2 not in pair}
        net.heal()
        assert passing(net) == PAIRS, "neighbours are known as before"


@pytest.mark.integration
@in_its_own_network
def test_a_cut_outlasts_a_cable() -> None:
    with namespaced() as (net, _):
        net.cut([(2, 1)])
        net.unplug(2)
        net.plug(2)
        assert passing(net) == PAIRS - {(2, 1)}


@pytest.mark.integration
@in_its_own_network
def test_the_bridge_keeps_some_apart() -> None:
    with namespaced() as (net, _):
        net.separate([1, 3])
        assert passing(net) == PAIRS - {(1, 3), (3, 1)}
        net.separate([1, 2])
        assert passing(net) == PAIRS - {(1, 2), (2, 1)}
        net.join()
        assert passing(net) == PAIRS


@pytest.mark.integration
@in_its_own_network
def test_a_slow_cable_passes_all_but_slowly() -> None:
    with namespaced() as (net, spaces), connected(spaces, CONTROL, 2) as (near, far):
        assert net.slowed(2) == {}
        net.slow(2, 2_000_000)
        assert net.slowed(2)["overlimits"] == 0
        for one, other in ((near, far), (far, near)):
            data = bytes(range(256)) * 200
            writer = threading.Thread(target=one.sendall, args=(data,))
            writer.start()
            got = b""
            while len(got) < len(data):
                got += other.recv(1 << 16)
            writer.join()
            assert got == data
        seen = net.slowed(2)
        assert seen["overlimits"] > 0
        assert seen["bytes"] > 2 * len(data)
        net.unslow(2)
        net.unslow(2)
        assert net.slowed(2) == {}
        said = spaces.run(2, "tc", "qdisc", "show", "dev", "e0")
        assert "tbf" not in said


@pytest.mark.integration
@in_its_own_network
def test_healing_makes_cables_fast_again() -> None:
    with namespaced() as (net, spaces):
        net.slow(1, 64_000)
        assert "rate 64Kbit" in spaces.run(CONTROL, "tc", "qdisc", "show", "dev", "v1")
        assert "rate 64Kbit" in spaces.run(1, "tc", "qdisc", "show", "dev", "e0")
        net.heal()
        assert "tbf" not in spaces.run(CONTROL, "tc", "qdisc", "show", "dev", "v1")


@pytest.mark.integration
@in_its_own_network
def test_what_cannot_be_cut_is_refused() -> None:
    with namespaced() as (net, _):
        with pytest.raises(ValueError, match="unknown id 9"):
            net.cut([(1, 9)])
        net.heal()
        assert passing(net) == PAIRS


@pytest.mark.integration
@in_its_own_network
def test_relays_in_the_diallers_place_suffer_what_it_suffers() -> None:
    with Namespaces(2) as spaces, contextlib.ExitStack() as stack:
        addresses = {broker: Address(spaces.address(broker), PORT) for broker in spaces.ids}
        links = RelayLinks(addresses, clients=True, socket_in=spaces.socket)
        stack.callback(links.close)
        net = NamespaceNet(spaces, addresses, links)
        ear = stack.enter_context(spaces.socket(2))
        ear.bind(addresses[2])
        ear.listen()
        assert links.carries((1, 2), timeout_s=SOON_S)
        assert links.carries((CONTROL, 2), timeout_s=SOON_S)
        net.cut([(1, 2)])
        assert not links.carries((1, 2), timeout_s=0.1)
        assert links.carries((CONTROL, 2), timeout_s=SOON_S)


# -- relays


@pytest.fixture
def targets() -> Iterator[dict[int, socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield {n: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for n in (1, 2, 3)}


@pytest.fixture
def relayed(targets: dict[int, socket.socket]) -> Iterator[RelayNet]:
    addresses = {n: Address(*target.getsockname()) for n, target in targets.items()}
    links = RelayLinks(addresses, clients=True)
    with contextlib.closing(links):
        yield RelayNet(links)


@contextlib.contextmanager
def through(
    net: RelayNet, targets: dict[int, socket.socket], a: int, b: int
) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_connection(net.links.address(a, b), timeout=SOON_S) as near:
        targets[b].settimeout(SOON_S)
        with targets[b].accept()[0] as far:
            far.settimeout(SOON_S)
            yield near, far


def test_a_cut_holds_what_either_dialled(
    relayed: RelayNet, targets: dict[int, socket.socket]
) -> None:
    with (
        through(relayed, targets, 1, 2) as (one, two),
        through(relayed, targets, 2, 1) as (other, another),
    ):
        relayed.cut([(1, 2)])
        one.sendall(b"by who dialled")
        another.sendall(b"by who was dialled")
        two.sendall(b"open")
        other.sendall(b"open too")
        assert one.recv(100) == b"open"
        assert another.recv(100) == b"open too"
        wait_until(lambda: relayed.links.held((1, 2), FORWARD) == 14)
        wait_until(lambda: relayed.links.held((2, 1), BACKWARD) == 18)
        assert not relayed.passes(1, 2)
        assert unread(two) == unread(other) == 0
        relayed.heal()
        assert two.recv(100) == b"by who dialled"
        assert other.recv(100) == b"by who was dialled"


def test_bytes_on_their_way_when_it_is_cut_are_no_leak(
    relayed: RelayNet, targets: dict[int, socket.socket]
) -> None:
    with through(relayed, targets, 1, 2) as (near, far):
        near.setblocking(False)
        before = -1
        while before != (before := relayed.links.sent((1, 2), FORWARD)):
            with contextlib.suppress(BlockingIOError):
                while True:  # until every buffer is full, so that a piece is half sent
                    near.send(bytes(1 << 20))
        relayed.cut([(1, 2)])
        passed = relayed.links.counts((1, 2), FORWARD).passed
        while unread(far):
            far.recv(1 << 20)
        assert relayed.links.counts((1, 2), FORWARD).passed >= passed
        assert not relayed.passes(1, 2)


def test_no_connection_is_made_through_a_cut(relayed: RelayNet) -> None:
    relayed.cut([(2, 1)])
    assert not relayed.reaches(1, 2)
    assert not relayed.reaches(2, 1)
    assert relayed.reaches(1, 3)
    assert relayed.passes(1, 2) is False, "nothing passes that cannot be connected"
    relayed.mend([(2, 1), (1, 3)])
    assert relayed.reaches(1, 2)
    assert relayed.passes(1, 2)
    assert relayed.passes(2, 1)


def test_clients_are_cut_through_their_relays(relayed: RelayNet) -> None:
    relayed.cut([(CONTROL, 1), (2, CONTROL)])
    assert not relayed.reaches(CONTROL, 1)
    assert not relayed.reaches(CONTROL, 2)
    assert relayed.reaches(CONTROL, 3)
    assert relayed.reaches(1, 2)
    assert not relayed.passes(CONTROL, 1)
    assert not relayed.passes(2, CONTROL)
    assert relayed.passes(3, CONTROL)
    assert not relayed.reaches(3, CONTROL), "clients are dialled by nobody"
    relayed.heal()
    assert all(relayed.reaches(CONTROL, broker) for broker in (1, 2, 3))


def test_clients_without_relays_cannot_be_cut(targets: dict[int, socket.socket]) -> None:
    addresses = {n: Address(*target.getsockname()) for n, target in targets.items()}
    with contextlib.closing(RelayLinks(addresses, clients=False)) as links:
        net = RelayNet(links)
        with pytest.raises(OSError, match="no relay between 0 and 1"):
            net.cut([(0, 1)])


def test_slow_relays_pass_all_but_slowly(
    relayed: RelayNet, targets: dict[int, socket.socket]
) -> None:
    relayed.slow(1, 800_000)
    relayed.slow(2, 800_000)
    with through(relayed, targets, 1, 2) as (near, far):
        data = bytes(range(256)) * 80
        near.sendall(data)
        got = b""
        while len(got) < len(data):
            got += far.recv(1 << 16)
        assert got == data
        wait_until(lambda: relayed.slowed(1)["delayed"] > 0)
        relayed.unslow(1)
        assert relayed.slowed(1) == {}
        assert relayed.slowed(2)["bytes"] >= len(data)
        relayed.heal()
        assert relayed.slowed(2) == {}


# -- none


def test_no_net_is_what_it_is(targets: dict[int, socket.socket]) -> None:
    addresses = {n: Address(*target.getsockname()) for n, target in targets.items()}
    net = NoNet(addresses | {9: Address("127.0.0.1", free_port())})
    net.cut([])
    for harm in (partial(net.cut, [(1, 2)]), partial(net.slow, 1, 64_000)):
        with pytest.raises(OSError, match="cannot be"):
            harm()
    net.mend([(1, 2)])
    net.heal()
    net.unslow(1)
    assert net.links is None
    assert net.slowed(1) == {}
    assert net.reaches(1, 2)
    assert net.passes(CONTROL, 9), "who refuses is reached"
