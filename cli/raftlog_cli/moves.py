"""Plans of replica moves as JSON, and their execution: ``raftlog cluster reassign`` and others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from raftlog import Admin
from raftlog.client.descriptions import ClusterDescription, PartitionOverview
from raftlog.replication.rebalancing import PlacedPartition, PlannedMove
from raftlog_cli import formats, health, output
from raftlog_cli.main import Failed

POLL_INTERVAL_S: Final = 0.5


class Place(NamedTuple):
    """A broker that may store replicas."""

    id: int
    rack: str


def placed(partitions: Iterable[PartitionOverview]) -> list[PlacedPartition]:
    """Return the partitions as input of a plan."""
    return [PlacedPartition(each.topic, each.partition, each.replicas) for each in partitions]


def rows(moves: Iterable[PlannedMove]) -> list[dict[str, Any]]:
    """Return the moves as JSON that ``parse`` reads."""
    return [
        {"topic": m.topic, "partition": m.partition, "from": list(m.before), "to": list(m.after)}
        for m in moves
    ]


def parse(text: str | bytes) -> list[PlannedMove]:
    """Parse a plan. Raises ``ValueError`` if it is invalid."""
    try:
        plan = formats.parse_json(text)
    except ValueError as error:
        raise ValueError(f"the plan is {error}") from None
    moves = plan.get("moves") if isinstance(plan, dict) else plan
    if not isinstance(moves, list):
        raise ValueError('the plan has no list "moves"')
    return [_move(number, row) for number, row in enumerate(moves)]


def _move(number: int, row: Any) -> PlannedMove:
    try:
        move = PlannedMove(
            row["topic"], row["partition"], tuple(row.get("from", ())), tuple(row["to"])
        )
    except (AttributeError, KeyError, TypeError):
        raise ValueError(
            f'move {number} of the plan is not an object with "topic", "partition" and "to", '
            'such as {"topic": "clicks", "partition": 0, "to": [1, 2]}'
        ) from None
    if not all(type(each) is int for each in (move.partition, *move.before, *move.after)):
        raise ValueError(f'move {number} of the plan: "partition", "from" and "to" are numbers')
    return move


def show(moves: Sequence[PlannedMove], *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        output.print_json({"moves": rows(moves)})
    elif not moves:
        output.note("no replica has to move")
    else:
        columns = ("partition", "from", "to", "copies")
        output.print_table(
            columns,
            [
                (
                    f"{m.topic}:{m.partition}",
                    health.ids(m.before),
                    health.ids(m.after),
                    len(set(m.after) - set(m.before)),
                )
                for m in moves
            ],
        )


def start(admin: Admin, moves: Sequence[PlannedMove]) -> None:
    """Request the moves, topic by topic."""
    for topic in sorted({move.topic for move in moves}):
        mine = [move for move in moves if move.topic == topic]
        admin.reassign_partitions(
            topic,
            {move.partition: move.after for move in mine},
            before={move.partition: move.before for move in mine if move.before},
        )


def throttle_moves(admin: Admin, bytes_per_s: int | None) -> None:
    """Limit the copies of moves. None: keep the limit; 0: remove it."""
    if bytes_per_s is not None:
        admin.throttle_moves(bytes_per_s)


def moving_partitions(described: ClusterDescription) -> list[PartitionOverview]:
    """Return the partitions with a move in progress."""
    return [partition for partition in described.partitions if partition.target]


def wait(admin: Admin, topics: Iterable[str]) -> None:
    """Wait until no partition of these topics moves."""
    names, shown = sorted(set(topics)), -1
    if not names:
        return
    while left := len(moving_partitions(admin.describe_cluster(names))):
        if left != shown:
            output.note(f"partitions with moves in progress: {left}")
            shown = left
        time.sleep(POLL_INTERVAL_S)


def print_moving(described: ClusterDescription, *, as_json: bool) -> None:
    """Print the moves in progress, the lag of copying replicas in records, and the throttle."""
    partitions, rate = moving_partitions(described), described.move_throttle
    if as_json:
        found = [
            {
                "topic": each.topic,
                "partition": each.partition,
                "from": list(each.replicas),
                "to": list(each.target),
                "isr": list(each.isr),
                "lag": health.lag(each.replica_states),
            }
            for each in partitions
        ]
        output.print_json({"moving": found, "throttle_bytes_per_s": rate or None})
        return
    if rate:
        output.note(f"throttle: {rate} bytes per second for each broker")
    if not partitions:
        output.note("no moves in progress")
    else:
        columns = ("partition", "replicas", "to", "isr", "lag")
        output.print_table(
            columns,
            [
                (
                    f"{each.topic}:{each.partition}",
                    health.ids(each.replicas),
                    health.ids(each.target),
                    health.ids(each.isr),
                    health.lag(each.replica_states),
                )
                for each in partitions
            ],
        )


def brokers_of(described: ClusterDescription, ids: Sequence[int] | None) -> list[Place]:
    """Return the brokers that may store replicas: those listed, or all that are up."""
    if ids is None:
        found = [broker for broker in described.brokers if health.is_up(broker)]
    else:
        known = {broker.id: broker for broker in described.brokers}
        if unknown := [broker for broker in ids if broker not in known]:
            raise Failed(f"the cluster has no broker {unknown[0]}; it has {sorted(known)}")
        found = [known[broker] for broker in ids]
    if not found:
        raise Failed("no broker is up")
    return [Place(broker.id, broker.rack or "") for broker in found]
