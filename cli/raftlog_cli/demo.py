"""``raftlog demo``: write and read records on a temporary cluster while leaders are killed."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import click
from xxhash import xxh3_64_intdigest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition, limits
from raftlog.client.delivery import RangesFuture
from raftlog.disk import Disk, OsDisk
from raftlog.errors import BrokerUnavailableError, DataDirectoryError
from raftlog.storage import inspect
from raftlog.testing import BrokerProcess, Cluster, cluster, wait_until
from raftlog.types import Offset
from raftlog_cli import options, output
from raftlog_cli.main import STATUS_FAILED
from raftlog_cli.output import read_lines
from raftlog_cli.up import BROKERS_DEFAULT, write_cluster_file

RECORDS_DEFAULT: Final = 200_000


def _not_two(_context: click.Context, _parameter: click.Parameter, count: int) -> int:
    if count == 2:
        raise click.BadParameter(
            "one of two brokers is not a majority. Use one broker, or three or more"
        )
    return count


@click.command(short_help="Write records, kill two leaders, and compare what is read back.")
@click.option(
    "--brokers",
    type=click.IntRange(1, limits.VOTERS_PER_CLUSTER_MAX),
    default=BROKERS_DEFAULT,
    show_default=True,
    callback=_not_two,
    help="Number of brokers: 3 or more, or 1 to restart a single broker.",
)
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of this file instead of generated page views.",
)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=RECORDS_DEFAULT,
    show_default=True,
    help="Number of page views to generate.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of the generated page views."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Store the cluster in this new or empty directory, and keep it.",
)
@options.as_json
@click.pass_context
def demo(
    context: click.Context,
    brokers: int,
    source: Path | None,
    records: int,
    seed: int,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Write records, kill two leaders, read all records back and compare them.

    Sends page views to a topic of a temporary cluster with three replicas. In the middle, it kills
    the leader with SIGKILL, wipes its disk and restarts it, and then kills the new leader. At the
    end, it reads all records, compares them with the acknowledged ones, and compares the files of
    the replicas. Exit status 1 if a record is lost, changed or duplicated, or if the replicas
    differ.

    \b
    Example:
      raftlog demo --input access.log --keep demo-cluster
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.BadParameter(f"{keep} is not empty", param_hint="--keep")

    def lines() -> Lines:
        return _file_lines(source) if source is not None else _generated(records, seed)

    total = sum(map(len, lines())) if source is not None else records
    if total == 0:
        raise click.BadParameter(f"{source} is empty", param_hint="--input")
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory("-raftlog-demo")))
        running = stack.enter_context(cluster(brokers, directory=directory, with_relays=False))
        write_cluster_file(directory, running)
        stack.callback(write_cluster_file, directory, running)  # after running.kill: no broker runs
        stack.callback(running.kill)
        note = (lambda _text: None) if as_json else output.note
        result = Rehearsal(running, total=total, note=note).run(lines())
    if as_json:
        output.print_json(result.to_dict())
    else:
        _print(result, keep)
    if not result.holds:
        context.exit(STATUS_FAILED)


def _file_lines(path: Path) -> Lines:
    try:
        with path.open("rb") as file:
            yield from read_lines(file)
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--input") from error


def _generated(records: int, seed: int) -> Lines:
    for event in page_views(records, seed=seed):
        yield [event]


def _print(result: Result, keep: Path | None) -> None:
    verdict = result.verdict
    rows: list[tuple[str, Any]] = [
        ("acknowledged", f"{verdict.acknowledged:,} records, {result.bytes_sent:,} bytes"),
        *(row for outage in result.outages for row in _outage_rows(outage)),
        ("longest gap", f"{result.unavailable_seconds:.2f} s without an acknowledgement"),
        ("found", f"{verdict.found:,}"),
        ("lost", f"{verdict.lost:,}"),
        ("duplicated", f"{verdict.duplicated:,}"),
        ("order", "kept" if verdict.in_order else "BROKEN"),
        ("bytes", f"{'identical' if verdict.identical else 'DIFFERENT'}, SHA-256 {verdict.sha256}"),
        *_replica_rows(result.comparison),
        ("took", f"{result.seconds:.1f} s"),
    ]
    for name, value in rows:
        click.echo(f"{name:>16}  {value}")
    click.echo()
    if result.holds:
        click.echo("Every acknowledged record was read once, in order, byte for byte.")
    else:
        click.echo(
            "FAILED: acknowledged records are missing, duplicated or different, or replicas "
            "differ. Report this with the --keep directory."
        )
    if keep is not None:
        click.echo(f"The cluster's files are in {keep}: raftlog up --data-dir {keep}")


def _outage_rows(outage: Outage) -> list[tuple[str, str]]:
    killed = f"broker {outage.broker_id} (process {outage.pid}), the leader, with SIGKILL"
    again = f"after {outage.seconds:.2f} s, by broker {outage.leader}"
    wiped = [("wiped", f"the disk of broker {outage.broker_id}, which restarted empty")]
    return [
        ("killed", f"{killed}, after {outage.acknowledged:,} acknowledgements"),
        ("responds again", again),
        *(wiped if outage.wiped else []),
    ]


def _replica_rows(comparison: Comparison) -> list[tuple[str, str]]:
    copies = comparison.copies
    if comparison.identical:
        copy = copies[0]
        content = f"{copy.bytes:,} bytes, SHA-256 {copy.sha256[:16]}..., chain {copy.chain}"
        return [("replicas", f"identical: {len(copies)} of {content}")]
    texts = (
        f"broker {copy.broker}: up to offset {copy.end}, {copy.bytes:,} bytes, chain {copy.chain}"
        f" {copy.problem}"
        for copy in copies
    )
    return [("replicas", "DIFFERENT"), *(("", text) for text in texts)]


# -- page views ------------------------------------------------------------------------------------


FIRST_EVENT_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00Z: events do not depend on the clock
GAP_MS_MAX: Final = 40
USERS: Final = 5_000

_PAGES: Final = (
    "/",
    "/search",
    "/cart",
    "/checkout",
    "/login",
    "/help",
    "/item/{}",
    "/item/{}/reviews",
)
_REFERRERS: Final = (None, None, "https://www.example.com/", "https://news.example.org/today")
_COUNTRIES: Final = ("BR", "DE", "IN", "JP", "KE", "US", "日本")  # the last one is not ASCII


def page_views(count: int, *, seed: int) -> Iterator[bytes]:
    """Yield ``count`` events, one JSON object each, without newlines."""
    random = Random(seed)  # noqa: S311 - test data
    time_ms = FIRST_EVENT_MS
    for number in range(count):
        time_ms += random.randrange(GAP_MS_MAX)
        event = {
            "event": number,
            "time_ms": time_ms,
            "user": f"user-{random.randrange(USERS)}",
            "page": random.choice(_PAGES).format(random.randrange(10_000)),
            "referrer": random.choice(_REFERRERS),
            "country": random.choice(_COUNTRIES),
            "load_ms": int(random.lognormvariate(5, 0.6)),
        }
        yield json.dumps(event, ensure_ascii=False).encode()


# -- rehearsal -------------------------------------------------------------------------------------
#
# One run of ``raftlog demo``: send, kill leaders under load, read, compare the replicas.


TOPIC: Final = "page-views"
REPLICATION_FACTOR: Final = 3
POLL_MS: Final = 1_000
POLL_RECORDS_MAX: Final = 10_000


@dataclass(frozen=True)
class Result:
    """Result of the run and its verdict. ``unavailable_seconds``: the longest gap without an
    acknowledgement while records were in flight.
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
        """ID of the broker whose disk was wiped."""
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
    """Uses a running cluster once, and stops it. ``total``: number of records."""

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
                    working.result()  # raises the error of the thread

            try:
                load.run(lines, check=check, advance=advance)
            except BaseException:
                trouble.stop()
                raise
            return load, working.result()

    def _read(self, load: Load, advance: output.Advance) -> Offset:
        """Read all records into the ledger. Returns the end offset of the partition."""
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
        """Stop the brokers and compare the records that they have stored."""
        wait_until(
            lambda: self._cluster.is_in_sync(TOPIC, 0),
            timeout_s=TIMEOUT_S,
            what="every replica in sync",
        )
        views = self._cluster.views(TOPIC, 0)
        holders = next(iter(views.values())).info.replicas
        self._cluster.stop()
        directories = {number: str(self._cluster.broker(number).data_dir) for number in holders}
        return compare(OsDisk(), directories, end)


