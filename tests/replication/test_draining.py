"""Replicas leave brokers that are decommissioned: those alone, and where there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from raftlog.config import TopicConfig
from raftlog.replication.cluster_commands import BrokerRecord, Move, TopicRecord
from raftlog.replication.draining import MOVES_PER_COMMAND_MAX, next_moves
from raftlog.replication.placement import Assignment, Target


def broker(number: int, rack: str = "") -> BrokerRecord:
    return BrokerRecord(number, "h", 1, rack, f"disk-{number}", 1, 1, False)


def topic(name: str, *partitions: Assignment, factor: int = 2) -> TopicRecord:
    return TopicRecord(name, f"id-{name}", factor, partitions, {}, TopicConfig(), ())


def moves(
    topics: Iterable[TopicRecord], leaving: set[int], staying: Iterable[BrokerRecord]
) -> dict[str, list[Move]]:
    command = next_moves({t.name: t for t in topics}, leaving=leaving, brokers=[*staying])
    return {} if command is None else {command.topic_id: list(command.moves)}


def test_only_replicas_of_brokers_that_leave_move() -> None:
    held = topic("t", Assignment((1, 2), version=3), Assignment((2, 3)), Assignment((3, 1)))
    found = moves([held], {1}, map(broker, (2, 3)))
    assert found == {"id-t": [Move(0, (3, 2), 3), Move(2, (3, 2), 0)]}


def test_topics_take_their_turn_and_then_there_is_nothing_to_do() -> None:
    a, b = topic("a", Assignment((2, 3))), topic("b", Assignment((2, 1)))
    assert list(moves([a, b], {1}, map(broker, (2, 3)))) == ["id-b"]
    assert moves([a], {1}, map(broker, (2, 3))) == {}


def test_a_partition_waits_for_a_broker_that_has_no_replica_of_it() -> None:
    held = topic("t", Assignment((1, 2)), Assignment((1, 3)))
    assert moves([held], {1}, [broker(2)]) == {"id-t": [Move(1, (2, 3), 0)]}
    assert moves([held], {1}, []) == {}


def test_a_move_to_a_broker_that_leaves_goes_elsewhere_and_one_away_from_it_goes_on() -> None:
    to_it = Assignment((2, 3), version=1, target=Target((2, 1), (2, 3)))
    away = Assignment((1, 3), target=Target((2, 3), (1, 3)))
    found = moves([topic("t", to_it, away)], {1}, map(broker, (2, 3)))
    assert found == {"id-t": [Move(0, (2, 3), 1, (2, 1))]}


def test_replicas_go_to_other_racks_and_to_brokers_with_few() -> None:
    held = topic("t", Assignment((1, 2)), factor=2)
    racks = [broker(2, "a"), broker(3, "a"), broker(4, "b")]
    assert moves([held], {1}, racks) == {"id-t": [Move(0, (4, 2), 0)]}
    many = topic("t", *[Assignment((1, 2))] * 40)
    found = moves([many], {1}, map(broker, (2, 3, 4)))
    loads = Counter(move.replicas[0] for move in found["id-t"])
    assert loads == {3: 20, 4: 20}


def test_a_command_has_a_limited_number_of_moves() -> None:
    held = topic("t", *[Assignment((1, 2))] * (MOVES_PER_COMMAND_MAX + 1))
    assert len(moves([held], {1}, map(broker, (2, 3)))["id-t"]) == MOVES_PER_COMMAND_MAX


def test_several_brokers_leave_at_a_time() -> None:
    held = topic("t", Assignment((1, 2)))
    assert moves([held], {1, 2}, map(broker, (3, 4))) == {"id-t": [Move(0, (3, 4), 0)]}
