"""``raftlog produce``: send lines to a topic, in bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

import click
from click.core import ParameterSource

from raftlog import Admin, Producer, RangesFuture
from raftlog.client.producer_core import checked_headers
from raftlog.client.resumable import ResumableProducer
from raftlog.errors import InvalidRequestError, RaftlogError, UnknownTopicError, counted
from raftlog.record import Codec
from raftlog.types import Headers, Offset, OffsetRange, RecordMetadata
from raftlog_cli import completing, options, output, overview
from raftlog_cli.follow import Agent, Routing, Sending, StateFile, default_state_file
from raftlog_cli.main import Failed
from raftlog_cli.output import Advance, ReadableStream, parse_json_line, read_lines, split_keys


@click.command()
@click.argument("topic", shell_complete=completing.topics)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path())
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    default="-",
    help="Read this file instead of standard input.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Send the lines of each FILE, and wait for more until interrupted; see above.",
)
@click.option("--once", is_flag=True, help="With --follow: end when no new line is left.")
@click.option(
    "--state",
    "state_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --follow: where the positions are kept.  "
    "[default: ~/.local/state/raftlog/follow-TOPIC-ID.json]",
)
@click.option(
    "-k",
    "--key",
    metavar="KEY",
    help="Key of every record; with --jsonl, of those without a key.",
)
@click.option(
    "--key-separator",
    metavar="S",
    help="Text before the first S of a line is the key; a line without S has no key.",
)
@click.option("--jsonl", is_flag=True, help="Each line is a record in JSON; see above.")
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), help="Send all records to this partition."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _context, _parameter, pairs: [options.key_and_value(pair) for pair in pairs],
    help="A header for every record; may be repeated.",
)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
              help="Acknowledgement by all in-sync replicas, 1 (leader) or 0 (none).")  # fmt: skip
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd", "gzip"]),
    default="none",
    show_default=True,
    help="Compression of the batches.",
)
@click.option("--rate", type=options.FiniteRange(min=0, min_open=True), metavar="N",
              help="Maximum records per second.")  # fmt: skip
@options.as_json
@options.bootstrap
def produce(
    topic: str,
    files: tuple[str, ...],
    source: BufferedReader,
    follow: bool,
    once: bool,
    state_file: Path | None,
    key: str | None,
    key_separator: str | None,
    jsonl: bool,
    partition: int | None,
    headers: list[tuple[str, str]],
    acks: str,
    compression: str,
    rate: float | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Send records, one per line, from a file or standard input.

    The bytes of a line are sent unchanged, without the newline. Lines without a key are distributed
    over the partitions in batches. Prints the number of acknowledged records and their offsets.

    With --jsonl a line is {"key", "value", "headers", "partition", "timestamp_ms"}; all fields are
    optional. Text is a string, other bytes are {"base64": "..."}, and headers are an object or
    pairs. The output of `tail --json` is valid input.

    With --follow it sends each line of each FILE once, from the first line on, and then the lines
    that are appended. The positions are kept: the next run continues. Files may be rotated by
    rename or by copytruncate, and may be missing for a time. A rotated file is recognized by its
    content, and by a name with a number or a date, such as FILE.1 or FILE-20260501. Lines without
    keys that are read together go to one partition.

    \b
    Example:
      raftlog produce clicks --file access.log --compression lz4
      echo 'user-1 /cart' | raftlog produce clicks --key-separator ' '
      echo /cart | raftlog produce clicks -k user-1
      raftlog tail clicks -o earliest --json | raftlog produce copy --jsonl
      raftlog produce clicks --follow /var/log/nginx/access.log /var/log/nginx/error.log
    """
    if key is not None and key_separator is not None:
        raise click.UsageError("--key cannot be combined with --key-separator")
    encoded = checked_headers([(name, os.fsencode(value)) for name, value in headers]) or ()
    if follow or files or once or state_file:
        _check_follow(follow, files, jsonl=jsonl, acks=acks, rate=rate)
        routing = Routing(partition, key, key_separator or "")
        sending = Sending(routing, encoded, Codec.parse(compression))
        send_files(bootstrap, topic, files, sending, state_file, once=once, as_json=as_json)
        return
    with Producer(bootstrap, acks=acks, compression=compression) as producer:
        key_bytes = None if key is None else os.fsencode(key)
        feed = Feed(producer, topic, partition=partition, key=key_bytes, headers=encoded, rate=rate)
        send_stream(bootstrap, producer, feed, source, key_separator, jsonl=jsonl, as_json=as_json)


