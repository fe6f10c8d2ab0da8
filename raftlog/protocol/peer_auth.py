"""Authentication between brokers: mutual proof of the cluster secret, without sending the secret.

Mutual challenge-response with HMAC-SHA-256 (RFC 2104), similar to ISO/IEC 9798-4:

    dialling side                                answering side
    -------------                                --------------
    hello()   -- identity, nonce ------------->  answer(hello)
    check()   <- identity, nonce, proof -------
              -- proof ----------------------->  check(prove)  returns the peer

A proof is the HMAC of a role, both identities and both nonces. Each field is preceded by its
length. A recorded proof is invalid for a new nonce (replay). The proof of one role is invalid for
the other role (reflection). A broker rejects peers with its own ID, so it cannot be made to answer
its own challenge. Before the proof is verified, a broker checks only that the peer is not itself.

Limits: the handshake authenticates the broker that opened the connection. It does not protect the
following bytes from modification in transit; this requires TLS. An attacker with one response can
test secrets offline, so a secret should be 32 random bytes and not a word.

The module does no I/O and draws no random numbers: nonces are arguments. Each object is used for
one handshake.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Final

from raftlog.errors import (
    AccessDeniedError,
    BrokerIdInUseError,
    BrokerUnavailableError,
    StaleBrokerError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftlog.protocol.peer import (
    NONCE_BYTES,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerIdentity,
    PeerProveRequest,
)

# Highest supported version. 2: the broker applies ``RaisePeerProtocol``, and the first leaders that
# partitions have from then on. 3: delegation tokens. 4: ``DeclareLost``, and histories.
PEER_PROTOCOL_VERSION: Final = 4
PEER_PROTOCOL_VERSION_MIN: Final = 1  # lowest supported version

_ROLE_DIALLING: Final = b"raftlog peer, dialling"
_ROLE_ANSWERING: Final = b"raftlog peer, answering"


class Dialling:
    """The side that opened the connection. ``expected``: broker ID of the intended peer."""

    def __init__(
        self, secret: bytes, me: PeerIdentity, nonce: bytes, *, expected: int | None = None
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._hello = PeerHelloRequest(identity=me, nonce=nonce)
        self._expected = expected
        self._checked = False

    def hello(self) -> PeerHelloRequest:
        """Return the first message."""
        return self._hello

    def check(self, response: PeerHelloResponse) -> PeerProveRequest:
        """Verify the peer's proof and return ours. ``response.identity`` is then authentic.

        Call ``check_cluster`` for the cluster of the peer after sending the returned proof. Both
        sides are then authenticated, and both can report a difference.

        Raises ``AccessDeniedError`` (another secret, or a second response), ``BrokerIdInUseError``
        (the peer has our broker ID), ``UnsupportedVersionError``, or ``BrokerUnavailableError``
        (an authentic peer, but not the expected one).
        """
        if self._checked:
            raise AccessDeniedError("second response to one peer_hello")
        self._checked = True
        me, peer = self._hello.identity, response.identity
        wanted = self._proof(_ROLE_ANSWERING, response)
        if not hmac.compare_digest(wanted, response.proof):
            raise _no_proof(peer)
        _check_other(me, peer)
        check_version(peer)
        if self._expected is not None and peer.broker_id != self._expected:
            raise BrokerUnavailableError(
                f"expected broker {self._expected} at {peer.host}:{peer.port}, but broker "
                f"{peer.broker_id} responded. Check the addresses of both brokers"
            )
        return PeerProveRequest(proof=self._proof(_ROLE_DIALLING, response))

    def _proof(self, role: bytes, response: PeerHelloResponse) -> bytes:
        return _peer_proof(self._secret, role, self._hello, response.identity, response.nonce)


class Answering:
    """The side that accepted the connection. ``me``: its own identity."""

    def __init__(self, secret: bytes, me: PeerIdentity, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self.me = me
        self._nonce = nonce
        self._hello: PeerHelloRequest | None = None  # answered, proof pending
        self._answered = False

    def answer(self, hello: PeerHelloRequest) -> PeerHelloResponse:
        """Return the response to ``hello``, whose identity is not authenticated yet.

        Raises ``AccessDeniedError`` (second ``hello``, or our own data directory) or
        ``BrokerIdInUseError`` (the peer has our broker ID).
        """
        if self._answered:
            raise AccessDeniedError("second peer_hello on one connection")
        self._answered = True
        _check_other(self.me, hello.identity)
        self._hello = hello
        proof = self._proof(_ROLE_ANSWERING, hello)
        return PeerHelloResponse(identity=self.me, nonce=self._nonce, proof=proof)

    def check(self, prove: PeerProveRequest) -> PeerIdentity:
        """Verify the peer's proof and return its identity, which is then authentic.

        Call ``check_cluster`` for the cluster of the peer.

        Raises ``AccessDeniedError`` (another secret, no ``hello`` before, or a second call) or
        ``UnsupportedVersionError``.
        """
        hello, self._hello = self._hello, None
        if hello is None:
            raise AccessDeniedError("peer_prove without peer_hello. Send peer_hello first")
        wanted = self._proof(_ROLE_DIALLING, hello)
        if not hmac.compare_digest(wanted, prove.proof):
            raise _no_proof(hello.identity)
        check_version(hello.identity)
        return hello.identity

    def _proof(self, role: bytes, hello: PeerHelloRequest) -> bytes:
        return _peer_proof(self._secret, role, hello, self.me, self._nonce)


def check_boot(
    peer: PeerIdentity, *, seen_directory_id: str, seen_boot: int, seen_run: str = ""
) -> None:
    """Check that the peer's data directory is not an old copy.

    ``seen_*``: the newest known data directory, boot number and run of this broker ID. A data
    directory with another ID passes: the voters of each group decide which directory counts.

    Raises ``StaleBrokerError`` if the directory was seen with a later boot number, or with the same
    boot number and another run. Each boot number is used once, so one of the two is a copy.
    """
    is_other_run = bool(peer.run and seen_run) and peer.run != seen_run
    is_stale = peer.boot < seen_boot or (peer.boot == seen_boot and is_other_run)
    if peer.directory_id == seen_directory_id and is_stale:
        raise StaleBrokerError(
            f"broker {peer.broker_id} uses an old copy of data directory {peer.directory_id}: "
            f"boot {peer.boot}, but boot {seen_boot} was seen before. Start the broker with an "
            "empty directory. It then copies all data from the other brokers"
        )


def check_journal(
    peer: PeerIdentity, *, heard_directory_id: str, heard_boot: int, heard_sequence: int
) -> None:
    """Check that the peer's consensus journal contains all blocks that the peer has reported.

    ``heard_*``: the last journal block that this broker ID has reported, and its newest boot. That
    boot started with fewer blocks than it reported later. Only a later boot must find all of them.
    Brokers report durable blocks only, so a crash cannot remove them.

    Raises ``StaleBrokerError`` if blocks are missing.
    """
    is_short = peer.boot > heard_boot and peer.journal_sequence < heard_sequence
    if peer.directory_id == heard_directory_id and is_short:
        raise StaleBrokerError(
            f"the consensus journal of broker {peer.broker_id} has lost acknowledged blocks: at "
            f"boot {peer.boot} of data directory {peer.directory_id} it ends with block "
            f"{peer.journal_sequence}, but the broker had reported block {heard_sequence}. "
            "Start the broker with an empty data directory. It then copies all data from the "
            "other brokers"
        )


# -- proofs and claims -----------------------------------------------------------------------------


def _peer_proof(
    secret: bytes, role: bytes, hello: PeerHelloRequest, answering: PeerIdentity, nonce: bytes
) -> bytes:
    """Return the HMAC of all fields. ``answering`` and ``nonce`` are of the answering side."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for field in (role, *_fields(hello.identity), hello.nonce, *_fields(answering), nonce):
        mac.update(len(field).to_bytes(4, "little"))
        mac.update(field)
    return mac.digest()