# -- sending ---------------------------------------------------------------------------------------


Lines: TypeAlias = Iterator[list[bytes]]

TICK_S: Final = 0.02
FADING_TICKS: Final = 100  # each tick sends one in this many of the remaining records of a stage
STEADY_TICKS: Final = 75  # ticks of the first and the last stage, which have a constant rate


@dataclass(slots=True)
class _Portion:
    values: list[bytes]
    future: RangesFuture
    sent_at: float


class Load:
    """Sends ``total`` records in ``stages``. Another thread increments ``stage`` from 0.

    A stage sends its part of the records at a decreasing rate, so that the load continues until the
    stage ends.
    """

    def __init__(self, producer: Producer, topic: str, *, total: int, stages: int) -> None:
        self.stage = 0
        self.sent = 0
        self.acknowledged = 0
        self.bytes_sent = 0
        self.longest_wait = 0.0  # seconds without an acknowledgement while records were in flight
        self._producer = producer
        self._topic = topic
        self._total = total
        self._stages = stages
        self.ledger = Ledger()
        self._in_flight: deque[_Portion] = deque()
        self._times: list[tuple[float, float]] = []  # of each portion: sent, acknowledged

    def _limit(self) -> int:
        """Return the number of records that may be sent until the stage ends."""
        return self._total * (self.stage + 1) // self._stages

    @property
    def is_idle(self) -> bool:
        """Whether all records of this stage were sent and acknowledged."""
        return self.sent >= self._limit() and self.acknowledged == self.sent

    def acknowledged_since(self, moment: float) -> float | None:
        """Return the time when the first record sent after ``moment`` was acknowledged, or None.

        Times are seconds of the monotonic clock.
        """
        after = bisect_right(self._times, (moment, math.inf))
        return self._times[after][1] if after < len(self._times) else None

    def run(self, lines: Lines, *, check: Callable[[], None], advance: output.Advance) -> None:
        """Send all records, and wait for their acknowledgements. ``check``: raises to end early."""
        records = (line for part in lines for line in part)
        while self.sent < self._total or self._in_flight:
            check()
            values = list(islice(records, self._portion_size()))
            if values:
                future = self._producer.send_many(self._topic, values, partition=0)
                self._in_flight.append(_Portion(values, future, time.monotonic()))
                self.sent += len(values)
                self.bytes_sent += sum(map(len, values))
                advance(len(values))
            self._take_acknowledged()
            time.sleep(TICK_S)

    def _portion_size(self) -> int:
        left = self._limit() - self.sent
        share = self._total // self._stages
        is_steady = self.stage in {0, self._stages - 1}
        size = share // STEADY_TICKS if is_steady else left // FADING_TICKS
        return min(max(size, 1), left)

    def _take_acknowledged(self) -> None:
        """Add completed acknowledgements to the ledger, in the order of sending."""
        while self._in_flight and self._in_flight[0].future.done():
            portion, now = self._in_flight.popleft(), time.monotonic()
            ranges = portion.future.result()
            offsets = [at for part in ranges for at in range(part.first, part.last + 1)]
            self.ledger.acknowledge(portion.values, offsets)
            due_since = max(portion.sent_at, self._times[-1][1] if self._times else 0.0)
            self.longest_wait = max(self.longest_wait, now - due_since)
            self._times.append((portion.sent_at, now))
            self.acknowledged += len(portion.values)


