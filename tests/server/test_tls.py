"""TLS of a broker, on real sockets: whom it serves, what the others read, and what it costs."""

from __future__ import annotations

import random
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, limits, tls
from raftlog.clock import SystemClock
from raftlog.errors import BrokerUnavailableError, InvalidConfigError, InvalidRequestError
from raftlog.server.tls import BrokerTls, ListenerContext
from raftlog.testing.certificates import Certificates, create
from raftlog.testing.cluster import free_port
from tests.server.harness import FakeClock, RunningBroker, closed_by_peer, running

Settings = dict[str, str]
MIB = limits.MIB


def settings_of(files: Certificates, **more: str) -> Settings:
    return {name.replace(".", "_"): value for name, value in files.broker_settings().items()} | more


def secured_settings(files: Certificates, **more: str) -> Settings:
    """Settings of a cluster of one broker that requires TLS and authentication, on a free port."""
    port = free_port()
    return settings_of(
        files,
        listen=f"127.0.0.1:{port}",
        voters=f"1@127.0.0.1:{port}",
        authentication_required="true",
        **more,
    )


def client_of(files: Certificates, **more: Any) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_cafile": str(files.ca), **more}


def topics(broker: RunningBroker, **arguments: Any) -> list[str]:
    with Admin(str(broker.address), bootstrap_timeout_ms=0, **arguments) as admin:
        return list(admin.list_topics())


def refusal(broker: RunningBroker, **arguments: Any) -> str:
    with pytest.raises(BrokerUnavailableError) as caught:
        topics(broker, **arguments)
    return str(caught.value)


def raw(broker: RunningBroker) -> socket.socket:
    return socket.create_connection(broker.address, timeout=20)


def serial_of(broker: RunningBroker, files: Certificates) -> Any:
    """The serial number of the certificate that the broker shows now."""
    context = tls.client_context(ca=str(files.ca))
    with raw(broker) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        certificate = secure.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


def tls_of(broker: RunningBroker) -> BrokerTls:
    assert broker.broker.tls is not None
    return broker.broker.tls


def unfinished(broker: RunningBroker) -> int:
    return tls_of(broker).listener.unfinished


def reload(broker: RunningBroker) -> None:
    async def in_this_thread(work: Callable[[], Any]) -> Any:
        return work()

    broker.await_(tls_of(broker).reload(in_this_thread))


@pytest.fixture
def own(tmp_path: Path, certificates: Certificates) -> Certificates:
    """A copy of the certificates that a test may change."""
    shutil.copytree(certificates.directory, tmp_path / "own")
    return Certificates(tmp_path / "own")


@pytest.fixture
def secured(tmp_path: Path, certificates: Certificates) -> Iterator[RunningBroker]:
    with running(tmp_path / "data", clock=SystemClock(), **settings_of(certificates)) as broker:
        yield broker


