"""``describe_events``: the event history of this broker, in steps."""

from __future__ import annotations

from typing import Final, cast

from raftlog.protocol.connection import Request
from raftlog.protocol.events import DescribeEventsRequest, DescribeEventsResponse, EventStatus
from raftlog.server.context import BrokerContext
from raftlog.server.event_log import TimedEvent
from raftlog.server.reply import Reply
from raftlog.server.turns import Steps

EVENTS_PER_STEP: Final = 500


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    since_ms = cast(DescribeEventsRequest, request.message).since_ms
    found: list[EventStatus] = []
    for number, timed in enumerate(tuple(context.events.events), start=1):
        if timed.at_ms >= since_ms:
            found.append(_status(timed))
        if number % EVENTS_PER_STEP == 0:
            yield None
    reply.send(DescribeEventsResponse(events=found))


def _status(timed: TimedEvent) -> EventStatus:
    event = timed.event
    return EventStatus(
        at_ms=max(0, timed.at_ms),
        kind=event.kind,
        text=event.text,
        version=event.version,
        topic=event.topic,
        topic_id=event.topic_id,
        partition=None if event.partition < 0 else event.partition,
        broker=None if event.broker < 0 else event.broker,
        leader_epoch=event.leader_epoch,
    )
