"""Guards of replica roles, corrupt copies and broker liveness."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, drop, never, replace, value
from tests.mutation.guard import Guard

COPIES: Final = "tests/server/cluster/test_copies.py"
DAMAGE: Final = "tests/server/cluster/test_replicas.py"
GUARDS_COPIES: Final = "tests/server/test_guards.py"
MEMBERSHIP: Final = "tests/server/cluster/test_membership.py"
NODE: Final = "tests/server/cluster/test_node.py"
_AT_REST: Final = "test_partitions_at_rest_are_checked_rarely_and_at_once_when_something_happens"
PARTITIONS: Final = "tests/server/cluster/test_replicas.py"
REGRESSIONS: Final = "tests/simulation/test_regressions.py"
ROLE_MANAGER: Final = "tests/server/cluster/test_replicas.py"
STEP_DOWN: Final = "tests/server/cluster/test_upgrades.py"

ROLES: Final = [
    Guard(
        name="a leader is on the disk that was elected",
        why="a broker that restarted with an empty disk leads (S20, S21)",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._is_elected",
        change=drop("compare directory_id"),
        tests=(
            f"{ROLE_MANAGER}::test_it_does_not_lead_what_an_earlier_run_or_another_was_elected_for",
        ),
    ),
    Guard(
        name="a leader is in the incarnation that was elected",
        why="a leader that was killed continues in its epoch with fewer records (S17)",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._is_elected",
        change=drop("compare boot"),
        tests=(
            f"{ROLE_MANAGER}::test_it_does_not_lead_what_an_earlier_run_or_another_was_elected_for",
        ),
    ),
    Guard(
        name="a corrupt copy does not lead",
        why="a leader serves a log with a hole",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._set_role",
        change=value("if _lead", "_.values[0]"),
        tests=(f"{ROLE_MANAGER}::test_a_damaged_copy_neither_leads_nor_copies",),
    ),
    Guard(
        name="a corrupt copy does not follow",
        why="a corrupt replica acknowledges",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._follow",
        change=drop("operand not"),
        tests=(f"{ROLE_MANAGER}::test_a_damaged_copy_neither_leads_nor_copies",),
    ),
    Guard(
        name="a leader without incoming messages decides nothing",
        why=(
            "a leader that cannot receive makes itself the only eligible leader, and is "
            "isolated then"
        ),
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager.review",
        change=replace("call _hears_who_decides", "True"),
        tests=(
            f"{ROLE_MANAGER}::test_nobody_leaves_by_the_word_of_a_leader_to_which_nothing_comes",
        ),
    ),
    Guard(
        name="a leader with a full disk transfers leadership",
        why="nothing is acknowledged as long as one disk is full (S31)",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._lead",
        change=drop("call _step_down"),
        tests=(f"{STEP_DOWN}::test_a_leader_without_room_hands_over_in_a_while",),
    ),
    Guard(
        name="a follower with a full disk leaves the ISR",
        why="the new leader commits nothing until the full one has lagged long enough (S31)",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._follow",
        change=drop("call _step_down"),
        tests=(f"{STEP_DOWN}::test_a_follower_without_room_leaves_before_it_lags_for_long",),
    ),
    Guard(
        name="useless leadership transfers become rarer",
        why="where all disks are full, leadership rotates continuously",
        module="raftlog/server/disks.py",
        function="Hindrance.yielded",
        change=drop("assign _futile"),
        tests=(f"{STEP_DOWN}::test_where_all_are_full_leadership_moves_ever_more_seldom",),
    ),
    Guard(
        name="a leader whose disk hangs transfers leadership",
        why="it leads indefinitely, and nothing is acknowledged (S36)",
        module="raftlog/server/partition.py",
        function="Partition.must_yield",
        change=drop("attribute is_hung"),
        tests=(f"{STEP_DOWN}::test_a_leader_whose_disk_hangs_hands_over_at_once",),
    ),
    Guard(
        name="a leader whose disk is slow transfers leadership",
        why="every record waits for the slowest disk, the leader's (S36)",
        module="raftlog/server/partition.py",
        function="Partition.must_yield",
        change=value("assign is_hung", "_.values[0]"),
        tests=(f"{STEP_DOWN}::test_a_leader_whose_disk_trails_the_others_hands_over",),
    ),
    Guard(
        name="no producer waits for a disk that hangs",
        why="where no other broker can lead, producers wait indefinitely for a response",
        module="raftlog/server/partition.py",
        function="Partition.disk_hangs",
        change=drop("call refuse _waiting_for_disk", "call refuse _waiting_for_commit"),
        tests=("tests/server/test_partition.py::test_nobody_waits_for_a_disk_that_hangs",),
    ),
    Guard(
        name="a disk is probed during other long work",
        why="a disk that hangs is not noticed while no log is synced",
        module="raftlog/server/broker.py",
        function="Broker._keep_time",
        change=drop("attribute is_suspect"),
        tests=(f"{REGRESSIONS}::test_a_disk_that_hangs_is_noticed_though_no_log_is_synced",),
    ),
    Guard(
        name="a suspended process has not waited for its disk",
        why="a broker that was stopped temporarily ends for a journal that was never slow",
        module="raftlog/server/disks.py",
        function="DiskWatch.start.check",
        change=replace("call min", "_.args[0]"),
        tests=(
            "tests/server/test_broker.py::test_a_process_that_slept_has_not_waited_for_its_disk",
        ),
    ),
    Guard(
        name="a broker whose journal hangs ends",
        why="it leads groups that it cannot transfer as long as its disk hangs (S36)",
        module="raftlog/server/broker.py",
        function="Broker._while_disk_hangs",
        change=never("attribute is_journal_hung"),
        tests=(f"{REGRESSIONS}::test_a_broker_whose_journal_hangs_ends",),
    ),
    Guard(
        name="a broker whose journal hangs stays where no other could continue",
        why="the last broker of a cluster ends, and its records are unreadable",
        module="raftlog/server/broker.py",
        function="Broker._while_disk_hangs",
        change=drop("if can_others_decide"),
        tests=(f"{REGRESSIONS}::test_a_broker_whose_journal_hangs_stays_where_nobody_could_go_on",),
    ),
    Guard(
        name="a role never returns to an older epoch",
        why="a broker adopts an old role while its journal is replayed",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._set_role",
        change=never("if leader_epoch"),
        tests=(f"{ROLE_MANAGER}::test_an_older_state_changes_nothing",),
    ),
    Guard(
        name="after a start a state has to be current",
        why="a replica follows an old leader, and truncates what it must keep",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._set_role",
        change=value("if _follow", "_.args[0]"),
        tests=(
            (
                "tests/server/cluster/test_replicas.py"
                "::test_nobody_is_followed_before_it_is_known_what_the_last_run_acted_on"
            ),
        ),
    ),
    Guard(
        name="a state is current once something was applied",
        why="a rejected proposal counts as an update",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._is_current.done",
        change=value("if Applied", "_.args[0]"),
        tests=(f"{ROLE_MANAGER}::test_that_is_asked_again_but_not_at_once",),
    ),
    Guard(
        name="a copy is deleted only when the cluster agrees, too",
        why="a copy that still counts is deleted",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._may_delete",
        change=never("if _broker_id"),
        tests=(
            f"{ROLE_MANAGER}::test_a_copy_goes_when_the_cluster_too_knows_that_it_is_no_replicas",
        ),
    ),
    Guard(
        name="an unknown outcome stays in doubt",
        why="an ISR change that was applied counts as rejected (S07)",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager.review.done",
        change=argument("call proposal_done", 1, "_.args[1].orelse"),
        tests=(f"{ROLE_MANAGER}::test_a_change_whose_outcome_is_not_known_is_proposed_as_it_was",),
    ),
    Guard(
        name="a corrupt copy leaves the ISR before its deletion",
        why="a broker without its copy is elected, or counted (P6)",
        module="raftlog/server/cluster/replicas.py",
        function="next_step",
        change=value("if leader_epoch", "_.values[2]"),
        tests=(f"{DAMAGE}::test_nothing_is_set_aside_before_that_is_agreed_on",),
    ),
    Guard(
        name="a corrupt copy that is a member again stays",
        why="a copy that counts is deleted",
        module="raftlog/server/cluster/replicas.py",
        function="next_step",
        change=value("if REPLACE", "_.values[0] and _.values[1]"),
        tests=(f"{DAMAGE}::test_nothing_is_set_aside_that_was_made_a_member_again",),
    ),
    Guard(
        name="a corrupt copy is reported as lost",
        why="it leaves as eligible for election (P6)",
        module="raftlog/server/cluster/replicas.py",
        function="next_step",
        change=value("return ChangeIsr", "ChangeIsr(_.args[0], _.args[1], _.args[2], _.args[3])"),
        tests=(
            f"{DAMAGE}::test_a_follower_says_that_its_copy_is_lost_whether_it_is_in_sync_or_not",
        ),
    ),
    Guard(
        name="a copy stays until a complete one leads",
        why="of two copies that may lack records, the longer one is deleted",
        module="raftlog/server/cluster/replicas.py",
        function="next_step",
        change=drop("if leader #2/2"),
        tests=(f"{DAMAGE}::test_without_a_leader_whose_copy_is_sound_the_copy_stays",),
    ),
    Guard(
        name="a copy in doubt leads only if it is the best remaining one",
        why="leadership moves to it, and records that the others hold are lost",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._must_accept",
        change=drop("compare leader_epoch"),
        tests=(
            (
                "tests/server/cluster/test_replicas.py"
                "::test_a_copy_in_doubt_leads_only_if_it_was_elected_as_the_best_that_is_left"
            ),
        ),
    ),
    Guard(
        name="a copy is quarantined only with permission",
        why="the only complete copy is quarantined",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager.copy_change",
        change=drop("compare REPLACE"),
        tests=(f"{GUARDS_COPIES}::test_a_copy_that_counts_again_is_not_set_aside",),
    ),
    Guard(
        name="a copy that differs rejects reads",
        why="a replica that differs serves records that were never committed",
        module="raftlog/server/cluster/replicas.py",
        function="Partitions.damaged",
        change=drop("call note_damage"),
        tests=(f"{COPIES}::test_a_damaged_follower_leaves_sets_its_copy_aside_and_comes_back",),
    ),
    Guard(
        name="only a broker that is no replica deletes its copy",
        why="a broker that became a replica again loses its copy",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager.copy_change",
        change=drop("operand not"),
        tests=(f"{GUARDS_COPIES}::test_a_copy_of_who_is_a_replica_again_is_not_dropped",),
    ),
    Guard(
        name="unknown topics are not strays immediately",
        why="after a start, copies are deleted whose topics are not received yet (S19)",
        module="raftlog/server/cluster/replicas.py",
        function="Partitions._delete_strays",
        change=value("if _machine", "_.left.args[0].value"),
        tests=(f"{PARTITIONS}::test_copies_of_topics_that_are_gone_go_when_it_is_certain",),
    ),
    Guard(
        name="a state of an older incarnation names no leader",
        why="clients are sent to an old leader",
        module="raftlog/server/cluster/replicas.py",
        function="Partitions.state_of",
        change=value("if _is_known", "_.args[0].state"),
        tests=(f"{PARTITIONS}::test_a_state_from_before_the_start_names_no_leader",),
    ),
    Guard(
        name="broadcast states have versions",
        why="a broker without a vote returns to an old leader",
        module="raftlog/server/cluster/elections.py",
        function="StateBroadcast.receive",
        change=value("if received", "_.values[1].comparators[0].value is not None"),
        tests=(
            "tests/server/cluster/test_elections.py::test_the_version_that_counts_is_the_states_own",
        ),
    ),
    Guard(
        name="a fenced broker is not live",
        why="a broker is elected that the cluster has fenced",
        module="raftlog/server/cluster/membership.py",
        function="Liveness.is_live",
        change=drop("if _is_fenced"),
        tests=(
            (
                "tests/server/cluster/test_membership.py"
                "::test_a_fenced_broker_is_not_live_however_near_it_is"
            ),
        ),
    ),
    Guard(
        name="an unresponsive broker is fenced",
        why="a failed broker stays in sync indefinitely",
        module="raftlog/server/cluster/membership.py",
        function="Membership._fencing",
        change=never("if _session_seconds"),
        tests=(
            f"{MEMBERSHIP}::test_a_silent_broker_is_fenced_by_the_leader_after_a_sessions_time",
        ),
    ),
    Guard(
        name="a broker is unfenced when it serves",
        why="a broker counts whose logs are not open",
        module="raftlog/server/cluster/membership.py",
        function="Membership._wanted",
        change=drop("call _is_ready"),
        tests=(
            f"{MEMBERSHIP}::test_it_is_let_in_when_it_is_ready_and_looks_after_others_until_then",
        ),
    ),
    Guard(
        name="a registration is of this incarnation",
        why="a restart goes unnoticed, and its old acknowledgements count (KIP-903)",
        module="raftlog/server/cluster/membership.py",
        function="Membership.is_registered",
        change=drop("compare boot"),
        tests=(f"{MEMBERSHIP}::test_it_registers_anew_in_each_run",),
    ),
    Guard(
        name="the replacement of a copy is retried",
        why="a disk that was full for a moment keeps the replica out until the broker restarts",
        module="raftlog/server/cluster/replicas.py",
        function="RoleManager._set_role",
        change=drop("call _release_copy"),
        tests=(
            f"{COPIES}::test_a_full_disk_delays_the_replacement_of_a_copy_and_does_not_prevent_it",
        ),
    ),
    Guard(
        name="a recovery fences the lost brokers",
        why="a topic that is created next gives votes to data directories that no longer exist, "
        "and has no leader",
        module="raftlog/server/cluster/recovery.py",
        function="Recovery.recover",
        change=drop("call _fence"),
        tests=(
            (
                "tests/server/cluster/test_recovery.py"
                "::test_a_recovery_fences_the_lost_brokers_before_their_sessions_end"
            ),
        ),
    ),
]

REST: Final = [
    Guard(
        name="a partition at rest is checked again",
        why="what lasts for some time without an event is never found",
        module="raftlog/server/cluster/elections.py",
        function="HostedPartition.is_at_rest",
        change=drop("compare REST_SECONDS"),
        tests=(f"{NODE}::{_AT_REST}",),
    ),
    Guard(
        name="a partition with a problem is not at rest",
        why="a leader without disk space is replaced seconds later",
        module="raftlog/server/partition.py",
        function="Partition.is_at_rest",
        change=replace("or is_held_up", "False"),
        tests=(f"{NODE}::{_AT_REST}",),
    ),
]

FIRST_STATES: Final = [
    Guard(
        name="an earlier incarnation can have led without a term",
        why="a replica that lost acknowledged records accepts its copy as complete",
        module="raftlog/server/cluster/replicas.py",
        function="Partitions._open_group",
        change=value("assign leader_boot", "True"),
        tests=(f"{REGRESSIONS}::test_a_leader_that_restarts_does_not_trust_the_first_state",),
    ),
]

GUARDS: Final = [*ROLES, *REST, *FIRST_STATES]
