"""Committed offsets in the target: those of the source, below the end of the copy."""

from __future__ import annotations

import re

from raftlog.client.descriptions import PartitionDescription, TopicDescription, TopicListing
from raftlog.mirror.mirror import Policy, commits_due, planned, selected, settings_due
from raftlog.types import NewTopic, OffsetAndMetadata, TopicPartition

A, B, C, D = (TopicPartition("t", number) for number in range(4))
COPIES = {tp: (TopicPartition("p-t", tp.partition), 100) for tp in (A, B, C)}


def test_offsets_advance_up_to_the_end_of_the_copy() -> None:
    source = {
        A: OffsetAndMetadata(10, "note", 7),
        B: OffsetAndMetadata(150),
        D: OffsetAndMetadata(5),
    }
    assert commits_due(source, {}, COPIES) == {
        COPIES[A][0]: OffsetAndMetadata(10, "note"),
        COPIES[B][0]: OffsetAndMetadata(100),
    }


def test_offsets_never_move_back() -> None:
    source = {A: OffsetAndMetadata(10), B: OffsetAndMetadata(20), C: OffsetAndMetadata(30)}
    target = {COPIES[tp][0]: OffsetAndMetadata(20) for tp in (A, B, C)}
    assert commits_due(source, target, COPIES) == {COPIES[C][0]: OffsetAndMetadata(30)}


def test_offsets_are_overwritten_if_they_differ() -> None:
    source = {A: OffsetAndMetadata(10), B: OffsetAndMetadata(20), C: OffsetAndMetadata(30)}
    target = {COPIES[tp][0]: OffsetAndMetadata(20) for tp in (A, B, C)}
    assert commits_due(source, target, COPIES, Policy.OVERWRITE) == {
        COPIES[A][0]: OffsetAndMetadata(10),
        COPIES[C][0]: OffsetAndMetadata(30),
    }


# -- topics ----------------------------------------------------------------------------------------
#
# Selection of topics, and what the target cluster needs for them.


def described(name: str, partitions: int, replicas: int) -> TopicDescription:
    parts = tuple(
        PartitionDescription(number, 1, 0, tuple(range(1, replicas + 1)), (1,), (), 0, 0, 0, 0, "")
        for number in range(partitions)
    )
    config = {"retention.ms": "5", "segment.bytes": "9"}
    return TopicDescription(name, "id", config, ("retention.ms",), parts)


def test_whole_names_of_public_topics_match() -> None:
    listings = {name: TopicListing(name, "id", 1) for name in ("a", "ab", "__audit")}
    assert set(selected(listings, ["a", "ab", "gone"], re.compile("a|.*_internal|gone"))) == {"a"}


def test_new_topics_have_the_settings_partitions_and_replicas_of_the_source() -> None:
    made = planned([described("t", 2, 3)], {}, prefix="p-", broker_count=5)
    assert made.create == [NewTopic("p-t", 2, 3, {"retention.ms": "5"})]
    assert made.copies == {
        TopicPartition("t", number): TopicPartition("p-t", number) for number in range(2)
    }


def test_a_small_target_cluster_has_fewer_replicas() -> None:
    (new,) = planned([described("t", 1, 3)], {}, prefix="", broker_count=1).create
    assert new.replication_factor == 1


def test_existing_topics_get_missing_partitions() -> None:
    existing = {"t": TopicListing("t", "id", 2), "u": TopicListing("u", "id", 9)}
    sources = [described("t", 4, 1), described("u", 4, 1)]
    made = planned(sources, existing, prefix="", broker_count=1)
    assert (made.create, made.extend) == ([], {"t": 4})
    assert len(made.copies) == 8


def test_a_copy_gets_the_settings_of_its_source() -> None:
    def topic(overrides: dict[str, str]) -> TopicDescription:
        config = {"retention.ms": "7", "cleanup.policy": "delete", "min.insync.replicas": "1"}
        return TopicDescription("t", "id", config | overrides, tuple(overrides), ())

    source = topic({"retention.ms": "-1", "cleanup.policy": "compact", "min.insync.replicas": "2"})
    copy = topic({"retention.ms": "5", "segment.bytes": "9", "cleanup.policy": "compact"})
    due = {"retention.ms": "-1", "segment.bytes": None}
    assert settings_due(source, copy) == due
    assert settings_due(source, source) == {}
    assert settings_due(topic({}), topic({})) == {}
