"""The network between brokers and clients, as something that can be cut, slowed and looked at.

Pairs are directed, as in Jepsen's grudges: a cut of (a, b) means that nothing which a sends arrives
at b. 0 stands for the clients and the harness. ``NamespaceNet`` does it to packets, which needs
root; ``RelayNet`` to the bytes of connections that go through ``relays``; ``NoNet`` not at all.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, Protocol, TypeAlias

from raftlog.config.address import Address
from raftlog.jepsen_like.control.namespaces import CONTROL, Namespaces, run_all
from raftlog.jepsen_like.relays import BACKWARD, FORWARD, Direction, Pair, RelayLinks
from raftlog.jepsen_like.toxics import DIRECTIONS, Bandwidth, Hold

Backend: TypeAlias = Literal["namespaces", "relays", "none"]

PROBE_TIMEOUT_S: Final = 0.3
PROBE_INTERVAL_S: Final = 0.02
NOBODY: Final = "02:00:00:00:ff:ff"  # a hardware address that no device has
QUEUE_MS: Final = 400  # how long a packet may wait at a slow link before it is dropped
BURST_BYTES_MIN: Final = 3_200  # two packets of Ethernet: one that is larger never gets through


class Net(Protocol):
    """What a network between brokers can do, and show."""

    @property
    def backend(self) -> Backend: ...

    @property
    def links(self) -> RelayLinks | None:
        """The relays in between, for what happens to bytes; None if there are none."""
        ...

    def cut(self, pairs: Collection[Pair]) -> None:
        """Let nothing that a sends arrive at b, for each (a, b), on top of what is cut.

        Raises ``OSError`` when it cannot be done.
        """
        ...

    def mend(self, pairs: Collection[Pair]) -> None:
        """Take these pairs out of what is cut."""
        ...

    def heal(self) -> None:
        """Undo all that ``cut`` and ``slow`` did."""
        ...

    def reaches(self, a: int, b: int) -> bool:
        """Observed: a TCP connection from a's place to b's address can be made within 0.3 s."""
        ...

    def passes(self, a: int, b: int) -> bool:
        """Observed, as far as can be: what a sends arrives at b, whatever comes back."""
        ...

    def slow(self, broker: int, bits_per_s: int) -> None:
        """Let no more than that through to a broker, and from it."""
        ...

    def slowed(self, broker: int) -> dict[str, int]:
        """Observed: what being slow has done so far; empty if that broker's network is not."""
        ...

    def unslow(self, broker: int) -> None: ...


class NamespaceNet:
    """Cuts packets: silently, in one direction, of connections old and new.

    a's table of neighbours says for good that b is at a hardware address which nobody has: the
    bridge floods the packets and everybody lets them be. What b sends still arrives at a; but a's
    acknowledgements of it do not return, so TCP stalls in that direction too, once its windows
    are full or its patience has ended. After healing TCP goes on by itself, when its timer next
    sends again: up to as long after as the cut has lasted.

    ``addresses``: where brokers listen. ``links``: relays that brokers and clients use besides, for
    others' faults; the sockets of those have to be in the places of who dials.
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
        """Takes some milliseconds, for any number of pairs."""
        lines = self._lines(pairs, NOBODY)
        self._cut |= set(pairs)  # what fails half-way is mended too
        self._namespaces.batches(lines)

    def mend(self, pairs: Collection[Pair]) -> None:
        self._namespaces.batches(self._lines(self._cut & set(pairs)))
        self._cut -= set(pairs)

    def unplug(self, broker: int) -> None:
        """Take a broker's cable out: it reaches nobody, clients included, nor anybody it."""
        self._unplugged.add(broker)
        self._bridge_lines([f"link set {self._namespaces.port(broker)} down"])

    def plug(self, broker: int) -> None:
        self._bridge_lines([f"link set {self._namespaces.port(broker)} up"])
        self._unplugged.discard(broker)

    def separate(self, brokers: Collection[int]) -> None:
        """Let these brokers not reach each other; the rest and clients reach all. One set only.

        The bridge itself does it (isolated ports), in both directions.
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
        """True also if b refuses: then a packet came there, and one came back."""
        with self._namespaces.socket(a) as probe:
            return connects(probe, self._addresses[b])

    def passes(self, a: int, b: int) -> bool:
        """Datagrams from a's namespace to a socket in b's, until one arrives or 0.3 s are over."""
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
                except OSError:  # nothing yet; or a network without a way there
                    continue
                return True
        return False

    def slow(self, broker: int, bits_per_s: int) -> None:
        """A token bucket at both ends of its cable; a queue of 0.4 s, beyond which is dropped."""
        self._slow.add(broker)
        burst = max(BURST_BYTES_MIN, bits_per_s // 8 // 250)
        shape = f"tbf rate {bits_per_s}bit burst {burst} latency {QUEUE_MS}ms"
        self._shape(broker, f"qdisc replace dev {{}} root {shape}")

    def slowed(self, broker: int) -> dict[str, int]:
        """``tc``'s counters, of both ends together."""
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
        """What ``tc`` says at both ends of a broker's cable."""
        spaces = self._namespaces
        ends = ((CONTROL, spaces.port(broker)), (broker, spaces.device(broker)))
        return run_all(
            [((*spaces.prefix(at), "tc", *line.format(device).split()), "") for at, device in ends]
        )


