"""The network between brokers and clients: block, slow down, and observe links.

Pairs are directed, as in Jepsen's grudges: a cut of (a, b) blocks messages from a to b. The id 0 is
that of the clients and the harness. ``NamespaceNet`` blocks packets, which requires root.
``RelayNet`` blocks the bytes of connections through ``relays``. ``NoNet`` blocks nothing.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, Protocol, TypeAlias

from raftlog.config.address import Address
from raftlog.testing.relays import (
    BACKWARD,
    DIRECTIONS,
    FORWARD,
    Bandwidth,
    Direction,
    Hold,
    Pair,
    RelayLinks,
)
from raftlog_jepsen.control.namespaces import CONTROL, UNUSED_MAC, Namespaces, run_all

Backend: TypeAlias = Literal["namespaces", "relays", "none"]

PROBE_TIMEOUT_S: Final = 0.3
PROBE_INTERVAL_S: Final = 0.02
QUEUE_MS: Final = 400  # maximum time of a packet in the queue of a slow link before it is dropped
BURST_BYTES_MIN: Final = 3_200  # two Ethernet packets; larger packets are never forwarded


class Net(Protocol):
    """Operations on the network between brokers, and observations of it."""

    @property
    def backend(self) -> Backend: ...

    @property
    def links(self) -> RelayLinks | None:
        """The relays, for faults of bytes; None if there are none."""
        ...

    def cut(self, pairs: Collection[Pair]) -> None:
        """Block messages from a to b, for each (a, b), in addition to earlier cuts.

        Raises ``OSError`` if it is not possible.
        """
        ...

    def mend(self, pairs: Collection[Pair]) -> None:
        """Unblock these pairs."""
        ...

    def heal(self) -> None:
        """Undo all effects of ``cut`` and ``slow``."""
        ...

    def reaches(self, a: int, b: int) -> bool:
        """Return whether a TCP connection from a's network to b's address is established within
        0.3 s, as observed."""
        ...

    def passes(self, a: int, b: int) -> bool:
        """Return whether messages from a arrive at b, with or without replies, as observed if
        possible."""
        ...

    def slow(self, broker: int, bits_per_s: int) -> None:
        """Limit the bandwidth to a broker, and from it."""
        ...

    def slowed(self, broker: int) -> dict[str, int]:
        """Return the observed effects of the limit; empty if the bandwidth of the broker is not
        limited."""
        ...

    def unslow(self, broker: int) -> None: ...


class NamespaceNet:
    """Drops packets without an error, in one direction, of existing and new connections.

    a's neighbour table maps b permanently to an unused hardware address: the bridge floods the
    packets and all hosts ignore them. Messages from b still arrive at a. But a's acknowledgements
    do not return, so TCP stalls in that direction too when its window is full or its timeout
    expires. After healing, TCP continues at its next retransmission, at most as many seconds later
    as the cut has lasted.

    ``addresses``: where brokers listen. ``links``: relays that brokers and clients use in addition,
    for other faults. Their sockets must be in the namespaces of the initiators.
    """

    backend: Final[Backend] = "namespaces"

    def __init__(
        self,
        namespaces: Namespaces,
        addresses: Mapping[int, Address],
        links: RelayLinks | None = None,
    ) -> None:
        self.links = links
        self._namespaces = namespaces
        self._addresses = addresses
        self._cut: set[Pair] = set()
        self._unplugged: set[int] = set()
        self._apart: set[int] = set()
        self._slow: set[int] = set()

    def cut(self, pairs: Collection[Pair]) -> None:
        """See ``Net.cut``. Takes some milliseconds for any number of pairs."""
        lines = self._lines(pairs, UNUSED_MAC)
        self._cut |= set(pairs)  # recorded first, so that a partial failure is undone too
        self._namespaces.batches(lines)

    def mend(self, pairs: Collection[Pair]) -> None:
        self._namespaces.batches(self._lines(self._cut & set(pairs)))
        self._cut -= set(pairs)

    def unplug(self, broker: int) -> None:
        """Disconnect a broker's cable: blocks all messages to and from it, also of clients."""
        self._unplugged.add(broker)
        self._bridge_lines([f"link set {self._namespaces.port(broker)} down"])

    def plug(self, broker: int) -> None:
        self._bridge_lines([f"link set {self._namespaces.port(broker)} up"])
        self._unplugged.discard(broker)

    def separate(self, brokers: Collection[int]) -> None:
        """Isolate these brokers from each other, in both directions. Replaces the previous set.

        The other brokers and clients reach all brokers. Uses isolated ports of the bridge.
        """
        self.join()
        self._apart = set(brokers)
        self._isolate(brokers, "on")

    def join(self) -> None:
        """Undo ``separate``."""
        self._isolate(self._apart, "off")
        self._apart = set()

    def heal(self) -> None:
        self.mend(self._cut)
        self.join()
        for broker in list(self._unplugged):
            self.plug(broker)
        for broker in list(self._slow):
            self.unslow(broker)

    def reaches(self, a: int, b: int) -> bool:
        """See ``Net.reaches``. True also if b refuses the connection: a packet arrived and a reply
        returned."""
        with self._namespaces.socket(a) as probe:
            return connects(probe, self._addresses[b])

    def passes(self, a: int, b: int) -> bool:
        """Send datagrams from a's namespace to a socket in b's, until one arrives or 0.3 s have
        passed."""
        spaces = self._namespaces
        ear, mouth = (spaces.socket(place, socket.SOCK_DGRAM) for place in (b, a))
        with ear, mouth:
            ear.bind((spaces.address(b), 0))
            ear.settimeout(PROBE_INTERVAL_S)
            deadline = time.monotonic() + PROBE_TIMEOUT_S
            while time.monotonic() < deadline:
                try:
                    mouth.sendto(b"?", ear.getsockname())
                    ear.recv(1)
                except OSError:  # no datagram yet, or no route
                    continue
                return True
        return False

    def slow(self, broker: int, bits_per_s: int) -> None:
        """Set a token bucket at both ends of the broker's cable, with a queue of 0.4 s. Packets
        that do not fit into the queue are dropped."""
        self._slow.add(broker)
        burst = max(BURST_BYTES_MIN, bits_per_s // 8 // 250)
        shape = f"tbf rate {bits_per_s}bit burst {burst} latency {QUEUE_MS}ms"
        self._shape(broker, f"qdisc replace dev {{}} root {shape}")

    def slowed(self, broker: int) -> dict[str, int]:
        """Return the counters of ``tc``, summed over both ends."""
        if broker not in self._slow:
            return {}
        ends = self._shape(broker, "-statistics -json qdisc show dev {} root")
        found = [queue for end in ends for queue in json.loads(end) if queue["kind"] == "tbf"]
        names = ("bytes", "drops", "overlimits")
        return {name: sum(queue[name] for queue in found) for name in names} if found else {}

    def unslow(self, broker: int) -> None:
        if broker in self._slow:
            self._shape(broker, "qdisc del dev {} root")
            self._slow.discard(broker)

    def _lines(self, pairs: Iterable[Pair], mac: str = "") -> dict[int, list[str]]:
        lines: dict[int, list[str]] = {}
        for a, b in pairs:
            lines.setdefault(a, []).append(self._namespaces.neighbour(a, b, mac))
        return lines

    def _bridge_lines(self, lines: list[str]) -> None:
        self._namespaces.batches({CONTROL: lines})

    def _isolate(self, brokers: Collection[int], state: str) -> None:
        ports = map(self._namespaces.port, brokers)
        run_all([(("bridge", "link", "set", "dev", port, "isolated", state), "") for port in ports])

    def _shape(self, broker: int, line: str) -> list[str]:
        """Return the output of ``tc`` at both ends of a broker's cable."""
        spaces = self._namespaces
        ends = ((CONTROL, spaces.port(broker)), (broker, spaces.device(broker)))
        return run_all(
            [((*spaces.prefix(at), "tc", *line.format(device).split()), "") for at, device in ends]
        )


class RelayNet:
    """Blocks connections through relays: between brokers and, with client relays, of clients.

    A cut of (a, b) holds the bytes towards b on connections between the two, for either initiator.
    No byte is lost: after healing, the held bytes are forwarded, like a retransmission of TCP. In
    contrast to packet filters, the bytes of the other direction still pass, because the relay sends
    the acknowledgements. The relay still accepts new connections, but there is no response. Clients
    without client relays are not affected.
    """

    backend: Final[Backend] = "relays"

    def __init__(self, links: RelayLinks) -> None:
        self.links: RelayLinks = links
        self._cut: dict[Pair, int] = {}  # bytes that had been sent when the pair was blocked
        self._slow: set[int] = set()

    def cut(self, pairs: Collection[Pair]) -> None:
        for pair in pairs:
            ways = self._ways(pair)
            if not ways:
                raise OSError(
                    f"no relay between {pair[0]} and {pair[1]}: the link cannot be blocked"
                )
            for link, direction in ways:
                self.links.set(link, Hold(direction=direction))
            if pair not in self._cut:
                self._cut[pair] = sum(self.links.sent(link, way) for link, way in ways)

    def mend(self, pairs: Collection[Pair]) -> None:
        for pair in set(pairs) & self._cut.keys():
            for link, direction in self._ways(pair):
                self.links.clear(link, Hold, direction)
            del self._cut[pair]

    def heal(self) -> None:
        self.mend(list(self._cut))
        for broker in list(self._slow):
            self.unslow(broker)

    def reaches(self, a: int, b: int) -> bool:
        """See ``Net.reaches``. Connects through the relay between a and b; False without a
        relay."""
        return (a, b) in self.links.pairs and self.links.carries((a, b), timeout_s=PROBE_TIMEOUT_S)

    def passes(self, a: int, b: int) -> bool:
        """Return for a blocked pair whether bytes have passed since it was blocked; for other pairs
        the result of ``reaches``.

        Brokers do not connect to clients. For a pair to the clients, checks the other direction.
        """
        if (a, b) not in self._cut:
            return self.reaches(a, b) if (a, b) in self.links.pairs else self.reaches(b, a)
        passed = sum(self.links.counts(link, way).passed for link, way in self._ways((a, b)))
        return passed > self._cut[a, b]

    def slow(self, broker: int, bits_per_s: int) -> None:
        """Limit each connection of the broker. ``NamespaceNet`` limits their sum."""
        self._slow.add(broker)
        for link in self._links_of(broker):
            self.links.set(link, Bandwidth(bytes_per_s=max(1, bits_per_s // 8)))

    def slowed(self, broker: int) -> dict[str, int]:
        """Return the bytes that passed the broker's links, and the bytes that were delayed, since
        the links were created."""
        if broker not in self._slow:
            return {}
        ways = [(link, way) for link in self._links_of(broker) for way in DIRECTIONS]
        counts = [self.links.counts(link, way) for link, way in ways]
        return {
            "bytes": sum(each.passed for each in counts),
            "delayed": sum(each.delayed for each in counts),
        }

    def unslow(self, broker: int) -> None:
        self._slow.discard(broker)
        for link in self._links_of(broker):
            if self._slow.isdisjoint(link):
                self.links.clear(link, Bandwidth)

    def _links_of(self, broker: int) -> list[Pair]:
        return [link for link in self.links.pairs if broker in link]

    def _ways(self, pair: Pair) -> list[tuple[Pair, Direction]]:
        """Return the links and directions in which bytes pass from the first to the second."""
        ways: tuple[tuple[Pair, Direction], ...] = (
            (pair, FORWARD),
            ((pair[1], pair[0]), BACKWARD),
        )
        return [(link, direction) for link, direction in ways if link in self.links.pairs]


class NoNet:
    """A network without faults: nothing can be blocked. ``addresses``: where brokers listen."""

    backend: Final[Backend] = "none"
    links: None = None

    def __init__(self, addresses: Mapping[int, Address]) -> None:
        self._addresses = addresses

    def cut(self, pairs: Collection[Pair]) -> None:
        """Raise ``OSError``, unless there is nothing to block."""
        if pairs:
            raise OSError("the network of this cluster cannot be blocked")

    def mend(self, pairs: Collection[Pair]) -> None:
        pass

    def heal(self) -> None:
        pass

    def reaches(self, a: int, b: int) -> bool:  # noqa: ARG002 - there is one network only
        """See ``Net.reaches``. Observed from the harness for any ``a``."""
        with socket.socket() as probe:
            return connects(probe, self._addresses[b])

    def passes(self, a: int, b: int) -> bool:
        return self.reaches(a, b)

    def slow(self, broker: int, bits_per_s: int) -> None:
        raise OSError(f"the network of broker {broker} cannot be slowed to {bits_per_s} bit/s")

    def slowed(self, broker: int) -> dict[str, int]:  # noqa: ARG002 - no broker is limited
        return {}

    def unslow(self, broker: int) -> None:
        pass


def connects(probe: socket.socket, address: Address) -> bool:
    """Return whether a reply arrives within 0.3 s: an accepted or a refused connection."""
    probe.settimeout(PROBE_TIMEOUT_S)
    try:
        probe.connect(address)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
