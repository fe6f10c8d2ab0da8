"""Offsets as text: bounds of reads, and positions of streams.

Two JSON grammars, those of Kafka's connector for Spark. Pure: text in, values out.

A bound (``startingOffsets``, ``endingOffsets``) is a word, or names each partition; a topic may
have a word for all of its partitions. -2 is the log start offset, -1 the log end
offset:

    earliest                                   latest
    {"clicks": {"0": 17, "1": -2}, "views": "latest"}

A bound by time (``startingOffsetsByTimestamp``) has milliseconds since 1970 in place of offsets.

Spark stores the position of a stream in its checkpoint: the next offset of each partition, and the
ids of the topics, which distinguish a topic from one that was recreated with the same name:

    {"clicks":{"0":17,"10":4},"~raftlog":{"topic_ids":{"clicks":"..."},"version":1}}

``~raftlog`` is not a valid topic name, and sorts after every valid one. Spark compares positions as
text, so equal positions have equal text: topics by name, partitions by number. Text without ids,
as Kafka's connector writes it, is accepted too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from raftlog import limits
from raftlog.errors import InvalidRequestError, InvalidTopicError
from raftlog.types import Offset, TimestampMs, TopicPartition, check_topic_name

LATEST: Final = -1  # in place of an offset, as in Kafka
EARLIEST: Final = -2
OFFSETS_CHARS_MAX: Final = 16 * limits.MIB  # of one JSON text: 100,000 partitions take 2 to 4 MiB
RESERVED_KEY: Final = "~raftlog"
STREAM_OFFSET_VERSION: Final = 1

_RESERVED_MARK: Final = "~"  # first character of keys that are not topics; not in topic names
_INTEGER_CHARS_MAX: Final = 20  # -9223372036854775808
_SHOWN_CHARS_MAX: Final = 200


class Word(Enum):
    """A bound for all partitions."""

    EARLIEST = "earliest"
    LATEST = "latest"

    @property
    def offset(self) -> int:
        """The number of the word: ``EARLIEST`` or ``LATEST``."""
        return EARLIEST if self is Word.EARLIEST else LATEST


@dataclass(frozen=True, slots=True)
class Offsets:
    """A bound by offset. A topic has a word, or every partition its offset, or -2 or -1."""

    by_topic: Mapping[str, Word | Mapping[int, Offset]]

    def at(self, topic: str, partition: int) -> Offset:
        """Return the offset of a partition, ``EARLIEST`` or ``LATEST``. KeyError if not named."""
        found = self.by_topic[topic]
        return found.offset if isinstance(found, Word) else found[partition]


@dataclass(frozen=True, slots=True)
class Time:
    """A bound by time, for every partition: the first record at or after it."""

    timestamp_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class Times:
    """A bound by time, one for each partition."""

    by_topic: Mapping[str, Mapping[int, TimestampMs]]

    def at(self, topic: str, partition: int) -> TimestampMs:
        """Return the time of a partition. KeyError if it is not named."""
        return self.by_topic[topic][partition]


Bound: TypeAlias = Word | Offsets | Time | Times


# -- bounds ----------------------------------------------------------------------------------------


def parse_offsets(option: str, text: str) -> Word | Offsets:
    """Parse ``startingOffsets`` and similar options: a word (in any case), or JSON.

    ``option`` names the option in errors. Raises ``InvalidRequestError``.
    """
    word = _word(text.strip())
    if word is not None:
        return word
    found: dict[str, Word | Mapping[int, Offset]] = {}
    for topic, value in _topics(option, text, "write earliest, latest, or JSON").items():
        word = _word(value) if isinstance(value, str) else None
        found[topic] = word or _numbers(
            option, topic, value, EARLIEST, limits.OFFSET_MAX, "an offset, -2 (earliest) or -1"
        )
    return Offsets(found)


def parse_times(option: str, text: str) -> Times:
    """Parse ``startingOffsetsByTimestamp`` and similar options. Raises ``InvalidRequestError``."""
    return Times(
        {
            topic: _numbers(
                option,
                topic,
                value,
                0,
                limits.TIMESTAMP_MS_MAX,
                "a time in milliseconds since 1970-01-01 UTC",
            )
            for topic, value in _topics(option, text, "write JSON").items()
        }
    )


def parse_partitions(option: str, text: str) -> dict[str, tuple[int, ...]]:
    """Parse ``assign``, ``{"topic": [0, 1]}``. Raises ``InvalidRequestError``."""
    found: dict[str, tuple[int, ...]] = {}
    example = 'write JSON such as {"clicks":[0,1]}'
    for topic, value in _topics(option, text, example).items():
        if not isinstance(value, list) or not value:
            raise InvalidRequestError(
                f"{option}: topic {topic!r} has {_shown(value)}; list its partitions, as in [0,1]"
            )
        for number in value:
            if type(number) is not int or not 0 <= number < limits.PARTITIONS_PER_TOPIC_MAX:
                raise InvalidRequestError(
                    f"{option}: {_shown(number)} is not a partition of topic {topic!r}: write "
                    f"whole numbers from 0 to {limits.PARTITIONS_PER_TOPIC_MAX - 1}, without quotes"
                )
        if len(set(value)) != len(value):
            raise InvalidRequestError(f"{option}: topic {topic!r} names a partition twice")
        found[topic] = tuple(sorted(value))
    return found


def check_covers(option: str, bound: Bound, partitions: Mapping[str, Iterable[int]]) -> None:
    """Raise ``InvalidRequestError`` unless ``bound`` names exactly ``partitions``.

    A word for a topic names all its partitions; ``Word`` and ``Time`` name all partitions.
    """
    if isinstance(bound, Word | Time):
        return
    missing: list[str] = []
    extra = [repr(topic) for topic in bound.by_topic if topic not in partitions]
    for topic, numbers in partitions.items():
        named = bound.by_topic.get(topic)
        if named is None:
            missing.append(repr(topic))
        elif not isinstance(named, Word):
            there = set(numbers)
            missing += [f"{topic}:{number}" for number in sorted(there - named.keys())]
            extra += [f"{topic}:{number}" for number in sorted(named.keys() - there)]
    if not missing and not extra:
        return
    problems = []
    if missing:
        problems.append(f"it does not name {_some(missing)}, which are read")
    if extra:
        problems.append(f"it names {_some(extra)}, which are not read or do not exist")
    word = ' ("earliest" or "latest" will do for a whole topic)' if type(bound) is Offsets else ""
    raise InvalidRequestError(
        f"{option} has to name exactly the partitions that are read: {'; '.join(problems)}. "
        f"Correct the JSON{word}"
    )


# -- position of a stream --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of each partition, and the id of each topic whose id is known.

    Ids of topics without a partition are dropped: equal positions are equal text.
    """

    positions: Mapping[TopicPartition, Offset]
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        topics = {topic for topic, _ in self.positions}
        known = {topic: key for topic, key in self.topic_ids.items() if key and topic in topics}
        object.__setattr__(self, "topic_ids", known)

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic; empty if it is not known."""
        return self.topic_ids.get(topic, "")

    def as_dict(self) -> dict[str, Any]:
        """Return the value that Spark encodes as JSON. The keys are in order."""
        found: dict[str, Any] = {}
        for (topic, partition), offset in sorted(self.positions.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        if self.topic_ids:
            ids = dict(sorted(self.topic_ids.items()))
            found[RESERVED_KEY] = {"topic_ids": ids, "version": STREAM_OFFSET_VERSION}
        return found

    def json(self) -> str:
        """Return the JSON text, without spaces."""
        return json.dumps(self.as_dict(), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> StreamOffset:
        """Parse the text of ``json``. Raises ``InvalidRequestError``."""
        return cls.from_dict(_loads("the stream's offset", text))

    @classmethod
    def from_dict(cls, value: object) -> StreamOffset:
        """Parse the value of ``as_dict``. Raises ``InvalidRequestError``."""
        if not isinstance(value, dict):
            raise _foreign(f"it is {_shown(value)}, not an object of topics")
        positions: dict[TopicPartition, Offset] = {}
        for topic, numbers in value.items():
            if isinstance(topic, str) and topic.startswith(_RESERVED_MARK):
                continue
            try:
                check_topic_name(topic)
                by_number = _numbers("it", topic, numbers, 0, limits.OFFSET_MAX + 1, "an offset")
            except (InvalidTopicError, InvalidRequestError, TypeError) as error:
                raise _foreign(str(error)) from error
            for number, offset in by_number.items():
                positions[TopicPartition(topic, number)] = offset
        return cls(positions, _topic_ids(value))


def _topic_ids(value: Mapping[str, Any]) -> dict[str, str]:
    unknown = [key for key in value if key.startswith(_RESERVED_MARK) and key != RESERVED_KEY]
    if unknown:
        raise _newer(f"it has {unknown[0][:50]!r}")
    if RESERVED_KEY not in value:
        return {}
    reserved = value[RESERVED_KEY]
    version = reserved.get("version") if isinstance(reserved, dict) else None
    if type(version) is not int:
        raise _foreign(f"{RESERVED_KEY!r} holds {_shown(reserved)}, without a version")
    if version != STREAM_OFFSET_VERSION:
        raise _newer(f"it has version {version}, this release knows {STREAM_OFFSET_VERSION}")
    ids = reserved.get("topic_ids")
    if not isinstance(ids, dict) or not all(
        isinstance(key, str) and 0 < len(key) <= limits.ID_CHARS_MAX for key in ids.values()
    ):
        raise _foreign(f"the topic_ids in {RESERVED_KEY!r} are {_shown(ids)}")
    return ids


def _foreign(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the stream's offset in the checkpoint is not an offset of raftlog: {problem}. The "
        "checkpoint was edited, or belongs to a query on another source. Restore it, or start "
        "the query with a new checkpointLocation and startingOffsets"
    )


def _newer(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the stream's offset was written by a newer release of raftlog: {problem}. Install that "
        "release, or start the query with a new checkpointLocation and startingOffsets"
    )


# -- JSON ------------------------------------------------------------------------------------------


def _topics(option: str, text: str, advice: str) -> dict[str, Any]:
    """Return the JSON object of topics in ``text``. The values are not checked."""
    found = _loads(option, text, advice)
    if not isinstance(found, dict):
        raise InvalidRequestError(f"{option}={_cut(text)!r} is not an object of topics: {advice}")
    if not found:
        raise InvalidRequestError(f"{option}={_cut(text)!r} names no topic: {advice}")
    for topic in found:
        try:
            check_topic_name(topic)
        except InvalidTopicError as error:
            raise InvalidRequestError(f"{option}: {error}") from error
    return found


def _numbers(
    option: str, topic: str, value: object, least: int, most: int, what: str
) -> dict[int, int]:
    """Return the value of each partition of a topic; values are in ``least`` to ``most``."""
    if not isinstance(value, dict) or not value:
        word = ' (or "earliest" or "latest")' if least == EARLIEST else ""
        raise InvalidRequestError(
            f"{option}: topic {topic!r} has {_shown(value)}; it takes {what} for each partition, "
            f'as in {{"{topic}":{{"0":5,"1":7}}}}{word}'
        )
    found: dict[int, int] = {}
    for key, number in value.items():
        if type(number) is not int or not least <= number <= most:
            raise InvalidRequestError(
                f"{option}: topic {topic!r} partition {_cut(key)} has {_shown(number)}: it takes "
                f"{what}, a whole number from {least} to {most}, without quotes"
            )
        found[_partition(option, topic, key)] = number
    return found


def _partition(option: str, topic: str, key: str) -> int:
    """Parse a partition number. Only its canonical text is valid: "07" would also name 7."""
    if key.isascii() and key.isdigit() and len(key) < _INTEGER_CHARS_MAX and str(int(key)) == key:
        number = int(key)
        if number < limits.PARTITIONS_PER_TOPIC_MAX:
            return number
    raise InvalidRequestError(
        f"{option}: {_cut(key)!r} is not a partition of topic {topic!r}: write a number from 0 to "
        f"{limits.PARTITIONS_PER_TOPIC_MAX - 1} in quotes"
    )


def _loads(option: str, text: str, advice: str = "") -> Any:
    """Parse JSON strictly: no duplicate keys, no NaN, no number longer than an offset."""
    if len(text) > OFFSETS_CHARS_MAX:
        raise InvalidRequestError(
            f"{option} has {len(text)} characters: {OFFSETS_CHARS_MAX} are allowed"
        )
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        problem = "too deep" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequestError(
            f"{option}={_cut(text)!r} is not valid: {problem}" + (f"; {advice}" if advice else "")
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has {_cut(twice)!r} twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _INTEGER_CHARS_MAX:
        raise ValueError(f"{text[:30]}... is too large a number")
    return int(text)


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no number")


def _word(text: str) -> Word | None:
    return {word.value: word for word in Word}.get(text.lower())


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


def _shown(value: object) -> str:
    """Return the value as JSON, truncated to _SHOWN_CHARS_MAX."""
    return _cut(json.dumps(value)) if _is_json(value) else _cut(repr(value))


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | list | dict)


def _some(names: list[str]) -> str:
    """Join the first ten names."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


