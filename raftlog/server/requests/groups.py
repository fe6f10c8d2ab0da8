"""Requests about many consumer groups, each of which has its shard, or about many offsets of one
group. The shards decide.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

from raftlog.consumer_groups import Committed, GroupListing, GroupShard, GroupView, StateChange
from raftlog.errors import RaftlogError
from raftlog.server.consumer_groups.active_shard import ActiveShard
from raftlog.server.consumer_groups.pending_responses import Failed
from raftlog.server.context import BrokerContext
from raftlog.server.requests.outcomes import Outcomes
from raftlog.server.turns import Steps, in_steps
from raftlog.types import TopicPartition

T = TypeVar("T")
R = TypeVar("R")
Item = TypeVar("Item")

OFFSETS_PER_STEP: Final = 500  # of a commit, fetch or deletion: takes 2 ms at most
# Groups of one shard; None while it loads, or if it stops during the request.
Listed: TypeAlias = list[GroupListing] | None


def list_groups(shards: Sequence[ActiveShard], send: Callable[[list[Listed]], None]) -> Steps:
    """Call ``send`` with the groups of each shard."""
    outcomes: Outcomes[Listed] = Outcomes(len(shards), send)
    for index, shard in enumerate(shards):
        failed = partial(_resolve_without, outcomes, index)
        try:
            groups = shard.loaded
            names = () if groups is None else groups.names()
            found = yield from in_steps(names, partial(_group_listing, groups))
            listed = [one for one in found if one is not None]
            shard.ask(partial(_as_listed, listed), partial(outcomes.resolve, index), failed)
        except RaftlogError as error:
            failed(error)
        yield None


def _group_listing(groups: GroupShard | None, name: str) -> GroupListing | None:
    return None if groups is None else groups.listing(name)


def _as_listed(listed: list[GroupListing], _groups: GroupShard) -> list[GroupListing]:
    return listed


def _resolve_without(outcomes: Outcomes[Listed], index: int, _error: RaftlogError) -> None:
    outcomes.resolve(index, None)


def describe_groups(
    context: BrokerContext,
    groups: Sequence[str],
    send: Callable[[list[GroupView | RaftlogError]], None],
) -> Steps:
    """Call ``send`` with the description of each group, or its error."""

    def ask(group: str, done: Callable[[GroupView | RaftlogError], None]) -> None:
        context.coordinator.shard(group).ask(_describing(group), done, done)

    return _each(groups, ask, send)


def _describing(group: str) -> Callable[[GroupShard], GroupView]:
    return lambda groups: groups.describe(group)


def delete_groups(
    context: BrokerContext,
    groups: Sequence[str],
    send: Callable[[list[RaftlogError | None]], None],
) -> Steps:
    """Delete groups without members. Call ``send`` with the error of each group, or None."""

    def ask(group: str, done: Callable[[RaftlogError | None], None]) -> None:
        context.coordinator.shard(group).change(_deleting(group), done, done)

    return _each(groups, ask, send)


def _deleting(group: str) -> Callable[[GroupShard, float, int], StateChange[None]]:
    return lambda groups, _now, _now_ms: groups.delete_group(group)


# -- offsets of one group --------------------------------------------------------------------------


def fetch_offsets(
    context: BrokerContext,
    group: str,
    names: Sequence[TopicPartition] | None,
    done: Callable[[list[Committed]], None],
    failed: Failed,
    *,
    expect: Callable[[int], None] = lambda _count: None,
) -> Steps:
    """Call ``done`` with the committed offsets of ``names``, or all of the group if it is None.

    ``expect``: called before with their number.
    """
    shard = context.coordinator.shard(group)
    if names is None:
        names = yield from _committed(shard.loaded, group)
    expect(len(names))

    def ask(part: Sequence[TopicPartition], resolve: Callable[..., None], fail: Failed) -> None:
        shard.ask(lambda groups: groups.fetch(group, part), resolve, fail)

    yield from _in_parts(names, ask, done, failed)


def _committed(groups: GroupShard | None, group: str) -> Generator[None, Any, list[TopicPartition]]:
    """Return the partitions of which a group has committed offsets."""
    names: list[TopicPartition] = []
    if groups is None:
        return names  # the request is refused
    for topic in groups.committed_topics(group):
        numbers = sorted(partition for partition, _ in groups.committed_in(group, topic))
        names += [TopicPartition(topic, partition) for partition in numbers]
        yield None
    return names


def change_offsets(
    context: BrokerContext,
    group: str,
    items: Sequence[Item],
    change: Callable[
        [GroupShard, Sequence[Item], float, int], StateChange[list[RaftlogError | None]]
    ],
    done: Callable[[list[RaftlogError | None]], None],
    failed: Failed,
) -> Steps:
    """Commit or delete offsets of a group, ``OFFSETS_PER_STEP`` at a time. Call ``done`` with the
    results of all ``items`` when they are committed.

    Each part is a decision. If some parts fail, the items of these have the error, and the others
    have taken effect. If all parts fail, ``failed`` is called with the first error.
    """
    begun, refusals = 0, list[RaftlogError]()

    def ask(
        part: Sequence[Item], resolve: Callable[[list[RaftlogError | None]], None], _fail: Failed
    ) -> None:
        nonlocal begun

        def refused(error: RaftlogError) -> None:
            refusals.append(error)
            resolve([error] * len(part))

        begun += 1
        try:
            context.coordinator.shard(group).change(
                lambda groups, now, now_ms: change(groups, part, now, now_ms), resolve, refused
            )
        except RaftlogError as error:
            if begun == 1:
                raise
            refused(error)

    def ended(results: list[RaftlogError | None]) -> None:
        if len(refusals) == begun:
            failed(refusals[0])
        else:
            done(results)

    return _in_parts(items, ask, ended, failed)


def _in_parts(
    items: Sequence[Item],
    ask: Callable[[Sequence[Item], Callable[[list[R]], None], Failed], None],
    done: Callable[[list[R]], None],
    failed: Failed,
) -> Steps:
    """Call ``ask`` for a part of the items in each step, at least once. Then call ``done`` with all
    results, or ``failed`` with the first error. Raises an error of the first ``ask``.
    """
    parts = [
        items[start : start + OFFSETS_PER_STEP]
        for start in range(0, max(len(items), 1), OFFSETS_PER_STEP)
    ]
    errors: list[RaftlogError] = []

    def fail(error: RaftlogError) -> None:
        errors.append(error)
        if len(errors) == 1:
            failed(error)

    results: Outcomes[list[R]] = Outcomes(len(parts), lambda found: done(list(chain(*found))))
    for index, part in enumerate(parts):
        if errors:
            return
        try:
            ask(part, partial(results.resolve, index), fail)
        except RaftlogError as error:
            if not index:
                raise
            fail(error)
        yield None


# -- several groups --------------------------------------------------------------------------------


def _each(
    groups: Sequence[str],
    ask: Callable[[str, Callable[[T | RaftlogError], None]], None],
    send: Callable[[list[T | RaftlogError]], None],
) -> Steps:
    outcomes: Outcomes[T | RaftlogError] = Outcomes(len(groups), send)
    for index, group in enumerate(groups):
        done = partial(outcomes.resolve, index)
        yield None
        try:
            ask(group, done)
        except RaftlogError as error:
            done(error)
