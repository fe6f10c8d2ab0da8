"""How an operator proves to a broker that it knows the cluster's secret, without saying it.

Challenge and response with HMAC-SHA-256, both ways, as between brokers (``peer_auth``). What can
lose data or change the cluster is for such connections, until users have rights of their own:

    operator                                 broker
    --------                                 ------
    hello()  -- nonce ------------------>    answer(hello)
    check()  <- broker, nonce, proof -----
             -- proof ------------------>    check(prove)

The roles differ from those of brokers, so no proof of the one kind is one of the other. No I/O and
no chance: nonces are arguments. Each object serves one handshake.
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
    """``nonce``: random, and never used again."""

    nonce: _Nonce


class OperatorHelloResponse(Message):
    """``proof``: that the broker knows the secret."""

    broker: NodeId
    cluster_id: ClusterId
    nonce: _Nonce
    proof: _Proof


class OperatorProveRequest(Message):
    """``proof``: that the operator knows the secret."""

    proof: _Proof


class OperatorProveResponse(Message):
    """From now on this connection is an operator's."""


class Asking:
    """The operator's side."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        self._secret = secret
        self._hello = OperatorHelloRequest(nonce=nonce)

    def hello(self) -> OperatorHelloRequest:
        """The first message."""
        return self._hello

    def check(self, response: OperatorHelloResponse) -> OperatorProveRequest:
        """The operator's proof, once the broker's holds. Raises ``AccessDeniedError``."""
        wanted = _proof(self._secret, _ROLE_BROKER, self._hello, response)
        if not hmac.compare_digest(wanted, response.proof):
            raise AccessDeniedError(
                f"broker {response.broker} has another cluster secret than this operator: give the "
                "one that the cluster's brokers have"
            )
        return OperatorProveRequest(
            proof=_proof(self._secret, _ROLE_OPERATOR, self._hello, response)
        )


class Granting:
    """The broker's side. ``cluster_id``: empty while it is in no cluster."""

    def __init__(self, secret: bytes, broker: int, cluster_id: str, nonce: bytes) -> None:
        self._secret = secret
        self._broker = broker
        self._cluster_id = cluster_id
        self._nonce = nonce
        self._said: tuple[OperatorHelloRequest, OperatorHelloResponse] | None = None

    def answer(self, hello: OperatorHelloRequest) -> OperatorHelloResponse:
        """The answer to ``hello``."""
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
        """Return if the proof holds. Raises ``AccessDeniedError``, also for a second try."""
        said, self._said = self._said, None
        if said is None:
            raise AccessDeniedError("operator_prove has to follow an operator_hello, once")
        if not hmac.compare_digest(_proof(self._secret, _ROLE_OPERATOR, *said), prove.proof):
            raise AccessDeniedError(
                "the operator does not know this cluster's secret: give the one that the cluster's "
                "brokers have"
            )


def _proof(
    secret: bytes, role: bytes, hello: OperatorHelloRequest, response: OperatorHelloResponse
) -> bytes:
    """Of all that both sides have said."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    broker, cluster_id = str(response.broker).encode(), response.cluster_id.encode()
    for field in (role, hello.nonce, broker, cluster_id, response.nonce):
        mac.update(len(field).to_bytes(4, "little"))
        mac.update(field)
    return mac.digest()
