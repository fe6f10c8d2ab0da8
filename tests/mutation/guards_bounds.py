"""Guards of a broker's time and memory: what hostile clients cannot take from the others."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

_TURNS: Final = "tests/server/test_turns.py"

GUARDS: Final = [
    Guard(
        name="long requests give way",
        why="one request of thousands of partitions stops the broker for seconds",
        module="raftlog/server/turns.py",
        old="        return self._now() < self._share_ends\n",
        new="        return True\n",
        tests=(f"{_TURNS}::test_a_long_request_gives_way_to_a_short_one_of_another_connection",),
    ),
    Guard(
        name="what a thread works on holds up its connection",
        why="a producer's next batch is appended before the one that a thread validates",
        module="raftlog/server/connection.py",
        old="not (self._writing_paused or self._in_thread):\n",
        new="not self._writing_paused:\n",
        tests=(f"{_TURNS}::test_work_for_a_thread_gives_its_result_or_its_error",),
    ),
    Guard(
        name="a request names each partition once",
        why="10,000 times the same partition cost 10,000 reads",
        module="raftlog/server/once.py",
        old="    if len(names) < 2 or len(set(names)) == len(names):\n",
        new="    if names:\n",
        tests=("tests/server/test_once.py::test_what_is_named_twice_is_refused",),
    ),
    Guard(
        name="waiting fetches have a bound",
        why="fetches that wait take gigabytes",
        module="raftlog/server/purgatory.py",
        old="        while self.bytes > self._bytes_max:\n",
        new="        while self.bytes < 0:\n",
        tests=(
            "tests/server/test_purgatory.py::test_over_the_bound_who_has_most_is_answered_before_its_time",
        ),
    ),
    Guard(
        name="memory follows what has arrived",
        why="500 connections with 20 bytes each take a gigabyte",
        module="raftlog/protocol/frame_reader.py",
        old="        large = bytearray(min(total, room))\n",
        new="        large = bytearray(total)\n",
        tests=("tests/protocol/test_frame_reader.py::test_memory_grows_only_with_what_arrives",),
    ),
    Guard(
        name="slow senders pay alone",
        why="200 connections that send a byte now and then keep the memory from all others",
        module="raftlog/server/listener.py",
        old="                and connection.received_bytes - received < least\n",
        new="                and connection.received_bytes < received\n",
        tests=(
            (
                "tests/server/test_listener.py"
                "::test_those_who_send_too_little_are_closed_while_others_wait_for_memory"
            ),
        ),
    ),
    Guard(
        name="peers have connection slots of their own",
        why="max.connections of clients keep a broker out of the ISR",
        module="raftlog/server/listener.py",
        old="            if not self._config.voters:\n",
        new="            if self._config.max_connections:\n",
        tests=(
            (
                "tests/server/test_listener.py"
                "::test_in_a_cluster_a_connection_beyond_the_limit_may_be_a_brokers"
            ),
        ),
    ),
    Guard(
        name="each round trip of a handshake has its own time",
        why="brokers a second apart never link up",
        module="raftlog/server/peers/link.py",
        old="        async with asyncio.timeout(self._services.session_timeout_s):\n",
        new="        async with asyncio.timeout(self._services.session_timeout_s / 2):\n",
        tests=(
            (
                "tests/server/peers/test_links.py"
                "::test_a_handshake_survives_a_second_of_latency_each_way"
            ),
        ),
    ),
    Guard(
        name="leadership is moved only so often",
        why="828 requests in 10 s cause 790 elections",
        module="raftlog/server/cluster/operations.py",
        old="self._transfers.admit(TopicPartition(request.topic, request.partition), now)\n",
        new="assert now >= 0\n",
        tests=(
            ("tests/server/cluster/test_operations.py::test_leadership_is_not_moved_again_at_once"),
        ),
    ),
    Guard(
        name="a secret that others may read is none",
        why="any user of the machine can act as a broker",
        module="raftlog/server/broker.py",
        old="    if mode & (stat.S_IROTH | stat.S_IWOTH):\n",
        new="    if mode < 0:\n",
        tests=("tests/server/test_broker.py::test_a_secret_is_long_and_not_for_everybody",),
    ),
]
