"""Requests about several consumer groups, each of which has its shard. The shards decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from raftlog import limits
from raftlog.consumer_groups import GroupListing, GroupShard, GroupView, StateChange
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.server.consumer_groups.active_shard import ActiveShard
from raftlog.server.context import BrokerContext
from raftlog.server.requests.outcomes import Outcomes
from raftlog.server.turns import Steps

T = TypeVar("T")
R = TypeVar("R")
# Groups of one shard; None while it loads, or if it stops during the request.
Listed: TypeAlias = list[GroupListing] | None


def check_count(groups: Sequence[object]) -> None:
    """Raise ``InvalidRequestError`` for more groups than a request may contain."""
    if len(groups) > limits.GROUPS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"request for {len(groups)} groups: the maximum is {limits.GROUPS_PER_REQUEST_MAX}"
        )


def list_groups(shards: Sequence[ActiveShard], send: Callable[[list[Listed]], None]) -> None:
    """Call ``send`` with the groups of each shard."""
    outcomes: Outcomes[Listed] = Outcomes(len(shards), send)
    for index, shard in enumerate(shards):
        failed = partial(_settle_without, outcomes, index)
        try:
            shard.ask(lambda groups: list(groups.list()), partial(outcomes.settle, index), failed)
        except RaftlogError as error:
            failed(error)


def _settle_without(outcomes: Outcomes[Listed], index: int, _error: RaftlogError) -> None:
    outcomes.settle(index, None)


def describe_groups(
    context: BrokerContext,
    groups: Sequence[str],
    describe: Callable[[str, GroupView | RaftlogError], R],
    send: Callable[[list[R]], None],
) -> Steps:
    """Call ``send`` with the result of ``describe`` for each group, or its error."""

    def ask(group: str, done: Callable[[GroupView | RaftlogError], None]) -> None:
        context.coordinator.shard(group).ask(_describing(group), done, done)

    return _each(groups, ask, describe, send)


def _describing(group: str) -> Callable[[GroupShard], GroupView]:
    return lambda groups: groups.describe(group)


def delete_groups(
    context: BrokerContext,
    groups: Sequence[str],
    report: Callable[[str, RaftlogError | None], R],
    send: Callable[[list[R]], None],
) -> Steps:
    """Delete groups without members. Call ``send`` with the result of ``report`` for each group:
    its error, or None.
    """

    def ask(group: str, done: Callable[[RaftlogError | None], None]) -> None:
        context.coordinator.shard(group).change(_deleting(group), done, done)

    return _each(groups, ask, report, send)


def _deleting(group: str) -> Callable[[GroupShard, float, int], StateChange[None]]:
    return lambda groups, _now, _now_ms: groups.delete_group(group)


def _each(
    groups: Sequence[str],
    ask: Callable[[str, Callable[[T | RaftlogError], None]], None],
    result: Callable[[str, T | RaftlogError], R],
    send: Callable[[list[R]], None],
) -> Steps:
    outcomes: Outcomes[R] = Outcomes(len(groups), send)
    for index, group in enumerate(groups):

        def done(found: T | RaftlogError, index: int = index, group: str = group) -> None:
            outcomes.settle(index, result(group, found))

        yield None
        try:
            ask(group, done)
        except RaftlogError as error:
            done(error)
