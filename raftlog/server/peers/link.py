"""Link from this broker to one other broker: connect, authenticate, ping, reconnect.

A link is up once both sides have proved that they know the cluster secret, until its connection
ends or no message has arrived for ``broker.session.timeout.ms``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, TypeVar

from raftlog import __version__
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
from raftlog.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse
from raftlog.protocol.peer import (
    PeerHelloResponse,
    PeerIdentity,
    PeerPingRequest,
    PeerPingResponse,
    PeerProveRequest,
)
from raftlog.protocol.peer_auth import Dialling, check_cluster
from raftlog.protocol.schema import Message
from raftlog.server.peers.channel import Answer, PeerChannel, PeerConnector
from raftlog.server.peers.registry import PeerRegistry
from raftlog.types import TimestampMs

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
