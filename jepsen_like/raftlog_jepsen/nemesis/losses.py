"""The kinds wipe, swap-disks, old-backup and vanish (D7): disks are lost, exchanged or restored, or
files on them removed.

- *wipe*: up to n-1 disks at once, of brokers that were killed at the same time. If a majority of
  the voters is lost, the nemesis recovers the survivor, as an operator would.
- *swap-disks*: two brokers start with each other's disks. They refuse to start and report the
  reason.
- *old-backup*: an earlier copy of a broker's disk replaces the disk. The other brokers reject the
  broker, which then gets an empty disk.

The fault budget is checked before the brokers are killed, and again before a disk is emptied.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from raftlog import Admin
from raftlog.errors import RaftlogError
from raftlog.storage.segment import LOG_SUFFIX
from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import (
    REFUSED_BY_PEERS,
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

RECOVERIES_MAX: Final = 5  # times that the request is repeated
RECOVER_TIMEOUT_MS: Final = 10_000
WHOLE_S: Final = 20.0  # time limit for replicas to be in sync, before settings are restored
REFUSAL_S: Final = 6.0  # time limit for the other brokers to reject an old copy
MORE_S: Final = 3.0  # time limit for a broker to write more than the restored copy contains
POLL_S: Final = 0.2
LOSSES_KINDS: Final[Mapping[str, str]] = {
    "wipe": "Brokers are killed and lose their disks: up to n-1 of n copies at once.",
    "swap-disks": "Two brokers are started with each other's disk.",
    "old-backup": "A broker is started with an old copy of its disk.",
}


@dataclass
class _State:
    """State that must be undone."""

    wiped: dict[int, str] = field(default_factory=dict)  # former directory ids, by broker
    to_recover: int | None = None  # the surviving broker
    lowered: set[str] = field(default_factory=set)  # topics whose min.insync.replicas may be low
    swapped: tuple[int, int] | None = None
    old: dict[int, Words] = field(default_factory=dict)  # brokers with an old copy
    # down, because the fault budget did not allow an empty disk
    refusing: set[int] = field(default_factory=set)


class LossesNemesis(OwnKinds):
    """Empties, exchanges and restores data directories."""

    kinds = LOSSES_KINDS

    def __init__(
        self, cluster: Cluster, ledger: Losses, *, patience_s: float | None = None
    ) -> None:
        """Create the nemesis. ``patience_s``: replaces all time limits if set."""
        self._cluster = cluster
        self._ledger = ledger
        self._patience_s = patience_s
        self._state = _State()
        self._aside = cluster.directory / "disks-aside"

    def _why_not(self, kind: str) -> str:
        if kind == "swap-disks" and len(self._cluster.hosts) < 2:
            return "the cluster has only one broker"
        return ""

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        hold_s = random.uniform(1.0, 6.0)
        if kind == "swap-disks":
            pair = tuple(sorted(random.sample(shape.broker_ids, min(2, shape.brokers))))
            return FaultPlan(
                kind=kind,
                targets=pair,
                hold_s=hold_s,
                expects="available" if shape.minority >= 2 else "outage",
            )
        if kind == "old-backup":
            args: dict[str, Any] = {"clean": random.random() < 0.5, "oldest": random.random() < 0.5}
            targets = (random.choice(shape.broker_ids),)
            return FaultPlan(kind=kind, targets=targets, args=args, hold_s=hold_s, lossy=True)
        count = random.randint(1, max(1, shape.losses))
        is_majority = count > shape.minority
        # The targets are selected when the fault starts: replicas of one partition, or any brokers.
        # ``begin`` therefore checks the fault budget, and not the driver.
        args = {
            "count": count,
            "of": random.choice(("replicas", "machines")),
            "turn": random.randrange(1 << 16),
            "restart_survivor": is_majority and random.random() < 0.5,
        }
        return FaultPlan(
            kind=kind,
            args=args,
            hold_s=hold_s,
            lossy=True,
            expects="outage" if is_majority else "available",
        )

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        acts = {"wipe": self._wipe, "swap-disks": self._swap, "old-backup": self._put_back}
        return acts[fault.kind](fault)

    def end(self, fault: FaultPlan) -> Effect:
        acts = {"wipe": self._refill, "swap-disks": self._unswap, "old-backup": self._renew}
        return acts[fault.kind]()

    def heal(self) -> None:
        state = self._state
        self._unswap()
        self._refill()
        self._renew()
        for broker in sorted(state.refusing):
            if replace_disk(self._cluster, self._ledger, broker)["disk"] != "kept":
                state.refusing.discard(broker)
        if state.lowered:
            self._poll(self._is_whole, WHOLE_S)
            self._put_min_isr_back()

    def _poll(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        patience_s = timeout_s if self._patience_s is None else self._patience_s
        return poll(condition, patience_s, interval_s=POLL_S)

    # -- wipe

    def _wipe(self, fault: FaultPlan) -> Effect:
        targets = self._victims(fault.args)
        if self._state.wiped or not targets:
            return not_injected("brokers are already down, or there is no partition")
        left = set(self._cluster.hosts) - targets
        is_majority = 2 * len(left) <= len(self._cluster.hosts)
        why = self._ledger.may_lose(targets, recoverable=is_majority)
        if why:
            return not_injected(why)
        self._cluster.kill(targets)
        survivor, why = min(left), ""
        if is_majority:
            survivor, why = self._survivor(targets, left)
        else:
            why = self._ledger.may_lose(targets)
        if why:
            for broker in targets:
                self._cluster.start_broker(broker)
            return not_injected(f"after they were killed: {why}")
        self._ledger.lost(targets)
        removed = {}
        for broker in sorted(targets):
            data_dir = self._cluster.hosts[broker].data_dir
            self._state.wiped[broker] = disks.directory_id(data_dir)
            removed[str(broker)] = disks.empty(data_dir)
        if is_majority:
            self._state.to_recover = survivor
            if fault.args["restart_survivor"]:
                self._cluster.kill([survivor])
                self._cluster.start_broker(survivor)
        seen = {"files_removed": removed, "majority_lost": is_majority}
        return Effect(True, seen, tuple(sorted(targets)))

    def _victims(self, args: Mapping[str, Any]) -> set[int]:
        """Return running brokers: ``count`` replicas of one partition, or all brokers of
        ``count`` machines; empty if that is not possible."""
        machines, random = self._cluster.shape.machines, Random(args["turn"])
        if len(self._cluster.up()) < len(self._cluster.hosts):
            return set()
        candidates: Sequence[tuple[int, ...]] = machines
        if args["of"] == "replicas":
            parts = [part.replicas for _, part in sorted(self._cluster.status().items())]
            candidates = [(broker,) for broker in sorted(random.choice(parts))] if parts else ()
        if args["count"] >= len(machines) or args["count"] > len(candidates):
            return set()
        drawn = random.sample(candidates, args["count"])
        return {broker for machine in drawn for broker in machine}

    def _survivor(self, targets: Collection[int], left: Collection[int]) -> tuple[int, str]:
        """Return a remaining broker that has all records that the failed brokers knew to be
        committed, and "". If there is none, return -1 and the reason.

        Compares the files of all brokers, because after the loss of a majority no broker knows the
        leader.
        """
        dead = [disks.log_ends(self._cluster.hosts[broker].data_dir) for broker in targets]
        why = ""
        for broker in sorted(left):
            ends = disks.log_ends(self._cluster.hosts[broker].data_dir)
            lacking = {
                name
                for known in dead
                for name, (committed, _) in known.items()
                if ends.get(name, (0, 0))[1] < committed
            }
            if not lacking:
                return broker, ""
            why = f"the remaining broker {broker} lacks records of {sorted(lacking)}"
        return -1, why

    def _refill(self) -> Effect:
        """Start the brokers with empty disks, after a recovery if a majority of voters is lost."""
        state = self._state
        seen: dict[str, Any] = {}
        if not state.wiped:
            return not_injected("no disk was emptied")
        if state.to_recover is not None:
            seen["recovered"] = self._recover(state.to_recover)
            state.to_recover = None
        for broker, old_id in sorted(state.wiped.items()):
            start = try_start(self._cluster, broker)
            new_id = disks.directory_id(self._cluster.hosts[broker].data_dir)
            seen[str(broker)] = {
                **start.to_history(),
                "is_new_directory": new_id not in {"", old_id},
            }
        targets = tuple(sorted(state.wiped))
        self._ledger.returned(targets)
        state.wiped.clear()
        if state.lowered and self._poll(self._is_whole, WHOLE_S):
            seen["min_isr_put_back"] = self._put_min_isr_back()
        return Effect(True, seen, targets)

    def _recover(self, survivor: int) -> dict[str, Any]:
        """Send the request of `raftlog cluster recover` to the survivor, and repeat it as it asks:
        after a restart it sees all that is lost only once the cluster group works again.
        """
        address = str(self._cluster.hosts[survivor].address)
        self._state.lowered = {topic.name for topic in self._cluster.shape.topics}
        with Admin(address, request_timeout_ms=RECOVER_TIMEOUT_MS) as admin:
            try:
                for _attempt in range(RECOVERIES_MAX):
                    planned = admin.recover_cluster(broker=address, dry_run=True)
                    # the broker cannot know that it is in sync; the fault budget guarantees it
                    said = admin.recover_cluster(
                        broker=address, lost=planned.lost, accept_loss=planned.loss_id or False
                    )
                    if not said.loss_id:
                        break
            except RaftlogError as error:
                return {"survivor": survivor, "problem": f"{type(error).__name__}: {error}"}
        return {
            "survivor": survivor,
            "cluster": said.cluster_note,
            "declared_lost": list(planned.lost),
            "partitions": len(said.partitions),
            "problems": [part.problem for part in said.partitions if part.problem],
            "notes": sorted({part.note for part in said.partitions if part.note}),
        }

    def _is_whole(self) -> bool:
        status = self._cluster.status()
        return bool(status) and all(part.is_whole for part in status.values())

    def _put_min_isr_back(self) -> list[str]:
        """Restore min.insync.replicas, as the manual requires: a recovery lowers it so that writes
        continue."""
        changed = []
        bootstrap = ",".join(str(host.address) for host in self._cluster.hosts.values())
        with Admin(bootstrap, request_timeout_ms=RECOVER_TIMEOUT_MS) as admin:
            for topic in self._cluster.shape.topics:
                if topic.name in self._state.lowered:
                    admin.alter_topic(topic.name, {"min.insync.replicas": str(topic.min_isr)})
                    self._state.lowered.discard(topic.name)
                    changed.append(topic.name)
        return changed

    # -- swap-disks

    def _swap(self, fault: FaultPlan) -> Effect:
        one, other = pair = (fault.targets[0], fault.targets[-1])
        if self._state.swapped or one == other or not set(pair) <= self._cluster.up():
            return not_injected(f"brokers {pair} do not both run, or others are already swapped")
        self._cluster.kill(pair)
        self._exchange(pair)
        self._state.swapped = pair
        starts = {broker: try_start(self._cluster, broker) for broker in pair}
        seen = {str(broker): start.to_history() for broker, start in starts.items()}
        if any(start.started for start in starts.values()):
            self._cluster.kill(pair)  # before a broker changes data
            return Effect(True, {"accepted": "a broker accepted the disk of another", **seen})
        return Effect(True, seen)

    def _exchange(self, pair: tuple[int, int]) -> None:
        one, other = (self._cluster.hosts[broker].data_dir for broker in pair)
        disks.exchange(one, other, self._aside)

    def _unswap(self) -> Effect:
        pair = self._state.swapped
        if pair is None:
            return not_injected("no disks were swapped")
        self._cluster.kill(pair)
        self._exchange(pair)
        self._state.swapped = None
        seen = {str(broker): try_start(self._cluster, broker).to_history() for broker in pair}
        return Effect(True, seen, pair)

    # -- old-backup

    def _put_back(self, fault: FaultPlan) -> Effect:
        (broker,) = fault.targets
        host = self._cluster.hosts[broker]
        if broker not in self._cluster.up() or broker in self._state.old:
            return not_injected(f"broker {broker} is not running normally")
        backup = self._backup(broker, fault.args)
        before = disks.log_ends(backup)
        self._cluster.start_broker(broker)
        # Other brokers can detect only the loss of data that they have received.
        self._poll(lambda: is_back(self._cluster, broker), MORE_S)
        is_behind = self._poll(lambda: _grown(before, host.data_dir), MORE_S)
        self._cluster.kill([broker])
        why = self._ledger.may_lose((broker,))
        if why:
            self._cluster.start_broker(broker)
            return not_injected(f"after it was killed: {why}")
        self._ledger.lost((broker,))
        is_same = disks.directory_id(host.data_dir) == disks.directory_id(backup)
        disks.empty(host.data_dir)
        shutil.copytree(backup, host.data_dir, symlinks=True, dirs_exist_ok=True)
        disks.make_durable(host.data_dir)
        words = self._state.old[broker] = Words(host.process.log_path)
        start = try_start(self._cluster, broker)
        if start.started and is_same:  # with another id, the disk counts as a new one
            self._poll(lambda: REFUSED_BY_PEERS in words.text(), REFUSAL_S)
        seen = {"copy": str(backup), "is_same_directory": is_same, "lacks_records": is_behind}
        return Effect(True, {**start.to_history(), **seen, "said": words.lines()})

    def _backup(self, broker: int, args: Mapping[str, Any]) -> Path:
        """Stop the broker and copy its disk. Returns this copy, or the oldest copy of the run."""
        host = self._cluster.hosts[broker]
        if args["clean"]:
            host.process.stop()
        self._cluster.kill([broker])
        copies = sorted(self._aside.parent.glob(f"backup-{broker}-*"))
        new = self._aside.with_name(f"backup-{broker}-{len(copies) + 1}")
        shutil.copytree(host.data_dir, new, symlinks=True)
        return [*copies, new][0 if args["oldest"] else -1]

    def _renew(self) -> Effect:
        """Replace the disk of each broker with an old copy, whether or not it was detected."""
        state, seen = self._state, {}
        targets = tuple(sorted(state.old))
        for broker in targets:
            words = state.old.pop(broker)
            in_isr = [part for part in self._cluster.status().values() if broker in part.isr]
            seen[str(broker)] = {
                "refused_by_peers": REFUSED_BY_PEERS in words.text(),
                "said": words.lines(),
                "in_isr_of": len(in_isr),
                **replace_disk(self._cluster, self._ledger, broker),
            }
            if seen[str(broker)]["disk"] == "kept":
                state.refusing.add(broker)
        return Effect(True, seen, targets) if targets else not_injected("no copy was restored")


def _grown(before: Mapping[str, tuple[int, int]], data_dir: Path) -> bool:
    """Return whether a log has grown."""
    try:
        now = disks.log_ends(data_dir)
    except OSError:
        return False  # the running broker has removed a file at the same time
    return any(end > before.get(name, (0, 0))[1] for name, (_, end) in now.items())


# -- vanished files --------------------------------------------------------------------------------
#
# The kind vanish: partition files are removed, as by fsck, a missing mount or a wrong ``rm``.
#
# The brokers are down or running. The fault removes the directory of a partition or of a topic, all
# topic directories (also with the catalog and the record of copies), or one segment. Identity,
# consensus journal and votes remain, but the copies are lost. Each broker detects the loss,
# quarantines the remaining files, and copies the partition again. The fault budget is checked as
# before a disk is emptied.

NOTICE_S: Final = 10.0  # time limit for a broker to quarantine the remaining files
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
