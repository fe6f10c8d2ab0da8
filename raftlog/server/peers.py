"""Links from this broker to all others: one outgoing connection per peer, for all Raft groups.

This broker sends to a peer over the connection that it opened, and receives over the one that the
peer opened. So each side knows by its own pings whether the other receives its messages.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from raftlog import __version__, limits, tls
from raftlog.config import Address
from raftlog.errors import (
    AccessDeniedError,
    BrokerIdInUseError,
    BrokerRemovedError,
    BrokerUnavailableError,
    ConnectionLostError,
    DeclaredLostError,
    HistoryConflictError,
    RaftlogError,
    RefusedError,
    RequestTimedOutError,
    StaleBrokerError,
    UnsupportedApiError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.connection import Broken, ClientConnectionState
from raftlog.protocol.peer import (
    PeerHelloResponse,
    PeerIdentity,
    PeerPingRequest,
    PeerPingResponse,
    PeerProveRequest,
    RaftRequest,
    accepts_envelope,
)
from raftlog.protocol.schema import Message
from raftlog.protocol.security import (
    Answering,
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Dialling,
    check_boot,
    check_cluster,
    check_journal,
    check_version,
)
from raftlog.tls import check_broker_id
from raftlog.types import Buffer, TimestampMs

# -- channel ---------------------------------------------------------------------------------------
#
# One connection from this broker to another: requests and responses, matched by correlation id.
#
# The asyncio side of ``raftlog.protocol.connection``: it moves bytes and resolves futures. ``link``
# authenticates the peer, and reconnects. It works over any ``asyncio.Transport``; a
# ``PeerConnector`` opens it, so that a simulated network can.


# Bytes written to a peer that the operating system has not accepted yet. Messages above this limit
# are dropped: Raft sends again what matters, and a message that is queued for long is stale.
PEER_QUEUE_BYTES_MAX: Final = 8 * limits.MIB


class PeerConnector(Protocol):
    """Opens connections to other brokers: sockets, or a simulated network."""

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        """Return a transport whose protocol has received ``connection_made``. Raises
        ``OSError``.
        """
        ...


class PeerTls(Protocol):
    """TLS for connections to other brokers."""

    @property
    def peer(self) -> ssl.SSLContext:
        """Return the context of a new connection."""
        ...


class SocketPeerConnector:
    """The ``PeerConnector`` for TCP; with ``tls``, for TLS over TCP."""

    def __init__(self, tls: PeerTls | None = None) -> None:
        self._tls = tls

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.peer
        try:
            transport, _ = await loop.create_connection(
                protocol_factory, address.host, address.port, ssl=context
            )
        except ssl.SSLError as error:
            raise BrokerUnavailableError(tls.explain(error, ca_setting="tls.ca.file")) from error
        tcp_socket = transport.get_extra_info("socket")
        if tcp_socket is not None and tcp_socket.family in (socket.AF_INET, socket.AF_INET6):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return transport


class Answer(NamedTuple):
    """Response of a broker to one request. The attachment owns its memory."""

    message: Message
    attachment: memoryview


class PeerChannel(asyncio.BufferedProtocol):
    """Connection to a peer. Invariant: ``on_lost`` is called once, with the reason, and nothing is
    sent after it.

    ``scratch``: receive buffer; all channels of one loop may share it. ``queue_bytes_max``: if more
    bytes than this are queued for the peer, ``send`` drops messages.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[RaftlogError], None],
        *,
        scratch: memoryview,
        queue_bytes_max: int = PEER_QUEUE_BYTES_MAX,
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._queue_bytes_max = queue_bytes_max
        self._state = ClientConnectionState(scratch=scratch)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self.ended: RaftlogError | None = None  # reason of the end
        self.last_heard_seconds = loop.time()  # time of the last received bytes

    # -- requests ----------------------------------------------------------------------------------

    def agree(self, apis: Sequence[ApiVersionRange]) -> None:
        """Apply the API versions of the peer (its response to ``api_versions``)."""
        self._state.agree(apis)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Return the verified certificate of the peer; None without TLS."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    @property
    def queued_bytes(self) -> int:
        """Bytes written that the operating system has not accepted yet."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def send(self, api: Api, message: Message, attachment: Sequence[Buffer] = ()) -> bool:
        """Send a message without a response. Returns False if it was dropped: queue full, or no
        connection.
        """
        assert api.one_way
        if self.ended is not None or self.queued_bytes > self._queue_bytes_max:
            return False
        self._write(self._state.send(api, message, attachment)[1])
        return True

    def request(
        self, api: Api, message: Message, attachment: Sequence[Buffer] = ()
    ) -> asyncio.Future[Answer]:
        """Send a request and return the future of its response. The future fails with the peer's
        error, or ``ConnectionLostError``.

        Raises, if nothing was sent: ``BrokerUnavailableError`` (no connection, or too many queued
        bytes), ``UnsupportedVersionError``, ``InvalidRequestError``.
        """
        assert not api.one_way
        if self.ended is not None:
            raise BrokerUnavailableError(f"no connection to the peer: {self.ended}")
        if self.queued_bytes > self._queue_bytes_max:
            raise BrokerUnavailableError(
                f"the peer does not read: {self.queued_bytes} bytes are queued for it"
            )
        correlation_id, buffers = self._state.send(api, message, attachment)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[correlation_id] = future
        self._write(buffers)
        return future

    def _write(self, buffers: list[Buffer]) -> None:
        transport = self._transport
        assert transport is not None
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)

    # -- the end -----------------------------------------------------------------------------------

    def abort(self, error: RaftlogError) -> None:
        """Close at once. Pending requests fail with ``error``. Idempotent."""
        transport = self._transport
        if transport is not None:
            transport.abort()
        self._end(error)

    def _end(self, error: RaftlogError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        self._state.end_of_stream()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                # Marks the exception as retrieved: no caller may wait for it, as for a ping.
                future.exception()
        self._on_lost(error)

    # -- asyncio's calls ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.last_heard_seconds = self._loop.time()
        if self.ended is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard_seconds = self._loop.time()
        for event in self._state.received(nbytes):
            if isinstance(event, Broken):
                self.abort(event.error)
                return
            future = self._waiting.pop(event.correlation_id, None)
            if future is None or future.done():
                continue  # no caller waits any longer
            if isinstance(event.message, RaftlogError):
                future.set_exception(event.message)
                future.exception()
            else:
                future.set_result(Answer(event.message, event.attachment))

    def eof_received(self) -> bool:
        return False  # close this side too

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(ConnectionLostError(f"the connection was lost{f' ({exc})' if exc else ''}"))


# -- links -----------------------------------------------------------------------------------------


_RAFT: Final = RaftRequest()


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Status of one link, for operators."""

    broker_id: int
    address: Address
    identity: PeerIdentity | None  # None while it is down
    problem: str  # reason why it is down; "" while it is up, or connecting for the first time
    refusal: RaftlogError | None  # the problem, if it needs an operator
    queued_bytes: int
    envelopes_dropped: int


