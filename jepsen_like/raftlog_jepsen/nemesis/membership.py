"""The kinds decommission, reassign, replication-factor and rolling-restart: changes of the cluster.

They have no harmful effect alone. A cluster must stay correct if it executes them during other
faults. A removed broker joins again with an empty disk, so that the cluster ends with its original
brokers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from raftlog import Admin, NewTopic
from raftlog.errors import (
    InvalidPartitionsError,
    RaftlogError,
    RefusedError,
    TopicExistsError,
    UnknownTopicError,
)
from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import (
    Effect,
    FaultPlan,
    HostLike,
    OwnKinds,
    Startable,
    not_injected,
    poll,
    try_start,
)
from raftlog_jepsen.plan import Shape

TIMEOUT_MS: Final = 5_000
REMOVED_S: Final = 5.0  # additional time for a removal, before it is cancelled
POLL_S: Final = 0.5
CANCELLED: Final = 0.3  # share of moves that are cancelled
THROTTLES: Final = (0, 0, 20_000, 500_000)  # bytes per second; 0 for none
MEMBERSHIP_KINDS: Final[Mapping[str, str]] = {
    "decommission": "Remove a broker, or cancel a long removal; it rejoins with an empty disk.",
    "reassign": "Move replicas of some partitions, sometimes throttled; cancel some moves.",
    "replication-factor": "Add a replica to each partition of a topic, then remove it.",
    "rolling-restart": "Restart all brokers with SIGTERM, one after the other.",
}


class Leaving(HostLike, Protocol):
    """Interface of a host whose broker can leave the cluster."""

    leaves: bool

    def join(self) -> None: ...


class Cluster(Startable, Protocol):
    """Interface of the cluster."""

    @property
    def hosts(self) -> Mapping[int, Leaving]: ...

    @property
    def bootstrap(self) -> str: ...

    def up(self) -> set[int]: ...


@dataclass
class _State:
    """State that must be undone."""

    leaving: set[int] = field(default_factory=set)  # brokers that are, or may be, decommissioned
    factors: dict[str, int] = field(default_factory=dict)  # former replication factors, by topic
    is_throttled: bool = False


class MembershipNemesis(OwnKinds):
    """Uses the ordinary admin client, with short timeouts, because other faults can be active."""

    kinds = MEMBERSHIP_KINDS

    def __init__(self, cluster: Cluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._state = _State()

    def _why_not(self, _kind: str) -> str:
        return "" if len(self._cluster.hosts) > 1 else "the cluster has only one broker"

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        topic = random.choice(shape.topics)
        targets: tuple[int, ...] = ()
        args: dict[str, Any] = {"topic": topic.name}
        if kind == "decommission":
            targets, args = (random.choice(shape.broker_ids),), {}
        elif kind == "rolling-restart":
            targets, args = tuple(random.sample(shape.broker_ids, shape.brokers)), {}
        elif kind == "reassign":
            partitions = random.sample(range(topic.partitions), random.randint(1, topic.partitions))
            args["moves"] = {
                str(partition): random.sample(shape.broker_ids, topic.replication_factor)
                for partition in sorted(partitions)
            }
            args["cancel"] = random.random() < CANCELLED
            args["throttle"] = random.choice(THROTTLES)
        else:
            args["factors"] = [topic.replication_factor, topic.replication_factor + 1]
        return FaultPlan(kind=kind, targets=targets, args=args, hold_s=random.uniform(2.0, 12.0))

    def begin(self, fault: FaultPlan) -> Effect:
        if fault.kind == "rolling-restart":
            return self._restart(fault.targets)
        acts = {
            "decommission": self._decommission,
            "reassign": self._reassign,
            "replication-factor": self._grow,
        }
        return self._with_admin(acts[fault.kind], fault)

    def end(self, fault: FaultPlan) -> Effect:
        acts = {
            "decommission": self._end_decommission,
            "reassign": self._end_moves,
            "replication-factor": self._shrink,
        }
        if fault.kind not in acts:
            return Effect(True, {"nothing": "the brokers run"}, fault.targets)
        return self._with_admin(acts[fault.kind], fault)

    def heal(self) -> None:
        """Cancel removals or let removed brokers rejoin; restore replication factors and throttle.

        Changes that the cluster rejects are repeated by the next call.
        """
        for broker in sorted(self._state.leaving):
            self.end(FaultPlan(kind="decommission", targets=(broker,)))
        for topic in sorted(self._state.factors):
            self.end(FaultPlan(kind="replication-factor", args={"topic": topic}))
        if self._state.is_throttled:
            self._with_admin(self._unthrottle, FaultPlan(kind="reassign"))

    def _with_admin(
        self, act: Callable[[Admin, FaultPlan], dict[str, Any]], fault: FaultPlan
    ) -> Effect:
        with Admin(self._cluster.bootstrap, request_timeout_ms=TIMEOUT_MS) as admin:
            try:
                return Effect(True, act(admin, fault), fault.targets)
            except RaftlogError as error:
                return not_injected(f"{type(error).__name__}: {error}")

    # -- brokers

    def _decommission(self, admin: Admin, fault: FaultPlan) -> dict[str, Any]:
        (broker,) = fault.targets
        if broker in self._state.leaving:
            raise RefusedError(f"broker {broker} is already leaving")
        self._state.leaving.add(broker)
        self._cluster.hosts[broker].leaves = True
        try:
            progress = admin.decommission_broker(broker)
        except RefusedError:
            self._stays(broker)
            raise
        return {"partitions": progress.partitions, "has_vote": progress.has_vote}

    def _end_decommission(self, admin: Admin, fault: FaultPlan) -> dict[str, Any]:
        (broker,) = fault.targets
        if broker not in self._state.leaving:
            return {"nothing": "the broker is not leaving"}
        began = time.monotonic()
        removed = poll(
            lambda: admin.decommission_broker(broker).removed, REMOVED_S, interval_s=POLL_S
        )
        if not removed:
            try:
                moving = admin.cancel_decommission(broker)
            except RefusedError:
                pass  # the broker was removed before the cancellation
            else:
                self._stays(broker)
                return {"cancelled": True, "moving": moving}
        return {"removed_after_s": round(time.monotonic() - began, 2), **self._join(broker)}

    def _join(self, broker: int) -> dict[str, Any]:
        """Start a removed broker with an empty disk, to join the cluster."""
        host = self._cluster.hosts[broker]
        self._cluster.kill([broker])
        removed = disks.empty(host.data_dir)
        host.join()
        started = try_start(self._cluster, broker)
        self._stays(broker)
        return {"files_removed": removed, **started.to_history()}

    def _stays(self, broker: int) -> None:
        self._state.leaving.discard(broker)
        self._cluster.hosts[broker].leaves = False

    def _restart(self, targets: tuple[int, ...]) -> Effect:
        seen: dict[str, Any] = {}
        for broker in targets:
            if broker in self._cluster.up() and broker not in self._state.leaving:
                self._cluster.hosts[broker].process.stop()
                seen[str(broker)] = try_start(self._cluster, broker).to_history()
        return Effect(True, seen, targets) if seen else not_injected("no broker is running")

    # -- replicas

    def _reassign(self, admin: Admin, fault: FaultPlan) -> dict[str, Any]:
        args = fault.args
        if args["throttle"]:
            self._state.is_throttled = True
            admin.throttle_moves(args["throttle"])
        moves = {int(partition): replicas for partition, replicas in args["moves"].items()}
        return {"moving": len(admin.reassign_partitions(args["topic"], moves))}

    def _end_moves(self, admin: Admin, fault: FaultPlan) -> dict[str, Any]:
        seen: dict[str, Any] = {"nothing": "the moves continue"}
        if fault.args["cancel"]:
            try:
                seen = {"cancelled": len(admin.cancel_reassignment(fault.args["topic"]))}
            except InvalidPartitionsError as error:
                seen = {"not_cancelled": str(error)}
        return {**seen, **self._unthrottle(admin, fault)}

    def _unthrottle(self, admin: Admin, _fault: FaultPlan) -> dict[str, Any]:
        if not self._state.is_throttled:
            return {}
        admin.throttle_moves(0)
        self._state.is_throttled = False
        return {"throttle": 0}

    def _grow(self, admin: Admin, fault: FaultPlan) -> dict[str, Any]:
        before, after = fault.args["factors"]
        self._state.factors[fault.args["topic"]] = before
        return self._resize(admin, fault.args["topic"], after)

    def _shrink(self, admin: Admin, fault: FaultPlan) -> dict[str, Any]:
        topic = fault.args["topic"]
        if topic not in self._state.factors:
            return {"nothing": "the topic has its original replication factor"}
        seen = self._resize(admin, topic, self._state.factors[topic])
        del self._state.factors[topic]
        return seen

    def _resize(self, admin: Admin, topic: str, factor: int) -> dict[str, Any]:
        described = admin.describe_cluster([topic])
        staying = [broker.id for broker in described.brokers if not broker.draining]
        replicas = {
            part.partition: _resized(part.target or part.replicas, factor, staying)
            for part in described.partitions
        }
        moving = admin.reassign_partitions(topic, replicas, replication_factor=factor)
        return {"replication_factor": factor, "moving": len(moving)}


def _resized(replicas: tuple[int, ...], factor: int, brokers: list[int]) -> list[int]:
    """Return ``factor`` replicas on ``brokers``, the present replicas first."""
    present = [broker for broker in replicas if broker in brokers]
    others = [broker for broker in brokers if broker not in replicas]
    if len(present) + len(others) < factor:
        raise RefusedError(f"too few brokers for {factor} replicas: only {brokers} remain")
    return (present + others)[:factor]


# -- administration --------------------------------------------------------------------------------
#
# The kinds transfer, topics and settings (A1): administrative operations during other faults.
#
# They have no harmful effect alone. A cluster must stay correct if it executes them during other
# faults.


SIDE_TOPIC: Final = "side-show"
SEGMENT_BYTES: Final = ("32768", "65536", "262144", "1048576")
ADMINISTRATION_KINDS: Final[Mapping[str, str]] = {
    "transfer": "Move the leaders of some partitions to other in-sync replicas.",
    "topics": "Create a topic, add partitions to it, delete it, and recreate it with its name.",
    "settings": "Change the segment size of a topic in use.",
}


class Reachable(Protocol):
    """Interface of the cluster."""

    @property
    def bootstrap(self) -> str: ...


class AdministrationNemesis(OwnKinds):
    """Uses the ordinary admin client, with short timeouts, because other faults can be active."""

    kinds = ADMINISTRATION_KINDS

    def __init__(self, cluster: Reachable, _ledger: object = None) -> None:
        self._cluster = cluster

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        topic = random.choice(shape.topics)
        args: dict[str, Any] = {"topic": topic.name}
        if kind == "transfer":
            count = random.randint(1, topic.partitions)
            args["partitions"] = sorted(random.sample(range(topic.partitions), count))
        elif kind == "topics":
            args = {
                "topic": SIDE_TOPIC,
                "partitions": random.randint(1, 4),
                "replication_factor": random.randint(1, min(3, shape.brokers)),
            }
        else:
            args["segment.bytes"] = random.choice(SEGMENT_BYTES)
        return FaultPlan(kind=kind, args=args, hold_s=random.uniform(0.5, 3.0))

    def begin(self, fault: FaultPlan) -> Effect:
        acts = {"transfer": self._transfer, "topics": self._recreate, "settings": self._alter}
        return self._with_admin(acts[fault.kind], fault)

    def end(self, fault: FaultPlan) -> Effect:
        if fault.kind != "topics":
            return Effect(True, {"nothing": "the changes remain"})
        return self._with_admin(self._extend_and_delete, fault)

    def heal(self) -> None:
        """Do nothing: the changes can remain."""

    def _with_admin(
        self, act: Callable[[Admin, Mapping[str, Any]], dict[str, Any]], fault: FaultPlan
    ) -> Effect:
        with Admin(self._cluster.bootstrap, request_timeout_ms=TIMEOUT_MS) as admin:
            try:
                return Effect(True, act(admin, fault.args))
            except RaftlogError as error:
                return not_injected(f"{type(error).__name__}: {error}")

    def _transfer(self, admin: Admin, args: Mapping[str, Any]) -> dict[str, Any]:
        moved, refused = {}, []
        for partition in args["partitions"]:
            try:
                moved[str(partition)] = admin.transfer_leader(args["topic"], partition).leader
            except RaftlogError as error:  # if all fail, each error is reported
                refused.append(f"{partition}: {error}")
        if not moved:
            raise RaftlogError("; ".join(refused))
        return {"leaders": moved, "refused": len(refused)}

    def _recreate(self, admin: Admin, args: Mapping[str, Any]) -> dict[str, Any]:
        topic = NewTopic(args["topic"], args["partitions"], args["replication_factor"])
        try:
            admin.create_topics([topic])
        except TopicExistsError:
            admin.delete_topics([args["topic"]])
            admin.create_topics([topic])
            return {"recreated": args["topic"]}
        return {"created": args["topic"]}

    def _extend_and_delete(self, admin: Admin, args: Mapping[str, Any]) -> dict[str, Any]:
        try:
            admin.add_partitions(args["topic"], args["partitions"] + 2)
            admin.delete_topics([args["topic"]])
        except UnknownTopicError:
            return {"gone": "an attempt whose response was lost had deleted it"}
        return {"deleted": args["topic"]}

    def _alter(self, admin: Admin, args: Mapping[str, Any]) -> dict[str, Any]:
        admin.alter_topic(args["topic"], {"segment.bytes": args["segment.bytes"]})
        return {"segment.bytes": args["segment.bytes"]}
