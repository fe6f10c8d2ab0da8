"""Creates a broker's coordinator and connects it to its events. Decides nothing."""

from __future__ import annotations

from functools import partial
from typing import Final

from raftlog.config import BrokerConfig
from raftlog.consumer_groups import GroupSettings, GroupShard
from raftlog.replication.placement import usual_copies
from raftlog.server.consumer_groups.assignors import load_assignors
from raftlog.server.consumer_groups.coordinator import Coordinator, CoordinatorServices
from raftlog.server.consumer_groups.lookup import Lookup
from raftlog.server.consumer_groups.topic_source import AgreedTopics, OwnTopics, TopicSource
from raftlog.server.context import BrokerContext
from raftlog.server.offset_waiters import Acknowledge
from raftlog.server.partition import Partition
from raftlog.server.scrubber import SUSPECT_BYTES_MAX
from raftlog.types import Offset

MINUTE_MS: Final = 60_000


def begin_to_coordinate(context: BrokerContext) -> None:
    """Create the coordinator of the broker. Raises ``InvalidConfigError`` about
    ``group.assignors``.
    """
    table, cluster = context.topics, context.cluster
    source: TopicSource = (
        OwnTopics(table, context.clock.wall_ms) if cluster is None else AgreedTopics(cluster)
    )
    coordinator = Coordinator(
        CoordinatorServices(
            loop=context.loop,
            clock=context.clock,
            topics=table,
            source=source,
            new_groups=_maker(context.config),
            confirm=partial(_confirm, context),
            on_unreadable=partial(_verify_unreadable, context),
        )
    )
    context.coordinator = coordinator
    context.lookup = Lookup(
        context.config,
        table,
        context.administration,
        authority=lambda: context.authority,
        copies=partial(_copies, context),
        now=context.loop.time,
    )
    if cluster is None:
        table.on_change = coordinator.topics_changed
    else:
        table.on_change = coordinator.poll_soon
        cluster.on_role = coordinator.poll_soon
        cluster.on_topics = coordinator.topics_changed
        cluster.on_version = coordinator.version_changed
    coordinator.poll_soon()


def _maker(config: BrokerConfig) -> partial[GroupShard]:
    assignors, default = load_assignors(config.group_assignors)
    settings = GroupSettings(
        session_timeout_ms_min=config.group_min_session_timeout_ms,
        session_timeout_ms_max=config.group_max_session_timeout_ms,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        members_per_group_max=config.group_max_size,
        default_assignor=default,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
    )
    return partial(GroupShard, settings, assignors)


def _confirm(context: BrokerContext, host: Partition, done: Acknowledge) -> None:
    """Confirm leadership. In single-broker mode no other broker can lead."""
    if context.cluster is None:
        done(host.closed)
    else:
        context.cluster.confirm(host, done)


def _verify_unreadable(context: BrokerContext, host: Partition, offset: Offset) -> None:
    context.verifier.verify_suspect(host, offset, bytes_max=SUSPECT_BYTES_MAX)


def _copies(context: BrokerContext) -> tuple[int, int]:
    """Return the replicas that a topic without a replication factor should have, and how many
    brokers can get one now.
    """
    cluster, config = context.cluster, context.config
    if cluster is None:
        return 1, 1
    machine = cluster.machine
    wanted = usual_copies(machine.brokers.values(), founders=len(config.voters))
    return config.default_replication_factor or wanted, len(machine.placeable())