def send_stream(
    bootstrap: str,
    producer: Producer,
    feed: Feed,
    source: BufferedReader,
    key_separator: str | None,
    *,
    jsonl: bool,
    as_json: bool,
) -> None:
    """Send the records of ``source``. Prints a summary."""
    topic = feed.topic
    started = time.monotonic()
    with (
        output.progress(f"to {topic}", hidden=source.isatty()) as feed.advance,
        noting_stalls(
            lambda: feed.sent, producer.undelivered, lambda: stall_reason(bootstrap, topic)
        ),
    ):
        try:
            if jsonl:
                feed.send_json(source)
            else:
                feed.send_lines(source, os.fsencode(key_separator or "") or None)
            feed.finish()
            if not feed.sent:
                check_exists(bootstrap, topic)
        except UnknownTopicError as error:
            existing = options.topics(bootstrap)
            raise Failed(options.no_topic(topic, existing, create=True)) from error
        except RaftlogError as error:
            feed.receipts.count_all()
            raise Failed(
                f"{error} ({counted(feed.receipts.acknowledged, 'record')} acknowledged)"
            ) from error
    summary = feed.summary(seconds=time.monotonic() - started)
    if as_json:
        output.print_json(summary)
    else:
        _print(summary)


def _check_follow(
    follow: bool,
    files: tuple[str, ...],
    *,
    jsonl: bool,
    acks: str,
    rate: float | None,
) -> None:
    """Raise ``click.UsageError`` for options that --follow excludes, or that need it."""
    if not follow:
        raise click.UsageError("FILE, --once and --state need --follow. Without it, use --file")
    if not files:
        raise click.UsageError("--follow needs at least one FILE, after the topic")
    given = click.get_current_context().get_parameter_source
    excluded = {
        "--jsonl": jsonl,
        "--rate": rate is not None,
        "--acks": acks != "all",
        "--file": given("source") is not ParameterSource.DEFAULT,
    }
    for option, is_given in excluded.items():
        if is_given:
            raise click.UsageError(f"--follow cannot be combined with {option}")


