"""Routes of the console. Queries and templates run in threads of the console."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import mimetypes
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from msgspec.structs import asdict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from raftlog import Admin, Producer, __version__, limits
from raftlog.client.settings import SecurityArguments
from raftlog.clock import Clock, SystemClock
from raftlog.config import BrokerConfig
from raftlog.errors import InvalidRequestError, RaftlogError, RefusedError
from raftlog.security.acl import (
    ANY,
    CLUSTER_NAME,
    OPERATIONS,
    RESOURCE_TYPES,
    USER,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from raftlog.security.quota import DEFAULT, QuotaEntity
from raftlog.server.authentication import OAUTHBEARER
from raftlog.server.http.app import HttpUser, is_own, refusal
from raftlog.types import SCHEMAS_TOPIC, is_internal_topic
from raftlog_cli.acl import UNKNOWN_HOST
from raftlog_cli.console import pages, records
from raftlog_cli.console.history import History, Sampler
from raftlog_cli.console.http import HttpApi, choice, status_of
from raftlog_cli.console.pages import ROWS, ClusterView, Pages, Values, page_of
from raftlog_cli.console.records import Schemas
from raftlog_cli.quota import LIMITS, shown_limit

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
        self._api = HttpApi(lambda request: self._session(request).admin, self._check_host)
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
            "/topics/{name}/producers": ("producers.html", pages.producers),
            "/topics/{name}/check": ("check.html", pages.check),
            "/topics/{name}/records": ("records.html", Pages.records),
            "/topics/{name}/tail": ("tail.html", Pages.records),
            "/topics/{name}/records/{partition}/{offset}": ("record.html", Pages.record),
            "/groups": ("groups.html", Pages.groups),
            "/group": ("group.html", Pages.group),
            "/group/reset": ("reset.html", Pages.reset),
            "/transactions": ("transactions.html", pages.transactions),
            "/transaction": ("transaction.html", pages.transaction),
            "/events": ("events.html", Pages.events),
            "/access": ("rules.html", rules),
            "/access/new-rule": ("new_rule.html", new_rule),
            "/access/check": ("check_access.html", check_access),
            "/access/users": ("users.html", users),
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
            "/transaction/abort": pages.abort_transaction,
            "/access/new-rule": create_rule,
            "/access/delete-rule": delete_rule,
            "/access/new-user": create_user,
            "/access/new-password": rotate_user,
            "/access/delete-user": delete_user,
        }
        return [
            *self._api.routes(),
            *(Route(path, self._change(work), methods=["POST"]) for path, work in changed.items()),
            Route(
                "/topics/{name}/check",
                self._change(pages.continue_check, changes_nothing=True),
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
        return rights(topic, may, is_read_only=self._is_read_only)

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
            # guard: only requests that change nothing are permitted on a read-only console
            refused = change_refusal(
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
        headers = {**HEADERS, "cache-control": KEPT}
        return Response(self._files[name], media_type=kind, headers=headers)

    async def _no_page(self, request: Request) -> Response:
        self._check_host(request)
        if request.url.path.startswith("/api/"):
            raise HTTPException(404)
        message = f"There is no page {request.url.path[:200]}"
        return await self._in_thread(self._error, request, message, 404)

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        refused = refusal(host, listens_on_loopback=self._is_on_loopback)
        if refused:
            raise HTTPException(421, refused, headers=dict(HEADERS))

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
        return RedirectResponse(address, 303, headers=dict(HEADERS))

    def _file_of_records(self, request: Request) -> Response:
        try:
            name, content, next_ = self._session(request).pages.download(
                {**request.query_params, **request.path_params}
            )
        except RaftlogError as error:
            return self._error(request, str(error), status_of(error))
        headers = {
            **HEADERS,
            "content-disposition": f'attachment; filename="{name}"',
            "x-raftlog-next": next_,
        }
        return Response(content, media_type="application/x-ndjson", headers=headers)

    def _error(self, request: Request, message: str, status: int) -> Response:
        values = {"message": message, "status": status, "is_page": request.method == "GET"}
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
        return Response(text, status, media_type="text/html", headers=dict(HEADERS))

    @cached_property
    def _templates(self) -> Environment:
        """Return the templates. They escape all values."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        from raftlog_cli.console import pages

        # guard: pages escape every value
        environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(pages.FILTERS)
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


# -- guard -----------------------------------------------------------------------------------------
#
# Checks of console requests, and headers that protect its pages. Pure.
#
# These checks protect a loopback port against pages of other sites in a browser on the same
# machine:
#
# - The Host header must name the loopback interface. Otherwise a site whose name resolves to
#   127.0.0.1 (DNS rebinding) could read the pages.
# - A change requires a token that only pages of the console contain, and the Origin of the console.


