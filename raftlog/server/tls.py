"""TLS of a broker: certificates that are reloaded without a restart, and bounded handshakes."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self

from raftlog import limits, tls
from raftlog.config import BrokerConfig
from raftlog.errors import AccessDeniedError, InvalidConfigError

logger = logging.getLogger(__name__)

FAILURES_LOG_SECONDS: Final = 10.0  # at most one log line about failed handshakes in this time


class Run(Protocol):
    """Runs a blocking function in a thread."""

    def __call__(self, work: Callable[[], Contexts | None], /) -> Awaitable[Contexts | None]: ...


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contents of one version of the certificate files."""

    server: ssl.SSLContext
    http: ssl.SSLContext  # as `server`, without certificates of clients
    peer: ssl.SSLContext | None  # for connections to other brokers
    stamp: tuple[tuple[int, int, int], ...]  # identifies the version


class BrokerTls:
    """TLS contexts of a broker. New connections use the latest certificates.

    Raises ``InvalidConfigError`` if a file cannot be used.
    """

    def __init__(self, config: BrokerConfig, now: Callable[[], float]) -> None:
        self._config = config
        self.contexts = _read(config)
        self._rejected: tuple[tuple[int, int, int], ...] | None = None  # invalid files
        self.listener = ListenerContext(lambda: self.contexts.server, now)
        self.http = ListenerContext(lambda: self.contexts.http, now)

    @property
    def peer(self) -> ssl.SSLContext:
        """Return the context for connections to other brokers."""
        assert self.contexts.peer is not None, "checked by BrokerConfig: voters require it"
        return self.contexts.peer

    async def watch(self, run: Run) -> None:
        """Reload the files when they change: check every ``limits.TLS_RELOAD_S``."""
        while True:
            await asyncio.sleep(limits.TLS_RELOAD_S)
            await self.reload(run)

    async def reload(self, run: Run) -> None:
        """Reload the files if they have changed. Invalid files are logged and not used."""
        try:
            found = await run(self._changed)
        except InvalidConfigError as error:
            logger.warning("certificates not reloaded: error=%s", error)
            return
        if found is not None:
            self.contexts = found
            logger.info("certificates reloaded: file=%s", self._config.tls_certificate_file)

    def _changed(self) -> Contexts | None:
        """Read the files if they have changed since they were last read. Blocking."""
        stamp = _stamp(self._config)
        if stamp in (self.contexts.stamp, self._rejected):
            return None
        try:
            return _read(self._config)
        except InvalidConfigError:
            self._rejected = stamp
            raise


def tls_options(listener: ssl.SSLContext | None) -> dict[str, Any]:
    """Return the arguments of ``create_server`` for TLS; none without a context."""
    if listener is None:
        return {}
    return {
        "ssl": listener,
        "ssl_handshake_timeout": limits.TLS_HANDSHAKE_S,
        "ssl_shutdown_timeout": limits.TLS_SHUTDOWN_S,
    }


def _read(config: BrokerConfig) -> Contexts:
    stamp = _stamp(config)  # before the contents: a change in between is detected later
    make_server = partial(
        tls.server_context,
        certificate=config.tls_certificate_file,
        key=config.tls_key_file,
        min_version=config.tls_min_version,
        ciphers=config.tls_ciphers,
    )
    make_peer = partial(
        tls.client_context,
        ca=config.tls_ca_file,
        certificate=config.tls_certificate_file,
        key=config.tls_key_file,
        ciphers=config.tls_ciphers,
    )
    client_ca, is_optional = config.tls_client_ca_file, False
    if config.tls_broker_id_required and not client_ca:
        client_ca, is_optional = config.tls_ca_file, True  # brokers only have a certificate
    server = make_server(client_ca=client_ca, is_optional=is_optional)
    if config.tls_broker_id_required:
        _check_own(config, server, make_peer(check_hostname=False))
    peer = make_peer() if config.tls_ca_file else None
    return Contexts(server, make_server(), peer, stamp)


