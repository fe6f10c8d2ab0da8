"""``raftlog topic``: create, list, describe, alter and delete topics; list their producers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from raftlog import Admin, NewTopic, TopicPartition, limits
from raftlog.client.descriptions import PartitionOverview, ProducerPage
from raftlog.clock import SystemClock
from raftlog.errors import (
    AccessDeniedError,
    InvalidTopicError,
    RaftlogError,
    RefusedError,
    TopicExistsError,
    counted,
)
from raftlog.replication.placement import change_replication_factor
from raftlog.types import Offset, TimestampMs, is_internal_topic
from raftlog_cli import cluster, completing, options, output
from raftlog_cli import overview as health
from raftlog_cli.cluster import utc_time
from raftlog_cli.main import Commands, Failed
from raftlog_cli.options import TIME_GRAMMAR, parse_time
from raftlog_cli.overview import topics_of


@click.group(cls=Commands)
def topic() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    Example:
      raftlog topic create clicks --partitions 6
    """


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of partitions.",
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(0, limits.REPLICATION_FACTOR_MAX),
    default=0,
    help="Number of replicas of each partition, on different brokers.  "
    "[default: that of the cluster: 3, or the number of brokers if lower]",
)
@options.topic_config
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists.")
@options.as_json
@options.bootstrap
def create(
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    config: dict[str, str],
    if_not_exists: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Create topics.

    With several names, the others are created if one of them fails. --json then prints a list.

    \b
    Example:
      raftlog topic create clicks --partitions 6 --config retention.ms=1d
      raftlog topic create views orders -p 3 -r 3
    """
    failures: list[RaftlogError] = []
    created: list[dict[str, Any]] = []
    with Admin(bootstrap) as admin:
        for name in dict.fromkeys(names):
            new = NewTopic(name, partitions, replication_factor, config)
            try:
                found = _create(admin, new, if_not_exists=if_not_exists)
            except (RefusedError, InvalidTopicError) as error:
                failures.append(error)
                continue
            created.append(found)
            if not as_json:
                click.echo(f"created {name}" if found["created"] else f"{name} exists")
    if as_json and (created or len(names) > 1):
        output.print_json(created if len(names) > 1 else created[0])
    for failure in failures[1:]:
        output.note_error(failure)
    if failures:
        raise failures[0]


def _create(admin: Admin, new: NewTopic, *, if_not_exists: bool) -> dict[str, Any]:
    try:
        topic_id = admin.create_topics([new])[new.name]
    except TopicExistsError:
        if not if_not_exists:
            raise
        topic_id = admin.describe_topics([new.name], partitions=range(1))[0].id
        return {"name": new.name, "id": topic_id, "created": False}
    return {"name": new.name, "id": topic_id, "created": True}


@topic.command(name="list", short_help="List topics with partitions, replication factor and size.")
@options.internal
@options.quiet
@options.wide
@options.as_json
@options.bootstrap
def list_names(internal: bool, quiet: bool, as_json: bool, bootstrap: str) -> None:
    """List all topics with their partitions, replication factor and size.

    The size is that of one replica of each partition. --json prints the names only; for details in
    JSON, see `raftlog topic describe --json`.

    \b
    Example:
      raftlog topic list
      raftlog topic list -q | xargs -n 1 raftlog topic describe
    """
    with Admin(bootstrap) as admin:
        if as_json or quiet:
            names = admin.list_topics(internal=internal)
            if as_json:
                output.print_json(names)
            for name in () if as_json else names:
                click.echo(name)
            return
        rows = list(_topic_rows(admin))
    shown = (row for row in rows if internal or not is_internal_topic(row[0]))
    output.print_table(("topic", "partitions", "replication", "size"), sorted(shown))


def _topic_rows(admin: Admin) -> Iterator[tuple[str, int, int | str, str]]:
    """Return name, partitions, replication factor and size of each topic.

    Sizes are unknown to users that may not describe the cluster.
    """
    try:
        summaries = topics_of(admin.summarize_cluster())
    except AccessDeniedError:
        for found in admin.describe_topics():
            copies = max((len(part.replicas) for part in found.partitions), default=0)
            yield found.name, len(found.partitions), copies, health.UNKNOWN
        return
    replicas = {
        found.name: max(len(part.replicas) for part in found.partitions)
        for found in admin.describe_topics(partitions=range(1))
        if found.partitions
    }
    for topic in summaries:
        size = health.UNKNOWN if topic.size_bytes < 0 else health.shown_bytes(topic.size_bytes)
        yield topic.name, topic.partitions, replicas.get(topic.name, health.UNKNOWN), size


@topic.command()
@click.argument("name", required=False, shell_complete=completing.topics)
@options.internal
@options.wide
@options.as_json
@options.bootstrap
def describe(name: str | None, internal: bool, as_json: bool, bootstrap: str) -> None:
    """Show the settings and partitions of one topic, or of all.

    Lag is in records: "2:120" means that broker 2 lags by 120 records. Witnesses vote and store no
    records.

    \b
    Example:
      raftlog topic describe clicks
    """
    with Admin(bootstrap) as admin:
        topics = topic_rows(admin, None if name is None else [name])
    if name is None and not internal:
        topics = [entry for entry in topics if not entry["is_internal"]]
    if as_json:
        output.print_json(topics if name is None else topics[0])
        return
    for entry in topics:
        _print_topic(entry)


def topic_rows(
    admin: Admin, names: Sequence[str] | None, partitions: range | None = None
) -> list[dict[str, Any]]:
    """Return topics for JSON. ``names``: None for all topics. ``partitions``: None for all."""
    described = admin.describe_topics(names, partitions=partitions)
    overviews = admin.describe_cluster(
        names, partitions=True if partitions is None else partitions
    ).partitions
    return [_with_replicas(asdict(entry), overviews) for entry in described]


def _with_replicas(entry: dict[str, Any], overviews: Iterable[PartitionOverview]) -> dict[str, Any]:
    """Return the topic with the state of each replica that the brokers report."""
    of_topic = {o.partition: o for o in overviews if o.topic == entry["name"]}
    for part in entry["partitions"]:
        overview = of_topic.get(part["partition"])
        replicas = overview.replica_states if overview is not None else ()
        part["elr"] = overview.elr if overview is not None else ()
        part["min_isr"] = overview.min_isr if overview is not None else None
        part["lag"] = health.lag(replicas) if replicas else health.UNKNOWN
        part["replica_states"] = health.replica_rows(replicas)
    return entry


def _print_topic(entry: dict[str, Any]) -> None:
    config = entry["config"]
    set_here = {key: config[key] for key in entry["config_overrides"]}
    shown = {"flush.policy": config["flush.policy"], **set_here} if config else set_here
    kind = "  internal" if entry["is_internal"] else ""
    size = health.shown_bytes(sum(max(0, part["size_bytes"]) for part in entry["partitions"]))
    click.echo(f"{entry['name']}  id {entry['id']}{kind}  {size} in each replica")
    click.echo("  " + "  ".join(f"{key}={value}" for key, value in shown.items()))
    columns = ("partition", "leader", "epoch", "replicas", "isr", "lag", "start", "high watermark")
    rows = [
        (
            part["partition"],
            part["leader"],
            part["leader_epoch"],
            health.ids(part["replicas"]),
            health.ids(part["isr"]),
            part["lag"],
            part["log_start_offset"],
            part["high_watermark"],
            part["size_bytes"],
            health.ids(part["witnesses"]),
            part["damage"],
        )
        for part in entry["partitions"]
    ]
    output.print_table(
        (*columns, "bytes", "witnesses", "damage"),
        rows,
        if_set=("witnesses", "damage"),
        drop=("epoch", "bytes", "witnesses", "start"),
        prose="damage",
    )


@topic.command()
@click.argument("name", shell_complete=completing.topics)
@options.topic_config
@click.option(
    "--reset",
    multiple=True,
    metavar="KEY",
    shell_complete=completing.settings,
    help="Reset a setting to its default.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, limits.REPLICATION_FACTOR_MAX),
    help="New number of replicas of each partition.",
)
@click.option("--no-wait", is_flag=True, help="Return when the moves of replicas are stored.")
@options.as_json
@options.secret_file
@options.bootstrap
def alter(
    name: str,
    config: dict[str, str],
    reset: tuple[str, ...],
    replication_factor: int | None,
    no_wait: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Change a topic's settings, or its replication factor.

    A new replication factor adds or removes replicas as `raftlog cluster reassign` does.

    \b
    Example:
      raftlog topic alter clicks --config retention.ms=1h
      raftlog topic alter clicks --replication-factor 3
    """
    changes: dict[str, str | None] = {**config, **dict.fromkeys(reset)}
    if not changes and replication_factor is None:
        raise click.UsageError(
            "nothing to change: pass --config KEY=VALUE, --reset KEY or --replication-factor N"
        )
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        if changes:
            admin.alter_topic(name, changes)
        if replication_factor is not None:
            _change_replication_factor(admin, name, replication_factor)
            if not no_wait:
                cluster.wait(admin, [name])
    altered: dict[str, Any] = {"name": name, "config": changes}
    if replication_factor is not None:
        altered["replication_factor"] = replication_factor
    output.report(altered, f"altered {name}", as_json=as_json)


def _change_replication_factor(admin: Admin, name: str, factor: int) -> None:
    described = admin.describe_cluster()
    brokers = cluster.brokers_of(described, None)
    if factor > len(brokers):
        raise Failed(
            f"{counted(factor, 'replica')} cannot be on {counted(len(brokers), 'broker')}: each "
            "needs another broker that is up"
        )
    everything = cluster.placed(described.partitions)
    mine = [each for each in everything if each.topic == name]
    planned = change_replication_factor(mine, factor, brokers, all_partitions=everything)
    admin.reassign_partitions(
        name, {move.partition: move.after for move in planned}, replication_factor=factor
    )


@topic.command()
@click.argument("name", shell_complete=completing.topics)
@options.as_json
@options.bootstrap
def delete(name: str, as_json: bool, bootstrap: str) -> None:
    """Delete a topic with all its records.

    \b
    Example:
      raftlog topic delete clicks
    """
    with Admin(bootstrap) as admin:
        admin.delete_topics([name])
    output.report({"name": name, "deleted": True}, f"deleted {name}", as_json=as_json)


# -- partitions ------------------------------------------------------------------------------------


@topic.command()
@click.argument("name", shell_complete=completing.topics)
@click.argument("total", metavar="N", type=click.IntRange(min=1))
@options.as_json
@options.bootstrap
def add_partitions(name: str, total: int, as_json: bool, bootstrap: str) -> None:
    """Extend a topic to N partitions. This changes the partition of future keys.

    \b
    Example:
      raftlog topic add-partitions clicks 12
    """
    with Admin(bootstrap) as admin:
        admin.add_partitions(name, total)
    output.report(
        {"name": name, "partitions": total},
        f"{name} has {counted(total, 'partition')}",
        as_json=as_json,
    )


@topic.command()
@click.argument("name", shell_complete=completing.topics)
@click.option(
    "--before",
    multiple=True,
    required=True,
    metavar="P:OFFSET",
    callback=lambda _context, _parameter, texts: list(map(options.partition_and_offset, texts)),
    help="First offset that partition P keeps; may be repeated.",
)
@options.wide
@options.as_json
@options.bootstrap
def delete_records(
    name: str, before: list[tuple[int, Offset]], as_json: bool, bootstrap: str
) -> None:
    """Delete the records of partitions below an offset.

    \b
    Example:
      raftlog topic delete-records clicks --before 0:1500 --before 1:1200
    """
    wanted = {TopicPartition(name, partition): offset for partition, offset in before}
    with Admin(bootstrap) as admin:
        starts = admin.delete_records(wanted)
    rows = [(tp.partition, offset) for tp, offset in sorted(starts.items())]
    _print_offsets(name, "log_start_offset", rows, as_json=as_json)


def _time(_context: click.Context, _parameter: click.Parameter, text: str) -> str | TimestampMs:
    if text in {"earliest", "latest"}:
        return text
    moment = parse_time(text, now_ms=SystemClock().wall_ms())
    if moment is None:
        raise click.BadParameter(f"{text!r} is not earliest, latest or a time ({TIME_GRAMMAR})")
    return moment


@topic.command()
@click.argument("name", shell_complete=completing.topics)
@click.option(
    "--time",
    "at",
    default="latest",
    show_default=True,
    metavar="TIME",
    callback=_time,
    help=f"earliest, latest (the end), or a time, for the first record from it on: {TIME_GRAMMAR}.",
)
@options.wide
@options.as_json
@options.bootstrap
def offsets(name: str, at: Any, as_json: bool, bootstrap: str) -> None:
    """Show an offset of each partition.

    \b
    Example:
      raftlog topic offsets clicks --time -2h
    """
    with Admin(bootstrap) as admin:
        found = admin.offsets(name, at)
    _print_offsets(name, "offset", sorted(found.items()), as_json=as_json)


def _print_offsets(
    name: str, column: str, rows: list[tuple[int, Offset]] | list[Any], *, as_json: bool
) -> None:
    if as_json:
        parts = [{"partition": partition, column: offset} for partition, offset in rows]
        output.print_json({"name": name, "partitions": parts})
    else:
        output.print_table(("partition", column.replace("_", " ")), rows)


# -- producers -------------------------------------------------------------------------------------


@topic.command(short_help="Show the producers that wrote to a topic in the last week.")
@click.argument("name", shell_complete=completing.topics)
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; may be repeated.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, limits.LISTED_PRODUCERS_MAX),
    default=limits.LISTED_PRODUCERS_MAX,
    show_default=True,
    help="Number of producers.",
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Omit this number first.")
@options.wide
@options.as_json
@options.bootstrap
def producers(
    name: str, partitions: tuple[int, ...], limit: int, skip: int, as_json: bool, bootstrap: str
) -> None:
    """Show the idempotent and named producers that wrote to a topic in the last seven days.

    In each partition, the one that wrote last is the first. Exits with status 1 if the producers of
    a partition are not known.

    \b
    Example:
      raftlog topic producers clicks
      raftlog topic producers clicks --partition 0 --json
    """
    with Admin(bootstrap) as admin:
        page = admin.describe_producers(name, partitions or None, skip=skip, limit=limit)
    if as_json:
        output.print_json(producers_to_json(name, page))
    else:
        output.print_table(
            ("partition", "producer id", "kind", "epoch", "sequence", "offset", "time", "state"),
            [
                (
                    each.partition,
                    each.producer_id,
                    each.kind,
                    each.epoch,
                    each.last_sequence,
                    each.last_offset,
                    utc_time(each.last_timestamp_ms),
                    each.state,
                )
                for each in page.producers
            ],
        )
        left = page.total - skip - len(page.producers)
        if left > 0:
            output.note(
                f"{counted(left, 'more producer')}: pass --skip {skip + len(page.producers)}"
            )
    if page.problems:
        texts = [f"{name}:{number}: {text}" for number, text in sorted(page.problems.items())]
        raise Failed("the producers of a partition are not known: " + "; ".join(texts[:3]))


def producers_to_json(name: str, page: ProducerPage) -> dict[str, Any]:
    """Return producers for JSON."""
    return {
        "name": name,
        "total": page.total,
        "skip": page.skip,
        "producers": [asdict(each) for each in page.producers],
        "problems": [
            {"partition": number, "problem": text} for number, text in sorted(page.problems.items())
        ],
    }