TOKEN_FIELD: Final = "token"  # noqa: S105 - not a secret

# No inline script or style, nothing from other sites, no frames.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, the Origin of a form is "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

TOPIC_CHANGES: Final[tuple[Operation, ...]] = ("WRITE", "DELETE", "ALTER", "ALTER_CONFIGS")
MOVE_LEADERS: Final = "MOVE_LEADERS"


def change_refusal(
    headers: Mapping[str, str], form: Mapping[str, str], token: str, *, is_read_only: bool
) -> str:
    """Return why a changing request is refused; "" if it is not.

    ``headers``: by lower-case name. ``token``: token of the console's pages.
    """
    # guard: a read-only console changes nothing
    if is_read_only:
        return (
            "the console of this broker is read-only. Set http.console.read.only=false, which "
            "requires an http.listen on the loopback interface, or authentication.required=true"
        )
    origin = headers.get("origin")
    if origin is not None and not is_own(origin, headers.get("host")):
        return "the request comes from a page of another site"
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return "the request comes from a page of another site"
    # guard: a change needs the token of the console's own pages
    if not hmac.compare_digest(form.get(TOKEN_FIELD, "").encode(), token.encode()):
        return "the page is older than the broker's last start. Go back, reload it, and try again"
    return ""


def rights(
    topic: str, may: Callable[[Operation, ResourceType, str], bool], *, is_read_only: bool
) -> frozenset[str]:
    """Return which changes the pages of a topic offer: of ``TOPIC_CHANGES``, and ``MOVE_LEADERS``.

    ``topic``: "" on other pages. ``may``: whether the user may do an operation with a resource. The
    pages hide other changes; the brokers refuse them.
    """
    if is_read_only or not topic:
        return frozenset()
    found = {MOVE_LEADERS} if may("ALTER", "CLUSTER", CLUSTER_NAME) else set()
    if not is_internal_topic(topic):
        found |= {operation for operation in TOPIC_CHANGES if may(operation, "TOPIC", topic)}
    return frozenset(found)


# -- sessions --------------------------------------------------------------------------------------
#
# Clients of the cluster, one per user of the console, so that access rules apply as usual.


REQUEST_MS = 5_000  # of one request to a broker; a connection lives for 10 s
DELIVERY_MS = 6_000  # of a record


@dataclass(slots=True)
class Session:
    """Client of one user. None: of a broker that requires no authentication."""

    user: HttpUser | None
    admin: Admin
    pages: Pages
    used_seconds: float = 0.0


class Sessions:
    """At most ``CONSOLE_USERS_MAX`` sessions, created on demand. Thread-safe."""

    def __init__(self, bootstrap: str, config: BrokerConfig, clock: Clock) -> None:
        """``bootstrap``: address of this broker in this process."""
        self._bootstrap, self._security = connection_of(bootstrap, config)
        self._config = config
        self._avro_schemas = config.http_console_avro_schemas
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Session] = OrderedDict()  # by name, in the order of use
        # With authentication, only the cluster secret lets a broker's own client see the cluster.
        is_timed = not config.authentication_required or bool(
            config.cluster_secret or config.cluster_secret_file
        )
        self._history = History(is_timed=is_timed)
        self._sampler = Sampler(self._history, self._make_own, clock) if is_timed else None

    def start(self) -> None:
        """Start to sample the cluster for the plots."""
        if self._sampler is not None:
            self._sampler.start()

    def _make_own(self) -> Admin:
        """Return a client of the broker itself."""
        config = self._config
        is_operator = config.authentication_required
        return Admin(
            self._bootstrap,
            request_timeout_ms=REQUEST_MS,
            client_id=records.CLIENT_ID,
            cluster_secret=(is_operator and config.cluster_secret) or None,
            cluster_secret_file=(is_operator and config.cluster_secret_file) or None,
            **self._security,
        )

    def of(self, user: HttpUser | None) -> Session:
        """Return the session of a user."""
        name = "" if user is None else user.display_name
        now = self._clock.monotonic()
        closing = []
        with self._lock:
            found = self._open.pop(name, None)
            if found is not None and not _is_same(found.user, user):
                closing.append(found)
                found = None
            for other, session in list(self._open.items()):
                is_idle = now - session.used_seconds >= limits.CONSOLE_USER_IDLE_S
                # guard: clients of the console's users are few
                if is_idle or len(self._open) >= limits.CONSOLE_USERS_MAX:
                    closing.append(self._open.pop(other))
            found = self._open[name] = found or self._make(user)
            found.used_seconds = now
        _close(closing)
        return found

    def _make(self, user: HttpUser | None) -> Session:
        security = self._security if user is None else _as_user(self._security, user)
        admin = Admin(
            self._bootstrap,
            request_timeout_ms=REQUEST_MS,
            client_id=records.CLIENT_ID,
            cluster_secret="",  # not that of the broker's environment: users are no operators
            **security,
        )
        clock = self._clock
        schemas = Schemas(self._avro_schemas, partial(_from_registry, admin))
        view = ClusterView(admin, clock.monotonic)
        pages = Pages(
            admin,
            view,
            self._history,
            lambda: records.Reader(self._bootstrap, clock.monotonic, schemas, **security),
            schemas,
            make_producer=lambda: Producer(
                self._bootstrap,
                request_timeout_ms=REQUEST_MS,
                delivery_timeout_ms=DELIVERY_MS,
                max_block_ms=REQUEST_MS,
                client_id=records.CLIENT_ID,
                **security,
            ),
            is_secured=user is not None,
        )
        return Session(user, admin, pages)

    def close(self) -> None:
        """Close all clients. Blocking."""
        if self._sampler is not None:
            self._sampler.close()
        with self._lock:
            sessions = list(self._open.values())
            self._open.clear()
        _close(sessions)


