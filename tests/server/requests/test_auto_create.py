"""A topic that is requested by many at once is created once."""

from __future__ import annotations

from raftlog.server.apis.topics import create_soon
from tests.server.harness import RunningBroker


def test_a_topic_is_created_once(broker: RunningBroker) -> None:
    context = broker.broker.context

    def request_three_times() -> list[bool]:
        return [create_soon(context, "t", "a client") for _ in range(3)]

    assert broker.call(request_three_times) == [True] * 3
    broker.wait_until(lambda: "t" in context.topics and not context.creating)
    assert len(context.topics.topic("t").hosts) == 1


def test_a_creation_that_fails_can_be_tried_again(broker: RunningBroker) -> None:
    context = broker.broker.context
    with broker.client() as native:
        native.create("t")
    assert broker.call(lambda: create_soon(context, "t", "a client"))
    broker.wait_until(lambda: not context.creating)
    assert not broker.call(lambda: create_soon(context, "__audit", "a client"))