def test_records_arrive_as_they_were_sent(
    secured: RunningBroker, certificates: Certificates
) -> None:
    arguments = client_of(certificates)
    bootstrap = str(secured.address)
    values = [b"small", b"x" * (3 * MIB // 4), b"", b"y" * 100_000]
    with Admin(bootstrap, **arguments) as admin:
        admin.create_topics([NewTopic("t")])
    with Producer(bootstrap, **arguments) as producer:
        for value in values:
            producer.send("t", value)
    with Consumer(bootstrap, auto_offset_reset="earliest", **arguments) as consumer:
        consumer.subscribe(["t"])
        found: list[bytes | None] = []
        while len(found) < len(values):
            found += [record.value for record in consumer.poll(20_000)]
    assert found == values


def test_a_plain_client_is_told_to_use_tls(secured: RunningBroker) -> None:
    assert "requires TLS (security_protocol='SSL')" in refusal(secured)


def test_a_tls_client_is_told_that_the_broker_has_none(
    broker: RunningBroker, certificates: Certificates
) -> None:
    found = refusal(broker, **client_of(certificates))
    assert "does not use TLS on this port. Set security_protocol='PLAINTEXT'" in found


def test_a_broker_of_another_ca_is_refused(secured: RunningBroker, tmp_path: Path) -> None:
    other = create(tmp_path / "other")
    assert "Set ssl_cafile to the certificate of the CA" in refusal(secured, **client_of(other))
    assert "Set ssl_cafile" in refusal(secured, security_protocol="SSL")


def test_a_certificate_for_another_host_is_refused(tmp_path: Path, own: Certificates) -> None:
    create(own.directory, hosts=["log1.example.com", "10.0.0.1"])
    with running(tmp_path / "data", clock=SystemClock(), **settings_of(own)) as broker:
        assert "Connect to a host name in the certificate" in refusal(broker, **client_of(own))
        assert topics(broker, **client_of(own), ssl_check_hostname=False) == []


def test_an_expired_certificate_is_refused(tmp_path: Path, own: Certificates) -> None:
    create(own.directory, days=-1)
    with running(tmp_path / "data", **settings_of(own)) as broker:
        found = refusal(broker, **client_of(own))
    assert "has expired. Install a new certificate on the broker" in found


def test_a_broker_with_a_client_ca_serves_its_certificates_only(
    tmp_path: Path, certificates: Certificates
) -> None:
    settings = settings_of(certificates, tls_client_ca_file=str(certificates.ca))
    stranger = create(tmp_path / "stranger")
    with running(tmp_path / "data", clock=SystemClock(), **settings) as broker:
        arguments = client_of(certificates)
        wanted = "a certificate of this client (ssl_certfile, ssl_keyfile) from the CA"
        assert wanted in refusal(broker, **arguments)
        for files, is_served in ((certificates, True), (stranger, False)):
            named = {"ssl_certfile": str(files.client), "ssl_keyfile": str(files.client_key)}
            if is_served:
                assert topics(broker, **arguments, **named) == []
            else:
                assert wanted in refusal(broker, **arguments, **named)


def test_the_last_bytes_arrive_before_the_broker_closes(
    secured: RunningBroker, certificates: Certificates
) -> None:
    context = tls.client_context(ca=str(certificates.ca))
    with raw(secured) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as browser:
        browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
        found = b""
        while part := browser.recv(65_536):
            found += part
    assert found.startswith(b"HTTP/1.1 400")


def test_an_older_version_than_configured_is_refused(
    tmp_path: Path, certificates: Certificates
) -> None:
    settings = settings_of(certificates, tls_min_version="TLSv1.3")
    context = tls.client_context(ca=str(certificates.ca))
    with running(tmp_path / "data", **settings) as broker:
        with raw(broker) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as new:
            assert new.version() == "TLSv1.3"
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with raw(broker) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_the_ciphers_of_both_sides_are_restricted(
    tmp_path: Path, certificates: Certificates
) -> None:
    settings = settings_of(certificates, tls_ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    with running(tmp_path / "data", clock=SystemClock(), **settings) as broker:
        for ciphers, is_shared in (("ECDHE+AESGCM", True), ("ECDHE+CHACHA20", False)):
            context = tls.client_context(ca=str(certificates.ca), ciphers=ciphers)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with raw(broker) as plain:
                if is_shared:
                    with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                        assert secure.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"  # type: ignore[index]
                else:
                    with pytest.raises((ssl.SSLError, ConnectionError)):
                        context.wrap_socket(plain, server_hostname="127.0.0.1")
        assert topics(broker, **client_of(certificates, ssl_ciphers="ECDHE+AESGCM")) == []
        with pytest.raises(InvalidRequestError, match="contain none that OpenSSL knows"):
            topics(broker, **client_of(certificates, ssl_ciphers="ROT13"))
    with (
        pytest.raises(InvalidConfigError, match="contain none that OpenSSL knows"),
        running(tmp_path / "other", **settings_of(certificates, tls_ciphers="ROT13")),
    ):
        pass


# -- files -----------------------------------------------------------------------------------------


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, own: Certificates) -> None:
    own.broker_key.chmod(0o644)
    with (
        pytest.raises(InvalidConfigError, match=r"mode 0644: every user .* Run chmod 600"),
        running(tmp_path / "data", **settings_of(own)),
    ):
        pass
    assert not (tmp_path / "data").exists(), "refused before any file is opened"


def test_new_certificates_are_used_without_a_restart(
    tmp_path: Path, own: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TLS_RELOAD_S", 0.01)
    with (
        running(tmp_path / "data", clock=SystemClock(), **settings_of(own)) as broker,
        Admin(str(broker.address), **client_of(own)) as connected,
    ):
        connected.create_topics([NewTopic("t")])
        before, contexts = serial_of(broker, own), tls_of(broker).contexts
        create(own.directory)
        broker.wait_until(lambda: tls_of(broker).contexts is not contexts)
        assert serial_of(broker, own) != before
        assert list(connected.list_topics()) == ["t"], "open connections continue"


def test_certificates_change_and_expire_under_load(tmp_path: Path, own: Certificates) -> None:
    with (
        running(tmp_path / "data", clock=SystemClock(), **settings_of(own)) as broker,
        Producer(str(broker.address), acks="all", **client_of(own)) as producer,
    ):
        with Admin(str(broker.address), **client_of(own)) as admin:
            admin.create_topics([NewTopic("t")])
        sent = []
        for days in (1, 1, -1, 1):
            sent += [producer.send("t", b"before") for _ in range(50)]
            create(own.directory, days=days)
            reload(broker)
            sent += [producer.send("t", b"after") for _ in range(50)]
            if days < 0:
                assert "has expired" in refusal(broker, **client_of(own))
            else:
                assert topics(broker, **client_of(own)) == ["t"]
        offsets = [future.result(20).offset for future in sent]
        assert offsets == list(range(len(sent))), "open connections continue, without a retry"


def test_invalid_new_files_are_logged_once_and_not_used(
    tmp_path: Path, own: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "data", **settings_of(own)) as broker:
        before = serial_of(broker, own)
        own.broker.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
        for _ in range(2):
            reload(broker)
        assert serial_of(broker, own) == before
        assert caplog.text.count("certificates not reloaded") == 1
        create(own.directory)
        reload(broker)
        assert serial_of(broker, own) != before


# -- hostile clients -------------------------------------------------------------------------------


def test_unfinished_handshakes_are_bounded_in_number(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TLS_HANDSHAKES_MAX", 2)
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_S", 60.0)
    settings = settings_of(certificates)
    with running(tmp_path / "data", clock=SystemClock(), **settings) as broker:
        with raw(broker), raw(broker):
            broker.wait_until(lambda: unfinished(broker) == 2)
            with raw(broker) as third:
                third.settimeout(5)
                assert closed_by_peer(third), "it does not wait for the time of a handshake"
        broker.wait_until(lambda: unfinished(broker) == 0)
        assert topics(broker, **client_of(certificates)) == []


def test_an_unfinished_handshake_ends_after_its_time(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_S", 0.05)
    with running(tmp_path / "data", **settings_of(certificates)) as broker, raw(broker) as idle:
        assert closed_by_peer(idle)


def test_a_handshake_counts_until_its_time_is_over(certificates: Certificates) -> None:
    clock = FakeClock()
    inner = tls.server_context(
        certificate=str(certificates.broker), key=str(certificates.broker_key)
    )
    context = ListenerContext(lambda: inner, clock.monotonic)
    kept = [context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True) for _ in range(3)]
    assert context.unfinished == len(kept)
    clock.now_ms += int(limits.TLS_HANDSHAKE_S * 1_000)
    kept.append(context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True))
    assert context.unfinished == 1


def hello(certificates: Certificates) -> bytes:
    """The first bytes of a client's handshake."""
    context = tls.client_context(ca=str(certificates.ca))
    sent = ssl.MemoryBIO()
    started = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        started.do_handshake()
    return sent.read()


def test_invalid_handshakes_do_not_disturb_the_broker(
    secured: RunningBroker, certificates: Certificates, seed: int
) -> None:
    chance = random.Random(seed)
    valid = hello(certificates)
    with Admin(str(secured.address), **client_of(certificates)) as connected:
        connected.create_topics([NewTopic("t")])
        for number in range(150):
            if number % 3:
                damaged = bytearray(valid[: chance.randint(1, len(valid))])
                for _ in range(chance.randint(1, 4)):
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            else:
                damaged = bytearray(chance.randbytes(chance.randint(1, 600)))
            with raw(secured) as stranger:
                stranger.sendall(damaged)
                if number % 2:
                    stranger.shutdown(socket.SHUT_WR)
                    assert closed_by_peer(stranger)
        assert list(connected.list_topics()) == ["t"]
    secured.wait_until(lambda: unfinished(secured) == 0)
    assert topics(secured, **client_of(certificates)) == ["t"]
