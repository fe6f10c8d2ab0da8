"""``raftlog log``: print and verify the files of partitions, offline or on brokers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import click

from raftlog import Admin
from raftlog.client.descriptions import PartitionVerification
from raftlog.disk import OsDisk
from raftlog.storage import inspect
from raftlog.storage.inspect import BatchRow, PartitionReport
from raftlog_cli import completing, options, output, overview
from raftlog_cli.main import Commands, Failed
from raftlog_cli.output import bytes_to_json

STATUS_UNVERIFIED: Final = 3  # of `verify --cluster`: a copy could not be verified
_COLUMNS: Final = "{:>12} {:>12} {:>12} {:>8} {:>9} {:>5} {:>6} {:>14} {:>6}  {}"
_HEADINGS: Final = (
    "position",
    "first",
    "last",
    "records",
    "bytes",
    "codec",
    "epoch",
    "appended ms",
    "pid",
    "sequence",
)


@click.group(cls=Commands)
def log() -> None:
    """Inspect and verify the files of partitions.

    \b
    Example:
      raftlog log verify raftlog-data
    """


@log.command(short_help="Print the batches of a segment, or of all below a directory.")
@click.argument("path", type=click.Path(exists=True))
@click.option("--records", is_flag=True, help="Also print the records of each batch.")
@options.as_json
@click.pass_context
def dump(context: click.Context, path: str, records: bool, as_json: bool) -> None:
    """Print the batches of a segment file, or of every segment below a directory.

    Exits with status 1 if a batch is invalid.

    \b
    Example:
      raftlog log dump raftlog-data/broker-1 --records --json
    """
    bad = 0
    for text, error in _rows(path, records=records, as_json=as_json):
        click.echo(text)
        bad += bool(error)
    if bad:
        context.exit(1)


def _rows(path: str, *, records: bool, as_json: bool) -> Iterator[tuple[str, str]]:
    """Yield the text of each batch, and its error or ""."""
    last_path = ""
    for row in inspect.dump(OsDisk(), path.rstrip("/")):
        if as_json:
            yield output.to_json(_readable(row.to_dict(records=records))), row.error
            continue
        if row.path != last_path:
            last_path = row.path
            yield f"{row.path}\n{_COLUMNS.format(*_HEADINGS)}", ""
        yield "\n".join([_batch_line(row), *(_record_lines(row) if records else ())]), row.error


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    for record in row.get("content", ()):
        record["key"] = bytes_to_json(record["key"])
        record["value"] = bytes_to_json(record["value"])
        record["headers"] = [[name, bytes_to_json(value)] for name, value in record["headers"]]
    return row


def _batch_line(row: BatchRow) -> str:
    header = row.header
    if header is None:
        return f"{row.position:>12} BAD: {row.error}"
    line = _COLUMNS.format(
        row.position,
        header.base_offset,
        header.next_offset - 1,
        header.record_count,
        header.length,
        header.codec.name.lower(),
        header.leader_epoch,
        header.append_timestamp,
        header.producer_id,
        header.base_sequence,
    )
    return f"{line}  BAD: {row.error}" if row.error else line


def _record_lines(row: BatchRow) -> Iterator[str]:
    for record in row.to_dict(records=True).get("content", ()):
        key, value = record["key"], record["value"]
        yield f"{'':>12} {record['offset']:>12} {record['timestamp_ms']} {key!r} {value!r}"


@log.command(short_help="Verify batches, hash chains and indexes, or all copies.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False), required=False)
@click.option("--cluster", is_flag=True, help="Verify and compare all copies on running brokers.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=completing.topics,
    help="With --cluster: only this topic; repeatable.",
)
@options.wide
@options.as_json
@options.bootstrap
@click.pass_context
def verify(
    context: click.Context,
    directory: str | None,
    cluster: bool,
    topics: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Verify every batch, hash chain and index below a directory, or all copies of a cluster.

    Exit status 1 if durable records are corrupt or missing. A torn write at the end of a log and an
    index that does not match are reported without changing the exit status: the broker repairs them
    at its next start.

    With --cluster, each broker verifies its copies, and the copies of a partition must be equal
    below its high watermark. Exit status 1 if a copy is corrupt or differs, 3 if a copy could not
    be verified.

    \b
    Example:
      raftlog log verify raftlog-data
      raftlog log verify --cluster --topic clicks
    """
    if cluster == (directory is not None) or (topics and not cluster):
        raise click.UsageError("pass either DIRECTORY, or --cluster and optionally --topic")
    if directory is None:
        context.exit(_verify_cluster(bootstrap, topics or None, as_json=as_json))
    _verify_files(directory, as_json=as_json)


