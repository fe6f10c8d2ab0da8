"""All guards, in the order in which they are judged."""

from __future__ import annotations

from typing import Final

from tests.mutation import (
    guards_bounds,
    guards_clocks,
    guards_cluster,
    guards_compacting,
    guards_compaction,
    guards_consumer_groups,
    guards_coordinator,
    guards_copying,
    guards_disk,
    guards_founding,
    guards_groups,
    guards_hosts,
    guards_journal,
    guards_kafka,
    guards_kafka_port,
    guards_leading,
    guards_log,
    guards_membership,
    guards_mirror,
    guards_moving,
    guards_peers,
    guards_producers,
    guards_raft,
    guards_roles,
    guards_security,
    guards_states,
)
from tests.mutation.guard import Guard

GUARDS: Final[tuple[Guard, ...]] = (
    *guards_disk.GUARDS,
    *guards_log.GUARDS,
    *guards_compaction.GUARDS,
    *guards_journal.GUARDS,
    *guards_raft.GUARDS,
    *guards_groups.GUARDS,
    *guards_states.GUARDS,
    *guards_cluster.GUARDS,
    *guards_leading.GUARDS,
    *guards_peers.GUARDS,
    *guards_founding.GUARDS,
    *guards_hosts.GUARDS,
    *guards_copying.GUARDS,
    *guards_roles.GUARDS,
    *guards_moving.GUARDS,
    *guards_membership.GUARDS,
    *guards_consumer_groups.GUARDS,
    *guards_compacting.GUARDS,
    *guards_coordinator.GUARDS,
    *guards_clocks.GUARDS,
    *guards_producers.GUARDS,
    *guards_mirror.GUARDS,
    *guards_bounds.GUARDS,
    *guards_kafka.GUARDS,
    *guards_kafka_port.GUARDS,
    *guards_security.GUARDS,
)