class RelayNet:
    """Cuts connections that go through relays, between brokers and, if they have any, clients.

    A cut of (a, b) holds what passes towards b on connections between the two, whoever dialled: no
    byte is lost, and after healing what was held goes on, as if TCP had sent it again. It can
    express silence in one direction, better than packets can: the other direction's bytes keep
    coming, since acknowledgements are the relay's. It cannot express that a connection cannot be
    made at all: it seems to be made (the relay takes it), and nothing answers. Nor does it touch
    connections that pass no relay: clients' without relays for clients.
    """

    backend: Final[Backend] = "relays"

    def __init__(self, links: RelayLinks) -> None:
        self.links: RelayLinks = links
        self._cut: dict[Pair, int] = {}  # to the bytes that had been sent when it was cut
        self._slow: set[int] = set()

    def cut(self, pairs: Collection[Pair]) -> None:
        for pair in pairs:
            ways = self._ways(pair)
            if not ways:
                raise OSError(f"no relay between {pair[0]} and {pair[1]}: it cannot be cut")
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
        """Through the relay between them: it takes the connection, and makes its own to b.

        False where there is no relay.
        """
        return (a, b) in self.links.pairs and self.links.carries((a, b), timeout_s=PROBE_TIMEOUT_S)

    def passes(self, a: int, b: int) -> bool:
        """Of a pair that is cut: whether bytes have passed since. Else what ``reaches`` finds.

        Clients are dialled by nobody: they are asked to reach the broker.
        """
        if (a, b) not in self._cut:
            return self.reaches(a, b) if (a, b) in self.links.pairs else self.reaches(b, a)
        passed = sum(self.links.counts(link, way).passed for link, way in self._ways((a, b)))
        return passed > self._cut[a, b]

    def slow(self, broker: int, bits_per_s: int) -> None:
        """Per connection, where packets would share the cable."""
        self._slow.add(broker)
        for link in self._links_of(broker):
            self.links.set(link, Bandwidth(bytes_per_s=max(1, bits_per_s // 8)))

    def slowed(self, broker: int) -> dict[str, int]:
        """Bytes that passed its links, and of those the delayed ones, since they were made."""
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
        """Where bytes from the first to the second pass."""
        ways: tuple[tuple[Pair, Direction], ...] = (
            (pair, FORWARD),
            ((pair[1], pair[0]), BACKWARD),
        )
        return [(link, direction) for link, direction in ways if link in self.links.pairs]


class NoNet:
    """A network that is what it is: nothing can be cut. ``addresses``: where brokers listen."""

    backend: Final[Backend] = "none"
    links: None = None

    def __init__(self, addresses: Mapping[int, Address]) -> None:
        self._addresses = addresses

    def cut(self, pairs: Collection[Pair]) -> None:
        """Raises ``OSError``, unless there is nothing to cut."""
        if pairs:
            raise OSError("this cluster's network cannot be cut")

    def mend(self, pairs: Collection[Pair]) -> None:
        pass

    def heal(self) -> None:
        pass

    def reaches(self, a: int, b: int) -> bool:  # noqa: ARG002 - there is one place only
        """From the harness's place, whatever ``a`` is."""
        with socket.socket() as probe:
            return connects(probe, self._addresses[b])

    def passes(self, a: int, b: int) -> bool:
        return self.reaches(a, b)

    def slow(self, broker: int, bits_per_s: int) -> None:
        raise OSError(f"the network of broker {broker} cannot be slowed to {bits_per_s} bit/s")

    def slowed(self, broker: int) -> dict[str, int]:  # noqa: ARG002 - none is
        return {}

    def unslow(self, broker: int) -> None:
        pass


def connects(probe: socket.socket, address: Address) -> bool:
    """Whether a packet goes there and one comes back, within 0.3 s; a refusal is one, too."""
    probe.settimeout(PROBE_TIMEOUT_S)
    try:
        probe.connect(address)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
