"""Guards of the trusted time: one wrong clock must not delete records."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, calls, drop, replace, value
from tests.mutation.guard import Guard

_TIME: Final = "tests/replication/test_placement.py"
_CLUSTERS: Final = "tests/server/cluster/test_upgrades.py"
_RULES: Final = "raftlog/replication/trusted_time.py"

GUARDS: Final = [
    Guard(
        name="a start with a clock behind is noted",
        why="what this start stamps expires at the next one, whose clock has jumped forward",
        module="raftlog/server/broker.py",
        function="Broker._prepare",
        change=drop("operand is_behind_saved"),
        tests=(
            (
                "tests/server/cluster/test_upgrades.py"
                "::test_a_start_with_a_clock_behind_is_noted_at_once"
            ),
        ),
    ),
    Guard(
        name="a single broker follows no step of its clock",
        why="a clock that is days ahead deletes all records",
        module=_RULES,
        function="TrustedTime.update",
        change=drop("not is_alone"),
        tests=(f"{_TIME}::test_alone_no_step_is_followed_however_long_it_lasts",),
    ),
    Guard(
        name="a majority of the clocks decides",
        why="one clock of three deletes all records",
        module=_RULES,
        function="TrustedTime._majority",
        change=replace("binop // #2/2", "0"),
        tests=(
            f"{_TIME}::test_one_clock_of_three_decides_nothing",
            f"{_TIME}::test_in_a_cluster_nothing_expires_until_a_majority_of_the_clocks_agrees",
        ),
    ),
    Guard(
        name="where few brokers vote, the clocks of all count",
        why="the clock of the one voter of two brokers deletes the records of the other",
        module=_RULES,
        function="trusted_clocks",
        change=always("compare MAJORITY_MIN"),
        tests=(f"{_CLUSTERS}::test_of_two_brokers_neither_clock_deletes_records",),
    ),
    Guard(
        name="of two clocks that differ at a start, the one that is behind counts",
        why="a broker that starts with a clock that is ahead deletes all records",
        module=_RULES,
        function="TrustedTime._behind",
        change=calls("call min", "max"),
        tests=(
            f"{_TIME}::test_a_start_with_two_clocks_that_differ_goes_by_the_one_that_is_behind",
        ),
    ),
    Guard(
        name="a step is followed after it has settled",
        why="two clocks that are temporarily ahead delete all records",
        module=_RULES,
        function="TrustedTime._has_settled",
        change=always("compare CLOCK_SETTLE_S"),
        tests=(f"{_TIME}::test_a_majority_that_steps_for_a_moment_decides_nothing",),
    ),
    Guard(
        name="small differences are followed slowly",
        why="many small steps, one after the other, are a large one",
        module=_RULES,
        function="TrustedTime.update",
        change=value("assign max", "_.args[1].args[1]"),
        tests=(f"{_TIME}::test_small_differences_are_followed_slowly",),
    ),
    Guard(
        name="a start compares the clock with the saved time",
        why="a clock that is wrong until NTP corrects it deletes all records at the start",
        module=_RULES,
        function="TrustedTime._begin",
        change=value("if _has_settled", "_.values[1].args[0] is not None"),
        tests=(
            f"{_TIME}::test_alone_a_start_with_a_clock_that_is_far_ahead_waits_before_anything_expires",
        ),
    ),
    Guard(
        name="old reports of peers are no sample",
        why="a clock that was right an hour ago confirms a wrong one",
        module=_RULES,
        function="TrustedTime._known",
        change=replace("compare CLOCK_SAMPLE_S_MAX", "_.left.left >= _.left.right"),
        tests=(f"{_TIME}::test_old_and_slow_answers_do_not_count",),
    ),
    Guard(
        name="retention uses the trusted time",
        why="one broker's clock that is ahead deletes every record on all replicas",
        module="raftlog/server/partition.py",
        function="Partition.apply_retention.retire",
        change=argument(
            "call apply_retention", "now_ms", "_.keywords[0].value.func.value.machine.wall_ms()"
        ),
        tests=(f"{_CLUSTERS}::test_no_broker_deletes_records_because_one_clock_steps",),
    ),
    Guard(
        name="records are stamped with the trusted time",
        why=("a leader whose clock is behind stamps batches that expire when it is right again"),
        module="raftlog/server/partition.py",
        function="BrokerClock.read",
        change=replace("call record_ms", "_.args[1]"),
        tests=(f"{_CLUSTERS}::test_a_producer_writes_on_after_its_leaders_clock_was_behind",),
    ),
    Guard(
        name="committed offsets expire by the trusted time",
        why="a coordinator whose clock is ahead deletes committed offsets",
        module="raftlog/server/log_shard.py",
        function="LogShard._tick",
        change=calls("call deletion_ms", "self._clock.machine.wall_ms"),
        tests=(f"{_CLUSTERS}::test_committed_offsets_stay_when_their_coordinators_clock_steps",),
    ),
    Guard(
        name="no offset expires while the time is unknown",
        why="a coordinator that has just started deletes committed offsets",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard._tidy",
        change=replace(
            "if empty_since_ms None",
            "_.test.values[1].left = _.test.values[1].left or 1 << 62\n"
            "if _.test.values[0]:\n    return ()",
        ),
        tests=(
            "tests/consumer_groups/test_shard.py::test_no_offset_goes_while_the_time_is_not_known_for_sure",
        ),
    ),
    Guard(
        name="nothing is compacted while the time is unknown",
        why="tombstones are removed immediately after a start with a wrong clock",
        module="raftlog/server/maintenance.py",
        function="LogCleaner.step",
        change=drop("if _clock"),
        tests=(
            "tests/server/test_maintenance.py::test_nothing_is_compacted_while_the_time_is_unknown",
        ),
    ),
]
