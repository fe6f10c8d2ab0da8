"""Guards of moves of replicas: copies, votes and generations."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, drop, never, replace, value
from tests.mutation.guard import Guard

SERVER: Final = "tests/server/cluster"
STEPS: Final = "tests/replication/test_election.py"
ROLES: Final = "tests/server/cluster/test_replicas.py"
STATE: Final = "tests/replication/test_cluster_state.py"

GUARDS: Final = [
    Guard(
        name="one learner at a time",
        why="several new voters without records can block the decisions of a partition",
        module="raftlog/replication/election.py",
        function="next_step",
        change=never("if replicas #1/2"),
        tests=(f"{STEPS}::test_one_learner_at_a_time",),
    ),
    Guard(
        name="as many live in-sync copies remain as the target has",
        why="a copy is removed while another one is on a failed broker",
        module="raftlog/replication/election.py",
        function="next_step",
        change=drop("compare len #2/2"),
        tests=(
            f"{STEPS}::test_nothing_leaves_before_the_learner_is_in_sync",
            f"{STEPS}::test_a_copy_of_a_failed_broker_does_not_count",
        ),
    ),
    Guard(
        name="a copy counts only while its broker is live",
        why="a copy is removed while another one is on a failed broker",
        module="raftlog/replication/election.py",
        function="next_step",
        change=replace("call is_live #2/2", "True"),
        tests=(f"{STEPS}::test_a_copy_of_a_failed_broker_does_not_count",),
    ),
    Guard(
        name="copies are added before one leaves",
        why="a partition has fewer copies while it moves",
        module="raftlog/replication/election.py",
        function="next_step",
        change=replace("call max", "len(target)"),
        tests=(f"{STEPS}::test_all_copies_of_a_smaller_target_are_added_before_one_leaves",),
    ),
    Guard(
        name="a new voter has a helper",
        why="the failure of a learner blocks all decisions of the partition",
        module="raftlog/replication/election.py",
        function="_with_odd_voters",
        change=always("if 2"),
        tests=(
            f"{STEPS}::test_a_new_voter_has_a_helper_until_a_copy_has_left",
            f"{SERVER}/test_moving.py::test_a_learner_that_fails_keeps_nothing_from_being_written",
        ),
    ),
    Guard(
        name="only replicas and witnesses vote",
        why="a broker votes before it is a replica, or a former one decides with the others",
        module="raftlog/replication/election.py",
        function="fitting_voters",
        change=replace("call sorted", "sorted({*state.replicas, *state.witnesses, *voters})"),
        tests=(f"{STEPS}::test_voters_are_the_members_and_a_new_one_has_to_be_connected",),
    ),
    Guard(
        name="a new voter has to be connected",
        why="a majority of the voters may never receive the new generation",
        module="raftlog/replication/election.py",
        function="fitting_voters",
        change=replace("if None", "fitting[broker] = directory or str(broker)"),
        tests=(f"{STEPS}::test_voters_are_the_members_and_a_new_one_has_to_be_connected",),
    ),
    Guard(
        name="a step waits until the voters fit the last one",
        why="two generations may share too few voters: none of the new ones has the seal",
        module="raftlog/server/cluster/controller.py",
        function="PartitionController._upkeep",
        change=never("if _next_voters"),
        tests=(
            f"{SERVER}/test_controller.py::test_a_move_goes_step_by_step_and_ends_in_the_clusters_state",
        ),
    ),
    Guard(
        name="a former voter keeps its generation",
        why="the voters of the first generation elect a leader again, in an older generation",
        module="raftlog/server/cluster/replicas.py",
        function="Partitions._is_missing",
        change=value("return _plane", "False"),
        tests=(
            f"{SERVER}/test_replicas.py::test_a_former_voter_opens_the_group_that_its_journal_has",
        ),
    ),
    Guard(
        name="a leader that no majority can help rejects appends",
        why="records wait for a lost replica until they time out, with an unknown outcome",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._obstacle",
        change=drop("if _hears_majority"),
        tests=(f"{ROLES}::test_appends_continue_while_the_group_elects_a_leader",),
    ),
    Guard(
        name="a former voter deletes its copy after the seal",
        why="a copy is deleted while the broker still votes as a replica",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._may_delete",
        change=never("call _has_vote"),
        tests=(f"{ROLES}::test_a_copy_of_a_former_voter_goes_after_the_seal",),
    ),
    Guard(
        name="a former voter deletes its copy without a vote",
        why="the copy of a broker that was down when it was removed is never deleted",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._set_role",
        change=always("call _has_vote"),
        tests=(f"{ROLES}::test_a_former_voter_that_was_down_deletes_its_copy_without_a_vote",),
    ),
    Guard(
        name="without a vote, the cluster's newer state decides which brokers are replicas",
        why="a broker that lost its disk when it was removed keeps a copy permanently",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._is_replica",
        change=never("if version"),
        tests=(f"{ROLES}::test_without_a_vote_the_clusters_newer_state_counts",),
    ),
    Guard(
        name="a former voter that is a replica again keeps its copy",
        why="a copy that counts is deleted by a broker with an outdated state",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._set_role",
        change=never("call _has_vote"),
        tests=(f"{ROLES}::test_a_voter_with_an_outdated_state_keeps_its_copy",),
    ),
    Guard(
        name="a move is made for one assignment",
        why="a late or concurrent request moves replicas that another one has placed",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._target",
        change=never("if expected"),
        tests=(
            f"{STATE}::test_moves_that_cannot_be_are_refused",
            f"{STATE}::test_a_move_replaces_only_the_one_that_it_expects",
        ),
    ),
    Guard(
        name="no automatic replacement while replicas move",
        why="two mechanisms change the replicas of a partition in turns, without an end",
        module="raftlog/server/cluster/controller.py",
        function="PartitionController._upkeep",
        change=always("if target"),
        tests=(
            f"{SERVER}/test_controller.py::test_a_failed_replica_is_not_replaced_while_replicas_move",
        ),
    ),
    Guard(
        name="a copy that reaches the high watermark is not throttled",
        why="a replica that is in sync, or joins the ISR, holds back acknowledgements",
        module="raftlog/server/cluster/fetcher.py",
        function="MoveThrottle.must_wait",
        change=drop("compare log_end_offset"),
        tests=(
            f"{SERVER}/test_fetcher.py::test_only_a_copy_that_a_move_adds_and_that_is_not_in_sync_is_throttled",
        ),
    ),
    Guard(
        name="copies that a move adds keep to the throttle",
        why="a move takes the network and the disks from clients",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._append",
        change=never("if must_wait"),
        tests=(
            f"{SERVER}/test_fetcher.py::test_only_a_copy_that_a_move_adds_and_that_is_not_in_sync_is_throttled",
            f"{SERVER}/test_moving.py::test_a_move_keeps_to_the_throttle_until_it_is_removed",
        ),
    ),
]
