"""Log levels of one broker: requests of the admin client."""

from __future__ import annotations

from collections.abc import Mapping

from raftlog.client.cluster import Cluster
from raftlog.client.descriptions import LogLevel
from raftlog.protocol import api as apis
from raftlog.protocol.log_levels import (
    AlterLogLevelsRequest,
    DescribeLogLevelsRequest,
    DescribeLogLevelsResponse,
    LogLevelChange,
)


async def describe_log_levels(cluster: Cluster, broker: int) -> dict[str, LogLevel]:
    """Return the level of each logger of a broker, by name."""
    await cluster.refresh()
    request = DescribeLogLevelsRequest()
    answer = await cluster.call(apis.DESCRIBE_LOG_LEVELS, request, broker_id=broker)
    assert isinstance(answer, DescribeLogLevelsResponse)
    return {each.logger: LogLevel(each.level, each.is_own) for each in answer.levels}


def alteration(changes: Mapping[str, str | None]) -> AlterLogLevelsRequest:
    """Return the request that changes levels."""
    requested = [LogLevelChange(logger=name, level=level) for name, level in changes.items()]
    return AlterLogLevelsRequest(changes=requested)