# -- killing leaders -------------------------------------------------------------------------------


TIMEOUT_S: Final = 60.0
KILLS: Final = 2


@dataclass(frozen=True)
class Outage:
    """A SIGKILL of a leader. ``acknowledged``: number of acknowledged records at that time.

    ``seconds``: until the first acknowledgement of a record sent after it. ``leader``: ID of the
    new leader.
    """

    broker_id: int
    pid: int
    acknowledged: int
    seconds: float
    leader: int
    wiped: bool


class Outages:
    """Runs once, in a thread, during the load. ``stages``: number of stages of the load."""

    def __init__(
        self, cluster: Cluster, topic: str, *, total: int, note: Callable[[str], None]
    ) -> None:
        alone = len(cluster.brokers) == 1
        self.kills = 1 if alone else KILLS
        self.stages = self.kills + 2
        self._cluster = cluster
        self._topic = topic
        self._first_at = total // self.stages // 2  # acknowledgements before the first kill
        self._note = note
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End ``run`` with an error, if it still runs."""
        self._stopping.set()

    def run(self, load: Load) -> list[Outage]:
        """Kill leaders one after the other, and restart them; the first with an empty disk."""
        self._until(lambda: load.acknowledged >= self._first_at, "the first acknowledgements")
        outages = []
        for number in range(self.kills):
            wiped = number == 0 and len(self._cluster.brokers) > 1
            outages.append(self._outage(load, wiped=wiped))
        load.stage += 1
        return outages

    def _outage(self, load: Load, *, wiped: bool) -> Outage:
        self._until(self._leader_is_known, "a leader")
        leader = self._cluster.leader(self._topic, 0)
        assert leader is not None, "a leader was found, and no fault was injected since"
        broker = self._cluster.broker(leader)
        pid, acknowledged = broker.pid, load.acknowledged
        assert pid is not None, "the leader has just responded"
        load.stage += 1
        self._note(f"kill -9 {pid} (broker {leader}, which leads {self._topic}:0)")
        broker.kill()
        killed_at = time.monotonic()
        if len(self._cluster.brokers) == 1:
            broker.start()
        self._until(self._leader_is_known, "a new leader")
        self._until(
            lambda: load.acknowledged_since(killed_at) is not None or load.is_idle,
            "an acknowledgement by the new leader",
        )
        now_leading = self._cluster.leader(self._topic, 0) or 0
        seconds = (load.acknowledged_since(killed_at) or time.monotonic()) - killed_at
        self._note(f"broker {now_leading} leads; acknowledgements resume after {seconds:.2f} s")
        if not broker.running:
            self._restart(broker, wiped=wiped)
        return Outage(leader, pid, acknowledged, seconds, now_leading, wiped)

    def _restart(self, broker: BrokerProcess, *, wiped: bool) -> None:
        if wiped:
            self._cluster.wipe(broker.id)
        began = time.monotonic()
        broker.start()
        self._until(lambda: self._cluster.is_in_sync(self._topic, 0), "every replica in sync")
        disk = "an empty disk" if wiped else "its disk"
        took = time.monotonic() - began
        self._note(f"broker {broker.id} restarted with {disk}, in sync after {took:.2f} s")

    def _leader_is_known(self) -> bool:
        return self._cluster.leader(self._topic, 0) is not None

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            if self._stopping.is_set():
                raise BrokerUnavailableError("the run was stopped")
            return condition()

        wait_until(is_so, timeout_s=TIMEOUT_S, what=what)


# -- acknowledged and found records ----------------------------------------------------------------


_NOTHING: Final = 0  # no value is acknowledged at this offset


def _mark(value: bytes) -> int:
    return xxh3_64_intdigest(value) or 1


@dataclass(frozen=True)
class Verdict:
    """Result of the comparison. ``duplicated``: records at offsets without an acknowledgement."""

    acknowledged: int
    found: int
    lost: int
    duplicated: int
    in_order: bool
    identical: bool
    sha256: str

    @property
    def holds(self) -> bool:
        """Whether every acknowledged record was found once, in order and unchanged."""
        return not self.lost and not self.duplicated and self.in_order and self.identical


class Ledger:
    """Compares the acknowledged records of one partition with those that are read. Pure.

    The value at an offset must be the value that was acknowledged there, byte for byte. Values are
    kept as 64-bit hashes, to use 8 bytes per record. The SHA-256 of all values in order, sent and
    found, decides whether they are identical.
    """

    def __init__(self) -> None:
        self._acknowledged = array("Q")  # by offset: hash of the acknowledged value
        self._count = 0
        self._last_offset = -1
        self._in_order = True
        self._found = self._intact = self._extra = 0
        self._sent_digest = hashlib.sha256()
        self._found_digest = hashlib.sha256()

    def acknowledge(self, values: Sequence[bytes], offsets: Sequence[Offset]) -> None:
        """Add acknowledged ``values`` with their ``offsets``, one each."""
        for value, offset in zip(values, offsets, strict=True):
            self._in_order = self._in_order and offset > self._last_offset
            self._last_offset = offset
            missing = offset + 1 - len(self._acknowledged)
            if missing > 0:
                self._acknowledged.extend([_NOTHING] * missing)
            self._acknowledged[offset] = _mark(value)
            self._sent_digest.update(value + b"\n")
        self._count += len(values)

    def find(self, offset: Offset, value: bytes | None) -> None:
        """Compare ``value``, read at ``offset``. Call once per record, in the order of reading."""
        self._found += 1
        self._found_digest.update((value or b"") + b"\n")
        known = offset < len(self._acknowledged) and self._acknowledged[offset] != _NOTHING
        if not known:
            self._extra += 1
        elif value is not None and self._acknowledged[offset] == _mark(value):
            self._intact += 1
            self._acknowledged[offset] = _NOTHING  # a second one counts as a duplicate

    def verdict(self) -> Verdict:
        found_digest = self._found_digest.hexdigest()
        return Verdict(
            acknowledged=self._count,
            found=self._found,
            lost=self._count - self._intact,
            duplicated=self._extra,
            in_order=self._in_order,
            identical=found_digest == self._sent_digest.hexdigest(),
            sha256=found_digest,
        )


# -- the replicas' files ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """The batches of one replica up to an offset. ``chain``: hash-chain value of the last one.

    ``problem``: why the replica is shorter or invalid; "" if it is complete and valid.
    """

    broker: int
    end: Offset
    bytes: int
    sha256: str
    chain: str
    problem: str = ""


@dataclass(frozen=True)
class Comparison:
    copies: tuple[Copy, ...]

    @property
    def identical(self) -> bool:
        """Whether every copy is valid and contains the same bytes up to the same offset."""
        contents = {(copy.end, copy.bytes, copy.sha256, copy.chain) for copy in self.copies}
        return len(contents) == 1 and not any(copy.problem for copy in self.copies)


def compare(disk: Disk, data_dirs: Mapping[int, str], end: Offset) -> Comparison:
    """Compare the one partition below each directory, by broker ID, in the offsets below ``end``.

    Every byte is verified: headers, values, CRCs and the hash chain.
    """
    return Comparison(tuple(_read(disk, broker, path, end) for broker, path in data_dirs.items()))


def _read(disk: Disk, broker: int, data_dir: str, end: Offset) -> Copy:
    digest = hashlib.sha256()
    reached, size, chain, problem = 0, 0, "", ""
    try:
        (report,) = inspect.verify(disk, data_dir)
        problem = "".join(found.message for found in report.problems[:1] if report.is_damaged)
        for row in inspect.dump(disk, report.directory):
            if row.header is None or row.error or row.header.base_offset >= end:
                break
            digest.update(row.data)
            size += len(row.data)
            reached, chain = row.header.next_offset, f"{row.header.chain:016x}"
    except (DataDirectoryError, OSError) as error:
        problem = str(error)
    if reached < end and not problem:
        problem = f"it ends at offset {reached}, not at {end}"
    return Copy(broker, reached, size, digest.hexdigest(), chain, problem)