def send_files(
    bootstrap: str,
    topic: str,
    files: Sequence[str],
    sending: Sending,
    state_file: Path | None,
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Follow ``files`` until interrupted, or until their ends with ``once``. Prints a summary."""
    started = time.monotonic()
    try:
        with Admin(bootstrap) as admin:
            (described,) = admin.describe_topics([topic], partitions=range(1))
    except UnknownTopicError as error:
        raise Failed(options.no_topic(topic, options.topics(bootstrap), create=True)) from error
    receipts = Receipts()
    path = state_file or default_state_file(topic, described.id)
    try:
        with StateFile(path) as kept:
            state = kept.load(topic, described.id)
            agent = Agent(kept, state, files, sending, sent=receipts.count, note=note_file)
            with closing(agent):
                agent.run(partial(_named_producer, bootstrap), once=once)
    finally:
        records = receipts.acknowledged
        summary = {"topic": topic, "records": records, "acknowledged": records, "state": str(path)}
        summary |= {"seconds": round(time.monotonic() - started, 3), "partitions": receipts.rows()}
        output.print_json(summary) if as_json else _print(summary)


def note_file(text: str) -> None:
    output.note(f"raftlog: {text}")


def _named_producer(bootstrap: str, name: str, epoch: int) -> ResumableProducer:
    # Short timeouts: the agent notes the failure, and sends the same records again.
    return ResumableProducer(
        bootstrap, name=name, epoch=epoch, request_timeout_ms=5_000, delivery_timeout_ms=15_000
    )


def check_exists(bootstrap: str, topic: str) -> None:
    """Raise ``UnknownTopicError`` for input without records, which sends no request otherwise."""
    with Admin(bootstrap) as admin:
        admin.describe_topics([topic], partitions=range(1))


def _print(summary: dict[str, Any]) -> None:
    click.echo(f"{counted(summary['records'], 'record')} to {summary['topic']}")
    for row in summary["partitions"]:
        click.echo(
            f"partition {row['partition']}: {counted(row['records'], 'record')}, "
            f"offsets {row['first_offset']} to {row['last_offset']}"
        )


# -- sending records -------------------------------------------------------------------------------


SLICES_PER_S: Final = 20  # slices per second of a limited rate
RUNS_PER_SLICE: Final = 8  # batches of lines without keys, each for another partition


class Pacer:
    """Limits the rate with short pauses between slices. Does not catch up after a delay."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def slices(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        """Yield ``lines`` in order, each slice when it is due."""
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
    """Sends the lines of a stream to a topic, and collects the receipts."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        rate: float | None = None,
    ) -> None:
        self._producer = producer
        self.topic = topic
        self._partition = partition
        self._key = key
        self._headers = headers
        self._pacer = Pacer(rate)
        self.advance: Advance = lambda _count: None  # shows the progress
        self.receipts = Receipts()
        self.sent = 0
        self.bytes_sent = 0

    def send_lines(self, stream: ReadableStream, key_separator: bytes | None) -> None:
        """Send one record per line. Lines without keys are distributed over the partitions."""
        for lines in self._slices(stream):
            if key_separator:
                self._send_many(*split_keys(lines, key_separator))
            elif self._key is not None:
                self._send_many(lines, [self._key] * len(lines))
            elif self._partition is not None:
                self._send_many(lines, None)
            else:
                size = -(-len(lines) // RUNS_PER_SLICE)
                for first in range(0, len(lines), size):
                    self._send_many(lines[first : first + size], None)

    def _send_many(self, values: list[bytes], keys: list[bytes | None] | None) -> None:
        future = self._producer.send_many(
            self.topic,
            values,
            keys=keys,
            headers=[self._headers] * len(values) if self._headers else None,
            partition=self._partition,
        )
        self.receipts.expect(future)

    def send_json(self, stream: ReadableStream) -> None:
        """Send one record per line of JSON, with the key, partition and headers of the options."""
        numbers = count(1)
        for lines in self._slices(stream):
            for number, line in zip(numbers, lines, strict=False):
                try:
                    record = parse_json_line(line)
                except ValueError as error:
                    raise InvalidRequestError(f"line {number}: {error}") from error
                future = self._producer.send(
                    self.topic,
                    value=record.value,
                    key=self._key if record.key is None else record.key,
                    headers=self._headers + record.headers,
                    timestamp_ms=record.timestamp_ms,
                    partition=record.partition if self._partition is None else self._partition,
                )
                self.receipts.expect(future)

    def finish(self) -> None:
        """Wait until all records are acknowledged."""
        self._producer.flush()
        self.receipts.await_all()

    def _slices(self, stream: ReadableStream) -> Iterator[list[bytes]]:
        for lines in _checked(read_lines(stream)):
            for part in self._pacer.slices(lines):
                yield part
                self.sent += len(part)
                self.bytes_sent += sum(map(len, part))
                self.advance(len(part))

    def summary(self, *, seconds: float) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "records": self.sent,
            "acknowledged": self.receipts.acknowledged,
            "bytes": self.bytes_sent,
            "seconds": round(seconds, 3),
            "partitions": self.receipts.rows(),
        }


