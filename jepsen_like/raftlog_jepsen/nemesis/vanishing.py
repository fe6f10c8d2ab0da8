"""The kind vanish: partition files are removed, as by fsck, a missing mount or a wrong ``rm``.

The brokers are down or running. The fault removes the directory of a partition or of a topic, all
topic directories (also with the catalog and the record of copies), or one segment. Identity,
consensus journal and votes remain, but the copies are lost. Each broker detects the loss,
quarantines the remaining files, and copies the partition again. The fault budget is checked as
before a disk is emptied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from raftlog.storage.segment import LOG_SUFFIX
from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import (
    Cluster,
    Effect,
    FaultPlan,
    Losses,
    OwnKinds,
    Words,
    is_back,
    not_injected,
    poll,
    replace_disk,
    try_start,
)
from raftlog_jepsen.plan import Shape

NOTICE_S: Final = 10.0  # time limit for a broker to quarantine the remaining files
POLL_S: Final = 0.2
VANISHING_KINDS: Final[Mapping[str, str]] = {
    "vanish": "Remove partition files of brokers that are down or running.",
}
SEGMENT: Final = "segment"
RECORD: Final = "topics and record"
# Removed files, from the data directory and the directory of one of its partitions.
WAYS: Final[Mapping[str, Callable[[Path, Path], Sequence[Path]]]] = {
    "partition": lambda _data, partition: [partition],
    "topic": lambda _data, partition: [partition.parents[1]],
    "topics": lambda data, _partition: [data / "topics"],
    RECORD: lambda data, _partition: [data / "topics", data / "copies", data / "catalog"],
    SEGMENT: lambda _data, partition: sorted(partition.glob(f"*{LOG_SUFFIX}")),
}


@dataclass(frozen=True, slots=True)
class _Loss:
    """Files removed from one broker, until its recovery.

    ``copies``: number of copies that the broker must quarantine. ``quarantined``: quarantined
    copies before the removal.
    """

    broker: int
    fault: FaultPlan
    copies: int
    words: Words
    quarantined: set[Path]


class VanishNemesis(OwnKinds):
    """Removes files of brokers, and checks that the brokers restore them."""

    kinds = VANISHING_KINDS

    def __init__(self, cluster: Cluster, ledger: Losses, *, notice_s: float = NOTICE_S) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._notice_s = notice_s
        self._losses: list[_Loss] = []
        self._refusing: set[int] = set()  # down, and the fault budget did not allow an empty disk

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        live = random.random() < 0.5
        # A running broker would detect the missing record only at its next start.
        ways = [way for way in WAYS if not live or way != RECORD]
        count = random.randint(1, max(1, shape.losses))
        # The targets are selected when the fault starts. ``begin`` therefore checks the fault
        # budget. The driver would also count votes, which are not lost.
        args = {
            "count": count,
            "what": random.choice(ways),
            "live": live,
            "seed": random.randrange(1 << 32),
        }
        return FaultPlan(
            kind=kind,
            args=args,
            hold_s=random.uniform(1.0, 6.0),
            lossy=True,
            expects="available" if live or count <= shape.minority else "outage",
        )

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        random, brokers = Random(fault.args["seed"]), sorted(self._cluster.hosts)
        targets = sorted(random.sample(brokers, min(fault.args["count"], len(brokers))))
        if down := sorted(set(targets) - self._cluster.up()):
            return not_injected(f"brokers {down} are not running")
        if why := self._may_lose(targets):
            return not_injected(why)
        if not fault.args["live"]:
            self._cluster.kill(targets)
            # Leaders may have changed since: check whether the other copies are still sufficient.
            if why := self._may_lose(targets):
                self._start_again(targets)
                return not_injected(f"after they were killed: {why}")
        removed = {}
        for broker in targets:
            if gone := self._remove(broker, fault, random):
                removed[str(broker)] = gone
        lost = tuple(map(int, removed))
        if not fault.args["live"]:
            self._start_again([broker for broker in targets if broker not in lost])
        if not lost:
            return not_injected("there is no partition, or no segment")
        return Effect(True, {"removed": removed}, lost)

    def _may_lose(self, targets: Sequence[int]) -> str:
        """Return why the fault budget forbids the loss. Votes are not lost, so a majority need not
        remain."""
        return self._ledger.may_lose(targets, recoverable=True)

    def _start_again(self, targets: Sequence[int]) -> None:
        for broker in targets:
            self._cluster.start_broker(broker)

    def _remove(self, broker: int, fault: FaultPlan, random: Random) -> list[str]:
        """Remove files of a broker. Returns their paths, relative to the data directory."""
        host, what = self._cluster.hosts[broker], fault.args["what"]
        partitions = disks.partitions(host.data_dir)
        found = WAYS[what](host.data_dir, random.choice(partitions)) if partitions else []
        found = [path for path in found if path.exists()]
        if what == SEGMENT:
            found = random.sample(found, min(1, len(found)))
        if not found:
            return []
        copies = {
            partition
            for partition in partitions
            if any(partition == path or path in partition.parents for path in found)
            and any(log.stat().st_size for log in partition.glob(f"*{LOG_SUFFIX}"))
        }
        expected = {SEGMENT: 1, RECORD: 0}.get(what, len(copies))
        words, quarantined = Words(host.process.log_path), disks.quarantines(host.data_dir)
        self._ledger.lost((broker,))
        self._losses.append(_Loss(broker, fault, expected, words, quarantined))
        for path in found:
            disks.remove(path)
        return [str(path.relative_to(host.data_dir)) for path in found]

    # -- recovering

    def end(self, fault: FaultPlan) -> Effect:
        mine = [loss for loss in self._losses if loss.fault is fault]
        if not mine:
            return not_injected("no file was removed")
        return Effect(True, self._see_to(mine), tuple(loss.broker for loss in mine))

    def heal(self) -> None:
        self._see_to(list(self._losses))
        for broker in sorted(self._refusing):
            if replace_disk(self._cluster, self._ledger, broker)["disk"] != "kept":
                self._refusing.discard(broker)

    def _see_to(self, losses: Sequence[_Loss]) -> dict[str, Any]:
        """Start all brokers, then wait for their recovery, and return their reactions."""
        seen: dict[str, Any] = {str(loss.broker): self._have_run(loss) for loss in losses}
        for loss in losses:
            self._losses.remove(loss)
            if loss.broker not in self._refusing:
                seen[str(loss.broker)] |= self._outcome(loss)
        return seen

    def _have_run(self, loss: _Loss) -> dict[str, Any]:
        """Make sure that the broker has checked its remaining files: restart it unless it has
        detected the loss. A missing segment that is not read is detected only at a start."""
        broker, seen = loss.broker, dict[str, Any]()
        if broker in self._cluster.up():
            poll(lambda: self._is_set_aside(loss), self._notice_s, interval_s=POLL_S)
            seen["noticed_at_work"] = loss.words.lines()
            if self._is_set_aside(loss):
                return seen
            self._cluster.kill([broker])
        start = try_start(self._cluster, broker)
        seen |= start.to_history()
        if not start.started:
            seen |= replace_disk(self._cluster, self._ledger, broker)
            if seen["disk"] == "kept":
                self._refusing.add(broker)
        return seen

    def _set_aside(self, loss: _Loss) -> set[Path]:
        return disks.quarantines(self._cluster.hosts[loss.broker].data_dir) - loss.quarantined

    def _is_set_aside(self, loss: _Loss) -> bool:
        return len(self._set_aside(loss)) >= loss.copies

    def _outcome(self, loss: _Loss) -> dict[str, Any]:
        noticed = poll(lambda: self._is_set_aside(loss), self._notice_s, interval_s=POLL_S)
        self._ledger.returned((loss.broker,))
        back = poll(lambda: is_back(self._cluster, loss.broker), self._notice_s, interval_s=POLL_S)
        return {
            "noticed": noticed,
            "is_back": back,
            "said": loss.words.lines(),
            "set_aside": sorted(map(str, self._set_aside(loss))),
        }
