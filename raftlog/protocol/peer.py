"""Requests between brokers: authentication, Raft envelopes, pings.

The broker that opens a connection sends ``peer_hello`` and then ``peer_prove``. Only then can it
send requests with ``Api.peer_only``. ``peer_auth`` computes the proofs. A connection carries the
requests of the broker that opened it, so two brokers have two connections, one per direction.
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
HISTORY_CHARS_MAX: Final = limits.RECOVERIES_KEPT * 17  # IDs of 16 characters, and commas
ENVELOPE_BYTES_MAX: Final = 4 * limits.MIB

assert ENVELOPE_BYTES_MAX < limits.FRAME_BYTES_MAX, "the largest envelope must fit a frame"

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
_ProtocolVersion = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]


class PeerIdentity(Message):
    """Identity that a broker claims. The proofs cover every field.

    ``directory_id``: ID of its data directory. ``boot``: incarnation (boot number), incremented
    each time the directory is opened. ``run``: random at each start; distinguishes two starts with
    the same boot number, which occur if the directory was copied. ``host``, ``port``: listen
    address. ``protocol_version``: highest supported version of the peer protocol. ``cluster_id``:
    empty if unknown. ``journal_sequence``: number of the last consensus journal block found at
    start. ``voters``: sorted IDs of the configured voters, such as ``1,2,3``. ``history``: IDs of
    the recoveries that the cluster's state has passed, as far as this broker knows, such as
    ``5f0c2a91b7d4e810,c176e840fec05345``; see ``raftlog.replication.histories``.
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
    history: Annotated[str, Meta(max_length=HISTORY_CHARS_MAX)] = ""


class PeerHelloRequest(Message):
    """Start of the handshake. ``nonce``: random bytes, used once."""

    identity: PeerIdentity
    nonce: _Nonce


class PeerHelloResponse(Message):
    """Response to the hello. ``proof``: shows that the answering side knows the secret."""

    identity: PeerIdentity
    nonce: _Nonce
    proof: _Proof


class PeerProveRequest(Message):
    """Second request. ``proof``: shows that the dialling side knows the secret."""

    proof: _Proof


class PeerProveResponse(Message):
    """Success: the connection is now authenticated as a peer's."""


class RaftRequest(Message):
    """One-way request. The attachment is one envelope of ``raftlog.consensus``, opaque here."""


class PeerPingRequest(Message):
    """Ping. ``sent``: ignored by the receiver. ``broker_epoch``: broker epoch of the sender."""

    sent: Counter
    broker_epoch: BrokerEpoch


class PeerPingResponse(Message):
    """Immediate response to a ping. ``wall_ms``: wall clock of the broker in ms; -1: unknown."""

    wall_ms: Annotated[int, Meta(ge=-1, le=limits.TIMESTAMP_MS_MAX)] = -1


def check_envelope(attachment: memoryview) -> memoryview:
    """Return the envelope of a ``RaftRequest`` after a check of its size.

    Raises ``InvalidRequestError`` unless it has 1 to ``ENVELOPE_BYTES_MAX`` bytes.
    """
    if not 1 <= len(attachment) <= ENVELOPE_BYTES_MAX:
        raise InvalidRequestError(
            f"Raft envelope of {len(attachment)} bytes is outside 1 to {ENVELOPE_BYTES_MAX} "
            "(ENVELOPE_BYTES_MAX)"
        )
    return attachment