class PeerLinks:
    """Created by the broker once it knows its identity; runs on its event loop.

    ``me``: identity of this broker for each handshake; its cluster id may be set later. ``nonce``:
    returns 32 random bytes, different at each call. ``chance``: returns a number from 0 (inclusive)
    to 1 (exclusive). ``heartbeat_interval_ms``: time between two pings, more than 0.
    ``session_timeout_ms``: a peer without a message for this time is down; more than the heartbeat
    interval.

    ``on_up``, ``on_down``: called alternately for each peer. ``on_up`` gets its identity,
    ``on_down`` its id and the reason (``RequestTimedOutError``: no message arrived; otherwise the
    connection was closed). ``on_refused``: called with a peer's id
    and, whenever it changes, the reason why one of the two brokers refuses the other
    (``AccessDeniedError``, ``WrongClusterError``, ``BrokerIdInUseError``, ``StaleBrokerError``,
    ``UnsupportedVersionError``). The link continues to connect. ``StaleBrokerError`` is always
    about this broker.

    ``broker_epoch``: registration of this broker, sent with each ping; -1 for none. ``on_clock``:
    called with a peer's id, its wall-clock time in ms, and the round trip in seconds.
    ``on_stranger``: called when a peer without a link, or with a link to another address, has
    connected.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connector: PeerConnector,
        registry: PeerRegistry,
        *,
        secret: bytes,
        me: Callable[[], PeerIdentity],
        nonce: Callable[[], bytes],
        chance: Callable[[], float],
        heartbeat_interval_ms: int,
        session_timeout_ms: int,
        on_up: Callable[[PeerIdentity], None],
        on_down: Callable[[int, RaftlogError], None],
        on_refused: Callable[[int, RaftlogError], None],
        broker_epoch: Callable[[], int] = lambda: -1,
        on_clock: Callable[[int, TimestampMs, float], None] = lambda *_: None,
        on_stranger: Callable[[], None] = lambda: None,
        queue_bytes_max: int = PEER_QUEUE_BYTES_MAX,
    ) -> None:
        assert 0 < heartbeat_interval_ms < session_timeout_ms
        self._services = LinkServices(
            loop=loop,
            connector=connector,
            registry=registry,
            secret=secret,
            me=me,
            broker_epoch=broker_epoch,
            nonce=nonce,
            chance=chance,
            heartbeat_s=heartbeat_interval_ms / 1_000,
            session_timeout_s=session_timeout_ms / 1_000,
            queue_bytes_max=queue_bytes_max,
            scratch=memoryview(bytearray(limits.RECEIVE_BYTES)),
            on_up=on_up,
            on_down=on_down,
            on_refused=on_refused,
            on_clock=on_clock,
        )
        self._links: dict[int, PeerLink] = {}
        self._ending: set[asyncio.Task[None]] = set()  # connection tasks of removed links
        self._closed = False
        self._on_stranger = on_stranger
        self._registry = registry
        registry.on_incoming = self._came_in

    # -- which peers there are ---------------------------------------------------------------------

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """Set the peers and their addresses. This broker's own entry is ignored.

        A link whose peer has a new address is replaced.
        """
        if self._closed:
            return
        own = self._services.me().broker_id
        wanted = {peer: addresses[peer] for peer in sorted(addresses) if peer != own}
        for peer, link in list(self._links.items()):
            if wanted.get(peer) != link.address:
                self._remove(
                    peer, "its address changed" if peer in wanted else "the broker was removed"
                )
        for peer, address in wanted.items():
            if peer not in self._links:
                link = self._links[peer] = PeerLink(peer, address, self._services)
                link.start()

    async def identify(self, address: Address) -> PeerIdentity:
        """See ``link.identify``."""
        return await identify(self._services, address)

    async def close(self) -> None:
        """End all links. Queued messages are lost."""
        self._closed = True
        for peer in list(self._links):
            self._remove(peer, "the broker stops")
        while self._ending:
            await asyncio.wait(self._ending)

    def _remove(self, peer: int, reason: str) -> None:
        link = self._links.pop(peer)
        link.end(reason)
        task = link.task
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    # -- state -------------------------------------------------------------------------------------

    def is_up(self, broker_id: int) -> bool:
        """Whether the link to the peer is up."""
        link = self._links.get(broker_id)
        return link is not None and link.is_up

    def is_heard(self, broker_id: int) -> bool:
        """Whether a message of the peer arrived within the last half of the session timeout."""
        link = self._links.get(broker_id)
        return link is not None and link.silent_s < self._services.session_timeout_s / 2

    def identity(self, broker_id: int) -> PeerIdentity | None:
        """Return the identity of the connected peer; None while the link is down."""
        link = self._links.get(broker_id)
        return None if link is None else link.identity

    def identities(self) -> list[PeerIdentity]:
        """Return the peers whose links are up."""
        return [link.identity for link in self._links.values() if link.identity is not None]

    def drop_excluded(self) -> None:
        """End connections to peers that the state of the cluster excludes by now. The links
        reconnect, and the registry rejects those peers.
        """
        for link in self._links.values():
            # guard: connections to brokers of earlier releases end with the upgrade
            if link.identity is not None and (why := self._registry.exclusion(link.identity)):
                link.drop(why)

    def refusals(self) -> list[RaftlogError]:
        """Return why peers reject this broker, or this broker them, at their last handshakes."""
        return [link.refusal for link in self._links.values() if link.refusal is not None]

    def status(self) -> list[LinkStatus]:
        """Return the status of every link, by broker id."""
        return [_status(link) for _, link in sorted(self._links.items())]

    # -- sending -----------------------------------------------------------------------------------

    def send(self, broker_id: int, envelope: bytes) -> None:
        """Send one Raft envelope. Without a link, or with a full queue, it is dropped.

        Raft sends again what matters. Dropped envelopes are counted (``LinkStatus``).
        """
        link = self._links.get(broker_id)
        if link is None:
            return
        if (
            link.identity is None
            or not accepts_envelope(link.identity, len(envelope))
            or not link.channel.send(apis.RAFT, _RAFT, (envelope,))
        ):
            link.envelopes_dropped += 1

    def notify(
        self, broker_id: int, api: Api, message: Message, attachment: Sequence[Buffer] = ()
    ) -> bool:
        """Send a request of a one-way API. Returns False if it was dropped. Raises if the frame is
        invalid.
        """
        link = self._links.get(broker_id)
        return link is not None and link.is_up and link.channel.send(api, message, attachment)

    def request(
        self, broker_id: int, api: Api, message: Message, attachment: Sequence[Buffer] = ()
    ) -> asyncio.Future[Answer]:
        """Send a request and return the future of its response. Raises if nothing was sent.

        The future fails with the peer's error, or ``ConnectionLostError`` when the link goes down
        first. It has no time limit: cancel it, and a late response is ignored. More than
        ``limits.REQUESTS_IN_FLIGHT_MAX`` requests at a time would delay Raft's envelopes.

        Raises ``BrokerUnavailableError`` (no link, or the peer does not read) and
        ``UnsupportedVersionError``.
        """
        link = self._links.get(broker_id)
        if link is None:
            raise BrokerUnavailableError(f"this broker does not know broker {broker_id}")
        return link.channel.request(api, message, attachment)

    async def ask(self, broker_id: int, api: Api, message: Message, seconds: float) -> Message:
        """Return the response to a request, which a running broker gives within ``seconds``.

        Raises the peer's error, and ``BrokerUnavailableError`` if it does not respond.
        """
        try:
            async with asyncio.timeout(seconds):
                return (await self.request(broker_id, api, message)).message
        except TimeoutError:
            raise BrokerUnavailableError(
                f"broker {broker_id} is running and did not respond to {api.name} within "
                f"{seconds:g} s. Try again, or stop the broker if it must be removed"
            ) from None

    # -- accepted connections ----------------------------------------------------------------------

    def _came_in(self, peer: PeerIdentity) -> None:
        """A peer has connected to this broker: it runs, and its earlier incarnations have ended."""
        link = self._links.get(peer.broker_id)
        if link is None or link.address != Address(peer.host, peer.port):
            self._on_stranger()
        if link is None:
            return
        at = link.identity
        if at is not None and (at.directory_id, at.boot, at.run) != (
            peer.directory_id,
            peer.boot,
            peer.run,
        ):
            link.drop("the broker restarted")
        link.redial_now()


def _status(link: PeerLink) -> LinkStatus:
    return LinkStatus(
        broker_id=link.broker_id,
        address=link.address,
        identity=link.identity,
        problem=link.problem,
        refusal=link.refusal,
        queued_bytes=link.channel.queued_bytes if link.is_up else 0,
        envelopes_dropped=link.envelopes_dropped,
    )


# -- registry --------------------------------------------------------------------------------------
#
# Registry of the other brokers: identities proved on connections, and those they exclude.
#
# Links (outgoing) and handlers (incoming) share one ``PeerRegistry``, because each of them rejects
# peers by what the other has learned. It uses proved identities only: a claim on a connection that
# has not proved knowledge of the cluster secret never reaches it.


def _nobody(_peer: PeerIdentity) -> None:
    """Do nothing: there is no listener."""


class SeenPeer(Protocol):
    """Durable knowledge of a peer and its journal (``Journal.peers``)."""

    @property
    def directory_id(self) -> str: ...
    @property
    def boot(self) -> int: ...
    @property
    def run(self) -> str: ...
    @property
    def sequence(self) -> int: ...


class HeardOfPeer(Protocol):
    """A peer's report on its journal since this broker started (``ConsensusNode.heard``)."""

    @property
    def directory_id(self) -> str: ...
    @property
    def boot(self) -> int: ...
    @property
    def sequence(self) -> int: ...


