"""Selection of a read: partitions, start and end, by the options alone.

Pure. ``pyspark_raftlog.bounds`` compares the selection with the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pyspark_raftlog.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    Offsets,
    Time,
    Times,
    Word,
    check_covers,
    parse_offsets,
    parse_partitions,
    parse_times,
)
from pyspark_raftlog.option_names import ENDING_OPTIONS, SELECTING_OPTIONS, STARTING_OPTIONS
from pyspark_raftlog.option_values import Texts, choice, integer, shown
from raftlog import limits
from raftlog.errors import InvalidRequestError, InvalidTopicError
from raftlog.types import TopicPartition, check_topic_name

PATTERN_CHARS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Topics:
    """``subscribe``: all partitions of these topics, including partitions added later."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """``subscribePattern``: all topics in whose name the pattern is found."""

    text: str

    def matches(self, topic: str) -> bool:
        """Return whether the pattern is found anywhere in the name, as in Kafka's connector."""
        return re.search(self.text, topic) is not None


@dataclass(frozen=True, slots=True)
class Assigned:
    """``assign``: exactly these partitions, sorted."""

    partitions: Mapping[str, tuple[int, ...]]


Selection: TypeAlias = Topics | Pattern | Assigned
TimestampStrategy: TypeAlias = Literal["error", "latest"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Start and end of a read, and the options that set them (for errors)."""

    starting_option: str
    starting: Bound
    ending_option: str
    ending: Bound


def parse_selection(texts: Texts) -> Selection:
    """Parse the options that select partitions. Raises ``InvalidRequestError``."""
    given = [name for name in SELECTING_OPTIONS if name in texts]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are set" if given else "none is set"
        raise InvalidRequestError(
            "set exactly one of the options subscribe (topics, separated by commas), "
            f"subscribePattern and assign (JSON of partitions): {problem}"
        )
    name = given[0]
    text = texts.get(name)
    assert text is not None, "checked above"
    if name == "assign":
        return Assigned(parse_partitions(name, text))
    return Topics(_topics(text)) if name == "subscribe" else Pattern(_pattern(text))


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in map(str.strip, text.split(",")) if name))
    if not names:
        raise InvalidRequestError(f"{shown('subscribe', text)} names no topic")
    try:
        for name in names:
            check_topic_name(name)
    except InvalidTopicError as error:
        raise InvalidRequestError(
            f"{shown('subscribe', text)}: {error}. For topics by a pattern, use subscribePattern"
        ) from error
    return names


def _pattern(text: str) -> str:
    if len(text) > PATTERN_CHARS_MAX:
        raise InvalidRequestError(
            f"option subscribePattern has {len(text)} characters: {PATTERN_CHARS_MAX} are allowed"
        )
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequestError(
            f"{shown('subscribePattern', text)} is not a regular expression of Python's: {error}"
        ) from error
    return text


def parse_strategy(texts: Texts) -> TimestampStrategy:
    """Behaviour of a start by time in a partition without a record at or after it."""
    text = texts.short("startingOffsetsByTimestampStrategy")
    if text is None:
        return "error"
    low = choice("startingOffsetsByTimestampStrategy", text, ("error", "latest"))
    return "latest" if low == "latest" else "error"


def parse_bounds(texts: Texts, selection: Selection, *, streaming: bool) -> Bounds:
    """Return start and end of the read, from the options with the highest precedence.

    After its first start, a stream continues from its checkpoint. So the options are not compared
    with ``selection`` here: the topics may have changed since. Raises
    ``InvalidRequestError``.
    """
    starting_option, starting = _bound(
        texts, STARTING_OPTIONS, Word.LATEST if streaming else Word.EARLIEST
    )
    ending_option, ending = _bound(texts, ENDING_OPTIONS, Word.LATEST)
    bounds = Bounds(starting_option, starting, ending_option, ending)
    if streaming:
        return bounds
    for option, bound, empty in (
        (starting_option, starting, LATEST),
        (ending_option, ending, EARLIEST),
    ):
        _check_reach(option, bound, empty)
        _check_named(option, bound, selection)
    _check_order(bounds)
    return bounds


def _bound(texts: Texts, options: tuple[str, str, str], default: Word) -> tuple[str, Bound]:
    """Return the bound and its option. All options are parsed; the first that is set applies."""
    by_time, by_times, by_offset = options
    found: list[tuple[str, Bound]] = []
    if (text := texts.short(by_time)) is not None:
        found.append((by_time, Time(integer(by_time, text, 0, limits.TIMESTAMP_MS_MAX))))
    if (text := texts.get(by_times)) is not None:
        found.append((by_times, parse_times(by_times, text)))
    if (text := texts.get(by_offset)) is not None:
        found.append((by_offset, parse_offsets(by_offset, text)))
    return found[0] if found else (by_offset, default)


def _check_reach(option: str, bound: Bound, empty: int) -> None:
    """Reject a batch read that starts at the end or ends at the start: it would read nothing."""
    word = "latest" if empty == LATEST else "earliest"
    if isinstance(bound, Word):
        names = [""] if bound.offset == empty else []
    elif isinstance(bound, Offsets):
        names = [f" for {name}" for name, offset in _named(bound) if offset == empty]
    else:
        names = []
    if names:
        verb, number = ("begin", "-1") if empty == LATEST else ("end", "-2")
        raise InvalidRequestError(
            f"option {option} is {word} ({number}){names[0]}: a batch read that would {verb} there "
            "reads nothing. Set an offset, a time, or leave it out"
        )


def _named(bound: Offsets | Times) -> Iterator[tuple[str, int]]:
    for topic, value in bound.by_topic.items():
        if isinstance(value, Word):
            yield topic, value.offset
        else:
            for partition, number in value.items():
                yield str(TopicPartition(topic, partition)), number


def _check_named(option: str, bound: Bound, selection: Selection) -> None:
    """Check that the bound names the partitions that the options select, where known."""
    if isinstance(selection, Assigned):
        check_covers(option, bound, selection.partitions)
    elif isinstance(selection, Topics) and isinstance(bound, Offsets | Times):
        known = {
            topic: () if isinstance(named := bound.by_topic.get(topic, ()), Word) else named
            for topic in selection.names
        }
        check_covers(option, bound, known)


def _check_order(bounds: Bounds) -> None:
    """Raise ``InvalidRequestError`` if an end is before its start by the options alone."""
    start, end = bounds.starting, bounds.ending
    if isinstance(start, Time) and isinstance(end, Time):
        pairs = [("", start.timestamp_ms, end.timestamp_ms)]
    elif (isinstance(start, Offsets) and isinstance(end, Offsets)) or (
        isinstance(start, Times) and isinstance(end, Times)
    ):
        ends = dict(_named(end))
        pairs = [
            (f" for {name}", first, ends[name]) for name, first in _named(start) if name in ends
        ]
    else:
        return
    for name, first, last in pairs:
        if first > last >= 0:
            raise InvalidRequestError(
                f"option {bounds.starting_option} is {first}{name}, and {bounds.ending_option} is "
                f"{last}: the end is before the start. Swap them"
            )
