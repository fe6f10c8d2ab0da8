"""Versions that brokers report, and what they have in common."""

from __future__ import annotations

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.administration.describe import common
from raftlog.client.descriptions import FeatureDescription, FeatureVersions
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.security import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FeatureRange,
)
from tests.client.world import FakeCluster, Peer, run
from tests.running import runs

OLD, NEW = FeatureVersions(1, 1, 1), FeatureVersions(1, 2, 2)


def of(*reported: FeatureVersions | None) -> FeatureDescription:
    (found,) = common([{} if each is None else {"f": each} for each in reported])
    return found


def test_the_versions_in_common_are_those_that_all_read() -> None:
    assert of(NEW, NEW) == FeatureDescription("f", 1, 2, 2, compatible=True)
    assert of(OLD, NEW) == FeatureDescription("f", 1, 1, None, compatible=False)
    prepared = FeatureVersions(1, 2, 1)  # reads the new version, and still writes the old one
    assert of(OLD, prepared) == FeatureDescription("f", 1, 1, 1, compatible=True)
    assert of(prepared, NEW) == FeatureDescription("f", 1, 2, None, compatible=True)
    assert of(OLD, FeatureVersions(2, 2, 2)) == FeatureDescription(
        "f", 2, 1, None, compatible=False
    )


def test_a_broker_without_the_feature_leaves_no_level() -> None:
    assert of(NEW, None) == FeatureDescription("f", 1, 2, None, compatible=True)


def respond(peer: Peer, request: Request) -> None:
    assert isinstance(request.message, ApiVersionsRequest)
    assert request.message.client_id == "ops"  # the broker's log continues to name the client
    message = ApiVersionsResponse(
        broker_software=f"raftlog {peer.broker_id}",
        broker_id=peer.broker_id,
        cluster_id="c",
        apis=[ApiVersionRange(api=0, version_min=0, version_max=1)],
        features=[FeatureRange(name="f", version_min=1, version_max=2, level=peer.broker_id)],
    )
    peer.write(peer.state.reply(request, message, ()))


@runs(run, brokers=3)
async def test_every_broker_is_asked(fake: FakeCluster) -> None:
    async with AsyncAdmin(fake.bootstrap, host=fake.host, client_id="ops") as admin:
        await admin.describe_cluster(partitions=False)  # connects to all: handshakes as usual
        fake.always[apis.API_VERSIONS] = respond
        fake.kill(3)
        found = await admin.describe_features()
    assert [(each.id, each.software) for each in found.brokers] == [
        (1, "raftlog 1"),
        (2, "raftlog 2"),
        (3, ""),
    ]
    assert found.brokers[2].problem
    assert found.features == (FeatureDescription("f", 1, 2, None, compatible=True),)
    assert found.apis == (FeatureDescription("api_versions", 0, 1, 1, compatible=True),)
