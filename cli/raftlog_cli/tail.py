"""``raftlog tail``: write records to standard output, byte for byte."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
from click.core import ParameterSource

from raftlog import Admin, Consumer
from raftlog.clock import SystemClock
from raftlog.disk import OsDisk
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownPartitionError,
)
from raftlog.types import ConsumerRecord, Offset, TimestampMs, TopicPartition, check_group_id
from raftlog_cli import completing, options, output
from raftlog_cli.main import HeldInterrupt
from raftlog_cli.options import (
    EARLIEST,
    LATEST,
    Bound,
    Extent,
    From,
    Offsets,
    confine,
    parse_offsets,
    resolve_all,
)
from raftlog_cli.output import Formatter, compile_format, format_json, format_values

COUNT_DEFAULT: Final = 10  # as in tail(1)


@click.command()
@click.argument("topic", shell_complete=completing.topics)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Print only this partition.")
@click.option(
    "-o",
    "--offsets",
    metavar="OFFSETS",
    callback=options.parsed(lambda text: parse_offsets(text, now_ms=SystemClock().wall_ms())),
    help="Start offset, and optionally end offset; see above.",
)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=0),
    help="Print at most this number of records, of all partitions together.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for new records until interrupted.")
@click.option(
    "--group",
    metavar="G",
    shell_complete=completing.groups,
    help="Read as a member of this consumer group, from its committed offsets.",
)
@click.option(
    "--format",
    "formatter",
    metavar="FMT",
    callback=options.parsed(compile_format),
    help="Output format of a record; see above.  [default: %v]",
)
@click.option(
    "--grep",
    "pattern",
    metavar="RE",
    callback=options.parsed(lambda text: re.compile(os.fsencode(text))),
    help="Print only records whose value matches this regular expression.",
)
@click.option(
    "--any-replica",
    is_flag=True,
    help="Read from any replica, if the leader is unavailable or to reduce its load.",
)
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    show_default=True,
    help="uncommitted: also the records of open and aborted transactions.",
)
@click.option(
    "--to",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the records to files in this directory, from where they end; see above.",
)
@click.option(
    "--rotate-size",
    metavar="SIZE",
    default="64MiB",
    show_default=True,
    callback=options.parsed(options.size_in_bytes),
    help="With --to: maximum size of a file, unless one record is larger.",
)
@click.option(
    "--rotate-seconds",
    metavar="S",
    type=options.FiniteRange(min=0, min_open=True),
    help="With --to: maximum time from the first record of a file to its completion.",
)
@options.as_json
@options.bootstrap
def tail(
    topic: str,
    partition: int | None,
    offsets: Offsets | None,
    count: int | None,
    follow: bool,
    group: str | None,
    formatter: Formatter | None,
    pattern: re.Pattern[bytes] | None,
    any_replica: bool,
    isolation: str,
    directory: Path | None,
    rotate_size: int,
    rotate_seconds: float | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Print records.

    Without -f it stops at the end offsets that the partitions had at the start. With -o it prints
    the first COUNT records from there. Without -o it prints the last 10 (or COUNT) records of the
    topic by timestamp; with -f, new records. With --grep, COUNT is the number of records that
    match. If the leader of a partition is lost, --any-replica prints the records below the high
    watermark of another replica.

    With --group it prints the records that the group has not read, and commits them. It joins the
    group as a member; with -p, it reads only that partition. -o then applies only to partitions
    without a committed offset: earliest (default) or latest.

    With --to it writes files TOPIC-PARTITION-FIRST-LAST.log (.jsonl with --json), named by the
    offsets of their records. A file is complete when it has this name; before, it ends in .part.
    The next run continues after the last complete file, and -o (default: earliest) applies only to
    partitions without one. So each record is in one complete file, also after a crash.

    \b
    OFFSETS:  earliest  latest  N  -N (N before the end)  +N (N after the beginning)
              @TIME  @TIME1:TIME2  N1:N2 (the second is not included)
    TIME:     ISO 8601 (default: UTC), milliseconds since 1970, or relative: -2h, -1h30m
    FMT:      %t topic  %p partition  %o offset  %k key  %v value  %T timestamp (ms)
              %h headers  %e leader epoch  %%  \\n  \\t  \\r  \\0  \\\\  \\xHH;
              \\c at the end: no newline

    \b
    Example:
      raftlog tail clicks -p 0 -o @-2h -n 100 --format '%p:%o %k %v' --grep /cart
      raftlog tail clicks -f --to archive --json --rotate-size 1GiB --rotate-seconds 3600
    """
    if follow and offsets is not None and offsets.stop is not None:
        raise click.UsageError("-f cannot be combined with a range, which has an end")
    if as_json and formatter is not None:
        raise click.UsageError("--json cannot be combined with --format")
    _check_files(directory, group)
    write = format_json if as_json else formatter or format_values
    if directory is not None and offsets is None:
        offsets = Offsets(EARLIEST)
    files = None
    if directory is not None:
        ending = ".jsonl" if as_json else ".log"
        files = RecordFiles(
            directory, topic, ending, bytes_max=rotate_size, seconds_max=rotate_seconds
        )
    printing = {"write": write, "pattern": pattern, "count": count}
    reading: dict[str, Any] = {
        "follow": follow,
        "group": group,
        "any_replica": any_replica,
        "isolation": isolation,
    }
    copy_records(bootstrap, topic, partition, offsets, files, printing, **reading)


