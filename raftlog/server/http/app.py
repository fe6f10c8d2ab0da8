"""Paths of the HTTP port: ``/healthz``, ``/readyz``, ``/metrics``, and those of ``MoreRoutes``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raftlog import limits
from raftlog.server.broker import Broker
from raftlog.server.http.authentication import METRICS, HttpAuthentication, respond
from raftlog.server.http.collect import readiness_of, values_of
from raftlog.server.http.exposition import render
from raftlog.server.http.lag_times import LagTimes
from raftlog.server.http.survey import Readiness
from raftlog.server.metrics import Durations

T = TypeVar("T")
UNAVAILABLE: Final = 503


class Kept(Generic[T]):
    """Result of expensive work, kept for ``METRICS_KEPT_S``. So the number of requests does not
    determine the work of the broker; requests that arrive during the work share its result.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], now: Callable[[], float]) -> None:
        self._work = work
        self._now = now
        self._task: asyncio.Task[T] | None = None
        self._ended_at = 0.0

    async def get(self) -> T:
        """Return the kept result, or a new one. Raises the error of the work."""
        task = self._task
        if task is None or (task.done() and self._now() - self._ended_at >= limits.METRICS_KEPT_S):
            self._task = task = asyncio.ensure_future(self._run())
        return await asyncio.shield(task)

    async def _run(self) -> T:
        try:
            return await self._work()
        finally:
            self._ended_at = self._now()


class MoreRoutes(Protocol):
    """Paths that the server does not know itself, because they need a client of the cluster."""

    def routes(self) -> Sequence[BaseRoute]: ...

    def start(self) -> None:
        """Called once, when the port accepts connections."""
        ...

    async def close(self) -> None:
        """Called once, after the last response."""
        ...


class _NotStored:
    """ASGI middleware: browsers keep only responses that say so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_header)


def make_app(
    broker: Broker, loop_delay: Durations, more_routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """Return the ASGI application. ``loop_delay``: filled by the server."""
    now, lags = broker.context.loop.time, LagTimes()
    values = Kept(lambda: values_of(broker, loop_delay, lags), now)
    ready = Kept(lambda: readiness_of(broker), now)

    async def healthz(_request: Request) -> Response:
        """Respond 200 while the event loop works: a broker whose disk fails ends."""
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        found = await ready.get()
        is_ok = found.is_restart_safe if "restart" in request.query_params else found.is_ready
        return _readiness(request, found, 200 if is_ok else UNAVAILABLE)

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, content_type = await asyncio.to_thread(render, await values.get(), accept)
        return Response(body, headers={"content-type": content_type})

    middleware = [Middleware(_NotStored)]
    if broker.context.config.authentication_required:
        backend = HttpAuthentication(broker.context)
        middleware.append(Middleware(AuthenticationMiddleware, backend=backend, on_error=respond))
    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route(METRICS, metrics),
            *more_routes,
        ],
        middleware=middleware,
    )


def _readiness(request: Request, found: Readiness, status: int) -> Response:
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse(
            {
                "ready": found.is_ready,
                "not_ready": found.not_ready,
                "restart_safe": found.is_restart_safe,
                "not_safe": found.not_safe,
            },
            status,
        )
    lines = [
        f"ready: {_yes(found.is_ready)}",
        *(f"  {reason}" for reason in found.not_ready),
        f"restart safe: {_yes(found.is_restart_safe)}",
        *(f"  {reason}" for reason in found.not_safe),
    ]
    return PlainTextResponse("\n".join(lines) + "\n", status)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
