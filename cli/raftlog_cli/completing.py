"""Shell completion of names that a running cluster has. Never fails, and never waits long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from raftlog import Admin

TIMEOUT_MS: Final = 1_000

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _from_cluster(names: Callable[[Admin], Iterable[str]]) -> Complete:
    """Return a completion with ``names`` of the cluster; without any if it does not respond."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        from raftlog import Admin

        logging.disable()  # a line on stderr would be printed into the command line
        try:
            bootstrap = context.params.get("bootstrap")
            with Admin(
                bootstrap, request_timeout_ms=TIMEOUT_MS, bootstrap_timeout_ms=TIMEOUT_MS
            ) as admin:
                return sorted(name for name in names(admin) if name.startswith(incomplete))
        except Exception:  # noqa: BLE001 - a shell must not print the reason
            return []

    return complete


def _partitions(admin: Admin) -> Iterable[str]:
    return (
        f"{name}:{number}"
        for name, topic in admin.find_topics().items()
        for number in range(topic.partition_count)
    )


topics: Final = _from_cluster(lambda admin: admin.list_topics())
partitions: Final = _from_cluster(_partitions)
groups: Final = _from_cluster(lambda admin: [row.group for row in admin.list_groups()])
transactional_ids: Final = _from_cluster(
    lambda admin: [row.transactional_id for row in admin.list_transactions()]
)
brokers: Final = _from_cluster(
    lambda admin: [str(broker.id) for broker in admin.summarize_cluster().brokers]
)


def settings(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a setting of a topic, for ``KEY``."""
    from raftlog.config import TOPIC_KEYS

    return [key.name for key in TOPIC_KEYS if key.name.startswith(incomplete)]


def assignments(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a setting of a topic, for ``KEY=VALUE``."""
    return [f"{name}=" for name in settings(context, parameter, incomplete)]
