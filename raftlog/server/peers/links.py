"""Links from this broker to all others: one outgoing connection per peer, for all Raft groups.

This broker sends to a peer over the connection that it opened, and receives over the one that the
peer opened. So each side knows by its own pings whether the other receives its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog import limits
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.peer import ENVELOPE_BYTES_MAX, PeerIdentity, RaftRequest
from raftlog.protocol.schema import Message
from raftlog.server.peers.channel import PEER_QUEUE_BYTES_MAX, Answer, PeerConnector
from raftlog.server.peers.link import LinkServices, PeerLink, identify
from raftlog.server.peers.registry import PeerRegistry
from raftlog.types import Buffer, TimestampMs

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
    ``on_stranger``: called when a peer without a link has connected.
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
            not link.is_up
            or len(envelope) > ENVELOPE_BYTES_MAX
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

    # -- accepted connections ----------------------------------------------------------------------

    def _came_in(self, peer: PeerIdentity) -> None:
        """A peer has connected to this broker: it runs, and its earlier incarnations have ended."""
        link = self._links.get(peer.broker_id)
        if link is None:
            self._on_stranger()
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
