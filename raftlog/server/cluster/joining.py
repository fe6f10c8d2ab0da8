"""The first contact of a broker with its cluster: the brokers at the addresses that it was given.

A broker that joins, or returns, may know addresses only. This module asks the broker at each of
them for its ID, with the handshake of ``protocol.peer_auth``, until the cluster state is known:
from then on, that has all addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.config import Address
from raftlog.errors import RaftlogError
from raftlog.server.peers.links import PeerLinks

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5


class Joining:
    """Call ``start`` once. ``found``: the addresses of brokers by ID, as far as they responded."""

    def __init__(
        self,
        addresses: Sequence[Address],
        links: PeerLinks,
        *,
        loop: asyncio.AbstractEventLoop,
        is_known: Callable[[], bool],
        on_found: Callable[[], None],
        on_waiting: Callable[[str], None],
    ) -> None:
        """``is_known``: whether the cluster state is known. ``on_waiting``: called with the reason
        why no broker was found yet, for the operator.
        """
        self.found: dict[int, Address] = {}
        self._addresses = addresses
        self._links = links
        self._loop = loop
        self._is_known = is_known
        self._on_found = on_found
        self._on_waiting = on_waiting
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._addresses:
            self._task = self._loop.create_task(self._search())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _search(self) -> None:
        reported = ""
        while not self._is_known():
            problems = []
            for address in self._addresses:
                try:
                    identity = await self._links.identify(address)
                except (OSError, TimeoutError, RaftlogError) as error:
                    problems.append(f"{address}: {str(error) or 'no response'}")
                    continue
                if self.found.get(identity.broker_id) != address:
                    self.found[identity.broker_id] = address
                    self._on_found()
            text = "; ".join(problems) if not self.found else ""
            if text and text != reported:
                logger.warning("no broker of the cluster found: reason=%s", text)
                self._on_waiting(f"no broker of the cluster was found: {text}")
            reported = text
            await asyncio.sleep(RETRY_SECONDS)
