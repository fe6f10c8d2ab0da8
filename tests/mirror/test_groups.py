"""Committed offsets in the target: those of the source, below the end of the copy."""

from __future__ import annotations

from raftlog.mirror.mirror import Policy, commits_due
from raftlog.types import OffsetAndMetadata, TopicPartition

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
