"""One partition of ``__transaction_state``, with a time and producer ids of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from raftlog.errors import RaftlogError
from raftlog.transactions import (
    BUMPING_VERSION,
    Part,
    ProducerIdentity,
    StateChange,
    TransactionSettings,
    TransactionShard,
    TransactionView,
)

A: Part = ("topic-id", 0)
B: Part = ("topic-id", 1)
NOW_MS = 1_000_000


class Scene:
    """Calls name the error class, or give the result; ``log`` has all records."""

    def __init__(self, *, version: int = BUMPING_VERSION, **settings: int) -> None:
        self.version = version
        self.settings = TransactionSettings(**settings)
        self.now = 0.0
        self.ids = count(1_000)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.epoch = 7
        self.last: StateChange[Any] = StateChange(None)
        self.shard = TransactionShard(self.settings, self.epoch)
        self.take(self.shard.start(now=0.0, now_ms=NOW_MS))

    @property
    def times(self) -> dict[str, Any]:
        return {"now": self.now, "now_ms": NOW_MS + int(self.now * 1_000)}

    def take(self, step: StateChange[Any]) -> Any:
        self.last = step
        self.log += [(each.key, each.value) for each in step.records]
        return step.result

    def call(self, operation: Callable[..., StateChange[Any]], *args: Any, **more: Any) -> Any:
        try:
            return self.take(operation(*args, **more, **self.times))
        except RaftlogError as error:
            return type(error).__name__

    def init(self, expected: tuple[int, int] | None = None, *, name: str = "x", **more: Any) -> Any:
        more = {"timeout_ms": 60_000, "new_id": next(self.ids), **more}
        if expected is not None:
            more["expected"] = ProducerIdentity(*expected)
        return self.call(self.shard.init, name, **more)

    def add(self, who: tuple[int, int], *parts: Part, name: str = "x", version: int = 0) -> Any:
        return self.call(
            self.shard.add,
            name,
            ProducerIdentity(*who),
            parts or (A,),
            version=version or self.version,
            topics_version=1,
        )

    def check(self, who: tuple[int, int], *parts: Part, name: str = "x") -> Any:
        try:
            self.shard.check(name, ProducerIdentity(*who), parts or (A,), version=self.version)
        except RaftlogError as error:
            return type(error).__name__
        return None

    def end(
        self,
        who: tuple[int, int],
        *,
        commit: bool = True,
        name: str = "x",
        version: int = 0,
        reserved: tuple[Part, ...] = (),
    ) -> Any:
        return self.call(
            self.shard.end,
            name,
            ProducerIdentity(*who),
            is_commit=commit,
            version=version or self.version,
            new_id=next(self.ids),
            reserved=reserved,
        )

    def mark(self, *parts: Part, name: str = "x") -> None:
        """Confirm the markers of ``parts``, or of all."""
        ending = self.shard.ending(name)
        assert ending is not None
        marked: Iterable[Part] = parts or ending.parts
        self.call(self.shard.marked, name, ending.number, marked)

    def transaction(self, who: tuple[int, int], *, commit: bool = True, name: str = "x") -> Any:
        """Add a partition, end and complete. Returns the result of the end."""
        assert self.add(who, name=name) is None
        result = self.end(who, commit=commit, name=name)
        self.mark(name=name)
        return result

    def view(self, name: str = "x") -> TransactionView:
        return self.shard.view(name)

    def tick(self, seconds: float, *, expiry_ms: int | None = None) -> None:
        """Pass the time, and the deadlines in it."""
        until = self.now + seconds
        while (at := self.shard.deadline()) is not None and at <= until:
            self.now = max(self.now, at)
            now_ms = self.times["now_ms"]
            expires = now_ms if expiry_ms is None else expiry_ms
            self.take(self.shard.tick(now=self.now, now_ms=now_ms, expiry_ms=expires))
        self.now = until

    def fail_over(self) -> StateChange[None]:
        """Go on with a coordinator that has read the log, compacted."""
        self.epoch += 1
        self.shard = TransactionShard(self.settings, self.epoch)
        for key, value in dict(self.log).items():
            self.shard.replay(key, value)
        step = self.shard.start(**self.times)
        self.take(step)
        return step
