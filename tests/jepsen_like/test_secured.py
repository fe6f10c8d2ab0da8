"""A run against a secured cluster: clients authenticate, and their rules are what permits them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic
from raftlog.client import profiles
from raftlog.errors import AuthenticationError
from raftlog.types import Offset, TopicPartition
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.kafka_clients import KafkaConsumer, KafkaProducer
from raftlog_jepsen.secured import RULES
from tests.jepsen_like.test_cluster import PATIENCE_S, shape_of

pytestmark = pytest.mark.integration
PARTITION = TopicPartition("t", 0)


def test_clients_need_the_profile_and_its_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ClusterUnderTest(shape_of(1), Needs(), tmp_path, secure=True)
    try:
        made.start()
        assert made.secured is not None
        path = Path(made.secured.environment[profiles.VARIABLE])
        tls = {"security_protocol": "SSL", "ssl_cafile": profiles.load(str(path))["ssl_cafile"]}
        with Admin(made.bootstrap, **tls) as admin, pytest.raises(AuthenticationError):
            admin.list_topics()
        for name, value in made.secured.environment.items():
            monkeypatch.setenv(name, value)
        with Admin(made.bootstrap) as admin:
            assert {*RULES} <= {*admin.describe_acls()}
            admin.create_topics([NewTopic("t", 1)])
        assert asyncio.run(_ends(made.bootstrap)) == {PARTITION: 1}
        assert made.wait_quiet(PATIENCE_S) == []
        assert os.stat(path).st_mode & 0o077 == 0
        made.start_broker(1)
    finally:
        made.close()


async def _ends(bootstrap: str) -> dict[TopicPartition, Offset]:
    """Write a record with Kafka's protocol. Returns the ends of the partition."""
    producer = KafkaProducer(
        bootstrap,
        acks=-1,
        idempotent=True,
        compression="none",
        linger_ms=0,
        request_timeout_ms=10_000,
        delivery_timeout_ms=20_000,
        metadata_max_age_ms=3_000,
        client_id="p",
    )
    await (await producer.send("t", b"0", partition=0))
    await producer.close(timeout=0)
    reader = KafkaConsumer(bootstrap, request_timeout_ms=10_000, metadata_max_age_ms=3_000)
    try:
        return await reader.end_offsets([PARTITION])
    finally:
        await reader.close()
