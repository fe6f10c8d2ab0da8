"""``raftlog explain``: reasons for lag, rebalances, partitions without a leader, failed brokers
and full disks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from raftlog import Admin, TopicPartition
from raftlog.client.group_descriptions import GroupDescription
from raftlog.errors import InvalidRequestError, UnknownPartitionError
from raftlog.types import check_group_id
from raftlog_cli import completing, explaining, options, output
from raftlog_cli.main import Commands


@click.group(
    cls=Commands, short_help="Explain a lag, a partition, a broker, a rebalance or a disk."
)
def explain() -> None:
    """Explain why a group lags, a partition or broker does not work, or a disk is full.

    \b
    Example:
      raftlog explain partition clicks:0
    """


@explain.command()
@click.argument("group", shell_complete=completing.groups)
@options.as_json
@options.bootstrap
def lag(group: str, as_json: bool, bootstrap: str) -> None:
    """Explain the lag of a consumer group.

    \b
    Example:
      raftlog explain lag billing
    """
    _print(explaining.explain_lag(_group(group, bootstrap)), as_json=as_json)


@explain.command()
@click.argument("group", shell_complete=completing.groups)
@options.as_json
@options.bootstrap
def rebalance(group: str, as_json: bool, bootstrap: str) -> None:
    """Explain what the rebalance of a consumer group waits for.

    \b
    Example:
      raftlog explain rebalance billing
    """
    _print(explaining.explain_rebalance(_group(group, bootstrap)), as_json=as_json)


@explain.command(short_help="Explain why a partition has no leader or few in-sync replicas.")
@click.argument(
    "partition",
    metavar="TOPIC:P",
    shell_complete=completing.partitions,
    callback=lambda _context, _parameter, text: options.topic_partition(text),
)
@options.as_json
@options.bootstrap
def partition(partition: TopicPartition, as_json: bool, bootstrap: str) -> None:
    """Explain the state of a partition: why it has no leader, or too few in-sync replicas.

    \b
    Example:
      raftlog explain partition clicks:0
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_cluster([partition.topic])
        events = admin.describe_events()
    found = [part for part in described.partitions if part.partition == partition.partition]
    if not found:
        raise UnknownPartitionError(f"{partition} does not exist")
    _print(explaining.explain_partition(described, found[0], events), as_json=as_json)


@explain.command()
@click.argument(
    "broker_id", metavar="ID", type=click.IntRange(min=0), shell_complete=completing.brokers
)
@options.as_json
@options.bootstrap
def broker(broker_id: int, as_json: bool, bootstrap: str) -> None:
    """Explain the state of a broker, and of its replicas.

    \b
    Example:
      raftlog explain broker 2
    """
    with Admin(bootstrap) as admin:
        described = admin.summarize_cluster()
        events = admin.describe_events()
    found = [each for each in described.brokers if each.id == broker_id]
    if not found:
        known = ", ".join(str(each.id) for each in described.brokers)
        raise InvalidRequestError(f"the cluster has no broker {broker_id}; it has {known}")
    _print(explaining.explain_broker(described, found[0], events), as_json=as_json)


@explain.command(short_help="Explain what uses the disks of brokers, and how to free space.")
@click.argument(
    "broker_id",
    metavar="[BROKER]",
    type=click.IntRange(min=0),
    required=False,
    shell_complete=completing.brokers,
)
@options.as_json
@options.bootstrap
def disk(broker_id: int | None, as_json: bool, bootstrap: str) -> None:
    """Explain what uses the disk of a broker, or of all brokers, and how to free space.

    \b
    Example:
      raftlog explain disk 2
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_disks()
    found = [each for each in described if broker_id in (None, each.broker)]
    if not found:
        known = ", ".join(str(each.broker) for each in described)
        raise InvalidRequestError(f"the cluster has no broker {broker_id}; it has {known}")
    sentences = [sentence for each in found for sentence in explaining.explain_disk(each)]
    if as_json:
        output.print_json({"sentences": sentences, "disks": [asdict(each) for each in found]})
    else:
        _print(sentences, as_json=False)


def _group(name: str, bootstrap: str) -> GroupDescription:
    check_group_id(name)
    with Admin(bootstrap) as admin:
        return admin.describe_groups([name])[0]


def _print(sentences: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        output.print_json({"sentences": list(sentences)})
        return
    for sentence in sentences:
        click.echo(sentence)
