"""Routes of the console. Queries and templates run in threads of the console."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
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

from raftlog import __version__, limits
from raftlog.clock import SystemClock
from raftlog.config import BrokerConfig
from raftlog.errors import RaftlogError
from raftlog.security.acl import Operation, ResourceType
from raftlog.server.http.authentication import HttpUser
from raftlog_cli.console import access, checks, guard, producers
from raftlog_cli.console.pages import Pages, Values
from raftlog_cli.console.sessions import Session, Sessions
from raftlog_cli.http_api import HttpApi, status_of

if TYPE_CHECKING:
    from jinja2 import Environment

logger = logging.getLogger("raftlog.console")

FOLDER: Final = Path(__file__).parent
# Files that pages load. Their URL contains a part of their checksum, so browsers can cache them.
FILES: Final = (
    *("console.css", "console.js"),
    *("vendor/htmx.min.js", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css"),
)
KEPT: Final = "public, max-age=31536000, immutable"

Show = Callable[[Pages, Mapping[str, str]], Values]
Change = Callable[[Pages, Mapping[str, str]], str]  # returns the URL of the next page


class Console:
    """``MoreRoutes`` of the HTTP port: the console of one broker, and ``/api/v1``."""

    def __init__(self, bootstrap: str, config: BrokerConfig) -> None:
        """``bootstrap``: address of this broker in this process."""
        self._clock = SystemClock()
        self._authenticates = config.authentication_required
        self._sessions = Sessions(bootstrap, config, self._clock)
        self._api = HttpApi(lambda request: self._session(request).admin)
        self._broker_id = config.id
        self._is_read_only = config.http_console_read_only
        # Without authentication, operators prove the cluster secret, which the console does not.
        self._needs_secret = config.operations_require_secret and bool(
            config.cluster_secret or config.cluster_secret_file
        )
        listen = config.http_listen
        self._is_on_loopback = listen is not None and listen.is_loopback
        self._secret = secrets.token_bytes(32)
        self._threads = ThreadPoolExecutor(limits.CONSOLE_REQUESTS_MAX, "raftlog-console")
        self._files = {name: (FOLDER / "static" / name).read_bytes() for name in FILES}

    def start(self) -> None:
        self._sessions.start()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._sessions.close)

    def routes(self) -> Sequence[BaseRoute]:
        shown: dict[str, tuple[str, Show]] = {
            "/": ("cluster.html", Pages.cluster),
            "/broker": ("broker.html", Pages.broker),
            "/topics": ("topics.html", Pages.topics),
            "/new-topic": ("new_topic.html", Pages.new_topic),
            "/topics/{name}": ("topic.html", Pages.topic),
            "/topics/{name}/partitions/{partition}": ("partition.html", Pages.partition),
            "/topics/{name}/groups": ("topic_groups.html", Pages.topic_groups),
            "/topics/{name}/produce": ("produce.html", Pages.new_record),
            "/topics/{name}/producers": ("producers.html", producers.producers),
            "/topics/{name}/check": ("check.html", checks.check),
            "/topics/{name}/records": ("records.html", Pages.records),
            "/topics/{name}/tail": ("tail.html", Pages.records),
            "/topics/{name}/records/{partition}/{offset}": ("record.html", Pages.record),
            "/groups": ("groups.html", Pages.groups),
            "/group": ("group.html", Pages.group),
            "/group/reset": ("reset.html", Pages.reset),
            "/events": ("events.html", Pages.events),
            "/access": ("rules.html", access.rules),
            "/access/new-rule": ("new_rule.html", access.new_rule),
            "/access/check": ("check_access.html", access.check_access),
            "/access/users": ("users.html", access.users),
        }
        changed: dict[str, Change] = {
            "/new-topic": Pages.create_topic,
            "/topics/{name}/settings": Pages.alter_topic,
            "/topics/{name}/partitions": Pages.extend_topic,
            "/topics/{name}/delete": Pages.delete_topic,
            "/topics/{name}/produce": Pages.produce,
            "/topics/{name}/partitions/{partition}/delete-records": Pages.delete_records,
            "/topics/{name}/partitions/{partition}/leader": Pages.move_leader,
            "/group/reset": Pages.apply_reset,
            "/access/new-rule": access.create_rule,
            "/access/delete-rule": access.delete_rule,
            "/access/new-user": access.create_user,
            "/access/new-password": access.rotate_user,
            "/access/delete-user": access.delete_user,
        }
        return [
            *self._api.routes(),
            *(Route(path, self._change(work), methods=["POST"]) for path, work in changed.items()),
            Route(
                "/topics/{name}/check",
                self._change(checks.continue_check, changes_nothing=True),
                methods=["POST"],
            ),
            Route("/topics/{name}/records.jsonl", self._download, methods=["GET"]),
            *(
                Route(path, self._show(template, work), methods=["GET"])
                for path, (template, work) in shown.items()
            ),
            Route("/static/{name:path}", self._file, methods=["GET"]),
            Route("/{path:path}", self._no_page, methods=["GET"]),
        ]

    # -- users

    def _user(self, request: Request) -> HttpUser | None:
        """Return the user that the middleware has authenticated."""
        if not self._authenticates:
            return None
        user = request.user
        assert isinstance(user, HttpUser)
        return user

    def _session(self, request: Request) -> Session:
        return self._sessions.of(self._user(request))

    def _token(self, request: Request) -> str:
        """Return the token of a user's pages, which is valid until the next start of the broker."""
        user = self._user(request)
        name = "" if user is None else user.display_name
        return hmac.digest(self._secret, name.encode(), "sha256").hex()

    def _rights(self, request: Request) -> frozenset[str]:
        """Return which changes the page offers. In the event loop, which owns the access rules."""
        user = self._user(request)

        def may(operation: Operation, resource_type: ResourceType, name: str) -> bool:
            if user is not None:
                return user.may(operation, resource_type, name)
            return resource_type != "CLUSTER" or not self._needs_secret

        topic = request.path_params.get("name", "")
        return guard.rights(topic, may, is_read_only=self._is_read_only)

    # -- requests

    def _show(self, template: str, work: Show) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            self._check_host(request)
            rights = self._rights(request)
            return await self._in_thread(self._page, request, template, work, rights)

        return respond

    def _change(self, work: Change, *, changes_nothing: bool = False) -> Callable[[Request], Any]:
        """``changes_nothing``: the request is permitted on a read-only console, too."""

        async def respond(request: Request) -> Response:
            self._check_host(request)
            form = {**await _form_of(request), **request.path_params}
            refused = guard.change_refusal(
                request.headers,
                form,
                self._token(request),
                is_read_only=self._is_read_only and not changes_nothing,
            )
            if refused:
                return await self._in_thread(self._error, request, refused, 403)
            return await self._in_thread(self._changed, request, form, work)

        return respond

    async def _download(self, request: Request) -> Response:
        self._check_host(request)
        return await self._in_thread(self._file_of_records, request)

    async def _file(self, request: Request) -> Response:
        """Return one of ``FILES``. No other file is accessible."""
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {**guard.HEADERS, "cache-control": KEPT}
        return Response(self._files[name], media_type=kind, headers=headers)

    async def _no_page(self, request: Request) -> Response:
        self._check_host(request)
        if request.url.path.startswith("/api/"):
            raise HTTPException(404)
        message = f"There is no page {request.url.path[:200]}"
        return await self._in_thread(self._error, request, message, 404)

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        refused = guard.refusal(host, listens_on_loopback=self._is_on_loopback)
        if refused:
            raise HTTPException(421, refused, headers=dict(guard.HEADERS))

    async def _in_thread(
        self, work: Callable[..., Response], request: Request, *arguments: Any
    ) -> Response:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work, request, *arguments)
        except Exception:  # the page says so, with the navigation
            logger.exception("console page failed: path=%s", request.url.path)
            message = "The console has failed. The log of the broker has the reason"
            return await loop.run_in_executor(self._threads, self._error, request, message, 500)

    # -- in a thread

    def _page(
        self, request: Request, template: str, work: Show, rights: frozenset[str]
    ) -> Response:
        try:
            parameters = {**request.query_params, **request.path_params}
            values = work(self._session(request).pages, parameters)
        except RaftlogError as error:
            return self._error(request, str(error), status_of(error))
        return self._rendered(request, template, {**values, "rights": rights})

    def _changed(self, request: Request, form: Mapping[str, str], work: Change) -> Response:
        try:
            address = work(self._session(request).pages, form)
        except RaftlogError as error:
            return self._error(request, str(error), status_of(error))
        return RedirectResponse(address, 303, headers=dict(guard.HEADERS))

    def _file_of_records(self, request: Request) -> Response:
        try:
            name, content, next_ = self._session(request).pages.download(
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
            token=self._token(request),
            path=request.url.path,
            address=f"{request.url.path}?{query}" if query else request.url.path,
            now_ms=self._clock.wall_ms(),
        )
        return Response(text, status, media_type="text/html", headers=dict(guard.HEADERS))

    @cached_property
    def _templates(self) -> Environment:
        """Return the templates. They escape all values."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        from raftlog_cli.console import filters

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
            secured=self._authenticates,
            limits=limits,
            files={
                name: f"/static/{name}?v={hashlib.sha256(data).hexdigest()[:16]}"
                for name, data in self._files.items()
            },
        )
        return environment


async def _form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises ``HTTPException`` if it is too large or malformed."""
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
