"""Kafka's clients authenticate over TLS, and administer users."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import admin as librdkafka

from raftlog import Admin, NewTopic
from raftlog.clock import SystemClock
from raftlog.testing.certificates import Certificates
from tests.server.harness import RunningBroker, running
from tests.server.test_tls import secured_settings

TIMEOUT_S = 20
SECRET = "the secret of the cluster"
PASSWORD = "the administrator's"
SESSION_MS = 1_000


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[RunningBroker]:
    """A broker that requires TLS and, each second, authentication."""
    settings = secured_settings(
        certificates,
        cluster_secret=SECRET,
        connections_max_reauth_ms=str(SESSION_MS),
    )
    with running(tmp_path_factory.mktemp("sasl"), clock=SystemClock(), **settings) as broker:
        with Admin(
            str(broker.address),
            bootstrap_timeout_ms=TIMEOUT_S * 1_000,
            cluster_secret=SECRET,
            security_protocol="SSL",
            ssl_cafile=str(certificates.ca),
        ) as admin:
            admin.create_user("admin", PASSWORD)
            admin.create_topics([NewTopic("t")])
        yield broker


def librdkafka_of(
    broker: RunningBroker, files: Certificates, mechanism: str, password: str, user: str = "admin"
) -> dict[str, Any]:
    return {
        "bootstrap.servers": str(broker.address),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files.ca),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def by_librdkafka(broker: RunningBroker, files: Certificates, mechanism: str) -> None:
    producer = confluent_kafka.Producer(librdkafka_of(broker, files, mechanism, PASSWORD))
    producer.produce("t", b"x")
    assert producer.flush(TIMEOUT_S) == 0


def by_kafka_python(broker: RunningBroker, files: Certificates, mechanism: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=str(broker.address),
        security_protocol="SASL_SSL",
        ssl_cafile=str(files.ca),
        sasl_mechanism=mechanism,
        sasl_plain_username="admin",
        sasl_plain_password=PASSWORD,
    )
    producer.send("t", b"x").get(TIMEOUT_S)
    producer.close()


def by_aiokafka(
    broker: RunningBroker, files: Certificates, mechanism: str, password: str = PASSWORD
) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=str(broker.address),
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=str(files.ca)),
            sasl_mechanism=mechanism,
            sasl_plain_username="admin",
            sasl_plain_password=password,
        )
        try:
            await producer.start()
            await producer.send_and_wait("t", b"x")
        finally:
            await producer.stop()

    asyncio.run(produce())


@pytest.mark.parametrize("client", [by_librdkafka, by_kafka_python, by_aiokafka])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_clients_with_the_password_are_served(
    secured: RunningBroker, certificates: Certificates, client: Callable[..., None], mechanism: str
) -> None:
    client(secured, certificates, mechanism)


def test_a_client_with_another_password_learns_the_reason(
    secured: RunningBroker, certificates: Certificates
) -> None:
    with pytest.raises(aiokafka.errors.KafkaError):
        by_aiokafka(secured, certificates, "PLAIN", "another one")


def test_a_client_authenticates_again_on_its_connection(
    secured: RunningBroker, certificates: Certificates
) -> None:
    """KIP-368, by librdkafka; a native client does the same."""
    connections = secured.broker.connections
    settings = librdkafka_of(secured, certificates, "SCRAM-SHA-512", PASSWORD)
    producer = confluent_kafka.Producer(settings | {"client.id": "again"})

    def session_ends() -> float:
        """The end of the session of the client's connection; 0 before it has one."""
        return max((c.session_ends_seconds or 0.0 for c in connections._open), default=0.0)

    producer.produce("t", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    first = secured.call(session_ends)
    secured.wait_until(lambda: session_ends() > first + SESSION_MS / 2_000)
    producer.produce("t", b"y")
    assert producer.flush(TIMEOUT_S) == 0


def test_users_are_administered(secured: RunningBroker, certificates: Certificates) -> None:
    admin = librdkafka.AdminClient(librdkafka_of(secured, certificates, "PLAIN", PASSWORD))
    info = librdkafka.ScramCredentialInfo(librdkafka.ScramMechanism.SCRAM_SHA_256, 8_192)

    def alter(*changes: Any) -> str:
        """The error of the change of user bob; "" if it was made."""
        (future,) = admin.alter_user_scram_credentials(list(changes)).values()
        error = future.exception(TIMEOUT_S)
        return "" if error is None else str(error)

    def described(name: str) -> list[int]:
        (future,) = admin.describe_user_scram_credentials([name]).values()
        return [each.iterations for each in future.result(TIMEOUT_S).scram_credential_infos]

    upsertion = librdkafka.UserScramCredentialUpsertion("bob", info, b"bob's password")
    assert alter(upsertion) == ""
    assert described("bob") == [8_192]
    settings = librdkafka_of(secured, certificates, "SCRAM-SHA-256", "bob's password", "bob")
    refused = librdkafka.AdminClient(settings).list_topics("t", timeout=TIMEOUT_S).topics["t"].error
    assert refused.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    rule = librdkafka.AclBinding(
        librdkafka.ResourceType.TOPIC,
        "t",
        librdkafka.ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        librdkafka.AclOperation.READ,
        librdkafka.AclPermissionType.ALLOW,
    )
    admin.create_acls([rule])[rule].result(TIMEOUT_S)
    assert "t" in librdkafka.AdminClient(settings).list_topics(timeout=TIMEOUT_S).topics
    few = librdkafka.ScramCredentialInfo(librdkafka.ScramMechanism.SCRAM_SHA_256, 4_095)
    weak = librdkafka.UserScramCredentialUpsertion("bob", few, b"bob's password")
    assert "UNACCEPTABLE_CREDENTIAL" in alter(weak)
    deletion = librdkafka.UserScramCredentialDeletion(
        "bob", librdkafka.ScramMechanism.SCRAM_SHA_256
    )
    assert "DUPLICATE_RESOURCE" in alter(upsertion, deletion)
    assert alter(deletion) == ""
    assert "RESOURCE_NOT_FOUND" in alter(deletion)
    with pytest.raises(confluent_kafka.KafkaException, match="RESOURCE_NOT_FOUND"):
        described("bob")
