"""``raftlog cluster``: how the cluster is, by its brokers and by its partitions."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

import click

from raftlog import Admin
from raftlog.cli import health, options, output
from raftlog.cli.cluster_changes import recover, transfer_leader
from raftlog.client.descriptions import ClusterDescription, PartitionOverview
from raftlog.errors import RaftlogError

WATCH_INTERVAL_S: Final = 1.0
STATUS_DEGRADED: Final = 3  # the exit status of `status` when something is wrong


@click.group()
def cluster() -> None:
    """Look at the cluster, move leaders, recover from a loss.

    \b
    Example:
      raftlog cluster status
    """


@cluster.command()
@click.option("--watch", is_flag=True, help="Look again every second, until interrupted.")
@options.as_json
@options.bootstrap
@click.pass_context
def status(context: click.Context, watch: bool, as_json: bool, bootstrap: str) -> None:
    """Show how many brokers and partitions are well, and what is not.

    \b
    under-replicated  a replica is not in sync
    unavailable       no leader answers: no reads, no writes
    at min ISR        one replica less, and writes with acks=all are refused

    Exit status 0 if all is well, 3 if something is not (with --json: "ok", and "problems"), 1 if no
    broker answers. A replica whose broker does not answer counts as not in sync.

    \b
    Example:
      raftlog cluster status --watch
    """
    with Admin(bootstrap) as admin:
        if not watch:
            described = admin.describe_cluster()
            _print_status(described, as_json=as_json)
            if health.problems(described):
                context.exit(STATUS_DEGRADED)
            return
        while True:
            try:
                described = admin.describe_cluster()
            except RaftlogError as error:
                output.note(f"raftlog: {error}")
            else:
                output.clear()
                _print_status(described, as_json=as_json)
            time.sleep(WATCH_INTERVAL_S)


def _print_status(described: ClusterDescription, *, as_json: bool) -> None:
    counts = health.summary(described)
    if as_json:
        output.print_json(counts)
        return
    fenced = f", {counts['brokers_fenced']} fenced" if counts["brokers_fenced"] else ""
    rows: list[tuple[str, Any]] = [
        ("cluster", counts["cluster_id"]),
        ("controller", "none" if described.controller is None else described.controller),
        ("brokers", f"{counts['brokers_up']} of {counts['brokers']} up{fenced}"),
        ("topics", counts["topics"]),
        ("partitions", counts["partitions"]),
        ("under-replicated", counts["under_replicated"]),
        ("unavailable", counts["unavailable"]),
        ("at min ISR", counts["at_min_isr"]),
        ("damage", "none found" if not counts["damage"] else f"{len(counts['damage'])} replicas"),
    ]
    for name, value in rows:
        click.echo(f"{name:>16}  {value}")
    for broker in described.brokers:
        if not health.is_up(broker):
            state = ": ".join(filter(None, (health.broker_state(broker), broker.problem)))
            click.echo(f"broker {broker.id} is {state}")
    for found in counts["damage"]:
        place = f"{found['topic']}:{found['partition']} on broker {found['broker']}"
        click.echo(f"damage: {place}: {found['damage']}")
    for lost in counts["losses"]:
        at = "an offset that is not known" if lost["offset"] < 0 else f"offset {lost['offset']}"
        click.echo(
            f"loss: {lost['topic']}:{lost['partition']} began again at {at} in leader epoch "
            f"{lost['leader_epoch']}, when an operator accepted a loss"
        )


@cluster.command()
@options.as_json
@options.bootstrap
def brokers(as_json: bool, bootstrap: str) -> None:
    """List the brokers: where they are, whether they answer, what they hold.

    \b
    Example:
      raftlog cluster brokers
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_cluster()
    rows = [_broker_row(described, number) for number in range(len(described.brokers))]
    if as_json:
        output.print_json(rows)
        return
    columns = ("id", "address", "rack", "state", "leads", "replicas", "directory", "controller")
    output.print_table(
        columns,
        [
            (
                row["id"],
                f"{row['host']}:{row['port']}",
                row["rack"],
                row["state"],
                row["leads"],
                row["replicas"],
                row["directory_id"],
                "yes" if row["controller"] else "",
            )
            for row in rows
        ],
    )


def _broker_row(described: ClusterDescription, number: int) -> dict[str, Any]:
    broker, partitions = described.brokers[number], described.partitions
    return {
        **asdict(broker),
        "state": health.broker_state(broker),
        "leads": sum(partition.leader == broker.id for partition in partitions),
        "replicas": sum(broker.id in partition.replicas for partition in partitions),
        "controller": broker.id == described.controller,
    }


@cluster.command()
@click.option("--under-replicated", is_flag=True, help="Only those with a replica out of sync.")
@click.option("--unavailable", is_flag=True, help="Only those whose leader does not answer.")
@click.option("--at-min-isr", is_flag=True, help="Only those with no in-sync replica to spare.")
@options.as_json
@options.bootstrap
def partitions(
    under_replicated: bool, unavailable: bool, at_min_isr: bool, as_json: bool, bootstrap: str
) -> None:
    """List the partitions of all topics; with several filters, those that any of them finds.

    Lag is in records: "2:120" says that broker 2 lacks 120 of them.

    \b
    Example:
      raftlog cluster partitions --under-replicated
    """
    with Admin(bootstrap) as admin:
        found = list(admin.describe_cluster().partitions)
    if under_replicated or unavailable or at_min_isr:
        found = [
            partition
            for partition in found
            if (under_replicated and partition.is_under_replicated)
            or (unavailable and not partition.is_available)
            or (at_min_isr and partition.is_at_min_isr)
        ]
    if as_json:
        output.print_json([health.partition_row(partition) for partition in found])
        return
    columns = ("partition", "leader", "epoch", "replicas", "isr", "min", "witnesses", "lag")
    output.print_table((*columns, "high watermark", "state"), list(map(_partition_cells, found)))


def _partition_cells(partition: PartitionOverview) -> tuple[Any, ...]:
    return (
        f"{partition.topic}:{partition.partition}",
        partition.leader,
        partition.leader_epoch,
        health.ids(partition.replicas),
        health.ids(partition.isr),
        partition.min_isr,
        health.ids(partition.witnesses),
        health.lag(partition.replica_states),
        partition.high_watermark,
        health.partition_state(partition),
    )


for command in (transfer_leader, recover):
    cluster.add_command(command)
