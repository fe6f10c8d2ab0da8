"""Versions of formats and protocols, reported by every broker, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog.client.cluster import Cluster
from raftlog.client.describe_cluster import ask_every_broker
from raftlog.client.descriptions import (
    BrokerFeatures,
    ClusterFeatures,
    FeatureDescription,
    FeatureVersions,
)
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse
from raftlog.protocol.schema import Message


async def describe_features(cluster: Cluster) -> ClusterFeatures:
    """Return the versions of every broker.

    Raises ``BrokerUnavailableError`` if no broker responds.
    """
    request = ApiVersionsRequest(client_id=cluster.settings.client_id)
    answers = await ask_every_broker(cluster, apis.API_VERSIONS, request)
    brokers = [_feature_broker(broker_id, answers[broker_id]) for broker_id in sorted(answers)]
    return ClusterFeatures(
        brokers=tuple(brokers),
        features=common([broker.features for broker in brokers if not broker.problem]),
        apis=common([broker.apis for broker in brokers if not broker.problem]),
    )


def _feature_broker(broker_id: int, answer: Message | RaftlogError) -> BrokerFeatures:
    if not isinstance(answer, ApiVersionsResponse):
        return BrokerFeatures(id=broker_id, problem=str(answer))
    names = {api.number: api.name for api in apis.APIS.values()}
    return BrokerFeatures(
        id=broker_id,
        software=answer.broker_software,
        features={
            each.name: FeatureVersions(each.version_min, each.version_max, each.level)
            for each in answer.features
        },
        apis={  # a client uses the newest version that both have
            names.get(each.api, str(each.api)): FeatureVersions(
                each.version_min, each.version_max, each.version_max
            )
            for each in answer.apis
        },
    )


def common(reported: Sequence[Mapping[str, FeatureVersions]]) -> tuple[FeatureDescription, ...]:
    """Return each feature with the versions that all brokers read, in the order of the names.

    ``reported``: the features of each broker that responded.
    """
    return tuple(
        _common(name, [features.get(name) for features in reported])
        for name in sorted({name for features in reported for name in features})
    )


def _common(name: str, reported: Sequence[FeatureVersions | None]) -> FeatureDescription:
    known = [each for each in reported if each is not None]
    low = max(each.version_min for each in known)
    high = min(each.version_max for each in known)
    levels = {each.level for each in known}
    return FeatureDescription(
        name=name,
        version_min=low,
        version_max=high,
        level=levels.pop() if len(levels) == 1 and len(known) == len(reported) else None,
        compatible=all(low <= each.level <= high for each in known),
    )
