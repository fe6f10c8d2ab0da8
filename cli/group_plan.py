"""Which partitions ``raftlog group reset`` moves, and where to: asked, checked, nothing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

from raftlog import Admin
from raftlog.cli.offsets import Bound, Extent, From, parse_offsets, resolve
from raftlog.clock import SystemClock
from raftlog.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownPartitionError
from raftlog.types import Offset, TopicPartition

NAMED_MAX: Final = 5  # partitions in one line of an error


class Selection(NamedTuple):
    """Partitions of a topic; None: all of them."""

    topic: str
    partitions: tuple[int, ...] | None = None


def parse_to(text: str) -> Bound:
    """One place of the OFFSETS grammar; a range is none."""
    try:
        offsets = parse_offsets(text, now_ms=SystemClock().wall_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if offsets.stop is not None:
        raise click.BadParameter(
            f"{text!r} is a range, and a group goes on from one place: give its first half"
        )
    return offsets.start


def parse_selection(text: str) -> Selection:
    """``TOPIC``, ``TOPIC:P`` or ``TOPIC:P,P``."""
    topic, colon, rest = text.partition(":")
    numbers = rest.split(",")
    if not topic or (colon and not all(n.isascii() and n.isdecimal() for n in numbers)):
        raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:P[,P], as in clicks:0,3")
    return Selection(topic, tuple(sorted({*map(int, numbers)})) if colon else None)


def choose(
    admin: Admin,
    name: str,
    old: Mapping[TopicPartition, Offset],
    selections: Sequence[Selection],
    *,
    only_committed: bool,
) -> dict[TopicPartition, Extent]:
    """The partitions to reset, with what they hold now."""
    selections = selections or [Selection(topic) for topic in sorted({tp.topic for tp in old})]
    if not selections:
        raise InvalidRequestError(f"group {name!r} has committed nothing: say which --topic")
    chosen: dict[TopicPartition, Extent] = {}
    for topic, wanted in selections:
        begins, ends = admin.offsets(topic, "earliest"), admin.offsets(topic, "latest")
        for number in sorted(begins) if wanted is None else wanted:
            tp, begin, end = TopicPartition(topic, number), begins.get(number), ends.get(number)
            if begin is None or end is None:
                raise UnknownPartitionError(
                    f"{topic} has no partition {number}: it has 0 to {len(begins) - 1}"
                )
            if tp in old or not only_committed or wanted is not None:
                chosen[tp] = Extent(begin, end)
    uncommitted = [tp for tp in chosen if tp not in old]
    if only_committed and (uncommitted or not chosen):
        where = uncommitted[0] if uncommitted else ", ".join(topic for topic, _ in selections)
        raise InvalidRequestError(
            f"group {name!r} has committed nothing for {where}, so there is nothing to shift: "
            "use --to"
        )
    return chosen


def places(
    admin: Admin, chosen: Mapping[TopicPartition, Extent], to: Bound | None
) -> dict[TopicPartition, Offset]:
    assert to is not None, "--to or --shift is given"
    at_times: dict[TopicPartition, Offset] = {}
    if to.kind is From.TIME:
        found = admin.list_offsets(dict.fromkeys(chosen, to.number))
        at_times = {tp: hit.offset for tp, hit in found.items() if hit is not None}
    return {tp: resolve(to, extent, at_time=at_times.get(tp)) for tp, extent in chosen.items()}


def shifted(
    old: Mapping[TopicPartition, Offset], chosen: Mapping[TopicPartition, Extent], shift: int
) -> dict[TopicPartition, Offset]:
    return {tp: old[tp] + shift for tp in chosen}


def check_in_range(
    new: Mapping[TopicPartition, Offset], chosen: Mapping[TopicPartition, Extent]
) -> None:
    bad = [tp for tp, at in chosen.items() if not at.beginning <= new[tp] <= at.end]
    if bad:
        named = ", ".join(
            f"{tp} has {chosen[tp].beginning} to {chosen[tp].end}, not {new[tp]}"
            for tp in bad[:NAMED_MAX]
        )
        more = f", and {len(bad) - NAMED_MAX} more" if len(bad) > NAMED_MAX else ""
        raise OffsetOutOfRangeError(f"out of range: {named}{more}; nothing was changed")
