"""Shares, topics, and whether a heartbeat's answer is news."""

from __future__ import annotations

import pytest

from raftlog.consumer_groups import Heartbeat, HeartbeatResult, Share, TopicInfo
from raftlog.consumer_groups.values import Topics, parts_of
from tests.consumer_groups.scene import share


@pytest.mark.parametrize(
    ("epoch", "owned", "is_news"),
    [
        (3, (share("t", 0, 1), share("u", 0)), False),
        (3, (share("u", 0), share("t", 1, 0)), False),
        (2, (share("t", 0, 1), share("u", 0)), True),
        (3, (share("t", 0, 1),), True),
        (3, (share("t", 0, 1, 2), share("u", 0)), True),
        (3, (share("t", 0, 1), Share("u", "another", (0,))), True),
    ],
    ids=["the same", "in another order", "another epoch", "to be got", "to be given up", "anew"],
)
def test_an_answer_is_news_if_the_member_has_something_to_do(
    epoch: int, owned: tuple[Share, ...], is_news: bool
) -> None:
    beat = HeartbeatResult(3, (share("t", 0, 1), share("u", 0)))
    heartbeat = Heartbeat(
        group="g", member_id="m", member_epoch=epoch, sequence=1, topics=(), owned=owned
    )
    assert beat.is_news_to(heartbeat) is is_news


def test_parts_become_shares_by_topic_name_and_partition() -> None:
    topics = Topics({"b": TopicInfo("1", 3), "a": TopicInfo("2", 3)})
    parts = [("1", 2), ("2", 1), ("1", 0), ("gone", 0)]
    shares = topics.shares(parts)
    assert shares == (Share("a", "2", (1,)), Share("b", "1", (0, 2)))
    assert parts_of(shares) == set(parts[:3])


def test_a_topic_has_the_partitions_that_it_has() -> None:
    topics = Topics({"b": TopicInfo("1", 3)})
    assert topics.has(("1", 2))
    assert not topics.has(("1", 3))
    assert not topics.has(("2", 0))


def test_a_heartbeat_has_the_documented_timeouts() -> None:
    heartbeat = Heartbeat(group="g", member_id="m", member_epoch=0, sequence=1, topics=())
    assert (heartbeat.session_timeout_ms, heartbeat.rebalance_timeout_ms) == (45_000, 300_000)
