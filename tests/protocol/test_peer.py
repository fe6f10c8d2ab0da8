"""``peer_hello``, ``peer_prove``, ``raft`` and ``peer_ping``: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.protocol.peer import (
    ENVELOPE_BYTES_MAX,
    NONCE_BYTES,
    PARTITION_STATE_BYTES_MAX,
    PROOF_BYTES,
    DescribeCopiesRequest,
    DescribeCopiesResponse,
    FollowerSession,
    LeaderSession,
    PartitionKey,
    PartitionStatesRequest,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerIdentity,
    PeerPingRequest,
    PeerProveRequest,
    RaftRequest,
    ReplicaFetched,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPosition,
    ReplicaProgressRequest,
    TopicIdPartition,
    TransactionMarkersRequest,
    TransactionOwnersRequest,
    VerifyTransactionsRequest,
    check_envelope,
)
from raftlog.protocol.schema import Message
from raftlog.protocol.security import Answering
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


# -- replica session -------------------------------------------------------------------------------
#
# Fetch sessions: what is not said again is remembered, whatever moves, comes and goes.


def at(partition: int, fetch_offset: int = 0, *, topic_id: str = "t") -> ReplicaPosition:
    return ReplicaPosition(
        topic_id=topic_id,
        partition=partition,
        leader_epoch=0,
        fetch_offset=fetch_offset,
        last_epoch=-1,
        durable_offset=0,
    )


def named(request: ReplicaFetchRequest) -> list[tuple[int, int]]:
    return [(one.partition, one.fetch_offset) for one in request.partitions]


def gone(request: ReplicaFetchRequest) -> list[int]:
    return [one.partition for one in request.forgotten]


def test_the_first_request_names_all() -> None:
    session = FollowerSession()
    session.set(at(1, 5))
    session.set(at(0, 6))
    request = session.request(wait_ms_max=7, bytes_min=8, bytes_max=9)
    assert request == ReplicaFetchRequest(
        partitions=[at(1, 5), at(0, 6)], full=True, wait_ms_max=7, bytes_min=8, bytes_max=9
    )


def test_the_first_request_is_full_with_nothing_in_it() -> None:
    session = FollowerSession()
    assert not session.is_sent
    request = session.request()
    assert (request.full, request.partitions) == (True, [])
    assert session.is_sent
    assert not session.request().full


def test_later_requests_name_what_moved() -> None:
    session = FollowerSession()
    for partition in range(3):
        session.set(at(partition))
    session.request()
    session.set(at(1, 10))
    session.set(at(2))
    request = session.request()
    assert (named(request), request.full, gone(request)) == ([(1, 10)], False, [])
    assert session.is_sent
    assert named(session.request()) == []


def test_the_last_position_counts() -> None:
    session = FollowerSession()
    session.set(at(0, 1))
    session.set(at(0, 2))
    assert named(session.request()) == [(0, 2)]


def test_what_is_asked_for_no_more_is_said_once() -> None:
    session = FollowerSession()
    session.set(at(0))
    session.set(at(1))
    session.request()
    session.forget("t", 0)
    assert not session.is_sent
    assert list(session.positions) == [("t", 1)]
    request = session.request()
    assert (named(request), gone(request)) == ([], [0])
    assert gone(session.request()) == []
    session.set(at(0))
    session.forget("t", 0)
    assert session.is_sent, "the leader has forgotten it already"


@pytest.mark.parametrize("before", [True, False])
def test_what_was_never_told_need_not_be_forgotten(before: bool) -> None:
    session = FollowerSession()
    session.set(at(0))
    if before:
        session.request()
    session.set(at(1))
    session.forget("t", 1)
    session.forget("t", 9)
    request = session.request()
    assert (named(request), gone(request)) == ([] if before else [(0, 0)], [])


def test_forgotten_and_asked_for_again_at_once_is_asked_for() -> None:
    follower, leader = FollowerSession(), LeaderSession()
    follower.set(at(0, 3))
    leader.apply(follower.request())
    follower.forget("t", 0)
    follower.set(at(0, 3))
    request = follower.request()
    assert (named(request), gone(request)) == ([(0, 3)], []), "the same position counts as news"
    leader.apply(request)
    assert leader.positions == follower.positions


def test_a_leader_keeps_what_is_not_said_again() -> None:
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0), at(1)], full=True))
    forgotten = [TopicIdPartition("t", 0), TopicIdPartition("t", 7)]
    leader.apply(ReplicaFetchRequest(partitions=[at(2, 9)], full=False, forgotten=forgotten))
    assert leader.positions == {("t", 1): at(1), ("t", 2): at(2, 9)}


def test_a_full_request_begins_anew() -> None:
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0), at(1)], full=True))
    leader.apply(ReplicaFetchRequest(partitions=[at(2)], full=True))
    assert leader.positions == {("t", 2): at(2)}


def test_a_session_begins_with_a_full_request() -> None:
    leader = LeaderSession()
    with pytest.raises(InvalidRequestError, match="full"):
        leader.apply(ReplicaFetchRequest(partitions=[at(0)], full=False))
    assert leader.positions == {}


def test_topics_of_one_name_are_told_apart_by_their_ids() -> None:
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0, 1), at(0, 2, topic_id="u")], full=True))
    assert leader.positions == {("t", 0): at(0, 1), ("u", 0): at(0, 2, topic_id="u")}


def test_a_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PER_BROKER_MAX", 3)
    leader = LeaderSession()
    leader.apply(ReplicaFetchRequest(partitions=[at(0), at(1), at(2)], full=True))
    before = dict(leader.positions)
    for full in (False, True):
        wrong = [at(number) for number in range(3, 7 if full else 4)]
        with pytest.raises(InvalidRequestError, match="PARTITIONS_PER_BROKER_MAX"):
            leader.apply(ReplicaFetchRequest(partitions=wrong, full=full))
        assert leader.positions == before
    swap = ReplicaFetchRequest(partitions=[at(3)], full=False, forgotten=[TopicIdPartition("t", 0)])
    leader.apply(swap)
    assert len(leader.positions) == 3
    others = [at(number) for number in range(7, 10)]
    leader.apply(ReplicaFetchRequest(partitions=others, full=True))
    assert len(leader.positions) == 3


def test_what_is_too_much_for_one_request_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", 2)
    follower, leader = FollowerSession(), LeaderSession()
    for partition in range(5):
        follower.set(at(partition))
    sizes = []
    while not follower.is_sent:
        request = follower.request()
        sizes.append((len(request.partitions), request.full))
        leader.apply(request)
    assert sizes == [(2, True), (2, False), (1, False)]
    assert leader.positions == follower.positions


keys = st.integers(0, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, st.integers(0, 3)),
        st.tuples(st.just("forget"), keys, st.just(0)),
        st.tuples(st.just("send"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 4))
def test_both_sides_know_the_same_once_all_is_told(
    todo: list[tuple[str, int, int]], at_once: int
) -> None:
    follower, leader = FollowerSession(), LeaderSession()
    model: dict[PartitionKey, ReplicaPosition] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PARTITIONS_PER_REQUEST_MAX", at_once)
        for what, partition, fetch_offset in todo:
            if what == "set":
                follower.set(at(partition, fetch_offset))
                model["t", partition] = at(partition, fetch_offset)
            elif what == "forget":
                follower.forget("t", partition)
                model.pop(("t", partition), None)
            else:
                leader.apply(follower.request())
            assert follower.positions == model
            assert not follower.is_sent or leader.positions == model
        while not follower.is_sent:
            leader.apply(follower.request())
    assert leader.positions == model


# -- replication -----------------------------------------------------------------------------------
#
# Between brokers, of partitions: the bounds in the fields of requests and responses.


MOST = limits.PARTITIONS_PER_REQUEST_MAX
KEY: dict[str, Any] = {"topic_id": "t", "partition": 0}
POSITION = {**KEY, "leader_epoch": 4, "fetch_offset": 9, "last_epoch": -1, "durable_offset": 7}
DURABLE = {**KEY, "leader_epoch": 4, "durable_offset": 7}
STATE = {**KEY, "version": 3, "state": b"s"}


def test_a_fetch_has_defaults_that_wait_half_a_second() -> None:
    message = accepted(ReplicaFetchRequest, {"partitions": [POSITION], "full": True})
    assert message == ReplicaFetchRequest(
        partitions=[ReplicaPosition("t", 0, 4, 9, -1, 7, bytes_max=limits.MIB)],
        full=True,
        forgotten=[],
        wait_ms_max=500,
        bytes_min=1,
        bytes_max=limits.FETCH_BYTES_MAX,
    )


def test_a_fetch_says_whether_it_is_full() -> None:
    refused(ReplicaFetchRequest, {"partitions": []}, path="full")
    accepted(ReplicaFetchRequest, {"partitions": [], "full": False})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", [POSITION] * (MOST + 1)),
        ("forgotten", [KEY] * (MOST + 1)),
        ("wait_ms_max", limits.FETCH_WAIT_MS_MAX + 1),
        ("bytes_min", -1),
        ("bytes_max", limits.FRAME_BYTES_MAX + 1),
    ],
)
def test_a_fetch_is_bounded(name: str, value: Any) -> None:
    good = {"partitions": [], "full": True}
    refused(ReplicaFetchRequest, {**good, name: value}, path=f"$.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic_id", ""),
        ("topic_id", "x" * (limits.ID_CHARS_MAX + 1)),
        ("partition", -1),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("leader_epoch", -1),
        ("leader_epoch", 1 << 31),
        ("fetch_offset", -1),
        ("fetch_offset", 1 << 63),
        ("last_epoch", -2),
        ("durable_offset", -1),
        ("bytes_max", -1),
    ],
)
def test_a_position_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**POSITION, name: value}], "full": True}
    refused(ReplicaFetchRequest, wrong, path=f"$.partitions[0].{name}")


def test_an_answer_has_batches_or_a_way_back_or_a_failure() -> None:
    parts = [
        {**KEY, "leader_epoch": 4, "high_watermark": 9, "log_start_offset": 0, "length": 100},
        {**KEY, "diverged": {"epoch": 3, "end_offset": 8}},
        {**KEY, "restart_at": 0},
        {**KEY, "failure": {"code": 6}},
    ]
    message = accepted(ReplicaFetchResponse, {"partitions": parts})
    assert isinstance(message, ReplicaFetchResponse)
    batches, diverged, restart, failed = message.partitions
    assert batches == ReplicaFetched(
        "t", 0, leader_epoch=4, high_watermark=9, log_start_offset=0, length=100
    )
    assert diverged.diverged is not None
    assert (diverged.diverged.epoch, diverged.diverged.end_offset) == (3, 8)
    assert (restart.restart_at, batches.restart_at) == (0, None), "offset 0 is not none at all"
    assert failed.failure is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leader_epoch", -2),
        ("high_watermark", -2),
        ("log_start_offset", 1 << 63),
        ("restart_at", -1),
        ("length", limits.FRAME_BYTES_MAX + 1),
        ("topic_id", ""),
    ],
)
def test_an_answer_is_bounded(name: str, value: Any) -> None:
    wrong = {"partitions": [{**KEY, name: value}]}
    refused(ReplicaFetchResponse, wrong, path=f"$.partitions[0].{name}")


@pytest.mark.parametrize(("name", "value"), [("epoch", -2), ("end_offset", -2)])
def test_a_divergence_is_bounded(name: str, value: int) -> None:
    point = {"epoch": 3, "end_offset": 8, name: value}
    wrong = {"partitions": [{**KEY, "diverged": point}]}
    refused(ReplicaFetchResponse, wrong, path=f"$.partitions[0].diverged.{name}")


# Each one-way request, the list in it, and one good item of that list.
ONE_WAY: list[tuple[type[Message], str, dict[str, Any]]] = [
    (ReplicaProgressRequest, "partitions", DURABLE),
    (PartitionStatesRequest, "states", STATE),
]


@pytest.mark.parametrize(("request_type", "name", "item"), ONE_WAY)
def test_what_is_told_is_not_too_much_at_once(
    request_type: type[Message], name: str, item: dict[str, Any]
) -> None:
    accepted(request_type, {name: []})
    accepted(request_type, {name: [item] * MOST})
    refused(request_type, {name: [item] * (MOST + 1)}, path=f"$.{name}")


@pytest.mark.parametrize(
    ("request_type", "list_name", "item", "name", "value"),
    [
        (ReplicaProgressRequest, "partitions", DURABLE, "leader_epoch", -1),
        (ReplicaProgressRequest, "partitions", DURABLE, "durable_offset", -1),
        (ReplicaProgressRequest, "partitions", DURABLE, "topic_id", ""),
        (PartitionStatesRequest, "states", STATE, "version", -1),
        (PartitionStatesRequest, "states", STATE, "state", "text"),
        (PartitionStatesRequest, "states", STATE, "state", bytes(PARTITION_STATE_BYTES_MAX + 1)),
        (PartitionStatesRequest, "states", STATE, "partition", -1),
    ],
)
def test_what_is_told_is_bounded(
    request_type: type[Message], list_name: str, item: dict[str, Any], name: str, value: Any
) -> None:
    wrong = {list_name: [{**item, name: value}]}
    refused(request_type, wrong, path=f"$.{list_name}[0].{name}")


COPY = {**KEY, "end_offset": 7, "last_epoch": -1, "standing": 2, "version": 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [("end_offset", -1), ("last_epoch", -2), ("standing", 3), ("standing", -1), ("version", -1)],
)
def test_what_is_said_of_copies_is_bounded(name: str, value: int) -> None:
    accepted(DescribeCopiesRequest, {"partitions": [KEY] * MOST})
    refused(DescribeCopiesRequest, {"partitions": [KEY] * (MOST + 1)}, path="$.partitions")
    facts = {"directory_id": "d", "boot": 1}
    accepted(DescribeCopiesResponse, {**facts, "copies": [COPY]})
    wrong = {**facts, "copies": [{**COPY, name: value}]}
    refused(DescribeCopiesResponse, wrong, path=f"$.copies[0].{name}")


QUERY = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 2, "partitions": [KEY]}
MARKER = {
    **KEY,
    "topic": "t",
    "producer_id": 7,
    "producer_epoch": 3,
    "is_commit": True,
    "coordinator_epoch": 2,
    "is_bumped": True,
    "number": 9,
}


OPENED = {**KEY, "producer_id": 7}


@pytest.mark.parametrize(
    ("request_type", "name", "item", "field", "value"),
    [
        (VerifyTransactionsRequest, "queries", QUERY, "producer_id", -1),
        (VerifyTransactionsRequest, "queries", QUERY, "producer_epoch", 32_768),
        (VerifyTransactionsRequest, "queries", QUERY, "topics_version", -1),
        (TransactionMarkersRequest, "markers", MARKER, "producer_epoch", -1),
        (TransactionMarkersRequest, "markers", MARKER, "coordinator_epoch", -1),
        (TransactionMarkersRequest, "markers", MARKER, "number", -1),
        (TransactionMarkersRequest, "markers", MARKER, "topic_id", ""),
        (TransactionOwnersRequest, "transactions", OPENED, "producer_id", -1),
    ],
)
def test_what_is_said_of_transactions_is_bounded(
    request_type: type[Message], name: str, item: dict[str, Any], field: str, value: Any
) -> None:
    most = limits.TRANSACTION_ITEMS_PER_REQUEST_MAX
    accepted(request_type, {name: [item] * most})
    refused(request_type, {name: [item] * (most + 1)}, path=f"$.{name}")
    refused(request_type, {name: [{**item, field: value}]}, path=f"$.{name}[0].{field}")


# -- guards proofs ---------------------------------------------------------------------------------
#
# A proof is of each field by itself, not of all of them in a row.


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