def _check_files(directory: Path | None, group: str | None) -> None:
    """Raise ``click.UsageError`` for options that --to excludes, or that need it."""
    if directory is not None:
        if group is not None:
            raise click.UsageError(
                "--to cannot be combined with --group: the files have the offsets"
            )
        return
    given = click.get_current_context().get_parameter_source
    for option in ("rotate_size", "rotate_seconds"):
        if given(option) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{option.replace('_', '-')} needs --to")


def copy_records(
    bootstrap: str,
    topic: str,
    partition: int | None,
    offsets: Offsets | None,
    files: RecordFiles | None,
    printing: dict[str, Any],
    *,
    follow: bool,
    group: str | None,
    any_replica: bool,
    isolation: str,
) -> None:
    """Print the records, or write them to ``files``. ``printing``: for ``copy_spans``."""
    # Retention may delete the next record: continue with the first remaining one.
    reset = "earliest" if group is None else _group_reset(group, offsets)
    last = 0
    if offsets is None and group is None:
        count = printing["count"]
        last = 0 if follow else COUNT_DEFAULT if count is None else count
        offsets = Offsets(LATEST if follow else Bound(From.END, last))
        printing["count"] = count if follow else None
    interrupt: KeyboardInterrupt | None = None
    with Consumer(
        bootstrap,
        group=group,
        auto_offset_reset=reset,
        read_from="replica" if any_replica else "leader",
        isolation=isolation,
    ) as consumer:
        partitions = partitions_of(consumer, topic, partition)
        if group is not None:
            printing |= {"is_member": partition is None, "follow": follow}
            interrupt = copy_as_member(consumer, topic, partitions, **printing)
        else:
            assert offsets is not None, "set to a default above"
            spans = plan(consumer, partitions, offsets, follow=follow)
            if last:
                spans = with_last(consumer, spans, last, pattern=printing["pattern"])
            printing["grows"] = topic if follow and partition is None else ""
            if files is None:
                copy_spans(consumer, spans, **printing)
            else:
                with files:
                    files.claim(topic_id(bootstrap, topic))
                    spans = {
                        tp: files.continued(tp, spans[tp], extent)
                        for tp, extent in extents_of(consumer, partitions).items()
                    }
                    copy_spans(consumer, spans, files=files, **printing)
    if interrupt is not None:
        raise interrupt


def topic_id(bootstrap: str, topic: str) -> str:
    with Admin(bootstrap) as admin:
        (described,) = admin.describe_topics([topic], partitions=range(1))
    return described.id


def _group_reset(group: str, offsets: Offsets | None) -> str:
    """Return the start position of a group without committed offsets."""
    check_group_id(group)
    if offsets not in {None, Offsets(EARLIEST), Offsets(LATEST)}:
        raise click.UsageError(
            "with --group, -o must be earliest or latest: for partitions without a committed "
            "offset. "
            f"`raftlog group reset {group} --to OFFSETS --execute` sets the offsets of the group"
        )
    return "latest" if offsets == Offsets(LATEST) else "earliest"


# -- reading records -------------------------------------------------------------------------------


