"""Guards of elections and appends: accepted messages and counted responses."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, replace, swap, value
from tests.mutation.guard import Guard

BALLOT: Final = "tests/consensus/test_raft_group.py"
FOLLOWER: Final = "tests/consensus/test_raft_group.py"
GUARDS_VOTERS: Final = "tests/consensus/test_hazards.py"
IDLE_GROUPS: Final = "tests/consensus/test_raft_group.py"
RAFT_GROUP: Final = "tests/consensus/test_raft_group.py"
RAFT_GROUP_APPENDS: Final = "tests/consensus/test_raft_group.py"
RAFT_LOG: Final = "tests/consensus/test_journal.py"

ELECTIONS: Final = [
    Guard(
        name="vote is journaled",
        why="after a restart one voter votes for two candidates in one term",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_vote",
        change=replace(
            "call _SyncObj__setCurrentTerm", "self._SyncObj__votedForNodeId = _.args[1]"
        ),
        tests=(f"{RAFT_GROUP}::test_a_vote_outlives_the_process",),
    ),
    Guard(
        name="one vote in a term",
        why="two leaders in one term",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_vote",
        change=drop("compare in None"),
        tests=(f"{RAFT_GROUP}::test_one_vote_in_a_term_granted_again_to_the_same_candidate",),
    ),
    Guard(
        name="votes only for logs that are up to date",
        why="a leader without committed entries is elected",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_vote",
        change=drop("compare _log"),
        tests=(f"{RAFT_GROUP}::test_only_a_log_as_good_as_ours_gets_a_vote",),
    ),
    Guard(
        name="votes of this term only",
        why="a vote for an old term elects a leader of this one",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_vote_answer",
        change=drop("compare term"),
        tests=(f"{RAFT_GROUP}::test_votes_of_another_term_do_not_count",),
    ),
    Guard(
        name="votes are granted in this term only",
        why="a vote is granted for a term that is over",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_vote",
        change=swap("compare term", "<="),
        tests=(f"{RAFT_GROUP}::test_no_message_breaks_the_order_of_things",),
    ),
    Guard(
        name="a rejected vote does not count",
        why="a candidate that no voter supports leads",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_vote_answer",
        change=value("if vote", "_.values[0] and _.values[2]"),
        tests=(f"{GUARDS_VOTERS}::test_a_refused_vote_is_none",),
    ),
    Guard(
        name="votes are counted by identity",
        why="one response that arrives twice is a majority (hazard 4)",
        module="raftlog/consensus/raft_group.py",
        function="Ballot.vote",
        change=argument("call add", 0, "_.args[0] + 1000 * len(self._votes)"),
        tests=(f"{BALLOT}::test_the_same_vote_twice_is_one_vote",),
    ),
    Guard(
        name="pre-votes are counted by identity",
        why="a broker that reaches one voter starts elections",
        module="raftlog/consensus/raft_group.py",
        function="Ballot.would_vote",
        change=argument("call add", 0, "_.args[0] + 1000 * len(self._would_vote)"),
        tests=(f"{BALLOT}::test_the_same_pre_vote_twice_is_one",),
    ),
    Guard(
        name="a quorum is more than half",
        why="two halves elect a leader each",
        module="raftlog/consensus/raft_group.py",
        function="Ballot.__init__",
        change=value("assign _quorum", "(_.left.left + 1) // 2"),
        tests=(f"{BALLOT}::test_a_quorum_is_more_than_half",),
    ),
    Guard(
        name="pre-votes of an older round do not count",
        why="old responses start an election",
        module="raftlog/consensus/raft_group.py",
        function="Ballot.would_vote",
        change=drop("compare _round"),
        tests=(f"{BALLOT}::test_answers_to_an_older_round_do_not_count",),
    ),
    Guard(
        name="a pre-vote precedes a term",
        why="a broker that restarts deposes a leader that all others follow (hazard 15)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_silence",
        change=always("if _ballot"),
        tests=(f"{RAFT_GROUP}::test_silence_leads_to_a_pre_vote_and_only_a_majority_to_a_term",),
    ),
    Guard(
        name="no pre-vote with a live leader",
        why="a broker that receives from half of the voters inflates terms (hazard 15)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_pre_vote",
        change=drop("not _has_live_leader"),
        tests=(f"{RAFT_GROUP}::test_a_voter_with_a_live_leader_refuses_a_pre_vote",),
    ),
    Guard(
        name="a pre-vote needs a log that is up to date",
        why="a broker that cannot win continues to raise the term",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_pre_vote",
        change=drop("compare _log"),
        tests=(f"{RAFT_GROUP}::test_only_a_log_as_good_as_ours_gets_a_vote",),
    ),
    Guard(
        name="a higher term ends any role",
        why="a deposed leader continues to lead (hazard 14)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup.receive",
        change=drop("call _step_down"),
        tests=(f"{RAFT_GROUP}::test_any_message_of_a_higher_term_ends_a_leadership",),
    ),
    Guard(
        name="a higher term is adopted",
        why="an old leader never steps down (hazard 14)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup.receive",
        change=never("if _SyncObj__setCurrentTerm"),
        tests=(f"{RAFT_GROUP}::test_only_a_log_as_good_as_ours_gets_a_vote",),
    ),
    Guard(
        name="an old leader receives the newer term",
        why="it still leads the followers that only it can reach (hazard 14)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_append",
        change=drop("call _send #1/3"),
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_an_append_of_an_older_term_is_told_the_newer_and_changes_nothing"
            ),
        ),
    ),
    Guard(
        name="check-quorum",
        why="a leader without responses stays leader (hazard 14)",
        module="raftlog/consensus/raft_group.py",
        function="Timing.__init__",
        change=argument("call SyncObjConf", "leaderFallbackTimeout", "1000000000.0"),
        tests=(
            (
                "tests/consensus/test_hazards.py"
                "::test_a_leader_that_nobody_answers_steps_down_though_its_links_are_up"
            ),
        ),
    ),
    Guard(
        name="a leader without links steps down",
        why="its clients wait for responses that cannot arrive",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup.step",
        change=value("if LEADER", "_.values[1]"),
        tests=(f"{RAFT_GROUP}::test_a_leader_without_links_to_a_majority_steps_down_soon",),
    ),
    Guard(
        name="the increase of a term is limited",
        why="one corrupt message exhausts all terms",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup.receive",
        change=drop("if TERM_JUMP_MAX"),
        tests=(f"{RAFT_GROUP}::test_a_term_that_no_election_can_have_led_to_is_no_term",),
    ),
]

APPENDS: Final = [
    Guard(
        name="appends of an old term are rejected",
        why="a deposed leader's entries are accepted",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_append",
        change=never("if term"),
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_an_append_of_an_older_term_is_told_the_newer_and_changes_nothing"
            ),
        ),
    ),
    Guard(
        name="append responses of another term are discarded",
        why="a response about an older log counts for the entries of this one (hazard 3)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_append_answer",
        change=drop("compare term"),
        tests=(f"{RAFT_GROUP_APPENDS}::test_an_answer_of_another_term_counts_for_nothing",),
    ),
    Guard(
        name="an append continues the previous entry",
        why="a follower acknowledges entries after a gap or a difference",
        module="raftlog/consensus/journal.py",
        function="RaftLog.conflict",
        change=value("if None #1/2", "_.left is not None"),
        tests=(f"{RAFT_LOG}::test_a_conflict_is_answered_with_the_beginning_of_its_term",),
    ),
    Guard(
        name="entries are truncated only where terms differ",
        why="a late append truncates what was acknowledged since (hazard 2)",
        module="raftlog/consensus/journal.py",
        function="RaftLog.merge",
        change=never("if =="),
        tests=(f"{RAFT_LOG}::test_a_matching_suffix_stays",),
    ),
    Guard(
        name="entries are truncated where terms differ",
        why="two logs differ below the commit index of both",
        module="raftlog/consensus/journal.py",
        function="RaftLog.merge",
        change=value("if ==", "_.left is not None"),
        tests=(f"{RAFT_LOG}::test_what_conflicts_is_cut_with_all_after_it",),
    ),
    Guard(
        name="committed entries are never truncated",
        why="a faulty peer reverts applied entries (hazard 1)",
        module="raftlog/consensus/journal.py",
        function="RaftLog.merge",
        change=never("if CommittedEntryError"),
        tests=(f"{RAFT_LOG}::test_nothing_committed_is_ever_cut",),
    ),
    Guard(
        name="a follower commits only what it has compared",
        why="it applies entries that the leader does not have",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_append",
        change=replace(
            "if _SyncObj__raftCommitIndex", "_.test.left.args[1] = self._log.last_index\n_"
        ),
        tests=(f"{RAFT_GROUP_APPENDS}::test_no_more_is_committed_than_this_append_has_matched",),
    ),
    Guard(
        name="a response cannot be beyond the leader's log",
        why="a faulty peer commits entries that no broker has",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_append_answer",
        change=drop("if _log"),
        tests=(
            f"{RAFT_GROUP_APPENDS}::test_an_answer_about_entries_that_there_are_not_is_refused",
        ),
    ),
    Guard(
        name="a response never lowers the match index",
        why="a late response removes what a follower holds",
        module="raftlog/consensus/raft_group.py",
        function="Follower.appended",
        change=drop("if match_index"),
        tests=(f"{FOLLOWER}::test_an_old_answer_takes_nothing_back",),
    ),
    Guard(
        name="a rejection never goes below the match index",
        why="a late rejection makes a leader send all entries again",
        module="raftlog/consensus/raft_group.py",
        function="Follower.refused",
        change=value("assign match_index", "_.args[1]"),
        tests=(f"{FOLLOWER}::test_a_guess_goes_back_by_one_at_least_and_never_below_what_matched",),
    ),
    Guard(
        name="invalid appends are rejected",
        why="a log has descending terms, which breaks elections by the last term",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_append",
        change=drop("if is_consistent"),
        tests=(f"{GUARDS_VOTERS}::test_an_append_that_no_leader_sends_changes_nothing",),
    ),
    Guard(
        name="one leader in a term",
        why="a leader follows another one of its own term",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_append",
        change=never("if is_leader"),
        tests=(f"{RAFT_GROUP}::test_a_leader_of_our_own_term_is_not_followed",),
    ),
    Guard(
        name="a new leader's first entry is of its own term",
        why="entries of older terms are counted as committed (Raft, 5.4.2)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._SyncObj__onBecomeLeader",
        change=replace(
            "call _SyncObj__onBecomeLeader",
            "self._SyncObj__raftLeader = self._SyncObj__selfNode\nself._SyncObj__setState(LEADER)",
        ),
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_an_alone_voter_elects_itself_at_once_but_counts_only_what_is_durable"
            ),
        ),
    ),
    Guard(
        name="commands do not raise",
        why="one invalid command stops the group on all brokers (hazard 16)",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._SyncObj__doApplyCommand",
        change=replace("name Exception", "KeyboardInterrupt"),
        tests=(
            "tests/consensus/test_transport.py::test_a_machine_that_raises_does_not_stop_its_group",
        ),
    ),
]

IDLE: Final = [
    Guard(
        name="a group is idle only with followers that send beats",
        why="followers of an earlier release depose an idle leader again and again",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._have_all_answered",
        change=drop("compare _SyncObj__transport"),
        tests=(f"{IDLE_GROUPS}::test_heartbeats_continue_for_brokers_of_an_earlier_release",),
    ),
    Guard(
        name="a peer that sends no beats any longer is silent",
        why="idle groups keep a leader whose disk hangs",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._check_silence",
        change=never("if _services"),
        tests=(f"{IDLE_GROUPS}::test_the_disk_of_a_leader_of_an_idle_group_hangs",),
    ),
    Guard(
        name="a leader that requests pre-votes leads no longer",
        why="no voter elects another leader while the broker of the last one sends beats",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._on_pre_vote",
        change=never("if leader"),
        tests=(f"{IDLE_GROUPS}::test_a_leader_of_an_idle_group_steps_down_and_asks_for_votes",),
    ),
    Guard(
        name="beats replace heartbeats for a limited time",
        why="a group whose leader lost it never has a leader again",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._is_leader_idle",
        change=drop("compare IDLE_HEARTBEATS_MISSED"),
        tests=(f"{IDLE_GROUPS}::test_followers_do_not_wait_forever_for_an_idle_leader",),
    ),
]

GUARDS: Final = [*ELECTIONS, *APPENDS, *IDLE]
