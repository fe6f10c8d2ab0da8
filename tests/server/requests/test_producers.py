"""Producers of a partition: pages, on the leader only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from raftlog.errors import NotLeaderError
from raftlog.record import validate
from raftlog.server.apis.producers import list_producers
from raftlog.server.context import BrokerContext
from tests.running import runs
from tests.server.cluster.paper import Scene, play, state_of
from tests.server.harness import batch_of


@runs(play)
async def test_a_leader_lists_what_is_not_committed(s: Scene) -> None:
    host = s.host()
    host.lead(state_of(1, 2, epoch=5), 1, lag_max_seconds=10.0)
    for producer_id in (7, 8):
        batch = batch_of(b"a", b"b", producer_id=producer_id, producer_epoch=0, base_sequence=0)
        host.append(batch, validate(batch))
    topics = SimpleNamespace(host=lambda _topic, _partition: host)
    context = cast(BrokerContext, SimpleNamespace(topics=topics))
    listed = list_producers(context, "t", 0, -1, skip=0, limit=1)
    assert (listed.total, listed.high_watermark, len(listed.producers)) == (2, 0, 1)
    assert listed.producers[0].producer_id == 8
    assert list_producers(context, "t", 0, -1, skip=1, limit=9).producers[0].producer_id == 7
    host.follow(2, 6)
    with pytest.raises(NotLeaderError):
        list_producers(context, "t", 0, -1, skip=0, limit=1)
