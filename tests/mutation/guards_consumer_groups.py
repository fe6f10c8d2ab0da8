"""Guards of consumer groups: assignments, commits and membership."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, replace, value
from tests.mutation.guard import Guard

MEMBERS: Final = [
    Guard(
        name="a member that joins again gets a new epoch",
        why="a commit of before, which the network held back, replaces the offset that it has read",
        module="raftlog/consumer_groups/group.py",
        function="Group.come_back",
        change=never("if _group_changed"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_a_commit_that_was_held_back_is_refused_once_its_member_has_joined_again"
            ),
        ),
    ),
    Guard(
        name="a partition is reassigned once it is released",
        why="two members read one partition",
        module="raftlog/consumer_groups/group.py",
        function="Group.hand_out",
        change=drop("compare owner"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_a_newcomer_waits_for_what_another_has_to_give_up"
            ),
            "tests/consumer_groups/test_model.py::test_seeded_runs_break_no_promise",
        ),
    ),
    Guard(
        name="a release counts at the member's current epoch",
        why="a revocation that the member has not received counts as released",
        module="raftlog/consumer_groups/group.py",
        function="_stay",
        change=replace(
            "if revoking", "if _.test:\n    _.body[0]\n    _.body[1]\n    _.body[2]\n_.orelse[0]"
        ),
        tests=("tests/consumer_groups/test_group.py::test_at_an_older_epoch_nothing_is_released",),
    ),
    Guard(
        name="an old heartbeat has no effect",
        why="a heartbeat from before an assignment counts as its release",
        module="raftlog/consumer_groups/group.py",
        function="take",
        change=never("if sequence"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_an_old_heartbeat_does_not_release_what_was_given_later"
            ),
            "tests/consumer_groups/test_group.py::test_an_older_or_equal_sequence_changes_nothing",
        ),
    ),
    Guard(
        name="an old heartbeat extends no session",
        why="a failed member keeps its partitions while the network repeats its messages",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard.heartbeat",
        change=drop("compare sequence"),
        tests=("tests/consumer_groups/test_group.py::test_an_old_sequence_proves_no_life",),
    ),
    Guard(
        name="a heartbeat that is answered with an assignment is written",
        why=("after a failover it may arrive late, and counts as the release of that assignment"),
        module="raftlog/consumer_groups/group.py",
        function="_stay",
        change=never("if write"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_nor_after_a_failover_although_nothing_but_its_answer_told_of_it"
            ),
        ),
    ),
    Guard(
        name="no member claims partitions of others at an old epoch",
        why="a zombie continues to read",
        module="raftlog/consumer_groups/group.py",
        function="_stay",
        change=never("if FencedMemberError #2/2"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_at_an_older_epoch_nobody_claims_what_is_not_its"
            ),
        ),
    ),
    Guard(
        name="a session ends",
        why="the partitions of a failed member are never read again",
        module="raftlog/consumer_groups/group.py",
        function="Member.renew",
        change=value("assign session_ends", "math.inf"),
        tests=(
            (
                "tests/consumer_groups/test_shard.py"
                "::test_a_member_of_which_nothing_is_heard_is_no_member_any_more"
            ),
        ),
    ),
    Guard(
        name="the time for a revocation is limited",
        why="a member that hangs, but sends heartbeats, keeps revoked partitions",
        module="raftlog/consumer_groups/group.py",
        function="Group._ask_back",
        change=value("assign rebalance_timeout_ms", "math.inf"),
        tests=(
            (
                "tests/consumer_groups/test_shard.py"
                "::test_one_that_does_not_give_up_in_time_is_no_member_any_more"
            ),
        ),
    ),
    Guard(
        name="a member that lost its instance stays fenced",
        why="a zombie replaces the process that replaced it",
        module="raftlog/consumer_groups/group.py",
        function="Group.supersede",
        change=value("assign is_away", "None"),
        tests=(
            "tests/consumer_groups/test_joining_at_once.py::test_the_old_one_is_fenced_from_then_on",
        ),
    ),
    Guard(
        name="a takeover has an epoch of its own",
        why="a commit that a member sent before another had its place overwrites the newer offset",
        module="raftlog/consumer_groups/group.py",
        function="Group.supersede",
        change=drop("assign epoch #1/2"),
        tests=(
            (
                "tests/consumer_groups/test_joining_at_once.py"
                "::test_a_commit_from_before_another_had_its_place_is_too_late"
            ),
        ),
    ),
    Guard(
        name="a late join restores no member",
        why="partitions are assigned to a member that left, until its session ends",
        module="raftlog/consumer_groups/group.py",
        function="_join",
        change=drop("compare sequence"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_a_join_that_comes_late_does_not_bring_a_member_back"
            ),
        ),
    ),
    Guard(
        name="an assignor assigns a partition to one member",
        why="an error in a custom assignor creates two owners",
        module="raftlog/consumer_groups/assignors.py",
        function="checked",
        change=never("if setdefault"),
        tests=("tests/consumer_groups/test_assignors.py::test_nonsense_is_found_out",),
    ),
]

OFFSETS: Final = [
    Guard(
        name="a commit that arrives late replaces no newer one of the member",
        why="the group reads again what it had committed, whatever the members do",
        module="raftlog/consumer_groups/group.py",
        function="_commit_one",
        change=replace("call _is_late", "False"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_a_commit_that_arrives_late_replaces_no_newer_one"
            ),
        ),
    ),
    Guard(
        name="clients that are not members have no order among them",
        why="the commits of a consumer that starts again are ignored",
        module="raftlog/consumer_groups/group.py",
        function="commit",
        change=value("assign 0", "sequence"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_clients_that_are_not_members_have_no_order_among_them"
            ),
        ),
    ),
    Guard(
        name="a commit replaces only the offset that it expects",
        why="a mirror moves a group back that has gone on in the target",
        module="raftlog/consumer_groups/group.py",
        function="_refusal",
        change=never("if OffsetMovedError"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_a_commit_replaces_what_it_expects_and_nothing_else"
            ),
        ),
    ),
    Guard(
        name="a mirror commits what it has read",
        why="a mirror moves a group back that has gone on in the target",
        module="raftlog/mirror/mirror.py",
        function="Session._copy_groups",
        change=argument("call commit_offsets", "expected", "None"),
        tests=(
            (
                "tests/mirror/test_mirror.py"
                "::test_a_commit_in_the_target_meanwhile_is_not_moved_back"
            ),
        ),
    ),
    Guard(
        name="an older epoch commits nothing",
        why="a commit from before a rebalance overwrites what came after",
        module="raftlog/consumer_groups/group.py",
        function="check_committer",
        change=never("if StaleMemberEpochError"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_an_epoch_that_was_is_to_be_repeated_with_the_newest"
            ),
        ),
    ),
    Guard(
        name="an older epoch commits only what the member has had since then",
        why="a late commit overwrites those of a member that had the partition in between",
        module="raftlog/consumer_groups/group.py",
        function="Group.has_owned",
        change=drop("operand owned_since"),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_an_epoch_that_was_is_to_be_repeated_with_the_newest"
            ),
        ),
    ),
    Guard(
        name="a new coordinator does not know since when a member has a partition",
        why="a late commit overwrites those of a member that had the partition in between",
        module="raftlog/consumer_groups/shard.py",
        function="complete",
        change=replace(
            "call update owned_since", "group.owned_since.update(dict.fromkeys(parts, 0))"
        ),
        tests=(
            (
                "tests/consumer_groups/test_group.py"
                "::test_an_epoch_that_was_suffices_for_what_the_member_has_had_since_then"
            ),
        ),
    ),
    Guard(
        name="an unknown epoch commits nothing",
        why="a member without an assignment commits for a partition",
        module="raftlog/consumer_groups/group.py",
        function="check_committer",
        change=never("if FencedMemberError"),
        tests=("tests/consumer_groups/test_group.py::test_an_epoch_that_never_was_is_fenced",),
    ),
    Guard(
        name="only the owner of a partition commits for it",
        why="a member's position is overwritten by another's",
        module="raftlog/consumer_groups/group.py",
        function="_refusal",
        change=never("if PartitionNotOwnedError"),
        tests=(
            "tests/consumer_groups/test_group.py::test_nobody_commits_for_what_another_member_has",
            "tests/consumer_groups/test_model.py::test_seeded_runs_break_no_promise",
        ),
    ),
    Guard(
        name="no outside commit for a group with members",
        why="an offset that is reset is overwritten by active members",
        module="raftlog/consumer_groups/group.py",
        function="check_committer",
        change=never("if member_count"),
        tests=("tests/consumer_groups/test_group.py::test_nobody_commits_where_there_are_members",),
    ),
    Guard(
        name="a commit is for one topic id",
        why="an offset of a topic that was deleted counts in the one of its name",
        module="raftlog/consumer_groups/group.py",
        function="_refusal",
        change=never("if UnknownTopicError #2/2"),
        tests=(
            "tests/consumer_groups/test_group.py::test_a_topic_that_was_made_anew_is_another_one",
        ),
    ),
    Guard(
        name="a revoked partition is committed for the topic that it was read from",
        why="an offset of a topic that was deleted counts in the one of its name",
        module="raftlog/client/groups/member.py",
        function="Membership.topic_ids",
        change=never("if _releasing"),
        tests=(
            (
                "tests/client/groups/test_member.py"
                "::test_a_revoked_partition_of_a_deleted_topic_is_committed_for_that_topic"
            ),
        ),
    ),
    Guard(
        name="a member does not take older metadata for a recreated topic",
        why="it begins again at the first record, and its commits go back",
        module="raftlog/client/fetcher.py",
        function="Fetcher._load",
        change=never("if assigned_id"),
        tests=(
            (
                "tests/client/test_fetcher.py"
                "::test_an_assigned_topic_is_not_taken_for_an_older_one_of_its_name"
            ),
        ),
    ),
    Guard(
        name="an offset is found for its topic id only",
        why="a consumer of a recreated topic starts in its middle, or beyond its end",
        module="raftlog/consumer_groups/group.py",
        function="OffsetTable.committed",
        change=drop("compare topic_id"),
        tests=("tests/consumer_groups/test_group.py::test_none_is_none_and_never_0",),
    ),
    Guard(
        name="a coordinator with older metadata than the log does not decide",
        why="a new coordinator treats a topic as deleted that it has not received yet",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard.start",
        change=never("if _topics_version_min"),
        tests=(
            (
                "tests/consumer_groups/test_shard.py"
                "::test_no_offset_is_lost_by_a_coordinator_that_has_yet_to_hear_of_the_topic"
            ),
        ),
    ),
    Guard(
        name="each key of a deleted group has its tombstone",
        why="offsets reappear when compaction deletes the tombstone of the group",
        module="raftlog/consumer_groups/group.py",
        function="Group.tombstones",
        change=drop("starred OffsetKey"),
        tests=(
            "tests/consumer_groups/test_shard.py::test_every_key_of_a_deleted_group_has_its_tombstone",
        ),
    ),
]

CLASSIC: Final = [
    Guard(
        name="a generation is given once",
        why="members of two generations have the same number, and commit for each other",
        module="raftlog/consumer_groups/classic.py",
        function="ClassicGroup._complete",
        change=drop("assign generation"),
        tests=(
            (
                "tests/consumer_groups/test_classic.py"
                "::test_a_rebalance_waits_for_the_members_and_for_given_ids"
            ),
        ),
    ),
    Guard(
        name="a generation is that of an earlier coordinator, or newer",
        why="a new coordinator gives a generation to other members",
        module="raftlog/consumer_groups/classic.py",
        function="ClassicGroup.restore",
        change=replace("assign generation", "self.phase = _.value.elts[1]"),
        tests=(
            (
                "tests/consumer_groups/test_classic.py"
                "::test_the_next_coordinator_serves_the_same_generation"
            ),
        ),
    ),
    Guard(
        name="a request of another generation is rejected",
        why="a member that missed a rebalance commits offsets of another member's partitions",
        module="raftlog/consumer_groups/classic.py",
        function="ClassicGroup._check_generation",
        change=never("if generation"),
        tests=("tests/consumer_groups/test_classic.py::test_another_generation_is_refused",),
    ),
    Guard(
        name="a replaced static member is fenced",
        why="two consumers with one group.instance.id read the same partitions",
        module="raftlog/consumer_groups/classic.py",
        function="ClassicGroup.check_member",
        change=never("if InstanceFencedError"),
        tests=(
            (
                "tests/consumer_groups/test_classic.py"
                "::test_a_restarted_static_member_has_its_assignment_without_a_rebalance"
            ),
        ),
    ),
    Guard(
        name="a commit waits for the assignment of its generation",
        why="a member commits offsets of partitions that the generation assigns to another one",
        module="raftlog/consumer_groups/classic.py",
        function="ClassicGroup.check_commit",
        change=never("if phase"),
        tests=(
            (
                "tests/consumer_groups/test_classic.py"
                "::test_members_of_the_generation_commit_any_partition"
            ),
        ),
    ),
    Guard(
        name="subscriptions and assignments are bounded",
        why="a client fills the memory of the coordinator",
        module="raftlog/consumer_groups/classic.py",
        function="_check_bytes",
        change=never("if CLASSIC_METADATA_BYTES_MAX"),
        tests=(
            (
                "tests/consumer_groups/test_classic.py"
                "::test_bounds_are_checked_before_anything_changes"
            ),
        ),
    ),
    Guard(
        name="all subscriptions of a group are bounded",
        why="many members fill the memory of the coordinator",
        module="raftlog/consumer_groups/classic.py",
        function="_check_bytes",
        change=never("if CLASSIC_GROUP_BYTES_MAX"),
        tests=(
            "tests/consumer_groups/test_classic.py::test_all_subscriptions_of_a_group_are_bounded",
        ),
    ),
    Guard(
        name="a group has members of one protocol",
        why="two members of different protocols read one partition",
        module="raftlog/consumer_groups/group.py",
        function="Group.check_not_classic",
        change=never("if members"),
        tests=(
            (
                "tests/consumer_groups/test_classic.py"
                "::test_a_group_has_members_of_one_kind_and_keeps_its_offsets"
            ),
        ),
    ),
    Guard(
        name="a delayed KIP-848 heartbeat has no effect",
        why="a heartbeat from before an assignment counts as its release",
        module="raftlog/consumer_groups/shard.py",
        function="_sequence",
        change=never("if connection #2/2"),
        tests=(
            (
                "tests/consumer_groups/test_shard.py"
                "::test_a_heartbeat_of_an_older_connection_changes_nothing"
            ),
        ),
    ),
    Guard(
        name="omitted partitions are not released",
        why="a partition that a Kafka client still reads is assigned to another member",
        module="raftlog/consumer_groups/shard.py",
        function="_owned",
        change=always("if revoking"),
        tests=("tests/consumer_groups/test_shard.py::test_omitted_partitions_release_nothing",),
    ),
]

GUARDS: Final = (*MEMBERS, *CLASSIC, *OFFSETS)
