"""Clients of both protocols that authenticate with tokens, and the keys that verify them."""

from __future__ import annotations

import asyncio
import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka.admin import AdminClient

from raftlog import Acl, Admin, limits
from raftlog.clock import SystemClock
from raftlog.config import BrokerConfig
from raftlog.errors import (
    AuthenticationError,
    ClusterNotReadyError,
    InvalidConfigError,
    InvalidRequestError,
    RaftlogError,
)
from raftlog.kafka import api as kafka_apis
from raftlog.kafka import codec
from raftlog.protocol import api as apis
from raftlog.protocol.security import SaslAuthenticateRequest
from raftlog.server.authentication import BrokerTokens, read
from raftlog.testing.certificates import Certificates
from raftlog.testing.certificates import create as create_certificates
from raftlog.testing.cluster import free_port, wait_until
from tests.server.harness import Client, RunningBroker, running
from tests.server.kafka.kafka_client import KafkaClient
from tests.server.provider import AUDIENCE, ISSUER, Provider
from tests.server.test_tls import secured_settings


class Issued:
    """A token provider, by kafka-python's interface. Counts its tokens."""

    def __init__(self, provider: Provider, **claims: Any) -> None:
        self.provider = provider
        self.claims = claims
        self.count = 0

    def token(self) -> str:
        self.count += 1
        now = time.time()
        seconds = self.claims.get("seconds", 60)
        claims = {name: value for name, value in self.claims.items() if name != "seconds"}
        return self.provider.token(now, exp=int(now) + seconds, **claims)


class Served:
    """A broker that accepts tokens of ``provider``, whose keys are in a file."""

    def __init__(self, broker: RunningBroker, files: Certificates, jwks: Path) -> None:
        self.broker = broker
        self.files = files
        self.jwks = jwks

    def admin(self, issued: Issued) -> Admin:
        return Admin(
            str(self.broker.address),
            bootstrap_timeout_ms=20_000,
            security_protocol="SASL_SSL",
            ssl_cafile=str(self.files.ca),
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=issued,
        )


class Raw:
    """A raw client of raftlog's protocol that authenticates by OAUTHBEARER."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def begin(self, message: bytes) -> bytes:
        return self._send(message, "OAUTHBEARER")

    def failure(self, message: bytes) -> str:
        with pytest.raises(RaftlogError) as caught:
            self._send(message, "")
        return str(caught.value)

    def _send(self, message: bytes, mechanism: str) -> bytes:
        request = SaslAuthenticateRequest(data=message, mechanism=mechanism)
        answer = self._client.ask(apis.SASL_AUTHENTICATE, request)
        assert not answer.is_complete
        return bytes(answer.data)

    def is_closed(self) -> bool:
        return self._client.is_closed_by_broker()

    def close(self) -> None:
        self._client.close()


class RawKafka:
    """The same of Kafka's protocol."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client

    def begin(self, message: bytes) -> bytes:
        handshake = codec.structs("request", kafka_apis.SASL_HANDSHAKE.key)
        self._client.ask(kafka_apis.SASL_HANDSHAKE, 1, handshake.root(mechanism="OAUTHBEARER"))
        answer = self._send(message)
        assert answer.error_code == 0
        return bytes(answer.auth_bytes)

    def failure(self, message: bytes) -> str:
        return str(self._send(message).error_message)

    def _send(self, message: bytes) -> Any:
        structs = codec.structs("request", kafka_apis.SASL_AUTHENTICATE.key)
        return self._client.ask(kafka_apis.SASL_AUTHENTICATE, 2, structs.root(auth_bytes=message))

    def is_closed(self) -> bool:
        return self._client.is_closed()

    def close(self) -> None:
        self._client.close()


@contextmanager
def over_tls(served: Served, *, is_kafka: bool) -> Iterator[Raw | RawKafka]:
    context = ssl.create_default_context(cafile=str(served.files.ca))
    kind: Any = KafkaClient if is_kafka else Client
    client = kind(served.broker.address, tls=context)
    raw = RawKafka(client) if is_kafka else Raw(client)
    try:
        yield raw
    finally:
        raw.close()


PROVIDER = Provider()


def write(path: Path, *providers: Provider) -> None:
    path.write_text(json.dumps(providers[0].jwks(*providers[1:])))


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("tokens")
    jwks = directory / "jwks.json"
    write(jwks, PROVIDER)
    settings = secured_settings(
        certificates,
        super_users="User:root",
        sasl_oauthbearer_jwks_endpoint_url=jwks.as_uri(),
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_expected_audience=AUDIENCE,
    )
    with running(directory / "data", clock=SystemClock(), **settings) as broker:
        made = Served(broker, certificates, jwks)
        with made.admin(Issued(PROVIDER, sub="root")) as admin:
            admin.create_acls([Acl("User:alice", "DESCRIBE", "CLUSTER", "kafka-cluster")])
        yield made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUTHENTICATION_DELAY_S", 0.01)


