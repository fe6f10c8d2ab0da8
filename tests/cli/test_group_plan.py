"""Which partitions are reset, and where to: all texts, and every refusal."""

from __future__ import annotations

from typing import cast

import click
import pytest

from raftlog import Admin
from raftlog.cli.group_plan import (
    Selection,
    check_in_range,
    choose,
    parse_selection,
    parse_to,
    places,
    shifted,
)
from raftlog.cli.offsets import EARLIEST, LATEST, Bound, Extent, From
from raftlog.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownPartitionError,
)
from raftlog.types import OffsetAndTimestamp, TopicPartition

A, B, C, D = (TopicPartition("t", number) for number in range(4))
U = TopicPartition("u", 0)


class FakeAdmin:
    """Topic t with 3 partitions of offsets 5 to 20, and u with an empty one."""

    def offsets(self, topic: str, at: str) -> dict[int, int]:
        if topic == "u":
            return {0: 0}
        return dict.fromkeys(range(3), 5 if at == "earliest" else 20)

    def list_offsets(
        self, queries: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Only partition 0 has a record at or after the time."""
        return {
            tp: OffsetAndTimestamp(9, at + 1) if tp.partition == 0 else None
            for tp, at in queries.items()
        }


ADMIN = cast("Admin", FakeAdmin())
FULL = Extent(5, 20)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("7", Bound(From.OFFSET, 7)),
        ("-7", Bound(From.END, 7)),
        ("+7", Bound(From.BEGINNING, 7)),
        ("@1700000000000", Bound(From.TIME, 1_700_000_000_000)),
    ],
)
def test_one_place_is_one(text: str, bound: Bound) -> None:
    assert parse_to(text) == bound


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1:2", "is a range"),
        ("@1700000000000:1700000000001", "is a range"),
        ("yesterday", "earliest, latest, N"),
    ],
)
def test_other_texts_are_wrong_usage(text: str, reason: str) -> None:
    with pytest.raises(click.BadParameter, match=reason):
        parse_to(text)


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("t", Selection("t")),
        ("t:0", Selection("t", (0,))),
        ("t:3,1,3", Selection("t", (1, 3))),
    ],
)
def test_partitions_are_named(text: str, selection: Selection) -> None:
    assert parse_selection(text) == selection


@pytest.mark.parametrize("text", ["", ":0", "t:", "t:x", "t:1,", "t:-1", "t:1:2"])
def test_other_names_are_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match="TOPIC:P"):
        parse_selection(text)


@pytest.mark.parametrize(
    ("selections", "only_committed", "chosen"),
    [
        ((), False, [A, B, C]),
        ((), True, [A, B]),
        ((Selection("t"),), True, [A, B]),
        ((Selection("t", (2,)),), False, [C]),
        ((Selection("t", (1,)), Selection("u")), False, [B, U]),
    ],
)
def test_partitions_are_chosen(
    selections: tuple[Selection, ...], only_committed: bool, chosen: list[TopicPartition]
) -> None:
    found = choose(ADMIN, "g", {A: 7, B: 8}, selections, only_committed=only_committed)
    assert list(found) == chosen
    assert found[chosen[0]] == FULL


@pytest.mark.parametrize(
    ("old", "selections", "only_committed", "error", "reason"),
    [
        ({}, (), False, InvalidRequestError, "say which --topic"),
        ({A: 7}, (Selection("t", (3,)),), False, UnknownPartitionError, "has 0 to 2"),
        ({A: 7}, (Selection("t", (2,)),), True, InvalidRequestError, "nothing for t:2"),
        ({A: 7}, (Selection("u"),), True, InvalidRequestError, "nothing for u"),
    ],
)
def test_what_cannot_be_chosen(
    old: dict[TopicPartition, int],
    selections: tuple[Selection, ...],
    only_committed: bool,
    error: type[RaftlogError],
    reason: str,
) -> None:
    with pytest.raises(error, match=reason):
        choose(ADMIN, "g", old, selections, only_committed=only_committed)


@pytest.mark.parametrize(
    ("to", "found"),
    [
        (EARLIEST, [5, 5]),
        (LATEST, [20, 20]),
        (Bound(From.OFFSET, 7), [7, 7]),
        (Bound(From.END, 2), [18, 18]),
        (Bound(From.END, 100), [5, 5]),
        (Bound(From.BEGINNING, 2), [7, 7]),
        (Bound(From.TIME, 1_700), [9, 20]),
    ],
)
def test_places(to: Bound, found: list[int]) -> None:
    assert list(places(ADMIN, {A: FULL, B: FULL}, to).values()) == found


def test_shifts() -> None:
    assert shifted({A: 7, B: 8}, {B: FULL}, -3) == {B: 5}


def test_out_of_range_names_the_range_and_not_too_many_partitions() -> None:
    check_in_range({A: 5, B: 20}, {A: FULL, B: FULL})
    with pytest.raises(OffsetOutOfRangeError, match=r"out of range: t:1 has 5 to 20, not 21;"):
        check_in_range({A: 5, B: 21}, {A: FULL, B: FULL})
    many = [TopicPartition("t", number) for number in range(9)]
    with pytest.raises(OffsetOutOfRangeError, match="t:4 has 5 to 20, not 4, and 4 more; nothing"):
        check_in_range(dict.fromkeys(many, 4), dict.fromkeys(many, FULL))