POLL_MS: Final = 500
POLL_RECORDS_MAX: Final = 10_000
SOUGHT_MAX: Final = 10_000  # largest number of last records of one partition that is searched
SOUGHT_STEP: Final = 10  # factor of the distance to the end in each next attempt
SILENCE_S_MAX: Final = 60.0  # without -f the requested records exist: a longer wait is a failure


@dataclass(frozen=True)
class Span:
    """Range to read of one partition: from ``start`` to before ``stop``; None: no end."""

    start: Offset
    stop: Offset | None


def partitions_of(consumer: Consumer, topic: str, partition: int | None) -> list[TopicPartition]:
    numbers = sorted(consumer.partitions_for(topic))
    if partition is None:
        return [TopicPartition(topic, number) for number in numbers]
    if partition not in numbers:
        raise UnknownPartitionError(
            f"{topic} has no partition {partition}: it has 0 to {numbers[-1]}"
        )
    return [TopicPartition(topic, partition)]


def extents_of(
    consumer: Consumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Extent]:
    """Return the current start and end offsets."""
    begin, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    return {tp: Extent(begin[tp], end[tp]) for tp in partitions}


def plan(
    consumer: Consumer, partitions: Sequence[TopicPartition], offsets: Offsets, *, follow: bool
) -> dict[TopicPartition, Span]:
    """Return the range to read of each partition, by its current start and end offsets."""
    extents = extents_of(consumer, partitions)
    starts = resolve_all(offsets.start, extents, consumer.offsets_for_times)
    _check_in_range(offsets.start, extents)
    stops = {tp: extent.end for tp, extent in extents.items()}
    if offsets.stop:
        stops = resolve_all(offsets.stop, extents, consumer.offsets_for_times)
    return {
        tp: Span(
            start=confine(starts[tp], extent),
            stop=None if follow else confine(stops[tp], extent),
        )
        for tp, extent in extents.items()
    }


def with_last(
    consumer: Consumer,
    spans: dict[TopicPartition, Span],
    count: int,
    pattern: re.Pattern[bytes] | None = None,
) -> dict[TopicPartition, Span]:
    """Return ``spans``, moved so that they contain the last ``count`` records, by timestamp.

    Spans contain records that do not match ``pattern`` in addition. The spans are unchanged if no
    record can be left out or missing, and for one partition with ``count`` above ``SOUGHT_MAX``.
    """
    begin = consumer.beginning_offsets(list(spans))
    offsets = sum((span.stop or 0) - span.start for span in spans.values())
    is_all = all(span.start <= begin[tp] for tp, span in spans.items())
    is_long = len(spans) == 1 and pattern is None and count > SOUGHT_MAX
    if is_long or (is_all and offsets <= count):
        return spans
    starts = newest(_last_of_each(consumer, spans, begin, count, pattern), count)
    return {tp: Span(starts.get(tp, span.stop or 0), span.stop) for tp, span in spans.items()}


Found = tuple[TimestampMs, Offset]  # a record


def newest(
    found: Mapping[TopicPartition, Sequence[Found]], count: int
) -> dict[TopicPartition, Offset]:
    """Return the offset of the first of the last ``count`` records, of each partition with one.

    ``found``: the last records of each partition, in the order of their offsets.
    """
    left = {tp: len(records) for tp, records in found.items()}
    heap = [(-records[-1][0], tp) for tp, records in found.items() if records]
    heapify(heap)
    starts: dict[TopicPartition, Offset] = {}
    for _ in range(count):
        if not heap:
            break
        _, tp = heappop(heap)
        left[tp] -= 1
        starts[tp] = found[tp][left[tp]][1]
        if left[tp]:
            heappush(heap, (-found[tp][left[tp] - 1][0], tp))
    return starts


def _last_of_each(
    consumer: Consumer,
    spans: Mapping[TopicPartition, Span],
    begin: Mapping[TopicPartition, Offset],
    count: int,
    pattern: re.Pattern[bytes] | None,
) -> dict[TopicPartition, Sequence[Found]]:
    """Return the last ``count`` records of each partition that match.

    A span may contain less, because compaction leaves gaps between offsets: the next attempt starts
    earlier.
    """
    left = {tp: span for tp, span in spans.items() if begin[tp] < (span.stop or 0)}
    back = count
    found: dict[TopicPartition, Sequence[Found]] = {}
    while left:
        found |= _read_last(consumer, left, count, pattern)
        back *= SOUGHT_STEP
        left = {
            tp: Span(max(begin[tp], (span.stop or 0) - back), span.stop)
            for tp, span in left.items()
            if len(found[tp]) < count and span.start > begin[tp]
        }
    return found


