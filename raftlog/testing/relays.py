"""TCP relays with toxics, one for each directed pair of initiator and target: sockets only.

All relays run on an event loop in a separate thread, so that busy clients and relays do not disturb
each other. ``toxics`` determines the changes of bytes; this module executes them, and counts.
"""

from __future__ import annotations

import array
import asyncio
import dataclasses
import fcntl
import select
import socket
import struct
import termios
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, TypeAlias, TypeVar

from raftlog.config.address import Address
from raftlog.protocol.api import PRODUCE
from raftlog.protocol.connection import FIXED_BYTES, FRAME, LENGTH_BYTES, MAGIC, STATUS_OK

__all__ = ["BACKWARD", "FORWARD", "Direction", "Pair", "RelayLinks"]

Pair: TypeAlias = tuple[int, int]  # initiator, target; ``CLIENTS`` for clients
SocketMaker: TypeAlias = Callable[[int], socket.socket]
T = TypeVar("T")

HOST: Final = "127.0.0.1"
CLIENTS: Final = 0  # the initiator of all clients' connections
CONNECTIONS_MAX: Final = 512  # of one relay; it resets further ones
DIAL_TIMEOUT_S: Final = 10.0
_GONE: Final = getattr(select, "POLLRDHUP", 0)  # in addition to errors, which poll() always reports


