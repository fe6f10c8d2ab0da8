"""Guards of broker responses to producers, consumers and offset requests."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, replace, swap, value
from tests.mutation.guard import Guard

GUARDS_EPOCHS: Final = "tests/server/test_guards.py"
GUARDS_HOSTS: Final = "tests/server/test_guards.py"
LEADERSHIP: Final = "tests/replication/test_leadership.py"
LEADERSHIP_CHECK: Final = "tests/server/cluster/test_fetch_session.py"
MIGRATION: Final = "tests/server/cluster/test_migration.py"
PARTITION: Final = "tests/server/test_partition.py"
PRODUCE: Final = "tests/server/apis/test_produce.py"
SPACE: Final = "tests/server/test_broker.py"

HOSTS: Final = [
    Guard(
        name="a corrupt copy redirects producers to another leader",
        why="a producer fails records that the next leader would accept",
        module="raftlog/server/partition.py",
        function="Partition._append_by",
        change=value("if replicas", "_.left.args[0]"),
        tests=(
            (
                "tests/server/test_partition.py"
                "::test_who_appends_to_a_damaged_log_is_told_to_ask_another_if_there_is_one"
            ),
        ),
    ),
    Guard(
        name="only the leader appends",
        why="two brokers assign one offset to two records",
        module="raftlog/server/partition.py",
        function="Partition.check_leading",
        change=value("if leadership", "_ and self.log is None"),
        tests=(f"{GUARDS_HOSTS}::test_who_follows_appends_nothing",),
    ),
    Guard(
        name="NOT_ENOUGH_REPLICAS precedes the append",
        why="a rejected record is in the log, and is committed later (S11)",
        module="raftlog/server/partition.py",
        function="Partition._append_by",
        change=replace("not has_quorum", "_.operand.value is None"),
        tests=(f"{GUARDS_HOSTS}::test_what_could_not_be_committed_is_not_appended",),
    ),
    Guard(
        name="acks=all waits for the commit",
        why="a record is acknowledged that a failover loses",
        module="raftlog/server/apis/produce.py",
        function="append",
        change=replace("call when_committed", "_.args[1](None)"),
        tests=(f"{PRODUCE}::test_batches_get_consecutive_offsets",),
    ),
    Guard(
        name="acks=1 waits for the disk",
        why="a record is acknowledged that a power failure loses",
        module="raftlog/server/apis/produce.py",
        function="append",
        change=replace("call when_on_disk", "_.args[1](None)"),
        tests=(f"{PRODUCE}::test_acknowledgement_waits_for_the_disk",),
    ),
    Guard(
        name="waiting for a commit",
        why="a record is acknowledged before it is committed (S25)",
        module="raftlog/server/partition.py",
        function="Partition.when_committed",
        change=value("if _high_watermark", "_.left <= self.log.log_end_offset"),
        tests=(f"{PARTITION}::test_waits_end_in_the_order_of_the_log",),
    ),
    Guard(
        name="waiters complete only up to the committed offset",
        why="every waiting producer is acknowledged with the first one",
        module="raftlog/server/scheduling.py",
        function="OffsetWaiters.reached",
        change=drop("compare 0"),
        tests=(
            (
                "tests/server/test_scheduling.py"
                "::test_they_are_told_in_their_order_as_far_as_the_log_has_come"
            ),
        ),
    ),
    Guard(
        name="waiting producers fail when the role ends",
        why="the new leader's watermark acknowledges what it does not have",
        module="raftlog/server/partition.py",
        function="Partition._leave_role",
        change=drop("call refuse _waiting_for_commit"),
        tests=(
            f"{GUARDS_HOSTS}::test_a_producer_that_waits_hears_that_the_leader_is_none_any_more",
        ),
    ),
    Guard(
        name="reads end at the high watermark",
        why="a consumer reads records that a failover removes (S26)",
        module="raftlog/server/partition.py",
        function="Partition.read",
        change=argument("call read", "end_offset", "self.log.log_end_offset"),
        tests=(f"{PARTITION}::test_readers_see_only_what_is_committed",),
    ),
    Guard(
        name="times are looked up below the high watermark",
        why="a consumer receives the offset of an uncommitted record",
        module="raftlog/server/partition.py",
        function="Partition.offset_for_timestamp",
        change=argument("call offset_for_timestamp", "end_offset", "self.log.log_end_offset"),
        tests=(f"{GUARDS_HOSTS}::test_a_time_is_looked_up_in_what_is_committed",),
    ),
    Guard(
        name="only what is committed is deleted",
        why="records are deleted that are never committed",
        module="raftlog/server/partition.py",
        function="Partition.delete_records",
        change=never("if _high_watermark"),
        tests=(f"{PARTITION}::test_only_what_is_committed_can_be_deleted",),
    ),
    Guard(
        name="a follower's watermark is in its log",
        why="a follower serves records that it does not have",
        module="raftlog/server/partition.py",
        function="Partition.advance_high_watermark",
        change=value("assign log_end_offset", "_.args[0]"),
        tests=(
            "tests/server/cluster/test_fetcher.py::test_the_watermark_is_never_ahead_of_the_log",
        ),
    ),
    Guard(
        name="a follower's watermark never decreases",
        why="records vanish for a consumer of a follower",
        module="raftlog/server/partition.py",
        function="Partition.advance_high_watermark",
        change=swap("compare _high_watermark", "!="),
        tests=(f"{GUARDS_HOSTS}::test_the_watermark_of_a_follower_never_goes_back",),
    ),
    Guard(
        name="clients of an older epoch are fenced",
        why="a client that knows an old leader continues to read (KIP-320)",
        module="raftlog/server/partition.py",
        function="check_epoch",
        change=never("if FencedLeaderEpochError"),
        tests=(
            f"{GUARDS_HOSTS}::test_a_client_of_another_epoch_is_told_which_of_the_two_is_older",
        ),
    ),
    Guard(
        name="clients of any other epoch are rejected",
        why="a client that knows a newer leader receives a response of the old one (S04)",
        module="raftlog/server/partition.py",
        function="check_epoch",
        change=always("if 1"),
        tests=(
            f"{GUARDS_HOSTS}::test_a_client_of_another_epoch_is_told_which_of_the_two_is_older",
        ),
    ),
    Guard(
        name="a producer of another epoch",
        why=("the old leader accepts records of a producer that knows a newer leader (KIP-320)"),
        module="raftlog/server/apis/produce.py",
        function="_Produce.append",
        change=drop("call check_epoch"),
        tests=(
            (
                "tests/server/test_guards.py"
                "::test_records_of_a_producer_that_knows_a_newer_leader_are_not_appended"
            ),
        ),
    ),
    Guard(
        name="a search by time decompresses large batches in a thread",
        why="one request of a client stops the broker for seconds, and its session ends",
        module="raftlog/storage/log.py",
        function="Log.offset_for_timestamp",
        change=value("assign VALIDATED_ON_LOOP_BYTES_MAX", "False"),
        tests=("tests/storage/test_log.py::test_a_large_batch_is_searched_by_a_thread",),
    ),
    Guard(
        name="a consumer of another epoch",
        why=("a consumer that knows a newer leader continues to read from the old one (KIP-320)"),
        module="raftlog/server/apis/fetch.py",
        function="Read.begin",
        change=drop("call check_epoch"),
        tests=(f"{GUARDS_EPOCHS}::test_a_consumer_that_knows_a_newer_leader_is_given_nothing",),
    ),
    Guard(
        name="an offset request of another epoch",
        why="a consumer that knows a newer leader receives the old one's end (S04)",
        module="raftlog/server/apis/offsets.py",
        function="look_up",
        change=drop("call check_epoch"),
        tests=(f"{GUARDS_EPOCHS}::test_a_consumer_that_knows_a_newer_leader_is_told_no_offset",),
    ),
    Guard(
        name="a leader starts a new epoch at its log's end",
        why="it is ready immediately, and reports a lower end than before (P3)",
        module="raftlog/server/partition.py",
        function="Partition.lead",
        change=argument("call Leadership", "epoch_start", "0"),
        tests=(f"{GUARDS_HOSTS}::test_a_new_leader_is_ready_when_all_that_it_found_is_committed",),
    ),
    Guard(
        name="a group that is younger than its log continues the epochs of the log",
        why="after a migration one epoch has records of two leaders (KAFKA-10527)",
        module="raftlog/server/cluster/replicas.py",
        function="Partitions._open_group",
        change=never("if leader_epoch"),
        tests=(f"{MIGRATION}::test_the_broker_continues_with_its_topics_in_new_epochs",),
    ),
    Guard(
        name="the journal of a migrated directory is complete before it has its name",
        why="after a power failure the broker has no topics, and no migration creates them",
        module="raftlog/server/cluster/migration.py",
        function="migrate",
        change=drop("call sync"),
        tests=(f"{MIGRATION}::test_a_kill_at_any_step_loses_nothing",),
    ),
    Guard(
        name="a broker without a secret accepts no other broker",
        why="anyone who reaches its port proves to know the empty secret",
        module="raftlog/server/peers/links.py",
        function="Peering.answering",
        change=never("if secret"),
        tests=("tests/server/apis/test_peer.py::test_without_a_secret_there_are_no_peers",),
    ),
    Guard(
        name="offsets are looked up once the leader is ready",
        why=(
            "after a failover ends decrease (P3), and committed records are not found by their time"
        ),
        module="raftlog/server/apis/offsets.py",
        function="look_up",
        change=never("if is_ready"),
        tests=(f"{GUARDS_HOSTS}::test_an_offset_is_told_once_the_leader_is_ready_and_confirmed",),
    ),
    Guard(
        name="only the leader reports offsets",
        why="a replica that lags reports an old end",
        module="raftlog/server/apis/offsets.py",
        function="look_up",
        change=drop("call check_leading"),
        tests=(f"{GUARDS_HOSTS}::test_a_follower_tells_no_end",),
    ),
    Guard(
        name="an offset is confirmed before it is reported",
        why="an isolated leader reports an end that its successor has passed (P3)",
        module="raftlog/server/apis/offsets.py",
        function="look_up",
        change=replace("call confirm", "_.args[1](None)"),
        tests=(f"{GUARDS_HOSTS}::test_an_offset_is_told_once_the_leader_is_ready_and_confirmed",),
    ),
]

DELETING: Final = [
    Guard(
        name="a start is committed by all of the ISR",
        why="records whose deletion was confirmed to a client reappear with the next leader",
        module="raftlog/replication/leadership.py",
        function="Leadership._advance",
        change=value("assign durable_end #2/2", "(copy.durable_end, self.log_start)"),
        tests=(
            f"{LEADERSHIP}::test_a_start_is_committed_when_every_member_of_the_isr_starts_there",
        ),
    ),
    Guard(
        name="joining requires the start of the log",
        why="a leader is elected whose log starts where an earlier one had deleted records",
        module="raftlog/replication/leadership.py",
        function="Leadership._may_join",
        change=drop("compare _start_at_first"),
        tests=(
            (
                "tests/replication/test_leadership.py"
                "::test_a_follower_joins_when_its_log_starts_where_an_earlier_leaders_may_have"
            ),
        ),
    ),
    Guard(
        name="a deletion waits for the ISR",
        why="a deletion is acknowledged that only the leader has performed",
        module="raftlog/server/partition.py",
        function="Partition.delete_records.deleted",
        change=replace("call _await_start", "done(None)"),
        tests=(f"{GUARDS_HOSTS}::test_a_start_is_told_once_no_later_leader_can_start_lower",),
    ),
    Guard(
        name="nothing is deleted below min_isr",
        why="a deletion begins that no replica may confirm",
        module="raftlog/server/partition.py",
        function="Partition.delete_records",
        change=never("if has_quorum"),
        tests=(f"{GUARDS_HOSTS}::test_nothing_is_deleted_below_min_isr",),
    ),
    Guard(
        name="a start is reported when it is committed",
        why="the reported log start decreases with the next leader",
        module="raftlog/server/partition.py",
        function="Partition.committed_start",
        change=replace("call _await_start", "committed(None)"),
        tests=(f"{GUARDS_HOSTS}::test_a_start_is_told_once_no_later_leader_can_start_lower",),
    ),
    Guard(
        name="a read below the start ends for good when the start is committed",
        why="a consumer skips records that the next leader still has",
        module="raftlog/server/partition.py",
        function="Partition._check_start",
        change=never("compare committed_start"),
        tests=(f"{GUARDS_HOSTS}::test_a_start_is_told_once_no_later_leader_can_start_lower",),
    ),
    Guard(
        name="a log start counts when it is durable",
        why="a power failure restores records whose deletion was acknowledged",
        module="raftlog/storage/log.py",
        function="Log.advance_log_start",
        change=replace(
            "assign log_start_offset", "self.log_start_offset = self.durable_start_offset = _.value"
        ),
        tests=(
            (
                "tests/server/test_partition.py"
                "::test_the_start_moves_at_once_and_is_answered_when_it_is_durable"
            ),
        ),
    ),
]

CONFIRMING: Final = [
    Guard(
        name="a leader is confirmed by all of the ISR",
        why="a follower of another leader is not queried",
        module="raftlog/server/cluster/fetch_session.py",
        function="_Check.on_fetch",
        change=value("if _end", "self._missing is not None"),
        tests=((f"{LEADERSHIP_CHECK}::test_all_the_others_have_to_be_heard"),),
    ),
    Guard(
        name="a leader is confirmed by all of the ELR",
        why=("a member of the ELR may have been elected: ends decrease, partitions get two owners"),
        module="raftlog/server/cluster/fetch_session.py",
        function="LeadershipCheck.confirm",
        change=value("assign keys", "_.left"),
        tests=(f"{LEADERSHIP_CHECK}::test_a_member_of_the_elr_has_to_be_heard_too",),
    ),
    Guard(
        name="a group confirms its leader",
        why="a command is applied although another leader was elected before it",
        module="raftlog/server/cluster/fetch_session.py",
        function="LeadershipCheck._ask_group.applied",
        change=replace("compare _broker_id", "_.left.elts[0] is None"),
        tests=(
            f"{LEADERSHIP_CHECK}::test_a_group_that_has_elected_another_leader_confirms_nothing",
        ),
    ),
    Guard(
        name="a confirmation is of this epoch",
        why="a follower that copies in another epoch confirms an old leader",
        module="raftlog/server/cluster/fetch_session.py",
        function="_Check.on_fetch",
        change=always("if _epoch"),
        tests=(f"{LEADERSHIP_CHECK}::test_who_follows_in_another_epoch_confirms_nothing",),
    ),
    Guard(
        name="a confirmation ends when the leader steps down",
        why="a former leader reports an end",
        module="raftlog/server/cluster/fetch_session.py",
        function="_Check._end",
        change=never("or _epoch"),
        tests=(f"{LEADERSHIP_CHECK}::test_a_leader_that_is_one_no_more_says_so",),
    ),
    Guard(
        name="a confirmation is newer than its request",
        why="what a follower reported before the request confirms an old leader",
        module="raftlog/server/cluster/fetch_session.py",
        function="FetchSession.when_fetched_again",
        change=replace("binop _round", "self._round"),
        tests=(
            (
                "tests/server/test_guards.py"
                "::test_who_is_asked_for_a_sign_gives_it_after_the_question"
            ),
        ),
    ),
]

FINDING_DAMAGE: Final = [
    Guard(
        name="a consumer's report makes the broker verify its disk",
        why=(
            "corrupt bytes are sent to consumers indefinitely, although other brokers have "
            "valid ones"
        ),
        module="raftlog/server/apis/fetch.py",
        function="Read._read_batches",
        change=never("if doubtful"),
        tests=(
            (
                "tests/server/handlers/test_fetch.py"
                "::test_who_got_damaged_bytes_has_the_broker_look_at_its_disk"
            ),
        ),
    ),
    Guard(
        name="a consumer reports a corrupt batch",
        why="the broker never detects it",
        module="raftlog/client/fetcher.py",
        function="Fetcher._fetch",
        change=argument("call FetchPartition", "doubtful", "False"),
        tests=(
            (
                "tests/client/test_consumer.py"
                "::test_what_came_damaged_once_is_asked_for_again_and_nobody_is_told"
            ),
        ),
    ),
    Guard(
        name="a scrub finds corruption",
        why="an unread copy decays until the valid ones are lost",
        module="raftlog/server/maintenance.py",
        function="Scrubber._verify_next",
        change=value("assign _verifier", "_.args[1].value.end_offset"),
        tests=(
            (
                "tests/server/test_maintenance.py"
                "::test_what_is_found_is_noted_told_and_not_looked_at_again"
            ),
        ),
    ),
]

WATERMARKS: Final = [
    Guard(
        name="producers do not use the last disk space",
        why="a full disk leaves no space for offsets of groups and for compaction",
        module="raftlog/server/partition.py",
        function="Partition.append.write",
        change=drop("if check_producer"),
        tests=(f"{PARTITION}::test_below_a_watermark_nothing_grows_and_retries_are_answered",),
    ),
    Guard(
        name="a retry is acknowledged below a watermark",
        why="a producer reports a stored batch as not stored",
        module="raftlog/server/partition.py",
        function="Partition.append.write",
        change=drop("operand _is_stored"),
        tests=(f"{PARTITION}::test_below_a_watermark_nothing_grows_and_retries_are_answered",),
    ),
    Guard(
        name="a follower does not use the last disk space",
        why="replication fills a disk that is smaller than the leader's",
        module="raftlog/server/partition.py",
        function="Partition.append_copied",
        change=drop("call check_replication"),
        tests=(f"{GUARDS_HOSTS}::test_a_follower_copies_until_the_second_watermark_of_its_disk",),
    ),
    Guard(
        name="internal topics may use the last disk space",
        why="groups commit no offsets while producers are refused",
        module="raftlog/server/disks.py",
        function="DiskSpace._check",
        change=drop("operand is_internal_topic"),
        tests=(f"{SPACE}::test_producers_are_refused_first_and_internal_topics_never",),
    ),
]

GUARDS: Final = [*WATERMARKS, *HOSTS, *DELETING, *CONFIRMING, *FINDING_DAMAGE]
