"""Between two brokers: who each is and that it knows the secret, Raft's envelopes, signs of life.

A broker that dials another says ``peer_hello`` and then ``peer_prove``, before anything that is for
peers only (``Api.peer_only``). What the proofs are made of is ``peer_auth``'s. One connection
carries the requests of the side that dialled: a pair of brokers has two, one in each direction.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.protocol.schema import (
    BrokerEpoch,
    ClusterId,
    Counter,
    DirectoryId,
    Host,
    Message,
    NodeId,
    Port,
)

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32  # SHA-256
VOTERS_CHARS_MAX: Final = limits.VOTERS_PER_CLUSTER_MAX * len(f"{(1 << 31) - 1},")
ENVELOPE_BYTES_MAX: Final = 4 * limits.MIB

assert ENVELOPE_BYTES_MAX < limits.FRAME_BYTES_MAX, "the largest envelope must fit a frame"

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
_ProtocolVersion = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]


class PeerIdentity(Message):
    """Who a broker says that it is. Every field is covered by the proofs.

    ``directory_id`` is of its data directory and ``boot`` counts how often that was opened;
    ``run`` is random at each start, and tells two starts with the same boot apart, which a copy of
    the directory makes; ``host`` and ``port`` are where it listens; ``cluster_id`` is empty while
    it has yet to learn it; ``protocol_version`` is the highest of the peer protocol that it speaks;
    ``journal_sequence`` is of the last block of its consensus journal that this boot found;
    ``voters`` are the ids of the voters in its configuration, in order, such as ``1,2,3``.
    """

    broker_id: NodeId
    directory_id: DirectoryId
    boot: Counter
    host: Host
    port: Port
    protocol_version: _ProtocolVersion
    cluster_id: ClusterId = ""
    run: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""
    journal_sequence: Counter = 0
    voters: Annotated[str, Meta(max_length=VOTERS_CHARS_MAX)] = ""


class PeerHelloRequest(Message):
    """``nonce``: random, and never used again."""

    identity: PeerIdentity
    nonce: _Nonce


class PeerHelloResponse(Message):
    """``nonce``: the answering side's. ``proof``: that the answering side knows the secret."""

    identity: PeerIdentity
    nonce: _Nonce
    proof: _Proof


class PeerProveRequest(Message):
    """``proof``: that the dialling side knows the secret."""

    proof: _Proof


class PeerProveResponse(Message):
    """From now on this connection is a peer's."""


class RaftRequest(Message):
    """One way. The attachment is one envelope of ``raftlog.consensus``, opaque here."""


class PeerPingRequest(Message):
    """``sent``: of no meaning to the side asked. ``broker_epoch``: of the side that asks."""

    sent: Counter
    broker_epoch: BrokerEpoch


class PeerPingResponse(Message):
    """Given at once, by a broker that is alive. ``wall_ms``: its machine's clock; -1: unknown."""

    wall_ms: Annotated[int, Meta(ge=-1, le=limits.TIMESTAMP_MS_MAX)] = -1


def check_envelope(attachment: memoryview) -> memoryview:
    """The envelope of a ``RaftRequest``: 1 to ``ENVELOPE_BYTES_MAX`` bytes.

    Raises ``InvalidRequestError`` for any other size.
    """
    if not 1 <= len(attachment) <= ENVELOPE_BYTES_MAX:
        raise InvalidRequestError(
            f"a Raft envelope of {len(attachment)} bytes: it has 1 to {ENVELOPE_BYTES_MAX} "
            "(ENVELOPE_BYTES_MAX)"
        )
    return attachment
