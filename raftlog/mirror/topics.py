"""Selection of the topics to mirror, and the changes that the target cluster needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.client.descriptions import TopicDescription, TopicListing
from raftlog.types import NewTopic, TopicPartition


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes of the target cluster, and each source partition with its copy.

    ``extend``: total partition counts of topics that have fewer than their source.
    """

    create: list[NewTopic]
    extend: dict[str, int]
    copies: dict[TopicPartition, TopicPartition]


def selected(
    listings: Mapping[str, TopicListing], public: Iterable[str], pattern: re.Pattern[str]
) -> dict[str, TopicListing]:
    """Return the topics in ``public`` whose whole name matches ``pattern``."""
    return {name: listings[name] for name in public if name in listings and pattern.fullmatch(name)}


# Of the cluster, not of the records: a target with fewer brokers has another value.
_OF_CLUSTERS: Final = frozenset(("min.insync.replicas",))


def settings_due(source: TopicDescription, copy: TopicDescription) -> dict[str, str | None]:
    """Return the settings of a copy that differ from those of its source. None: the default.

    Otherwise the copy could delete records that its source keeps.
    """
    wanted = source.overrides
    differing: dict[str, str | None] = {
        key: value for key, value in wanted.items() if copy.config.get(key) != value
    }
    differing |= dict.fromkeys(copy.overrides.keys() - wanted.keys())
    return {key: value for key, value in differing.items() if key not in _OF_CLUSTERS}


def planned(
    sources: Iterable[TopicDescription],
    existing: Mapping[str, TopicListing],
    *,
    prefix: str,
    broker_count: int,
) -> Plan:
    """Return the changes that the target cluster needs to receive ``sources``.

    ``existing``: topics of the target. ``broker_count``: brokers of the target; the replication
    factor of a new topic is that of its source, or this number if it is lower.
    """
    made = Plan([], {}, {})
    for source in sources:
        name, count = prefix + source.name, len(source.partitions)
        found = existing.get(name)
        if found is None:
            replicas = max((len(part.replicas) for part in source.partitions), default=0)
            replicas = min(replicas, broker_count)
            made.create.append(NewTopic(name, count, replicas, source.overrides))
        elif found.partition_count < count:
            made.extend[name] = count
        for number in range(count):
            made.copies[TopicPartition(source.name, number)] = TopicPartition(name, number)
    return made