def _from_registry(admin: Admin, schema_id: int) -> Mapping[str, Any] | None:
    """Return what the schema registry has for an ID, with the rights of the user. A look at records
    creates no registry.
    """
    try:
        if not admin.find_topics([SCHEMAS_TOPIC]):
            return None
        found: Mapping[str, Any] = admin.call_schema_registry("GET", f"/schemas/ids/{schema_id}")
    except RaftlogError:
        return None
    return found


def _close(sessions: list[Session]) -> None:
    for session in sessions:
        session.admin.close()


def _is_same(one: HttpUser | None, other: HttpUser | None) -> bool:
    """Return whether both have the same credentials. The client address is ignored."""
    if one is None or other is None:
        return one is other
    # guard: a user of the console has the client of its password
    return (one.mechanism, one.password) == (other.mechanism, other.password)


class _GivenToken:
    """Token that the user has sent. A later request of the user can replace it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def _as_user(security: SecurityArguments, user: HttpUser) -> SecurityArguments:
    secured: SecurityArguments = {
        **security,
        "security_protocol": f"SASL_{security['security_protocol']}",
        "sasl_mechanism": user.mechanism,
    }
    if user.mechanism == OAUTHBEARER:
        return {**secured, "sasl_oauth_token_provider": _GivenToken(user.password)}
    return {
        **secured,
        "sasl_username": user.display_name,
        "sasl_password": user.password,
    }


def connection_of(bootstrap: str, config: BrokerConfig) -> tuple[str, SecurityArguments]:
    """Return the address and the TLS arguments with which a broker connects to itself.

    With TLS, this is the advertised address, which its certificate contains. The client presents
    the certificate of the broker, as brokers do to each other.
    """
    if not config.tls_certificate_file:
        return bootstrap, {"security_protocol": "PLAINTEXT"}
    return str(config.advertised_listen or bootstrap), {
        "security_protocol": "SSL",
        "ssl_cafile": config.tls_ca_file or config.tls_certificate_file,
        "ssl_certfile": config.tls_certificate_file,
        "ssl_keyfile": config.tls_key_file,
    }


# -- access ----------------------------------------------------------------------------------------
#
# Pages of access rules and users. Brokers decide what the signed-in user may see and change.


PATTERNS: Final[tuple[PatternType, ...]] = ("LITERAL", "PREFIXED")
PERMISSIONS: Final[tuple[Permission, ...]] = ("ALLOW", "DENY")
FIELDS: Final = tuple(AclFilter.__struct_fields__)
CHOICES: Final = {
    "operations": OPERATIONS,
    "resource_types": RESOURCE_TYPES,
    "patterns": PATTERNS,
    "permissions": PERMISSIONS,
}

T = TypeVar("T", bound=str)


def principal_of(text: str) -> str:
    """Return the principal of a user name; a text with a kind is kept."""
    text = text.strip()
    return text if not text or text.startswith(f"{USER}:") else f"{USER}:{text}"


def _optional(values: Mapping[str, str], name: str, choices: tuple[T, ...]) -> T | None:
    return choice(values, name, choices) if values.get(name) else None


# -- rules -----------------------------------------------------------------------------------------


def rules(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the rules that the form selects: rules that apply to the resource, if it is named."""
    name = parameters.get("resource_name", "").strip()
    selection = AclFilter(
        principal=principal_of(parameters.get("principal", "")) or None,
        operation=_optional(parameters, "operation", OPERATIONS),
        resource_type=_optional(parameters, "resource_type", RESOURCE_TYPES),
        resource_name=name or None,
        pattern_type="MATCH" if name else None,
        permission=_optional(parameters, "permission", PERMISSIONS),
        host=parameters.get("host", "").strip() or None,
    )
    found = pages.admin.describe_acls(selection)
    return {
        "page": page_of(found, ROWS, "/access", parameters),
        "fields": {each: parameters.get(each, "") for each in FIELDS},
        "is_filtered": selection != AclFilter(),
        **CHOICES,
    }


