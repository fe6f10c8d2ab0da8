"""A shard with classic groups: requests by short names, and the results of those that waited."""

from __future__ import annotations

from typing import Any

from raftlog.consumer_groups import Departure, Join, JoinResult, Sync, SyncResult
from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.errors import RaftlogError
from raftlog.testing.kafka_wire import assignment, subscription
from tests.consumer_groups.scene import GROUP, REBALANCE_MS, SESSION_MS, Scene
from tests.consumer_groups.states import groups_of


class ClassicScene(Scene):
    """Topic t with four partitions. ``answers`` has what waiting members were answered, by ID.

    A member waits for one answer at a time, as the server has it; a newer request replaces it.
    """

    def __init__(self, **settings: Any) -> None:
        self.waiting: dict[str, tuple[str, str | None]] = {}  # "join" or "sync", and the instance
        self.answers: dict[str, JoinResult | SyncResult | RaftlogError] = {}
        super().__init__(**{"initial_rebalance_delay_ms": 0, **settings})

    @property
    def group(self) -> ClassicGroup:
        classic = groups_of(self.shard)[GROUP].classic
        assert classic is not None
        return classic

    def enter(
        self,
        name: str,
        *protocols: str | tuple[str, bytes],
        new: bool = True,
        instance: str | None = None,
        **fields: Any,
    ) -> JoinResult | None:
        """Joins with this name as its ID, as a new member or as one that has the ID."""
        offered = [
            p if isinstance(p, tuple) else (p, subscription("t")) for p in protocols or ("range",)
        ]
        join = Join(
            **{
                "group": GROUP,
                "member_id": "" if new else name,
                "new_member_id": name,
                "protocol_type": "consumer",
                "protocols": tuple(offered),
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
                "instance_id": instance,
                **fields,
            }
        )
        result: JoinResult | None = self.take(
            self.shard.join(join, now=self.now, now_ms=self.now_ms)
        )
        if result is None:
            self.waiting[name] = "join", instance
        return result

    def again(self, name: str, *protocols: str | tuple[str, bytes], **fields: Any) -> Any:
        """Joins with the ID that it has."""
        return self.enter(name, *protocols, new=False, **fields)

    def sync(
        self,
        name: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        **fields: Any,
    ) -> SyncResult | None:
        sync = Sync(
            group=GROUP,
            member_id=name,
            generation=self.group.generation if generation is None else generation,
            instance_id=instance,
            assignments=tuple((assignments or {}).items()),
            **fields,
        )
        result: SyncResult | None = self.take(
            self.shard.sync(sync, now=self.now, now_ms=self.now_ms)
        )
        if result is None:
            self.waiting[name] = "sync", instance
        return result

    def pulse(self, name: str, generation: int | None = None, instance: str | None = None) -> None:
        """A heartbeat."""
        number = self.group.generation if generation is None else generation
        self.take(self.shard.classic_heartbeat(GROUP, name, instance, number, now=self.now))

    def depart(self, *departures: str | Departure) -> list[RaftlogError | None]:
        asked = [Departure(one) if isinstance(one, str) else one for one in departures]
        found: list[RaftlogError | None] = self.take(
            self.shard.leave(GROUP, asked, now=self.now, now_ms=self.now_ms)
        )
        return found

    def formed(self, *members: str) -> None:
        """These form a generation, in which member N has partition N of t."""
        for name in members:
            if name in (self.group.members if GROUP in groups_of(self.shard) else ()):
                self.again(name)
            else:
                self.enter(name)
        for name in members:
            if self.group.phase == "preparing_rebalance" and name not in self.waiting:
                self.again(name)
        self.synced(*members)

    def synced(self, *members: str) -> None:
        """All ask for their assignments, the leader last."""
        given = {name: assignment("t", number) for number, name in enumerate(members)}
        for name in sorted(members, key=lambda name: name == self.group.leader):
            self.sync(name, given if name == self.group.leader else None)

    def answer(self, name: str) -> Any:
        """What a waiting member was answered."""
        return self.answers.pop(name)

    def fail_over(self) -> None:
        self.waiting.clear()
        super().fail_over()

    def take(self, step: Any) -> Any:
        result = super().take(step)
        for name in sorted(self.woken):
            kind, instance = self.waiting.pop(name, ("", None))
            if not kind:
                continue
            ask = self.shard.join_result if kind == "join" else self.shard.sync_result
            try:
                self.answers[name] = ask(GROUP, name, instance)
            except RaftlogError as error:
                self.answers[name] = error
        return result
