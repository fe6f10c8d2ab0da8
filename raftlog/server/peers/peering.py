"""The answering side of links: what the handlers for peers work with. Holds, and introduces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raftlog.errors import BrokerUnavailableError, RaftlogError, WrongClusterError
from raftlog.protocol.peer import PeerIdentity, PeerProveRequest
from raftlog.protocol.peer_auth import Answering, check_cluster
from raftlog.server.peers.registry import IncomingConnection, PeerRegistry
from raftlog.types import TimestampMs


@dataclass(slots=True)
class Peering:
    """Lives as long as the broker.

    ``receive`` takes a peer's id and one of its Raft envelopes; ``nonce`` gives 32 random bytes,
    each time others. ``on_refused`` is told of a peer that has proved itself, and why it belongs to
    another cluster.
    """

    secret: bytes
    me: Callable[[], PeerIdentity]
    nonce: Callable[[], bytes]
    registry: PeerRegistry
    receive: Callable[[int, bytes], None]
    wall_ms: Callable[[], TimestampMs]  # the machine's clock
    on_refused: Callable[[int, RaftlogError], None]
    broker_epochs: dict[int, int] = field(default_factory=dict)  # of peers, by their last ping

    def answering(self) -> Answering:
        """This broker's side of one handshake."""
        return Answering(self.secret, self.me(), self.nonce())

    def admit(
        self, answering: Answering, prove: PeerProveRequest, connection: IncomingConnection
    ) -> PeerIdentity:
        """The peer whose proof this is; ``connection`` is its own from here on.

        Raises what ``Answering.check``, ``check_cluster`` and ``PeerRegistry.check`` raise, and
        ``BrokerUnavailableError`` if this broker has joined a cluster since it answered the hello:
        who founds a cluster counts on what it was told by a connection that came about.
        """
        me = self.me()
        peer = answering.check(prove)
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
