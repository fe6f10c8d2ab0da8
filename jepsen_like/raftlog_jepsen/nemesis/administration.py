"""The kinds transfer, topics and settings (A1): administrative operations during other faults.

They have no harmful effect alone. A cluster must stay correct if it executes them during other
faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol

from raftlog import Admin, NewTopic
from raftlog.errors import RaftlogError, TopicExistsError, UnknownTopicError
from raftlog_jepsen.nemesis.base import Effect, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.plan import Shape

TIMEOUT_MS: Final = 5_000
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
