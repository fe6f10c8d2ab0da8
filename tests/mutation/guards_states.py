"""Guards of the state of a partition's Raft group, and of its controller's proposals."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, drop, move, never, replace, swap, value
from tests.mutation.guard import Guard

ELECTION: Final = "tests/replication/test_election.py"
PARTITION_STATE: Final = "tests/replication/test_partition_state.py"
PARTITIONS: Final = "tests/server/cluster/test_replicas.py"
RECORDS: Final = "tests/replication/test_cluster_records.py"

STATES: Final = [
    Guard(
        name="the first leader has an epoch of its own",
        why="the next leader has the same epoch, and two logs differ in it",
        module="raftlog/replication/partition_state.py",
        function="initial_state",
        change=argument("call PartitionState", "leader_epoch", "0"),
        tests=(
            f"{PARTITION_STATE}::test_a_partition_with_a_first_leader_is_as_if_it_had_elected_it",
        ),
    ),
    Guard(
        name="later partitions record the incarnations of their own time",
        why="brokers that receive the topic in a snapshot start a group from another state",
        module="raftlog/replication/cluster_commands.py",
        function="joined",
        change=drop("operand boots items", "compare boots #2/2"),
        tests=(
            "tests/replication/test_cluster_records.py::test_another_incarnation_begins_an_era",
        ),
    ),
    Guard(
        name="the first leader is known to the incarnations of the creation only",
        why="a broker that restarts names a leader that others have replaced",
        module="raftlog/server/cluster/replicas.py",
        function="Partitions._open_group",
        change=value("assign _broker_id", "bool(birth.boots)"),
        tests=(f"{PARTITIONS}::test_another_incarnation_does_not_know_the_first_leader",),
    ),
    Guard(
        name="commands are for one version",
        why="a late proposal reverts a newer decision (S08)",
        module="raftlog/replication/partition_state.py",
        function="apply",
        change=never("if version"),
        tests=(f"{PARTITION_STATE}::test_a_command_for_another_version_is_rejected",),
    ),
    Guard(
        name="every change is a new version",
        why="two proposals for one state are both accepted",
        module="raftlog/replication/partition_state.py",
        function="apply",
        change=argument("call replace", "version", "_.keywords[0].value.left"),
        tests=(f"{PARTITION_STATE}::test_every_accepted_command_makes_the_next_version",),
    ),
    Guard(
        name="the ISR is changed in the leader's own epoch",
        why="a leader that was deposed changes the ISR of its successor",
        module="raftlog/replication/partition_state.py",
        function="_change_isr",
        change=never("if leader_epoch"),
        tests=(f"{PARTITION_STATE}::test_an_isr_change_of_another_leader_epoch_is_rejected",),
    ),
    Guard(
        name="the leader is in the ISR",
        why="what the leader has need not be what is committed",
        module="raftlog/replication/partition_state.py",
        function="_change_isr",
        change=value("if leader", "not _.values[1].left.func.value"),
        tests=(f"{PARTITION_STATE}::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="only replicas are in the ISR",
        why="a witness, which stores nothing, counts as a copy (I10)",
        module="raftlog/replication/partition_state.py",
        function="_change_isr",
        change=value("if sorted #1/2", "_ is None"),
        tests=(f"{PARTITION_STATE}::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="a copy is in sync or lost",
        why="a lost copy counts for a commit (P6)",
        module="raftlog/replication/partition_state.py",
        function="_change_isr",
        change=value("if keys", "_.left is None"),
        tests=(f"{PARTITION_STATE}::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="a lost copy is not eligible",
        why="a broker that has lost its copy is elected (P6)",
        module="raftlog/replication/partition_state.py",
        function="_change_isr",
        change=value("assign keys #2/2", "_.right"),
        tests=(
            f"{PARTITION_STATE}::test_a_lost_copy_is_forgotten_and_the_epoch_fences_what_it_said",
        ),
    ),
    Guard(
        name="a lost copy ends the epoch",
        why="what it acknowledged before restores it to the ISR (P6)",
        module="raftlog/replication/partition_state.py",
        function="_change_isr",
        change=argument("call replace", 0, "_.args[0].body.args[0]"),
        tests=(
            f"{PARTITION_STATE}::test_a_lost_copy_is_forgotten_and_the_epoch_fences_what_it_said",
        ),
    ),
    Guard(
        name="min_isr is at least 1",
        why="a partition commits without any copy",
        module="raftlog/replication/partition_state.py",
        function="_change_isr",
        change=never("if min_isr"),
        tests=(f"{PARTITION_STATE}::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="only members of the ISR or ELR lead",
        why="a replica without committed records is elected, and they are lost",
        module="raftlog/replication/partition_state.py",
        function="_elect",
        change=never("if get #2/2"),
        tests=(
            f"{PARTITION_STATE}::test_who_is_not_in_the_isr_or_elr_on_that_disk_is_not_elected",
        ),
    ),
    Guard(
        name="a leader is elected with its directory",
        why="a broker that restarted with an empty disk leads (S20)",
        module="raftlog/replication/partition_state.py",
        function="_elect",
        change=value("if _without", "_.left.args[0] not in _.left.func.value"),
        tests=(
            f"{PARTITION_STATE}::test_who_is_not_in_the_isr_or_elr_on_that_disk_is_not_elected",
        ),
    ),
    Guard(
        name="an election is a new epoch",
        why="fetches and responses of the old leader's time count (S17)",
        module="raftlog/replication/partition_state.py",
        function="_elect",
        change=argument("call replace", "leader_epoch", "_.keywords[1].value.left"),
        tests=(f"{PARTITION_STATE}::test_a_member_of_the_isr_is_elected_and_the_isr_stays",),
    ),
    Guard(
        name="an unclean election is a new epoch",
        why="replicas keep what the new leader never had",
        module="raftlog/replication/partition_state.py",
        function="_elect_unclean",
        change=argument("call replace", "leader_epoch", "_.keywords[1].value.left"),
        tests=(f"{PARTITION_STATE}::test_an_unclean_election_takes_any_replica_and_only_that",),
    ),
    Guard(
        name="an election is for one incarnation of the leader",
        why="a leader that was killed continues with fewer records (S17)",
        module="raftlog/replication/partition_state.py",
        function="_elect",
        change=drop("keyword boot"),
        tests=(f"{PARTITION_STATE}::test_a_member_of_the_isr_is_elected_and_the_isr_stays",),
    ),
    Guard(
        name="a leader from the ELR is alone in the ISR",
        why="members of the ISR that lack what it has are counted",
        module="raftlog/replication/partition_state.py",
        function="_elect",
        change=value("assign _without", "({**_.elts[1].args[0].values[1], **_.elts[0]}, {})"),
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_member_of_the_elr_becomes_the_isr_alone_and_all_others_stay_eligible"
            ),
        ),
    ),
    Guard(
        name="those that leave a small ISR stay eligible",
        why=(
            "after the last member fails no broker can lead, although copies are complete (KIP-966)"
        ),
        module="raftlog/replication/partition_state.py",
        function="_elr_after",
        change=never("compare len"),
        tests=(f"{PARTITION_STATE}::test_who_leaves_an_isr_that_is_then_too_small_is_eligible",),
    ),
    Guard(
        name="the ELR is cleared when the ISR can commit",
        why="a replica that lacks committed records is elected",
        module="raftlog/replication/partition_state.py",
        function="_elr_after",
        change=value("return len", "_.body"),
        tests=(
            f"{PARTITION_STATE}::test_who_leaves_an_isr_that_is_large_enough_is_a_former_member",
        ),
    ),
    Guard(
        name="the leader is not removed",
        why="a partition has a leader that stores no records",
        module="raftlog/replication/partition_state.py",
        function="_change_replicas",
        change=swap("compare leader", "is"),
        tests=(f"{PARTITION_STATE}::test_a_change_that_drops_what_is_needed_is_rejected",),
    ),
    Guard(
        name="one member of the ISR is left",
        why="the last copy of committed records is removed",
        module="raftlog/replication/partition_state.py",
        function="_change_replicas",
        change=value("if not #2/2", "_.operand is None"),
        tests=(f"{PARTITION_STATE}::test_a_change_that_drops_what_is_needed_is_rejected",),
    ),
    Guard(
        name="required copies are not removed",
        why="a reassignment reduces the copies below min_isr",
        module="raftlog/replication/partition_state.py",
        function="_change_replicas",
        change=never("compare min_isr"),
        tests=(f"{PARTITION_STATE}::test_a_change_that_drops_what_is_needed_is_rejected",),
    ),
    Guard(
        name="a removed replica ends the epoch",
        why="what it reported before counts when it is added again (S20)",
        module="raftlog/replication/partition_state.py",
        function="_change_replicas",
        change=argument("call replace", 0, "_.args[0].body.args[0]"),
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_dropped_replica_is_forgotten_and_the_epoch_fences_what_it_said"
            ),
        ),
    ),
    Guard(
        name="replicas and witnesses are different brokers",
        why="one broker has two votes, or a partition no copy",
        module="raftlog/replication/partition_state.py",
        function="_change_replicas",
        change=drop("compare !="),
        tests=(f"{PARTITION_STATE}::test_a_change_that_drops_what_is_needed_is_rejected",),
    ),
]

ELECTIONS: Final = [
    Guard(
        name="the ISR comes before the ELR",
        why="a leader is elected that must wait for others to catch up",
        module="raftlog/replication/election.py",
        function="choose_member",
        change=move("attribute isr", after="attribute elr"),
        tests=(f"{ELECTION}::test_the_elr_leads_only_when_no_member_of_the_isr_can",),
    ),
    Guard(
        name="the ELR leads when the ISR cannot",
        why="a partition stays offline although a complete copy exists (KIP-966)",
        module="raftlog/replication/election.py",
        function="choose_member",
        change=drop("attribute elr"),
        tests=(f"{ELECTION}::test_the_elr_leads_only_when_no_member_of_the_isr_can",),
    ),
    Guard(
        name="a candidate is on the disk that is a member",
        why="a wiped broker is proposed, again and again",
        module="raftlog/replication/election.py",
        function="_there",
        change=drop("compare =="),
        tests=(f"{ELECTION}::test_a_leader_on_another_disk_is_no_leader",),
    ),
    Guard(
        name="a candidate is live",
        why="a failed broker is elected",
        module="raftlog/replication/election.py",
        function="_there",
        change=drop("call is_live"),
        tests=(f"{ELECTION}::test_a_dead_leader_is_followed_by_the_first_in_preferred_order",),
    ),
    Guard(
        name="a leader that starts again is elected again",
        why="a leader continues in an epoch whose unsynced records it has lost (S17)",
        module="raftlog/replication/election.py",
        function="has_leader",
        change=replace("call boot_of", "None"),
        tests=(f"{ELECTION}::test_a_leader_of_another_run_is_elected_again",),
    ),
    Guard(
        name="a leader on another disk is replaced",
        why="no broker is elected after a leader was wiped",
        module="raftlog/replication/election.py",
        function="has_leader",
        change=drop("compare get"),
        tests=(f"{ELECTION}::test_a_leader_on_another_disk_is_no_leader",),
    ),
    Guard(
        name="leadership is transferred to ISR members only",
        why="an operator's transfer is proposed to a replica that lags",
        module="raftlog/replication/election.py",
        function="transfer",
        change=drop("compare isr !="),
        tests=(f"{ELECTION}::test_leadership_does_not_move_to_a_dead_broker_or_an_empty_disk",),
    ),
    Guard(
        name="a failed member of the ISR is not replaced",
        why="a copy that may be the only other one is removed",
        module="raftlog/replication/election.py",
        function="choose_replacement",
        change=drop("starred elr"),
        tests=(f"{ELECTION}::test_a_dead_eligible_replica_stays_until_another_copy_is_in_sync",),
    ),
    Guard(
        name="a surplus replica waits for the others",
        why="a copy is removed while others are being created",
        module="raftlog/replication/election.py",
        function="_drop_surplus",
        change=drop("call all"),
        tests=(f"{ELECTION}::test_a_replica_too_many_becomes_a_witness_again",),
    ),
]

GUARDS: Final = [*STATES, *ELECTIONS]