def _check_own(config: BrokerConfig, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Check that other brokers accept this one's certificate. Raises ``InvalidConfigError``."""
    try:
        tls.check_broker_id(tls.own_certificate(server, client), config.id)
    except ssl.SSLError as error:
        raise InvalidConfigError(
            f"other brokers would reject the certificate {config.tls_certificate_file}: "
            f"{getattr(error, 'verify_message', None) or tls.reason_of(error)}. Create one for "
            "servers and clients, with the CA in tls.ca.file (and tls.client.ca.file): run raftlog "
            f"security init --brokers {config.id}"
        ) from error
    except AccessDeniedError as error:
        raise InvalidConfigError(f"{config.tls_certificate_file}: {error}") from error


def _stamp(config: BrokerConfig) -> tuple[tuple[int, int, int], ...]:
    """Return values that change when one of the files is replaced or written."""
    found = []
    for path in (
        config.tls_certificate_file,
        config.tls_key_file,
        config.tls_ca_file,
        config.tls_client_ca_file,
    ):
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_ino, status.st_mode))
    return tuple(found)


class ListenerContext(ssl.SSLContext):
    """The context of a listening socket: it creates each connection with the current context.

    Invariant: at most ``limits.TLS_HANDSHAKES_MAX`` handshakes are unfinished. A handshake ends
    when it succeeds or fails, when its connection ends, or after ``limits.TLS_HANDSHAKE_S``.
    """

    _current: Callable[[], ssl.SSLContext]
    _now: Callable[[], float]
    _began: dict[int, float]
    _begun: int
    _failures: int
    _logged_at: float

    def __new__(cls, current: Callable[[], ssl.SSLContext], now: Callable[[], float]) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._current = current
        made._now = now
        made._began = {}  # unfinished handshakes, oldest first, with the time
        made._begun = 0
        made._failures = 0
        made._logged_at = now() - FAILURES_LOG_SECONDS
        return made

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Return the TLS state of a new connection. Called by the event loop.

        Raises ``ssl.SSLError`` if too many handshakes are unfinished.
        """
        now, began = self._now(), self._began
        while began and next(iter(began.values())) <= now - limits.TLS_HANDSHAKE_S:
            del began[next(iter(began))]
        # guard: the number of unfinished TLS handshakes is limited
        if len(began) >= limits.TLS_HANDSHAKES_MAX:
            error = ssl.SSLError(f"{len(began)} TLS handshakes are unfinished (TLS_HANDSHAKES_MAX)")
            self._failed(error)
            raise error
        context = self._current()
        context.sslobject_class = _Handshake
        made = context.wrap_bio(*args, **kwargs)
        assert isinstance(made, _Handshake)
        self._begun = number = self._begun + 1
        began[number] = now
        made.ended = lambda error: self._ended(number, error)
        return made

    @property
    def unfinished(self) -> int:
        """Return the number of unfinished handshakes."""
        return len(self._began)

    def _ended(self, number: int, error: ssl.SSLError | None) -> None:
        self._began.pop(number, None)
        if error is not None:
            self._failed(error)

    def _failed(self, error: ssl.SSLError) -> None:
        self._failures += 1
        now = self._now()
        if now - self._logged_at >= FAILURES_LOG_SECONDS:
            self._logged_at = now
            logger.info(
                "TLS handshakes failed: count=%d last_error=%s",
                self._failures,
                tls.reason_of(error),
            )
            self._failures = 0


class _Handshake(ssl.SSLObject):
    """The TLS state of one connection. Reports the end of its handshake once."""

    ended: Callable[[ssl.SSLError | None], None] | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._end(error)
            raise
        self._end(None)

    def __del__(self) -> None:
        self._end(None)  # the connection ended first

    def _end(self, error: ssl.SSLError | None) -> None:
        ended, self.ended = self.ended, None
        if ended is not None:
            ended(error)
