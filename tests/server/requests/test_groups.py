"""Requests about several groups: one result for each, in order, also where a shard refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.errors import NotCoordinatorError, UnknownGroupError
from raftlog.server.apis.groups import (
    change_offsets,
    delete_groups,
    describe_groups,
    fetch_offsets,
    list_groups,
)
from raftlog.server.context import BrokerContext
from raftlog.types import TopicPartition


class FakeShard:
    """Answers later with ``answer``, or refuses at once with ``refusal``."""

    loaded = None

    def __init__(self, answer: object = None, refusal: Exception | None = None) -> None:
        self._answer = answer
        self._refusal = refusal
        self.respond: Callable[[], None] = lambda: None

    def ask(self, _operation: object, done: Any, failed: Any) -> None:
        if self._refusal is not None:
            raise self._refusal
        is_error = isinstance(self._answer, Exception)
        self.respond = lambda: (failed if is_error else done)(self._answer)

    change = ask


def context_of(**shards: FakeShard) -> BrokerContext:
    return cast(BrokerContext, SimpleNamespace(coordinator=SimpleNamespace(shard=shards.get)))


@pytest.mark.parametrize("request_of", [describe_groups, delete_groups])
def test_each_group_has_its_result_or_its_error(request_of: Any) -> None:
    refusal, error = NotCoordinatorError("not me"), UnknownGroupError("none")
    shards = {"a": FakeShard("view"), "b": FakeShard(refusal=refusal), "c": FakeShard(error)}
    sent: list[list[object]] = []
    steps = request_of(context_of(**shards), list(shards), sent.append)
    assert list(steps) == [None] * 3, "other requests may run between two groups"
    shards["c"].respond()
    assert sent == []
    shards["a"].respond()
    assert sent == [["view", refusal, error]]


def test_a_shard_that_refuses_differs_from_an_empty_one() -> None:
    shards = [FakeShard([]), FakeShard(refusal=NotCoordinatorError("loads"))]
    sent: list[list[object]] = []
    list(list_groups(cast(Any, shards), cast(Any, sent.append)))
    shards[0].respond()
    assert sent == [[[], None]]


class Offsets:
    """A shard that decides at once: it notes how many partitions each decision has."""

    def __init__(self, refused_from: int = 1 << 30) -> None:
        self.parts: list[int] = []
        self.loaded = self
        self._refused_from = refused_from

    def fetch(self, _group: str, names: Sequence[TopicPartition]) -> list[int]:
        return [partition for _, partition in names]

    def committed_topics(self, _group: str) -> list[str]:
        return ["a", "b"]

    def committed_in(self, _group: str, topic: str) -> list[tuple[int, int]]:
        return [(number, 5) for number in range(700 if topic == "a" else 2)]

    def change(self, operation: Any, done: Any, failed: Any) -> None:
        self.ask(lambda _shard: operation(self, 0.0, 0), done, failed)

    def ask(self, operation: Any, done: Any, failed: Any) -> None:
        if len(self.parts) >= self._refused_from:
            raise NotCoordinatorError("not me")
        found = operation(self)
        self.parts.append(len(found))
        done(found)


NAMES = [TopicPartition("t", number) for number in range(1_201)]


@pytest.mark.parametrize(
    ("names", "parts"), [([], [0]), (NAMES[:1], [1]), (NAMES, [500, 500, 201])]
)
def test_offsets_are_asked_and_changed_some_at_a_time(
    names: list[TopicPartition], parts: list[int]
) -> None:
    for is_change in (False, True):
        shard, sent, failures = Offsets(), list[list[Any]](), list[Exception]()
        context = context_of(g=cast(Any, shard))
        if is_change:
            steps = change_offsets(
                context,
                "g",
                names,
                lambda groups, part, _now, _now_ms: cast(Any, groups.fetch("g", part)),
                cast(Any, sent.append),
                failures.append,
            )
        else:
            steps = fetch_offsets(context, "g", names, cast(Any, sent.append), failures.append)
        assert len(list(steps)) == len(parts), "other requests may run between two parts"
        assert shard.parts == parts
        assert (sent, failures) == ([[partition for _, partition in names]], [])


def test_all_offsets_of_a_group_are_in_the_order_of_topics_and_partitions() -> None:
    shard, sent = Offsets(), list[list[Any]]()
    steps = fetch_offsets(
        context_of(g=cast(Any, shard)), "g", None, cast(Any, sent.append), lambda _error: None
    )
    assert len(list(steps)) == 2 + 2
    assert sent == [[*range(700), 0, 1]]


def test_a_later_part_that_fails_fails_the_request_once() -> None:
    shard, sent, failures = Offsets(refused_from=1), list[list[Any]](), list[Exception]()
    context = context_of(g=cast(Any, shard))
    list(fetch_offsets(context, "g", NAMES, cast(Any, sent.append), failures.append))
    assert sent == []
    assert [str(error) for error in failures] == ["not me"]
    refusing = context_of(g=cast(Any, Offsets(refused_from=0)))
    with pytest.raises(NotCoordinatorError):
        list(fetch_offsets(refusing, "g", NAMES, cast(Any, sent.append), failures.append))


class Fenced(Offsets):
    """A shard that rejects the second part after it has begun."""

    def ask(self, operation: Any, done: Any, failed: Any) -> None:
        found = operation(self)
        self.parts.append(len(found))
        if len(self.parts) == 2:
            failed(NotCoordinatorError("not any more"))
        else:
            done([None] * len(found))


@pytest.mark.parametrize("shard", [Fenced(), Offsets(refused_from=1)])
def test_a_part_that_is_refused_has_the_error_and_the_others_have_their_results(
    shard: Offsets,
) -> None:
    sent, failures = list[list[Any]](), list[Exception]()
    list(_changed(shard, cast(Any, sent.append), failures.append))
    assert failures == []
    kinds = [isinstance(outcome, NotCoordinatorError) for outcome in sent[0]]
    refused = [500] if isinstance(shard, Fenced) else [500, 201]
    assert kinds == [False] * 500 + [True] * sum(refused) + [False] * (701 - sum(refused))


def test_changes_of_which_every_part_is_refused_fail_as_a_whole() -> None:
    sent, failures = list[list[Any]](), list[Exception]()
    with pytest.raises(NotCoordinatorError):
        list(_changed(Offsets(refused_from=0), cast(Any, sent.append), failures.append))
    late = FakeShard(NotCoordinatorError("not me"))
    steps = _changed(cast(Any, late), cast(Any, sent.append), failures.append, NAMES[:1])
    list(steps)
    late.respond()
    assert sent == []
    assert [str(error) for error in failures] == ["not me"]


def _changed(
    shard: Offsets, done: Any, failed: Any, names: Sequence[TopicPartition] = NAMES
) -> Any:
    def change(groups: Any, part: Any, _now: float, _now_ms: int) -> Any:
        return groups.fetch("g", part)

    return change_offsets(context_of(g=cast(Any, shard)), "g", names, change, done, failed)
