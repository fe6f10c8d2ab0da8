"""The answering side of links: what the handlers for peers work with. Holds, and introduces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.peer_auth import Answering
from raftlog.server.peers.registry import PeerRegistry


@dataclass(slots=True)
class Peering:
    """Lives as long as the broker.

    ``receive`` takes a peer's id and one of its Raft envelopes; ``nonce`` gives 32 random bytes,
    each time others.
    """

    secret: bytes
    me: Callable[[], PeerIdentity]
    nonce: Callable[[], bytes]
    registry: PeerRegistry
    receive: Callable[[int, bytes], None]
    broker_epochs: dict[int, int] = field(default_factory=dict)  # of peers, by their last ping

    def answering(self) -> Answering:
        """This broker's side of one handshake."""
        return Answering(self.secret, self.me(), self.nonce())
