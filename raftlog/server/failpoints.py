"""Failpoints where frames leave the broker: responses on its connections, requests to its peers.

Used only if ``RAFTLOG_FAILPOINTS`` is set: then ``main`` passes ``surroundings`` on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, cast

from raftlog.config import Address
from raftlog.errors import RaftlogError
from raftlog.protocol.api import APIS
from raftlog.protocol.connection import FRAME, Request
from raftlog.protocol.schema import Message
from raftlog.server.broker import Surroundings
from raftlog.server.connection import Connection, ConnectionServices
from raftlog.server.peers import PeerConnector
from raftlog.types import Buffer

Hit = Callable[[str], None]

_FAILED: Final = "failed by a failpoint"


def surroundings(hit: Hit) -> Surroundings:
    """Return the real environment, with ``hit`` called wherever a frame leaves."""
    return Surroundings(
        around_connector=partial(FailpointConnector, hit=hit),
        make_connection=partial(FailpointConnection, hit=hit),
    )


class FailpointConnection(Connection):
    """A connection whose responses are failpoints. A failure closes it."""

    def __init__(self, services: ConnectionServices, *, hit: Hit) -> None:
        super().__init__(services)
        self._hit = hit

    def respond(
        self, request: Request, message: Message, attachment: Sequence[Buffer] = ()
    ) -> None:
        if self._may_send(request):
            super().respond(request, message, attachment)
            self._note_sent(request)

    def refuse(self, request: Request, error: RaftlogError) -> None:
        if self._may_send(request):
            super().refuse(request, error)
            self._note_sent(request)

    def _may_send(self, request: Request) -> bool:
        try:
            self._hit(f"reply.{request.api.name}.before")
        except OSError:
            self.abort(_FAILED)
            return False
        return True

    def _note_sent(self, request: Request) -> None:
        self._flush()
        # The loop passes written bytes to the operating system at the end of this turn, at the
        # latest.
        self.services.loop.call_soon(self._sent, f"reply.{request.api.name}.after")

    def _sent(self, site: str) -> None:
        try:
            self._hit(site)
        except OSError:
            self.abort(_FAILED)


class FailpointConnector:
    """Opens connections to peers on which each request is a failpoint."""

    def __init__(self, connector: PeerConnector, hit: Hit) -> None:
        self._connector = connector
        self._hit = hit

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        return await self._connector.connect(
            address, lambda: _Between(protocol_factory(), self._hit)
        )


class _Between(asyncio.BufferedProtocol):
    """Replaces the transport of a channel; forwards everything else."""

    def __init__(self, channel: asyncio.BufferedProtocol, hit: Hit) -> None:
        self._hit = hit
        self._channel = channel
        self.get_buffer = channel.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = channel.buffer_updated  # type: ignore[method-assign]
        self.eof_received = channel.eof_received  # type: ignore[method-assign]
        self.connection_lost = channel.connection_lost  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wrapped = _RequestTransport(cast(asyncio.Transport, transport), self._hit)
        self._channel.connection_made(wrapped)


class _RequestTransport(asyncio.Transport):
    """The part of a transport that a ``PeerChannel`` uses. It writes one complete request at a
    time.
    """

    def __init__(self, transport: asyncio.Transport, hit: Hit) -> None:
        super().__init__()
        self._transport = transport
        self._hit = hit
        self._loop = asyncio.get_running_loop()

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        buffers = list(list_of_data)
        api = APIS[FRAME.unpack_from(buffers[0])[2]].name
        if self._goes_on(f"peer.{api}.before"):
            self._transport.writelines(buffers)
            self._loop.call_soon(self._goes_on, f"peer.{api}.after")

    def _goes_on(self, site: str) -> bool:
        try:
            self._hit(site)
        except OSError:
            self._transport.abort()
            return False
        return True

    def abort(self) -> None:
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
