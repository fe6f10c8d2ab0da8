"""Who may ask for what: brokers for the state and with commands, operators for IDs and removals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.errors import AccessDeniedError
from raftlog.protocol.cluster import (
    CancelDecommissionRequest,
    ClusterStateRequest,
    ClusterStateResponse,
    DecommissionRequest,
    ProposeRequest,
    ReserveBrokerIdRequest,
)
from raftlog.protocol.connection import Request
from raftlog.server.apis import cluster
from raftlog.server.context import BrokerContext
from tests.server.cluster.paper import PaperReply


class Desk:
    """A broker with a secret, and one connection to it."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        state = ClusterStateResponse(cluster_id="c", version=3, has_vote=True)
        subscription = SimpleNamespace(
            serve=lambda _request, send: send(state, [b"state"]), propose=lambda request: request
        )
        operations = SimpleNamespace(
            reserve_broker_id=lambda: "an id",
            decommission=lambda request: request,
            cancel_decommission=lambda request: request,
        )
        self.context = SimpleNamespace(
            operator_secret=b"sesame",
            access=SimpleNamespace(is_enforced=False),
            operations=operations,
            clustered=lambda: SimpleNamespace(subscription=subscription),
            administration=SimpleNamespace(
                submit_at_once=lambda operation, _reply: self.begun.append(operation())
            ),
        )
        self.context.check_operator = lambda connection, what: BrokerContext.check_operator(
            cast(BrokerContext, self.context), connection, what
        )
        self.connection = SimpleNamespace(is_operator=False, peer_identity=None)

    def ask(self, handler: Any, message: Any) -> PaperReply:
        reply = PaperReply(connection=cast(Any, self.connection))
        request = cast(Request, SimpleNamespace(message=message))
        handler(cast(BrokerContext, self.context), request, reply.as_reply)
        return reply


def test_brokers_get_the_state_and_have_commands_proposed() -> None:
    desk = Desk()
    reply = desk.ask(cluster.handle_state, ClusterStateRequest(version=0, wait_ms=0))
    assert reply.answers[0][0].version == 3
    command = ProposeRequest(command=b"x")
    desk.ask(cluster.handle_propose, command)
    assert desk.begun == [command]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (cluster.handle_reserve_id, ReserveBrokerIdRequest()),
        (cluster.handle_decommission, DecommissionRequest(broker=3)),
        (cluster.handle_cancel_decommission, CancelDecommissionRequest(broker=3)),
    ],
)
def test_operators_prove_that_they_know_the_secret(handler: Any, message: Any) -> None:
    desk = Desk()
    with pytest.raises(AccessDeniedError, match="requires the cluster secret"):
        desk.ask(handler, message)
    assert desk.begun == []
    desk.connection.is_operator = True
    desk.ask(handler, message)
    assert len(desk.begun) == 1
