"""Options that several commands share, and the types of their values. Nothing is opened here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from raftlog.config.address import BOOTSTRAP_DEFAULT
from raftlog.types import TopicPartition

Command = TypeVar("Command", bound=Callable[..., Any])


def bootstrap(command: Command) -> Command:
    """``--bootstrap``, or RAFTLOG_BOOTSTRAP."""
    return click.option(
        "--bootstrap",
        envvar="RAFTLOG_BOOTSTRAP",
        default=BOOTSTRAP_DEFAULT,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Brokers to ask first.",
    )(command)


def cluster_secret_file(command: Command) -> Command:
    """``--cluster-secret-file``, or RAFTLOG_CLUSTER_SECRET_FILE, or what the broker's file says."""
    return click.option(
        "--cluster-secret-file",
        envvar="RAFTLOG_CLUSTER_SECRET_FILE",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False),
        help="The secret of the cluster's brokers, which it asks for.",
    )(command)


def as_json(command: Command) -> Command:
    """``--json``: one JSON value; for a stream, one per line."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def topic_config(command: Command) -> Command:
    """``--config k=v``, repeatable: the settings of a topic as a dict."""
    return click.option(
        "--config",
        "config",
        multiple=True,
        metavar="KEY=VALUE",
        callback=lambda _context, _parameter, pairs: dict(map(key_and_value, pairs)),
        help="A setting, such as retention.ms=86400000; may be repeated.",
    )(command)


def key_and_value(text: str) -> tuple[str, str]:
    """``k=v`` as a pair; the value may hold further ``=``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key.strip(), value


def partition_and_offset(text: str) -> tuple[int, int]:
    """``P:OFFSET`` as a pair of integers."""
    partition, colon, offset = text.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(f"{text!r} is not P:OFFSET, as in 0:1000")
    return int(partition), int(offset)


def topic_partition(text: str) -> TopicPartition:
    """``TOPIC:P``."""
    topic, colon, partition = text.rpartition(":")
    if not (topic and colon and partition.isascii() and partition.isdecimal()):
        raise click.BadParameter(f"{text!r} is not TOPIC:P, as in clicks:0")
    return TopicPartition(topic, int(partition))
