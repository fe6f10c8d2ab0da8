"""Reading spans: each partition from its start to its stop, and a word when nothing comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from raftlog.cli import reading
from raftlog.cli.formats import format_values
from raftlog.cli.reading import Span
from raftlog.errors import BrokerUnavailableError
from raftlog.types import ConsumerRecord, TopicPartition

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


class Reader:
    """What `copy` needs of a consumer: partitions as lists of values, two records a poll."""

    def __init__(self, partitions: dict[TopicPartition, Sequence[bytes]]) -> None:
        self._partitions = partitions
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(partitions)

    def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        for tp, position in self._positions.items():
            values = self._partitions[tp][position : position + 2]
            if tp not in self._paused and values:
                self._positions[tp] += len(values)
                return [
                    ConsumerRecord(*tp, position + index, None, value, (), 0, 0)
                    for index, value in enumerate(values)
                ]
        return []


class Sparse(Reader):
    """The same, with holes: no record but those at ``offsets``."""

    def __init__(self, offsets: Sequence[int], end: int) -> None:
        super().__init__({FIRST: [b"%d" % offset for offset in range(end)]})
        self._offsets = set(offsets)
        self.sought: list[int] = []

    def beginning_offsets(self, _partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {FIRST: 0}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append(offset)
        super().seek(partition, offset)

    def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        records = super().poll(timeout_ms, max_records)
        return [record for record in records if record.offset in self._offsets]


@pytest.mark.parametrize(
    ("offsets", "count", "start"),
    [
        (range(1_000), 10, 990),
        ([*range(0, 1_000, 5), 999], 10, 955),
        ([3, 500, 999], 2, 500),
        ([3, 500, 999], 3, 3),
        ([3, 500, 999], 10, 0),
        ([], 10, 0),
    ],
)
def test_the_last_records_may_lie_far_back(offsets: Sequence[int], count: int, start: int) -> None:
    """As compaction leaves them."""
    reader = Sparse(offsets, 1_000)
    spans = {FIRST: Span(1_000 - count, 1_000)}
    assert reading.with_last(reader, spans, count) == {FIRST: Span(start, 1_000)}


@pytest.mark.parametrize(("start", "count"), [(0, 10), (50_000, 50_000), (5, 0)])
def test_what_cannot_be_longer_and_very_many_are_not_looked_for(start: int, count: int) -> None:
    reader = Sparse([], 100_000)
    spans = {FIRST: Span(start, 100_000)}
    assert reading.with_last(reader, spans, count) == spans
    assert reader.sought == []


def copied(
    capfdbinary: pytest.CaptureFixture[bytes],
    spans: dict[TopicPartition, Span],
    count: int | None = None,
) -> list[bytes]:
    reader = Reader({FIRST: [b"a", b"b", b"c", b"d", b"e"], SECOND: [b"v", b"w", b"x"]})
    reading.copy(reader, spans, write=format_values, pattern=None, count=count)
    return capfdbinary.readouterr().out.split()


@pytest.mark.parametrize(
    ("spans", "count", "expected"),
    [
        ({FIRST: Span(0, 5)}, None, [b"a", b"b", b"c", b"d", b"e"]),
        ({FIRST: Span(1, 4)}, None, [b"b", b"c", b"d"]),
        ({FIRST: Span(1, 2)}, None, [b"b"]),
        ({FIRST: Span(2, 2)}, None, []),
        ({FIRST: Span(0, 5)}, 3, [b"a", b"b", b"c"]),
        ({FIRST: Span(0, None)}, 3, [b"a", b"b", b"c"]),
        ({FIRST: Span(3, 5), SECOND: Span(1, 3)}, None, [b"d", b"e", b"w", b"x"]),
        ({FIRST: Span(5, 5), SECOND: Span(2, 3)}, None, [b"x"]),
        ({}, None, []),
    ],
)
def test_spans_are_read_from_start_to_stop(
    capfdbinary: pytest.CaptureFixture[bytes],
    spans: dict[TopicPartition, Span],
    count: int | None,
    expected: list[bytes],
) -> None:
    assert copied(capfdbinary, spans, count) == expected


def test_silence_where_there_should_be_records_is_a_fault(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SILENCE_S_MAX", 0.01)
    with pytest.raises(BrokerUnavailableError, match="t:0 gave no record"):
        copied(capfdbinary, {FIRST: Span(0, 99)})
