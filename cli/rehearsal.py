"""One run of ``raftlog demo``: send, kill the broker under load, restart, read back, judge."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from cli import output
from cli.feed import Pacer
from cli.ledger import Ledger, Verdict
from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.client.delivery import RangesFuture
from raftlog.testing import BrokerProcess, Cluster

Lines: TypeAlias = Iterator[list[bytes]]

TOPIC: Final = "page-views"
SENDING_S: Final = 3.0  # spread over so long, so that there is a mid-stream to kill in
KILL_AFTER_PART: Final = 3  # once one in so many is acknowledged
CHUNKS_PER_S: Final = 50
FLUSH_TIMEOUT_S: Final = 120.0
POLL_MS: Final = 1_000
POLL_RECORDS_MAX: Final = 10_000


@dataclass(frozen=True)
class Outage:
    """A SIGKILL and the start after it. ``acknowledged``: how many records were, at that moment."""

    broker_id: int
    pid: int
    acknowledged: int
    seconds: float


def kill_and_start(broker: BrokerProcess, *, acknowledged: int) -> Outage:
    """Kill the broker; return when it answers again."""
    pid = broker.pid
    assert pid is not None, "there is nothing to kill"
    began = time.monotonic()
    broker.kill()
    broker.start()
    return Outage(broker.id, pid, acknowledged, time.monotonic() - began)


@dataclass(frozen=True)
class Result:
    """What happened, and the judgement."""

    verdict: Verdict
    outage: Outage
    brokers: int
    bytes_sent: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.verdict),
            "brokers": self.brokers,
            "failovers": 1,
            "bytes": self.bytes_sent,
            "acknowledged_before_kill": self.outage.acknowledged,
            "unavailable_seconds": round(self.outage.seconds, 3),
            "seconds": round(self.seconds, 3),
        }


class Rehearsal:
    """Uses a running cluster once. ``total`` records will come."""

    def __init__(self, cluster: Cluster, *, total: int, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._total = total
        self._note = note
        self._outage: Future[Outage] | None = None
        self._ledger = Ledger()
        self._sent: deque[tuple[list[bytes], RangesFuture]] = deque()
        self._acknowledged = 0
        self._bytes_sent = 0

    def run(self, lines: Lines) -> Result:
        began = time.monotonic()
        with Admin(self._cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=1)])
        with (
            ThreadPoolExecutor(1) as killer,  # sending goes on while it works
            Producer(self._cluster.bootstrap) as producer,
            output.progress("sending", self._total) as advance,
        ):
            self._send(producer, lines, advance, killer)
            producer.flush(timeout=FLUSH_TIMEOUT_S)
            self._settle(wait=True)
        assert self._outage is not None, "there is always a kill before the last third is sent"
        with output.progress("reading", self._acknowledged) as advance:
            self._read(advance)
        return Result(
            verdict=self._ledger.verdict(),
            outage=self._outage.result(),
            brokers=len(self._cluster.brokers),
            bytes_sent=self._bytes_sent,
            seconds=time.monotonic() - began,
        )

    def _send(
        self,
        producer: Producer,
        lines: Lines,
        advance: output.Advance,
        killer: ThreadPoolExecutor,
    ) -> None:
        self._note(f"sending {self._total:,} records to {TOPIC}")
        rate = self._total / SENDING_S
        pacer = Pacer(rate)
        kill_at = self._total // KILL_AFTER_PART
        sent = 0
        for chunk in chunks(lines, max(1, int(rate / CHUNKS_PER_S))):
            for part in pacer.slices(chunk):
                self._sent.append((part, producer.send_many(TOPIC, part, partition=0)))
                sent += len(part)
                self._bytes_sent += sum(map(len, part))
                advance(len(part))
            # The last part is not sent before the kill, or that would not be in the middle.
            self._settle(wait=self._outage is None and sent >= self._total - kill_at)
            if self._outage is None and self._acknowledged >= kill_at:
                broker = self._cluster.brokers[0]
                self._note(f"kill -9 {broker.pid} (broker {broker.id}), then start it again")
                self._outage = killer.submit(
                    kill_and_start, broker, acknowledged=self._acknowledged
                )

    def _settle(self, *, wait: bool) -> None:
        """Enter the acknowledgements that are there, in the order of sending; or all of them."""
        while self._sent and (wait or self._sent[0][1].done()):
            values, future = self._sent.popleft()
            offsets = [at for part in future.result() for at in range(part.first, part.last + 1)]
            self._ledger.acknowledge(values, offsets)
            self._acknowledged += len(values)

    def _read(self, advance: output.Advance) -> None:
        partition = TopicPartition(TOPIC, 0)
        with Consumer(self._cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]
            while consumer.position(partition) < end:
                records = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
                for record in records:
                    self._ledger.find(record.offset, record.value)
                advance(len(records))


def chunks(lines: Lines, size: int) -> Lines:
    """The same lines in lists of ``size``."""
    chunk: list[bytes] = []
    for part in lines:
        for start in range(0, len(part), size):
            chunk += part[start : start + size]
            while len(chunk) >= size:
                yield chunk[:size]
                chunk = chunk[size:]
    if chunk:
        yield chunk
