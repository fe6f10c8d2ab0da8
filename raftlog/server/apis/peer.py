"""``peer_hello``, ``peer_prove``, ``raft``, ``peer_ping``: requests of other brokers.

The first two authenticate a connection as a peer's; ``dispatch`` rejects the others before that.
Until the proof, no claim of the other side has any effect.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast

from raftlog.errors import AccessDeniedError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.peer import (
    DescribeCopiesRequest,
    PartitionStatesRequest,
    PeerHelloRequest,
    PeerIdentity,
    PeerPingRequest,
    PeerPingResponse,
    PeerProveRequest,
    PeerProveResponse,
    ReplicaFetchRequest,
    ReplicaProgressRequest,
    TransactionItemsResponse,
    TransactionMarkersRequest,
    TransactionOwnersRequest,
    VerifyTransactionsRequest,
    check_envelope,
)
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes, Reply
from raftlog.server.peers import Peering
from raftlog.server.scheduling import Steps


class _HasPeering(Protocol):
    @property
    def peering(self) -> Peering: ...


class PeeringContext(Protocol):
    """The part of the broker's context that these handlers use."""

    @property
    def cluster(self) -> _HasPeering: ...


def handle_hello(context: PeeringContext, request: Request, reply: Reply) -> None:
    """Send this broker's identity and its proof. The other side has not proved its identity yet."""
    message = request.message
    assert isinstance(message, PeerHelloRequest)
    connection = reply.connection
    try:
        if connection.answering is None:
            connection.answering = context.cluster.peering.answering()
        response = connection.answering.answer(message)
    except RaftlogError as error:
        _turn_away(reply, error)
    else:
        reply.send(response)


def handle_prove(context: PeeringContext, request: Request, reply: Reply) -> None:
    """Verify the proof of the other side. If it is valid, the connection is that peer's from now
    on.
    """
    message = request.message
    assert isinstance(message, PeerProveRequest)
    connection = reply.connection
    try:
        peering = context.cluster.peering
        if connection.answering is None:
            raise AccessDeniedError("send peer_prove once, after peer_hello")
        peer = peering.admit(connection.answering, message, connection)
    except RaftlogError as error:
        _turn_away(reply, error)
    else:
        connection.prove(peer)
        reply.send(PeerProveResponse())


def handle_raft(context: PeeringContext, request: Request, reply: Reply) -> None:
    """Forward envelopes in the order of arrival; Raft validates their content."""
    envelope = check_envelope(request.attachment)
    context.cluster.peering.receive(_peer(reply).broker_id, bytes(envelope))
    reply.none()


def handle_ping(context: PeeringContext, request: Request, reply: Reply) -> None:
    """Respond to a ping."""
    message = request.message
    assert isinstance(message, PeerPingRequest)
    peering = context.cluster.peering
    peering.broker_epochs[_peer(reply).broker_id] = message.broker_epoch
    reply.send(PeerPingResponse(wall_ms=peering.wall_ms()))


def _turn_away(reply: Reply, error: RaftlogError) -> None:
    """Reject a handshake. It cannot be retried on the same connection."""
    reply.connection.note_refusal(reply.name, error, reply.request_id)
    reply.fail(error)
    reply.connection.end(error)


def _peer(reply: Reply) -> PeerIdentity:
    peer = reply.connection.peer_identity
    assert peer is not None, "dispatch accepts this request from brokers only"
    return peer


# -- replica ---------------------------------------------------------------------------------------
#
# ``replica_fetch`` and ``replica_progress``: a follower copies partitions that this broker leads.
#
# Also ``partition_states``: partition states for brokers that are not voters; and
# ``describe_copies``: reports on this broker's copies, for an election.


def handle_fetch(context: BrokerContext, request: Request, reply: Reply) -> None:
    session = context.cluster.session(reply.connection)
    session.fetch(cast(ReplicaFetchRequest, request.message), reply)


def handle_progress(context: BrokerContext, request: Request, reply: Reply) -> None:
    session = context.cluster.session(reply.connection)
    session.progress(cast(ReplicaProgressRequest, request.message).partitions)
    reply.none()


def handle_states(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(PartitionStatesRequest, request.message)
    context.cluster.state_broadcast.receive(message.states, message.recovery)
    reply.none()


def handle_copies(context: BrokerContext, request: Request, reply: Reply) -> None:
    surveys = context.cluster.surveys
    reply.send(surveys.describe(cast(DescribeCopiesRequest, request.message).partitions))


# -- transactions ----------------------------------------------------------------------------------
#
# ``verify_transactions``, ``transaction_markers``, ``transaction_owners``: see
# ``raftlog.server.transactions``.


def handle_verify_transactions(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    queries = cast(VerifyTransactionsRequest, request.message).queries
    outcomes = _outcomes(reply, len(queries))
    for index, query in enumerate(queries):
        if index:
            yield None
        context.transactions.answer(query, partial(_resolve, outcomes, index))


def handle_transaction_markers(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    """Respond once each marker is committed or has failed, but soon: one partition that cannot
    commit must not hold up the others.
    """
    markers = cast(TransactionMarkersRequest, request.message).markers
    outcomes = _outcomes(reply, len(markers))
    for index, marker in enumerate(markers):
        if index:
            yield None
        context.transactions.take_marker(marker, partial(_resolve, outcomes, index))


def handle_transaction_owners(context: BrokerContext, request: Request, reply: Reply) -> None:
    asked = cast(TransactionOwnersRequest, request.message).transactions
    parts = [(each.producer_id, (each.topic_id, each.partition)) for each in asked]
    context.transactions.hanging.answer(parts, reply.send)


def _outcomes(reply: Reply, count: int) -> Outcomes[Failure | None]:
    return Outcomes(count, lambda found: reply.send(TransactionItemsResponse(failures=found)))


def _resolve(outcomes: Outcomes[Failure | None], index: int, error: RaftlogError | None) -> None:
    outcomes.resolve(index, None if error is None else Failure.of(error))
