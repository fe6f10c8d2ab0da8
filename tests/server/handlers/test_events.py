"""``describe_events``: what the broker remembers since a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from raftlog.protocol.cluster import DescribeEventsRequest, EventStatus
from raftlog.protocol.connection import Request
from raftlog.replication.cluster_commands import Event
from raftlog.server.apis import cluster
from raftlog.server.context import BrokerContext
from raftlog.server.partition import EventLog
from tests.server.cluster.paper import PaperReply


def answer(log: EventLog, since_ms: int) -> tuple[list[EventStatus], int]:
    """The events of the response, and the number of steps."""
    reply = PaperReply()
    context = cast(BrokerContext, SimpleNamespace(events=log))
    request = cast(Request, SimpleNamespace(message=DescribeEventsRequest(since_ms=since_ms)))
    steps = list(cluster.handle(context, request, reply.as_reply))
    response: Any = reply.answers[0][0]
    return response.events, len(steps)


def test_events_since_a_time_are_returned_whole() -> None:
    log = EventLog()
    log.add(Event("broker-fenced", "text", broker=3, version=8), 10)
    log.add(Event("leader-elected", "text", "t", 0, 2, 5, 9, "id"), 11)
    log.add(Event("isr-shrunk", "text", "t", 0, leader_epoch=5, version=10, topic_id="id"), 12)
    found, _ = answer(log, 11)
    assert [event.at_ms for event in found] == [11, 12]
    first, second = found
    assert (first.topic, first.topic_id, first.partition, first.broker) == ("t", "id", 0, 2)
    assert (first.leader_epoch, first.version) == (5, 9)
    assert second.broker is None
    (fenced, *_), _ = answer(log, 0)
    assert (fenced.topic, fenced.partition, fenced.broker) == ("", None, 3)


def test_many_events_are_read_in_steps() -> None:
    log = EventLog()
    for number in range(2 * cluster.EVENTS_PER_STEP):
        log.add(Event("isr-shrunk", "text"), number)
    found, steps = answer(log, 0)
    assert (len(found), steps) == (2 * cluster.EVENTS_PER_STEP, 2)