def test_clients_of_raftlog_and_their_rules(served: Served) -> None:
    with served.admin(Issued(PROVIDER)) as admin:
        admin.describe_cluster()
        assert admin.list_topics() == []
    for claims in ({"aud": "another"}, {"seconds": -60}):
        admin = served.admin(Issued(PROVIDER, **claims))
        with admin, pytest.raises(AuthenticationError, match="invalid_token"):
            admin.list_topics()


@pytest.mark.parametrize(
    ("returned", "text"), [(1, "no bearer"), ("a b", "no bearer"), (None, "E")]
)
def test_a_provider_that_fails_is_an_error(served: Served, returned: Any, text: str) -> None:
    class Failing(Issued):
        def token(self) -> str:
            if returned is None:
                raise ValueError("E")
            return returned  # type: ignore[no-any-return]

    with served.admin(Failing(PROVIDER)) as admin, pytest.raises(AuthenticationError, match=text):
        admin.list_topics()
    for wrong in ({"sasl_mechanism": "PLAIN"}, {"security_protocol": "SASL_PLAINTEXT"}):
        arguments: dict[str, Any] = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Failing(PROVIDER),
            **wrong,
        }
        with pytest.raises(InvalidRequestError):
            Admin("127.0.0.1:1", **arguments)


def test_a_session_ends_with_its_token_unless_the_client_has_another(served: Served) -> None:
    issued = Issued(PROVIDER, seconds=2)
    with served.admin(issued) as admin:
        admin.list_topics()
        wait_until(lambda: issued.count >= 3, timeout_s=20, what="a third token")
        admin.list_topics()
        ends = [c.session_ends_seconds for c in served.broker.broker.connections._open]
    now = served.broker.broker.context.loop.time()
    assert any(end is not None and end <= now + 2 for end in ends)


@pytest.mark.integration
@pytest.mark.parametrize("command", [False, True])
def test_tools_have_a_token_from_a_file_or_a_command(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, command: bool
) -> None:
    path = tmp_path / "token"
    arguments: dict[str, Any] = {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(served.files.ca),
        "sasl_mechanism": "OAUTHBEARER",
    }
    for name, value in arguments.items():
        monkeypatch.setenv(f"RAFTLOG_{name.upper()}", value)
    if command:
        monkeypatch.setenv("RAFTLOG_SASL_OAUTHBEARER_TOKEN_COMMAND", f"cat '{path}'")
    else:
        monkeypatch.setenv("RAFTLOG_SASL_OAUTHBEARER_TOKEN_FILE", str(path))
    with Admin(str(served.broker.address), bootstrap_timeout_ms=0) as admin:
        with pytest.raises(AuthenticationError, match=r"cannot be read|exit status 1"):
            admin.list_topics()
        path.write_text(Issued(PROVIDER).token() + "\n")
        assert admin.list_topics() == []
        path.write_text("x y")
    with (
        Admin(str(served.broker.address), bootstrap_timeout_ms=0) as admin,
        pytest.raises(AuthenticationError, match="no bearer token"),
    ):
        admin.list_topics()


@pytest.mark.parametrize("is_kafka", [False, True])
def test_a_rejected_token_is_challenged_before_the_failure(
    served: Served, *, is_kafka: bool
) -> None:
    """RFC 7628, section 3.2.3: the client acknowledges the challenge, and gets the error then."""
    token = Issued(PROVIDER, aud="another").token()
    message = b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"
    with over_tls(served, is_kafka=is_kafka) as client:
        challenge = client.begin(message)
        assert json.loads(challenge) == {"status": "invalid_token"}
        broker = served.broker.broker
        opened = served.broker.call(lambda: list(broker.connections._open))
        assert [c for c in opened if c.rejection is not None], "also if the client disconnects now"
        assert "invalid_token" in client.failure(b"\x01")
        assert client.is_closed()


def test_a_client_of_kafka(served: Served) -> None:
    issued = Issued(PROVIDER)

    def token(_config: str) -> tuple[str, float]:
        return issued.token(), time.time() + 60

    config = {
        "bootstrap.servers": str(served.broker.address),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(served.files.ca),
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": token,
    }
    client = AdminClient(config)
    client.poll(1)  # calls oauth_cb
    assert client.list_topics(timeout=20).brokers.keys() == {1}
    assert issued.count == 1


def test_a_new_key_is_loaded_when_a_token_needs_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JWKS_RETRY_S", 0.0)
    newer = Provider("k2")
    write(served.jwks, PROVIDER, newer)
    with served.admin(Issued(newer)) as admin:
        admin.list_topics()
    monkeypatch.setattr(limits, "JWKS_RETRY_S", 1e9)
    with served.admin(Issued(Provider("k3"))) as admin, pytest.raises(AuthenticationError):
        admin.list_topics()


class KeyServer(http.server.BaseHTTPRequestHandler):
    """Serves the keys of ``providers``, and counts the requests."""

    providers: ClassVar[list[Provider]] = []
    count: ClassVar[int] = 0

    def do_GET(self) -> None:
        type(self).count += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.providers[0].jwks(*self.providers[1:])).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


