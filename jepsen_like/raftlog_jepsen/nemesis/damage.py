"""The kinds corrupt, truncate and rollback (D6): changed bytes on the disks of brokers.

They affect one broker or a minority, which can be down or running. A *helix* affects all brokers:
each has a different corrupt partition, so that valid copies of every record remain. Expected
reactions:

- segment below the durable end: the broker quarantines the copy and copies it again;
- torn write, index, epoch cache, producer snapshot, checkpoint: the broker truncates or rebuilds
  the file;
- journal, identity, catalog: the broker refuses to start and reports the reason. If the file does
  not show the loss, the other brokers reject the broker. It then gets an empty disk.

Corruption that a broker does not detect, but the verification tools do, is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from raftlog_jepsen.control import disks
from raftlog_jepsen.control.disks import Change, Region
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

NOTICE_S: Final = 6.0  # time limit for a restarted broker to react
POLL_S: Final = 0.2
MORE_S: Final = 3.0  # time limit for a broker to write more than the old version contains
REGIONS: Final[Mapping[str, tuple[Region, ...]]] = {
    "corrupt": disks.REGIONS,
    "truncate": disks.REGIONS,
    "rollback": ("active", "index", "epochs", "checkpoint", "producers", "journal"),
}
# Rebuilt from the segments, so that no replica is needed.
REBUILT: Final[frozenset[Region]] = frozenset({"index", "epochs", "producers"})
# Drawn twice as often, because they are most of the data.
OFTEN: Final[tuple[Region, ...]] = ("closed", "active")
DAMAGE_KINDS: Final[Mapping[str, str]] = {
    "corrupt": "Flip bits in files of some brokers, or replace chunks by zeros or other chunks.",
    "truncate": "Truncate files of some brokers, or append a torn write.",
    "rollback": "Restore the version of a file that one broker had before its last start.",
}


@dataclass(frozen=True, slots=True)
class _Harm:
    """A change of a file of one broker, until the recovery. ``quarantined``: quarantined copies
    before the change."""

    broker: int
    fault: FaultPlan
    change: Change
    words: Words
    quarantined: set[Path]

    @property
    def is_refused_by_peers(self) -> bool:
        return REFUSED_BY_PEERS in self.words.text()


class DamageNemesis(OwnKinds):
    """Changes files of brokers, and checks the reaction."""

    kinds = DAMAGE_KINDS

    def __init__(
        self,
        cluster: Cluster,
        ledger: Losses,
        *,
        notice_s: float = NOTICE_S,
        more_s: float = MORE_S,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._notice_s = notice_s
        self._more_s = more_s
        self._harms: list[_Harm] = []
        self._refusing: set[int] = set()  # down, and the fault budget did not allow an empty disk
        self.unnoticed: list[Mapping[str, Any]] = []  # corruption that brokers did not repair

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        regions = REGIONS[kind]
        region = random.choice(regions + tuple(each for each in OFTEN if each in regions))
        args: dict[str, Any] = {"region": region, "seed": random.randrange(1 << 32)}
        is_helix = kind == "corrupt" and region in OFTEN and random.random() < 0.25
        few = max(1, min(shape.minority, shape.losses)) if kind != "rollback" else 1
        targets = random.sample(shape.broker_ids, random.randint(1, few))
        if kind == "corrupt":
            args["mode"] = random.choice(disks.MODES)
            args["bits"] = random.choice((1, 1, 2, 8))
            args["live"] = is_helix or random.random() < 0.4
        elif kind == "truncate":
            args["torn"] = region == "active" and random.random() < 0.5
        args["helix"] = is_helix
        return FaultPlan(
            kind=kind,
            targets=() if is_helix else tuple(sorted(targets)),
            args=args,
            hold_s=random.uniform(1.0, 6.0),
            lossy=region not in REBUILT and not args.get("torn", False),
        )

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        targets = tuple(self._cluster.hosts) if fault.args["helix"] else fault.targets
        down = sorted(set(targets) - self._cluster.up())
        if down:
            return not_injected(f"brokers {down} are not running")
        if fault.lossy and (why := self._forbidden(fault, targets)):
            return not_injected(why)
        if fault.kind == "rollback":
            return self._roll_back(fault)
        if not fault.args.get("live", False):
            self._cluster.kill(targets)
            # Leaders may have changed since: check whether the other copies are still sufficient.
            if fault.lossy and (why := self._ledger.may_lose(targets)):
                self._start_again(targets)
                return not_injected(f"after they were killed: {why}")
        random = Random(fault.args["seed"])
        partitions = self._different_partitions(targets, random) if fault.args["helix"] else {}
        for broker in targets:
            if not fault.args["helix"] or broker in partitions:
                self._harm(broker, fault, random, partitions.get(broker))
        return self._effect(fault, targets)

    def _forbidden(self, fault: FaultPlan, targets: Sequence[int]) -> str:
        """Return why the fault budget forbids the fault; empty if it does not.

        With a helix, each broker loses one partition only, so each is checked separately.
        """
        asked = [(broker,) for broker in targets] if fault.args["helix"] else [targets]
        return next(filter(None, (self._ledger.may_lose(each) for each in asked)), "")

    def _start_again(self, targets: Sequence[int]) -> None:
        for broker in targets:
            self._cluster.start_broker(broker)

    def _different_partitions(self, targets: Sequence[int], random: Random) -> dict[int, str]:
        """Return a different partition for each broker, as its directory."""
        chosen: dict[int, str] = {}
        for broker in targets:
            data_dir = self._cluster.hosts[broker].data_dir
            names = [str(path.relative_to(data_dir)) for path in disks.partitions(data_dir)]
            left = [name for name in names if name not in chosen.values()]
            if left:
                chosen[broker] = random.choice(left)
        return chosen

    def _harm(self, broker: int, fault: FaultPlan, random: Random, partition: str | None) -> None:
        data_dir = self._cluster.hosts[broker].data_dir
        chosen = None if partition is None else data_dir / partition
        found = disks.places(data_dir, fault.args["region"], partition=chosen)
        if not found:
            return
        words, quarantined = self._as_it_is(broker)
        place = random.choice(found)
        if fault.kind == "corrupt":
            change = disks.corrupt(place, fault.args["mode"], random, bits=fault.args["bits"])
        elif fault.args["torn"]:
            change = disks.tear(place, random)
        else:
            change = disks.cut(place, random)
        self._note(_Harm(broker, fault, change, words, quarantined))

    def _as_it_is(self, broker: int) -> tuple[Words, set[Path]]:
        host = self._cluster.hosts[broker]
        return Words(host.process.log_path), disks.quarantines(host.data_dir)

    def _note(self, harm: _Harm) -> None:
        if harm.fault.lossy:
            self._ledger.lost((harm.broker,))
        self._harms.append(harm)

    def _effect(self, fault: FaultPlan, targets: Sequence[int]) -> Effect:
        done = [harm for harm in self._harms if harm.fault is fault]
        unharmed = set(targets) - {harm.broker for harm in done}
        self._start_again(sorted(unharmed - self._cluster.up()))
        if not done:
            return not_injected(f"no {fault.args['region']} file with bytes to change")
        changed = {str(harm.broker): harm.change.to_history() for harm in done}
        return Effect(True, {"changed": changed}, tuple(harm.broker for harm in done))

    def _roll_back(self, fault: FaultPlan) -> Effect:
        """Replace a file by its version of the broker's last start."""
        (broker,) = fault.targets
        data_dir = self._cluster.hosts[broker].data_dir
        random = Random(fault.args["seed"])
        self._cluster.kill([broker])
        found = disks.places(data_dir, fault.args["region"])
        place = random.choice(found) if found else None
        old = b"" if place is None else place.path.read_bytes()
        self._cluster.start_broker(broker)
        if place is None:
            return not_injected(f"no {fault.args['region']} file")
        # Other brokers can detect only the loss of data that they have received.
        poll(lambda: is_back(self._cluster, broker), self._more_s, interval_s=POLL_S)
        poll(lambda: _bytes(place.path) not in {old, b""}, self._more_s, interval_s=POLL_S)
        self._cluster.kill([broker])
        why = self._ledger.may_lose((broker,)) if fault.lossy else ""
        if not why and _bytes(place.path) in {old, b""}:
            why = f"{place.path} is unchanged, or does not exist"
        if why:
            self._cluster.start_broker(broker)
            return not_injected(why)
        harm = _Harm(broker, fault, disks.put_back(place, old), *self._as_it_is(broker))
        self._note(harm)
        return self._effect(fault, (broker,))

    # -- recovering

    def end(self, fault: FaultPlan) -> Effect:
        mine = [harm for harm in self._harms if harm.fault is fault]
        if not mine:
            return not_injected("no file was changed")
        seen = {}
        for harm in mine:
            self._harms.remove(harm)
            seen[str(harm.broker)] = self._see_to(harm)
        return Effect(True, seen, tuple(harm.broker for harm in mine))

    def heal(self) -> None:
        while self._harms:
            self._see_to(self._harms.pop(0))
        for broker in sorted(self._refusing):
            if replace_disk(self._cluster, self._ledger, broker)["disk"] != "kept":
                self._refusing.discard(broker)

    def _see_to(self, harm: _Harm) -> dict[str, Any]:
        """Start the broker with the changed files, replace its disk if necessary, and return the
        reactions.

        Restarts a running broker, because only a start checks all data.
        """
        broker = harm.broker
        seen: dict[str, Any] = {}
        if broker in self._cluster.up():
            seen["noticed_at_work"] = harm.words.lines()
        self._cluster.kill([broker])
        seen["wrong"] = _trouble(harm.change)
        start = try_start(self._cluster, broker)
        seen |= start.to_history()
        if start.started:
            poll(lambda: self._is_seen_to(harm), self._notice_s, interval_s=POLL_S)
        seen["said"] = harm.words.lines()
        if not start.started or harm.is_refused_by_peers:
            seen |= replace_disk(self._cluster, self._ledger, broker)
            if seen["disk"] == "kept":
                self._refusing.add(broker)
            return seen
        aside = disks.quarantines(self._cluster.hosts[broker].data_dir) - harm.quarantined
        seen["set_aside"] = sorted(map(str, aside))
        still = _trouble(harm.change)
        if still and harm.fault.lossy:
            seen["unnoticed"] = still
            self.unnoticed.append({**harm.change.to_history(), "broker": broker, "wrong": still})
        elif harm.fault.lossy:
            self._ledger.returned((broker,))
        else:
            seen["wrong_still"] = still  # the broker repairs it at the next write of the file
        seen["is_back"] = poll(
            lambda: is_back(self._cluster, broker), self._more_s, interval_s=POLL_S
        )
        return seen

    def _is_seen_to(self, harm: _Harm) -> bool:
        """Return whether no problem remains, or the other brokers reject the broker.

        An old version of a file is valid in itself, so that only a rejection ends the wait.
        """
        if harm.is_refused_by_peers:
            return True
        if harm.change.mode == "tear":
            return bool(harm.words.lines())
        return harm.fault.kind != "rollback" and not _trouble(harm.change)


def _trouble(change: Change) -> str:
    """Return the problem that the broker's tools report for the changed file, if it still
    exists."""
    return disks.trouble(change.place) if change.place.path.exists() else ""


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
