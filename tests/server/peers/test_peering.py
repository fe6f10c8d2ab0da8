"""What the handlers are given: each handshake has a nonce, and an identity, of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.errors import (
    AccessDeniedError,
    BrokerUnavailableError,
    RaftlogError,
    WrongClusterError,
)
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.security import Dialling
from raftlog.server.peers.links import Peering, PeerRegistry


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


def peering_of(
    me: Callable[[], PeerIdentity],
    on_refused: Callable[[int, RaftlogError], None] = lambda _peer, _error: None,
) -> Peering:
    nonces = iter([bytes([1] * 32), bytes([2] * 32)])
    return Peering(
        secret=b"sesame",
        me=me,
        nonce=lambda: next(nonces),
        registry=PeerRegistry(
            seen=lambda _id: None, heard=lambda _id: None, time=lambda: 0.0, session_timeout_s=1.0
        ),
        receive=lambda _peer, _envelope: None,
        wall_ms=lambda: 0,
        on_refused=on_refused,
    )


def test_each_handshake_is_with_a_nonce_of_its_own_and_who_we_are_now() -> None:
    known = ["", "c1"]
    peering = peering_of(lambda: identity(1, known.pop(0)))
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


class Incoming:
    """A connection, as the registry sees it."""

    last_active_seconds = 0.0
    peer_identity: PeerIdentity | None = None
    is_closed = False
    certificate = None

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


def test_an_answer_that_is_out_of_date_brings_no_connection_about() -> None:
    """Who founds a cluster has to know that those it counts on have not joined another one."""
    known = ["", "c1"]
    peering = peering_of(lambda: identity(1, known.pop(0)))
    dialling = Dialling(b"sesame", identity(2), bytes(32), expected=1)
    answering = peering.answering()
    prove = dialling.check(answering.answer(dialling.hello()))
    with pytest.raises(BrokerUnavailableError, match="has joined a cluster"):
        peering.admit(answering, prove, Incoming())
    assert peering.registry.latest(2) is None


def test_a_proved_peer_of_another_cluster_is_told_of_here_too() -> None:
    told: list[tuple[int, str]] = []
    peering = peering_of(
        lambda: identity(1, "c1"), on_refused=lambda peer, error: told.append((peer, str(error)))
    )
    dialling = Dialling(b"sesame", identity(2, "c2"), bytes(32), expected=1)
    answering = peering.answering()
    prove = dialling.check(answering.answer(dialling.hello()))
    with pytest.raises(WrongClusterError, match="c2"):
        peering.admit(answering, prove, Incoming())
    ((peer, why),) = told
    assert peer == 2
    assert "belongs to cluster c2" in why
    assert peering.registry.latest(2) is None
