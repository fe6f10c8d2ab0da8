"""Admission of requests, before their handlers."""

from __future__ import annotations

from raftlog import limits
from raftlog.errors import TopicAuthorizationFailedError
from raftlog.protocol import api as apis
from raftlog.protocol.records import ListOffsetsRequest, OffsetQuery
from raftlog.security.acl import Acl
from tests.server.access.acting import access_of, acting, allowing
from tests.server.harness import RunningBroker, error_of


def test_a_request_with_many_topics_does_not_hold_the_loop(broker: RunningBroker) -> None:
    """It takes as many steps that other connections can run in between."""
    access_of(broker).is_enforced = True
    count = limits.PARTITIONS_PER_REQUEST_MAX
    queries = [OffsetQuery(topic=f"t{n}", partition=0, at="latest") for n in range(count)]
    turns = broker.broker.connections.turns
    with (
        allowing(broker, Acl("User:alice", "DESCRIBE", "TOPIC", "t7")),
        acting(broker, "alice") as alice,
    ):
        asked, has_time = 0, turns.has_time

        def counted() -> bool:
            nonlocal asked
            asked += 1
            return has_time()

        turns.has_time = counted  # type: ignore[method-assign]
        answers = alice.ask(apis.LIST_OFFSETS, ListOffsetsRequest(queries=queries)).answers
    assert asked >= count / 256
    assert [answer.topic for answer in answers] == [query.topic for query in queries]
    denied = [
        answer for answer in answers if isinstance(error_of(answer), TopicAuthorizationFailedError)
    ]
    assert len(denied) == count - 1
