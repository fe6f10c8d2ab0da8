"""Feeding a producer from a stream: lines in bulk, JSON lines one by one, at a rate if asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from raftlog import Producer
from raftlog.cli.lines import ReadableStream, parse_json_line, read_lines, split_keys
from raftlog.cli.output import Advance
from raftlog.cli.receipts import Receipts
from raftlog.errors import InvalidRequestError
from raftlog.types import Headers

SLICES_PER_S: Final = 20  # how finely a rate is kept
RUNS_PER_SLICE: Final = 8  # into which lines without keys are cut: each goes to another partition


class Pacer:
    """Keeps to so many records a second: short pauses between slices, and no catching up."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def slices(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        """``lines`` in order, each slice when its time has come."""
        if self._rate is None:
            yield lines
            return
        size = max(1, int(self._rate / SLICES_PER_S))
        for start in range(0, len(lines), size):
            part = lines[start : start + size]
            now = time.monotonic()
            time.sleep(max(0.0, self._due - now))
            self._due = max(self._due, now) + len(part) / self._rate
            yield part


class Feed:
    """Sends what a stream holds to a topic, and collects the receipts."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        partition: int | None = None,
        headers: Headers = (),
        rate: float | None = None,
        advance: Advance = lambda _count: None,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._headers = headers
        self._pacer = Pacer(rate)
        self._advance = advance
        self.receipts = Receipts()
        self.sent = 0
        self.bytes_sent = 0

    def send_lines(self, stream: ReadableStream, key_separator: bytes | None) -> None:
        """A record a line. Lines without keys are spread over the partitions."""
        for lines in self._slices(stream):
            if key_separator:
                self._send_many(*split_keys(lines, key_separator))
            elif self._partition is not None:
                self._send_many(lines, None)
            else:
                size = -(-len(lines) // RUNS_PER_SLICE)
                for first in range(0, len(lines), size):
                    self._send_many(lines[first : first + size], None)

    def _send_many(self, values: list[bytes], keys: list[bytes | None] | None) -> None:
        future = self._producer.send_many(
            self._topic,
            values,
            keys=keys,
            headers=[self._headers] * len(values) if self._headers else None,
            partition=self._partition,
        )
        self.receipts.expect(future)

    def send_json(self, stream: ReadableStream) -> None:
        """A record a line of JSON. ``--partition`` and ``--header`` add to what a line says."""
        numbers = count(1)
        for lines in self._slices(stream):
            for number, line in zip(numbers, lines, strict=False):
                try:
                    record = parse_json_line(line)
                except ValueError as error:
                    raise InvalidRequestError(f"line {number}: {error}") from error
                future = self._producer.send(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    headers=self._headers + record.headers,
                    timestamp_ms=record.timestamp_ms,
                    partition=record.partition if self._partition is None else self._partition,
                )
                self.receipts.expect(future)

    def _slices(self, stream: ReadableStream) -> Iterator[list[bytes]]:
        for lines in read_lines(stream):
            for part in self._pacer.slices(lines):
                yield part
                self.sent += len(part)
                self.bytes_sent += sum(map(len, part))
                self._advance(len(part))

    def summary(self, *, seconds: float) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "records": self.sent,
            "acknowledged": self.receipts.acknowledged,
            "bytes": self.bytes_sent,
            "seconds": round(seconds, 3),
            "partitions": self.receipts.rows(),
        }
