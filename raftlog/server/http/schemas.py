"""The schema registry on the HTTP port, at the paths of Confluent's Schema Registry.

``raftlog.registry.rest`` has the paths and answers; here, HTTP requests become its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from raftlog import limits
from raftlog.config.address import Address
from raftlog.errors import (
    AccessDeniedError,
    AuthenticationError,
    RaftlogError,
    SchemaError,
)
from raftlog.registry import rest
from raftlog.registry.rest import Call
from raftlog.server.access.control import Caller, Client
from raftlog.server.context import BrokerContext
from raftlog.types import SCHEMAS_TOPIC

METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE"]


def schema_routes(context: BrokerContext, listen: Address) -> Sequence[BaseRoute]:
    """Return the routes of the registry. ``listen``: the address that they are served at.

    With authentication, ``rest.required`` says what a call requires. Without, everyone who reaches
    the address can read; and write, if only this machine reaches it or insecure.allowed is set.
    """
    config = context.config
    is_open = config.insecure_allowed or listen.is_loopback
    may_all_write = not context.access.is_enforced and is_open

    async def respond(request: Request) -> Response:
        try:
            call = await _call_of(request)
            _check_access(context, request, call, may_all_write=may_all_write)
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


def _check_access(
    context: BrokerContext, request: Request, call: Call, *, may_all_write: bool
) -> None:
    """Raise ``AccessDeniedError`` if the user may not make the call, or if the page of another site
    makes it with the user's browser.
    """
    origin = request.headers.get("origin")
    # guard: pages of other sites cannot call the schema registry
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise AccessDeniedError("pages of other sites may not use the schema registry")
    if not context.access.is_enforced:
        if rest.is_write(call) and not may_all_write:
            raise AccessDeniedError(
                "this address is read-only: other machines reach it without authentication. Use "
                "`raftlog schema put`, or set authentication.required or schema.registry.listen"
            )
        return
    client: Client | None = request.user if "user" in request.scope else None
    if client is None:
        raise AuthenticationError("this broker requires authentication")
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