class IncomingConnection(Protocol):
    """The part of a server's ``Connection`` that the registry uses."""

    last_active_seconds: float
    peer_identity: PeerIdentity | None

    @property
    def is_closed(self) -> bool: ...
    @property
    def certificate(self) -> Mapping[str, Any] | None: ...
    def abort(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Incoming:
    identity: PeerIdentity
    connection: IncomingConnection


class PeerRegistry:
    """Invariant: at most one incoming connection per peer is valid, the newest.

    ``seen``: durable knowledge of a peer, or None. ``heard``: knowledge of a peer's journal in
    memory, or None. ``time``: seconds, monotonic. ``session_timeout_s``: an incoming connection
    without a message for this time is not live. ``version_min``: returns the version of the
    protocol between brokers that a peer must support. ``check_state``: raises the reason why the
    state of the cluster excludes a peer. ``needs_certificate``: connections with peers require
    certificates that name their ids.
    """

    def __init__(
        self,
        *,
        seen: Callable[[int], SeenPeer | None],
        heard: Callable[[int], HeardOfPeer | None],
        time: Callable[[], float],
        session_timeout_s: float,
        version_min: Callable[[], int] = lambda: 0,
        check_state: Callable[[PeerIdentity], None] = _nobody,
        needs_certificate: bool = False,
    ) -> None:
        self._needs_certificate = needs_certificate
        self._version_min = version_min
        self._check_state = check_state
        self._seen = seen
        self._heard = heard
        self._time = time
        self._session_timeout_s = session_timeout_s
        self._latest: dict[int, PeerIdentity] = {}  # last admitted, in this incarnation
        # Directories whose journal lost its end, and the reason.
        self._forgetful: dict[int, tuple[str, str]] = {}
        self._incoming: dict[int, _Incoming] = {}
        self._outgoing: dict[int, PeerIdentity] = {}  # links that are up
        # Called for every peer that has connected: it is reachable, and its older incarnations have
        # ended.
        self.on_incoming: Callable[[PeerIdentity], None] = _nobody

    def latest(self, broker_id: int) -> PeerIdentity | None:
        """Return the last peer admitted under this id since this broker started, or None."""
        return self._latest.get(broker_id)

    def all_latest(self) -> list[PeerIdentity]:
        """Return the last peer admitted under each id since this broker started."""
        return list(self._latest.values())

    def is_live(self, broker_id: int) -> bool:
        """Whether a link to the peer is up, or one from it had a message within the session
        timeout.
        """
        return bool(self._live(broker_id))

    def check_certificate(self, broker_id: int, certificate: Mapping[str, Any] | None) -> None:
        """Check that the connection with ``broker_id`` has a certificate of this broker, if one is
        required. ``certificate``: the verified one; None without.

        Raises ``AccessDeniedError``.
        """
        if self._needs_certificate:
            check_broker_id(certificate, broker_id)

    def check(self, peer: PeerIdentity) -> None:
        """Raise the reason why ``peer`` must be refused.

        ``BrokerIdInUseError``: another live data directory has its broker id, or it is a copy of a
        directory that is live elsewhere with the same boot number. ``StaleBrokerError``: its data
        directory was seen with a later boot number, so this is an old copy without later votes and
        acknowledgements; or its journal has lost its end, with the same effect.
        ``UnsupportedVersionError``: it would misread the state of the cluster. And the errors of
        ``check_state``.
        """
        # guard: a peer supports the protocol that the cluster requires
        check_version(peer, self._version_min())
        # guard: brokers refuse a removed directory
        self._check_state(peer)
        for live in self._live(peer.broker_id):
            # guard: another live directory with a peer's id
            if live.directory_id != peer.directory_id:
                raise BrokerIdInUseError(
                    f"broker id {peer.broker_id} is in use by the live broker at "
                    f"{live.host}:{live.port} with data directory {live.directory_id}: the broker "
                    f"at {peer.host}:{peer.port} with data directory {peer.directory_id} is "
                    "rejected. Set a different id for each broker (if the live broker was just "
                    "stopped, wait)"
                )
            if live.boot == peer.boot and (live.host, live.port) != (peer.host, peer.port):
                raise BrokerIdInUseError(
                    f"the data directory {peer.directory_id} of broker {peer.broker_id} is used "
                    f"twice, at {live.host}:{live.port} and at {peer.host}:{peer.port}: one is a "
                    "copy. Stop the copy, wipe it, and start it with a different broker id"
                )
        # guard: the stored facts about a peer are checked
        for seen in (self._seen(peer.broker_id), self._latest.get(peer.broker_id)):
            if seen is not None:
                check_boot(
                    peer,
                    seen_directory_id=seen.directory_id,
                    seen_boot=seen.boot,
                    seen_run=seen.run,
                )
        self._check_journal(peer)

    def _check_journal(self, peer: PeerIdentity) -> None:
        """Refuse a directory permanently once its journal was too short. Each boot adds blocks to
        its journal, and with enough of them it would look complete again.
        """
        directory_id, why = self._forgetful.get(peer.broker_id, ("", ""))
        # guard: a journal that has lost its end stays rejected
        if directory_id == peer.directory_id:
            raise StaleBrokerError(why)
        # guard: stored reports of a journal count, too
        for heard in (self._heard(peer.broker_id), self._seen(peer.broker_id)):
            if heard is None:
                continue
            try:
                check_journal(
                    peer,
                    heard_directory_id=heard.directory_id,
                    heard_boot=heard.boot,
                    heard_sequence=heard.sequence,
                )
            except StaleBrokerError as error:
                self._forgetful[peer.broker_id] = peer.directory_id, str(error)
                raise

    def admit_incoming(self, peer: PeerIdentity, connection: IncomingConnection) -> None:
        """Admit ``peer``, which has proved its identity on ``connection``. Its older connections
        are closed.

        Messages in flight on an older connection must not arrive after those of this one. Raises
        the errors of ``check``.
        """
        self.check(peer)
        older = self._incoming.get(peer.broker_id)
        self._incoming[peer.broker_id] = _Incoming(peer, connection)
        self._latest[peer.broker_id] = peer
        if older is not None and older.connection is not connection:
            # guard: a newer connection ends the older one
            older.connection.peer_identity = None  # requests that it has already read have no peer
            older.connection.abort(f"broker {peer.broker_id} has opened a new connection")
        self.on_incoming(peer)

    def admit_outgoing(self, peer: PeerIdentity) -> None:
        """Note that a link to ``peer`` is up. Raises the errors of ``check``."""
        self.check(peer)
        self._latest[peer.broker_id] = self._outgoing[peer.broker_id] = peer

    def end_refused(self) -> None:
        """Close connections of peers that the state of the cluster excludes by now. They connect
        again, and get the reason.
        """
        for each in list(self._incoming.values()):
            if why := self.exclusion(each.identity):
                # guard: connections from brokers of earlier releases end with the upgrade
                each.connection.abort(why)

    def exclusion(self, peer: PeerIdentity) -> str:
        """Return why the state of the cluster excludes the peer; empty if it does not."""
        try:
            check_version(peer, self._version_min())
            self._check_state(peer)
        except RefusedError as error:
            return str(error)
        return ""

    def outgoing_down(self, broker_id: int) -> None:
        """Note that the link to the peer is down."""
        self._outgoing.pop(broker_id, None)

    def _live(self, broker_id: int) -> list[PeerIdentity]:
        incoming = self._incoming.get(broker_id)
        live = []
        if incoming is not None and not incoming.connection.is_closed:
            silent_s = self._time() - incoming.connection.last_active_seconds
            if silent_s < self._session_timeout_s:
                live.append(incoming.identity)
        if broker_id in self._outgoing:
            live.append(self._outgoing[broker_id])
        return live


# -- link ------------------------------------------------------------------------------------------
#
# Link from this broker to one other broker: connect, authenticate, ping, reconnect.
#
# A link is up once both sides have proved that they know the cluster secret, until its connection
# ends or no message has arrived for ``broker.session.timeout.ms``.


logger = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 0.5
PAUSE_S_MIN: Final = 0.001  # between two pings

# Errors that mean that these two brokers are configured incompatibly; all others are transient.
_REFUSALS: Final = (
    AccessDeniedError,
    BrokerIdInUseError,
    BrokerRemovedError,
    DeclaredLostError,
    HistoryConflictError,
    StaleBrokerError,
    UnsupportedApiError,
    UnsupportedVersionError,
    WrongClusterError,
)


class _NotIntroducedError(Exception):
    """The handshake ended with a refusal, by the peer or by this broker."""

    def __init__(self, refusal: RaftlogError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class LinkServices:
    """Services that all links of a broker share."""

    loop: asyncio.AbstractEventLoop
    connector: PeerConnector
    registry: PeerRegistry
    secret: bytes
    me: Callable[[], PeerIdentity]
    broker_epoch: Callable[[], int]  # -1 while not registered
    nonce: Callable[[], bytes]  # 32 random bytes, different at each call
    chance: Callable[[], float]  # 0 <= chance() < 1
    heartbeat_s: float
    session_timeout_s: float
    queue_bytes_max: int
    scratch: memoryview
    on_up: Callable[[PeerIdentity], None]
    on_down: Callable[[int, RaftlogError], None]
    on_refused: Callable[[int, RaftlogError], None]
    # wall-clock time of a peer, and the round trip in seconds
    on_clock: Callable[[int, TimestampMs, float], None]


async def greet(
    services: LinkServices, channel: PeerChannel, me: PeerIdentity, *, expected: int | None
) -> tuple[PeerIdentity, PeerProveRequest]:
    """Make the first half of the handshake: the peer has proved its identity, and receives the
    proof of this broker next. ``expected``: its broker id; None for any.
    """
    versions = await _ask(
        services,
        channel,
        apis.API_VERSIONS,
        ApiVersionsRequest(
            client_id=f"broker {me.broker_id}", client_software=f"raftlog/{__version__}"
        ),
    )
    assert isinstance(versions, ApiVersionsResponse)
    channel.agree(versions.apis)
    dialling = Dialling(services.secret, me, services.nonce(), expected=expected)
    hello = await _ask(services, channel, apis.PEER_HELLO, dialling.hello())
    assert isinstance(hello, PeerHelloResponse)
    try:
        prove = dialling.check(hello)
        # guard: the connecting side requires the certificate of the peer
        services.registry.check_certificate(hello.identity.broker_id, channel.certificate)
    except _REFUSALS as error:
        raise _NotIntroducedError(error) from error
    return hello.identity, prove


async def identify(services: LinkServices, address: Address) -> PeerIdentity:
    """Return the proved identity of the broker at an address whose id is not known.

    Raises ``OSError``, ``TimeoutError``, and ``RaftlogError`` with the refusal.
    """
    channel = PeerChannel(
        services.loop,
        lambda _error: None,
        scratch=services.scratch,
        queue_bytes_max=services.queue_bytes_max,
    )
    try:
        await _in_time(services, services.connector.connect(address, lambda: channel))
        identity, _prove = await greet(services, channel, services.me(), expected=None)
        return identity
    except _NotIntroducedError as error:
        raise error.refusal from error
    finally:
        channel.abort(ConnectionLostError("the broker is identified"))


async def _ask(
    services: LinkServices, channel: PeerChannel, api: apis.Api, message: Message
) -> Message:
    future = channel.request(api, message)
    try:
        return (await _in_time(services, future)).message
    except RefusedError as error:
        if isinstance(error, _REFUSALS):
            raise _NotIntroducedError(error) from error
        raise


async def _in_time(services: LinkServices, answer: Awaitable[T]) -> T:
    """Wait for one round trip. Each has the full session timeout, as a ping has."""
    # guard: each round trip of a handshake has its own time
    async with asyncio.timeout(services.session_timeout_s):
        return await answer


class PeerLink:
    """Link to one peer. Invariant: ``on_up`` and ``on_down`` are called alternately, ``on_up``
    first.
    """

    def __init__(self, broker_id: int, address: Address, services: LinkServices) -> None:
        self.broker_id = broker_id
        self.address = address
        self.identity: PeerIdentity | None = None  # the peer, while the link is up
        self.refusal: RaftlogError | None = None  # refusal by the peer or by this broker
        self.problem = ""  # reason why the link is down
        self.envelopes_dropped = 0
        self._services = services
        self._channel: PeerChannel | None = None  # while the link is up
        self.task: asyncio.Task[None] | None = None  # while it is connecting
        # Of the next ping, or the next connection attempt.
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._failures = 0  # consecutive failures
        self._up_since = 0.0
        self._pings = 0
        self._queued = 0  # bytes queued at the last ping

    @property
    def is_up(self) -> bool:
        return self._channel is not None

    @property
    def channel(self) -> PeerChannel:
        """Return the channel for requests. Raises ``BrokerUnavailableError`` while the link is
        down.
        """
        if self._channel is None:
            raise BrokerUnavailableError(
                f"no link to broker {self.broker_id} at {self.address}: "
                f"{self.problem or 'connecting'}"
            )
        return self._channel

    @property
    def silent_s(self) -> float:
        """Seconds since the last message; infinite while the link is down."""
        if self._channel is None:
            return inf
        return self._services.loop.time() - self._channel.last_heard_seconds

    def start(self) -> None:
        """Connect now, and again whenever the link is down."""
        self._dial()

    def redial_now(self) -> None:
        """Connect now: the peer is known to be running."""
        if self._timer is not None and not self.is_up:
            self._timer.cancel()
            self._dial()

    def drop(self, reason: str) -> None:
        """End the connection, if there is one; the link reconnects."""
        if self._channel is not None:
            self._channel.abort(ConnectionLostError(reason))

    def end(self, reason: str) -> None:
        """End the link permanently. ``task`` may end a little later."""
        self._stopped = True
        self._cancel_timer()
        self.drop(reason)
        if self.task is not None:
            self.task.cancel()

    # -- up ----------------------------------------------------------------------------------------

    def _dial(self) -> None:
        self._timer = None
        self.task = self._services.loop.create_task(self._connect())

    async def _connect(self) -> None:
        services = self._services
        channel = PeerChannel(
            services.loop,
            lambda error: self._lost(channel, error),
            scratch=services.scratch,
            queue_bytes_max=services.queue_bytes_max,
        )
        failure: Exception
        try:
            await _in_time(services, services.connector.connect(self.address, lambda: channel))
            identity = await self._introduce(channel)
            if channel.ended is not None:
                raise channel.ended
            services.registry.admit_outgoing(identity)
        except TimeoutError:
            failure = RequestTimedOutError(
                f"no response within {services.session_timeout_s:g} s (broker.session.timeout.ms)"
            )
        except (OSError, RaftlogError, _NotIntroducedError) as error:
            failure = error
        except asyncio.CancelledError:
            channel.abort(ConnectionLostError("the link is no longer needed"))
            raise
        except Exception as error:  # an internal error must not end the link permanently
            logger.exception("peer link failed: broker=%d reason=internal_error", self.broker_id)
            failure = error
        else:
            self.task = None
            self._rise(channel, identity)
            return
        self.task = None
        channel.abort(ConnectionLostError("the handshake failed"))
        self._note_failure(failure)
        self._dial_later()

    async def _introduce(self, channel: PeerChannel) -> PeerIdentity:
        """Make the handshake: afterwards both sides know the identity of the other."""
        services = self._services
        me = services.me()
        identity, prove = await greet(services, channel, me, expected=self.broker_id)
        await _ask(services, channel, apis.PEER_PROVE, prove)
        try:
            check_cluster(me, identity)
        except WrongClusterError as error:
            raise _NotIntroducedError(error) from error
        return identity

    def _rise(self, channel: PeerChannel, identity: PeerIdentity) -> None:
        self._channel = channel
        self.identity = identity
        self.refusal = None
        self.problem = ""
        self._queued = 0
        self._up_since = self._services.loop.time()
        logger.info(
            "peer link up: broker=%d address=%s directory_id=%s boot=%d",
            self.broker_id,
            self.address,
            identity.directory_id,
            identity.boot,
        )
        self._services.on_up(identity)
        if self._channel is channel:  # otherwise a callback has dropped it
            self._beat(self._services.loop.time())

    def _beat(self, due: float) -> None:
        """Send a ping, or end the link. ``due``: the time for which this call was scheduled."""
        services, channel = self._services, self._channel
        assert channel is not None
        now = services.loop.time()
        queued = channel.queued_bytes
        if now - due > services.heartbeat_s or queued < self._queued:
            # Either this broker was stalled, or the send queue shrinks and pings wait in it.
            channel.last_heard_seconds = now
        self._queued = queued
        silent_s = now - channel.last_heard_seconds
        if silent_s >= services.session_timeout_s:
            channel.abort(
                RequestTimedOutError(
                    f"no message from the peer for {silent_s:.1f} s (broker.session.timeout.ms)"
                )
            )
            return
        self._pings += 1
        ping = PeerPingRequest(sent=self._pings, broker_epoch=services.broker_epoch())
        try:
            pong = channel.request(apis.PEER_PING, ping)
            pong.add_done_callback(partial(self._on_pong, now))
        except BrokerUnavailableError as error:
            # The peer does not read: the session timeout decides.
            logger.debug("ping not sent: broker=%d error=%s", self.broker_id, error)
        # The rest of the session can be less than the resolution of the clock: without a minimum,
        # the timer would be due at once, and again, with a ping each time.
        pause = max(PAUSE_S_MIN, min(services.heartbeat_s, services.session_timeout_s - silent_s))
        self._timer = services.loop.call_later(pause, self._beat, now + pause)

    def _on_pong(self, sent_at: float, pong: asyncio.Future[Answer]) -> None:
        """Report the peer's clock, unless the link went down first."""
        if pong.cancelled() or pong.exception() is not None:
            return
        response = pong.result().message
        assert isinstance(response, PeerPingResponse)
        if response.wall_ms >= 0:
            services = self._services
            services.on_clock(self.broker_id, response.wall_ms, services.loop.time() - sent_at)

    # -- down --------------------------------------------------------------------------------------

    def _lost(self, channel: PeerChannel, error: RaftlogError) -> None:
        if channel is not self._channel:
            return  # not this link's channel; the connecting task handles it
        self._channel = None
        self.identity = None
        self._cancel_timer()
        self.problem = str(error)
        if self._services.loop.time() - self._up_since >= self._services.session_timeout_s:
            self._failures = 0
        self._services.registry.outgoing_down(self.broker_id)
        if not self._stopped:
            logger.warning(
                "peer link down: broker=%d address=%s error=%s",
                self.broker_id,
                self.address,
                error,
            )
        self._services.on_down(self.broker_id, error)
        if not self._stopped:
            self._dial_later()

    def _note_failure(self, failure: Exception) -> None:
        """Store why the link is down. Log it if the reason has changed."""
        problem = (str(failure) or type(failure).__name__) + self._other_address()
        if problem != self.problem:
            self.problem = problem
            logger.warning(
                "peer link failed: broker=%d address=%s error=%s",
                self.broker_id,
                self.address,
                problem,
            )
        refusal = failure.refusal if isinstance(failure, _NotIntroducedError) else None
        known, self.refusal = self.refusal, refusal
        if refusal is not None and (type(known), str(known)) != (type(refusal), str(refusal)):
            self._services.on_refused(self.broker_id, refusal)

    def _other_address(self) -> str:
        """Return the address that the peer itself has, if it is connected to this broker and this
        broker was given another one; else an empty text.
        """
        peer = self._services.registry.latest(self.broker_id)
        if peer is None or not self._services.registry.is_live(self.broker_id):
            return ""
        has = Address(peer.host, peer.port)
        return "" if has == self.address else (
            f". Broker {self.broker_id} is connected to this broker, and has the address {has}. If "
            f"this broker cannot reach it at {self.address}, correct its setting `voters`"
        )  # fmt: skip

    def _dial_later(self) -> None:
        if self._stopped:
            return
        pause = backoff_seconds(self._failures, self._services.chance())
        self._failures += 1
        self._timer = self._services.loop.call_later(pause, self._dial)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def backoff_seconds(failures: int, chance: float) -> float:
    """Return the pause in seconds after ``failures`` in a row: 50 ms, doubled up to 500 ms, with
    jitter.

    The jitter is the upper half of that ("equal jitter"), so that two brokers that lose the same
    peer do not reconnect at the same time.
    """
    step = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN * (1 << min(failures, 10)))
    return max(BACKOFF_SECONDS_MIN, step / 2 * (1 + chance))


# -- peering ---------------------------------------------------------------------------------------
#
# Incoming side of peer links: authentication and shared state of the peer handlers.


@dataclass(slots=True)
class Peering:
    """Exists as long as the broker.

    ``receive``: called with a peer's id and one of its Raft envelopes. ``nonce``: returns 32 random
    bytes, different at each call. ``on_refused``: called with an authenticated peer, and the reason
    why it belongs to another cluster.
    """

    secret: bytes
    me: Callable[[], PeerIdentity]
    nonce: Callable[[], bytes]
    registry: PeerRegistry
    receive: Callable[[int, bytes], None]
    wall_ms: Callable[[], TimestampMs]  # wall clock of the machine
    on_refused: Callable[[int, RaftlogError], None]
    broker_epochs: dict[int, int] = field(default_factory=dict)  # of peers, by their last ping

    def answering(self) -> Answering:
        """Create this broker's side of one handshake. Raises ``AccessDeniedError`` if there is no
        secret that a peer could prove to know."""
        # guard: a broker without a secret accepts no other broker
        if not self.secret:
            raise AccessDeniedError(
                "this broker has no cluster secret, so no other broker can join it. Set "
                "cluster.secret.file on all brokers"
            )
        return Answering(self.secret, self.me(), self.nonce())

    def admit(
        self, answering: Answering, prove: PeerProveRequest, connection: IncomingConnection
    ) -> PeerIdentity:
        """Return the peer with this proof. ``connection`` belongs to it from now on.

        Raises the errors of ``Answering.check``, ``check_cluster`` and ``PeerRegistry``, and
        ``BrokerUnavailableError`` if this broker has joined a cluster since it responded to the
        hello: a founder relies on the state that an established connection reported.
        """
        me = self.me()
        peer = answering.check(prove)
        # guard: the accepting side requires the certificate of the peer
        self.registry.check_certificate(peer.broker_id, connection.certificate)
        # guard: a broker's own state is checked again when the link is established
        if me != answering.me:
            raise BrokerUnavailableError(
                f"broker {me.broker_id} has joined a cluster: repeat peer_hello"
            )
        try:
            check_cluster(me, peer)
        except WrongClusterError as error:
            self.on_refused(peer.broker_id, error)
            raise
        # guard: peers are checked before they are admitted
        self.registry.admit_incoming(peer, connection)
        return peer
