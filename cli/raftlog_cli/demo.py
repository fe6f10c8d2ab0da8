"""``raftlog demo``: write and read records on a temporary cluster while leaders are killed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import click

from raftlog import limits
from raftlog.testing import cluster
from raftlog_cli import options, output
from raftlog_cli.formats import read_lines
from raftlog_cli.main import STATUS_FAILED
from raftlog_cli.rehearsal import Comparison, Lines, Outage, Rehearsal, Result
from raftlog_cli.supervisor import BROKERS_DEFAULT, write_cluster_file

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
    with path.open("rb") as file:
        yield from read_lines(file)


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
