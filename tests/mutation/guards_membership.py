"""Guards of brokers that join and leave: the known state, votes, and removals."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, drop, never, replace, value
from tests.mutation.guard import Guard

STATE: Final = "tests/replication/test_cluster_state.py"
VOTERS: Final = "tests/replication/test_cluster_state.py"
SERVER: Final = "tests/server/cluster"
MACHINE: Final = "raftlog/replication/cluster_state.py"

GUARDS: Final = [
    Guard(
        name="a known cluster state never goes back",
        why="a broker that gets a vote deletes its copies of topics that were created last",
        module=MACHINE,
        function="ClusterMachine.restore",
        change=never("if version"),
        tests=(f"{STATE}::test_a_broker_that_gets_a_vote_never_goes_back_behind_what_it_knows",),
    ),
    Guard(
        name="an older cluster state is ignored",
        why="a broker without a vote asks another voter, and forgets the newest topics",
        module=MACHINE,
        function="ClusterMachine.follow",
        change=always("if version"),
        tests=(f"{STATE}::test_an_older_state_and_that_of_another_cluster_change_nothing",),
    ),
    Guard(
        name="only the group's log changes the state of a voter",
        why="a late response to a request from before the vote changes the state of one voter only",
        module="raftlog/server/cluster/membership.py",
        function="ClusterSubscription._take",
        change=never("if has_vote #1/2"),
        tests=(f"{SERVER}/test_membership.py::test_a_broker_with_a_vote_takes_no_state",),
    ),
    Guard(
        name="a recovery skips versions of the cluster state",
        why="two different states have the same version, and brokers without a vote keep the old",
        module="raftlog/server/cluster/recovery.py",
        function="Recovery._cluster_base",
        change=value("return UNSEEN_CHANGES", "state.snapshot()"),
        tests=(
            f"{SERVER}/test_recovery.py::test_the_last_of_three_goes_on_with_all_that_was_acknowledged",
        ),
    ),
    Guard(
        name="a majority of the next voters is connected",
        why="the cluster group has no leader after the change, and no change can repair that",
        module="raftlog/replication/cluster_state.py",
        function="next_voters",
        change=drop("compare 2"),
        tests=(f"{VOTERS}::test_a_majority_of_the_next_voters_is_there",),
    ),
    Guard(
        name="a broker that is fenced or leaves gets no vote",
        why="the new voter does not receive the generation, or leaves next",
        module="raftlog/replication/cluster_state.py",
        function="next_voters",
        change=replace("or draining", "False"),
        tests=(f"{VOTERS}::test_a_broker_that_is_not_there_to_stay_gets_no_vote",),
    ),
    Guard(
        name="a removed directory never registers again",
        why="a decommissioned broker returns with copies and votes that no other broker expects",
        module=MACHINE,
        function="ClusterMachine._register",
        change=never("if BrokerRemovedError"),
        tests=(f"{STATE}::test_a_removed_directory_never_registers_again_and_a_new_one_may",),
    ),
    Guard(
        name="brokers refuse a removed directory",
        why="a decommissioned broker that missed its removal takes part in elections",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry.check",
        change=drop("call _check_state"),
        tests=(
            (
                "tests/server/peers/test_links.py"
                "::test_a_broker_that_the_state_excludes_is_disconnected_and_refused"
            ),
        ),
    ),
    Guard(
        name="topics need as many brokers as replicas",
        why="a decommission never ends, or a topic loses a copy",
        module=MACHINE,
        function="ClusterMachine._decommission",
        change=never("if replication_factor"),
        tests=(f"{STATE}::test_what_the_others_cannot_store_keeps_a_broker",),
    ),
    Guard(
        name="a broker with a part in a partition is not removed",
        why="a replica disappears before its successor is in sync",
        module=MACHINE,
        function="ClusterMachine._remove",
        change=never("if uses_of"),
        tests=(f"{STATE}::test_a_broker_is_removed_once_it_has_no_part_in_anything",),
    ),
    Guard(
        name="a removal is for one registration",
        why="a removal that was proposed for a failed broker removes the one that returned",
        module=MACHINE,
        function="ClusterMachine._remove",
        change=drop("compare broker_epoch"),
        tests=(f"{STATE}::test_a_broker_is_removed_once_it_has_no_part_in_anything",),
    ),
    Guard(
        name="a broker that leaves stays marked when it registers again",
        why="it gets replicas again, and its removal never ends",
        module=MACHINE,
        function="ClusterMachine._register",
        change=replace("and draining", "False"),
        tests=(f"{STATE}::test_it_stays_so_when_it_restarts_even_with_another_disk",),
    ),
    Guard(
        name="a broker that leaves gets no new replicas",
        why="its removal never ends",
        module=MACHINE,
        function="ClusterMachine.placeable",
        change=value("return draining", "self.live()"),
        tests=(f"{STATE}::test_a_broker_that_is_decommissioned_gets_nothing_more",),
    ),
    Guard(
        name="no move goes to a broker that leaves",
        why="its removal never ends",
        module=MACHINE,
        function="ClusterMachine._target",
        change=never("if brokers"),
        tests=(f"{STATE}::test_a_broker_that_is_decommissioned_gets_nothing_more",),
    ),
    Guard(
        name="a broker leaves when it has no vote in any group",
        why="groups lose a voter that they count on before they have replaced it",
        module="raftlog/server/cluster/controller.py",
        function="Decommissioning._own_removal",
        change=drop("operand _members"),
        tests=(f"{SERVER}/test_controller.py::test_a_broker_that_votes_does_not_leave",),
    ),
    Guard(
        name="a broker creates no cluster while it knows a member of one",
        why="founders with new disks create a second cluster next to the brokers that joined",
        module="raftlog/server/cluster/membership.py",
        function="Founder.poll",
        change=never("if _is_known_elsewhere"),
        tests=(f"{SERVER}/test_membership.py::test_founders_that_know_a_member_create_nothing",),
    ),
    Guard(
        name="a cancelled decommission restores only replicas that can stay",
        why="a move goes to a broker that is removed, and its removal never ends",
        module=MACHINE,
        function="_restored",
        change=drop("operand >="),
        tests=(f"{STATE}::test_moves_whose_former_replicas_cannot_stay_go_on",),
    ),
    Guard(
        name="a removal is rejected after its decommission was cancelled",
        why="a removal in flight removes a broker that an operator keeps",
        module=MACHINE,
        function="ClusterMachine._remove",
        change=drop("operand draining"),
        tests=(
            f"{STATE}::test_a_decommission_that_is_cancelled_restores_the_replicas_of_moves_in_progress",
        ),
    ),
    Guard(
        name="a broker that restarts reports no controller until its metadata is up to date",
        why="a cluster that has restarted lists brokers that were removed",
        module="raftlog/server/cluster/operations.py",
        function="ClusterOperations.controller",
        change=drop("operand is_current"),
        tests=(
            f"{SERVER}/test_controller.py::test_brokers_that_restart_report_a_controller_only_once_they_know_the_removal",
        ),
    ),
]
