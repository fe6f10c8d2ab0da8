"""Authentication of operators: proof of the cluster secret, without sending the secret.

Mutual challenge-response with HMAC-SHA-256, as between brokers (``peer_auth``). Requests that can
lose data or change the cluster require it, because raftlog has no user permissions yet:

    operator                                 broker
    --------                                 ------
    hello()  -- nonce ------------------>    answer(hello)
    check()  <- broker, nonce, proof -----
             -- proof ------------------>    check(prove)

The role names differ from those of brokers, so an operator's proof is never valid as a broker's
proof, or vice versa. The module does no I/O and draws no random numbers: nonces are arguments. Each
object is used for one handshake.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Final

from msgspec import Meta

from raftlog.errors import AccessDeniedError
from raftlog.protocol.peer import NONCE_BYTES, PROOF_BYTES
from raftlog.protocol.schema import ClusterId, Message, NodeId

_ROLE_OPERATOR: Final = b"raftlog operator, asking"
_ROLE_BROKER: Final = b"raftlog operator, answering"

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class OperatorHelloRequest(Message):
    """Start of the handshake. ``nonce``: random bytes, used once."""

    nonce: _Nonce


class OperatorHelloResponse(Message):
    """Response to the hello. ``proof``: shows that the broker knows the secret."""

    broker: NodeId
    cluster_id: ClusterId
    nonce: _Nonce
    proof: _Proof


class OperatorProveRequest(Message):
    """Second request. ``proof``: shows that the operator knows the secret."""

    proof: _Proof


class OperatorProveResponse(Message):
    """Success: the connection is now authenticated as an operator's."""


class Asking:
    """The operator's side of a handshake."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        self._secret = secret
        self._hello = OperatorHelloRequest(nonce=nonce)

    def hello(self) -> OperatorHelloRequest:
        """Return the first message."""
        return self._hello

    def check(self, response: OperatorHelloResponse) -> OperatorProveRequest:
        """Verify the broker's proof and return the operator's.

        Raises ``AccessDeniedError`` if the broker has another secret.
        """
        wanted = _proof(self._secret, _ROLE_BROKER, self._hello, response)
        if not hmac.compare_digest(wanted, response.proof):
            raise AccessDeniedError(
                f"broker {response.broker} has a different cluster secret. Use the secret of the "
                "cluster's brokers"
            )
        return OperatorProveRequest(
            proof=_proof(self._secret, _ROLE_OPERATOR, self._hello, response)
        )


class Granting:
    """The broker's side of a handshake. ``cluster_id``: empty if it has not joined a cluster."""

    def __init__(self, secret: bytes, broker: int, cluster_id: str, nonce: bytes) -> None:
        self._secret = secret
        self._broker = broker
        self._cluster_id = cluster_id
        self._nonce = nonce
        self._said: tuple[OperatorHelloRequest, OperatorHelloResponse] | None = None

    def answer(self, hello: OperatorHelloRequest) -> OperatorHelloResponse:
        """Return the response to ``hello``, with the broker's proof."""
        claim = OperatorHelloResponse(
            broker=self._broker,
            cluster_id=self._cluster_id,
            nonce=self._nonce,
            proof=bytes(PROOF_BYTES),
        )
        proof = _proof(self._secret, _ROLE_BROKER, hello, claim)
        response = OperatorHelloResponse(
            broker=claim.broker, cluster_id=claim.cluster_id, nonce=claim.nonce, proof=proof
        )
        self._said = hello, response
        return response

    def check(self, prove: OperatorProveRequest) -> None:
        """Verify the operator's proof.

        Raises ``AccessDeniedError`` if the proof is invalid, on a second call, or without a hello.
        """
        said, self._said = self._said, None
        if said is None:
            raise AccessDeniedError("operator_prove without operator_hello. Send operator_hello")
        if not hmac.compare_digest(_proof(self._secret, _ROLE_OPERATOR, *said), prove.proof):
            raise AccessDeniedError(
                "the operator has a different cluster secret. Use the secret of the cluster's "
                "brokers"
            )


def _proof(
    secret: bytes, role: bytes, hello: OperatorHelloRequest, response: OperatorHelloResponse
) -> bytes:
    """Return the HMAC of the role and all fields that both sides have sent."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    broker, cluster_id = str(response.broker).encode(), response.cluster_id.encode()
    for field in (role, hello.nonce, broker, cluster_id, response.nonce):
        mac.update(len(field).to_bytes(4, "little"))
        mac.update(field)
    return mac.digest()
