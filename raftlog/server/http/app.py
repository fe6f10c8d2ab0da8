"""Paths of the HTTP port: ``/healthz``, ``/readyz``, ``/metrics``, those of the schema registry
and of ``MoreRoutes``.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    BaseUser,
)
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from raftlog import errors, limits
from raftlog.clock import Clock
from raftlog.config import Address
from raftlog.errors import (
    AccessDeniedError,
    RaftlogError,
    SchemaError,
)
from raftlog.registry import rest
from raftlog.registry.rest import Call
from raftlog.security.acl import USER, Operation, Principal, ResourceType
from raftlog.server.access.control import AccessControl, Caller, Client
from raftlog.server.authentication import OAUTHBEARER
from raftlog.server.broker import Broker
from raftlog.server.connection import address_of
from raftlog.server.context import BrokerContext
from raftlog.server.http.collect import LagTimes, Readiness, readiness_of, render, values_of
from raftlog.server.metrics import Durations
from raftlog.server.tls import tls_options
from raftlog.types import SCHEMAS_TOPIC

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

        with suppress(ClientDisconnect):  # there is no one to answer
            await self._app(scope, receive, send_with_header)


def make_app(
    broker: Broker,
    loop_delay: Durations,
    listen: Address,
    more_routes: Sequence[BaseRoute] = (),
    host: Host | None = None,
) -> Starlette:
    """Return the ASGI application of a port at ``listen``. ``loop_delay``: filled by the server.
    ``host``: the other workers, for which health and metrics answer, too.
    """
    now, lags = broker.context.loop.time, LagTimes()
    values = Kept(lambda: values_of(broker, loop_delay, lags), now)

    async def readiness() -> Readiness:
        found = await readiness_of(broker)
        return found if host is None else await host.readiness(found)

    ready = Kept(readiness, now)

    async def healthz(_request: Request) -> Response:
        """Respond 200 while the event loop works: a broker whose disk fails ends."""
        ailing = [] if host is None else await host.ailing()
        text = "\n".join(ailing) or "ok"
        return PlainTextResponse(f"{text}\n", UNAVAILABLE if ailing else 200)

    async def readyz(request: Request) -> Response:
        found = await ready.get()
        is_ok = found.is_restart_safe if "restart" in request.query_params else found.is_ready
        return _readiness(request, found, 200 if is_ok else UNAVAILABLE)

    async def metrics(request: Request) -> Response:
        # Those of several workers are merged in the text format, which every scraper reads.
        accept = request.headers.get("accept", "") if host is None else "text/plain"
        body, content_type = await asyncio.to_thread(render, await values.get(), accept)
        if host is not None:
            body = (await host.metrics(body.decode())).encode()
        return Response(body, headers={"content-type": content_type})

    routes = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route(METRICS, metrics),
        *schema_routes(broker.context, listen),
        *more_routes,
    ]
    return Starlette(routes=routes, middleware=_middleware(broker.context))


def make_registry_app(broker: Broker, listen: Address) -> Starlette:
    """Return the ASGI application of ``schema.registry.listen``: the schema registry alone."""
    context = broker.context

    async def root(_request: Request) -> Response:
        return JSONResponse({})

    routes = [Route("/", root), *schema_routes(context, listen)]
    return Starlette(routes=routes, middleware=_middleware(context))


def _middleware(context: BrokerContext) -> list[Middleware]:
    middleware = [Middleware(_NotStored)]
    # guard: HTTP requests must authenticate
    if context.config.authentication_required:
        backend = HttpAuthentication(context)
        middleware.append(Middleware(AuthenticationMiddleware, backend=backend, on_error=respond))
    return middleware


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


# -- server ----------------------------------------------------------------------------------------
#
# Web server of a broker: uvicorn in the broker's event loop, within limits.
#
# Each connection serves one request and ends after ``HTTP_CONNECTION_S`` at the latest;
# ``HTTP_CONNECTIONS_MAX`` can be open. So clients that are slow, broken or many take a bounded part
# of the broker.


logger = logging.getLogger(__name__)

DELAY_INTERVAL_SECONDS: Final = 0.1  # between two measurements of the event loop
STOP_SECONDS_MAX: Final = 1  # for responses in progress


class _Connection(H11Protocol):
    """Aborts connections over the limits."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # guard: HTTP connections are limited
        if len(self.connections) > limits.HTTP_CONNECTIONS_MAX:
            transport.abort()
        else:
            # guard: HTTP connections end
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
        delay: LoopDelay | None = None,
        api: MoreRoutes | None = None,
    ) -> None:
        self._server = server
        self._serving = serving
        self._delay = delay
        self._api = api

    @classmethod
    async def start(
        cls,
        broker: Broker,
        listening: socket.socket,
        api: MoreRoutes | None = None,
        workers: Sequence[Address] = (),
    ) -> HttpServer:
        """Serve the broker's state, and ``api``, to connections of ``listening``. Returns when it
        accepts them. ``workers``: HTTP ports of the other brokers of this host.
        """
        context = broker.context
        ask = partial(ask_http, uses_tls=context.config.http_uses_tls)
        host = Host(workers, ask) if workers else None
        delay = LoopDelay(context.loop, context.clock)
        more_routes = () if api is None else api.routes()
        app = make_app(broker, delay.durations, address_of(listening), more_routes, host)
        server, serving = await _serve(broker, app, listening)
        delay.start()
        if api is not None:
            api.start()
        return cls(server, serving, delay, api)

    @classmethod
    async def start_registry(cls, broker: Broker, listening: socket.socket) -> HttpServer:
        """Serve the schema registry alone."""
        return cls(
            *await _serve(broker, make_registry_app(broker, address_of(listening)), listening)
        )

    async def stop(self) -> None:
        """Stop to accept, and wait for responses in progress, in bounded time."""
        if self._delay is not None:
            self._delay.stop()
        self._server.should_exit = True
        await self._serving
        if self._api is not None:
            await self._api.close()