class QuietServer(http.server.HTTPServer):
    def handle_error(self, *_arguments: object) -> None:
        """A client has rejected the certificate."""


@contextmanager
def https(files: Certificates, port: int) -> Iterator[None]:
    """An HTTPS server with ``KeyServer``."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.broker, files.broker_key)
    with QuietServer(("127.0.0.1", port), KeyServer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def verified(tokens: BrokerTokens, token: str) -> str:
    """The user of a token."""
    message = b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"
    return tokens.exchange(time.time()).step(message).principal.name


def test_keys_over_https(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rotated keys are loaded soon; while the server is not reachable, the former ones stay."""
    newer, now, port = Provider("k2"), time.time(), free_port()
    monkeypatch.setattr(KeyServer, "providers", [PROVIDER])
    monkeypatch.setattr(KeyServer, "count", 0)

    async def use() -> None:
        url = f"https://127.0.0.1:{port}/keys"
        config = BrokerConfig(sasl_oauthbearer_jwks_endpoint_url=url)
        tokens = BrokerTokens(config, asyncio.get_running_loop())
        with https(certificates, port):
            monkeypatch.setenv("SSL_CERT_FILE", str(create_certificates(tmp_path).ca))
            await tokens.load()
            with pytest.raises(ClusterNotReadyError, match="has not loaded the keys"):
                verified(tokens, PROVIDER.token(now))  # another CA has signed the certificate
            monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
            await tokens.load()
            assert verified(tokens, PROVIDER.token(now)) == "alice"
            KeyServer.providers = [newer]
            watching = asyncio.create_task(tokens.watch())
            for _ in range(3):  # the keys were loaded a moment ago
                with pytest.raises(AuthenticationError):
                    await asyncio.to_thread(verified, tokens, newer.token(now))
            assert KeyServer.count == 1
            monkeypatch.setattr(limits, "JWKS_RETRY_S", 0.0)
            with pytest.raises(ClusterNotReadyError, match="newer keys"):
                await asyncio.to_thread(verified, tokens, newer.token(now))
            before = tokens._loaded_at
            await asyncio.to_thread(
                wait_until, lambda: tokens._loaded_at != before, timeout_s=20, what="newer keys"
            )
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert KeyServer.count == 2
        await tokens.load()  # the server is down
        assert verified(tokens, newer.token(now)) == "alice"
        with pytest.raises(ClusterNotReadyError):
            verified(tokens, PROVIDER.token(now))

    asyncio.run(use())


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", id="cut"),
        pytest.param(b"220 mail.example ESMTP\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, id="deep"),
    ],
)
def test_no_answer_of_a_provider_ends_the_loading_of_keys(answer: bytes, tmp_path: Path) -> None:
    """Else the keys of the broker stay those of before, also when the provider has new ones."""
    path, now = tmp_path / "jwks.json", time.time()
    write(path, PROVIDER)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def use() -> None:
        config = BrokerConfig(sasl_oauthbearer_jwks_endpoint_url=path.as_uri())
        tokens = BrokerTokens(config, asyncio.get_running_loop())
        async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            tokens._url = f"http://{host}:{port}/keys"
            await tokens.load()
        assert verified(tokens, PROVIDER.token(now)) == "alice"

    asyncio.run(use())


class Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/keys":
            self.send_response(302)
            self.send_header("Location", "/other")
        else:
            self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_arguments: object) -> None:
        pass


def test_redirects_are_not_followed() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert read(f"{url}/other") == {}
            with pytest.raises(OSError, match="302"):
                read(f"{url}/keys")
        finally:
            server.shutdown()
            thread.join()


def test_keys_are_bounded_and_a_missing_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(b" " * (limits.JWKS_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="JWKS_BYTES_MAX"):
        read(path.as_uri())

    async def load(url: str) -> None:
        config = BrokerConfig(sasl_oauthbearer_jwks_endpoint_url=url)
        BrokerTokens(config, asyncio.get_running_loop())

    with pytest.raises(InvalidConfigError, match="cannot be used"):
        asyncio.run(load((tmp_path / "missing").as_uri()))


@pytest.mark.parametrize("missing", ["tls.certificate.file", "issuer", "audience"])
def test_tokens_require_tls_and_what_they_must_contain(missing: str) -> None:
    settings = {
        "tls.certificate.file": "c",
        "tls.key.file": "k",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.jwks.endpoint.url": "https://identity.example/keys",
    }
    BrokerConfig.from_text(settings)
    gone = [name for name in settings if name.endswith(missing)]
    gone += ["tls.key.file"] if missing.startswith("tls") else []
    with pytest.raises(InvalidConfigError, match="requires TLS, and an issuer"):
        BrokerConfig.from_text({n: v for n, v in settings.items() if n not in gone})
    for url in ("http://identity.example/keys", "file://host/keys", "keys.json"):
        with pytest.raises(InvalidConfigError):
            BrokerConfig.from_text({**settings, "sasl.oauthbearer.jwks.endpoint.url": url})
