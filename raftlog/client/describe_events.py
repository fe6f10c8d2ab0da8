"""Event history of the cluster, merged from the responses of all brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftlog.client.cluster import Cluster
from raftlog.client.describe_cluster import ask_every_broker
from raftlog.client.descriptions import EventDescription
from raftlog.protocol import api as apis
from raftlog.protocol.events import DescribeEventsRequest, DescribeEventsResponse, EventStatus
from raftlog.types import TimestampMs

# Brokers apply the same change within this time, by their clocks: that much older events are
# requested, so that an event before ``since_ms`` is not returned with the time of a slower broker.
APART_MS: Final = 60_000


async def describe_events(cluster: Cluster, since_ms: TimestampMs) -> list[EventDescription]:
    """Return the events since then, oldest first.

    Raises ``BrokerUnavailableError`` if no broker responds.
    """
    request = DescribeEventsRequest(since_ms=max(0, since_ms - APART_MS))
    answers = await ask_every_broker(cluster, apis.DESCRIBE_EVENTS, request)
    found = merged(
        event
        for answer in answers.values()
        if isinstance(answer, DescribeEventsResponse)
        for event in answer.events
    )
    return [event for event in found if event.at_ms >= since_ms]


def merged(events: Iterable[EventStatus]) -> list[EventDescription]:
    """Return each event once, with the earliest time that a broker reports for it."""
    found: dict[tuple[object, ...], EventStatus] = {}
    for event in events:
        place = event.broker if event.partition is None else event.partition
        key = event.kind, event.topic_id, place, event.version, event.leader_epoch
        best = found.get(key)
        if best is None or event.at_ms < best.at_ms:
            found[key] = event
    return [
        EventDescription(
            at_ms=event.at_ms,
            kind=event.kind,
            text=event.text,
            topic=event.topic or None,
            partition=event.partition,
            broker=event.broker,
            leader_epoch=event.leader_epoch,
            version=event.version,
        )
        for event in sorted(found.values(), key=lambda event: (event.at_ms, event.version))
    ]
