"""One run of ``raftlog demo``: send, kill leaders under load, read back, compare the replicas."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.cli import output, replicas
from raftlog.cli.ledger import Verdict
from raftlog.cli.load import Lines, Load
from raftlog.cli.outages import TIMEOUT_S, Outage, Outages
from raftlog.cli.replicas import Comparison
from raftlog.disk import OsDisk
from raftlog.testing import Cluster, wait_until
from raftlog.types import Offset

TOPIC: Final = "page-views"
REPLICATION_FACTOR: Final = 3
POLL_MS: Final = 1_000
POLL_RECORDS_MAX: Final = 10_000


@dataclass(frozen=True)
class Result:
    """What happened, and the judgement. ``unavailable_seconds``: the longest gap without an
    acknowledgement while some were due.
    """

    verdict: Verdict
    outages: list[Outage]
    comparison: Comparison
    brokers: int
    bytes_sent: int
    unavailable_seconds: float
    seconds: float

    @property
    def holds(self) -> bool:
        return self.verdict.holds and self.comparison.identical

    @property
    def wiped(self) -> int | None:
        """The broker that lost its disk."""
        return next((outage.broker_id for outage in self.outages if outage.wiped), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.verdict),
            "brokers": self.brokers,
            "failovers": len(self.outages),
            "failover_seconds": [round(outage.seconds, 3) for outage in self.outages],
            "wiped": self.wiped,
            "replicas_identical": self.comparison.identical,
            "replicas": [asdict(copy) for copy in self.comparison.copies],
            "bytes": self.bytes_sent,
            "acknowledged_before_kill": self.outages[0].acknowledged,
            "unavailable_seconds": round(self.unavailable_seconds, 3),
            "seconds": round(self.seconds, 3),
        }


class Rehearsal:
    """Uses a running cluster once, and stops it. ``total`` records will come."""

    def __init__(self, cluster: Cluster, *, total: int, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._total = total
        self._note = note

    def run(self, lines: Lines) -> Result:
        began = time.monotonic()
        copies = min(REPLICATION_FACTOR, len(self._cluster.brokers))
        with Admin(self._cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=1, replication_factor=copies)])
        self._note(f"sending {self._total:,} records to {TOPIC}, with {copies} replicas")
        with Producer(self._cluster.bootstrap) as producer:
            load, outages = self._send(producer, lines)
        with output.progress("reading", load.acknowledged) as advance:
            end = self._read(load, advance)
        comparison = self._compare(end)
        return Result(
            verdict=load.ledger.verdict(),
            outages=outages,
            comparison=comparison,
            brokers=len(self._cluster.brokers),
            bytes_sent=load.bytes_sent,
            unavailable_seconds=max(load.longest_wait, *(outage.seconds for outage in outages)),
            seconds=time.monotonic() - began,
        )

    def _send(self, producer: Producer, lines: Lines) -> tuple[Load, list[Outage]]:
        trouble = Outages(self._cluster, TOPIC, total=self._total, note=self._note)
        load = Load(producer, TOPIC, total=self._total, stages=trouble.stages)
        with (
            ThreadPoolExecutor(1) as executor,
            output.progress("sending", self._total) as advance,
        ):
            working = executor.submit(trouble.run, load)

            def check() -> None:
                if working.done():
                    working.result()  # raises what it ended with

            try:
                load.run(lines, check=check, advance=advance)
            except BaseException:
                trouble.stop()
                raise
            return load, working.result()

    def _read(self, load: Load, advance: output.Advance) -> Offset:
        """Read everything back into the ledger; where the partition ends."""
        partition = TopicPartition(TOPIC, 0)
        with Consumer(self._cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]
            while consumer.position(partition) < end:
                records = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
                for record in records:
                    load.ledger.find(record.offset, record.value)
                advance(len(records))
        return end

    def _compare(self, end: Offset) -> Comparison:
        """Stop the brokers and compare what they have stored."""
        wait_until(
            lambda: self._cluster.is_in_sync(TOPIC, 0),
            timeout_s=TIMEOUT_S,
            what="every replica in sync",
        )
        views = self._cluster.views(TOPIC, 0)
        holders = next(iter(views.values())).info.replicas
        self._cluster.stop()
        directories = {number: str(self._cluster.broker(number).data_dir) for number in holders}
        return replicas.compare(OsDisk(), directories, end)