async def _serve(
    broker: Broker, app: Starlette, listening: socket.socket
) -> tuple[_Server, asyncio.Task[None]]:
    context = broker.context
    config = uvicorn.Config(
        app,
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
    return server, serving


# -- authentication --------------------------------------------------------------------------------
#
# Authentication of HTTP requests over TLS: Basic (RFC 7617) with the users of the cluster, and
# Bearer (RFC 6750) with tokens of an identity provider.
#
# Starlette's middleware calls ``HttpAuthentication`` for each request. What health checks need is
# open to all.


METRICS: Final = "/metrics"
HEALTH: Final = frozenset(("/healthz", "/readyz"))
_CHALLENGE: Final = {
    "www-authenticate": 'Basic realm="raftlog", charset="UTF-8", Bearer realm="raftlog"'
}
_STATUS: Final[dict[type[errors.RaftlogError], int]] = {
    errors.AuthenticationError: 401,
    errors.AccessDeniedError: 403,
    errors.ThrottledError: 429,
}


@dataclass(frozen=True, slots=True)
class HttpUser(BaseUser):
    """The user of a request: a ``Client`` of the access rules.

    ``mechanism``: one for which the user has a credential of this password; or OAUTHBEARER: then,
    ``password`` is a bearer token. ``access``: the rules of this broker; None: it may do nothing.
    """

    principal: Principal
    peer_host: str
    mechanism: str
    password: str = field(repr=False)
    access: AccessControl | None = field(default=None, repr=False, compare=False)
    is_operator = False

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the user may do ``operation`` with a resource. Call it in the event loop."""
        return self.access is not None and Caller(self.access, self).may(
            operation, resource_type, name
        )

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return self.principal.name

    @property
    def identity(self) -> str:
        return str(self.principal)


class RejectedError(AuthenticationError):
    """A request that is answered with an error."""

    def __init__(self, error: errors.RaftlogError, status: int = 0) -> None:
        super().__init__(str(error))
        kinds = (code for kind, code in _STATUS.items() if isinstance(error, kind))
        self.status = status or next(kinds, 503)


class HttpAuthentication(AuthenticationBackend):
    """Verifies the user of each request, except of open paths."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        public = (METRICS,) if context.config.http_metrics_public else ()
        self._open_paths = HEALTH.union(public)

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the user, or None for a path that is open. Raises ``RejectedError``."""
        # Not ``conn.url``: some versions of starlette make it of the header Host, too.
        path: str = conn.scope["path"]
        if path in self._open_paths:
            return None
        try:
            user = await self._user(conn)
            if path == METRICS:
                self._check_metrics(user)
        except errors.RaftlogError as error:
            raise RejectedError(error) from error
        return AuthCredentials(("authenticated",)), user

    async def _user(self, conn: HTTPConnection) -> HttpUser:
        # guard: a password over HTTP requires TLS
        if conn.scope["scheme"] != "https":
            raise errors.AccessDeniedError(
                "this broker requires authentication, and its HTTP port has no TLS: a password "
                "would be readable. Set tls.certificate.file, or http.metrics.public for metrics"
            )
        header = conn.headers.get("authorization", "")
        scheme, _, token = header.partition(" ")
        given = _basic(header)
        if given is None and scheme.lower() != "bearer":
            raise errors.AuthenticationError(
                "this broker requires authentication. Send the name and the password of a user "
                "(HTTP Basic), or a token of the identity provider (HTTP Bearer)"
            )
        host = conn.client.host if conn.client is not None else "local"
        authenticator, access = self._context.authenticator, self._context.access
        try:
            if given is None:
                principal = await authenticator.verify_token(host, token.strip())
                return HttpUser(principal, host, OAUTHBEARER, token.strip(), access)
            name, password = given
            used = await authenticator.verify(host, name, password)
        except errors.AuthenticationError:
            # guard: a failed password over HTTP is answered late
            await asyncio.sleep(limits.AUTHENTICATION_DELAY_S)
            raise
        return HttpUser(Principal(USER, used.user), host, used.mechanism, password, access)

    def _check_metrics(self, user: HttpUser) -> None:
        """Raise ``AccessDeniedError`` unless the user may describe the cluster."""
        caller = Caller(self._context.access, user)
        try:
            # guard: metrics require DESCRIBE of the cluster
            caller.require_of_cluster("DESCRIBE")
        finally:
            if caller.denied:
                self._context.audit.note(
                    "denial",
                    principal=str(caller.principal),
                    host=caller.host,
                    request=METRICS,
                    resources=caller.denied,
                    outcome="AccessDeniedError",
                )


def respond(_conn: HTTPConnection, error: Exception) -> Response:
    """Return the response to a request that was rejected."""
    status = error.status if isinstance(error, RejectedError) else 401
    headers = _CHALLENGE if status == 401 else {}
    return PlainTextResponse(f"{error}\n", status, headers=headers)


def _basic(header: str) -> tuple[str, str] | None:
    """Return the name and the password of an Authorization header; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # not ASCII, not Base64, or not UTF-8
        return None
    return (name, password) if colon else None


# -- schema registry -------------------------------------------------------------------------------
#
# At the paths of Confluent's Schema Registry. ``raftlog.registry.rest`` has the paths and answers;
# here, HTTP requests become its calls.

METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE"]


def schema_routes(context: BrokerContext, listen: Address) -> Sequence[BaseRoute]:
    """Return the routes of the registry. ``listen``: the address that they are served at.

    With authentication, ``rest.required`` says what a call requires. Without, everyone who reaches
    the address can read; and write, if only this machine reaches it or insecure.allowed is set.
    """

    async def respond(request: Request) -> Response:
        try:
            call = await _call_of(request)
            _check_access(context, request, call, listen)
            answer = await context.registry.call(call)
        except RaftlogError as error:
            answer = rest.failed(error)
        accepted = request.headers.get("accept", "")
        is_plain = "application/json" in accepted and "schemaregistry" not in accepted
        content_type = "application/json" if is_plain else rest.CONTENT_TYPE
        return Response(answer.body, answer.status, media_type=content_type)

    return [
        Route(f"/{root}{rest_of_path}", respond, methods=METHODS)
        for root in rest.ROOTS
        for rest_of_path in ("", "/{path:path}")
    ]


async def _call_of(request: Request) -> Call:
    """Return the call of a request. Raises ``SchemaError``."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limits.SCHEMA_REQUEST_BYTES_MAX:
            raise SchemaError(
                f"the body is longer than {limits.SCHEMA_REQUEST_BYTES_MAX} bytes", 413
            )
    path = request.scope.get("raw_path") or request.url.path.encode()
    unknown = request.headers.get(rest.ACCEPT_UNKNOWN, "").lower() == "true"
    method = "GET" if request.method == "HEAD" else request.method
    query = dict(list(request.query_params.items())[:20])
    return Call(method, path.decode("latin-1"), query, bytes(body), unknown)


def _check_access(context: BrokerContext, request: Request, call: Call, listen: Address) -> None:
    """Raise ``AccessDeniedError`` if the user may not make the call, or if the page of another site
    makes it with the user's browser.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    # guard: pages of other sites cannot call the schema registry
    if origin is not None and not is_own(origin, host):
        raise AccessDeniedError("pages of other sites may not use the schema registry")
    if not context.access.is_enforced:
        # guard: a loopback registry serves only names of the loopback interface
        if refused := refusal(host, listens_on_loopback=listen.is_loopback):
            raise AccessDeniedError(refused)
        if rest.is_write(call) and not (context.config.insecure_allowed or listen.is_loopback):
            raise AccessDeniedError(
                "this address is read-only: other machines reach it without authentication. Use "
                "`raftlog schema put`, or set authentication.required or schema.registry.listen"
            )
        return
    client: Client | None = request.user if "user" in request.scope else None
    if client is None:
        raise errors.AuthenticationError("this broker requires authentication")
    caller = Caller(context.access, client)
    try:
        # guard: calls of the schema registry need rights
        caller.require(rest.required(call), "TOPIC", SCHEMAS_TOPIC)
    finally:
        if caller.denied:
            context.audit.note(
                "denial",
                principal=str(caller.principal),
                host=caller.host,
                request=f"{call.method} {call.path}"[:200],
                resources=caller.denied,
                outcome="AccessDeniedError",
            )


# -- browsers --------------------------------------------------------------------------------------
#
# Requests that pages of other sites make with a browser on this machine.


def is_own(origin: str, host: str | None) -> bool:
    """Return whether the header Origin names the port that the request is for."""
    return origin.partition("://")[2] == host


def refusal(host: str, *, listens_on_loopback: bool) -> str:
    """Return why a request with this Host header is refused; "" if it is not."""
    if not listens_on_loopback:
        return ""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    # guard: a loopback console serves only names of the loopback interface
    if name and Address(name, 0).is_loopback:
        return ""
    return (
        "this broker serves its HTTP port on the loopback interface, and the request is for the "
        f"host {host[:100]!r}. Use http://127.0.0.1:PORT or http://localhost:PORT"
    )


# -- a host with several workers -------------------------------------------------------------------
#
# The first worker's port answers for all of them. It asks the others at each request, and those
# that do not answer are not ready. No request is forwarded with a password: if brokers require
# authentication, the metrics of the other workers are included only if metrics are public, while
# health needs no user.

ASK_TIMEOUT_S: Final = 3.0  # a worker whose loop is held for longer is not healthy
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what such a worker is reached at


class Answer(NamedTuple):
    """Of a worker to a GET request. ``status``: 0 if there was none; the reason is ``text``."""

    status: int
    text: str


Ask: TypeAlias = Callable[[Address, str, str], Answer]


def ask_http(address: Address, path: str, accept: str, *, uses_tls: bool = False) -> Answer:
    """Send a request to a worker of this host, and wait for its answer."""
    host = _ANYWHERE.get(address.host, address.host)
    at = Address(host, address.port)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if uses_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The certificate has the name of the host, and not this address. Nothing secret is sent.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    url = f"{'https' if uses_tls else 'http'}://{at}{path}"
    request = urllib.request.Request(url, headers={"accept": accept})  # noqa: S310 - built above
    try:
        with opener.open(request, timeout=ASK_TIMEOUT_S) as response:
            return Answer(
                response.status, response.read(limits.HTTP_WORKER_ANSWER_BYTES_MAX).decode()
            )
    except urllib.error.HTTPError as error:
        return Answer(
            error.code, error.read(limits.HTTP_WORKER_ANSWER_BYTES_MAX).decode(errors="replace")
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Answer(0, f"its HTTP port does not answer: {error}")


class Host:
    """The other workers, as the first one sees them. Worker numbers begin at 2."""

    def __init__(self, others: Sequence[Address], ask: Ask) -> None:
        self._others = others
        self._ask = ask

    async def _asked(self, path: str, accept: str) -> dict[int, Answer]:
        answers = await asyncio.gather(
            *(asyncio.to_thread(self._ask, other, path, accept) for other in self._others)
        )
        return dict(enumerate(answers, start=2))

    async def ailing(self) -> list[str]:
        """Return a sentence for each worker that is not healthy."""
        answers = await self._asked("/healthz", "text/plain")
        return [f"worker {n}: {each.text.strip()}" for n, each in answers.items() if _fails(each)]

    async def readiness(self, own: Readiness) -> Readiness:
        """Return whether all workers are ready, and whether all can be restarted safely."""
        not_ready, not_safe = list(own.not_ready), list(own.not_safe)
        for number, answer in (await self._asked("/readyz", "application/json")).items():
            try:
                found = json.loads(answer.text)
                reasons, unsafe = found["not_ready"], found["not_safe"]
            except (ValueError, KeyError, TypeError):
                reasons, unsafe = [answer.text.strip()], []
            not_ready += [f"worker {number}: {reason}" for reason in reasons]
            not_safe += [f"worker {number}: {reason}" for reason in unsafe]
        return Readiness(tuple(not_ready), tuple(not_safe))

    async def metrics(self, own: str) -> str:
        """Return the metrics of all workers, in Prometheus' text format 0.0.4."""
        answers = await self._asked("/metrics", "text/plain")
        texts = {1: own} | {n: each.text for n, each in answers.items() if not _fails(each)}
        up = "# HELP raftlog_worker_up Whether the worker answers (1) or not (0).\n"
        up += "# TYPE raftlog_worker_up gauge\n"
        # Also with 401, as this request has no user: the worker works, and keeps its metrics.
        answered = {1: True} | {n: each.status != 0 for n, each in answers.items()}
        for number, is_up in answered.items():
            up += f'raftlog_worker_up{{worker="{number}"}} {int(is_up)}\n'
        return await asyncio.to_thread(merge_metrics, texts) + up


def _fails(answer: Answer) -> bool:
    return answer.status != 200


def merge_metrics(texts: Mapping[int, str]) -> str:
    """Return the metrics of several workers as one text: each family once, as the format requires,
    and each sample with the label ``worker``.
    """
    heads: dict[str, dict[str, None]] = {}  # HELP and TYPE of each family, in order, each once
    samples: dict[str, list[str]] = {}
    for worker, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, {})[line] = None
            elif line and not line.startswith("#"):
                samples.setdefault(family, []).append(_labelled(line, worker))
    return "".join(
        "".join(f"{line}\n" for line in (*heads.get(family, ()), *samples.get(family, ())))
        for family in dict.fromkeys((*heads, *samples))
    )


def _labelled(line: str, worker: int) -> str:
    name, space, value = line.partition(" ")
    bare, brace, labels = line.partition("{")
    if brace and len(bare) < len(name):
        return f'{bare}{{worker="{worker}",{labels}'
    return f'{name}{{worker="{worker}"}}{space}{value}'
