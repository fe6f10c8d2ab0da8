"""Changes of topics, for the admin client: several in one request, each with its own result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.retry import may_retry
from raftlog.client.topic_ids import named_failure
from raftlog.errors import RaftlogError
from raftlog.protocol.api import Api
from raftlog.protocol.schema import Message
from raftlog.protocol.topics import TopicResult, TopicsResponse

T = TypeVar("T")


async def change_topics(
    cluster: Cluster,
    api: Api,
    changes: Sequence[T],
    request: Callable[[list[T]], Message],
    failures: list[RaftlogError],
) -> dict[str, str]:
    """Carry out the changes, and return the topic ids by name. Raises the first error."""
    ids: dict[str, str] = {}
    for start in range(0, len(changes), limits.TOPICS_PER_REQUEST_MAX):
        left = list(changes[start : start + limits.TOPICS_PER_REQUEST_MAX])
        for result in await _changed(cluster, api, left, request):
            if result.failure is None:
                ids[result.name] = result.id
            else:
                failures.append(named_failure(result.name, result.failure))
    if failures:
        raise failures[0]
    return ids


async def _changed(
    cluster: Cluster, api: Api, changes: list[T], request: Callable[[list[T]], Message]
) -> list[TopicResult]:
    """Return the result of each change. Retries changes that failed with a retriable error."""
    results: list[TopicResult | None] = [None] * len(changes)
    last: dict[int, TopicResult] = {}  # retriable results of the last attempt

    async def attempt() -> None:
        last.clear()
        left = [index for index, result in enumerate(results) if result is None]
        connection = await cluster.any_connection()
        answer = await cluster.ask(connection, api, request([changes[i] for i in left]))
        assert isinstance(answer, TopicsResponse)
        again: RaftlogError | None = None
        for index, result in zip(left, answer.results, strict=True):
            error = None if result.failure is None else result.failure.to_error()
            if error is not None and may_retry(error, repeatable=api.idempotent):
                again, last[index] = error, result
                continue
            results[index] = result
        if again is not None:
            cluster.mark_suspect(connection.broker_id)  # it may be isolated: prefer others
            raise again

    try:
        await cluster.persist(attempt, repeatable=api.idempotent)
    except RaftlogError:
        if any(result is None and i not in last for i, result in enumerate(results)):
            raise
    return [result or last[index] for index, result in enumerate(results)]
