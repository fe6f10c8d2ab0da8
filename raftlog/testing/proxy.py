"""A TCP relay between two brokers that a test can cut: network partitions for real processes.

One thread with an event loop runs all relays of a cluster. A cut relay closes connections and
refuses new ones; a stalled one keeps connections and forwards nothing (half open).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from raftlog.config.address import Address

T = TypeVar("T")

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 18


class Relay:
    """Listens on ``address`` and forwards bytes to and from ``target``. Used on the relays'
    loop."""

    def __init__(self, target: Address) -> None:
        self.address = Address(HOST, 0)
        self.target = target
        self._is_cut = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=CHUNK_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = Address(host, port)

    def cut(self) -> None:
        """Close connections, and refuse new ones."""
        self._is_cut = True
        self._abort()

    def stall(self) -> None:
        """Keep connections, and forward nothing."""
        self._flowing.clear()

    def heal(self) -> None:
        self._is_cut = False
        self._flowing.set()

    def close(self) -> None:
        """Close connections, and stop listening."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._is_cut:
                return
            onward_reader, onward = await asyncio.open_connection(*self.target, limit=CHUNK_BYTES)
            self._writers.add(onward)
            try:
                if not self._is_cut:  # it may have been cut since
                    await asyncio.gather(
                        self._pass(reader, onward), self._pass(onward_reader, writer)
                    )
            finally:
                self._close(onward)
        except (OSError, asyncio.CancelledError):
            pass  # one of the two has ended, or the relay: so does the connection
        finally:
            self._close(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._flowing.wait()
            if self._is_cut:
                break
            writer.write(data)
            await writer.drain()
        writer.transport.abort()  # one side has ended: brokers close both

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()


class Relays:
    """One thread for all relays; ``close`` ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays: list[Relay] = []
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="raftlog-relays", daemon=True
        )
        self._thread.start()

    def add(self, target: Address) -> Relay:
        """Return a relay to ``target``, which may not listen yet."""

        async def start() -> Relay:
            relay = Relay(target)
            await relay.start()
            return relay

        relay = self._run(start())
        self._relays.append(relay)
        return relay

    def do(self, act: Callable[[], None]) -> None:
        """Call ``act`` on the relays' loop, and return when it has returned."""

        async def work() -> None:
            act()

        self._run(work())

    def close(self) -> None:
        """Close every relay and every connection through them; return when the thread has ended."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for relay in self._relays:
            relay.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets in the loop's next round

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
