"""Authentication of HTTP requests over TLS: Basic (RFC 7617) with the users of the cluster, and
Bearer (RFC 6750) with tokens of an identity provider.

Starlette's middleware calls ``HttpAuthentication`` for each request. What health checks need is
open to all.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass, field
from typing import Final

from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    BaseUser,
)
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response

from raftlog import errors, limits
from raftlog.security.acl import Operation, ResourceType
from raftlog.security.principal import USER, Principal
from raftlog.server.access.control import AccessControl, Caller
from raftlog.server.authentication import OAUTHBEARER
from raftlog.server.context import BrokerContext

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
    """Verifies the user of each request, except of ``open_paths``."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        public = (METRICS,) if context.config.http_metrics_public else ()
        self._open_paths = HEALTH.union(public)

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the user, or None for a path that is open. Raises ``RejectedError``."""
        path = conn.url.path
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
        if conn.url.scheme != "https":
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
            await asyncio.sleep(limits.AUTHENTICATION_DELAY_S)
            raise
        return HttpUser(Principal(USER, used.user), host, used.mechanism, password, access)

    def _check_metrics(self, user: HttpUser) -> None:
        """Raise ``AccessDeniedError`` unless the user may describe the cluster."""
        caller = Caller(self._context.access, user)
        try:
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
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, password) if colon else None
