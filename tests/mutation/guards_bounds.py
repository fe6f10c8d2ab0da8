"""Guards of the broker's time and memory limits against hostile clients."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, drop, never, replace, value
from tests.mutation.guard import Guard

_TURNS: Final = "tests/server/test_scheduling.py"
_CONSENSUS: Final = "tests/consensus/test_node.py"
_HTTP: Final = "tests/server/http/test_app.py"
_PRODUCERS: Final = "tests/server/apis/test_producers.py"
_RECORDS: Final = "tests/cli/console/test_records.py"
_LAG: Final = "tests/server/http/test_collect.py"
_AVRO: Final = "tests/cli/console/test_avro.py"
_HOSTILE: Final = f"{_AVRO}::test_a_hostile_schema_is_rejected"
_OPERATIONS: Final = "tests/server/test_operations.py"

GUARDS: Final = [
    Guard(
        name="long requests yield",
        why="one request of thousands of partitions stops the broker for seconds",
        module="raftlog/server/scheduling.py",
        function="Turns.has_time",
        change=always("compare _now"),
        tests=(f"{_TURNS}::test_a_long_request_gives_way_to_a_short_one_of_another_connection",),
    ),
    Guard(
        name="a turn of consensus processes some groups",
        why="after the loss of a broker, elections of 9,000 groups hold the loop for 0.5 s",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._work",
        change=replace("call islice", "self._pass"),
        tests=(f"{_CONSENSUS}::test_a_call_processes_some_groups_and_the_next_ones_the_others",),
    ),
    Guard(
        name="work in a thread delays its connection",
        why="a producer's next batch is appended before the one that a thread validates",
        module="raftlog/server/connection.py",
        function="Connection._go_on",
        change=drop("attribute _in_thread"),
        tests=(f"{_TURNS}::test_work_for_a_thread_gives_its_result_or_its_error",),
    ),
    Guard(
        name="a request names each partition once",
        why="10,000 entries of the same partition cost 10,000 reads",
        module="raftlog/server/exchange.py",
        function="check_once",
        change=value("if 2", "_.values[0].left.args[0]"),
        tests=("tests/server/test_dispatch.py::test_what_is_named_twice_is_refused",),
    ),
    Guard(
        name="the memory of waiting fetches is limited",
        why="waiting fetches occupy gigabytes",
        module="raftlog/server/purgatory.py",
        function="Purgatory.park",
        change=never("while _bytes_max"),
        tests=(
            "tests/server/test_scheduling.py::test_over_the_bound_who_has_most_is_answered_before_its_time",
        ),
    ),
    Guard(
        name="memory grows with the received bytes",
        why="500 connections with 20 bytes each occupy a gigabyte",
        module="raftlog/protocol/connection.py",
        function="FrameReader._begin_large",
        change=argument("call bytearray", 0, "_.args[0].args[0]"),
        tests=("tests/protocol/test_connection.py::test_memory_grows_only_with_what_arrives",),
    ),
    Guard(
        name="slow senders do not block others",
        why="200 connections that rarely send a byte occupy the memory of all others",
        module="raftlog/server/connection.py",
        function="Connections._relieve",
        change=replace("compare received_bytes", "_.left.left < _.left.right"),
        tests=(
            (
                "tests/server/test_connection.py"
                "::test_those_who_send_too_little_are_closed_while_others_wait_for_memory"
            ),
        ),
    ),
    Guard(
        name="peers have connection slots of their own",
        why="max.connections of clients keep a broker out of the ISR",
        module="raftlog/server/connection.py",
        function="Connections.connected",
        change=value("if has_secret", "self._config.max_connections"),
        tests=(
            (
                "tests/server/test_connection.py"
                "::test_in_a_cluster_a_connection_beyond_the_limit_may_be_a_brokers"
            ),
        ),
    ),
    Guard(
        name="each round trip of a handshake has its own time",
        why="brokers a second apart never link up",
        module="raftlog/server/peers/links.py",
        function="_in_time",
        change=argument("call timeout", 0, "_.args[0] / 2"),
        tests=(
            (
                "tests/server/peers/test_links.py"
                "::test_a_handshake_survives_a_second_of_latency_each_way"
            ),
        ),
    ),
    Guard(
        name="the rate of leadership transfers is limited",
        why="828 requests in 10 s cause 790 elections",
        module="raftlog/server/cluster/operations.py",
        function="ClusterOperations.transfer_leader",
        change=replace("call admit", "assert _.args[1] >= 0"),
        tests=(
            ("tests/server/cluster/test_operations.py::test_leadership_is_not_moved_again_at_once"),
        ),
    ),
    Guard(
        name="a secret file must be private",
        why="any user of the machine can act as a broker",
        module="raftlog/server/broker.py",
        function="_read_private",
        change=never("if S_IROTH"),
        tests=("tests/server/test_broker.py::test_a_secret_is_long_and_not_for_everybody",),
    ),
    Guard(
        name="HTTP connections are limited",
        why="clients of the HTTP port use all file descriptors of the broker",
        module="raftlog/server/http/app.py",
        function="_Connection.connection_made",
        change=never("if HTTP_CONNECTIONS_MAX"),
        tests=(f"{_HTTP}::test_connections_beyond_the_limit_are_closed_and_the_broker_serves",),
    ),
    Guard(
        name="a summary of the cluster names a bounded number of partitions",
        why="one request of an operator blocks a broker whose 10,000 partitions have a problem",
        module="raftlog/server/operations.py",
        function="summarize",
        change=always("compare CLUSTER_SUMMARY_PARTITIONS_MAX"),
        tests=(f"{_OPERATIONS}::test_a_summary_names_a_bounded_number_of_partitions",),
    ),
    Guard(
        name="a summary of the cluster describes few partitions in one step",
        why="a summary with many problems holds the event loop ten times as long",
        module="raftlog/server/operations.py",
        function="summarize",
        change=drop("assign DESCRIPTION_COST #2/2"),
        tests=(f"{_OPERATIONS}::test_a_summary_describes_few_partitions_in_one_step",),
    ),
    Guard(
        name="a page of a broker's partitions describes few of them in one step",
        why="a page holds the event loop ten times as long",
        module="raftlog/server/operations.py",
        function="summarize",
        change=drop("assign DESCRIPTION_COST #1/2"),
        tests=(f"{_OPERATIONS}::test_a_summary_describes_few_partitions_in_one_step",),
    ),
    Guard(
        name="a page of a broker's partitions is bounded",
        why="a response describes all partitions of a broker",
        module="raftlog/server/operations.py",
        function="summarize",
        change=always("compare in"),
        tests=(f"{_OPERATIONS}::test_a_summary_lists_a_page_of_the_partitions_of_one_broker",),
    ),
    Guard(
        name="a search of a field parses values of a bounded size",
        why="a value of 64 MiB holds the interpreter of the broker while it is parsed",
        module="cli/raftlog_cli/console/records.py",
        function="_field_matcher.matches",
        change=never("if CONSOLE_TEXT_MAX"),
        tests=(f"{_RECORDS}::test_values_that_are_not_json_or_too_large_have_no_fields",),
    ),
    Guard(
        name="one step of a check of copies runs at a time",
        why="each open page of a check makes all brokers read their disks",
        module="cli/raftlog_cli/console/pages.py",
        function="Check.step",
        change=never("if _turn"),
        tests=("tests/cli/console/test_checks.py::test_one_step_runs_at_a_time",),
    ),
    Guard(
        name="a request lists a bounded number of producers",
        why="a response with the producers of 10,000 partitions blocks the event loop",
        module="raftlog/server/apis/producers.py",
        function="handle_list_producers",
        change=never("if LISTED_PRODUCERS_MAX"),
        tests=(f"{_PRODUCERS}::test_the_number_of_producers_of_a_request_is_limited",),
    ),
    Guard(
        name="lags in seconds are kept for a bounded number of partitions",
        why="samples of the partitions of all groups fill the memory",
        module="raftlog/server/http/collect.py",
        function="LagTimes.age_s",
        change=never("while METRICS_LAG_PARTITIONS_MAX"),
        tests=(f"{_LAG}::test_the_partitions_asked_least_recently_are_forgotten",),
    ),
    Guard(
        name="items of Avro have bytes",
        why="10 bytes of a record create 2**61 values in the broker",
        module="cli/raftlog_cli/console/records.py",
        function="_Check._of_items",
        change=never("if total"),
        tests=(_HOSTILE,),
    ),
    Guard(
        name="a record of Avro has few values without bytes",
        why="a schema of 2,000 characters creates a million values without a byte",
        module="cli/raftlog_cli/console/records.py",
        function="_Check.cost",
        change=never("if CONSOLE_AVRO_FREE_VALUES_MAX"),
        tests=(_HOSTILE,),
    ),
    Guard(
        name="types of Avro do not nest without end",
        why="a chain of named types exhausts the stack of fastavro's C code",
        module="cli/raftlog_cli/console/records.py",
        function="_Check.cost",
        change=never("if CONSOLE_AVRO_DEPTH_MAX"),
        tests=(f"{_AVRO}::test_types_nest_by_name_up_to_the_limit",),
    ),
    Guard(
        name="types of Avro are not recursive",
        why="a record of 60,000 nested values exhausts the stack of fastavro's C code",
        module="cli/raftlog_cli/console/records.py",
        function="_Check._cost_of_name",
        change=never("if NotAvroError"),
        tests=(_HOSTILE,),
    ),
    Guard(
        name="fastavro parses no deep schema",
        why="a schema of nested arrays exhausts the stack of fastavro's C code",
        module="cli/raftlog_cli/console/records.py",
        function="_prepared",
        change=never("if CONSOLE_AVRO_DEPTH_MAX"),
        tests=(_HOSTILE,),
    ),
    Guard(
        name="a container file of Avro does not expand",
        why="a record of 10 kB fills 10 MB of the broker's memory",
        module="cli/raftlog_cli/console/records.py",
        function="_inflated",
        change=never("if NotAvroError"),
        tests=(f"{_AVRO}::test_a_container_file_does_not_expand",),
    ),
    Guard(
        name="one page decodes a limited number of Avro values",
        why="a page of 200 hostile records keeps a thread of the console busy for a minute",
        module="cli/raftlog_cli/console/records.py",
        function="Decoder.decode",
        change=never("if is_exhausted"),
        tests=(f"{_AVRO}::test_the_cost_of_one_request_is_bounded",),
    ),
    Guard(
        name="decoded text stops at its limit",
        why="names of a schema are repeated for each record: gigabytes of text",
        module="cli/raftlog_cli/console/records.py",
        function="_json_text",
        change=never("if 0"),
        tests=(f"{_AVRO}::test_text_and_memory_are_bounded",),
    ),
    Guard(
        name="HTTP connections end",
        why="clients that send nothing keep the connections of the monitoring",
        module="raftlog/server/http/app.py",
        function="_Connection.connection_made",
        change=argument("call call_later", 0, "3600.0"),
        tests=(f"{_HTTP}::test_a_slow_client_is_closed",),
    ),
]
