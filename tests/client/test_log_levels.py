"""Log levels: the broker that is asked, and the request of a change."""

from __future__ import annotations

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.descriptions import LogLevel
from raftlog.protocol import api as apis
from raftlog.protocol import cluster
from raftlog.protocol.connection import Request
from tests.client.world import FakeCluster, Peer, run
from tests.running import runs


@runs(run, brokers=2)
async def test_the_given_broker_is_asked(fake: FakeCluster) -> None:
    asked: list[tuple[int, str, str | None]] = []

    def describe(peer: Peer, request: Request) -> None:
        told = [cluster.LogLevel(logger="root", level=f"of {peer.broker_id}", is_own=True)]
        peer.write(peer.state.reply(request, cluster.DescribeLogLevelsResponse(levels=told)))

    def alter(peer: Peer, request: Request) -> None:
        assert isinstance(request.message, cluster.AlterLogLevelsRequest)
        asked.extend(
            (peer.broker_id, change.logger, change.level) for change in request.message.changes
        )
        peer.write(peer.state.reply(request, cluster.AlterLogLevelsResponse()))

    fake.always[apis.DESCRIBE_LOG_LEVELS] = describe
    fake.always[apis.ALTER_LOG_LEVELS] = alter
    async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
        for broker in (2, 1):
            found = await admin.describe_log_levels(broker)
            assert found == {"root": LogLevel(f"of {broker}", is_own=True)}
        await admin.alter_log_levels(2, {"raftlog": "debug", "root": None})
    assert asked == [(2, "raftlog", "debug"), (2, "root", None)]
