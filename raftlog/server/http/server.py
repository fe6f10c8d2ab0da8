"""Web server of a broker: uvicorn in the broker's event loop, within limits.

Each connection serves one request and ends after ``HTTP_CONNECTION_S`` at the latest;
``HTTP_CONNECTIONS_MAX`` can be open. So clients that are slow, broken or many take a bounded part
of the broker.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from raftlog import limits
from raftlog.clock import Clock
from raftlog.server.broker import Broker
from raftlog.server.http.app import MoreRoutes, make_app
from raftlog.server.metrics import Durations
from raftlog.server.tls import tls_options

logger = logging.getLogger(__name__)

DELAY_INTERVAL_SECONDS: Final = 0.1  # between two measurements of the event loop
STOP_SECONDS_MAX: Final = 1  # for responses in progress


class _Connection(H11Protocol):
    """Aborts connections over the limits."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > limits.HTTP_CONNECTIONS_MAX:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(limits.HTTP_CONNECTION_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """Leaves the signals to the broker process, and the limits of TLS to its context."""

    tls_options: dict[str, Any]  # of ``create_server``

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config

        def make() -> asyncio.Protocol:
            return _Connection(config, self.server_state, self.lifespan.state)

        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(make, sock=each, **self.tls_options) for each in sockets or ()
        ]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class LoopDelay:
    """Measures by how much the timers of the event loop are late."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.durations = Durations()
        self._loop = loop
        self._clock = clock
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due = self._clock.monotonic() + DELAY_INTERVAL_SECONDS
        self._timer = self._loop.call_later(DELAY_INTERVAL_SECONDS, self._tick)

    def _tick(self) -> None:
        self.durations.observe(max(0.0, self._clock.monotonic() - self._due))
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class HttpServer:
    """Serves from ``start`` to ``stop``."""

    def __init__(
        self,
        server: _Server,
        serving: asyncio.Task[None],
        delay: LoopDelay,
        api: MoreRoutes | None,
    ) -> None:
        self._server = server
        self._serving = serving
        self._delay = delay
        self._api = api

    @classmethod
    async def start(
        cls, broker: Broker, listening: socket.socket, api: MoreRoutes | None = None
    ) -> HttpServer:
        """Serve the broker's state, and ``api``, to connections of ``listening``. Returns when it
        accepts them.
        """
        context = broker.context
        delay = LoopDelay(context.loop, context.clock)
        config = uvicorn.Config(
            make_app(broker, delay.durations, () if api is None else api.routes()),
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[("connection", "close")],
            h11_max_incomplete_event_size=limits.HTTP_HEADER_BYTES_MAX,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
        )
        server = _Server(config)
        secured = context.config.http_uses_tls
        server.tls_options = tls_options(broker.tls.http if broker.tls and secured else None)
        serving = context.loop.create_task(server.serve([listening]))
        while not (server.started or serving.done()):  # noqa: ASYNC110 - no other report of it
            await asyncio.sleep(0)
        if serving.done():
            serving.result()  # raises the reason
        delay.start()
        if api is not None:
            api.start()
        return cls(server, serving, delay, api)

    async def stop(self) -> None:
        """Stop to accept, and wait for responses in progress, in bounded time."""
        self._delay.stop()
        self._server.should_exit = True
        await self._serving
        if self._api is not None:
            await self._api.close()
