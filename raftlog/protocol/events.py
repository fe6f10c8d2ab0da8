"""``describe_events``: the event history of the responding broker."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Message, NodeId, Note, PartitionIndex, WireEpoch

_Time = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class DescribeEventsRequest(Message):
    """Request the events that the broker applied at ``since_ms`` or later (ms since 1970)."""

    since_ms: _Time = 0


class EventStatus(Message):
    """One event. ``at_ms``: wall-clock time at which the responding broker applied it.

    ``topic`` is empty, and ``partition`` None, for an event of a broker. ``broker``: the new
    leader, or the broker of a broker event. Events of several brokers with the same kind, object
    and version are the same event.
    """

    at_ms: _Time
    kind: Annotated[str, Meta(max_length=64)]
    text: Note
    version: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    topic: Annotated[str, Meta(max_length=limits.TOPIC_NAME_CHARS_MAX)] = ""
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)] = ""
    partition: PartitionIndex | None = None
    broker: NodeId | None = None
    leader_epoch: WireEpoch = -1


class DescribeEventsResponse(Message):
    """Events, oldest first."""

    events: Annotated[list[EventStatus], Meta(max_length=limits.EVENTS_KEPT_MAX)]
