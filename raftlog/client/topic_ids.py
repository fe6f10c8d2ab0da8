"""IDs of topics, for requests that must not concern a newer topic of the same name."""

from __future__ import annotations

from functools import partial

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.protocol import api as apis
from raftlog.protocol.metadata import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Failure


async def topic_ids(
    cluster: Cluster, names: list[str], missing: list[RaftlogError]
) -> dict[str, str]:
    """Return the ids of topics by name. ``missing`` receives an error for each that does not exist.

    Asks again while a broker does not know its topics yet. Raises the errors of ``persist``.
    """
    ids: dict[str, str] = {}
    for start in range(0, len(names), limits.TOPICS_PER_REQUEST_MAX):
        part = names[start : start + limits.TOPICS_PER_REQUEST_MAX]
        for name, found in await cluster.persist(partial(_ask_ids, cluster, part), repeatable=True):
            if isinstance(found, RaftlogError):
                missing.append(found)
            else:
                ids[name] = found
    return ids


async def _ask_ids(cluster: Cluster, names: list[str]) -> list[tuple[str, str | RaftlogError]]:
    answer = await cluster.call(apis.METADATA, MetadataRequest(topics=names))
    assert isinstance(answer, MetadataResponse)
    found: list[tuple[str, str | RaftlogError]] = []
    for topic in answer.topics:
        error = None if topic.failure is None else named_failure(topic.name, topic.failure)
        if error is not None and not isinstance(error, UnknownTopicError):
            raise error
        found.append((topic.name, error or topic.id))
    return found


def named_failure(name: str, failure: Failure) -> RaftlogError:
    """Return the failure as an error whose message contains the topic name."""
    error = failure.to_error()
    return error if name in str(error) else type(error)(f"{name}: {error}")
