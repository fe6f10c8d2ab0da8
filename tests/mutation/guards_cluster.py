"""Guards of the cluster state: brokers, topics, producer ids."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, never, replace, value
from tests.mutation.guard import Guard

CLUSTER: Final = [
    Guard(
        name="a single copy does not depend on the page cache",
        why=("a power failure of one broker removes acknowledged records that have no other copy"),
        module="raftlog/config/topic.py",
        function="TopicConfig.check_replication",
        change=replace("compare 1", "not _.left"),
        tests=(
            "tests/server/apis/test_topics.py::test_one_copy_is_not_left_to_the_page_cache",
            "tests/replication/test_cluster_state.py::test_a_topic_that_cannot_be_is_refused",
        ),
    ),
    Guard(
        name="a deletion applies to the topic that it was requested for",
        why=(
            "a deletion that was requested before a topic was recreated deletes the new "
            "topic and its acknowledged records"
        ),
        module="raftlog/server/cluster/topics.py",
        function="ClusterTopics.delete",
        change=argument("call DeleteTopic", "topic_id", "None if _.test else _.orelse"),
        tests=(
            (
                "tests/server/cluster/test_operations.py"
                "::test_a_deletion_by_a_broker_that_knows_no_such_topic_deletes_none"
            ),
        ),
    ),
    Guard(
        name="an old copy of a broker does not register",
        why="a restored disk leads without what it has lost (S22)",
        module="raftlog/replication/cluster_commands.py",
        function="check_registration",
        change=never("if StaleBrokerError"),
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_registration_that_cannot_be_the_same_broker_is_refused"
            ),
        ),
    ),
    Guard(
        name="a broker id has one live disk",
        why="two brokers with one id replace each other (S22)",
        module="raftlog/replication/cluster_commands.py",
        function="check_registration",
        change=never("if fenced directory_id"),
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_registration_that_cannot_be_the_same_broker_is_refused"
            ),
        ),
    ),
    Guard(
        name="a copy of a live directory does not register",
        why="two processes have one directory id",
        module="raftlog/replication/cluster_commands.py",
        function="check_registration",
        change=never("operand boot"),
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_registration_that_cannot_be_the_same_broker_is_refused"
            ),
        ),
    ),
    Guard(
        name="fencing is for one registration",
        why="a broker that rejoined is fenced for an older incarnation (KIP-903)",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._registered",
        change=never("if broker_epoch"),
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_broker_epoch_grows_at_every_registration"
            ),
        ),
    ),
    Guard(
        name="a registration begins fenced",
        why="a broker is counted on before it serves",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._register",
        change=argument("call BrokerRecord", "fenced", "False"),
        tests=(
            "tests/replication/test_cluster_state.py::test_a_broker_is_fenced_until_it_is_let_in",
        ),
    ),
    Guard(
        name="replicas are recorded by version",
        why="an older assignment replaces a newer one",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._set_replicas",
        change=never("if version"),
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_replicas_follow_what_the_partition_has_agreed_on"
            ),
        ),
    ),
    Guard(
        name="min.insync.replicas can be met",
        why="nothing can ever be committed",
        module="raftlog/config/topic.py",
        function="TopicConfig.check_replication",
        change=never("if min_insync_replicas"),
        tests=("tests/replication/test_cluster_state.py::test_a_topic_that_cannot_be_is_refused",),
    ),
    Guard(
        name="a deletion is of one topic id",
        why="a repeated deletion deletes the topic that was created since (S19)",
        module="raftlog/replication/cluster_state.py",
        function="ClusterMachine._delete",
        change=never("if topic_id"),
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_deletion_may_be_repeated_and_leaves_a_namesake_alone"
            ),
        ),
    ),
    Guard(
        name="producer ids cannot be guessed",
        why=(
            "another client's batch under the next id counts as the producer's, whose own "
            "batch is discarded"
        ),
        module="raftlog/server/apis/produce.py",
        function="draw",
        change=value("assign PRODUCER_ID_BITS", "int.from_bytes(_.left.args[0].func(1))"),
        tests=("tests/server/apis/test_produce.py",),
    ),
    Guard(
        name="producer ids differ from those of named producers",
        why=("a producer gets the id of another one's name, and its records count as duplicates"),
        module="raftlog/server/apis/produce.py",
        function="",
        change=value("assign Final PRODUCER_ID_BITS", "63"),
        tests=("tests/server/apis/test_produce.py",),
    ),
]

GUARDS: Final = [*CLUSTER]
