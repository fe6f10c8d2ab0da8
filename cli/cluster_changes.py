"""``raftlog cluster``: what changes it. A leader moves; a majority that is lost is given up."""

from __future__ import annotations

from dataclasses import asdict

import click

from raftlog import Admin, TopicPartition
from raftlog.cli import health, options, output
from raftlog.cli.main import STATUS_FAILED, Failed
from raftlog.client.descriptions import RecoveryDescription


@click.command()
@click.argument(
    "partition",
    metavar="TOPIC:P",
    callback=lambda _context, _parameter, text: options.topic_partition(text),
)
@click.option("--to", type=click.IntRange(min=0), help="The broker that is to lead.")
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def transfer_leader(
    partition: TopicPartition,
    to: int | None,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Have another in-sync replica lead a partition. Nothing is lost; clients follow.

    Without --to, the first live one in the order of its replicas.

    \b
    Example:
      raftlog cluster transfer-leader clicks:0 --to 2
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        leads = admin.transfer_leader(partition.topic, partition.partition, to)
    output.report(
        {**partition._asdict(), **asdict(leads)},
        f"broker {leads.leader} leads {partition}, in epoch {leads.leader_epoch}",
        as_json=as_json,
    )


@click.command()
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Also go on where acknowledged records are lost by it, or may be.",
)
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done, and what it costs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.as_json
@options.cluster_secret_file
@options.bootstrap
@click.pass_context
def recover(
    context: click.Context,
    accept_loss: bool,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Go on with what is left, when a majority of brokers is lost for good.

    All brokers that answer say what they have; the one that knows most decides alone from then on,
    in place of those that do not answer. A partition goes on by itself if one of its in-sync
    replicas is left, and the brokers that are gone were seen to end: then every acknowledged record
    is there, at its offset. Else it is said what is, or may be, lost, and nothing is done without
    --accept-loss: the replica with the longest log leads, or an empty one where none is left.

    Do this only if the others do not come back. If they live and are merely cut off, they may go on
    as well: two clusters, and what one of them accepts is discarded in the end.

    Exit status 1 if a partition stays without a leader, or nothing was done.

    \b
    Example:
      raftlog cluster recover --bootstrap 10.0.0.3:9100
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        if not (yes or dry_run):
            _confirm(admin, accept_loss=accept_loss, topics=topics or None)
        done = admin.recover_cluster(
            accept_loss=accept_loss, topics=topics or None, dry_run=dry_run
        )
    if as_json:
        output.print_json(asdict(done))
    else:
        _print(done, dry_run=dry_run)
    left = any(part.problem or part.leader is None for part in done.partitions)
    if not dry_run and (left or (done.needs_loss and not accept_loss)):
        context.exit(STATUS_FAILED)


def _confirm(admin: Admin, *, accept_loss: bool, topics: tuple[str, ...] | None) -> None:
    """Say what there is, and what is lost by it; raise unless that is wanted."""
    described = admin.describe_cluster()
    down = [broker.id for broker in described.brokers if not broker.live]
    unavailable = sum(not partition.is_available for partition in described.partitions)
    total = len(described.partitions)
    answering = f"{len(described.brokers) - len(down)} of {len(described.brokers)} brokers answer"
    output.note(f"{answering}; {unavailable} of {total} partitions have no leader.")
    if down:
        output.note(f"Brokers {health.ids(down)} will be given up: are they gone for good?")
    planned = admin.recover_cluster(accept_loss=accept_loss, topics=topics, dry_run=True)
    if planned.cluster_note:
        output.note(f"cluster: {planned.cluster_note}.")
    for part in planned.partitions:
        what = "LOST: " if part.may_lose else ""
        output.note(f"{part.topic}:{part.partition}: {what}{part.problem or part.note}.")
    try:
        agreed = click.confirm("Go on with what is left?", err=True)
    except click.Abort:
        agreed = False  # there is nobody to ask
    if not agreed:
        raise Failed("nothing was done; --yes does it without asking")


def _print(done: RecoveryDescription, *, dry_run: bool) -> None:
    click.echo(f"cluster: {done.cluster_note or 'a majority is there, nothing to do'}")
    if done.needs_loss:
        click.echo("Without --accept-loss nothing is done.")
    if not done.partitions:
        click.echo("partitions: nothing to do")
        return
    rows = [
        (
            f"{part.topic}:{part.partition}",
            "none" if part.leader is None else part.leader,
            part.log_end_offset,
            "yes" if part.may_lose else "no",
            part.problem or part.note,
        )
        for part in done.partitions
    ]
    what = "what would be done" if dry_run else "what was done"
    output.print_table(("partition", "leader", "log end", "may lose", what), rows)
