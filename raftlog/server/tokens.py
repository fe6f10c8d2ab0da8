"""Tokens of an identity provider: exchanges, and its public keys, which a thread loads."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from raftlog import limits
from raftlog.config import BrokerConfig
from raftlog.errors import InvalidConfigError
from raftlog.install import install_command

if TYPE_CHECKING:
    from raftlog.server.oauth import TokenExchange

logger = logging.getLogger(__name__)


class BrokerTokens:
    """Begins exchanges. Loads the keys periodically, and when a token has an unknown key: then at
    most once in ``JWKS_RETRY_S``.
    """

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        """Loads a file at once, and raises ``InvalidConfigError`` if that is not possible."""
        try:
            from raftlog.server import oauth
        except ImportError as error:
            raise InvalidConfigError(
                "sasl.oauthbearer.jwks.endpoint.url requires the package `joserfc`. Run "
                f"{install_command('security')} ({error})"
            ) from error

        self._exchange = oauth.TokenExchange
        self._settings = oauth.TokenSettings(
            issuer=config.sasl_oauthbearer_expected_issuer,
            audience=config.sasl_oauthbearer_expected_audience,
            claim=config.sasl_oauthbearer_sub_claim_name,
            clock_skew_seconds=config.sasl_oauthbearer_clock_skew_seconds,
        )
        self._url = url = config.sasl_oauthbearer_jwks_endpoint_url
        self._keys = keys = oauth.Keys()
        self._refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1_000
        self._loop = loop
        self._wanted = asyncio.Event()
        self._loaded_at = loop.time()
        keys.may_load = self._may_load
        if url.startswith("file:"):
            try:
                keys.set(read(url))
            except (OSError, ValueError) as error:
                raise InvalidConfigError(
                    f"sasl.oauthbearer.jwks.endpoint.url={url} cannot be used: {error}"
                ) from error

    @classmethod
    def of(cls, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> Self | None:
        """Return the tokens of a broker; None if it accepts none."""
        return cls(config, loop) if config.sasl_oauthbearer_jwks_endpoint_url else None

    def exchange(self, wall_seconds: float) -> TokenExchange:
        """Begin an exchange at this time since 1970."""
        return self._exchange(self._settings, self._keys, wall_seconds)

    def _may_load(self) -> bool:
        """Called in a thread: have the keys loaded, unless they were a moment ago."""
        if self._loop.time() - self._loaded_at < limits.JWKS_RETRY_S:
            return False
        self._loop.call_soon_threadsafe(self._wanted.set)
        return True

    async def watch(self) -> None:
        """Load the keys from time to time. The loaded ones stay in use while that fails."""
        while True:
            if self._keys.current is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self._refresh_s)
            self._wanted.clear()
            await self.load()
            if self._keys.current is None:
                await asyncio.sleep(limits.JWKS_RETRY_S)

    async def load(self) -> None:
        """Load the keys now."""
        try:
            self._keys.set(await asyncio.to_thread(read, self._url))
        except (OSError, ValueError) as error:
            logger.warning("keys of the identity provider not loaded: error=%s", error)
        self._loaded_at = self._loop.time()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another server must not replace the keys."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def read(url: str) -> Any:
    """Return the JSON of an https or file URL. Blocking. Raises ``OSError`` or ``ValueError``."""
    if url.startswith("file:"):
        with open(url2pathname(urlsplit(url).path), "rb") as file:
            data = file.read(limits.JWKS_BYTES_MAX + 1)
    else:
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(url, timeout=limits.JWKS_TIMEOUT_S) as response:
            data = response.read(limits.JWKS_BYTES_MAX + 1)
    if len(data) > limits.JWKS_BYTES_MAX:
        raise ValueError(f"it is longer than {limits.JWKS_BYTES_MAX} bytes (JWKS_BYTES_MAX)")
    return json.loads(data)
