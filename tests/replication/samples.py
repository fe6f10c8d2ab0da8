"""Short ways to write down a partition's state and its leader, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from raftlog.replication.leadership import Leadership
from raftlog.replication.partition_state import Accepted, ChangeIsr, PartitionState, Rejected

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
