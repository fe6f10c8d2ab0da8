"""Requests about several groups: one result for each, in order, also where a shard refuses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError, NotCoordinatorError, UnknownGroupError
from raftlog.server.context import BrokerContext
from raftlog.server.requests.groups import (
    check_count,
    delete_groups,
    describe_groups,
    list_groups,
)


class FakeShard:
    """Answers later with ``answer``, or refuses at once with ``refusal``."""

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
    steps = request_of(context_of(**shards), list(shards), lambda *pair: pair, sent.append)
    assert list(steps) == [None] * 3, "other requests may run between two groups"
    shards["c"].respond()
    assert sent == []
    shards["a"].respond()
    assert sent == [[("a", "view"), ("b", refusal), ("c", error)]]


def test_a_shard_that_refuses_differs_from_an_empty_one() -> None:
    shards = [FakeShard([]), FakeShard(refusal=NotCoordinatorError("loads"))]
    sent: list[list[object]] = []
    list_groups(cast(Any, shards), cast(Any, sent.append))
    shards[0].respond()
    assert sent == [[[], None]]


def test_too_many_groups_are_refused() -> None:
    check_count(["g"] * limits.GROUPS_PER_REQUEST_MAX)
    with pytest.raises(InvalidRequestError, match="the maximum is"):
        check_count(["g"] * (limits.GROUPS_PER_REQUEST_MAX + 1))
