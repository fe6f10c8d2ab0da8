"""Clients of the cluster, one per user of the console, so that access rules apply as usual."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from raftlog import Admin, Producer, limits
from raftlog.client.settings import SecurityArguments
from raftlog.clock import Clock
from raftlog.config import BrokerConfig
from raftlog.server.authentication import OAUTHBEARER
from raftlog.server.http.authentication import HttpUser
from raftlog_cli.console import records
from raftlog_cli.console.avro import Schemas
from raftlog_cli.console.cluster_view import ClusterView
from raftlog_cli.console.history import History, Sampler
from raftlog_cli.console.pages import Pages

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
        self._schemas = Schemas(config.http_console_avro_schemas)
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
        view = ClusterView(admin, clock.monotonic)
        pages = Pages(
            admin,
            view,
            self._history,
            lambda: records.Reader(self._bootstrap, clock.monotonic, self._schemas, **security),
            self._schemas,
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


def _close(sessions: list[Session]) -> None:
    for session in sessions:
        session.admin.close()


def _is_same(one: HttpUser | None, other: HttpUser | None) -> bool:
    """Return whether both have the same credentials. The client address is ignored."""
    if one is None or other is None:
        return one is other
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
