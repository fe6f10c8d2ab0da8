"""Short ways to write down the state of a partition, of its leader and of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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
from raftlog.replication.leadership import Leadership
from raftlog.replication.partition_state import Accepted, ChangeIsr, PartitionState, Rejected

# -- partitions ------------------------------------------------------------------------------------

# Short ways to write down a partition's state and its leader, for the tests beside this file.


LAG_MAX_S = 10.0


def disk(broker: int) -> str:
    return f"disk-{broker}"


def disks(brokers: Iterable[int]) -> dict[int, str]:
    return {broker: disk(broker) for broker in brokers}


def always(_broker: int) -> bool:
    return True


class View(NamedTuple):
    """A ``BrokerView`` of live brokers, each on its disk, in incarnations that are not known."""

    is_live: Callable[[int], bool] = always
    directory_of: Callable[[int], str | None] = disks(range(1, 10)).get
    boot_of: Callable[[int], int | None] = lambda _broker: None


def state_of(
    replicas: tuple[int, ...] = (1, 2, 3),
    witnesses: tuple[int, ...] = (4, 5),
    *,
    min_isr: int = 2,
    leader: int | None = 1,
    leader_epoch: int = 5,
    isr: Iterable[int] = (1, 2, 3),
    elr: Iterable[int] = (),
    former: Iterable[int] = (),
    version: int = 7,
    leader_boot: int = 0,
) -> PartitionState:
    return PartitionState(
        replicas=replicas,
        witnesses=witnesses,
        min_isr=min_isr,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=disks(isr),
        elr=disks(elr),
        former=disks(former),
        version=version,
        leader_boot=leader_boot,
    )


def accepted(result: Accepted | Rejected) -> PartitionState:
    assert isinstance(result, Accepted), result
    return result.state


def reason(result: Accepted | Rejected) -> str:
    assert isinstance(result, Rejected), result
    return result.reason


class Leader:
    """A ``Leadership`` of broker 1 whose log ends at 10, all durable, committed up to 4."""

    def __init__(self, state: PartitionState | None = None, **at: Any) -> None:
        at = {"epoch_start": 10, "high_watermark": 4, "log_end": 10, "durable_end": 10} | at
        self.now = 100.0
        self.dead: set[int] = set()
        self.may_propose = True
        self.directories = disks(range(1, 10))
        self.boots: dict[int, int] = {}
        self.leadership = Leadership(
            state or state_of(), 1, now=self.now, lag_max_s=LAG_MAX_S, **at
        )

    @property
    def high_watermark(self) -> int:
        return self.leadership.high_watermark

    def fetch(
        self,
        follower: int,
        offset: int,
        durable: int | None = None,
        *,
        on: str = "",
        log_start: int = 0,
        boot: int = 0,
    ) -> bool:
        """``follower`` has everything up to ``offset``, on its own disk or ``on`` another."""
        return self.leadership.on_fetch(
            follower,
            on or disk(follower),
            boot=boot,
            fetch_offset=offset,
            durable_offset=offset if durable is None else durable,
            log_start=log_start,
            now=self.now,
        )

    def append(self, count: int) -> None:
        end = self.leadership.log_end + count
        self.leadership.on_local(log_end=end, durable_end=end)

    def review(self, min_isr: int | None = None) -> ChangeIsr | None:
        return self.leadership.isr_change(
            self.now,
            View(lambda broker: broker not in self.dead, self.directories.get, self.boots.get),
            min_isr=self.leadership.state.min_isr if min_isr is None else min_isr,
            may_propose=lambda: self.may_propose,
        )

    def proposed(self, min_isr: int | None = None) -> ChangeIsr:
        change = self.review(min_isr)
        assert change is not None, "nothing was proposed"
        return change

    def learn(self, state: PartitionState) -> None:
        self.leadership.on_state(state, self.now)


# -- clusters --------------------------------------------------------------------------------------

# Clusters for tests of their state: made of commands, as real ones are.


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
