"""What the handlers are given: each handshake has a nonce, and an identity, of its own."""

from __future__ import annotations

import pytest

from raftlog.errors import AccessDeniedError
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.peer_auth import Dialling
from raftlog.server.peers.peering import Peering
from raftlog.server.peers.registry import PeerRegistry


def identity(broker_id: int, cluster_id: str = "") -> PeerIdentity:
    return PeerIdentity(
        broker_id=broker_id,
        directory_id=f"disk-{broker_id}",
        boot=1,
        host="broker",
        port=1,
        protocol_version=1,
        cluster_id=cluster_id,
    )


def test_each_handshake_is_with_a_nonce_of_its_own_and_who_we_are_now() -> None:
    known = ["", "c1"]
    nonces = iter([bytes([1] * 32), bytes([2] * 32)])
    peering = Peering(
        secret=b"sesame",
        me=lambda: identity(1, known.pop(0)),
        nonce=lambda: next(nonces),
        registry=PeerRegistry(
            seen=lambda _id: None, heard=lambda _id: None, time=lambda: 0.0, session_timeout_s=1.0
        ),
        receive=lambda _peer, _envelope: None,
    )
    dialling = Dialling(b"sesame", identity(2), bytes(32), expected=1)
    first = peering.answering()
    second = peering.answering()
    one, two = first.answer(dialling.hello()), second.answer(dialling.hello())
    assert (one.nonce[0], two.nonce[0]) == (1, 2)
    assert (one.identity.cluster_id, two.identity.cluster_id) == ("", "c1")
    proof = dialling.check(one)
    with pytest.raises(AccessDeniedError):
        second.check(proof)
    assert first.check(proof) == identity(2)
