"""``raftlog topic``: topics are made, shown, changed and removed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from cli import options, output
from cli.topic_partitions import add_partitions, delete_records, offsets
from raftlog import Admin, NewTopic
from raftlog.errors import TopicExistsError


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    Example:
      raftlog topic create clicks --partitions 6
    """


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="How many."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Copies of each partition; one broker holds one.",
)
@options.topic_config
@click.option("--if-not-exists", is_flag=True, help="It is no failure if the topic exists.")
@options.as_json
@options.bootstrap
def create(
    name: str,
    partitions: int,
    replication_factor: int,
    config: dict[str, str],
    if_not_exists: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Create a topic.

    \b
    Example:
      raftlog topic create clicks --partitions 6 --config retention.ms=86400000
    """
    new = NewTopic(name, partitions, replication_factor, config)
    created = True
    with Admin(bootstrap) as admin:
        try:
            topic_id = admin.create_topics([new])[name]
        except TopicExistsError:
            if not if_not_exists:
                raise
            created = False
            topic_id = admin.describe_topics([name])[0].id
    if as_json:
        output.print_json({"name": name, "id": topic_id, "created": created})
    else:
        click.echo(f"created {name}" if created else f"{name} exists")


@topic.command(name="list")
@options.as_json
@options.bootstrap
def list_names(as_json: bool, bootstrap: str) -> None:
    """List the names of all topics.

    \b
    Example:
      raftlog topic list
    """
    with Admin(bootstrap) as admin:
        names = admin.list_topics()
    if as_json:
        output.print_json(names)
    for name in () if as_json else names:
        click.echo(name)


@topic.command()
@click.argument("name", required=False)
@options.as_json
@options.bootstrap
def describe(name: str | None, as_json: bool, bootstrap: str) -> None:
    """Show the settings and partitions of one topic, or of all.

    \b
    Example:
      raftlog topic describe clicks
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_topics(None if name is None else [name])
    topics = [asdict(entry) for entry in described]
    if as_json:
        output.print_json(topics if name is None else topics[0])
        return
    for entry in topics:
        _print_topic(entry)


def _print_topic(entry: dict[str, Any]) -> None:
    config = entry["config"]
    set_here = {key: config[key] for key in entry["config_overrides"]}
    shown = {"flush.policy": config["flush.policy"], **set_here} if config else set_here
    click.echo(f"{entry['name']}  id {entry['id']}")
    click.echo("  " + "  ".join(f"{key}={value}" for key, value in shown.items()))
    columns = ("partition", "leader", "epoch", "isr", "start", "high watermark", "bytes", "damage")
    rows = [
        (
            part["partition"],
            part["leader"],
            part["leader_epoch"],
            ",".join(map(str, part["isr"])),
            part["log_start_offset"],
            part["high_watermark"],
            part["size_bytes"],
            part["damage"],
        )
        for part in entry["partitions"]
    ]
    output.print_table(columns, rows)


@topic.command()
@click.argument("name")
@options.topic_config
@click.option("--reset", multiple=True, metavar="KEY", help="Put a setting back to its default.")
@options.as_json
@options.bootstrap
def alter(
    name: str, config: dict[str, str], reset: tuple[str, ...], as_json: bool, bootstrap: str
) -> None:
    """Change a topic's settings.

    \b
    Example:
      raftlog topic alter clicks --config retention.ms=3600000
    """
    changes: dict[str, str | None] = {**config, **dict.fromkeys(reset)}
    if not changes:
        raise click.UsageError("nothing to change: give --config KEY=VALUE or --reset KEY")
    with Admin(bootstrap) as admin:
        admin.alter_topic(name, changes)
    output.report({"name": name, "config": changes}, f"altered {name}", as_json=as_json)


@topic.command()
@click.argument("name")
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


for command in (add_partitions, delete_records, offsets):
    topic.add_command(command)
