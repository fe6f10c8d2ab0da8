"""Certificates of brokers, on real sockets with TLS: a peer must have the one that names its ID."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from raftlog import Admin, tls
from raftlog.clock import SystemClock
from raftlog.errors import AccessDeniedError, AuthenticationError, InvalidConfigError
from raftlog.protocol.peer import PeerIdentity
from raftlog.server.peers import PeerLinks, PeerRegistry, SocketPeerConnector
from raftlog.testing.certificates import Certificates, create
from raftlog.testing.cluster import free_port
from tests.server.harness import RunningBroker, running

SECRET = "sesame, which is known to both"
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of broker 1, broker 2, all brokers, and clients, from one CA."""
    directory = tmp_path_factory.mktemp("named")
    create(directory, brokers=(1, 2))
    return create(directory)


def settings_of(files: Certificates, certificate: Pair, **more: str) -> dict[str, str]:
    """Settings of broker 1 of two."""
    port = free_port()
    return {
        "listen": f"127.0.0.1:{port}",
        "voters": f"1@127.0.0.1:{port},2@127.0.0.1:{free_port()}",
        "cluster_secret": SECRET,
        "tls_certificate_file": str(certificate[0]),
        "tls_key_file": str(certificate[1]),
        "tls_ca_file": str(files.ca),
        **more,
    }


@dataclass
class FixedTls:
    peer: ssl.SSLContext


def outcome(
    broker: RunningBroker,
    files: Certificates,
    certificate: Pair,
    *,
    needs_certificate: bool = False,
) -> str:
    """Connect to broker 1 as broker 2 with this certificate. Returns "up", or the refusal."""
    context = tls.client_context(
        ca=str(files.ca), certificate=str(certificate[0]), key=str(certificate[1])
    )
    me = PeerIdentity(
        broker_id=2,
        directory_id="disk-2",
        boot=1,
        host="127.0.0.1",
        port=1,
        protocol_version=3,
        voters="1,2",
    )

    async def connect() -> str:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[str] = loop.create_future()

        def note(text: str) -> None:
            if not found.done():
                found.set_result(text)

        def failed(_broker: int, error: Exception) -> None:
            note(str(error))

        links = PeerLinks(
            loop,
            SocketPeerConnector(FixedTls(context)),
            PeerRegistry(
                seen=lambda _id: None,
                heard=lambda _id: None,
                time=loop.time,
                session_timeout_s=5.0,
                needs_certificate=needs_certificate,
            ),
            secret=SECRET.encode(),
            me=lambda: me,
            nonce=lambda: bytes(32),
            chance=lambda: 0.5,
            heartbeat_interval_ms=1_000,
            session_timeout_ms=5_000,
            on_up=lambda _peer: note("up"),
            on_down=failed,
            on_refused=failed,
        )
        links.set_addresses({1: broker.address})
        try:
            async with asyncio.timeout(20):
                while not (found.done() or links.status()[0].problem):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
            return found.result() if found.done() else links.status()[0].problem
        finally:
            await links.close()

    return asyncio.run(connect())


def test_a_broker_accepts_only_the_certificate_that_names_its_peer(
    tmp_path: Path, files: Certificates
) -> None:
    settings = settings_of(files, files.of_broker(1), tls_broker_id_required="true")
    with running(tmp_path / "data", clock=SystemClock(), **settings) as broker:
        no_name = "claims to be broker 2, but its certificate names no broker"
        assert no_name in outcome(broker, files, (files.client, files.client_key))
        assert no_name in outcome(broker, files, (files.broker, files.broker_key))
        assert "its certificate names raftlog:broker:1 (tls" in outcome(
            broker, files, files.of_broker(1)
        )
        assert outcome(broker, files, files.of_broker(2)) == "up"


def test_a_broker_connects_only_to_the_certificate_that_names_its_peer(
    tmp_path: Path, files: Certificates
) -> None:
    two = files.of_broker(2)
    for number, (own, expected) in enumerate(
        (
            (
                (files.broker, files.broker_key),
                "broker 1, but its certificate names no broker",
            ),
            (two, "claims to be broker 1, but its certificate names raftlog:broker:2"),
            (files.of_broker(1), "up"),
        )
    ):
        settings = settings_of(files, own)
        with running(tmp_path / str(number), clock=SystemClock(), **settings) as broker:
            assert expected in outcome(broker, files, two, needs_certificate=True)
            assert outcome(broker, files, two) == "up", "without the setting, the secret is enough"


def test_the_certificate_of_a_broker_is_no_user(tmp_path: Path, files: Certificates) -> None:
    """Clients need no certificate, and one of the CA of brokers authenticates no user."""
    settings = settings_of(
        files,
        files.of_broker(1),
        tls_broker_id_required="true",
        authentication_required="true",
    )
    security = {"security_protocol": "SSL", "ssl_cafile": str(files.ca)}
    certificate, key = map(str, files.of_broker(2))
    with running(tmp_path / "data", clock=SystemClock(), **settings) as broker:
        address = str(broker.address)
        for own in ({}, {"ssl_certfile": certificate, "ssl_keyfile": key}):
            with (
                pytest.raises(AuthenticationError, match="requires authentication"),
                Admin(address, bootstrap_timeout_ms=0, **security, **own) as admin,
            ):
                admin.list_topics()


def test_who_sends_no_certificate_is_no_broker() -> None:
    for certificate in (None, {}):
        with pytest.raises(AccessDeniedError, match="it sent no certificate"):
            tls.check_broker_id(certificate, 2)


def test_a_broker_does_not_start_with_a_certificate_that_others_reject(
    tmp_path: Path, files: Certificates
) -> None:
    for own, expected in (
        ((files.broker, files.broker_key), r"names no broker .* --brokers 1"),
        (files.of_broker(2), "names raftlog:broker:2"),
        ((files.client, files.client_key), "unsuitable certificate purpose"),
    ):
        settings = settings_of(files, own, tls_broker_id_required="true")
        with (
            pytest.raises(InvalidConfigError, match=expected),
            running(tmp_path / "data", clock=SystemClock(), **settings),
        ):
            pass
    assert not (tmp_path / "data").exists()
