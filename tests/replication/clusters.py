"""Clusters for tests of their state: made of commands, as real ones are."""

from __future__ import annotations

from typing import Any

from raftlog.errors import RaftlogError
from raftlog.replication.cluster_commands import (
    ClusterCommand,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    SetReplicas,
    UnfenceBroker,
    founding_state,
)
from raftlog.replication.cluster_state import ClusterMachine, Done, Refused, TopicRecord


def registration(id_: int, **changes: Any) -> RegisterBroker:
    fields: dict[str, Any] = {
        "id": id_,
        "host": f"host-{id_}",
        "port": 9100,
        "rack": "",
        "directory_id": f"directory-{id_}",
        "boot": 1,
    }
    return RegisterBroker(**(fields | changes))


def done(machine: ClusterMachine, command: ClusterCommand) -> Any:
    """The value of a command that has to be accepted."""
    result = machine.apply(command.encode())
    assert isinstance(result, Done), result
    return result.value


def refused(
    machine: ClusterMachine, command: ClusterCommand, error: type[RaftlogError], words: str
) -> None:
    """The command has to be refused, and to change nothing."""
    before = machine.snapshot()
    result = machine.apply(command.encode())
    assert isinstance(result, Refused), result
    assert result.code == error.code
    assert words in result.message
    assert machine.snapshot() == before


def join(machine: ClusterMachine, id_: int, **changes: Any) -> int:
    """Register and unfence a broker; its epoch."""
    epoch: int = done(machine, registration(id_, **changes))
    done(machine, UnfenceBroker(id=id_, broker_epoch=epoch))
    return epoch


def fence(machine: ClusterMachine, id_: int) -> None:
    done(machine, FenceBroker(id=id_, broker_epoch=machine.brokers[id_].broker_epoch))


def cluster(brokers: int) -> ClusterMachine:
    machine = ClusterMachine()
    machine.restore(founding_state("c"))
    for id_ in range(1, brokers + 1):
        join(machine, id_)
    return machine


def create(name: str, **changes: Any) -> CreateTopic:
    return CreateTopic(**({"name": name, "topic_id": f"id-{name}", "partitions": 1} | changes))


def swap(topic: TopicRecord, version: int) -> SetReplicas:
    """The first partition's first replica and its first witness change roles."""
    held = topic.partitions[0]
    return SetReplicas(
        topic_id=topic.id,
        partition=0,
        replicas=(*held.replicas[1:], held.witnesses[0]),
        witnesses=(held.replicas[0], *held.witnesses[1:]),
        version=version,
    )
