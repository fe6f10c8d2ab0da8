"""The kinds link-delay, link-stall, link-reset, link-garble and link-late (N4): faults of
connections.

Relays between brokers, and between clients and brokers, inject them (``relays``, ``toxics``). Their
counters show the effect: a toxic on a link without traffic has no effect and counts as not
injected.

The checksums of the protocol limit the bytes that can be corrupted. Checksums cover every byte of
record batches (CRC-32C of the leader header and of the other bytes) in produce requests, fetch
responses and replication. Frames, their headers and Raft envelopes have no checksum: the receiver
cannot detect a flipped bit in an offset, an acknowledgement or a command. Only the 16-bit checksum
of TCP protects those, as in Kafka. Therefore bits flip only inside batches. Any frame can be
duplicated: Raft envelopes and appends of idempotent producers are numbered, and an unexpected
response closes the connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from raftlog.testing.relays import RelayLinks
from raftlog.testing.toxics import (
    DIRECTIONS,
    Bandwidth,
    Counts,
    Direction,
    Duplicate,
    Garble,
    Late,
    Latency,
    Reset,
    Slicer,
    SlowClose,
    Stall,
    Toxic,
)
from raftlog_jepsen.nemesis.base import Effect, Expectation, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.net import Net
from raftlog_jepsen.plan import Shape

Pair: TypeAlias = tuple[int, int]

LINKS_KINDS: Final[Mapping[str, str]] = {
    "link-delay": "Some connections are delayed, with jitter, small slices, or slow closing.",
    "link-stall": "Some connections stay open but transfer no bytes in one or both directions.",
    "link-reset": "Some connections are reset, once or after a number of bytes each.",
    "link-garble": "Bits of record batches flip in transit, or complete frames arrive twice.",
    "link-late": "Bytes of a connection arrive after the sender has lost it and reconnected.",
}
TOXICS: Final[Mapping[str, type[Toxic]]] = {
    kind.__name__: kind
    for kind in (Latency, Bandwidth, Slicer, SlowClose, Stall, Reset, Garble, Duplicate, Late)
}
LINK_HOLD_S: Final = (1.0, 12.0)
EFFECT_TIMEOUT_S: Final = 2.5  # time limit for a toxic to have an effect
POLL_S: Final = 0.02
CLIENTS: Final = 0
IS_ONCE: Final = Reset()  # resets open connections once
SHORT_S: Final = 0.1  # maximum delay that must not interrupt writes


class LinkCluster(Protocol):
    """Interface of the cluster."""

    @property
    def net(self) -> Net: ...


Drawn: TypeAlias = tuple[list[Toxic], Expectation]


class LinksNemesis(OwnKinds):
    """Injects faults into links. A later fault on the same link replaces an earlier one and ends
    both."""

    kinds = LINKS_KINDS

    def __init__(self, cluster: LinkCluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._begun: list[tuple[FaultPlan, dict[tuple[Pair, Direction], Counts]]] = []

    def _why_not(self, _kind: str) -> str:
        return "" if self._cluster.net.links else "this cluster has no relays"

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        """Draw a fault.

        ``args``: ``pairs`` of initiator and destination, 0 for clients, and ``toxics`` with their
        class name and fields. Writes must continue if the fault delays connections by at most
        0.1 s, or loses the bytes in flight once.
        """
        pairs = _draw_pairs(random, shape)
        toxics, expects = DRAWS[kind](random)
        listed = [{"toxic": type(toxic).__name__} | asdict(toxic) for toxic in toxics]
        return FaultPlan(
            kind=kind,
            targets=tuple(sorted({broker for pair in pairs for broker in pair} - {CLIENTS})),
            args={"pairs": [list(pair) for pair in pairs], "toxics": listed},
            hold_s=random.uniform(*LINK_HOLD_S),
            expects=expects,
        )

    def begin(self, fault: FaultPlan) -> Effect:
        """Inject the fault. Returns when the effect is visible, or after 2.5 s."""
        links, pairs, toxics = self._parts(fault)
        if not pairs:
            return not_injected("no relay between these")
        self._begun.append((fault, _counts(links, pairs)))
        for pair in pairs:
            links.set(pair, *toxics)
            if IS_ONCE in toxics:
                links.clear(pair, Reset)
        deadline = time.monotonic() + EFFECT_TIMEOUT_S
        while not (effect := self._effect(fault)).injected and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return effect

    def end(self, fault: FaultPlan) -> Effect:
        """Remove the toxics, and report the effect since the start of the fault."""
        effect = self._effect(fault)
        links, pairs, toxics = self._parts(fault)
        for pair in pairs:
            for toxic in toxics:
                links.clear(pair, type(toxic), toxic.direction)
        self._begun = [(begun, counts) for begun, counts in self._begun if begun != fault]
        return effect

    def heal(self) -> None:
        self._begun.clear()
        links = self._cluster.net.links
        if links is not None:
            for pair in links.pairs:
                links.clear(pair)

    def _parts(self, fault: FaultPlan) -> tuple[RelayLinks, list[Pair], list[Toxic]]:
        links = self._cluster.net.links
        if links is None:
            raise OSError("this cluster has no relays")
        pairs = [(a, b) for a, b in fault.args["pairs"] if (a, b) in links.pairs]
        return links, pairs, [_toxic(fields) for fields in fault.args["toxics"]]

    def _effect(self, fault: FaultPlan) -> Effect:
        links, pairs, toxics = self._parts(fault)
        before = next((counts for begun, counts in self._begun if begun == fault), None)
        if before is None:
            return not_injected("it was not started")
        changes = {at: now - before[at] for at, now in _counts(links, pairs).items()}
        total = sum(changes.values(), Counts())
        seen: dict[str, Any] = {name: n for name, n in asdict(total).items() if n}
        held = 0
        if any(isinstance(toxic, Stall) for toxic in toxics):
            ways = toxics[0].direction
            held = seen["held"] = sum(
                links.held(pair, way) for pair, way in changes if ways in (way, None)
            )
        seen["hit"] = [list(pair) for pair in pairs if any(
            _shows(toxics, changes[pair, way]) for way in DIRECTIONS
        )]  # fmt: skip
        return Effect(bool(held or seen["hit"]), seen)


def _shows(toxics: Sequence[Toxic], counts: Counts) -> bool:
    """Return whether these counters show an effect of these toxics."""
    marks = {
        Latency: counts.delayed,
        Bandwidth: counts.delayed,
        Slicer: counts.delayed,
        Reset: counts.resets,
        Garble: counts.changed,
        Duplicate: counts.changed,
        Late: counts.late,
    }
    return any(marks.get(type(toxic), 0) for toxic in toxics)


def _counts(links: RelayLinks, pairs: Sequence[Pair]) -> dict[tuple[Pair, Direction], Counts]:
    return {(pair, way): links.counts(pair, way) for pair in pairs for way in DIRECTIONS}


def _toxic(fields: Mapping[str, Any]) -> Toxic:
    kind = TOXICS[fields["toxic"]]
    return kind(**{name: value for name, value in fields.items() if name != "toxic"})


# -- drawing ---------------------------------------------------------------------------------------


def _draw_pairs(random: Random, shape: Shape) -> list[Pair]:
    """Draw links of clients, or between brokers: one link, all links of one broker, or all."""
    brokers = list(shape.broker_ids)
    of_clients = len(brokers) < 2 or random.random() < 0.5
    every = [
        (dialler, target)
        for dialler in ([CLIENTS] if of_clients else brokers)
        for target in brokers
        if dialler != target
    ]
    scope = random.choice(("one", "broker", "all"))
    if scope == "one":
        return [random.choice(every)]
    if scope == "broker":
        broker = random.choice(brokers)
        return [pair for pair in every if broker in pair]
    return every


def _direction(random: Random) -> Direction | None:
    return random.choice((None, *DIRECTIONS))


def _draw_delay(random: Random) -> Drawn:
    delay_s = random.choice((0.01, 0.05, SHORT_S, 0.5, 2.0))
    direction = _direction(random)
    toxics: list[Toxic] = [
        Latency(delay_s=delay_s, jitter_s=random.choice((0.0, delay_s / 2)), direction=direction)
    ]
    is_slow = delay_s > SHORT_S
    more = random.choice(("", "", "slices", "bandwidth", "close"))
    if more == "slices":
        bytes_max = random.choice((100, 1_000))
        toxics.append(Slicer(bytes_max=bytes_max, pause_s=0.002, direction=direction))
        is_slow = True
    elif more == "bandwidth":
        rate = random.choice((20_000, 200_000))
        toxics.append(Bandwidth(bytes_per_s=rate, direction=direction))
        is_slow = True
    elif more == "close":
        toxics.append(SlowClose(delay_s=random.uniform(0.5, 5.0), direction=direction))
    return toxics, "outage" if is_slow else "available"


def _draw_stall(random: Random) -> Drawn:
    return [Stall(direction=_direction(random))], "outage"


def _draw_reset(random: Random) -> Drawn:
    after_bytes = random.choice((0, 1, 1_000, 20_000, 200_000))
    if not after_bytes:
        return [IS_ONCE], "available"
    return [Reset(after_bytes=after_bytes, direction=_direction(random))], "outage"


def _draw_garble(random: Random) -> Drawn:
    every_bytes = random.choice((500, 5_000, 50_000))
    if random.random() < 0.5:
        return [Duplicate(every_bytes=every_bytes, direction=_direction(random))], "outage"
    return [Garble(every_bytes=every_bytes)], "outage"


def _draw_late(random: Random) -> Drawn:
    return [Late(gather_s=1.0, delay_s=random.choice((0.05, 0.3, 0.8)))], "available"


DRAWS: Final[Mapping[str, Callable[[Random], Drawn]]] = {
    "link-delay": _draw_delay,
    "link-stall": _draw_stall,
    "link-reset": _draw_reset,
    "link-garble": _draw_garble,
    "link-late": _draw_late,
}