def _fields(identity: PeerIdentity) -> Iterator[bytes]:
    for value in (
        identity.broker_id,
        identity.directory_id,
        identity.boot,
        identity.host,
        identity.port,
        identity.protocol_version,
        identity.cluster_id,
        identity.run,
        identity.journal_sequence,
        identity.voters,
    ):
        yield str(value).encode("utf-8")
    if identity.history:  # earlier releases do not know it, and prove what they know
        yield identity.history.encode("utf-8")


def _no_proof(peer: PeerIdentity) -> AccessDeniedError:
    return AccessDeniedError(
        f"the peer that claims to be broker {peer.broker_id} at {peer.host}:{peer.port} has a "
        "different cluster secret. Configure the same secret on every broker of the cluster"
    )


def _check_other(me: PeerIdentity, peer: PeerIdentity) -> None:
    """Check that the peer is not this broker and has another broker ID."""
    if peer.directory_id == me.directory_id:
        raise AccessDeniedError(
            f"broker {me.broker_id} is connected to its own data directory ({me.directory_id}): "
            "the peer is the broker itself, or uses a copy. Check the addresses of its peers"
        )
    if peer.broker_id == me.broker_id:
        raise BrokerIdInUseError(
            f"two brokers have the ID {me.broker_id}: data directory {me.directory_id} at "
            f"{me.host}:{me.port} and {peer.directory_id} at {peer.host}:{peer.port}. Configure "
            "another ID for one of them"
        )


def check_cluster(me: PeerIdentity, peer: PeerIdentity) -> None:
    """Check that an authenticated peer has the same cluster ID or, if neither has one, the same
    configured voters.

    The configuration matters only for the creation of a cluster: later, its own state names the
    voters. A broker without configured voters joins a cluster that exists.

    Raises ``WrongClusterError``, with both values, if they differ.
    """
    if me.cluster_id and peer.cluster_id and me.cluster_id != peer.cluster_id:
        raise WrongClusterError(
            f"broker {peer.broker_id} at {peer.host}:{peer.port} belongs to cluster "
            f"{peer.cluster_id}, but broker {me.broker_id} to {me.cluster_id}. Check the "
            "addresses of its peers"
        )
    is_creation = not (me.cluster_id or peer.cluster_id) and me.voters and peer.voters
    if is_creation and me.voters != peer.voters:
        raise WrongClusterError(
            f"broker {peer.broker_id} at {peer.host}:{peer.port} has the voters "
            f"{peer.voters}, but broker {me.broker_id} has {me.voters}. Configure the same list "
            "(voters) on every broker of the cluster"
        )


def check_version(peer: PeerIdentity, version_min: int = PEER_PROTOCOL_VERSION_MIN) -> None:
    """Check that the peer supports version ``version_min`` of the protocol between brokers.

    Raises ``UnsupportedVersionError``.
    """
    if peer.protocol_version < version_min:
        raise UnsupportedVersionError(
            f"broker {peer.broker_id} supports the peer protocol up to version "
            f"{peer.protocol_version}, but this broker requires at least "
            f"{version_min}. Upgrade broker {peer.broker_id}"
        )
