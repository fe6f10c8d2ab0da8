"""``raftlog txn``: list and describe transactions, and abort one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

import click

from raftlog import Admin
from raftlog.client.administration.transactions import (
    STATES,
    TransactionDescription,
    TransactionListing,
)
from raftlog.clock import SystemClock
from raftlog.errors import counted
from raftlog.types import TimestampMs
from raftlog_cli import completing, options, output
from raftlog_cli.group import ranges
from raftlog_cli.main import Commands

NOTHING: Final = "-"
COLUMNS: Final = (*("id", "state", "open (s)", "timeout (s)", "producer", "epoch", "coordinator"),)
PARTITION_COLUMNS: Final = ("topic", "partitions")


@click.group(cls=Commands)
def txn() -> None:
    """List and describe transactions, and abort one.

    \b
    Example:
      raftlog txn list --state ongoing
    """


@txn.command(name="list", short_help="List transactional IDs with their state and producer.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    help="List only transactions in this state; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    multiple=True,
    type=click.IntRange(min=0),
    help="List only transactions of this producer ID; repeatable.",
)
@click.option(
    "--open-for",
    type=options.FiniteRange(min=0, max=1e9),
    metavar="SECONDS",
    help="List only transactions that have been open for at least this time.",
)
@options.quiet
@options.wide
@options.as_json
@options.bootstrap
def list_transactions(
    states: Sequence[str],
    producer_ids: Sequence[int],
    open_for: float | None,
    quiet: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """List all transactional IDs with the state of their transaction, and their producer.

    \b
    empty            no transaction yet
    ongoing          a transaction is open: readers of committed records wait for its end
    prepare_commit   the commit is decided; partitions have not confirmed it yet
    prepare_abort    the same for an abort
    complete_commit  the last transaction was committed
    complete_abort   the last transaction was aborted

    A transaction that is open for longer than its timeout is aborted by its coordinator.

    \b
    Example:
      raftlog txn list --state ongoing
      raftlog txn list --open-for 60
    """
    with Admin(bootstrap) as admin:
        found = admin.list_transactions(
            states=states,
            producer_ids=producer_ids,
            min_duration_ms=None if open_for is None else round(open_for * 1_000),
        )
    if as_json:
        output.print_json([row.transactional_id if quiet else asdict(row) for row in found])
    elif quiet:
        for row in found:
            click.echo(row.transactional_id)
    else:
        now_ms = SystemClock().wall_ms()
        output.print_table(
            COLUMNS,
            [listing_row(row, now_ms) for row in found],
            drop=("coordinator", "epoch", "timeout (s)", "producer"),
        )


@txn.command(short_help="Show a transactional ID, and the partitions of its transaction.")
@click.argument("name", metavar="ID", shell_complete=completing.transactional_ids)
@options.wide
@options.as_json
@options.bootstrap
def describe(name: str, as_json: bool, bootstrap: str) -> None:
    """Show the state and the producer of a transactional ID, and the partitions of its transaction.

    Only a transaction that is open or is being completed has partitions. Topic __consumer_offsets
    stands for groups whose offsets the transaction commits.

    \b
    Example:
      raftlog txn describe invoices-1
    """
    with Admin(bootstrap) as admin:
        (found,) = admin.describe_transactions([name])
    if as_json:
        parts = [tp._asdict() for tp in found.partitions]
        output.print_json({**asdict(found), "partitions": parts})
        return
    click.echo(summary(found, SystemClock().wall_ms()))
    if found.partitions:
        output.print_table(PARTITION_COLUMNS, partition_rows(found))


@txn.command(short_help="Abort the open transaction of a transactional ID.")
@click.argument("name", metavar="ID", shell_complete=completing.transactional_ids)
@options.as_json
@options.bootstrap
def abort(name: str, as_json: bool, bootstrap: str) -> None:
    """Abort the open transaction of a transactional ID, without confirmation.

    The command returns when the decision is committed. Consumers never get the records of the
    transaction, and go on after them as soon as the partitions have confirmed its end.

    A running producer of raftlog gets TransactionAbortedError from its next call, and may run the
    transaction again. So may a Kafka client with transaction.version=2 (Java clients since 4.0).
    Older Kafka clients (librdkafka, aiokafka) are fenced, and must be started again.

    \b
    Example:
      raftlog txn abort invoices-1
    """
    with Admin(bootstrap) as admin:
        admin.abort_transaction(name)
    output.report(
        {"transactional_id": name, "aborted": True},
        f"aborted the transaction of {name}",
        as_json=as_json,
    )


# -- descriptions as rows --------------------------------------------------------------------------


def listing_row(row: TransactionListing, now_ms: TimestampMs) -> tuple[Any, ...]:
    """Return the cells of ``COLUMNS``."""
    return (
        row.transactional_id,
        row.state,
        open_seconds(row.started_ms, now_ms),
        f"{row.timeout_ms / 1_000:g}",
        row.producer_id,
        row.producer_epoch,
        row.coordinator,
    )


def open_seconds(started_ms: TimestampMs | None, now_ms: TimestampMs) -> str:
    """Return how long a transaction has been open."""
    return NOTHING if started_ms is None else f"{max(0, now_ms - started_ms) / 1_000:.1f}"


def summary(found: TransactionDescription, now_ms: TimestampMs) -> str:
    """Return the transactional id in one line."""
    parts = [
        output.printable(found.transactional_id),
        found.state,
        f"timeout {found.timeout_ms / 1_000:g} s",
        f"producer {found.producer_id}",
        f"epoch {found.producer_epoch}",
        f"coordinator {found.coordinator}",
    ]
    if found.started_ms is not None:
        parts.insert(2, f"open for {open_seconds(found.started_ms, now_ms)} s")
        parts.insert(3, counted(len(found.partitions), "partition"))
    return "  ".join(parts)


def partition_rows(found: TransactionDescription) -> list[tuple[str, str]]:
    """Return a row for each topic, with its partitions as ranges."""
    return [
        (topic, ranges([tp.partition for tp in parts]))
        for topic, parts in groupby(found.partitions, key=lambda tp: tp.topic)
    ]
