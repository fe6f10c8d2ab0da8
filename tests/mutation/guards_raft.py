"""Guards of elections and appends: whom a voter believes, and what it counts."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

ELECTIONS: Final = [
    Guard(
        name="vote is journaled",
        why="after a restart one voter votes for two in one term",
        module="raftlog/consensus/raft_group.py",
        old="            self._SyncObj__setCurrentTerm(term, peer)\n",
        new="            self._SyncObj__votedForNodeId = peer\n",
        tests=("tests/consensus/test_raft_group.py::test_a_vote_outlives_the_process",),
    ),
    Guard(
        name="one vote in a term",
        why="two leaders in one term",
        module="raftlog/consensus/raft_group.py",
        old="            and voted_for in (None, peer)\n",
        new="",
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_one_vote_in_a_term_granted_again_to_the_same_candidate"
            ),
        ),
    ),
    Guard(
        name="votes only for logs that are up to date",
        why="a leader without committed entries is elected",
        module="raftlog/consensus/raft_group.py",
        old="            and voted_for in (None, peer)\n"
        "            and (last_term, last_index) >= self._log.end\n",
        new="            and voted_for in (None, peer)\n",
        tests=("tests/consensus/test_raft_group.py::test_only_a_log_as_good_as_ours_gets_a_vote",),
    ),
    Guard(
        name="votes of this term only",
        why="a vote for an old term makes a leader of this one",
        module="raftlog/consensus/raft_group.py",
        old="        if term == self.term and granted and self._ballot.vote(peer):\n",
        new="        if granted and self._ballot.vote(peer):\n",
        tests=("tests/consensus/test_raft_group.py::test_votes_of_another_term_do_not_count",),
    ),
    Guard(
        name="votes are granted in this term only",
        why="a vote is given for a term that is over",
        module="raftlog/consensus/raft_group.py",
        old="        granted = (\n            term == self.term\n            and voted_for",
        new="        granted = (\n            term <= self.term\n            and voted_for",
        tests=("tests/consensus/test_raft_group.py::test_no_message_breaks_the_order_of_things",),
    ),
    Guard(
        name="a refused vote is none",
        why="a candidate that nobody wants leads",
        module="raftlog/consensus/raft_group.py",
        old="        if term == self.term and granted and self._ballot.vote(peer):\n",
        new="        if term == self.term and self._ballot.vote(peer):\n",
        tests=("tests/consensus/test_guards_voters.py::test_a_refused_vote_is_none",),
    ),
    Guard(
        name="votes are counted by identity",
        why="one answer that comes twice is a majority (hazard 4)",
        module="raftlog/consensus/ballot.py",
        old="        self._votes.add(peer)\n",
        new="        self._votes.add(peer + 1_000 * len(self._votes))\n",
        tests=("tests/consensus/test_ballot.py::test_the_same_vote_twice_is_one_vote",),
    ),
    Guard(
        name="pre-votes are counted by identity",
        why="a broker that one other can hear begins elections",
        module="raftlog/consensus/ballot.py",
        old="        self._would_vote.add(peer)\n",
        new="        self._would_vote.add(peer + 1_000 * len(self._would_vote))\n",
        tests=("tests/consensus/test_ballot.py::test_the_same_pre_vote_twice_is_one",),
    ),
    Guard(
        name="a quorum is more than half",
        why="two halves elect a leader each",
        module="raftlog/consensus/ballot.py",
        old="        self._quorum = voters // 2 + 1\n",
        new="        self._quorum = (voters + 1) // 2\n",
        tests=("tests/consensus/test_ballot.py::test_a_quorum_is_more_than_half",),
    ),
    Guard(
        name="pre-votes of an older round do not count",
        why="answers of long ago begin an election",
        module="raftlog/consensus/ballot.py",
        old="        if self._would_vote is None or round_number != self._round:\n",
        new="        if self._would_vote is None:\n",
        tests=("tests/consensus/test_ballot.py::test_answers_to_an_older_round_do_not_count",),
    ),
    Guard(
        name="a pre-vote comes before a term",
        why="a broker that comes back deposes a leader that all others hear (hazard 15)",
        module="raftlog/consensus/raft_group.py",
        old="        if self._ballot.is_quorum(1):\n            self._campaign(now)\n",
        new="        if self._ballot.is_quorum(1) or round_number:\n"
        "            self._campaign(now)\n",
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_silence_leads_to_a_pre_vote_and_only_a_majority_to_a_term"
            ),
        ),
    ),
    Guard(
        name="no pre-vote with a live leader",
        why="a broker that hears half of the others inflates terms (hazard 15)",
        module="raftlog/consensus/raft_group.py",
        old="            and not self._has_live_leader(now)\n",
        new="",
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_a_voter_with_a_live_leader_refuses_a_pre_vote"
            ),
        ),
    ),
    Guard(
        name="a pre-vote needs a log that is up to date",
        why="a broker that cannot win goes on raising the term",
        module="raftlog/consensus/raft_group.py",
        old="            and (last_term, last_index) >= self._log.end\n            and not self",
        new="            and not self",
        tests=("tests/consensus/test_raft_group.py::test_only_a_log_as_good_as_ours_gets_a_vote",),
    ),
    Guard(
        name="a higher term ends any role",
        why="a leader that was deposed goes on as if nothing had happened (hazard 14)",
        module="raftlog/consensus/raft_group.py",
        old="            self._SyncObj__setCurrentTerm(term, None)\n"
        "            self._step_down(now)\n",
        new="            self._SyncObj__setCurrentTerm(term, None)\n",
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_any_message_of_a_higher_term_ends_a_leadership"
            ),
        ),
    ),
    Guard(
        name="a higher term is taken over",
        why="an old leader never learns that it is none (hazard 14)",
        module="raftlog/consensus/raft_group.py",
        old="        if term > self._SyncObj__raftCurrentTerm:\n",
        new="        if term < 0:\n",
        tests=("tests/consensus/test_raft_group.py::test_only_a_log_as_good_as_ours_gets_a_vote",),
    ),
    Guard(
        name="an old leader is told of the newer term",
        why="it leads on for those that hear it only (hazard 14)",
        module="raftlog/consensus/raft_group.py",
        old="            self._send(peer, envelope.APPEND_ANSWER, False, previous, previous)\n",
        new="",
        tests=(
            (
                "tests/consensus/test_raft_group_appends.py"
                "::test_an_append_of_an_older_term_is_told_the_newer_and_changes_nothing"
            ),
        ),
    ),
    Guard(
        name="check-quorum",
        why="a leader that nobody answers any more stays one (hazard 14)",
        module="raftlog/consensus/library.py",
        old="            leaderFallbackTimeout=self.election,\n",
        new="            leaderFallbackTimeout=1e9,\n",
        tests=(
            (
                "tests/consensus/test_guards_voters.py"
                "::test_a_leader_that_nobody_answers_steps_down_though_its_links_are_up"
            ),
        ),
    ),
    Guard(
        name="a leader without links steps down",
        why="its clients wait for answers that cannot come",
        module="raftlog/consensus/raft_group.py",
        old="        if is_isolated or self.role != LEADER:\n",
        new="        if self.role != LEADER:\n",
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_a_leader_without_links_to_a_majority_steps_down_soon"
            ),
        ),
    ),
    Guard(
        name="terms jump only so far",
        why="one bad message uses up all terms",
        module="raftlog/consensus/raft_group.py",
        old="            if term > self._SyncObj__raftCurrentTerm + TERM_JUMP_MAX:\n"
        "                return False\n",
        new="",
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_a_term_that_no_election_can_have_led_to_is_no_term"
            ),
        ),
    ),
]

APPENDS: Final = [
    Guard(
        name="appends of an old term are refused",
        why="a deposed leader's entries are taken",
        module="raftlog/consensus/raft_group.py",
        old="        if term < self.term:\n            self._send(",
        new="        if term < 0:\n            self._send(",
        tests=(
            (
                "tests/consensus/test_raft_group_appends.py"
                "::test_an_append_of_an_older_term_is_told_the_newer_and_changes_nothing"
            ),
        ),
    ),
    Guard(
        name="append answers of another term are dropped",
        why="an answer about an older log counts for the entries of this one (hazard 3)",
        module="raftlog/consensus/raft_group.py",
        old="        if term != self.term or not self.is_leader:\n            return True\n",
        new="        if not self.is_leader:\n            return True\n",
        tests=(
            (
                "tests/consensus/test_raft_group_appends.py"
                "::test_an_answer_of_another_term_counts_for_nothing"
            ),
        ),
    ),
    Guard(
        name="an append has to fit what is before it",
        why="a follower acknowledges entries behind a gap or a difference",
        module="raftlog/consensus/raft_log.py",
        old="        mine = self.term_at(index)\n"
        "        if mine == term:\n"
        "            return None\n",
        new="        mine = self.term_at(index)\n"
        "        if mine is not None:\n"
        "            return None\n",
        tests=(
            (
                "tests/consensus/test_raft_log.py"
                "::test_a_conflict_is_answered_with_the_beginning_of_its_term"
            ),
        ),
    ),
    Guard(
        name="entries are cut only where terms differ",
        why="an append that comes late cuts what was acknowledged since (hazard 2)",
        module="raftlog/consensus/raft_log.py",
        old="            if mine == term:\n                continue\n",
        new="            if mine == term and index < 0:\n                continue\n",
        tests=("tests/consensus/test_raft_log.py::test_a_matching_suffix_stays",),
    ),
    Guard(
        name="entries are cut where terms differ",
        why="two logs differ below what both hold committed",
        module="raftlog/consensus/raft_log.py",
        old="            if mine == term:\n                continue\n",
        new="            if mine is not None:\n                continue\n",
        tests=("tests/consensus/test_raft_log.py::test_what_conflicts_is_cut_with_all_after_it",),
    ),
    Guard(
        name="committed entries are never cut",
        why="a peer that errs takes back what was applied (hazard 1)",
        module="raftlog/consensus/raft_log.py",
        old="                if index <= commit_index:\n",
        new="                if index < 0:\n",
        tests=("tests/consensus/test_raft_log.py::test_nothing_committed_is_ever_cut",),
    ),
    Guard(
        name="a follower commits only what it has compared",
        why="it applies entries of its own that the leader does not have",
        module="raftlog/consensus/raft_group.py",
        old="        if min(commit_index, last) > self._SyncObj__raftCommitIndex:\n"
        "            self._SyncObj__raftCommitIndex = min(commit_index, last)\n",
        new="        last = self._log.last_index\n"
        "        if min(commit_index, last) > self._SyncObj__raftCommitIndex:\n"
        "            self._SyncObj__raftCommitIndex = min(commit_index, last)\n",
        tests=(
            (
                "tests/consensus/test_raft_group_appends.py"
                "::test_no_more_is_committed_than_this_append_has_matched"
            ),
        ),
    ),
    Guard(
        name="an answer cannot be beyond the leader's log",
        why="a peer that errs has entries committed that nobody has",
        module="raftlog/consensus/raft_group.py",
        old="        if max(previous, index if is_appended else 0) > self._log.last_index:\n"
        "            return False\n",
        new="",
        tests=(
            (
                "tests/consensus/test_raft_group_appends.py"
                "::test_an_answer_about_entries_that_there_are_not_is_refused"
            ),
        ),
    ),
    Guard(
        name="an answer takes nothing back",
        why="a late answer makes a leader forget what a follower holds",
        module="raftlog/consensus/follower.py",
        old="        if index <= self.match_index:\n            return False\n",
        new="",
        tests=("tests/consensus/test_follower.py::test_an_old_answer_takes_nothing_back",),
    ),
    Guard(
        name="a refusal never goes below what matched",
        why="a late refusal makes a leader send all again",
        module="raftlog/consensus/follower.py",
        old="        self.next_index = max(self.match_index + 1, min(guess, previous))\n",
        new="        self.next_index = min(guess, previous)\n",
        tests=(
            (
                "tests/consensus/test_follower.py"
                "::test_a_guess_goes_back_by_one_at_least_and_never_below_what_matched"
            ),
        ),
    ),
    Guard(
        name="appends that no leader sends are refused",
        why="a log gets terms that descend, and election by the last term breaks",
        module="raftlog/consensus/raft_group.py",
        old="        if not raft_log.is_consistent(previous, previous_term, entries, term):\n"
        "            return False\n",
        new="",
        tests=(
            (
                "tests/consensus/test_guards_voters.py"
                "::test_an_append_that_no_leader_sends_changes_nothing"
            ),
        ),
    ),
    Guard(
        name="one leader in a term",
        why="a leader obeys another one of its own term",
        module="raftlog/consensus/raft_group.py",
        old="        if self.is_leader:\n            logger.critical(",
        new="        if self.is_leader and term < 0:\n            logger.critical(",
        tests=(
            "tests/consensus/test_raft_group.py::test_a_leader_of_our_own_term_is_not_followed",
        ),
    ),
    Guard(
        name="a new leader's first entry is of its own term",
        why="entries of older terms are counted as committed (Raft, 5.4.2)",
        module="raftlog/consensus/raft_group.py",
        old="        super()._SyncObj__onBecomeLeader()\n        self._note_links(library.now())\n",
        new="        self._SyncObj__raftLeader = self._SyncObj__selfNode\n"
        "        self._SyncObj__setState(LEADER)\n"
        "        self._note_links(library.now())\n",
        tests=(
            (
                "tests/consensus/test_raft_group.py"
                "::test_an_alone_voter_elects_itself_at_once_but_counts_only_what_is_durable"
            ),
        ),
    ),
    Guard(
        name="commands do not raise",
        why="one command that a machine cannot take stops the group on all brokers (hazard 16)",
        module="raftlog/consensus/raft_group.py",
        old="        except Exception as error:  # a machine's defect must not stop the group\n",
        new="        except KeyboardInterrupt as error:\n",
        tests=(
            "tests/consensus/test_machine.py::test_a_machine_that_raises_does_not_stop_its_group",
        ),
    ),
]

GUARDS: Final = [*ELECTIONS, *APPENDS]
