"""``replica_fetch``, ``replica_progress`` and ``partition_states``: from requests to sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.errors import UnsupportedFeatureError
from raftlog.protocol.connection import Request
from raftlog.protocol.peer import (
    DurablePosition,
    EncodedPartitionState,
    PartitionStatesRequest,
    ReplicaFetchRequest,
    ReplicaProgressRequest,
)
from raftlog.server.apis import peer
from raftlog.server.context import BrokerContext
from tests.server.cluster.paper import PaperReply


class Context:
    """As much of a broker's context as these requests need."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.state_broadcast = SimpleNamespace(
            receive=lambda states, _recovery: self.calls.append(("take", states))
        )

    def clustered(self) -> Context:
        return self

    def session(self, connection: Any) -> Any:
        return SimpleNamespace(
            fetch=lambda message, reply: self.calls.append(("fetch", connection, message, reply)),
            progress=lambda parts: self.calls.append(("progress", connection, parts)),
        )


def handle(handler: Any, message: Any) -> tuple[Context, PaperReply]:
    context, reply = Context(), PaperReply()
    request = cast(Request, SimpleNamespace(message=message))
    handler(cast(BrokerContext, context), request, reply.as_reply)
    return context, reply


def test_a_fetch_goes_to_the_session_of_its_connection_which_answers() -> None:
    message = ReplicaFetchRequest(partitions=[], full=True)
    context, reply = handle(peer.handle_fetch, message)
    assert context.calls == [("fetch", reply.connection, message, reply)]
    assert (reply.answers, reply.ends) == ([], 0)


def test_progress_goes_there_too_and_wants_no_answer() -> None:
    position = DurablePosition("T1", 0, 1, 5)
    context, reply = handle(peer.handle_progress, ReplicaProgressRequest(partitions=[position]))
    assert context.calls == [("progress", reply.connection, [position])]
    assert (reply.answers, reply.ends) == ([], 1)


def test_states_are_believed_or_not_and_want_no_answer() -> None:
    state = EncodedPartitionState("T1", 0, 1, b"")
    context, reply = handle(peer.handle_states, PartitionStatesRequest(states=[state]))
    assert context.calls == [("take", [state])]
    assert (reply.answers, reply.ends) == ([], 1)


@pytest.mark.parametrize("handler", [peer.handle_fetch, peer.handle_progress, peer.handle_states])
def test_a_broker_that_stands_alone_has_none_of_this(handler: Any) -> None:
    class Alone(Context):
        def clustered(self) -> Context:
            raise UnsupportedFeatureError("alone")

    with pytest.raises(UnsupportedFeatureError):
        handler(Alone(), SimpleNamespace(message=None), PaperReply())
