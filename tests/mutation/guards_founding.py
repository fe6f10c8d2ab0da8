"""Guards of the foundation of a cluster, and of its recovery after a lost majority."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, calls, drop, never, replace, swap, value
from tests.mutation.guard import Guard

_FOUNDING: Final = "raftlog/server/cluster/membership.py"
_RECOVERY: Final = "raftlog/replication/election.py"
_RECOVERING: Final = "raftlog/server/cluster/recovery.py"
_PLANS: Final = "tests/replication/test_election.py"
_CLUSTER: Final = "tests/server/cluster/test_recovery.py"
_BROADCAST: Final = "tests/server/cluster/test_elections.py"
_STATE: Final = "tests/replication/test_cluster_state.py"
_TESTS: Final = "tests/server/cluster/test_membership.py"

GUARDS: Final = [
    Guard(
        name="a cluster is founded once every voter was seen",
        why="two empty disks are a majority of three: a second cluster without topics",
        module=_FOUNDING,
        function="next_step",
        change=value("if Await", "len(_) > 1"),
        tests=(f"{_TESTS}::test_two_lost_disks_join_the_third_and_found_nothing",),
    ),
    Guard(
        name="a broker that sees a cluster does not found one",
        why=("an empty disk and the operator's command create a second cluster next to a live one"),
        module=_FOUNDING,
        function="next_step",
        change=never("if cluster_id"),
        tests=(f"{_TESTS}::test_who_sees_a_cluster_joins_it",),
    ),
    Guard(
        name="one broker founds the cluster",
        why="two brokers found one each at the same moment",
        module=_FOUNDING,
        function="next_step",
        change=value("if AwaitFounder", "_.left.value[-1] < _.comparators[0]"),
        tests=(
            (f"{_TESTS}::test_the_first_voter_founds_once_all_are_seen_and_none_was_in_a_cluster"),
        ),
    ),
    Guard(
        name="a state of another cluster is not taken over",
        why="a broker that met two clusters forgets the one it belongs to",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._checked",
        change=never("if cluster_id"),
        tests=("tests/replication/test_cluster_state.py::test_a_cluster_is_named_once",),
    ),
    Guard(
        name="a broker's own state is checked again when the link is established",
        why="a broker counts as one without a cluster although it has joined one",
        module="raftlog/server/peers/links.py",
        function="Peering.admit",
        change=value("if BrokerUnavailableError", "_.left.broker_id != _.comparators[0].broker_id"),
        tests=(
            (
                "tests/server/peers/test_links.py"
                "::test_an_answer_that_is_out_of_date_brings_no_connection_about"
            ),
        ),
    ),
    Guard(
        name="brokers with other voters do not work together",
        why="a broker with a wrong list becomes a separate cluster",
        module="raftlog/protocol/security.py",
        function="check_cluster",
        change=swap("compare voters", ">"),
        tests=("tests/protocol/test_security.py::test_another_list_of_voters_is_another_cluster",),
    ),
    Guard(
        name="a survivor is a directory",
        why="two empty disks with links count as a majority: recovery does nothing",
        module=_RECOVERY,
        function="group_loss",
        change=replace("compare get", "_.left.args[0] not in _.left.func.value"),
        tests=(f"{_PLANS}::test_directories_count_and_not_links",),
    ),
    Guard(
        name="brokers without a vote keep the state of the cluster",
        why="one wiped disk of a cluster of two deletes every topic",
        module="raftlog/server/cluster/node.py",
        function="ClusterNode._poll",
        change=drop("call poll _state_copy"),
        tests=(f"{_CLUSTER}::test_a_broker_without_a_vote_goes_on_when_no_voter_is_left",),
    ),
    Guard(
        name="a broker that has never joined keeps no state of the cluster",
        why="a recovery there makes a second cluster that the first one never meets",
        module="raftlog/server/cluster/state_copy.py",
        function="StateCopy.newest",
        change=always("call _is_member"),
        tests=("tests/server/cluster/test_state_copy.py",),
    ),
    Guard(
        name="the newest copy of the cluster's state counts",
        why="topics are deleted that a running broker knows",
        module=_RECOVERING,
        function="Recovery.recover",
        change=never("if _forward"),
        tests=(f"{_CLUSTER}::test_the_newest_copy_of_the_state_counts_when_no_voter_is_left",),
    ),
    Guard(
        name="without a majority a partition needs the operator's word",
        why="acknowledged records that the survivor lacks are lost without an error",
        module=_RECOVERY,
        function="plan",
        change=value("if has_majority Nothing", "_.values[0]"),
        tests=(
            f"{_PLANS}::test_a_recovery_without_a_majority_names_every_directory_that_it_gives_up",
        ),
    ),
    Guard(
        name="a partition with a leader is not recovered",
        why="a survivor reaches both sides, and what the living majority acknowledges is lost",
        module=_RECOVERY,
        function="plan",
        change=never("if led"),
        tests=(f"{_PLANS}::test_a_broker_that_has_contact_with_the_leader_forbids_a_recovery",),
    ),
    Guard(
        name="a cluster with a leader is not recovered",
        why="a survivor reaches both sides, and topics of the living majority are deleted",
        module=_RECOVERING,
        function="Recovery.recover",
        change=never("if led"),
        tests=(f"{_CLUSTER}::test_who_reaches_both_sides_forbids_the_recovery",),
    ),
    Guard(
        name="a leader without a majority forbids no recovery",
        why="the survivor that led can never be recovered",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup.leader_in_contact",
        change=never("if is_leader"),
        tests=(
            "tests/consensus/test_hosted_group.py::test_a_journal_says_what_is_in_it_committed_or_not",
        ),
    ),
    Guard(
        name="every directory that is given up has to be declared lost",
        why="a broker that only failed to respond comes back with its votes and records",
        module=_RECOVERING,
        function="Recovery.recover",
        change=never("operand keys"),
        tests=(f"{_CLUSTER}::test_nothing_is_done_without_the_operators_whole_word[one of two]",),
    ),
    Guard(
        name="a directory of another broker is not given up after the word was given",
        why="a broker that failed between the plan and its execution is given up unseen",
        module=_RECOVERING,
        function="Recovery._recover_partition",
        change=always("operand keys"),
        tests=(f"{_CLUSTER}::test_a_loss_that_came_after_the_operators_word_is_not_accepted",),
    ),
    Guard(
        name="a broker that runs is not declared lost",
        why="a typing error ends a healthy broker for ever",
        module=_RECOVERING,
        function="Recovery._check_declared",
        change=never("if is_linked"),
        tests=(f"{_CLUSTER}::test_only_a_broker_that_does_not_run_can_be_declared_lost",),
    ),
    Guard(
        name="a majority of the cluster notes which directories are lost",
        why="the lost one comes back, and votes in a group that has gone on without it",
        module=_RECOVERING,
        function="Recovery.recover",
        change=drop("call _commit"),
        tests=(f"{_CLUSTER}::test_a_directory_is_lost_though_the_cluster_has_its_majority",),
    ),
    Guard(
        name="a lost directory is refused",
        why="its votes and records belong to a history that was given up",
        module="raftlog/server/cluster/node.py",
        function="ClusterNode._check_peer",
        change=never("if lost"),
        tests=(f"{_CLUSTER}::test_who_was_declared_lost_stops_and_may_return_with_an_empty_disk",),
    ),
    Guard(
        name="a living majority does not accept a recovery",
        why="a minority, forced by mistake, deletes what the majority has acknowledged",
        module="raftlog/server/cluster/node.py",
        function="ClusterNode._check_peer",
        change=never("if _is_in_majority"),
        tests=(
            f"{_CLUSTER}::test_a_living_majority_does_not_accept_the_recovery_of_a_minority",
            f"{_CLUSTER}::test_a_living_majority_goes_on_though_both_sides_declared_the_other_lost",
        ),
    ),
    Guard(
        name="a living majority does not stop at the word of a minority",
        why="the claim of a single broker ends the whole cluster",
        module="raftlog/server/cluster/node.py",
        function="ClusterNode._check_claims",
        change=value("if _is_in_majority", "_.values[0]"),
        tests=(
            f"{_CLUSTER}::test_a_living_majority_goes_on_though_both_sides_declared_the_other_lost",
        ),
    ),
    Guard(
        name="a restored state has no changes since nothing",
        why="a broker with an empty disk is told that there is no news, and never joins",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._replace",
        change=calls("call ClusterChanges", "(lambda _version: ClusterChanges())"),
        tests=(f"{_STATE}::test_who_knows_nothing_needs_a_state_also_after_a_restored_one",),
    ),
    Guard(
        name="states of another history are ignored",
        why="metadata of a recovery that the cluster refused hides all later states",
        module="raftlog/server/cluster/elections.py",
        function="StateBroadcast.receive",
        change=never("if _recovery"),
        tests=(f"{_BROADCAST}::test_states_of_another_history_are_ignored",),
    ),
    Guard(
        name="two recoveries of one state stop both sides",
        why="one generation number has two histories, and nothing says so",
        module="raftlog/server/cluster/node.py",
        function="ClusterNode._admit",
        change=never("if 'diverged'"),
        tests=(f"{_CLUSTER}::test_two_sides_that_gave_up_each_other_both_stop",),
    ),
    Guard(
        name="a lost directory never registers again",
        why="a broker without a link to those that know it gets votes and copies",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._register",
        change=never("if DeclaredLostError"),
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_lost_directory_never_registers_again_and_a_new_one_may"
            ),
        ),
    ),
    Guard(
        name="a copy that is not open yet is waited for",
        why="an empty disk leads instead of the only copy, whose broker has just started",
        module=_RECOVERY,
        function="plan",
        change=never("if directory_id"),
        tests=(f"{_PLANS}::test_a_member_that_has_not_opened_its_copy_is_waited_for",),
    ),
    Guard(
        name="a broker that has just gone may return before a loss",
        why="records are given up that a restarting broker has",
        module="raftlog/server/cluster/recovery.py",
        function="Recovery._survey_all",
        change=drop("await _until"),
        tests=("tests/server/cluster/test_recovery.py::test_a_loss_waits_for_who_has_just_gone",),
    ),
    Guard(
        name="a recovery does not revert another one",
        why="what was committed between two requests of an operator is lost",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup.force",
        change=drop("if generation"),
        tests=(
            (
                "tests/consensus/test_hosted_group.py"
                "::test_a_recovery_that_was_planned_before_another_one_reverts_nothing"
            ),
        ),
    ),
    Guard(
        name="a recovery succeeds once it is durable",
        why="a power failure reverts a recovery that the operator saw succeed: no leader",
        module="raftlog/server/cluster/recovery.py",
        function="Recovery.revive",
        change=drop("call _until"),
        tests=(
            (
                "tests/server/cluster/test_recovery.py"
                "::test_a_recovery_ends_when_a_power_failure_cannot_revert_it"
            ),
        ),
    ),
    Guard(
        name="a copy that may lack its end needs the operator's consent",
        why="a torn copy leads as if it were complete, and acknowledged records are lost",
        module=_RECOVERY,
        function="plan",
        change=calls("call _is_complete", "_can_lead"),
        tests=(
            f"{_PLANS}::test_a_copy_that_may_lack_its_end_needs_the_operators_word_though_a_majority_votes",
        ),
    ),
    Guard(
        name="a torn copy can lead in a recovery",
        why="an empty disk leads instead, and all records of the partition are lost",
        module="raftlog/server/cluster/recovery.py",
        function="_with_copy",
        change=argument("call replace damage", "damage", "log.damage"),
        tests=(f"{_CLUSTER}::test_a_torn_copy_goes_on_with_what_it_has",),
    ),
    Guard(
        name="the newest journal of the voters counts",
        why="a replica that had left the ISR leads, although another one is complete",
        module=_RECOVERY,
        function="group_loss",
        change=calls("call max", "min"),
        tests=(f"{_PLANS}::test_the_newest_journal_says_who_is_in_sync",),
    ),
    Guard(
        name="the cluster group needs the operator's confirmation",
        why=(
            "topics that were created while the survivor was down are lost, and their "
            "records removed"
        ),
        module="raftlog/server/cluster/recovery.py",
        function="Recovery.recover",
        change=never("operand accept_loss"),
        tests=(f"{_CLUSTER}::test_nothing_is_done_without_the_operators_whole_word[who is lost]",),
    ),
    Guard(
        name="a loss that was not shown is refused",
        why="another disk fails before the operator agrees, and what it had is lost unseen",
        module=_RECOVERING,
        function="Recovery.recover",
        change=never("compare loss_id"),
        tests=(f"{_CLUSTER}::test_the_operators_word_is_for_the_loss_that_was_shown",),
    ),
    Guard(
        name="a partition whose loss was not shown is not recovered",
        why="the loss of a copy between the plan and its execution is accepted unseen",
        module=_RECOVERING,
        function="_is_accepted",
        change=always("compare _loss_of"),
        tests=(f"{_CLUSTER}::test_a_loss_that_came_after_the_operators_word_is_not_accepted",),
    ),
    Guard(
        name="an unclean leader's epoch is above any that was not seen",
        why="clients that know a newer epoch never follow",
        module=_RECOVERY,
        function="_above_unseen",
        change=argument("call replace", "leader_epoch", "_.keywords[1].value.left"),
        tests=(f"{_PLANS}::test_a_survivor_in_sync_may_have_left_the_isr_since",),
    ),
]