def _read_last(
    consumer: Consumer,
    spans: dict[TopicPartition, Span],
    count: int,
    pattern: re.Pattern[bytes] | None,
) -> dict[TopicPartition, deque[Found]]:
    """Return the last ``count`` records of each span that match. The spans have an end."""
    found: dict[TopicPartition, deque[Found]] = {tp: deque(maxlen=count) for tp in spans}
    consumer.assign(sorted(spans))
    for tp, span in spans.items():
        consumer.seek(tp, span.start)
    received_at = time.monotonic()
    while not all(_is_done(consumer, tp, span) for tp, span in spans.items()):
        records = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
        for record in records:
            if _wanted(record, spans, pattern):
                tp = TopicPartition(record.topic, record.partition)
                found[tp].append((record.timestamp_ms, record.offset))
        now = time.monotonic()
        received_at = now if records else received_at
        if now - received_at > SILENCE_S_MAX:
            break  # copy_spans() reports the failure
    return found


def _check_in_range(start: Bound, extents: dict[TopicPartition, Extent]) -> None:
    """Raise ``OffsetOutOfRangeError`` if no partition has the start offset."""
    if start.kind is From.OFFSET and not any(
        extent.beginning <= start.number <= extent.end for extent in extents.values()
    ):
        ranges = ", ".join(f"{tp}: {at.beginning} to {at.end}" for tp, at in extents.items())
        raise OffsetOutOfRangeError(f"offset {start.number} is out of range ({ranges})")


def copy_spans(
    consumer: Consumer,
    spans: dict[TopicPartition, Span],
    *,
    write: Formatter,
    pattern: re.Pattern[bytes] | None,
    count: int | None,
    files: RecordFiles | None = None,
    grows: str = "",
) -> None:
    """Print the records of ``spans``, at most ``count``, or write them to ``files``.

    ``grows``: topic whose partitions that are added later are read from their first record.
    """
    left = {tp for tp, span in spans.items() if span.stop is None or span.start < span.stop}
    if grows:
        consumer.subscribe([grows])
    else:
        consumer.assign(sorted(left))
    for tp in left:
        consumer.seek(tp, spans[tp].start)
    received_at = time.monotonic()
    while left and count != 0:
        records = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
        chosen = [record for record in records if _wanted(record, spans, pattern)][:count]
        if files is not None:
            files.write(chosen, write)
        elif chosen:
            output.write_bytes(b"".join(map(write, chosen)))
        if count is not None:
            count -= len(chosen)
        for tp in [tp for tp in left if _is_done(consumer, tp, spans[tp])]:
            left.remove(tp)
            consumer.pause([tp])
        now = time.monotonic()
        received_at = now if records else received_at
        if now - received_at > SILENCE_S_MAX and all(spans[tp].stop is not None for tp in left):
            raise BrokerUnavailableError(
                f"{min(left)} returned no record for {SILENCE_S_MAX:g} s, but has more. "
                "Check that its broker is up"
            )


def _is_done(consumer: Consumer, tp: TopicPartition, span: Span) -> bool:
    return span.stop is not None and consumer.position(tp) >= span.stop


def _wanted(
    record: ConsumerRecord,
    spans: dict[TopicPartition, Span],
    pattern: re.Pattern[bytes] | None,
) -> bool:
    span = spans.get(TopicPartition(record.topic, record.partition))  # None: added later
    return (span is None or span.stop is None or record.offset < span.stop) and (
        pattern is None or pattern.search(record.value or b"") is not None
    )


# -- files of records ------------------------------------------------------------------------------


PART: Final = ".part"  # ending of a file that is not complete


@dataclass
class RecordFile:
    """The file that is being written of one partition. Offsets are those of its records."""

    file: BinaryIO
    path: Path
    opened_s: float
    last: Offset
    size: int = 0


