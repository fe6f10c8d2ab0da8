"""Guards of a partition leader: commits, the ISR and log divergence."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, replace, value
from tests.mutation.guard import Guard

CUT_OFF_LEADERS: Final = "tests/server/cluster/test_upgrades.py"
ELECTION: Final = "tests/replication/test_election.py"
FOLLOWING: Final = "tests/replication/test_leadership.py"
GUARDS_LEADING: Final = "tests/replication/test_leadership.py"
ISR_PROPOSALS: Final = "tests/replication/test_leadership.py"
LEADERSHIP: Final = "tests/replication/test_leadership.py"

LEADING: Final = [
    Guard(
        name="an offset beyond a leader's end is out of range once it is known to lead",
        why="a deposed leader makes a consumer that has read more reset its position",
        module="raftlog/server/apis/fetch.py",
        function="Read._is_beyond_the_end",
        change=value("return log_end_offset", "False"),
        tests=(f"{CUT_OFF_LEADERS}::test_a_leader_alone_in_sync_that_is_cut_off_names_no_end",),
    ),
    Guard(
        name="an offset beyond a corrupt copy's end is not out of range",
        why="a consumer that has read more resets its position",
        module="raftlog/server/apis/fetch.py",
        function="Read._is_beyond_the_end",
        change=replace("or _request", "_.values[0]"),
        tests=(f"{CUT_OFF_LEADERS}::test_a_damaged_copy_names_no_end",),
    ),
    Guard(
        name="commits wait for the followers",
        why="a leader acknowledges what only it has; the next leader does not have it",
        module="raftlog/replication/leadership.py",
        function="Leadership._advance",
        change=value("assign durable_end #2/2", "(self.durable_end, copy.log_start)"),
        tests=(f"{LEADERSHIP}::test_the_high_watermark_is_the_least_durable_end_over_the_isr",),
    ),
    Guard(
        name="commits wait for the maximal ISR",
        why="a follower is elected that lacks what was committed while its joining was decided "
        "(S07)",
        module="raftlog/replication/leadership.py",
        function="Leadership.maximal_isr",
        change=value("return _pending", "members"),
        tests=(f"{ISR_PROPOSALS}::test_a_proposed_addition_counts_at_once",),
    ),
    Guard(
        name="a proposed removal does not count yet",
        why="records are committed without a member that is elected next (S24)",
        module="raftlog/replication/leadership.py",
        function="Leadership.maximal_isr",
        change=value("assign items", "set() if self._pending else _"),
        tests=(f"{LEADERSHIP}::test_a_member_whose_disk_hangs_leaves_although_it_fetches",),
    ),
    Guard(
        name="below min_isr nothing is committed",
        why="records are acknowledged that too few brokers have (S11)",
        module="raftlog/replication/leadership.py",
        function="Leadership._advance",
        change=drop("if has_quorum"),
        tests=(f"{LEADERSHIP}::test_the_high_watermark_is_frozen_below_min_isr",),
    ),
    Guard(
        name="a higher min_isr counts when it is proposed",
        why=(
            "records are committed by the lower number after the group has decided the higher one"
        ),
        module="raftlog/replication/leadership.py",
        function="Leadership.has_quorum",
        change=replace("call max", "min(self.state.min_isr, _.args[1] * 1000)"),
        tests=(f"{ISR_PROPOSALS}::test_a_higher_min_isr_counts_from_the_proposal_on",),
    ),
    Guard(
        name="a lower min_isr counts once it is committed",
        why="records are committed by a number that the group has not decided",
        module="raftlog/replication/leadership.py",
        function="Leadership.has_quorum",
        change=replace("call max", "_.args[1]"),
        tests=(f"{GUARDS_LEADING}::test_a_lower_min_isr_that_is_only_proposed_commits_nothing",),
    ),
    Guard(
        name="the leader's own disk counts",
        why="records are committed that the leader loses in a power failure",
        module="raftlog/replication/leadership.py",
        function="Leadership._advance",
        change=value("assign durable_end #1/2", "(self.log_end, self.log_start)"),
        tests=(f"{LEADERSHIP}::test_the_leaders_own_disk_counts_like_any_other",),
    ),
    Guard(
        name="followers' disks count",
        why="records are committed that followers have in memory only",
        module="raftlog/replication/leadership.py",
        function="Leadership.on_fetch",
        change=argument("call max durable_end", 1, "_.args[0].value.end"),
        tests=(f"{LEADERSHIP}::test_only_what_is_durable_counts",),
    ),
    Guard(
        name="another disk of a member does not count",
        why="a wiped follower acknowledges for its lost copy (S10, S20)",
        module="raftlog/replication/leadership.py",
        function="Leadership._copy",
        change=drop("compare directory_id"),
        tests=(f"{LEADERSHIP}::test_another_disk_of_a_member_does_not_move_the_watermark",),
    ),
    Guard(
        name="a new disk starts with an empty state",
        why="what the old disk had counts for the new one",
        module="raftlog/replication/leadership.py",
        function="Leadership.on_fetch",
        change=drop("compare directory_id None"),
        tests=(
            f"{LEADERSHIP}::test_what_was_said_about_the_old_disk_does_not_count_for_the_new_one",
        ),
    ),
    Guard(
        name="a new incarnation of a follower starts with an empty state",
        why="what it had before a power failure counts, although it is lost",
        module="raftlog/replication/leadership.py",
        function="Leadership.on_fetch",
        change=value("if _Follower", "_.values[0]"),
        tests=(f"{LEADERSHIP}::test_a_new_run_of_a_follower_counts_by_what_its_disk_holds",),
    ),
    Guard(
        name="a member that has lost what it acknowledged leaves",
        why="it is elected, and records that only the others hold are truncated",
        module="raftlog/replication/leadership.py",
        function="Leadership.isr_change",
        change=replace("call has_lost", "not self.has_lost"),
        tests=(
            (
                "tests/replication/test_leadership.py"
                "::test_a_member_that_holds_less_than_it_acknowledged_leaves_without_being_eligible"
            ),
        ),
    ),
    Guard(
        name="a complete copy is one of this incarnation",
        why="a copy is elected by what it held before a power failure",
        module="raftlog/replication/election.py",
        function="_may_lead",
        change=drop("or boot"),
        tests=(f"{ELECTION}::test_a_copy_that_is_not_known_to_be_sound_does_not_lead",),
    ),
    Guard(
        name="a copy in doubt does not lead while a better one may return",
        why=("the first broker that restarts after a power failure truncates what the others hold"),
        module="raftlog/replication/election.py",
        function="choose_unsure",
        change=never("if < in"),
        tests=(
            (
                "tests/replication/test_election.py"
                "::test_the_longest_of_all_unsure_copies_leads_once_all_members_have_reported"
            ),
        ),
    ),
    Guard(
        name="the longest log leads",
        why="a copy whose end was lost is elected, and the others truncate theirs",
        module="raftlog/replication/election.py",
        function="choose_member",
        change=value("assign length", "_.orelse"),
        tests=(f"{ELECTION}::test_the_member_with_the_longest_log_leads",),
    ),
    Guard(
        name="a follower cannot be ahead of its leader",
        why="one invalid position commits what no broker has",
        module="raftlog/replication/leadership.py",
        function="Leadership.on_fetch",
        change=replace("compare log_end", "0 <= _.comparators[0]"),
        tests=(f"{LEADERSHIP}::test_a_fetch_that_claims_too_much_is_refused_and_counted",),
    ),
    Guard(
        name="durable progress never decreases",
        why="a late fetch delays commits, or removes a member from the ISR",
        module="raftlog/replication/leadership.py",
        function="Leadership.on_fetch",
        change=value("assign durable_end #3/3", "durable_offset"),
        tests=(f"{GUARDS_LEADING}::test_a_fetch_that_comes_late_takes_nothing_back",),
    ),
    Guard(
        name="the high watermark never decreases",
        why="a consumer has read records that are no longer committed (P3)",
        module="raftlog/replication/leadership.py",
        function="Leadership._advance",
        change=drop("if high_watermark"),
        tests=(
            (
                f"{GUARDS_LEADING}"
                "::test_a_member_that_restarts_with_less_takes_no_committed_record_back"
            ),
        ),
    ),
    Guard(
        name="joining requires the start of the epoch",
        why=("a replica joins by an old watermark, and lacks what the last leader committed (S06)"),
        module="raftlog/replication/leadership.py",
        function="Leadership._may_join",
        change=replace("call max epoch_start", "_.args[0]"),
        tests=(f"{LEADERSHIP}::test_a_follower_below_the_epochs_start_stays_out",),
    ),
    Guard(
        name="joining requires the high watermark",
        why="a replica joins that lacks committed records",
        module="raftlog/replication/leadership.py",
        function="Leadership._may_join",
        change=replace("call max epoch_start", "self.epoch_start"),
        tests=(f"{LEADERSHIP}::test_a_follower_below_the_watermark_stays_out",),
    ),
    Guard(
        name="joining is by the disk that is registered",
        why="a copy joins in the name of another disk (S10)",
        module="raftlog/replication/leadership.py",
        function="Leadership._may_join",
        change=drop("compare directory_id"),
        tests=(f"{LEADERSHIP}::test_a_member_with_another_registered_disk_leaves_at_once",),
    ),
    Guard(
        name="joining is by reports of this incarnation",
        why="a copy joins whose files vanished before its broker restarted",
        module="raftlog/replication/leadership.py",
        function="Leadership.isr_change",
        change=value("assign boot", "True"),
        tests=(f"{LEADERSHIP}::test_what_an_earlier_run_said_does_not_let_a_follower_join",),
    ),
    Guard(
        name="the leader knows the incarnation of its followers",
        why="a copy joins whose files vanished before its broker restarted",
        module="raftlog/server/cluster/membership.py",
        function="Liveness.boot_of",
        change=value("return boot", "None"),
        tests=(
            (
                "tests/server/cluster/test_replicas.py"
                "::test_a_follower_that_began_a_new_run_joins_by_what_it_has_said_since"
            ),
        ),
    ),
    Guard(
        name="a member that left must reach the leader's end of that time",
        why="two full disks delay every commit: each lets the other one join again",
        module="raftlog/replication/leadership.py",
        function="Leadership._may_join",
        change=drop("compare left_at"),
        tests=(
            f"{LEADERSHIP}::test_one_that_left_joins_again_when_it_has_what_the_leader_had_then",
        ),
    ),
    Guard(
        name="failed brokers do not join",
        why="commits wait for a failed broker",
        module="raftlog/replication/leadership.py",
        function="Leadership.isr_change",
        change=value("if get", "_.values[0]"),
        tests=(f"{LEADERSHIP}::test_a_dead_follower_does_not_join",),
    ),
    Guard(
        name="failed brokers leave",
        why="nothing is committed until a failed broker restarts",
        module="raftlog/replication/leadership.py",
        function="Leadership._has_to_leave",
        change=drop("not not"),
        tests=(f"{LEADERSHIP}::test_a_member_that_is_dead_leaves_at_once",),
    ),
    Guard(
        name="members on another disk leave",
        why="a broker whose disk was replaced stays in sync by name",
        module="raftlog/replication/leadership.py",
        function="Leadership._has_to_leave",
        change=drop("compare !="),
        tests=(f"{LEADERSHIP}::test_a_member_with_another_registered_disk_leaves_at_once",),
    ),
    Guard(
        name="members that lag leave",
        why="one slow disk holds up every commit (S36)",
        module="raftlog/replication/leadership.py",
        function="Leadership._has_to_leave",
        change=drop("compare _lag_max_s"),
        tests=(f"{LEADERSHIP}::test_a_member_that_lags_for_too_long_leaves",),
    ),
    Guard(
        name="a proposal with unknown outcome stays pending",
        why=(
            "a change that was applied counts as rejected, and records are committed without "
            "it (S07)"
        ),
        module="raftlog/replication/leadership.py",
        function="Leadership.proposal_done",
        change=drop("not _is_doubtful"),
        tests=(
            f"{ISR_PROPOSALS}::test_a_second_try_that_is_rejected_says_nothing_about_the_first",
        ),
    ),
    Guard(
        name="an unknown outcome is no rejection",
        why="a change that was applied counts as rejected (S07)",
        module="raftlog/replication/leadership.py",
        function="Leadership.proposal_done",
        change=value(
            "if _advance", "not _.values[0].left and _.values[1] or _.values[0].left is None"
        ),
        tests=(f"{ISR_PROPOSALS}::test_an_unknown_outcome_keeps_the_proposal_in_flight",),
    ),
    Guard(
        name="outcomes are of the proposal that is pending",
        why="the answer to an older proposal settles the newer one",
        module="raftlog/replication/leadership.py",
        function="Leadership.proposal_done",
        change=drop("if _pending"),
        tests=(f"{ISR_PROPOSALS}::test_the_late_outcome_of_an_earlier_proposal_changes_nothing",),
    ),
    Guard(
        name="old states change nothing",
        why="a leader returns to an ISR that it has left",
        module="raftlog/replication/leadership.py",
        function="Leadership.on_state",
        change=drop("if state"),
        tests=(f"{ISR_PROPOSALS}::test_a_state_that_is_known_already_settles_nothing",),
    ),
    Guard(
        name="states of another epoch do not count",
        why="progress that followers reported in an older epoch counts",
        module="raftlog/replication/leadership.py",
        function="Leadership.on_state",
        change=drop("assert broker_id"),
        tests=(f"{ISR_PROPOSALS}::test_a_state_of_another_epoch_is_for_another_leadership",),
    ),
    Guard(
        name="end offsets wait for the epoch's start",
        why="after an election a consumer receives a lower end than before (P3)",
        module="raftlog/replication/leadership.py",
        function="Leadership.is_ready",
        change=always("compare epoch_start"),
        tests=(
            f"{LEADERSHIP}::test_it_is_ready_when_the_watermark_has_reached_the_start_of_its_epoch",
        ),
    ),
]

PARTING: Final = [
    Guard(
        name="a leader finds where logs part",
        why="a follower keeps records that the leader does not have (S02)",
        module="raftlog/replication/leadership.py",
        function="divergence",
        change=never("if Diverged"),
        tests=(f"{FOLLOWING}::test_another_log_diverges_at_the_end_of_the_largest_common_epoch",),
    ),
    Guard(
        name="an epoch that the leader does not know",
        why="a follower of an epoch without the leader's records continues (S03, KIP-279)",
        module="raftlog/replication/leadership.py",
        function="divergence",
        change=value("if Diverged", "_.values[1]"),
        tests=(f"{FOLLOWING}::test_another_log_diverges_at_the_end_of_the_largest_common_epoch",),
    ),
    Guard(
        name="an epoch that ended earlier at the leader",
        why="a follower keeps a tail that was never committed (S01, KIP-101)",
        module="raftlog/replication/leadership.py",
        function="divergence",
        change=value("if Diverged", "_.values[0]"),
        tests=(f"{FOLLOWING}::test_another_log_diverges_at_the_end_of_the_largest_common_epoch",),
    ),
    Guard(
        name="a follower below the leader's start restarts from an empty log",
        why="it has a gap, or repeats its request indefinitely",
        module="raftlog/replication/leadership.py",
        function="divergence",
        change=never("if OutOfRange #1/3"),
        tests=(f"{FOLLOWING}::test_a_log_that_ends_below_the_leaders_start_begins_anew",),
    ),
    Guard(
        name="a leader without epochs reports its log start",
        why="a follower truncates its whole log (S18)",
        module="raftlog/replication/leadership.py",
        function="divergence",
        change=value("if OutOfRange or", "_.values[1].left < _.values[1].comparators[0] < 0"),
        tests=(f"{FOLLOWING}::test_a_log_with_nothing_in_common_begins_anew",),
    ),
    Guard(
        name="an empty log beyond the leader's end",
        why="a follower waits indefinitely beyond the end",
        module="raftlog/replication/leadership.py",
        function="divergence",
        change=value("return OutOfRange None", "None"),
        tests=(f"{FOLLOWING}::test_an_empty_log_may_begin_anywhere_in_the_leaders",),
    ),
    Guard(
        name="a follower truncates to the end of its own epoch",
        why="it keeps records of an epoch that only it has (S03)",
        module="raftlog/replication/leadership.py",
        function="truncation_point",
        change=value("return end_offset #2/2", "min(_.args[0], _.args[2])"),
        tests=(f"{FOLLOWING}::test_the_follower_cuts_to_the_common_part_of_both",),
    ),
    Guard(
        name="a follower truncates to the end of the leader's epoch",
        why="it keeps records that the leader never had",
        module="raftlog/replication/leadership.py",
        function="truncation_point",
        change=value("return end_offset #2/2", "min(_.args[1], _.args[2])"),
        tests=(f"{FOLLOWING}::test_the_follower_cuts_to_the_common_part_of_both",),
    ),
    Guard(
        name="a follower without a common epoch restarts from an empty log",
        why="it repeats its request indefinitely, or keeps different records",
        module="raftlog/replication/leadership.py",
        function="truncation_point",
        change=value("return end_offset #1/2", "_.args[0]"),
        tests=(f"{FOLLOWING}::test_a_follower_that_knows_only_larger_epochs_keeps_nothing",),
    ),
]

GUARDS: Final = [*LEADING, *PARTING]
