"""A proof is of each field by itself, not of all of them in a row."""

from __future__ import annotations

from raftlog.protocol.peer import NONCE_BYTES, PeerHelloRequest, PeerIdentity
from raftlog.protocol.security import Answering

NONCE = bytes(NONCE_BYTES)


def identity(broker_id: int, directory_id: str, boot: int) -> PeerIdentity:
    return PeerIdentity(
        broker_id=broker_id,
        directory_id=directory_id,
        boot=boot,
        host="h",
        port=1,
        protocol_version=1,
        cluster_id="c",
    )


def test_two_identities_that_spell_the_same_have_different_proofs() -> None:
    """Boot 11 of directory ``a`` and boot 1 of directory ``a1``."""
    proofs = {
        Answering(b"secret", identity(2, "two", 1), NONCE)
        .answer(PeerHelloRequest(identity=peer, nonce=NONCE))
        .proof
        for peer in (identity(1, "a", 11), identity(1, "a1", 1))
    }
    assert len(proofs) == 2
