"""Paths of the console: requests in, pages out. Queries and templates run in its own threads."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from raftlog import Admin, __version__, limits
from raftlog.cli.console import guard, records
from raftlog.cli.console.cluster_view import ClusterView
from raftlog.cli.console.pages import Pages, Values
from raftlog.cli.http_api import HttpApi, status_of
from raftlog.client.settings import SecurityArguments
from raftlog.clock import SystemClock
from raftlog.config import BrokerConfig
from raftlog.errors import RaftlogError
from raftlog.server.broker import read_secret

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER: Final = Path(__file__).parent
# Files that pages load; their address has a part of their checksum, so browsers may keep them.
FILES: Final = (
    *("console.css", "console.js"),
    *("vendor/htmx.min.js", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css"),
)
REQUEST_MS: Final = 5_000  # of one request to a broker; a connection lives for 10 s
KEPT: Final = "public, max-age=31536000, immutable"

Show = Callable[[Mapping[str, str]], Values]
Change = Callable[[Mapping[str, str]], str]  # returns where the browser continues


class Console:
    """``MoreRoutes`` of the HTTP port: the console of one broker, and ``/api/v1``."""

    def __init__(self, bootstrap: str, config: BrokerConfig) -> None:
        """``bootstrap``: address of this broker in this process."""
        clock = SystemClock()
        bootstrap, security = connection_of(bootstrap, config)
        # The cluster secret lets the broker describe a cluster whose clients must authenticate.
        self._authenticates = config.authentication_required
        secret = read_secret(config).decode(errors="replace") if self._authenticates else ""
        self._admin = Admin(
            bootstrap,
            request_timeout_ms=REQUEST_MS,
            client_id=records.CLIENT_ID,
            cluster_secret=secret,
            **security,
        )
        self._api = HttpApi(self._admin)
        view = ClusterView(self._admin, clock.monotonic, lambda: clock.wall_ms() / 1_000)
        self._pages = Pages(
            self._admin,
            view,
            lambda: records.Reader(bootstrap, clock.monotonic, **security),
            config,
        )
        self._clock = clock
        self._broker_id = config.id
        self._is_read_only = config.http_console_read_only
        listen = config.http_listen
        self._is_on_loopback = listen is not None and listen.is_loopback
        self._token = secrets.token_urlsafe(32)
        self._threads = ThreadPoolExecutor(limits.CONSOLE_REQUESTS_MAX, "raftlog-console")
        self._files = {name: (FOLDER / "static" / name).read_bytes() for name in FILES}

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._admin.close)

    def routes(self) -> Sequence[BaseRoute]:
        if self._authenticates:
            return [*self._api.routes(), Route("/{path:path}", self._not_served)]
        pages = self._pages
        shown: dict[str, tuple[str, Show]] = {
            "/": ("cluster.html", pages.cluster),
            "/broker": ("broker.html", pages.broker),
            "/topics": ("topics.html", pages.topics),
            "/new-topic": ("new_topic.html", pages.new_topic),
            "/topics/{name}": ("topic.html", pages.topic),
            "/topics/{name}/partitions/{partition}": ("partition.html", pages.partition),
            "/topics/{name}/records": ("records.html", pages.records),
            "/topics/{name}/tail": ("tail.html", pages.records),
            "/topics/{name}/records/{partition}/{offset}": ("record.html", pages.record),
            "/groups": ("groups.html", pages.groups),
            "/group": ("group.html", pages.group),
            "/group/reset": ("reset.html", pages.reset),
            "/events": ("events.html", pages.events),
        }
        changed: dict[str, Change] = {
            "/new-topic": pages.create_topic,
            "/topics/{name}/settings": pages.alter_topic,
            "/topics/{name}/partitions": pages.extend_topic,
            "/group/reset": pages.apply_reset,
        }
        return [
            *self._api.routes(),
            *(Route(path, self._change(work), methods=["POST"]) for path, work in changed.items()),
            Route("/topics/{name}/records.jsonl", self._download, methods=["GET"]),
            *(
                Route(path, self._show(template, work), methods=["GET"])
                for path, (template, work) in shown.items()
            ),
            Route("/static/{name:path}", self._file, methods=["GET"]),
        ]

    # -- requests

    def _show(self, template: str, work: Show) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            self._check_host(request)
            return await self._in_thread(self._page, request, template, work)

        return respond

    def _change(self, work: Change) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            self._check_host(request)
            form = {**await _form_of(request), **request.path_params}
            refused = guard.change_refusal(
                request.headers, form, self._token, is_read_only=self._is_read_only
            )
            if refused:
                return await self._in_thread(self._error, request, refused, 403)
            return await self._in_thread(self._changed, request, form, work)

        return respond

    async def _download(self, request: Request) -> Response:
        self._check_host(request)
        return await self._in_thread(self._file_of_records, request)

    async def _file(self, request: Request) -> Response:
        """One of ``FILES``; no other file can be named."""
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {**guard.HEADERS, "cache-control": KEPT}
        return Response(self._files[name], media_type=kind, headers=headers)

    async def _not_served(self, request: Request) -> Response:
        """A page shows records to everyone who reaches it, so access rules would have no effect."""
        self._check_host(request)
        text = (
            "The console is off while clients must authenticate (authentication.required): a "
            "browser does not authenticate. Use the commands, such as `raftlog top`"
        )
        return await self._in_thread(self._error, request, text, 403)

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        refused = guard.refusal(host, listens_on_loopback=self._is_on_loopback)
        if refused:
            raise HTTPException(421, refused, headers=dict(guard.HEADERS))

    async def _in_thread(self, work: Callable[..., Response], *arguments: Any) -> Response:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work, *arguments)

    # -- in a thread

    def _page(self, request: Request, template: str, work: Show) -> Response:
        try:
            values = work({**request.query_params, **request.path_params})
        except RaftlogError as error:
            return self._error(request, str(error), status_of(error))
        return self._rendered(request, template, values)

    def _changed(self, request: Request, form: Mapping[str, str], work: Change) -> Response:
        try:
            address = work(form)
        except RaftlogError as error:
            return self._error(request, str(error), status_of(error))
        return RedirectResponse(address, 303, headers=dict(guard.HEADERS))

    def _file_of_records(self, request: Request) -> Response:
        try:
            name, content, next_ = self._pages.download(
                {**request.query_params, **request.path_params}
            )
        except RaftlogError as error:
            return self._error(request, str(error), status_of(error))
        headers = {
            **guard.HEADERS,
            "content-disposition": f'attachment; filename="{name}"',
            "x-raftlog-next": next_,
        }
        return Response(content, media_type="application/x-ndjson", headers=headers)

    def _error(self, request: Request, message: str, status: int) -> Response:
        values = {"message": message, "status": status}
        return self._rendered(request, "error.html", values, status)

    def _rendered(
        self, request: Request, template: str, values: Values, status: int = 200
    ) -> Response:
        query = request.url.query
        text = self._templates.get_template(template).render(
            **values,
            path=request.url.path,
            address=f"{request.url.path}?{query}" if query else request.url.path,
            now_ms=self._clock.wall_ms(),
        )
        return Response(text, status, media_type="text/html", headers=dict(guard.HEADERS))

    @cached_property
    def _templates(self) -> Environment:
        """The templates. Every value that they show is escaped."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        from raftlog.cli.console import filters

        environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(filters.FILTERS)
        environment.globals.update(
            version=__version__,
            broker_id=self._broker_id,
            read_only=self._is_read_only,
            token=self._token,
            limits=limits,
            files={
                name: f"/static/{name}?v={hashlib.sha256(data).hexdigest()[:16]}"
                for name, data in self._files.items()
            },
        )
        return environment


def connection_of(bootstrap: str, config: BrokerConfig) -> tuple[str, SecurityArguments]:
    """The address and the TLS arguments with which a broker reaches itself.

    With TLS, it is the advertised address: its certificate contains that name. The client presents
    the broker's certificate, as brokers do to each other.
    """
    if not config.tls_certificate_file:
        return bootstrap, {"security_protocol": "PLAINTEXT"}
    return str(config.advertised_listen or bootstrap), {
        "security_protocol": "SSL",
        "ssl_cafile": config.tls_ca_file or config.tls_certificate_file,
        "ssl_certfile": config.tls_certificate_file,
        "ssl_keyfile": config.tls_key_file,
    }


async def _form_of(request: Request) -> dict[str, str]:
    """The fields of a form. Raises ``HTTPException`` for one that is too large or malformed."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limits.CONSOLE_FORM_BYTES_MAX:
            raise HTTPException(413)
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=limits.CONSOLE_FORM_FIELDS_MAX
        )
    except ValueError as error:
        raise HTTPException(400) from error
    return dict(pairs)
