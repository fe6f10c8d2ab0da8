"""Incoming side of peer links: authentication and shared state of the peer handlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raftlog.errors import (
    BrokerUnavailableError,
    RaftlogError,
    WrongClusterError,
)
from raftlog.protocol.peer import PeerIdentity, PeerProveRequest
from raftlog.protocol.peer_auth import Answering, check_cluster
from raftlog.server.peers.registry import IncomingConnection, PeerRegistry
from raftlog.types import TimestampMs


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
        """Create this broker's side of one handshake."""
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
        self.registry.check_certificate(peer.broker_id, connection.certificate)
        if me != answering.me:
            raise BrokerUnavailableError(
                f"broker {me.broker_id} has joined a cluster: repeat peer_hello"
            )
        try:
            check_cluster(me, peer)
        except WrongClusterError as error:
            self.on_refused(peer.broker_id, error)
            raise
        self.registry.admit_incoming(peer, connection)
        return peer