def _verify_cluster(bootstrap: str, topics: tuple[str, ...] | None, *, as_json: bool) -> int:
    """Verify the copies of all partitions. Returns the exit status."""
    found = []
    with Admin(bootstrap) as admin:
        partitions = admin.describe_cluster(topics).partitions
        with output.progress("partitions", len(partitions)) as advance:
            for partition in partitions:
                found.append(admin.verify_copies(partition))
                advance(1)
    bad = [one for one in found if one.is_bad]
    unverified = [one for one in found if not (one.is_bad or one.is_complete)]
    if as_json:
        rows = [{**asdict(one), "state": _state(one)} for one in found]
        output.print_json({"sound": not (bad or unverified), "partitions": rows})
    else:
        _print_verifications(found)
    if bad:
        raise Failed(
            f"partitions with corrupt or differing copies: {len(bad)} of {len(found)}. A broker "
            "replaces a corrupt copy if another one is valid: check `raftlog cluster status`, "
            "and verify again"
        )
    if unverified:
        output.note(
            f"partitions with copies that could not be verified: {len(unverified)} of "
            f"{len(found)}. "
            "Start the missing brokers, wait until the copies are in sync, and verify again"
        )
    return STATUS_UNVERIFIED if unverified else 0


def _state(found: PartitionVerification) -> str:
    if found.is_bad:
        return "BAD"
    return "equal" if found.is_complete else "unverified"


def _print_verifications(found: list[PartitionVerification]) -> None:
    output.print_table(
        ("partition", "high watermark", "copies", "state"),
        [
            (
                f"{one.topic}:{one.partition}",
                one.high_watermark,
                ",".join(str(copy.broker) for copy in one.copies),
                _state(one),
            )
            for one in found
        ],
    )
    for one in found:
        for copy in one.copies:
            state, text = overview.copy_state(copy, one.high_watermark)
            if text:
                click.echo(f"{state}: {one.topic}:{one.partition} broker {copy.broker}: {text}")


def _verify_files(directory: str, *, as_json: bool) -> None:
    reports = []
    with output.progress("partitions") as advance:
        for report in inspect.verify(OsDisk(), directory.rstrip("/")):
            reports.append(report)
            advance(1)
    damaged = [report for report in reports if report.is_damaged]
    if as_json:
        output.print_json({"sound": not damaged, "partitions": [asdict(r) for r in reports]})
    else:
        _print_reports(reports)
    if damaged:
        raise Failed(
            f"corrupt partitions: {len(damaged)} of {len(reports)}. Restore them from a backup, "
            "or keep only the records before the corruption"
        )


def _print_reports(reports: list[PartitionReport]) -> None:
    output.print_table(
        ("partition", "segments", "batches", "records", "bytes", "start", "end", "state"),
        [
            (
                report.directory,
                report.segments,
                report.batches,
                report.records,
                report.size_bytes,
                report.log_start_offset,
                report.log_end_offset,
                "DAMAGED" if report.is_damaged else "sound",
            )
            for report in reports
        ],
    )
    for problem in (problem for report in reports for problem in report.problems):
        click.echo(
            f"{problem.kind}: {problem.path} byte {problem.position}, offset {problem.offset}: "
            f"{problem.message}"
        )
