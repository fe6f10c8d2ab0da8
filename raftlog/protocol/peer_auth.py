"""How two brokers prove to each other that they know the cluster's secret, without saying it.

Challenge and response with HMAC-SHA-256 (RFC 2104), both ways, in the manner of ISO/IEC 9798-4:

    dialling side                                answering side
    -------------                                --------------
    hello()   -- identity, nonce ------------->  answer(hello)
    check()   <- identity, nonce, proof -------
              -- proof ----------------------->  check(prove)  gives the peer

A proof is the HMAC of a role and of both identities and both nonces, each field preceded by its
length. So a proof that was recorded is of no use against a fresh nonce (replay); the proof of one
role is none of the other (reflection); and a broker refuses to talk to one with its own id, so it
cannot be made to answer its own challenge. Nothing that a peer claims is judged, except that it is
not ourselves, before its proof is.

What this does not do: it says who opened the connection, and does not protect the bytes that follow
from somebody who can change them on the way; that takes TLS. Whoever gets one answer may try
secrets against it at leisure: a secret should be 32 random bytes, not a word.

No I/O and no chance: nonces are arguments. Each object serves one handshake.
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

PEER_PROTOCOL_VERSION: Final = 1  # the highest that this release speaks
PEER_PROTOCOL_VERSION_MIN: Final = 1  # the lowest

_ROLE_DIALLING: Final = b"raftlog peer, dialling"
_ROLE_ANSWERING: Final = b"raftlog peer, answering"


class Dialling:
    """The side that opened the connection. ``expected``: the broker id that it means to reach."""

    def __init__(
        self, secret: bytes, me: PeerIdentity, nonce: bytes, *, expected: int | None = None
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._hello = PeerHelloRequest(identity=me, nonce=nonce)
        self._expected = expected
        self._checked = False

    def hello(self) -> PeerHelloRequest:
        """The first message."""
        return self._hello

    def check(self, response: PeerHelloResponse) -> PeerProveRequest:
        """Our proof, once theirs holds: only then may ``response.identity`` be believed.

        What it says of its cluster is left to ``check_cluster``, once our proof is sent: so both
        sides know that the other one is a broker, and why they do not work together.

        Raises ``AccessDeniedError`` (another secret, or a second answer),
        ``BrokerIdInUseError`` (it has our broker id), ``UnsupportedVersionError``, or
        ``BrokerUnavailableError`` (a sound peer, and not the expected one).
        """
        if self._checked:
            raise AccessDeniedError("a second answer to one peer_hello")
        self._checked = True
        me, peer = self._hello.identity, response.identity
        wanted = self._proof(_ROLE_ANSWERING, response)
        if not hmac.compare_digest(wanted, response.proof):
            raise _no_proof(peer)
        _check_other(me, peer)
        _check_version(peer)
        if self._expected is not None and peer.broker_id != self._expected:
            raise BrokerUnavailableError(
                f"broker {self._expected} was expected at {peer.host}:{peer.port}, and broker "
                f"{peer.broker_id} answers there; check the addresses of both"
            )
        return PeerProveRequest(proof=self._proof(_ROLE_DIALLING, response))

    def _proof(self, role: bytes, response: PeerHelloResponse) -> bytes:
        return _proof(self._secret, role, self._hello, response.identity, response.nonce)


class Answering:
    """The side that was dialled. ``me``: what it says of itself."""

    def __init__(self, secret: bytes, me: PeerIdentity, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self.me = me
        self._nonce = nonce
        self._hello: PeerHelloRequest | None = None  # answered, and not proved yet
        self._answered = False

    def answer(self, hello: PeerHelloRequest) -> PeerHelloResponse:
        """The answer to ``hello``, whose identity is not to be believed yet.

        Raises ``AccessDeniedError`` (this is the second ``hello``, or our own) or
        ``BrokerIdInUseError`` (it has our broker id).
        """
        if self._answered:
            raise AccessDeniedError("a second peer_hello on one connection")
        self._answered = True
        _check_other(self.me, hello.identity)
        self._hello = hello
        proof = self._proof(_ROLE_ANSWERING, hello)
        return PeerHelloResponse(identity=self.me, nonce=self._nonce, proof=proof)

    def check(self, prove: PeerProveRequest) -> PeerIdentity:
        """Who the peer is, now that it is proved. The connection is that peer's from here on.

        What it says of its cluster is left to ``check_cluster``.

        Raises ``AccessDeniedError`` (another secret, no ``hello`` before it, or a second try) or
        ``UnsupportedVersionError``.
        """
        hello, self._hello = self._hello, None
        if hello is None:
            raise AccessDeniedError("peer_prove has to follow a peer_hello, once")
        wanted = self._proof(_ROLE_DIALLING, hello)
        if not hmac.compare_digest(wanted, prove.proof):
            raise _no_proof(hello.identity)
        _check_version(hello.identity)
        return hello.identity

    def _proof(self, role: bytes, hello: PeerHelloRequest) -> bytes:
        return _proof(self._secret, role, hello, self.me, self._nonce)


def check_boot(
    peer: PeerIdentity, *, seen_directory_id: str, seen_boot: int, seen_run: str = ""
) -> None:
    """Raises ``StaleBrokerError`` if the peer's data directory has been seen in a later boot.

    So does the same boot in another run: a directory is started once with each number, so one of
    the two runs is a copy's.

    ``seen_*`` is what was last seen of this broker id. Another directory is another matter: the
    voters of each group say which one counts.
    """
    is_other_run = bool(peer.run and seen_run) and peer.run != seen_run
    is_stale = peer.boot < seen_boot or (peer.boot == seen_boot and is_other_run)
    if peer.directory_id == seen_directory_id and is_stale:
        raise StaleBrokerError(
            f"broker {peer.broker_id} comes with boot {peer.boot} of data directory "
            f"{peer.directory_id}, of which boot {seen_boot} was seen before: it is a copy that "
            "was put back. Start the broker with an empty directory instead; it will catch up"
        )


def check_journal(
    peer: PeerIdentity, *, heard_directory_id: str, heard_boot: int, heard_sequence: int
) -> None:
    """Raises ``StaleBrokerError`` if the peer's journal ends before what it has told of.

    ``heard_*`` is what was heard of this broker id: the last block of its journal that it has told
    of, and its newest boot. That boot found less than it told of later, by right; only a boot after
    it has to find all. Only durable blocks are told of, so no crash makes a journal so short.
    """
    is_short = peer.boot > heard_boot and peer.journal_sequence < heard_sequence
    if peer.directory_id == heard_directory_id and is_short:
        raise StaleBrokerError(
            f"the consensus journal of broker {peer.broker_id} has lost what it had acknowledged: "
            f"boot {peer.boot} of data directory {peer.directory_id} found it to end with block "
            f"{peer.journal_sequence}, and the broker has told of block {heard_sequence} before. "
            "Start the broker with an empty data directory instead; it will catch up"
        )


# -- proofs and claims -----------------------------------------------------------------------------


def _proof(
    secret: bytes, role: bytes, hello: PeerHelloRequest, answering: PeerIdentity, nonce: bytes
) -> bytes:
    """Of all that both sides have said; ``answering`` and ``nonce`` are the answering side's."""
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


