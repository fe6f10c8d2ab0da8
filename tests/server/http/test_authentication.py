"""HTTP requests to a broker that requires authentication: whom it serves, and what they may do."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import HTTPConnection

from raftlog import Acl, Admin, Consumer, NewTopic, TopicPartition, limits, tls
from raftlog.clock import SystemClock
from raftlog.config import Address
from raftlog.security.credentials import FailureLimit
from raftlog.server.connection import address_of, bind
from raftlog.server.http.app import HttpAuthentication, HttpServer, RejectedError
from raftlog.testing.certificates import Certificates
from raftlog.testing.cluster import free_port
from raftlog.types import SCHEMAS_TOPIC
from raftlog_cli.console.app import Console
from tests.server.harness import TIMEOUT_S, RunningBroker, running
from tests.server.provider import AUDIENCE, ISSUER, Provider
from tests.server.test_tls import settings_of

PASSWORDS = {"admin": "the administrator's", "alice": "a user's: password"}


PROVIDER = Provider()


class Secured:
    """A broker that requires authentication, its HTTP port with the console, and its topic t."""

    CHALLENGE = 'Basic realm="raftlog", charset="UTF-8", Bearer realm="raftlog"'

    def __init__(self, broker: RunningBroker, files: Certificates) -> None:
        self.broker = broker
        self.files = files
        listening = bind(Address("127.0.0.1", 0))
        self.url = f"https://{address_of(listening)}"
        self._context = tls.client_context(ca=str(files.ca))
        console = Console(str(broker.address), broker.broker.context.config)
        self.server = broker.await_(HttpServer.start(broker.broker, listening, console))

    def admin(self) -> Admin:
        return Admin(str(self.broker.address), bootstrap_timeout_ms=20_000, **self.arguments())

    def arguments(self) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.files.ca),
            "sasl_username": "admin",
            "sasl_password": PASSWORDS["admin"],
        }

    def get(
        self,
        path: str,
        user: str = "",
        *,
        password: str | None = None,
        header: str = "",
        form: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """The status and the text of a response. ``form``: send it, as the console's pages do."""
        if user:
            pair = f"{user}:{PASSWORDS.get(user, '') if password is None else password}"
            header = "Basic " + base64.b64encode(pair.encode()).decode()
        request = urllib.request.Request(
            self.url + path,
            headers={"Authorization": header} if header else {},
            data=None if form is None else urllib.parse.urlencode(form).encode(),
        )
        try:
            with urllib.request.urlopen(
                request, timeout=TIMEOUT_S, context=self._context
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                asks = error.headers.get("www-authenticate") == self.CHALLENGE
                return error.code if asks == (error.code == 401) else 0, error.read().decode()


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    credentials = directory / "admin"
    credentials.write_text(f"admin:{PASSWORDS['admin']}\n")
    credentials.chmod(0o600)
    jwks = directory / "jwks.json"
    jwks.write_text(json.dumps(PROVIDER.jwks()))
    port = free_port()
    settings = settings_of(
        certificates,
        listen=f"127.0.0.1:{port}",
        authentication_required="true",
        admin_credentials_file=str(credentials),
        sasl_oauthbearer_jwks_endpoint_url=jwks.as_uri(),
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_expected_audience=AUDIENCE,
        http_listen="127.0.0.1:0",
        http_console_read_only="false",
    )
    with running(directory / "data", clock=SystemClock(), **settings) as broker:
        started = Secured(broker, certificates)
        with started.admin() as admin:
            admin.create_topics([NewTopic("t")])
            admin.create_user("alice", PASSWORDS["alice"])
        yield started
        broker.await_(started.server.stop())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUTHENTICATION_DELAY_S", 0.01)
    monkeypatch.setattr(limits, "AUTHENTICATION_FAILURE_S", 0.01)


def test_only_health_is_open(secured: Secured) -> None:
    for path in ("/healthz", "/readyz"):
        assert secured.get(path)[0] == secured.get(path, "admin", password="wrong")[0] == 200
    for path in ("/", "/metrics", "/api/v1/topics", "/static/console.css", "/topics", "/nothing"):
        assert secured.get(path)[0] == 401, path
    for header in ("Basic", "Basic !", "Basic YWRtaW4=", "Bearer x", "Basic //8="):
        assert secured.get("/metrics", header=header)[0] == 401, header


def test_users_see_what_they_may_see(secured: Secured) -> None:
    assert secured.get("/api/v1/topics", "admin") == (200, '["t"]\n')
    assert secured.get("/api/v1/topics", "alice") == (200, "[]\n")
    assert secured.get("/api/v1/topics/t", "alice")[0] in {403, 404}
    status, text = secured.get("/metrics", "alice")
    assert (status, "User:alice may not DESCRIBE the cluster" in text) == (403, True)
    assert secured.get("/", "alice")[0] == 403
    assert secured.get("/topics/t/records", "alice")[0] == 403
    rule = Acl("User:alice", "READ", "TOPIC", "t")
    with secured.admin() as admin:
        admin.create_acls([rule])
        assert secured.get("/api/v1/topics", "alice") == (200, '["t"]\n')
        assert secured.get("/topics/t/records", "alice")[0] == 200
        admin.delete_acls([rule])
    assert "raftlog_ready 1" in secured.get("/metrics", "admin")[1]
    assert secured.get("/", "admin")[0] == 200


def test_the_schema_registry_has_the_rules_of_its_topic(secured: Secured) -> None:
    """400 is past the rules: the body is no JSON."""
    register = "/subjects/s/versions"
    assert secured.get("/subjects")[0] == 401
    status, text = secured.get("/subjects", "alice")
    assert (status, "User:alice may not DESCRIBE TOPIC '__schemas'" in text) == (403, True)
    rules = [
        Acl("User:alice", operation, "TOPIC", SCHEMAS_TOPIC) for operation in ("READ", "WRITE")
    ]
    with secured.admin() as admin:
        admin.create_acls(rules[:1])  # which includes DESCRIBE
        assert secured.get("/subjects", "alice") == (200, "[]")
        assert secured.get(register, "alice", form={"a": "b"})[0] == 403
        admin.create_acls(rules[1:])
        assert secured.get(register, "alice", form={"a": "b"})[0] == 400
        admin.delete_acls(rules)


def test_the_console_changes_what_its_user_may_change(secured: Secured) -> None:
    page = secured.get("/new-topic", "admin")[1]
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None
    form = {"token": found[1], "name": "made", "partitions": "1"}
    assert secured.get("/new-topic", "alice", form=form)[0] == 403  # it is another user's token
    own = re.search(r'name="token" value="([^"]+)"', secured.get("/new-topic", "alice")[1])
    assert own is not None
    status, text = secured.get("/new-topic", "alice", form={**form, "token": own[1]})
    assert (status, "User:alice may not CREATE" in text) == (403, True)
    assert secured.get("/new-topic", "admin", form=form)[0] == 200
    assert secured.get("/api/v1/topics", "admin") == (200, '["made", "t"]\n')
    with secured.admin() as admin:
        admin.delete_topics(["made"])


def test_a_changed_password_counts_at_once(secured: Secured) -> None:
    with secured.admin() as admin:
        admin.create_user("bob", "the first one")
        assert secured.get("/api/v1/topics", "bob", password="the first one")[0] == 200
        admin.rotate_user("bob", "the second one")
        assert secured.get("/api/v1/topics", "bob", password="the first one")[0] == 401
        assert secured.get("/api/v1/topics", "bob", password="the second one")[0] == 200
        admin.delete_user("bob")
    assert secured.get("/api/v1/topics", "bob", password="the second one")[0] == 401


def test_tokens_of_the_provider_are_accepted(secured: Secured) -> None:
    """In the API, and in the console, whose requests to brokers have the same token."""

    def get(path: str, provider: Provider = PROVIDER, **claims: Any) -> tuple[int, str]:
        token = provider.token(time.time(), **claims)
        return secured.get(path, header=f"Bearer {token}")

    assert get("/api/v1/topics", sub="admin") == (200, '["t"]\n')
    assert get("/api/v1/topics", sub="alice") == (200, "[]\n")
    assert get("/", sub="admin")[0] == 200
    assert get("/metrics", sub="alice")[0] == 403
    for status, text in (get("/", exp=0), get("/", aud="x"), get("/", Provider("k9"))):
        assert (status, "invalid_token" in text) == (401, True)
    assert secured.get("/", header="Bearer")[0] == 401


def test_failures_are_slow_counted_and_audited(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUTHENTICATION_FAILURE_S", 1e9)
    monkeypatch.setattr(limits, "AUTHENTICATION_FAILURES_MAX", 1)
    monkeypatch.setattr(limits, "AUTHENTICATION_DELAY_S", 0.1)
    authenticator = secured.broker.broker.context.authenticator
    secured.broker.call(lambda: setattr(authenticator, "_failures", FailureLimit()))
    clock = SystemClock()
    texts = set()
    for user in ("admin", "no one"):
        began = clock.monotonic()
        status, text = secured.get("/metrics", user, password="wrong")
        assert status == 401
        assert clock.monotonic() - began >= 0.1
        texts.add(text)
    assert len(texts) == 1  # an attacker does not learn which users exist
    assert secured.get("/metrics", "admin")[0] == 429  # also with a remembered password
    secured.broker.call(lambda: setattr(authenticator, "_failures", FailureLimit()))
    with Consumer(
        str(secured.broker.address), auto_offset_reset="earliest", **secured.arguments()
    ) as consumer:
        consumer.assign([TopicPartition("__audit", 0)])
        found: list[bytes] = []
        while not any(b'"request":"Basic"' in value for value in found):
            read = consumer.poll(timeout_ms=20_000)
            assert read, found
            found += [record.value or b"" for record in read]


def connection(
    path: str, scheme: str = "http", host: bytes = b"", authorization: bytes = b"Basic YTpi"
) -> HTTPConnection:
    return HTTPConnection(
        {
            "type": "http",
            "scheme": scheme,
            "server": ("127.0.0.1", 9200),
            "path": path,
            "query_string": b"",
            "headers": [(b"host", host)] if host else [(b"authorization", authorization)],
        }
    )


def test_the_header_of_the_host_is_no_part_of_the_path() -> None:
    """Before its version 1, starlette makes URLs of both."""
    context = SimpleNamespace(config=SimpleNamespace(http_metrics_public=False))
    backend = HttpAuthentication(cast(Any, context))
    for host in (b"a/healthz?", b"["):
        with pytest.raises(RejectedError, match="requires authentication"):
            asyncio.run(backend.authenticate(connection("/metrics", "https", host)))


@pytest.mark.parametrize("token", [b"\xe9", b"=", b"/w==", b"YQ=="])
def test_what_is_no_name_and_password_is_refused(token: bytes) -> None:
    context = SimpleNamespace(config=SimpleNamespace(http_metrics_public=False))
    backend = HttpAuthentication(cast(Any, context))
    sent = connection("/metrics", "https", authorization=b"Basic " + token)
    with pytest.raises(RejectedError, match="requires authentication"):
        asyncio.run(backend.authenticate(sent))


def test_passwords_are_not_accepted_without_tls() -> None:
    config = SimpleNamespace(http_metrics_public=True)
    backend = HttpAuthentication(cast(Any, SimpleNamespace(config=config)))
    with pytest.raises(RejectedError, match="has no TLS") as caught:
        asyncio.run(backend.authenticate(connection("/topics")))
    assert caught.value.status == 403
    assert asyncio.run(backend.authenticate(connection("/metrics"))) is None


def test_clients_need_no_certificate(secured: Secured) -> None:
    assert secured.broker.broker.tls is not None
    assert secured.broker.broker.tls.contexts.http.verify_mode is ssl.CERT_NONE
