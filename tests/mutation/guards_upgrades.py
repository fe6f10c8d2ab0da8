"""Guards of upgrades: no broker of an earlier release applies a state that it would misread."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import drop, never, replace, value
from tests.mutation.guard import Guard

MACHINE: Final = "raftlog/replication/cluster_state.py"
OPERATIONS: Final = "raftlog/server/cluster/operations.py"
STATE: Final = "tests/replication/test_cluster_state.py"
UPGRADES: Final = "tests/server/cluster/test_upgrades.py"
UPGRADED: Final = f"{UPGRADES}::test_first_leaders_are_named_once_all_brokers_support_it"

GUARDS: Final = [
    Guard(
        name="partitions have first leaders once all brokers support it",
        why="brokers of two releases start a group from two states",
        module=MACHINE,
        function="ClusterMachine._with_partitions",
        change=value("assign PEER_PROTOCOL_FIRST_LEADERS", "True"),
        tests=(f"{STATE}::test_partitions_start_with_a_leader_once_all_brokers_support_it",),
    ),
    Guard(
        name="the protocol is raised for the brokers that were asked",
        why="a broker that was replaced by one of an earlier release rejects the command",
        module=MACHINE,
        function="ClusterMachine._raise_peer_protocol",
        change=never("if broker_epochs"),
        tests=(f"{STATE}::test_the_protocol_is_raised_for_the_brokers_that_were_asked",),
    ),
    Guard(
        name="all brokers are connected when the protocol is raised",
        why="a broker that is down can have an earlier release, and rejects the command",
        module=OPERATIONS,
        function="ClusterOperations._check_peers",
        change=never("if keys"),
        tests=(UPGRADED,),
    ),
    Guard(
        name="all brokers support the protocol that is required",
        why="a broker of an earlier release rejects the command, and has another state afterwards",
        module=OPERATIONS,
        function="ClusterOperations._check_peers",
        change=never("if PEER_PROTOCOL_VERSION"),
        tests=(UPGRADED,),
    ),
    Guard(
        name="a connected broker has registered",
        why="the command is for an incarnation that has ended, and the next may support less",
        module=OPERATIONS,
        function="ClusterOperations._check_peers",
        change=never("if boot"),
        tests=(UPGRADED,),
    ),
    Guard(
        name="a cluster is founded with what all voters support",
        why="a voter of an earlier release cannot read the first state",
        module="raftlog/server/cluster/membership.py",
        function="next_step",
        change=replace("call min", "PEER_PROTOCOL_VERSION"),
        tests=(
            "tests/server/cluster/test_membership.py::test_a_cluster_is_founded_with_what_all_voters_support",
        ),
    ),
    Guard(
        name="a peer supports the protocol that the cluster requires",
        why="a broker that was downgraded votes in groups that it has started from another state",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry.check",
        change=drop("call check_version"),
        tests=(
            UPGRADED,
            "tests/server/peers/test_links.py::test_a_peer_that_would_misread_the_clusters_state_is_refused_and_disconnected",
        ),
    ),
    Guard(
        name="connections to brokers of earlier releases end with the upgrade",
        why="one that connected before the command was committed does not apply it, and goes on",
        module="raftlog/server/peers/links.py",
        function="PeerLinks.drop_excluded",
        change=never("if identity"),
        tests=(f"{UPGRADES}::test_a_broker_of_an_earlier_release_is_disconnected_by_the_upgrade",),
    ),
    Guard(
        name="connections from brokers of earlier releases end with the upgrade",
        why="one that connected before the command was committed goes on voting",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry.end_refused",
        change=drop("call abort"),
        tests=(
            "tests/server/peers/test_links.py::test_a_peer_that_would_misread_the_clusters_state_is_refused_and_disconnected",
        ),
    ),
    Guard(
        name="a removed broker that missed its removal is disconnected",
        why="it runs on with old copies and an old state, and never learns that it was removed",
        module="raftlog/server/cluster/node.py",
        function="ClusterNode._cluster_changed",
        change=drop("call call_later"),
        tests=(
            "tests/server/cluster/test_controller.py::test_a_removed_broker_that_missed_its_removal_is_disconnected",
        ),
    ),
    Guard(
        name="earlier releases reject states that they would misread",
        why="a broker that was downgraded starts from a snapshot without the first leaders",
        module="raftlog/replication/cluster_commands.py",
        function="snapshot_format",
        change=value("return min", "SNAPSHOT_FORMAT_MIN"),
        tests=(
            "tests/replication/test_cluster_records.py::test_the_format_shows_earlier_releases_that_they_would_misread_the_state",
        ),
    ),
]