class RecordFiles:
    """Files of the records of one topic in a directory. A context manager.

    The name of a complete file has the offsets of its first and last record: the names are the
    position from which the next run continues. A file that is not complete is deleted by the next
    run, which reads its records again. The file .TOPIC.id has the ID of the topic, so that a topic
    that was created again is not continued. ``monotonic``: returns seconds.
    """

    def __init__(
        self,
        directory: Path,
        topic: str,
        ending: str,
        *,
        bytes_max: int,
        seconds_max: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._topic, self._ending = directory, topic, ending
        self._bytes_max, self._seconds_max = bytes_max, seconds_max
        self._monotonic = monotonic
        self._open: dict[int, RecordFile] = {}
        self._ends: dict[int, Offset] = {}  # of the records in files, by partition
        self._is_whole = True  # the files end with a complete record

    def __enter__(self) -> RecordFiles:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = OsDisk(pooled_files_max=1).lock(
                str(self._directory / f".{self._topic}.lock")
            )
        except BlockingIOError:
            raise InvalidRequestError(
                f"{self._directory}: another `raftlog tail --to` writes the records of "
                f"{self._topic} to this directory. Use another directory"
            ) from None
        name = rf"{re.escape(self._topic)}-(\d+)-\d{{20}}(?:-(\d{{20}})\.\w+|\{PART})"
        for path in self._directory.iterdir():
            found = re.fullmatch(name, path.name)
            if found is not None and found[2] is None:
                path.unlink()
            elif found is not None:
                number = int(found[1])
                self._ends[number] = max(self._ends.get(number, 0), int(found[2]) + 1)
        return self

    def __exit__(self, *_error: object) -> None:
        for number in list(self._open):
            if self._is_whole:
                self._complete(number)
        for each in self._open.values():
            each.file.close()
        self._lock.release()

    def claim(self, topic_id: str) -> None:
        """Note the ID of the topic. Raises ``InvalidRequestError`` if the files are of another."""
        noted = self._directory / f".{self._topic}.id"
        known = noted.read_text().strip() if noted.exists() else ""
        # guard: files of records are continued with records of the same topic
        if known not in {"", topic_id} and self._ends:
            raise InvalidRequestError(
                f"{self._directory} has records of {self._topic} with the ID {known}, and this "
                f"topic has the ID {topic_id}: it was created again, or is in another cluster. Use "
                f"another directory. If its records are the same, as in a mirror, delete {noted}"
            )
        if known != topic_id:
            OsDisk(pooled_files_max=1).write_atomic(str(noted), f"{topic_id}\n".encode())

    def continued(self, tp: TopicPartition, span: Span, extent: Extent) -> Span:
        """Return ``span`` from where the files of the partition end. ``extent``: of its log.

        Raises ``InvalidRequestError`` if the files have later records than the log.
        """
        start = self._ends.get(tp.partition)
        if start is None:
            return span
        if start > extent.end:
            raise InvalidRequestError(
                f"{self._directory} has records of {tp} up to offset {start - 1}, and the log ends "
                f"at {extent.end}: the topic was created again, or is in another cluster. Use "
                "another directory"
            )
        if start < extent.beginning:
            output.note(
                f"raftlog: {tp}: offsets {start} to {extent.beginning - 1} were deleted before "
                "they were written to a file"
            )
        return Span(max(start, extent.beginning), span.stop)

    def write(self, records: Sequence[ConsumerRecord], to_bytes: Formatter) -> None:
        """Append records, each to the file of its partition. Completes the files that are due.

        Raises ``InvalidRequestError`` at a record that does not follow those of its partition.
        """
        earlier = None
        with HeldInterrupt() as held:
            self._is_whole = False
            for record in records:
                # guard: a record in a file follows those before it
                if record.offset < self._ends.get(record.partition, 0):
                    earlier = record
                    break
                self._append(record, to_bytes(record))
            for each in self._open.values():
                each.file.flush()
            self._is_whole = True
            if self._seconds_max is not None:
                due_s = self._monotonic() - self._seconds_max
                for number in [n for n, each in self._open.items() if each.opened_s <= due_s]:
                    self._complete(number)
        if held.has_come is not None:
            raise held.has_come
        if earlier is not None:
            raise InvalidRequestError(
                f"{self._directory} has records of {earlier.topic}:{earlier.partition} up to "
                f"offset {self._ends[earlier.partition] - 1}, and the next one has the offset "
                f"{earlier.offset}: the topic was created again, or its log was truncated. Use "
                "another directory"
            )

    def _append(self, record: ConsumerRecord, line: bytes) -> None:
        current = self._open.get(record.partition)
        if current is not None and current.size + len(line) > self._bytes_max:
            self._complete(record.partition)
            current = None
        if current is None:
            path = self._directory / f"{self._topic}-{record.partition}-{record.offset:020}{PART}"
            current = RecordFile(path.open("wb"), path, self._monotonic(), record.offset)
            self._open[record.partition] = current
        current.file.write(line)
        current.size += len(line)
        current.last = record.offset
        self._ends[record.partition] = record.offset + 1

    def _complete(self, partition: int) -> None:
        """Make the file durable, then give it its final name."""
        done = self._open.pop(partition)
        with done.file:
            done.file.flush()
            os.fsync(done.file.fileno())
        done.path.rename(done.path.with_name(f"{done.path.stem}-{done.last:020}{self._ending}"))
        OsDisk(pooled_files_max=1).sync_dir(str(self._directory))


# -- as a member of a group ------------------------------------------------------------------------


UNASSIGNED_S_MAX: Final = 15.0  # wait of a member for a partition, without -f


def copy_as_member(
    consumer: Consumer,
    topic: str,
    partitions: Sequence[TopicPartition],
    *,
    is_member: bool,
    write: Formatter,
    pattern: re.Pattern[bytes] | None,
    count: int | None,
    follow: bool,
) -> KeyboardInterrupt | None:
    """Print the records that the group has not read, at most ``count``, at least once.

    Printed records are committed after the next poll, and when the consumer is closed, also after
    Ctrl-C and SIGTERM. Records that were fetched but not printed are not committed, so the next
    member prints them.

    Returns the interrupt if all polled records were printed: closing ``consumer`` as usual then
    commits them. Otherwise it may have come with a poll, whose records were not returned: what was
    printed before is committed here, and the interrupt is raised.

    ``is_member``: join the group and read its assignment; otherwise read ``partitions`` and commit
    for the group. Without ``follow``, stops at the current end offsets.
    """
    ends = {} if follow else consumer.end_offsets(partitions)
    if is_member:
        consumer.subscribe([topic])
    else:
        consumer.assign(partitions)
    received_at = time.monotonic()
    is_printed = True
    printed: dict[TopicPartition, Offset] = {}
    try:
        while count != 0:
            # At most ``count``: records that poll() returns are committed.
            records_max = POLL_RECORDS_MAX if count is None else min(count, POLL_RECORDS_MAX)
            is_printed = False
            records = consumer.poll(timeout_ms=POLL_MS, max_records=records_max)
            chosen = [rec for rec in records if pattern is None or pattern.search(rec.value or b"")]
            # A reader of the output may send a signal before write_bytes() returns.
            with HeldInterrupt() as held:
                if chosen:
                    output.write_bytes(b"".join(map(write, chosen)))
                printed |= {
                    TopicPartition(rec.topic, rec.partition): rec.offset + 1 for rec in records
                }
                is_printed = True
            if held.has_come is not None:
                return held.has_come
            if count is not None:
                count -= len(chosen)
            now = time.monotonic()
            received_at = now if records else received_at
            if not follow and _is_over(consumer, ends, silent_s=now - received_at):
                break
    except KeyboardInterrupt as interrupt:
        if is_printed:
            return interrupt
        if printed:
            with suppress(RaftlogError):  # another member has the partition, and prints them again
                consumer.commit(printed)
        raise
    return None


def _is_over(consumer: Consumer, ends: Mapping[TopicPartition, Offset], *, silent_s: float) -> bool:
    """Return whether all records up to ``ends`` were read. Raises if no broker responds."""
    assigned = consumer.assignment()
    if not assigned:
        if silent_s > UNASSIGNED_S_MAX:
            output.note("raftlog: the group's other members read all partitions of the topic")
        return silent_s > UNASSIGNED_S_MAX
    left = unread(consumer, assigned, ends)
    if left and silent_s > SILENCE_S_MAX:
        raise BrokerUnavailableError(
            f"{left[0]} returned no record for {SILENCE_S_MAX:g} s, but has more. "
            "Check that its broker is up"
        )
    return not left


def unread(
    consumer: Consumer,
    assigned: Collection[TopicPartition],
    ends: Mapping[TopicPartition, Offset],
) -> list[TopicPartition]:
    """Return the partitions that are not read to ``ends``. New partitions are not in ``ends``."""
    return [tp for tp in sorted(assigned) if consumer.position(tp) < ends.get(tp, 0)]
