"""Guards of the port for Kafka's clients."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, drop, never, replace
from tests.mutation.guard import Guard

_CONNECTION: Final = "tests/kafka/test_connection.py"
_CODEC: Final = "tests/kafka/test_codec.py"
_PRODUCE: Final = "tests/server/kafka/test_produce.py"
_TOPICS: Final = "tests/server/kafka/test_topics.py"
_PATTERNS: Final = "tests/server/kafka/test_consumer_protocol.py"
_FETCH: Final = "tests/server/kafka/test_fetch.py"
_GROUP_ADMIN: Final = "tests/server/kafka/test_groups.py"
_OFFSETS_ONCE: Final = (
    "tests/server/kafka/handlers/test_group_offsets.py"
    "::test_a_request_for_offsets_has_a_group_once_and_a_limit_of_partitions"
)

GUARDS: Final = [
    Guard(
        name="responses to a Kafka client leave in order",
        why="the client takes a response for that of another request",
        module="raftlog/kafka/connection.py",
        function="KafkaConnectionState._ready",
        change=never("if _ready_bytes"),
        tests=(f"{_CONNECTION}::test_responses_leave_in_the_order_of_the_requests",),
    ),
    Guard(
        name="a Kafka request has a limited length",
        why="a client that claims 2 GiB makes the broker wait and hold what arrives",
        module="raftlog/kafka/codec.py",
        function="FrameReader._length",
        change=never("if _bytes_max"),
        tests=(f"{_CONNECTION}::test_bad_input_ends_the_connection",),
    ),
    Guard(
        name="a Kafka request without records has a lower limit",
        why="its parsed values take many times its length in memory",
        module="raftlog/kafka/codec.py",
        function="FrameReader._length",
        change=never("if PRODUCE"),
        tests=(f"{_CONNECTION}::test_bad_input_ends_the_connection",),
    ),
    Guard(
        name="the elements of a Kafka request have limited memory",
        why="a request of 8 MiB becomes 4,000,000 objects, and as many answers if it is refused",
        module="raftlog/kafka/codec.py",
        function="_counted",
        change=never("if KAFKA_DECODED_BYTES_MAX"),
        tests=(f"{_CODEC}::test_the_elements_of_a_request_have_limited_memory",),
    ),
    Guard(
        name="a Kafka produce request has a limited size uncompressed",
        why="600 KB of zstd take the threads of the broker for 40 s: other producers wait",
        module="raftlog/server/kafka/produce.py",
        function="_Produce._accepted",
        change=never("if _uncompressed_left"),
        tests=(f"{_PRODUCE}::test_a_request_has_a_limit_of_uncompressed_bytes",),
    ),
    Guard(
        name="Kafka batches behind a refused one are out of order",
        why="a broker that does not know the producer stores them, and the refused one never",
        module="raftlog/server/kafka/produce.py",
        function="_Produce.append",
        change=drop("call _check_order"),
        tests=(f"{_PRODUCE}::test_batches_behind_a_refused_one_are_out_of_order",),
    ),
    Guard(
        name="the refused Kafka batch itself is not out of order",
        why="a producer that sends it again can never continue",
        module="raftlog/server/kafka/produce.py",
        function="_Produce._check_order",
        change=always("compare >"),
        tests=(f"{_PRODUCE}::test_batches_behind_a_refused_one_are_out_of_order",),
    ),
    Guard(
        name="a request for all topics waits for them, also with access rules",
        why="clients take the empty list of a broker that has just started for all topics",
        module="raftlog/server/kafka/dispatch.py",
        function="dispatch",
        change=never("if awaits_topics"),
        tests=(
            (
                "tests/server/kafka/test_dispatch.py"
                "::test_all_visible_topics_are_listed_once_they_are_known"
            ),
        ),
    ),
    Guard(
        name="Metadata has each topic once",
        why="a request of 120 KB for one large topic takes 6.5 GB of memory",
        module="raftlog/server/kafka/metadata.py",
        function="_describe",
        change=replace("call values", "message.topics"),
        tests=("tests/server/kafka/test_metadata.py::test_metadata_has_a_topic_once",),
    ),
    Guard(
        name="OffsetFetch has each group once",
        why="a request of 20 KB for one large group takes gigabytes of memory",
        module="raftlog/server/kafka/group_offsets.py",
        function="handle_fetch",
        change=drop("call check_once"),
        tests=(_OFFSETS_ONCE,),
    ),
    Guard(
        name="OffsetFetch has a limited number of partitions over all groups",
        why="a request of 8 MB has 2 million partitions, as many as 200 requests",
        module="raftlog/server/kafka/group_offsets.py",
        function="handle_fetch",
        change=drop("call check_partitions"),
        tests=(_OFFSETS_ONCE,),
    ),
    Guard(
        name="DescribeGroups has each group once",
        why="a request of 10 KB for one large group takes gigabytes of memory",
        module="raftlog/server/kafka/groups.py",
        function="handle_describe",
        change=drop("call check_once"),
        tests=(f"{_GROUP_ADMIN}::test_a_group_is_described_once",),
    ),
    Guard(
        name="ConsumerGroupDescribe has each group once",
        why="a request of 10 KB for one large group takes gigabytes of memory",
        module="raftlog/server/kafka/consumer_protocol.py",
        function="handle_describe",
        change=drop("call check_once"),
        tests=(f"{_GROUP_ADMIN}::test_a_group_is_described_once",),
    ),
    Guard(
        name="varints of Kafka requests are short",
        why="a length of any size is computed from one request",
        module="raftlog/kafka/codec.py",
        function="read_varint",
        change=never("if BadMessageError"),
        tests=(f"{_CODEC}::test_a_varint_of_six_bytes_is_refused",),
    ),
    Guard(
        name="Kafka clients do not write to internal topics",
        why="a client's record is read as the state of a consumer group",
        module="raftlog/server/kafka/produce.py",
        function="_Produce.append",
        change=drop("call check_not_internal"),
        tests=(f"{_PRODUCE}::test_codes_of_partitions_that_are_refused",),
    ),
    Guard(
        name="a compacted topic accepts only Kafka records with keys",
        why="records that no record can replace fill it",
        module="raftlog/server/kafka/produce.py",
        function="_accepted",
        change=drop("keyword is_compacted"),
        tests=(f"{_PRODUCE}::test_records_without_keys_of_a_compacted_topic",),
    ),
    Guard(
        name="corrupt batches are not sent to Kafka clients",
        why="librdkafka does not check the CRC by default",
        module="raftlog/server/kafka/fetch.py",
        function="_rows",
        change=replace("call split_checked", "split_checked.__globals__['_split'](chunk)"),
        tests=(f"{_FETCH}::test_corrupt_records_are_not_sent",),
    ),
    Guard(
        name="a regular expression matches only topics that the client may describe",
        why="a member learns the names of topics, and is assigned partitions that it may not read",
        module="raftlog/server/kafka/consumer_protocol.py",
        function="matching",
        change=replace("call is_visible", "True"),
        tests=(f"{_PATTERNS}::test_whole_names_match_that_the_client_may_see",),
    ),
    Guard(
        name="a regular expression has a limited length",
        why="the compilation of one expression holds the loop of the coordinator",
        module="raftlog/server/kafka/consumer_protocol.py",
        function="matching",
        change=never("if SUBSCRIPTION_PATTERN_CHARS_MAX"),
        tests=(f"{_PATTERNS}::test_the_length_is_limited",),
    ),
    Guard(
        name="records are deleted below an offset of 0 or more",
        why="an offset that a program has forgotten deletes all records of a partition",
        module="raftlog/server/apis/topics.py",
        function="_before",
        change=never("if TO_HIGH_WATERMARK"),
        tests=(f"{_TOPICS}::test_records_are_deleted",),
    ),
    Guard(
        name="Kafka clients delete no records of a topic that is only compacted",
        why="the last record of each key is lost",
        module="raftlog/server/kafka/topics.py",
        function="_check_policy",
        change=never("if is_deleted_by_age"),
        tests=(f"{_TOPICS}::test_records_are_deleted",),
    ),
    Guard(
        name="access to a topic is decided by its ID if the request has one",
        why="a client reads the metadata of a topic that it may not describe",
        module="raftlog/server/kafka/access.py",
        function="_name",
        change=always("if ZERO_UUID"),
        tests=(
            "tests/server/kafka/test_dispatch.py::test_the_name_of_a_topic_is_not_shown_for_its_id",
        ),
    ),
]