class RelayLinks:
    """Relays between all pairs of brokers, and with ``clients`` from clients to each broker.

    Thread-safe; the owner must call ``close``.
    """

    def __init__(
        self,
        addresses: Mapping[int, Address],
        *,
        clients: bool,
        host: str = HOST,
        random: Random | None = None,
        socket_in: SocketMaker | None = None,
    ) -> None:
        """``addresses``: of the brokers; they need not listen yet.

        ``host``: address on which relays listen, on free ports.
        ``random``: default: a generator with a constant seed.
        ``socket_in``: creates a socket in the network namespace of an initiator. Its relays use
            such sockets to listen and to connect, so faults of that network affect them. Called
            in a thread in the namespace of the caller. Default: sockets of that namespace.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="raftlog-toxic-relays", daemon=True
        )
        self._thread.start()
        self._is_closed = False
        diallers = [*((CLIENTS,) if clients else ()), *addresses]
        maker = socket_in or _socket_here
        chance = random or Random(0)
        self._links: dict[Pair, _Link] = {
            (dialler, target): _Link(address, Random(chance.random()), dialler, maker)
            for dialler in diallers
            for target, address in addresses.items()
            if dialler != target
        }
        try:
            self._run(self._start(host))
        except BaseException:
            self.close()
            raise

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs with a relay."""
        return tuple(self._links)

    def address(self, dialler: int, target: int) -> Address:
        """Return the address of ``target`` for ``dialler``. Raises ``KeyError`` without a relay
        between them."""
        return self._links[dialler, target].address

    def set(self, pair: Pair, *toxics: Toxic) -> None:
        """Add toxics. Each replaces the one of its kind and direction."""
        self._do(lambda: self._links[pair].set(toxics))

    def clear(
        self, pair: Pair, kind: type[Toxic] | None = None, direction: Direction | None = None
    ) -> None:
        """Remove toxics of this kind, in this direction; default: all except those of a network
        partition."""
        self._do(lambda: self._links[pair].clear(kind, direction))

    def counts(self, pair: Pair, direction: Direction) -> Counts:
        """Return the counters since the relays were created."""
        return dataclasses.replace(self._links[pair].channels[direction].counts)

    def held(self, pair: Pair, direction: Direction) -> int:
        """Return the bytes received in this direction, on open connections, and not forwarded."""

        async def count() -> int:
            return sum(each.held(direction) for each in self._links[pair].connections)

        return self._run(count())

    def sent(self, pair: Pair, direction: Direction) -> int:
        """Return the bytes that have passed, or that no later toxic can hold."""

        async def count() -> int:
            link = self._links[pair]
            leaving = sum(each.leaving(direction) for each in link.connections)
            return link.channels[direction].counts.passed + leaving

        return self._run(count())

    def open(self, pair: Pair) -> int:
        """Return the number of open connections."""
        return len(self._links[pair].connections)

    def carries(self, pair: Pair, *, timeout_s: float) -> bool:
        """Return whether a new connection from the initiator's network reaches the target."""
        return self._run(self._links[pair].carries(timeout_s))

    def close(self) -> None:
        """Reset every connection; return when the thread has ended. Can be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _start(self, host: str) -> None:
        for link in self._links.values():
            link.start(host)

    async def _end(self) -> None:
        for link in self._links.values():
            link.close()
        await cancel(asyncio.all_tasks() - {asyncio.current_task()})

    def _do(self, act: Callable[[], None]) -> None:
        async def work() -> None:
            act()

        self._run(work())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Link:
    """Relay of one pair. Only used on the relays' loop."""

    def __init__(
        self, target: Address, random: Random, dialler: int, socket_in: SocketMaker
    ) -> None:
        self.target = target
        self.address = Address(HOST, 0)
        self.channels = {way: Channel(way, random) for way in DIRECTIONS}
        # not held in either direction: connections can be established
        self.joined = asyncio.Event()
        self.connections: set[ProxyConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waited: dict[Any, asyncio.Future[bool]] = {}  # by initiator: whether it is connected
        self._listener: socket.socket | None = None
        self._dialler, self._socket_in = dialler, socket_in
        self._open_gates()

    def start(self, host: str) -> None:
        self._listener = self._socket_in(self._dialler)
        self._listener.setblocking(False)
        self._listener.bind((host, 0))
        self._listener.listen(128)
        self.address = Address(*self._listener.getsockname()[:2])
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop listening. The caller cancels open connections."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()

    # -- toxics

    def set(self, toxics: Iterable[Toxic]) -> None:
        for toxic in toxics:
            if isinstance(toxic, Late):
                for connection in self.connections:
                    self._spawn(connection.be_late(toxic))
                continue
            for way in _ways(toxic.direction):
                self.channels[way].toxics[type(toxic)] = toxic
                self.channels[way].mangler.forget(type(toxic))
            if isinstance(toxic, Reset) and not toxic.after_bytes:
                for connection in self.connections:
                    connection.reset()
        self._open_gates()

    def clear(self, kind: type[Toxic] | None, direction: Direction | None) -> None:
        for way in _ways(direction):
            toxics = self.channels[way].toxics
            for each in list(toxics):
                if each is kind or (kind is None and each is not Hold):
                    del toxics[each]
        self._open_gates()

    def _open_gates(self) -> None:
        """Open or close gates, as the toxics require."""
        channels = self.channels.values()
        for channel in channels:
            _put(channel.flowing, is_open=channel.toxics.keys().isdisjoint((Hold, Stall)))
        is_split = any(Hold in channel.toxics for channel in channels)
        _put(self.joined, is_open=not is_split)

    # -- connections

    async def carries(self, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        through = loop.create_future()
        name = None
        with self._socket_in(self._dialler) as probe:
            probe.setblocking(False)
            try:
                async with asyncio.timeout(timeout_s):
                    probe.bind((self.address.host, 0))
                    name = probe.getsockname()
                    self._waited[name] = through
                    await loop.sock_connect(probe, self.address)
                    return bool(await through)
            except (OSError, TimeoutError):
                return False
            finally:
                self._waited.pop(name, None)

    def _accept(self) -> None:
        """Accept the next connection immediately: none can be lost between two tasks."""
        assert self._listener is not None
        try:
            dialler, name = self._listener.accept()
        except OSError:  # reset before it was accepted, or no descriptor is free
            return
        task = self._spawn(self._serve(dialler, name))
        task.add_done_callback(lambda _: dialler.close())  # also for a task that never ran
        if len(self._tasks) > CONNECTIONS_MAX:
            task.cancel()

    async def _serve(self, dialler: socket.socket, name: Any) -> None:
        target = None
        try:
            await self.joined.wait()
            if _is_gone(dialler):  # it has closed the connection, as in a network partition
                return
            target = await self._dial()
        except (OSError, TimeoutError):
            pass
        finally:
            self._notify(name, is_through=target is not None)
            if target is None:
                close(dialler, is_reset=True)
        if target is None:
            return
        try:
            connection = ProxyConnection(self.channels, dialler, target)
        except OSError:  # one of the ends is already closed
            for end in (dialler, target):
                close(end, is_reset=True)
            return
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)

    async def _dial(self) -> socket.socket:
        target = self._socket_in(self._dialler)
        task = asyncio.current_task()
        assert task is not None, "runs in a task"
        task.add_done_callback(lambda _: target.close())  # after any end
        try:
            target.setblocking(False)
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(target, self.target)
        except BaseException:
            target.close()
            raise
        return target

    def _notify(self, name: Any, *, is_through: bool) -> None:
        waiter = self._waited.get(name)
        if waiter is not None and not waiter.done():
            waiter.set_result(is_through)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _socket_here(_place: int) -> socket.socket:
    return socket.socket()


def _ways(direction: Direction | None) -> tuple[Direction, ...]:
    return DIRECTIONS if direction is None else (direction,)


def _put(gate: asyncio.Event, *, is_open: bool) -> None:
    if is_open:
        gate.set()
    else:
        gate.clear()


def _is_gone(end: socket.socket) -> bool:
    """Return whether the other side has closed it, before or after unread bytes."""
    poll = select.poll()
    poll.register(end, _GONE)
    return bool(poll.poll(0))


# -- toxics ----------------------------------------------------------------------------------------
#
# Toxics: faults of a connection's bytes, after toxiproxy's toxics.
#
# Pure: bytes in, bytes and pauses out; the random generator is an argument. ``relays`` has the
# sockets.
#
# A toxic with a ``direction`` affects that direction only: ``FORWARD`` is from the initiator of the
# connection to its target; None is both directions. Loss and reordering of packets are not
# included: TCP converts them into a delay.


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


# -- proxy connection ------------------------------------------------------------------------------
#
# One connection through a relay: bytes are read, delayed, changed and written, as toxics define.
#
# Runs on the relays' event loop. ``toxics`` determines the bytes; this module contains sockets and
# waiting.


CHUNK_BYTES: Final = 1 << 16
CHUNKS_MAX: Final = 256  # queued chunks in one direction of a connection
_RST: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close() sends RST
_END: Final = b""  # of a stream


@dataclass
class Channel:
    """Shared state of all connections of a link, in one direction. ``flowing``: bytes may pass."""

    way: Direction
    random: Random
    toxics: dict[type[Toxic], Toxic] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.mangler = Mangler(self.random, self.counts)


class ProxyConnection:
    """One connection through a relay: a flow each way."""

    def __init__(
        self,
        channels: Mapping[Direction, Channel],
        dialler: socket.socket,
        target: socket.socket,
    ) -> None:
        self._dialler, self._target = dialler, target
        for end in (dialler, target):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # slices are sent separately
        self._is_reset = False
        self._tasks: list[asyncio.Task[None]] = []
        self._forward = Flow(channels[FORWARD], dialler, target)
        self._backward = Flow(channels[BACKWARD], target, dialler)

    async def run(self) -> None:
        """Run until both streams have ended, or one end is closed, or it is reset."""
        flows = (self._forward, self._backward)
        for flow in flows:
            flow.counts.connections += 1
        steps = [step for flow in flows for step in (flow.read(), flow.write())]
        self._tasks = [asyncio.get_running_loop().create_task(step) for step in steps]
        if self._is_reset:  # before the start
            await cancel(self._tasks)
        try:
            # A cancelled task does not end the others.
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            self._is_reset |= any(
                t.done() and not t.cancelled() and t.exception() for t in self._tasks
            )
        except asyncio.CancelledError:
            self._is_reset = True
            raise
        finally:
            await cancel(self._tasks)
            for flow in flows:
                flow.counts.dropped += flow.held
            close(self._dialler, is_reset=self._is_reset)
            close(self._target, is_reset=self._is_reset)

    def reset(self) -> None:
        """Send RST to both ends immediately."""
        if not self._is_reset:
            self._forward.counts.resets += 1
            self._is_reset = True
            for task in self._tasks:
                task.cancel()

    def held(self, way: Direction) -> int:
        """Return the bytes received in this direction and not forwarded."""
        return self._flow(way).held

    def leaving(self, way: Direction) -> int:
        """Return the received bytes that no later toxic can hold."""
        return self._flow(way).leaving

    def _flow(self, way: Direction) -> Flow:
        return self._forward if way == FORWARD else self._backward

    async def be_late(self, toxic: Late) -> None:
        """Forward the initiator's bytes after it has lost the connection.

        Has no effect on a connection without bytes.
        """
        flow = self._forward
        reading, _, *backward = self._tasks
        flow.gate.clear()
        if not flow.waiting:
            flow.has_some.clear()
        try:
            async with asyncio.timeout(toxic.gather_s):
                await flow.has_some.wait()
        except TimeoutError:
            flow.gate.set()
            return
        await cancel([reading, *backward])
        flow.is_late = True
        flow.put(_END)
        flow.counts.resets += 1
        close(self._dialler, is_reset=True)
        await asyncio.sleep(toxic.delay_s)
        flow.gate.set()


class Flow:
    """The bytes of one direction of one connection."""

    def __init__(self, channel: Channel, source: socket.socket, sink: socket.socket) -> None:
        self.counts = channel.counts
        self.gate = asyncio.Event()  # set, unless received bytes are gathered
        self.gate.set()
        self.has_some = asyncio.Event()  # bytes were received
        self.waiting = 0  # bytes received and not forwarded
        self.leaving = 0  # of those, the bytes that no toxic can hold
        self.is_late = False  # the sender has lost the connection
        self._channel = channel
        self._source, self._sink = source, sink
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._room = asyncio.Semaphore(CHUNKS_MAX)  # free queue entries; the end needs none
        self._stream = channel.mangler.stream(channel.way)
        self._due = 0.0  # when the last queued bytes are forwarded
        self._free_at = 0.0  # earliest time of the next piece
        self._passed = 0

    @property
    def _toxics(self) -> Toxics:
        return self._channel.toxics

    @property
    def held(self) -> int:
        """Return the bytes received, read or not, and not forwarded."""
        return self.waiting + (unread(self._source) if self._source.fileno() >= 0 else 0)

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            await self._channel.flowing.wait()
            data = await loop.sock_recv(self._source, CHUNK_BYTES)
            self.put(self._stream.change(data, self._toxics) if data else _END)
            if not data:
                return

    def put(self, data: bytes) -> None:
        """Queue bytes that are forwarded after their delay."""
        self.waiting += len(data)
        if data:
            self.has_some.set()
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now + delay_of(self._toxics, self._channel.random))
        self._queue.put_nowait((self._due, data))

    async def write(self) -> None:
        while True:
            due, data = await self._queue.get()
            is_delayed = await _sleep_until(due)
            if not data:
                break
            await self._send(data, is_delayed=is_delayed)
            self._room.release()
        slow_close = find(self._toxics, SlowClose)
        if slow_close is not None:
            await asyncio.sleep(slow_close.delay_s)
        await self._leave()
        self._sink.shutdown(socket.SHUT_WR)

    async def _send(self, data: bytes, *, is_delayed: bool) -> None:
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        for size, pause_s in pieces(len(data), self._toxics, self._channel.random):
            is_delayed |= await _sleep_until(self._free_at)
            is_delayed |= await self._leave()
            self.leaving = size
            await loop.sock_sendall(self._sink, view[:size])
            view = view[size:]
            self._count(size, is_delayed=is_delayed)
            reset = find(self._toxics, Reset)
            if reset is not None and self._passed >= reset.after_bytes:
                self.counts.resets += 1
                raise ConnectionResetError("reset by a toxic")
            self._free_at = loop.time() + pause_s

    async def _leave(self) -> bool:
        """Return when bytes may be forwarded; True if that was not immediately."""
        gates = (self.gate, self._channel.flowing)
        if all(gate.is_set() for gate in gates):
            return False
        for gate in gates:
            await gate.wait()
        return True

    def _count(self, size: int, *, is_delayed: bool) -> None:
        self._passed += size
        self.leaving = 0
        self.waiting -= size
        self.counts.passed += size
        self.counts.delayed += size * is_delayed
        self.counts.late += size * self.is_late


async def _sleep_until(time_s: float) -> bool:
    """Sleep until a time of the loop's clock. Returns True if it had not passed yet."""
    wait_s = time_s - asyncio.get_running_loop().time()
    if wait_s <= 0:
        return False
    await asyncio.sleep(wait_s)
    return True


def unread(end: socket.socket) -> int:
    """Return the number of unread bytes in the socket; see tcp(7)."""
    count = array.array("i", [0])
    fcntl.ioctl(end, termios.FIONREAD, count)
    return count[0]


def close(end: socket.socket, *, is_reset: bool) -> None:
    """Close a socket; with an RST if it is reset. It may already be closed."""
    if is_reset and end.fileno() >= 0:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
    end.close()


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and return when they have ended, with any result."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