# -- lag of a streaming query ----------------------------------------------------------------------
#
# Spark describes a source in Python by the name of a Java class, and has no metrics of it. But the
# progress contains the offsets: where the query is, and where the partitions ended. The second ones
# are only shown, so the lag of each topic stands there, too.

LAG: Final = "lag"  # key of the lag of each topic in a reported offset


def reported(latest: StreamOffset, end: StreamOffset) -> dict[str, Any]:
    """Return what Spark shows as ``latestOffset``: the ends, and the lag behind them by topic.

    ``latest``: ends of the partitions. ``end``: of the batch.
    """
    found = latest.as_dict()
    if RESERVED_KEY in found:
        lags: dict[str, int] = {}
        for tp, lag in _lags(end, latest).items():
            lags[tp.topic] = lags.get(tp.topic, 0) + lag
        found[RESERVED_KEY][LAG] = dict(sorted(lags.items()))
    return found


def lag_of(progress: Mapping[str, Any] | None) -> dict[TopicPartition, int]:
    """Return the number of offsets that a query has left, for each partition that it reads.

    ``progress``: ``query.lastProgress``, or ``event.progress`` of a ``StreamingQueryListener``. The
    ends of the partitions are of that moment. Partitions without known end, sources of other
    formats, and a query without progress (None) are omitted.
    """
    found: dict[TopicPartition, int] = {}
    for source in () if progress is None else progress["sources"]:
        done, ends = (_offset(source[name]) for name in ("endOffset", "latestOffset"))
        if done is None or ends is None:
            continue
        for tp, lag in _lags(done, ends).items():
            found[tp] = max(found.get(tp, 0), lag)  # of two streams of one topic, the slower
    return found


def _lags(done: StreamOffset, ends: StreamOffset) -> dict[TopicPartition, int]:
    return {
        tp: max(0, ends.positions[tp] - position)
        for tp, position in done.positions.items()
        if tp in ends.positions and done.topic_id(tp.topic) == ends.topic_id(tp.topic)
    }


def _offset(value: object) -> StreamOffset | None:
    """Parse an offset of a progress: JSON, also in a JSON string. None if it is not of raftlog."""
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
    if not isinstance(value, dict) or RESERVED_KEY not in value:
        return None
    try:
        return StreamOffset.from_dict(value)
    except InvalidRequestError:
        return None