def _checked(chunks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield the chunks. Raises ``InvalidRequestError`` for a line that is too long."""
    try:
        yield from chunks
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


# -- results ---------------------------------------------------------------------------------------


FUTURES_MAX: Final = 1_000  # results that were not processed yet; a future uses little memory


class Future(Protocol):
    """Interface of the result of ``send`` and ``send_many``."""

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> RecordMetadata | Sequence[OffsetRange]: ...


@dataclass
class PartitionReceipt:
    """Acknowledged records of one partition, with their first and last offset."""

    partition: int
    records: int
    first_offset: Offset
    last_offset: Offset


class Receipts:
    """Collects results in the order of sending. Raises the first failure."""

    def __init__(self) -> None:
        self._awaited: deque[Future] = deque()
        self._partitions: dict[int, PartitionReceipt] = {}

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged records; 0 with ``acks=0``."""
        return sum(receipt.records for receipt in self._partitions.values())

    def expect(self, future: Future) -> None:
        """Add a result. Process completed ones; wait if more than ``FUTURES_MAX`` are pending."""
        self._awaited.append(future)
        while self._awaited and (len(self._awaited) > FUTURES_MAX or self._awaited[0].done()):
            self._await_oldest()

    def await_all(self) -> None:
        """Wait for every result."""
        while self._awaited:
            self._await_oldest()

    def count_all(self) -> None:
        """Wait for every result after a failure, and count the acknowledged records."""
        while self._awaited:
            with suppress(RaftlogError):
                self._await_oldest()

    def _await_oldest(self) -> None:
        future = self._awaited.popleft()
        try:
            outcome = future.result()
        except RaftlogError:
            for part in future.acknowledged() if isinstance(future, RangesFuture) else ():
                self.count(part.partition, part.first, part.last)
            raise
        if isinstance(outcome, RecordMetadata):
            self.count(outcome.partition, outcome.offset, outcome.offset)
            return
        for part in outcome:
            self.count(part.partition, part.first, part.last)

    def count(self, partition: int, first: Offset, last: Offset) -> None:
        if first < 0:
            return  # acks=0: no offset was returned
        receipt = self._partitions.get(partition)
        if receipt is None:
            receipt = self._partitions[partition] = PartitionReceipt(partition, 0, first, last)
        receipt.records += last - first + 1
        receipt.first_offset = min(receipt.first_offset, first)
        receipt.last_offset = max(receipt.last_offset, last)

    def rows(self) -> list[dict[str, Any]]:
        """Return the receipts by partition, for JSON."""
        return [asdict(receipt) for _, receipt in sorted(self._partitions.items())]


# -- notices of a stalled producer -----------------------------------------------------------------


STALL_SECONDS: Final = 3.0  # without an acknowledgement, while records wait for one
AGAIN_SECONDS: Final = 15.0  # between two notices of one stall
CHECK_SECONDS: Final = 0.5


class Stall:
    """Decides when a notice is due. Time is an argument: monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._delivered: int | None = None
        self._since = now
        self._due_after = STALL_SECONDS

    def is_due(self, now: float, *, delivered: int, waiting: int) -> bool:
        """Return whether to print a notice now, at most once per ``AGAIN_SECONDS`` of a stall."""
        if delivered != self._delivered or not waiting:
            self._delivered, self._since, self._due_after = delivered, now, STALL_SECONDS
            return False
        if now - self._since < self._due_after:
            return False
        self._since, self._due_after = now, AGAIN_SECONDS
        return True


@contextmanager
def noting_stalls(
    sent: Callable[[], int], waiting: Callable[[], int], explain: Callable[[], str]
) -> Iterator[None]:
    """Print a notice while the block runs if no sent record is acknowledged."""
    ended = threading.Event()

    def watch() -> None:
        stall = Stall(time.monotonic())
        while not ended.wait(CHECK_SECONDS):
            count = waiting()
            if stall.is_due(time.monotonic(), delivered=sent() - count, waiting=count):
                reason = explain()
                if not ended.is_set():
                    are = "record is" if count == 1 else "records are"
                    output.note(f"raftlog: {count:,} {are} not acknowledged yet: {reason}")

    threading.Thread(target=watch, name="raftlog-stalls", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def stall_reason(bootstrap: str, topic: str) -> str:
    """Return why no record is acknowledged, from the description of the topic's partitions."""
    try:
        with Admin(bootstrap) as admin:
            partitions = admin.describe_cluster([topic]).partitions
    except RaftlogError as error:
        return f"{error} (still trying)"
    stuck = [
        f"{part.topic}:{part.partition} has no leader that responds"
        f" (replicas {overview.ids(part.replicas)}, in sync {overview.ids(part.isr)})"
        for part in partitions
        if not part.is_available
    ]
    if not stuck:
        return "the brokers respond slowly (still trying)"
    return f"{'; '.join(stuck[:3])} (still trying; see `raftlog cluster status`)"
