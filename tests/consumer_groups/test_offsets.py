"""One group's committed offsets: what was put is found, and nothing else."""

from __future__ import annotations

from raftlog.consumer_groups import Committed, TopicInfo
from raftlog.consumer_groups.group import OffsetTable
from raftlog.consumer_groups.values import OffsetValue, Topics
from raftlog.types import TopicPartition

TOPICS = Topics({"t": TopicInfo("id-t", 4)})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def value(offset: int, *, topic_id: str = "id-t", at_ms: int = 0) -> OffsetValue:
    return OffsetValue(1, topic_id, offset, 2, "note", at_ms, 1)


def table(**values: OffsetValue) -> OffsetTable:
    """By topic and partition, as in ``t0``."""
    found = OffsetTable()
    for name, one in values.items():
        found.put(TopicPartition(name[0], int(name[1])), one)
    return found


def test_the_last_one_counts() -> None:
    offsets = table(t0=value(5), t1=value(6))
    offsets.put(T0, value(7, at_ms=9))
    assert offsets.count == 2
    assert offsets.committed(T0, TOPICS) == Committed("t", 0, 7, 2, "note", 9)
    assert [where for where, _ in offsets] == [T0, T1]


def test_none_is_none_and_never_0() -> None:
    offsets = table(t0=value(0), t1=value(4, topic_id="another"), u0=value(3))
    assert offsets.committed(T0, TOPICS).offset == 0
    for where in (T1, TopicPartition("t", 2), TopicPartition("u", 0)):
        assert offsets.committed(where, TOPICS) == Committed(*where)
        assert offsets.committed(where, TOPICS).offset == -1


def test_what_is_removed_is_gone() -> None:
    offsets = table(t0=value(5))
    assert T0 in offsets
    assert offsets.remove(T0)
    assert not offsets.remove(T0)
    assert T0 not in offsets
    assert (offsets.count, list(offsets)) == (0, [])


def test_those_of_topics_that_are_no_more() -> None:
    offsets = table(t0=value(5), t1=value(6, topic_id="another"), u2=value(7, topic_id="id-u"))
    assert offsets.without_topic(TOPICS) == [T1, TopicPartition("u", 2)]


def test_those_whose_last_commit_is_older() -> None:
    offsets = table(t0=value(5, at_ms=99), t1=value(6, at_ms=100))
    assert offsets.committed_before(100) == [T0]


def test_a_topic_has_the_offsets_of_its_id() -> None:
    offsets = table(t0=value(5), t1=value(6, topic_id="another"), u0=value(7))
    assert offsets.topics() == ["t", "u"]
    assert offsets.of_topic("t", "id-t") == [(0, 5)]
    assert offsets.of_topic("v", "id-t") == []
