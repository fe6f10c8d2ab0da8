"""Guards of replication: counted progress, and responses that a follower accepts."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, replace, swap, value
from tests.mutation.guard import Guard

FETCHER: Final = "tests/server/cluster/test_fetcher.py"
FETCH_SESSION: Final = "tests/server/cluster/test_fetch_session.py"
GUARDS_COPYING: Final = "tests/server/test_guards.py"

COPYING: Final = [
    Guard(
        name="a fetch of another epoch is not counted",
        why=(
            "an old leader's followers commit for it, or the new one counts what is truncated (S04)"
        ),
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession._count",
        change=drop("compare leader_epoch"),
        tests=(f"{FETCH_SESSION}::test_progress_of_another_epoch_counts_for_nothing",),
    ),
    Guard(
        name="a log that differs is not counted",
        why="other records of the same offsets are counted as copies (S02)",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession._set_position",
        change=always("if _count"),
        tests=(
            f"{FETCH_SESSION}::test_a_log_that_is_no_prefix_counts_for_nothing_until_it_is_cut",
        ),
    ),
    Guard(
        name="a new position is compared with the log",
        why="a follower that differs is counted because an earlier position of it was a prefix",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession._set_position",
        change=drop("assign is_prefix"),
        tests=(f"{FETCH_SESSION}::test_each_position_is_compared_with_the_log",),
    ),
    Guard(
        name="progress of another epoch is not counted",
        why="what a follower had on its disk under an old leader is counted",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession.progress",
        change=value("assign leader_epoch", "True"),
        tests=(f"{FETCH_SESSION}::test_progress_of_another_epoch_counts_for_nothing",),
    ),
    Guard(
        name="a follower of an older epoch is fenced",
        why="it appends records of this epoch as those of its own (S04)",
        module="raftlog/server/cluster/fetch_session.py",
        function="_check_epoch",
        change=never("if FencedLeaderEpochError"),
        tests=(f"{FETCH_SESSION}::test_other_epochs_are_refused",),
    ),
    Guard(
        name="a follower of a newer epoch is rejected",
        why="a deposed leader serves its successor's followers (S04)",
        module="raftlog/server/cluster/fetch_session.py",
        function="_check_epoch",
        change=never("if UnknownLeaderEpochError"),
        tests=(f"{FETCH_SESSION}::test_other_epochs_are_refused",),
    ),
    Guard(
        name="only the leader is replicated",
        why="followers copy each other",
        module="raftlog/server/cluster/fetch_session.py",
        function="_check_epoch",
        change=never("if leadership"),
        tests=(f"{FETCH_SESSION}::test_who_does_not_lead_says_so_and_so_does_who_has_nothing",),
    ),
    Guard(
        name="a watermark is for logs that are a prefix",
        why="records that will be truncated are served as committed",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession._watermarks",
        change=drop("attribute is_prefix"),
        tests=(f"{FETCH_SESSION}::test_no_watermark_is_told_to_who_has_to_cut_first",),
    ),
    Guard(
        name="a watermark is of the follower's epoch",
        why="the same, in the moment after an election",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession._watermarks",
        change=drop("compare leader_epoch"),
        tests=(
            f"{GUARDS_COPYING}::test_who_has_not_gone_on_since_an_election_is_told_no_watermark",
        ),
    ),
    Guard(
        name="a leader in doubt verifies its disk",
        why="corrupt bytes are sent indefinitely",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession._verify_suspect",
        change=replace("call verify", "_.func.value.check_range(_.args[0])"),
        tests=(
            (
                "tests/server/cluster/test_fetch_session.py"
                "::test_who_asks_for_the_same_again_has_the_leader_look_at_its_disk"
            ),
        ),
    ),
    Guard(
        name="a response has the epoch that is followed",
        why="an old leader's response counts as the new one's (S05)",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._apply",
        change=drop("compare epoch"),
        tests=(f"{FETCHER}::test_an_answer_of_another_epoch_or_partition_changes_nothing",),
    ),
    Guard(
        name="a follower accepts responses of its leader only",
        why="a response after an election truncates what the new leader committed (S05)",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._apply",
        change=never("if follows"),
        tests=(
            f"{FETCHER}::test_an_answer_for_a_replica_that_follows_another_by_now_changes_nothing",
        ),
    ),
    Guard(
        name="following is of one epoch",
        why="a follower accepts responses of the leader of an old epoch",
        module="raftlog/server/partition.py",
        function="Partition.follows",
        change=drop("compare _following"),
        tests=("tests/server/test_guards.py::test_a_replica_follows_one_leader_in_one_epoch",),
    ),
    Guard(
        name="a truncation of an old epoch",
        why=("a truncation that waited for the disk removes what the new leader committed (S05)"),
        module="raftlog/server/partition.py",
        function="Partition.truncate.work",
        change=drop("compare _following"),
        tests=(f"{FETCHER}::test_a_cut_that_waits_for_the_disk_is_dropped_in_the_next_epoch",),
    ),
    Guard(
        name="responses of another connection are discarded",
        why="a response is matched to another request",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._on_response",
        change=drop("compare _session"),
        tests=(
            (
                "tests/server/cluster/test_fetcher.py"
                "::test_a_new_connection_is_told_everything_and_old_answers_are_nobodys"
            ),
        ),
    ),
    Guard(
        name="a partition that is being truncated rejects appends",
        why="records are appended after those that will be truncated",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._apply",
        change=drop("attribute is_paused"),
        tests=(f"{GUARDS_COPYING}::test_a_log_that_is_to_be_cut_takes_nothing_until_then",),
    ),
    Guard(
        name="a hash-chain mismatch is corruption of the follower",
        why=("a replica that differs repeats its request indefinitely, and stays in sync (S28)"),
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._append",
        change=drop("call _on_damage"),
        tests=(
            (
                "tests/server/cluster/test_fetcher.py"
                "::test_bytes_that_do_not_follow_from_the_log_are_this_brokers_damage"
            ),
        ),
    ),
    Guard(
        name="a log starts at most where it is committed",
        why="a follower deletes what it needs for an election",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._append",
        change=argument("call advance_log_start", 0, "_.args[0].args[0]"),
        tests=(
            (
                "tests/server/cluster/test_fetcher.py"
                "::test_the_log_starts_where_the_leaders_does_but_never_above_what_is_committed"
            ),
        ),
    ),
    Guard(
        name="progress is reported for durable records",
        why="a leader commits what its followers have in memory only",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._durable_position",
        change=argument(
            "call DurablePosition", "durable_offset", "_.keywords[3].value.value.log_end_offset"
        ),
        tests=(f"{GUARDS_COPYING}::test_progress_is_what_is_synced_and_not_what_came_since",),
    ),
    Guard(
        name="positions are reported for durable records",
        why="a leader commits what its followers have in memory only",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._report_position",
        change=argument("call ReplicaPosition", "durable_offset", "_.keywords[3].value"),
        tests=(f"{FETCHER}::test_it_says_where_it_is_and_takes_what_comes",),
    ),
]

COMMITTED: Final = [
    Guard(
        name="a follower keeps what is committed",
        why="an empty or old replica that is elected makes intact ones truncate",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._may_truncate",
        change=always("compare high_watermark"),
        tests=(f"{FETCHER}::test_what_is_committed_is_cut_only_after_its_loss_was_accepted",),
    ),
    Guard(
        name="a leader that lacks committed records releases its copy",
        why="a leader whose files vanished unnoticed commits over what its followers hold",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession._check_complete",
        change=never("if lacks_committed"),
        tests=(f"{FETCH_SESSION}::test_a_leader_that_lacks_committed_records_gives_its_copy_up",),
    ),
    Guard(
        name="a member of the ISR that lacks committed records leaves",
        why="a follower whose files vanished unnoticed may be elected before it has caught up",
        module="raftlog/replication/leadership.py",
        function="Leadership.has_lost",
        change=value("return durable_end", "_.values[0]"),
        tests=(
            (
                "tests/replication/test_leadership.py"
                "::test_a_member_that_lacks_what_is_committed_leaves_as_one_that_is_lost"
            ),
        ),
    ),
    Guard(
        name="the loss that an operator accepts is of older epochs",
        why="records that were committed after an unclean election are discarded",
        module="raftlog/replication/leadership.py",
        function="may_lose_committed",
        change=swap("compare", "<="),
        tests=(
            (
                "tests/replication/test_leadership.py"
                "::test_committed_records_may_be_lost_only_to_a_later_unclean_election"
            ),
        ),
    ),
]

GUARDS: Final = [*COMMITTED, *COPYING]
