"""``raftlog cluster``: what changes it. A leader moves; a majority that is lost is given up."""

from __future__ import annotations

from dataclasses import asdict

import click

from cli import health, options, output
from cli.main import STATUS_FAILED, Failed
from raftlog import Admin, TopicPartition
from raftlog.client.descriptions import ClusterDescription, RecoveryDescription


@click.command()
@click.argument(
    "partition",
    metavar="TOPIC:P",
    callback=lambda _context, _parameter, text: options.topic_partition(text),
)
@click.option("--to", type=click.IntRange(min=0), help="The broker that is to lead.")
@options.as_json
@options.bootstrap
def transfer_leader(
    partition: TopicPartition, to: int | None, as_json: bool, bootstrap: str
) -> None:
    """Have another in-sync replica lead a partition. Nothing is lost; clients follow.

    Without --to, the first live one in the order of its replicas.

    \b
    Example:
      raftlog cluster transfer-leader clicks:0 --to 2
    """
    with Admin(bootstrap) as admin:
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
    help="Also lead with replicas that were not in sync, and lose what they lack.",
)
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.as_json
@options.bootstrap
@click.pass_context
def recover(
    context: click.Context,
    accept_loss: bool,
    topics: tuple[str, ...],
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Go on with what is left, when a majority of brokers is lost for good.

    The broker that is asked (--bootstrap) decides alone from then on, in place of those that do not
    answer. Partitions whose in-sync replica is left keep every acknowledged record, at its offset.
    For the others say --accept-loss: they go on with the replica that is left, and lose what it
    lacks.

    Do this only if the others do not come back. If they live and are merely cut off, they may go on
    as well: two clusters, and what one of them accepts is discarded in the end.

    Exit status 1 if a partition stays without a leader.

    \b
    Example:
      raftlog cluster recover --bootstrap 10.0.0.3:9100
    """
    with Admin(bootstrap) as admin:
        if not yes:
            _confirm(admin.describe_cluster(), accept_loss=accept_loss)
        done = admin.recover_cluster(accept_loss=accept_loss, topics=topics or None)
    if as_json:
        output.print_json(asdict(done))
    else:
        _print(done)
    if any(part.problem or part.leader is None for part in done.partitions):
        context.exit(STATUS_FAILED)


def _confirm(described: ClusterDescription, *, accept_loss: bool) -> None:
    """Say what there is, and what may be lost; raise unless that is wanted."""
    down = [broker.id for broker in described.brokers if not broker.live]
    unavailable = sum(not partition.is_available for partition in described.partitions)
    total = len(described.partitions)
    answering = f"{len(described.brokers) - len(down)} of {len(described.brokers)} brokers answer"
    output.note(f"{answering}; {unavailable} of {total} partitions have no leader.")
    if down:
        output.note(f"Brokers {health.ids(down)} will be given up: are they gone for good?")
    if accept_loss:
        output.note("Records that only they have will be LOST, acknowledged or not.")
    try:
        agreed = click.confirm("Go on with what is left?", err=True)
    except click.Abort:
        agreed = False  # there is nobody to ask
    if not agreed:
        raise Failed("nothing was done; --yes does it without asking")


def _print(done: RecoveryDescription) -> None:
    click.echo(f"cluster: {done.cluster_note or 'a majority is there, nothing to do'}")
    if not done.partitions:
        click.echo("partitions: nothing to do")
        return
    rows = [
        (
            f"{part.topic}:{part.partition}",
            "none" if part.leader is None else part.leader,
            part.log_end_offset,
            part.problem or part.note,
        )
        for part in done.partitions
    ]
    output.print_table(("partition", "leader", "log end", "what was done"), rows)
