"""TCP relays with toxics, one for each directed pair of initiator and target: sockets only.

All relays run on an event loop in a separate thread, so that busy clients and relays do not disturb
each other. ``toxics`` determines the changes of bytes; this module executes them, and counts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import select
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from raftlog.config.address import Address
from raftlog.testing.proxy_connection import Channel, ProxyConnection, cancel, close
from raftlog.testing.toxics import (
    BACKWARD,
    DIRECTIONS,
    FORWARD,
    Counts,
    Direction,
    Hold,
    Late,
    Reset,
    Stall,
    Toxic,
)

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
