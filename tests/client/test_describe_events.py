"""Events of all brokers: each once, in order of time."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.administration.describe import APART_MS, merged
from raftlog.errors import InvalidRequestError, UnsupportedVersionError
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import DescribeEventsRequest, DescribeEventsResponse, EventStatus
from raftlog.protocol.connection import Request
from tests.client.world import FakeCluster, Peer, refuse, run
from tests.running import runs


def event(at_ms: int, **fields: Any) -> EventStatus:
    standard = {"kind": "leader-elected", "text": "x", "version": 1, "topic": "t", "partition": 0}
    return EventStatus(at_ms=at_ms, **(standard | fields))


def test_the_same_event_of_several_brokers_is_one_with_the_earliest_time() -> None:
    found = merged([event(12), event(10), event(11), event(9, kind="isr-shrunk")])
    assert [(one.at_ms, one.kind) for one in found] == [(9, "isr-shrunk"), (10, "leader-elected")]


@pytest.mark.parametrize(
    "other",
    [{"version": 2}, {"partition": 1}, {"topic_id": "new"}, {"leader_epoch": 3}],
)
def test_other_events_stay_apart(other: dict[str, Any]) -> None:
    assert len(merged([event(1), event(1, **other)])) == 2


def test_an_event_of_a_broker_has_no_partition() -> None:
    fenced = {"kind": "broker-fenced", "topic": "", "partition": None}
    found = merged([event(1, broker=1, **fenced), event(2, broker=2, **fenced)])
    assert [(one.topic, one.partition, one.broker) for one in found] == [
        (None, None, 1),
        (None, None, 2),
    ]


def tell(peer: Peer, request: Request) -> None:
    """Each broker has one event that all have, and one of which only this broker knows."""
    assert isinstance(request.message, DescribeEventsRequest)
    since_ms = request.message.since_ms + APART_MS
    own = event(since_ms + peer.broker_id, version=peer.broker_id)
    shared = event(since_ms + 10 * peer.broker_id, version=9)
    slow = event(since_ms + (1 if peer.broker_id == 2 else -1), version=8)
    message = DescribeEventsResponse(events=[own, shared, slow])
    peer.write(peer.state.reply(request, message, ()))


@runs(run, brokers=3)
async def test_every_broker_is_asked_and_one_that_is_down_is_left_out(fake: FakeCluster) -> None:
    fake.always[apis.DESCRIBE_EVENTS] = tell
    fake.kill(3)
    async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
        since_ms = 10 + APART_MS
        found = await admin.describe_events(since_ms - 9)
        assert [one.at_ms - APART_MS for one in found] == [2, 3, 11]
        found = await admin.describe_events(since_ms)
        assert [one.at_ms - APART_MS for one in found] == [11, 12, 20]


@runs(run)
async def test_without_any_response_it_fails(fake: FakeCluster) -> None:
    fake.always[apis.DESCRIBE_EVENTS] = refuse(UnsupportedVersionError("too old"))
    async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
        with pytest.raises(UnsupportedVersionError):
            await admin.describe_events()
        with pytest.raises(InvalidRequestError, match="since_ms"):
            await admin.describe_events(-1)
