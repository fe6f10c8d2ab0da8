"""``peer_hello``, ``peer_prove``, ``raft`` and ``peer_ping``: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.protocol.peer import (
    ENVELOPE_BYTES_MAX,
    NONCE_BYTES,
    PROOF_BYTES,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerIdentity,
    PeerPingRequest,
    PeerProveRequest,
    RaftRequest,
    check_envelope,
)
from tests.protocol.fields import accepted, refused

IDENTITY: dict[str, Any] = {
    "broker_id": 1,
    "directory_id": "d1",
    "boot": 7,
    "host": "10.0.0.1",
    "port": 9100,
    "protocol_version": 1,
}
NONCE = bytes(NONCE_BYTES)
PROOF = bytes(PROOF_BYTES)


def test_a_broker_that_has_yet_to_join_knows_no_cluster() -> None:
    assert accepted(PeerIdentity, IDENTITY) == PeerIdentity(
        broker_id=1,
        directory_id="d1",
        boot=7,
        host="10.0.0.1",
        port=9100,
        protocol_version=1,
        cluster_id="",
    )


@pytest.mark.parametrize("name", IDENTITY)
def test_an_identity_is_whole(name: str) -> None:
    lacking = {key: value for key, value in IDENTITY.items() if key != name}
    refused(PeerHelloRequest, {"identity": lacking, "nonce": NONCE}, path=name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker_id", -1),
        ("broker_id", 1 << 31),
        ("directory_id", ""),
        ("directory_id", "x" * (limits.ID_CHARS_MAX + 1)),
        ("boot", -1),
        ("boot", 1 << 63),
        ("host", "x" * (limits.HOST_CHARS_MAX + 1)),
        ("port", 65_536),
        ("protocol_version", 65_536),
        ("cluster_id", "x" * (limits.ID_CHARS_MAX + 1)),
        ("cluster_id", None),
    ],
)
def test_an_identity_is_bounded(name: str, value: Any) -> None:
    wrong = {**IDENTITY, name: value}
    refused(PeerHelloRequest, {"identity": wrong, "nonce": NONCE}, path=f"$.identity.{name}")


@pytest.mark.parametrize("size", [0, NONCE_BYTES - 1, NONCE_BYTES + 1])
def test_nonces_and_proofs_have_one_size(size: int) -> None:
    hello = {"identity": IDENTITY, "nonce": bytes(size)}
    refused(PeerHelloRequest, hello, path="$.nonce")
    refused(PeerHelloResponse, {**hello, "proof": PROOF}, path="$.nonce")
    refused(
        PeerHelloResponse,
        {"identity": IDENTITY, "nonce": NONCE, "proof": bytes(size)},
        path="$.proof",
    )
    refused(PeerProveRequest, {"proof": bytes(size)}, path="$.proof")


def test_a_nonce_is_bytes_and_no_text() -> None:
    refused(PeerHelloRequest, {"identity": IDENTITY, "nonce": "x" * NONCE_BYTES}, path="$.nonce")


@pytest.mark.parametrize(("name", "value"), [("sent", -1), ("sent", 1 << 63), ("broker_epoch", -2)])
def test_a_ping_is_bounded(name: str, value: int) -> None:
    good = {"sent": 0, "broker_epoch": -1}
    assert accepted(PeerPingRequest, good) == PeerPingRequest(sent=0, broker_epoch=-1)
    refused(PeerPingRequest, {**good, name: value}, path=f"$.{name}")


def test_an_envelope_is_all_that_a_raft_request_has() -> None:
    assert accepted(RaftRequest, {}) == RaftRequest()
    assert check_envelope(memoryview(b"e")) == b"e"


@pytest.mark.parametrize("size", [0, ENVELOPE_BYTES_MAX + 1])
def test_an_envelope_is_bounded(size: int) -> None:
    assert len(check_envelope(memoryview(bytes(ENVELOPE_BYTES_MAX)))) == ENVELOPE_BYTES_MAX
    with pytest.raises(InvalidRequestError, match=f"envelope of {size} bytes"):
        check_envelope(memoryview(bytes(size)))
