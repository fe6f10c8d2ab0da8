"""Guards of the roles of copies, of copies that are damaged, and of who is there."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, drop, never, replace, value
from tests.mutation.guard import Guard

ROLES: Final = [
    Guard(
        name="a leader is on the disk that was elected",
        why="a broker that came back with an empty disk leads (S20, S21)",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._is_elected",
        change=drop("compare directory_id"),
        tests=(
            (
                "tests/server/cluster/test_role_manager.py"
                "::test_it_does_not_lead_what_an_earlier_run_or_another_was_elected_for"
            ),
        ),
    ),
    Guard(
        name="a leader is in the run that was elected",
        why="a leader that was killed goes on in its epoch with less than it had (S17)",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._is_elected",
        change=drop("compare boot"),
        tests=(
            (
                "tests/server/cluster/test_role_manager.py"
                "::test_it_does_not_lead_what_an_earlier_run_or_another_was_elected_for"
            ),
        ),
    ),
    Guard(
        name="a damaged copy does not lead",
        why="a leader serves a log with a hole in it",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._set_role",
        change=value("if _lead", "_.values[0]"),
        tests=(
            "tests/server/cluster/test_role_manager.py::test_a_damaged_copy_neither_leads_nor_copies",
        ),
    ),
    Guard(
        name="a damaged copy does not follow",
        why="a damaged replica acknowledges",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._follow",
        change=drop("operand not"),
        tests=(
            "tests/server/cluster/test_role_manager.py::test_a_damaged_copy_neither_leads_nor_copies",
        ),
    ),
    Guard(
        name="a leader that hears nobody decides nothing",
        why="one to which nothing comes makes itself the only one that may lead, and is cut off",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager.review",
        change=replace("call _hears_who_decides", "True"),
        tests=(
            (
                "tests/server/cluster/test_role_manager.py"
                "::test_nobody_leaves_by_the_word_of_a_leader_to_which_nothing_comes"
            ),
        ),
    ),
    Guard(
        name="a leader without room hands over",
        why="nothing is acknowledged for as long as one disk is full (S31)",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._lead",
        change=drop("call _give_way"),
        tests=(
            "tests/server/cluster/test_step_down.py::test_a_leader_without_room_hands_over_in_a_while",
        ),
    ),
    Guard(
        name="a follower without room leaves the ISR",
        why="the new leader commits nothing until the full one has lagged for long enough (S31)",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._follow",
        change=drop("call _give_way"),
        tests=(
            (
                "tests/server/cluster/test_step_down.py"
                "::test_a_follower_without_room_leaves_before_it_lags_for_long"
            ),
        ),
    ),
    Guard(
        name="giving way in vain is ever rarer",
        why="where all disks are full, leadership goes round and round",
        module="raftlog/server/hindrance.py",
        function="Hindrance.gave_way",
        change=drop("assign _in_vain"),
        tests=(
            (
                "tests/server/cluster/test_step_down.py"
                "::test_where_all_are_full_leadership_moves_ever_more_seldom"
            ),
        ),
    ),
    Guard(
        name="a leader whose disk hangs hands over",
        why="a leader whose disk hangs leads for ever, and nothing is acknowledged (S36)",
        module="raftlog/server/partition.py",
        function="Partition.must_give_way",
        change=drop("attribute is_hung"),
        tests=(
            (
                "tests/server/cluster/test_step_down.py"
                "::test_a_leader_whose_disk_hangs_hands_over_at_once"
            ),
        ),
    ),
    Guard(
        name="a leader whose disk trails hands over",
        why="every record waits for the slowest disk, the leader's, for ever (S36)",
        module="raftlog/server/partition.py",
        function="Partition.must_give_way",
        change=value("assign is_hung", "_.values[0]"),
        tests=(
            (
                "tests/server/cluster/test_step_down.py"
                "::test_a_leader_whose_disk_trails_the_others_hands_over"
            ),
        ),
    ),
    Guard(
        name="nobody waits for a disk that hangs",
        why="where nobody else can lead, producers wait for ever for an answer",
        module="raftlog/server/partition.py",
        function="Partition.disk_hangs",
        change=drop("call refuse _waiting_for_disk", "call refuse _waiting_for_commit"),
        tests=("tests/server/test_partition.py::test_nobody_waits_for_a_disk_that_hangs",),
    ),
    Guard(
        name="a disk is tried while other work on it takes long",
        why="a disk that hangs is not noticed while no log is synced",
        module="raftlog/server/broker.py",
        function="Broker._keep_time",
        change=drop("attribute is_in_doubt"),
        tests=(
            (
                "tests/testing/simulator/test_regressions.py"
                "::test_a_disk_that_hangs_is_noticed_though_no_log_is_synced"
            ),
        ),
    ),
    Guard(
        name="a process that slept has not waited for its disk",
        why="a broker that was stopped for a while ends for a journal that was never slow",
        module="raftlog/server/disk_watch.py",
        function="DiskWatch.start.look",
        change=replace("call min", "_.args[0]"),
        tests=(
            "tests/server/test_disk_watch.py::test_a_process_that_slept_has_not_waited_for_its_disk",
        ),
    ),
    Guard(
        name="a broker whose journal hangs ends",
        why="it leads what it can hand over to nobody, for as long as its disk hangs (S36)",
        module="raftlog/server/broker.py",
        function="Broker._while_disk_hangs",
        change=never("attribute is_journal_hung"),
        tests=(
            "tests/testing/simulator/test_regressions.py::test_a_broker_whose_journal_hangs_ends",
        ),
    ),
    Guard(
        name="a broker whose journal hangs stays where nobody could go on",
        why="the last broker of a cluster ends, and with it what can be read",
        module="raftlog/server/broker.py",
        function="Broker._while_disk_hangs",
        change=drop("if can_others_decide"),
        tests=(
            (
                "tests/testing/simulator/test_regressions.py"
                "::test_a_broker_whose_journal_hangs_stays_where_nobody_could_go_on"
            ),
        ),
    ),
    Guard(
        name="a role never goes back an epoch",
        why="a broker takes an old role while its journal is replayed",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._set_role",
        change=never("if closed"),
        tests=("tests/server/cluster/test_role_manager.py::test_an_older_state_changes_nothing",),
    ),
    Guard(
        name="after a start a state has to be current",
        why="a replica follows a leader of long ago, and cuts what it has to keep",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._set_role",
        change=value("if _follow", "_.args[0]"),
        tests=(
            (
                "tests/server/cluster/test_role_manager.py"
                "::test_nobody_is_followed_before_it_is_known_what_the_last_run_acted_on"
            ),
        ),
    ),
    Guard(
        name="a state is current once something was applied",
        why="a proposal that came to nothing counts as news",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._is_current.done",
        change=value("if Applied", "_.args[0]"),
        tests=(
            "tests/server/cluster/test_role_manager.py::test_that_is_asked_again_but_not_at_once",
        ),
    ),
    Guard(
        name="a copy is dropped when the cluster agrees, too",
        why="a copy that is still counted on is removed",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager.may_drop",
        change=drop("compare _broker_id"),
        tests=(
            (
                "tests/server/cluster/test_role_manager.py"
                "::test_a_copy_goes_when_the_cluster_too_knows_that_it_is_no_replicas"
            ),
        ),
    ),
    Guard(
        name="an unknown outcome stays in doubt",
        why="an ISR change that was applied is taken for rejected (S07)",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager.review.done",
        change=argument("call proposal_done", 1, "_.args[1].orelse"),
        tests=(
            (
                "tests/server/cluster/test_role_manager.py"
                "::test_a_change_whose_outcome_is_not_known_is_proposed_as_it_was"
            ),
        ),
    ),
    Guard(
        name="a damaged copy leaves the ISR before it goes",
        why="a broker without its copy is elected, or counted (P6)",
        module="raftlog/server/cluster/damage.py",
        function="next_step",
        change=value("if leader_epoch", "_.values[2]"),
        tests=(
            (
                "tests/server/cluster/test_damage.py"
                "::test_nothing_is_set_aside_before_that_is_agreed_on"
            ),
        ),
    ),
    Guard(
        name="a damaged copy that is a member again stays",
        why="a copy goes that is counted on",
        module="raftlog/server/cluster/damage.py",
        function="next_step",
        change=value("if SET_ASIDE", "_.values[0] and _.values[1]"),
        tests=(
            (
                "tests/server/cluster/test_damage.py"
                "::test_nothing_is_set_aside_that_was_made_a_member_again"
            ),
        ),
    ),
    Guard(
        name="a damaged copy says that it is lost",
        why="it leaves as one that may be elected (P6)",
        module="raftlog/server/cluster/damage.py",
        function="next_step",
        change=value("return ChangeIsr", "ChangeIsr(_.args[0], _.args[1], _.args[2], _.args[3])"),
        tests=(
            (
                "tests/server/cluster/test_damage.py"
                "::test_a_follower_says_that_its_copy_is_lost_whether_it_is_in_sync_or_not"
            ),
        ),
    ),
    Guard(
        name="a copy stays until a sound one leads",
        why="of two copies that may lack something, the longer one is given up",
        module="raftlog/server/cluster/damage.py",
        function="next_step",
        change=drop("if leader #2/2"),
        tests=(
            (
                "tests/server/cluster/test_damage.py"
                "::test_without_a_leader_whose_copy_is_sound_the_copy_stays"
            ),
        ),
    ),
    Guard(
        name="a copy in doubt leads only as the best that is left",
        why="leadership that is moved to it loses what the others hold",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager.is_to_settle",
        change=drop("compare leader_epoch"),
        tests=(
            (
                "tests/server/cluster/test_role_manager.py"
                "::test_a_copy_in_doubt_leads_only_if_it_was_elected_as_the_best_that_is_left"
            ),
        ),
    ),
    Guard(
        name="a copy is set aside only when it may be",
        why="the only whole copy is moved aside",
        module="raftlog/server/cluster/partitions.py",
        function="Partitions._work_off",
        change=drop("compare SET_ASIDE"),
        tests=(
            "tests/server/test_guards_copies.py::test_a_copy_that_counts_again_is_not_set_aside",
        ),
    ),
    Guard(
        name="a copy that does not fit is closed to reads",
        why="a replica that differs serves what was never committed",
        module="raftlog/server/cluster/partitions.py",
        function="Partitions.damaged",
        change=drop("call note_damage"),
        tests=(
            (
                "tests/server/cluster/test_copies.py"
                "::test_a_damaged_follower_leaves_sets_its_copy_aside_and_comes_back"
            ),
        ),
    ),
    Guard(
        name="a copy is dropped only by who is no replica",
        why="who became a replica again meanwhile loses its copy",
        module="raftlog/server/cluster/partitions.py",
        function="Partitions._work_off",
        change=value("if _drop_copy", "_.values[1]"),
        tests=(
            (
                "tests/server/test_guards_copies.py"
                "::test_a_copy_of_who_is_a_replica_again_is_not_dropped"
            ),
        ),
    ),
    Guard(
        name="topics that are not known are not strays at once",
        why="after a start, copies go that the cluster has not told of yet (S19)",
        module="raftlog/server/cluster/partitions.py",
        function="Partitions._drop_strays",
        change=value("if _machine", "_.left.args[0].value"),
        tests=(
            (
                "tests/server/cluster/test_partitions.py"
                "::test_copies_of_topics_that_are_gone_go_when_it_is_certain"
            ),
        ),
    ),
    Guard(
        name="a state of an older run names no leader",
        why="clients are sent to a leader of long ago",
        module="raftlog/server/cluster/partitions.py",
        function="Partitions.state_of",
        change=value("if _is_known", "_.args[0].state"),
        tests=(
            (
                "tests/server/cluster/test_partitions.py"
                "::test_a_state_from_before_the_start_names_no_leader"
            ),
        ),
    ),
    Guard(
        name="states that are told have versions",
        why="a broker without a vote goes back to an old leader",
        module="raftlog/server/cluster/state_broadcast.py",
        function="StateBroadcast.take",
        change=value("if told", "_.values[1].comparators[0].value is not None"),
        tests=(
            "tests/server/cluster/test_state_broadcast.py::test_the_version_that_counts_is_the_states_own",
        ),
    ),
    Guard(
        name="a fenced broker is not live",
        why="a broker is elected that the cluster has given up",
        module="raftlog/server/cluster/liveness.py",
        function="Liveness.is_live",
        change=drop("if _is_fenced"),
        tests=(
            (
                "tests/server/cluster/test_liveness.py"
                "::test_a_fenced_broker_is_not_live_however_near_it_is"
            ),
        ),
    ),
    Guard(
        name="a silent broker is fenced",
        why="a dead broker stays in sync for ever",
        module="raftlog/server/cluster/membership.py",
        function="Membership._fencing",
        change=never("if _session_seconds"),
        tests=(
            (
                "tests/server/cluster/test_membership.py"
                "::test_a_silent_broker_is_fenced_by_the_leader_after_a_sessions_time"
            ),
        ),
    ),
    Guard(
        name="a broker is let in when it serves",
        why="a broker is counted on whose logs are not open",
        module="raftlog/server/cluster/membership.py",
        function="Membership._wanted",
        change=drop("call _is_ready"),
        tests=(
            (
                "tests/server/cluster/test_membership.py"
                "::test_it_is_let_in_when_it_is_ready_and_looks_after_others_until_then"
            ),
        ),
    ),
    Guard(
        name="a registration is of this run",
        why="a restart is not seen, and its old promises are counted on (KIP-903)",
        module="raftlog/server/cluster/membership.py",
        function="Membership.is_registered",
        change=drop("compare boot"),
        tests=("tests/server/cluster/test_membership.py::test_it_registers_anew_in_each_run",),
    ),
    Guard(
        name="the replacement of a copy is retried",
        why="a disk that was full for a moment keeps the replica out until the broker restarts",
        module="raftlog/server/cluster/role_manager.py",
        function="RoleManager._set_role",
        change=drop("call _give_up"),
        tests=(
            (
                "tests/server/cluster/test_copies.py"
                "::test_a_full_disk_delays_the_replacement_of_a_copy_and_does_not_prevent_it"
            ),
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
                "::test_recovering_at_once_waits_until_it_is_known_who_is_gone"
            ),
        ),
    ),
]

GUARDS: Final = [*ROLES]
