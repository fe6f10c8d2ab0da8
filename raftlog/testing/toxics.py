"""Toxics: faults of a connection's bytes, after toxiproxy's toxics.

Pure: bytes in, bytes and pauses out; the random generator is an argument. ``relays`` has the
sockets.

A toxic with a ``direction`` affects that direction only: ``FORWARD`` is from the initiator of the
connection to its target; None is both directions. Loss and reordering of packets are not included:
TCP converts them into a delay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias, TypeVar

from raftlog.protocol.api import PRODUCE
from raftlog.protocol.frame import FIXED_BYTES, FRAME, LENGTH_BYTES, MAGIC, STATUS_OK

Direction: TypeAlias = Literal["forward", "backward"]
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
DIRECTIONS: Final[tuple[Direction, ...]] = (FORWARD, BACKWARD)

COPY_BYTES_MAX: Final = 1 << 20  # a longer frame is not duplicated
TURN_S: Final = 0.05  # a slow link forwards bytes in intervals of this length


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxic:
    """One fault of bytes."""

    direction: Direction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Toxic):
    """A network partition: nothing passes in this direction, and no connection is established in
    either direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Toxic):
    """Connections are established and remain open, and nothing passes in this direction (half
    open)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Toxic):
    """Each byte arrives ``delay_s`` later, plus or minus ``jitter_s``; never out of order."""

    delay_s: float
    jitter_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth(Toxic):
    """Maximum throughput of each connection in this direction."""

    bytes_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicer(Toxic):
    """Bytes arrive in pieces of 1 to ``bytes_max``, with up to ``pause_s`` between two."""

    bytes_max: int
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Toxic):
    """A connection is reset (RST, to both ends) after this number of its bytes has passed.

    0: open connections are reset immediately, and others with their first bytes.
    """

    after_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowClose(Toxic):
    """The end of a stream arrives later than its last byte by this time."""

    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Toxic):
    """Bytes of a connection that its initiator has already lost arrive anyway; once.

    Applies to connections that are open when it is set. The initiator's bytes are gathered until
    some have arrived, for at most ``gather_s``. Then its end is reset, so it reconnects, and the
    new connection works. ``delay_s`` later the target receives the gathered bytes, over the old
    connection, and its end.
    """

    gather_s: float = 1.0
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Garble(Toxic):
    """One bit is flipped, about once per this number of bytes.

    ``sealed_only``: only in record batches, where CRC-32C covers each byte: in the attachments of
    produce requests and of responses. No other part of a frame has a checksum, so the protocol
    cannot detect a flipped bit in, for example, an offset in a response.
    """

    every_bytes: int
    sealed_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Toxic):
    """A complete frame is sent twice, about once per this number of bytes."""

    every_bytes: int


AnyToxic = TypeVar("AnyToxic", bound=Toxic)
Toxics: TypeAlias = Mapping[type[Toxic], Toxic]  # the active toxics of one direction


def find(toxics: Toxics, kind: type[AnyToxic]) -> AnyToxic | None:
    """Return the toxic of this kind; None if there is none."""
    found = toxics.get(kind)
    assert found is None or isinstance(found, kind)
    return found


@dataclass(slots=True)
class Counts:
    """Counters of one direction of a link. In bytes, except ``connections`` and ``resets``.

    ``delayed``: passed, but later. ``dropped``: received and never forwarded. ``changed``: bits
    flipped, and frames sent twice. ``late``: passed after the connection had ended for the sender.
    """

    passed: int = 0
    delayed: int = 0
    dropped: int = 0
    changed: int = 0
    late: int = 0
    connections: int = 0
    resets: int = 0

    def __sub__(self, before: Counts) -> Counts:
        return Counts(*(getattr(self, n) - getattr(before, n) for n in Counts.__slots__))

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, n) + getattr(other, n) for n in Counts.__slots__))


def delay_of(toxics: Toxics, random: Random) -> float:
    """Return the delay of the bytes that arrive now; in seconds, not negative."""
    latency = find(toxics, Latency)
    if latency is None:
        return 0.0
    return max(0.0, latency.delay_s + random.uniform(-latency.jitter_s, latency.jitter_s))


def pieces(size: int, toxics: Toxics, random: Random) -> Iterator[tuple[int, float]]:
    """Yield the pieces in which ``size`` bytes are sent, each with the pause after it in
    seconds."""
    slicer, bandwidth = find(toxics, Slicer), find(toxics, Bandwidth)
    while size > 0:
        piece, pause = size, 0.0
        if bandwidth is not None:
            piece = min(piece, max(1, int(bandwidth.bytes_per_s * TURN_S)))
        if slicer is not None:
            piece = min(piece, random.randint(1, slicer.bytes_max))
            pause = random.uniform(0.0, slicer.pause_s)
        if bandwidth is not None:
            pause += piece / bandwidth.bytes_per_s
        yield piece, pause
        size -= piece


class FrameWatch:
    """Tracks frames and their record batches, in one direction of one connection.

    Stops tracking if the stream does not consist of frames.
    """

    def __init__(self, direction: Direction) -> None:
        self._direction = direction
        self._fixed = bytearray()
        self._left = 0  # bytes of the frame after the fixed ones
        self._attachment = 0  # of those, the bytes at the end that are batches
        self._is_lost = False

    def feed(self, data: bytes) -> tuple[list[range], list[int]]:
        """Return which of the stream's next bytes belong to batches, and after which bytes a frame
        ends."""
        batches: list[range] = []
        ends: list[int] = []
        at = 0
        while at < len(data) and not self._is_lost:
            if len(self._fixed) < FIXED_BYTES:
                missing = FIXED_BYTES - len(self._fixed)
                self._fixed += data[at : at + missing]
                at = min(len(data), at + missing)
                if len(self._fixed) == FIXED_BYTES:
                    self._begin()
            if len(self._fixed) == FIXED_BYTES:
                taken = min(self._left, len(data) - at)
                first = at + max(0, self._left - self._attachment)
                if first < at + taken:
                    batches.append(range(first, at + taken))
                at += taken
                self._left -= taken
                self._attachment = min(self._attachment, self._left)
                if not self._left:
                    self._fixed.clear()
                    ends.append(at)
        return batches, ends

    def _begin(self) -> None:
        length, magic, api_or_status, _, _, _, header_length = FRAME.unpack(self._fixed)
        self._left = length + LENGTH_BYTES - FIXED_BYTES
        self._is_lost = magic != MAGIC or not 0 <= header_length <= self._left
        has_batches = api_or_status == (PRODUCE.number if self._direction == FORWARD else STATUS_OK)
        self._attachment = self._left - header_length if has_batches else 0


class Mangler:
    """Garbles and duplicates the bytes of one direction of a link, for all its connections
    together."""

    def __init__(self, random: Random, counts: Counts) -> None:
        self._random = random
        self._counts = counts
        self._gaps: dict[type[Toxic], float] = {}  # bytes until its next effect

    def stream(self, direction: Direction) -> MangledStream:
        return MangledStream(self, direction)

    def flip(self, garble: Garble, data: bytes, batches: list[range]) -> bytes:
        places = batches if garble.sealed_only else [range(len(data))]
        changed: bytearray | None = None
        for place in places:
            at = self._next(garble, garble.every_bytes)
            while at < len(place):
                changed = changed or bytearray(data)
                changed[place[int(at)]] ^= 1 << self._random.randrange(8)
                self._counts.changed += 1
                at += self._draw(garble.every_bytes)
            self._gaps[Garble] = at - len(place)
        return data if changed is None else bytes(changed)

    def is_due(self, duplicate: Duplicate, size: int) -> bool:
        """Return whether a frame of this size is sent twice."""
        left = self._next(duplicate, duplicate.every_bytes) - size
        self._gaps[Duplicate] = left if left > 0 else self._draw(duplicate.every_bytes)
        return left <= 0

    def count(self) -> None:
        self._counts.changed += 1

    def _next(self, toxic: Toxic, every_bytes: int) -> float:
        if type(toxic) not in self._gaps:
            self._gaps[type(toxic)] = self._draw(every_bytes)
        return self._gaps[type(toxic)]

    def _draw(self, every_bytes: int) -> float:
        return self._random.expovariate(1 / every_bytes) + 1

    def forget(self, kind: type[Toxic]) -> None:
        """Reset the distance to the next effect: the next toxic may have another rate."""
        self._gaps.pop(kind, None)


class MangledStream:
    """The bytes of one direction of a connection, changed by a ``Mangler``."""

    def __init__(self, mangler: Mangler, direction: Direction) -> None:
        self._mangler = mangler
        self._watch = FrameWatch(direction)
        self._is_whole = True  # whether ``_frame`` contains all of the current frame until now
        self._frame = bytearray()

    def change(self, data: bytes, toxics: Toxics) -> bytes:
        """Return the bytes that replace ``data``."""
        batches, ends = self._watch.feed(data)
        garble, duplicate = find(toxics, Garble), find(toxics, Duplicate)
        if garble is not None:
            data = self._mangler.flip(garble, data, batches)
        return self._repeat(data, ends, duplicate)

    def _repeat(self, data: bytes, ends: list[int], duplicate: Duplicate | None) -> bytes:
        out: list[bytes] = []
        begin = 0
        for end in (*ends, len(data)):
            out.append(data[begin:end])
            self._keep(out[-1], duplicate)
            if end in ends and begin < end:
                if (
                    duplicate is not None
                    and self._is_whole
                    and self._mangler.is_due(duplicate, len(self._frame))
                ):
                    out.append(bytes(self._frame))
                    self._mangler.count()
                self._frame.clear()
                self._is_whole = True
            begin = end
        return b"".join(out) if duplicate is not None else data

    def _keep(self, part: bytes, duplicate: Duplicate | None) -> None:
        """Store the current frame, if it may be sent twice."""
        if duplicate is None or len(self._frame) + len(part) > COPY_BYTES_MAX:
            self._is_whole = self._is_whole and not part
            self._frame.clear()
        elif self._is_whole:
            self._frame += part
