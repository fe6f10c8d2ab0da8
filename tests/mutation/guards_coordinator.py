"""Guards of the group coordinator: responses and their commits."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, both, drop, never, replace, value
from tests.mutation.guard import Guard

COORDINATOR: Final = "tests/server/groups/test_coordinator.py"
LOADING: Final = "tests/server/groups/test_shard.py"
ROUNDS: Final = "tests/server/test_scheduling.py"

SHARDS: Final = "tests/server/groups/test_shard.py"
BEATS: Final = "tests/server/consumer_groups/test_shard_heartbeats.py"
READING: Final = "tests/server/consumer_groups/test_shard_reading.py"
WIRE_STATE: Final = "tests/server/handlers/test_group_state.py"
INTERNAL_WIRE: Final = "tests/server/handlers/test_internal_topics.py"
CLUSTERS: Final = "tests/server/consumer_groups/test_clusters.py"

RESPONSES: Final = [
    Guard(
        name="a response waits for its commit",
        why="an offset commit succeeds, and is lost after a failover (S39)",
        module="raftlog/server/log_shard.py",
        function="PendingResponses.resolve",
        change=replace("call when_committed", "_.args[1](None)"),
        tests=(
            f"{SHARDS}::test_a_change_is_told_when_all_in_sync_have_it",
            f"{WIRE_STATE}::test_a_commit_is_told_when_it_is_on_the_disk",
        ),
    ),
    Guard(
        name="a response waits for all earlier decisions",
        why="a read returns an offset that is not committed, and that decreases",
        module="raftlog/server/log_shard.py",
        function="LogShard._resolve",
        change=argument("call resolve", "end", "self._end if _.keywords[2].value else 0"),
        tests=(
            f"{SHARDS}::test_a_read_waits_for_what_was_decided_before_it",
            f"{SHARDS}::test_a_refusal_waits_too",
        ),
    ),
    Guard(
        name="offsets are read from a confirmed leader",
        why="an isolated coordinator returns an old offset, and records are read again",
        module="raftlog/server/log_shard.py",
        function="LogShard.ask",
        change=drop("keyword _confirmations"),
        tests=(
            f"{SHARDS}::test_a_read_is_told_when_it_is_certain_who_leads",
            f"{CLUSTERS}::test_who_was_cut_off_tells_no_old_offset",
        ),
    ),
    Guard(
        name="a leadership confirmation covers earlier requests only",
        why="another leader may have started in between, and have committed more",
        module="raftlog/server/scheduling.py",
        function="Rounds._begin",
        change=replace("assign _under_way", "self._under_way = self._waiting"),
        tests=(f"{ROUNDS}::test_who_comes_while_a_question_is_under_way_waits_for_the_next",),
    ),
    Guard(
        name="a heartbeat is answered by a leader confirmed after it",
        why=("members stay with an isolated coordinator, while another one ends their sessions"),
        module="raftlog/server/groups/shard.py",
        function="ActiveShard._resolve_beat",
        change=drop("keyword mark"),
        tests=(
            f"{BEATS}::test_no_heartbeat_is_answered_by_who_led_before_it_came",
            f"{CLUSTERS}::test_members_of_who_was_cut_off_are_sent_away",
        ),
    ),
    Guard(
        name="an old confirmation renews no lease",
        why="an isolated coordinator keeps its members past the sessions of its successor",
        module="raftlog/server/scheduling.py",
        function="Rounds.ask",
        change=replace("compare _answered", "self._answered"),
        tests=(
            f"{ROUNDS}::test_an_answer_counts_for_all_that_came_before_its_question",
            f"{BEATS}::test_no_heartbeat_is_answered_by_who_led_before_it_came",
        ),
    ),
    Guard(
        name="a keepalive is sent by a leader confirmed after the heartbeat",
        why=(
            "a member that only reaches a deposed coordinator continues while another has "
            "its assignment"
        ),
        module="raftlog/server/groups/shard.py",
        function="HeartbeatAnswer._confirm",
        change=replace("call ask", "self._reassure(None)"),
        tests=("tests/server/groups/test_shard.py::test_who_leads_no_more_reassures_nobody",),
    ),
    Guard(
        name="only members receive an unchanged assignment",
        why="a removed member continues, or one joins in what is never committed",
        module="raftlog/server/groups/shard.py",
        function="HeartbeatKeepalive.last",
        change=drop("not member_epoch", "not _may_repeat"),
        tests=(
            f"{BEATS}::test_whoever_is_thrown_out_hears_nothing_before_that_is_committed",
            f"{BEATS}::test_who_joins_hears_nothing_before_that_is_committed",
        ),
    ),
    Guard(
        name="a former leader sends no assignment",
        why="commits at later offsets are another leader's decision",
        module="raftlog/server/log_shard.py",
        function="LogShard._resolve",
        change=value("if is_over", "self._closed"),
        tests=(f"{BEATS}::test_who_leads_no_more_tells_nothing_even_if_nobody_has_noticed",),
    ),
    Guard(
        name="an uncommitted write has an unknown outcome",
        why=("a commit that was applied is reported as failed, and sent again over a newer one"),
        module="raftlog/server/log_shard.py",
        function="PendingResponses._failure",
        change=drop("if is_appended"),
        tests=(
            (
                f"{SHARDS}"
                "::test_what_was_appended_and_is_not_committed_when_leadership_ends_is_unknown"
            ),
        ),
    ),
    Guard(
        name="requests to an isolated leader time out",
        why="a client waits until the network works again",
        module="raftlog/server/log_shard.py",
        function="PendingResponses._lose_patience",
        change=replace("call ask", "pass"),
        tests=(
            (
                "tests/server/groups/test_shard.py"
                "::test_nobody_waits_for_a_commit_that_a_leader_cut_off_will_not_make"
            ),
        ),
    ),
]

STATE: Final = [
    Guard(
        name="a state change that the log rejects is reverted",
        why=(
            "the state contains what no log has: members receive it, and it is lost after a "
            "failover"
        ),
        module="raftlog/server/log_shard.py",
        function="LogShard._carry_out",
        change=drop("call _begin_anew"),
        tests=(
            f"{SHARDS}::test_what_the_log_does_not_take_is_forgotten",
            f"{WIRE_STATE}::test_a_full_disk_refuses_commits_and_forgets_nothing",
        ),
    ),
    Guard(
        name="a state that an error left incomplete is discarded",
        why="the coordinator continues with a state that is not in the log",
        module="raftlog/server/log_shard.py",
        function="LogShard._operate",
        change=drop("call _begin_anew"),
        tests=(f"{SHARDS}::test_a_mistake_of_ours_is_forgotten_too",),
    ),
    Guard(
        name="a new coordinator reads up to the end of its log",
        why="what an earlier leader acknowledged is missing: offsets decrease",
        module="raftlog/server/log_shard.py",
        function="load",
        change=both(
            replace("await committed", "_.value.args[1] = _.value.args[0].high_watermark"),
            always("assert is_ready"),
        ),
        tests=(
            f"{READING}::test_a_new_leader_reads_all_once_that_is_committed",
            f"{LOADING}::test_it_waits_for_what_is_not_committed_yet",
        ),
    ),
    Guard(
        name="a state is of one leader epoch",
        why="another leader has decided what this state does not have",
        module="raftlog/server/log_shard.py",
        function="LogShard.is_over",
        change=drop("compare epoch"),
        tests=(
            f"{SHARDS}::test_a_new_epoch_is_another_shards",
            f"{COORDINATOR}::test_a_new_epoch_is_read_anew",
        ),
    ),
    Guard(
        name="a request's shard knows the topics that the client knows",
        why="a commit for a new topic is refused, right after this broker reported the topic",
        module="raftlog/server/groups/coordinator.py",
        function="Coordinator.shard",
        change=drop("if _unnotified"),
        tests=(
            ("tests/server/groups/test_coordinator.py::test_who_asks_finds_a_shard_that_has_heard"),
        ),
    ),
    Guard(
        name="a coordinator starts with current topics",
        why="it has older metadata than its log, and waits indefinitely",
        module="raftlog/server/groups/coordinator.py",
        function="Coordinator._topics_now",
        change=drop("assign _known"),
        tests=((f"{COORDINATOR}::test_a_shard_begins_with_the_topics_of_now"),),
    ),
    Guard(
        name="loading yields to other work",
        why="a broker that becomes a coordinator does not respond for seconds",
        module="raftlog/server/log_shard.py",
        function="_replay",
        change=drop("if RECORDS_PER_TURN"),
        tests=(f"{LOADING}::test_others_have_their_turn_in_between",),
    ),
    Guard(
        name="the topic of groups gets the replicas that it lacked",
        why="the offsets of groups are lost with fewer brokers than the records",
        module="raftlog/server/cluster/internal_topics.py",
        function="raised",
        change=always("if replication_factor"),
        tests=(
            (
                "tests/server/cluster/test_state_copy.py"
                "::test_a_broker_that_is_down_at_the_first_commit_gets_its_replicas_later"
            ),
        ),
    ),
    Guard(
        name="a topic without a replication factor counts brokers that are down",
        why="it is created with fewer copies than the cluster has brokers, and keeps them",
        module="raftlog/server/cluster/topics.py",
        function="ClusterTopics._usual_copies",
        change=never("if ClusterNotReadyError"),
        tests=(
            (
                "tests/server/cluster/test_state_copy.py"
                "::test_a_topic_without_a_replication_factor_waits_for_a_broker_that_is_down"
            ),
        ),
    ),
    Guard(
        name="the topic of groups waits for all brokers",
        why="it is created with fewer copies than the cluster could have, and keeps them",
        module="raftlog/server/groups/coordinator.py",
        function="TopicMaker._possible_copies",
        change=never("if ClusterNotReadyError"),
        tests=(
            (
                "tests/server/groups/test_coordinator.py"
                "::test_brokers_that_have_yet_to_come_are_waited_for_and_not_for_ever"
            ),
        ),
    ),
]

INTERNAL: Final = [
    Guard(
        name="clients do not write to internal topics",
        why="a client's record is read as the state of a consumer group",
        module="raftlog/server/apis/produce.py",
        function="_Produce.append",
        change=drop("call check_not_internal"),
        tests=(f"{INTERNAL_WIRE}::test_clients_do_not_write_it",),
    ),
    Guard(
        name="clients do not delete internal topics",
        why="one command deletes all groups and their committed offsets",
        module="raftlog/server/apis/topics.py",
        function="delete_topic",
        change=drop("call check_not_internal"),
        tests=(f"{INTERNAL_WIRE}::test_clients_do_not_change_it[delete]",),
    ),
    Guard(
        name="clients do not extend internal topics",
        why="groups are searched in other partitions than those that store them",
        module="raftlog/server/apis/topics.py",
        function="extend_topic",
        change=drop("call check_not_internal"),
        tests=(f"{INTERNAL_WIRE}::test_clients_do_not_change_it[extend]",),
    ),
]

SCHEMAS: Final = [
    Guard(
        name="a permanent deletion keeps the next schema ID",
        why="after compaction an ID is given again, and values are read with another schema",
        module="raftlog/registry/state.py",
        function="Registry._deletions",
        change=value("return GLOBAL", "records"),
        tests=("tests/registry/test_rest.py::test_deletions_are_soft_and_then_permanent",),
    ),
]

GUARDS: Final = [*RESPONSES, *STATE, *INTERNAL, *SCHEMAS]