def _no_proof(peer: PeerIdentity) -> AccessDeniedError:
    return AccessDeniedError(
        f"who says to be broker {peer.broker_id} at {peer.host}:{peer.port} does not know this "
        "cluster's secret; give every broker of the cluster the same one"
    )


def _check_other(me: PeerIdentity, peer: PeerIdentity) -> None:
    """The peer is not this broker, nor its namesake."""
    if peer.directory_id == me.directory_id:
        raise AccessDeniedError(
            f"broker {me.broker_id} has reached its own data directory ({me.directory_id}): "
            "itself, or a copy of it; check the addresses of its peers"
        )
    if peer.broker_id == me.broker_id:
        raise BrokerIdInUseError(
            f"two brokers have the id {me.broker_id}: data directory {me.directory_id} at "
            f"{me.host}:{me.port} and {peer.directory_id} at {peer.host}:{peer.port}; give one of "
            "them another id"
        )


def check_cluster(me: PeerIdentity, peer: PeerIdentity) -> None:
    """A proved peer may be talked to: it is not of another cluster, by its id or by its voters.

    Raises ``WrongClusterError``, which names the difference.
    """
    if me.cluster_id and peer.cluster_id and me.cluster_id != peer.cluster_id:
        raise WrongClusterError(
            f"broker {peer.broker_id} at {peer.host}:{peer.port} belongs to cluster "
            f"{peer.cluster_id}, and broker {me.broker_id} to {me.cluster_id}; check the "
            "addresses of its peers"
        )
    if me.voters != peer.voters:
        raise WrongClusterError(
            f"broker {peer.broker_id} at {peer.host}:{peer.port} has the voters "
            f"{peer.voters}, and broker {me.broker_id} has {me.voters}: give every broker of the "
            "cluster the same list (voters)"
        )


def _check_version(peer: PeerIdentity) -> None:
    """Both sides speak some version."""
    if peer.protocol_version < PEER_PROTOCOL_VERSION_MIN:
        raise UnsupportedVersionError(
            f"broker {peer.broker_id} speaks the peer protocol up to version "
            f"{peer.protocol_version}; this one from {PEER_PROTOCOL_VERSION_MIN} on. Upgrade it"
        )
