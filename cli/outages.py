"""What ``raftlog demo`` does to its brokers while records flow: SIGKILL, a wiped disk, and back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftlog.cli.load import Load
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import BrokerProcess, Cluster, wait_until

TIMEOUT_S: Final = 60.0
KILLS: Final = 2


@dataclass(frozen=True)
class Outage:
    """A SIGKILL of a leader. ``acknowledged``: how many records were, at that moment.

    ``seconds``: until the first acknowledgement of a record sent after it. ``leader``: who leads
    since.
    """

    broker_id: int
    pid: int
    acknowledged: int
    seconds: float
    leader: int
    wiped: bool


class Outages:
    """Runs in a thread beside the load, once. ``stages``: how many the load has to have."""

    def __init__(
        self, cluster: Cluster, topic: str, *, total: int, note: Callable[[str], None]
    ) -> None:
        alone = len(cluster.brokers) == 1
        self.kills = 1 if alone else KILLS
        self.stages = self.kills + 2
        self._cluster = cluster
        self._topic = topic
        self._first_at = total // self.stages // 2  # acknowledgements before the first kill
        self._note = note
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Have ``run`` raise soon, if it still runs."""
        self._stopping.set()

    def run(self, load: Load) -> list[Outage]:
        """Kill leaders, one after the other, and bring them back; the first without its disk."""
        self._until(lambda: load.acknowledged >= self._first_at, "acknowledgements to begin")
        outages = []
        for number in range(self.kills):
            wiped = number == 0 and len(self._cluster.brokers) > 1
            outages.append(self._outage(load, wiped=wiped))
        load.stage += 1
        return outages

    def _outage(self, load: Load, *, wiped: bool) -> Outage:
        self._until(self._leader_is_known, "a leader")
        leader = self._cluster.leader(self._topic, 0)
        assert leader is not None, "there was one a moment ago, and nothing has happened since"
        broker = self._cluster.broker(leader)
        pid, acknowledged = broker.pid, load.acknowledged
        assert pid is not None, "it has just answered"
        load.stage += 1
        self._note(f"kill -9 {pid} (broker {leader}, which leads {self._topic}:0)")
        broker.kill()
        killed_at = time.monotonic()
        if len(self._cluster.brokers) == 1:
            broker.start()
        self._until(self._leader_is_known, "a new leader")
        self._until(
            lambda: load.acknowledged_since(killed_at) is not None or load.is_idle,
            "an acknowledgement by the new leader",
        )
        now_leading = self._cluster.leader(self._topic, 0) or 0
        seconds = (load.acknowledged_since(killed_at) or time.monotonic()) - killed_at
        self._note(f"broker {now_leading} leads; acknowledgements again after {seconds:.2f} s")
        if not broker.running:
            self._bring_back(broker, wiped=wiped)
        return Outage(leader, pid, acknowledged, seconds, now_leading, wiped)

    def _bring_back(self, broker: BrokerProcess, *, wiped: bool) -> None:
        if wiped:
            self._cluster.wipe(broker.id)
        began = time.monotonic()
        broker.start()
        self._until(lambda: self._cluster.is_in_sync(self._topic, 0), "every replica in sync")
        disk = "with an empty disk" if wiped else "as it was"
        took = time.monotonic() - began
        self._note(f"broker {broker.id} is back, {disk}, and in sync after {took:.2f} s")

    def _leader_is_known(self) -> bool:
        return self._cluster.leader(self._topic, 0) is not None

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            if self._stopping.is_set():
                raise BrokerUnavailableError("the run ended early")
            return condition()

        wait_until(is_so, timeout_s=TIMEOUT_S, what=what)