def new_rule(_pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    return {"principal": principal_of(parameters.get("principal", "")), **CHOICES}


def _rule_of(form: Mapping[str, str]) -> Acl:
    """Return the rule of a form. Raises ``InvalidRequestError``."""
    resource_type = choice(form, "resource_type", RESOURCE_TYPES)
    is_cluster = resource_type == "CLUSTER"
    return Acl(
        principal=principal_of(form.get("principal", "")),
        operation=choice(form, "operation", OPERATIONS),
        resource_type=resource_type,
        resource_name=CLUSTER_NAME if is_cluster else form.get("resource_name", "").strip(),
        pattern_type="LITERAL" if is_cluster else choice(form, "pattern_type", PATTERNS),
        permission=choice(form, "permission", PERMISSIONS),
        host=form.get("host", "").strip() or ANY,
    ).checked()


def create_rule(pages: Pages, form: Mapping[str, str]) -> str:
    """Create a rule. Returns the URL of the rules of its principal."""
    rule = _rule_of(form)
    pages.admin.create_acls([rule])
    return "/access?" + urlencode({"principal": rule.principal})


def delete_rule(pages: Pages, form: Mapping[str, str]) -> str:
    """Delete one rule, whose fields the form has. Returns the URL of the rules."""
    rule = _rule_of(form)
    # guard: the console deletes the one rule that its form names
    if not pages.admin.delete_acls([AclFilter(**asdict(rule))]):
        raise InvalidRequestError(f"the rule {rule} does not exist: it was deleted before")
    return "/access"


def check_access(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the decision for a user and an operation; None without a user."""
    principal = principal_of(parameters.get("principal", ""))
    operation: Operation = choice(parameters, "operation", OPERATIONS[1:])
    resource_type: ResourceType = choice(parameters, "resource_type", RESOURCE_TYPES)
    name = parameters.get("resource_name", "").strip()
    if resource_type == "CLUSTER":
        name = CLUSTER_NAME
    host = parameters.get("host", "").strip()
    decision = None
    if principal and name:
        decision = pages.admin.check_acl(
            principal, operation, resource_type, name, host=host or UNKNOWN_HOST
        )
    return {
        "decision": decision,
        "principal": principal,
        "operation": operation,
        "resource_type": resource_type,
        "resource_name": name,
        "host": host,
        **CHOICES,
        "operations": OPERATIONS[1:],  # no client requests ALL
    }


# -- users -----------------------------------------------------------------------------------------


def users(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the users and their quotas. Nothing of a password is requested.

    ``problem``: why a cluster without authentication does not list users.
    """
    wanted, problem = parameters.get("q", "").lower(), ""
    try:
        listed = pages.admin.list_users()
    except RefusedError as error:
        if pages.is_secured:
            raise
        listed, problem = [], str(error)
    found = [user for user in listed if wanted in user.name.lower()]
    return {
        "page": page_of(found, ROWS, "/access/users", parameters),
        "quotas": _quotas(pages),
        "default": DEFAULT,
        "q": parameters.get("q", ""),
        "total": len(listed),
        "problem": problem,
    }


def _quotas(pages: Pages) -> dict[str, str]:
    """Return the quotas of users as texts; nothing if the signed-in user must not see quotas."""
    try:
        found = pages.admin.describe_quotas()
    except RaftlogError:
        return {}
    return {
        entity.user: ", ".join(
            f"{option} {shown_limit(quota[key])}"
            for option, (key, _) in LIMITS.items()
            if key in quota
        )
        for entity, quota in found.items()
        if entity.user is not None and entity == QuotaEntity(entity.user)
    }


def _password_of(form: Mapping[str, str]) -> str:
    password = form.get("password", "")
    if password != form.get("repeated", ""):
        raise InvalidRequestError("the two passwords are not equal. Go back, and enter them again")
    return password


def create_user(pages: Pages, form: Mapping[str, str]) -> str:
    pages.admin.create_user(form.get("user", "").strip(), _password_of(form))
    return "/access/users"


def rotate_user(pages: Pages, form: Mapping[str, str]) -> str:
    pages.admin.rotate_user(form.get("user", ""), _password_of(form))
    return "/access/users"


def delete_user(pages: Pages, form: Mapping[str, str]) -> str:
    """Delete a user. Its rules remain, as with ``raftlog user delete``."""
    pages.admin.delete_user(form.get("user", ""))
    return "/access/users"
