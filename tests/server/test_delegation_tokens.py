"""Delegation tokens on a broker of both protocols: who manages them, and for how long they work."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog import Acl, Admin, Consumer, NewTopic, Producer, TopicPartition, limits
from raftlog.client.administration.security import NewToken
from raftlog.clock import SystemClock
from raftlog.config import BrokerConfig
from raftlog.errors import (
    AuthenticationError,
    InvalidRequestError,
    RaftlogError,
    TokenOwnerError,
    TokenRequestNotAllowedError,
    UnknownTokenError,
)
from raftlog.kafka import api as kafka_apis
from raftlog.kafka import codec, errors
from raftlog.replication.cluster_commands import SetTokenExpiry
from raftlog.security.acl import ANONYMOUS, Principal
from raftlog.security.credentials import HMAC_BYTES, make_token, password_of
from raftlog.security.sasl import ScramClientExchange
from raftlog.server.apis.security import check_token_allowed, create_token
from raftlog.server.authentication import Authenticator
from raftlog.testing.certificates import Certificates
from raftlog.testing.cluster import wait_until
from raftlog_cli.console.http import PATHS as API_PATHS
from raftlog_cli.main import run
from tests.secrets_in import found_in
from tests.server.harness import RunningBroker, running
from tests.server.http.test_authentication import Secured
from tests.server.kafka.kafka_client import KafkaClient
from tests.server.test_authentication import Loop, finished, peer
from tests.server.test_tls import secured_settings

SECRET = "the secret of the cluster"
PASSWORDS = {name: f"the password of {name}" for name in ("alice", "bob", "eve", "root")}
CUT_S = 1.0  # after which a connection of a removed token is closed


class Delegating:
    """A broker with users, and its clients."""

    def __init__(self, broker: RunningBroker, files: Certificates) -> None:
        self.broker = broker
        self.files = files

    def arguments(self, name: str, password: str = "", **more: Any) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.files.ca),
            "sasl_username": name,
            "sasl_password": password or PASSWORDS[name],
            **more,
        }

    def with_token(self, made: NewToken) -> dict[str, Any]:
        return self.arguments(made.token.id, made.hmac, sasl_token_auth=True)

    def admin(self, **arguments: Any) -> Admin:
        return Admin(str(self.broker.address), bootstrap_timeout_ms=20_000, **arguments)

    def create(self, name: str = "alice", *renewers: str, **options: int) -> NewToken:
        with self.admin(**self.arguments(name)) as admin:
            return admin.create_token(renewers, **options)

    def kafka(self) -> KafkaClient:
        context = ssl.create_default_context(cafile=str(self.files.ca))
        return KafkaClient(self.broker.address, tls=context)

    def signed_in(self, name: str, password: str, *, is_token: bool = False) -> KafkaClient:
        """A Kafka client that has authenticated by SCRAM, as Kafka's own clients do."""
        client = self.kafka()
        exchange = ScramClientExchange("SCRAM-SHA-256", name, password, bytes, is_token=is_token)
        handshake = codec.structs("request", kafka_apis.SASL_HANDSHAKE.key)
        ask(client, kafka_apis.SASL_HANDSHAKE, 1, handshake.root(mechanism="SCRAM-SHA-256"))
        first = authenticate(client, exchange.first())
        second = authenticate(client, exchange.next(bytes(first.auth_bytes)))
        assert second.error_code == 0, second.error_message
        exchange.end(bytes(second.auth_bytes))
        return client


def ask(client: KafkaClient, api: Any, version: int, message: Any) -> Any:
    return client.ask(api, version, message)


def authenticate(client: KafkaClient, data: bytes) -> Any:
    message = codec.structs("request", kafka_apis.SASL_AUTHENTICATE.key).root(auth_bytes=data)
    return client.ask(kafka_apis.SASL_AUTHENTICATE, 2, message)


def exchange_raw(client: KafkaClient, data: bytes) -> bytes:
    """Send a message of a mechanism without a header, and return the answer."""
    client.send_bytes(len(data).to_bytes(4, "big") + data)
    return client.receive_bytes()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Delegating]:
    settings = secured_settings(
        certificates,
        cluster_secret=SECRET,
        super_users="User:root",
        delegation_token_max_lifetime_ms="600000",
        delegation_token_expiry_time_ms="60000",
    )
    with running(tmp_path_factory.mktemp("delegating"), clock=SystemClock(), **settings) as broker:
        served = Delegating(broker, certificates)
        own = {"security_protocol": "SSL", "ssl_cafile": str(certificates.ca)}
        with served.admin(cluster_secret=SECRET, **own) as admin:
            for name, password in PASSWORDS.items():
                admin.create_user(name, password)
        with served.admin(**served.arguments("root")) as admin:
            admin.create_topics([NewTopic("t")])
            admin.create_acls(
                [Acl("User:alice", operation, "TOPIC", "t") for operation in ("READ", "WRITE")]
            )
        yield served


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUTHENTICATION_DELAY_S", 0.01)


def seconds_until_closed(served: Delegating, token_id: str) -> float:
    """How long the broker still has a connection of the token."""
    began = time.monotonic()

    def is_closed() -> bool:
        opened = served.broker.call(lambda: list(served.broker.broker.connections._open))
        return not any(c.used is not None and c.used.token == token_id for c in opened)

    wait_until(is_closed, timeout_s=20, what="the broker closes the connections")
    return time.monotonic() - began


@pytest.mark.parametrize("password", [PASSWORDS["alice"], "wrong"])
def test_tokens_without_a_header_after_an_early_handshake(
    served: Delegating, password: str
) -> None:
    """SaslHandshake 0, as clients of Kafka before 1.0 send it: the messages are no requests."""
    client = served.kafka()
    handshake = codec.structs("request", kafka_apis.SASL_HANDSHAKE.key)
    unknown = ask(client, kafka_apis.SASL_HANDSHAKE, 0, handshake.root(mechanism="NONE"))
    assert unknown.error_code == 33
    begun = ask(client, kafka_apis.SASL_HANDSHAKE, 0, handshake.root(mechanism="SCRAM-SHA-256"))
    assert begun.error_code == 0
    exchange = ScramClientExchange("SCRAM-SHA-256", "alice", password, bytes)
    last = exchange.next(exchange_raw(client, exchange.first()))
    if password == "wrong":
        client.send_bytes(len(last).to_bytes(4, "big") + last)
        assert client.is_closed(), "there is no place for an error"
    else:
        exchange.end(exchange_raw(client, last))
        assert client.ask(kafka_apis.METADATA, 12).brokers, "requests have headers again"
    client.close()


def test_a_token_acts_as_its_owner_until_it_is_removed(served: Delegating) -> None:
    made = served.create()
    arguments = served.with_token(made)
    with (
        Producer(str(served.broker.address), **arguments) as producer,
        Consumer(str(served.broker.address), auto_offset_reset="earliest", **arguments) as consumer,
    ):
        producer.send("t", b"x").result(20)
        consumer.subscribe(["t"])
        assert consumer.poll(20_000)
        with served.admin(**served.arguments("alice")) as admin:
            admin.expire_token(made.token.id)
            assert seconds_until_closed(served, made.token.id) < CUT_S
            with pytest.raises(UnknownTokenError):
                admin.renew_token(made.token.id)
        with pytest.raises(RaftlogError):
            producer.send("t", b"y").result(20)
    with served.admin(**arguments) as admin, pytest.raises(AuthenticationError):
        admin.list_topics()


def test_connections_end_when_the_token_expires(served: Delegating) -> None:
    made = served.create(max_lifetime_ms=2_000)
    with served.admin(**served.with_token(made)) as admin:
        assert admin.list_topics() == ["t"]
        ends = [
            c.session_ends_seconds
            for c in served.broker.broker.connections._open
            if c.used is not None and c.used.token == made.token.id
        ]
        assert ends
        assert all(end is not None for end in ends)
        left = made.token.expires_ms / 1_000 - time.time()
        assert seconds_until_closed(served, made.token.id) < left + CUT_S
    with served.admin(**served.arguments("alice")) as admin:
        assert made.token.id not in [each.id for each in admin.describe_tokens()]


class Timers(Loop):
    """A loop whose timers the test runs."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> Any:
        self.due.append(callback)
        return SimpleNamespace(cancel=lambda: None)


def test_a_connection_is_revoked_when_its_token_expires() -> None:
    """Also one whose client sends no request, and with a session that would last longer."""
    loop, wall_ms, revoked = Timers(), [0], []
    judge = Authenticator(BrokerConfig(), loop, bytes, lambda: wall_ms[0])  # type: ignore[arg-type]
    token = make_token(
        owner=Principal("User", "alice"),
        renewers=(),
        hmac=bytes(HMAC_BYTES),
        now_ms=0,
        lifetime_ms=5_000,
        renewal_ms=1_000,
        entropy=bytes,
    )
    machine: Any = SimpleNamespace(tokens={token.id: token}, users={}, user_secret=b"")
    judge.tokens_changed(machine)
    client = peer()
    exchange = ScramClientExchange(
        "SCRAM-SHA-256", token.id, password_of(bytes(HMAC_BYTES)), bytes, is_token=True
    )
    finished(judge.begin(client, "SCRAM-SHA-256"))
    challenge = finished(judge.proceed(client, exchange.first()))
    done = finished(judge.proceed(client, exchange.next(challenge.data)))
    assert (str(client.principal), done.session_lifetime_ms) == ("User:alice", 1_000)
    judge.on_revoked = lambda: revoked.append(judge.is_revoked(client))
    for now_ms, expected in ((999, []), (1_000, [True])):
        wall_ms[0] = now_ms
        loop.due.pop()()
        assert revoked == expected
    assert not loop.due, "without tokens, no timer runs"


def test_a_new_password_revokes_the_tokens_of_the_user(served: Delegating) -> None:
    with served.admin(**served.arguments("root")) as root:
        root.create_user("brief", "brief's password")
        with served.admin(**served.arguments("brief", "brief's password")) as admin:
            made = admin.create_token()
        with served.admin(**served.with_token(made)) as admin:
            admin.list_topics()
            root.rotate_user("brief", "another password")
            assert seconds_until_closed(served, made.token.id) < CUT_S
            with pytest.raises(AuthenticationError):
                admin.list_topics()
        assert root.describe_tokens(["User:brief"]) == []


def test_a_token_that_was_in_flight_when_its_owner_changed_is_not_returned() -> None:
    """It is stored after the change, which has removed all others."""
    machine: Any = SimpleNamespace(tokens={}, check_new_token=lambda *_: {})
    revoked = []

    async def persist(command: Any) -> None:
        if isinstance(command, SetTokenExpiry):
            assert command.expires_ms <= command.at_ms
            del machine.tokens[command.id]
        else:
            revoked.append(connection)
            machine.tokens[command.token.id] = command.token

    context: Any = SimpleNamespace(
        authenticator=SimpleNamespace(is_revoked=revoked.__contains__),
        cluster=SimpleNamespace(machine=machine, topics=SimpleNamespace(persist=persist)),
        clock=SimpleNamespace(machine=SimpleNamespace(wall_ms=lambda: 1_000)),
        config=BrokerConfig(),
        entropy=bytes,
    )
    connection: Any = SimpleNamespace(principal=Principal("User", "alice"))
    with pytest.raises(AuthenticationError, match="User:alice was changed or deleted"):
        asyncio.run(create_token(context, connection, (), 0))
    assert not machine.tokens


def test_a_token_manages_no_tokens(served: Delegating) -> None:
    made = served.create()
    calls: list[Callable[[Admin], object]] = [
        lambda admin: admin.create_token(),
        lambda admin: admin.describe_tokens(),
        lambda admin: admin.renew_token(made.token.id),
        lambda admin: admin.expire_token(made.token.id),
    ]
    with served.admin(**served.with_token(made)) as admin:
        for call in calls:
            with pytest.raises(TokenRequestNotAllowedError, match="with a delegation token"):
                call(admin)
    own = {"security_protocol": "SSL", "ssl_cafile": str(served.files.ca)}
    with (
        served.admin(cluster_secret=SECRET, **own) as admin,
        pytest.raises(TokenRequestNotAllowedError, match="not authenticated as a user"),
    ):
        admin.create_token()


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"is_encrypted": False}, "no TLS"), ({"principal": ANONYMOUS}, "not authenticated as")],
)
def test_tokens_require_tls_and_a_user(fields: dict[str, Any], text: str) -> None:
    held = {"used": None, "is_encrypted": True, "principal": Principal("User", "alice")}
    connection: Any = SimpleNamespace(**held)
    check_token_allowed(connection)
    with pytest.raises(TokenRequestNotAllowedError, match=text):
        check_token_allowed(SimpleNamespace(**(held | fields)))  # type: ignore[arg-type]


def test_owners_renewers_and_administrators_manage_a_token(served: Delegating) -> None:
    made = served.create("alice", "User:bob")
    token_id = made.token.id
    with served.admin(**served.arguments("eve")) as eve:
        assert eve.describe_tokens() == []
        with pytest.raises(TokenOwnerError, match="User:eve is neither"):
            eve.renew_token(token_id)
        with pytest.raises(TokenOwnerError):
            eve.expire_token(token_id)
        with pytest.raises(UnknownTokenError):
            eve.expire_token("0" * 32)
        with pytest.raises(InvalidRequestError):
            eve.expire_token("x")
    with served.admin(**served.arguments("bob")) as bob:
        assert [each.id for each in bob.describe_tokens(["User:alice"])] == [token_id]
        expires_ms = bob.renew_token(token_id, period_ms=10**9)
        assert expires_ms == made.token.max_ms, "the maximal lifetime is a limit"
    with served.admin(**served.arguments("root")) as root:
        assert token_id in [each.id for each in root.describe_tokens()]
        root.expire_token(token_id)
    with pytest.raises(InvalidRequestError, match="11 renewers"):
        served.create("alice", *(f"User:{number}" for number in range(11)))


def test_kafkas_requests_and_its_exchange(served: Delegating) -> None:
    client = served.signed_in("alice", PASSWORDS["alice"])
    create = codec.structs("request", kafka_apis.CREATE_DELEGATION_TOKEN.key)
    bob = create.CreatableRenewers(principal_type="User", principal_name="bob")
    message = create.root(
        owner_principal_type=None, owner_principal_name=None, renewers=[bob], max_lifetime_ms=-1
    )
    made = ask(client, kafka_apis.CREATE_DELEGATION_TOKEN, 3, message)
    assert (made.error_code, made.principal_name) == (0, "alice")
    assert made.max_timestamp_ms - made.issue_timestamp_ms == 600_000
    assert made.expiry_timestamp_ms - made.issue_timestamp_ms == 60_000
    message = create.root(
        owner_principal_type="User", owner_principal_name="bob", max_lifetime_ms=1
    )
    other = ask(client, kafka_apis.CREATE_DELEGATION_TOKEN, 3, message)
    assert other.error_code == errors.DELEGATION_TOKEN_OWNER_MISMATCH

    describe = codec.structs("request", kafka_apis.DESCRIBE_DELEGATION_TOKEN.key)
    alice = describe.DescribeDelegationTokenOwner(principal_type="User", principal_name="alice")
    found = ask(client, kafka_apis.DESCRIBE_DELEGATION_TOKEN, 3, describe.root(owners=[alice]))
    listed = next(each for each in found.tokens if each.token_id == made.token_id)
    assert [each.principal_name for each in listed.renewers] == ["bob"]
    assert listed.hmac == b"", "brokers do not have it"

    password = base64.b64encode(made.hmac).decode()
    delegated = served.signed_in(made.token_id, password, is_token=True)
    everything = codec.structs("request", kafka_apis.METADATA.key).root(topics=None)
    seen = ask(delegated, kafka_apis.METADATA, 12, everything)
    assert [each.name for each in seen.topics] == ["t"]
    refused = ask(delegated, kafka_apis.DESCRIBE_DELEGATION_TOKEN, 3, describe.root(owners=None))
    assert refused.error_code == errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    renew = codec.structs("request", kafka_apis.RENEW_DELEGATION_TOKEN.key)
    expire = codec.structs("request", kafka_apis.EXPIRE_DELEGATION_TOKEN.key)
    message = renew.root(hmac=made.hmac, renew_period_ms=120_000)
    renewed = ask(client, kafka_apis.RENEW_DELEGATION_TOKEN, 2, message)
    assert renewed.expiry_timestamp_ms >= made.issue_timestamp_ms + 120_000
    message = expire.root(hmac=made.hmac, expiry_time_period_ms=-1)
    eve = served.signed_in("eve", PASSWORDS["eve"])
    denied = ask(eve, kafka_apis.EXPIRE_DELEGATION_TOKEN, 2, message)
    assert denied.error_code == errors.DELEGATION_TOKEN_OWNER_MISMATCH
    assert ask(client, kafka_apis.EXPIRE_DELEGATION_TOKEN, 2, message).error_code == 0
    assert seconds_until_closed(served, made.token_id) < CUT_S
    assert delegated.is_closed()
    unknown = ask(client, kafka_apis.EXPIRE_DELEGATION_TOKEN, 2, message)
    assert unknown.error_code == errors.DELEGATION_TOKEN_NOT_FOUND
    for each in (client, delegated, eve):
        each.close()


PATHS = (
    "/metrics",
    *(f"/api/v1{path.format(name='t')}" for path in API_PATHS if "group" not in path),
    *("/", "/broker?id=1", "/topics/t", "/topics/__audit/records", "/groups", "/events"),
)


def test_secrets_stay_out_of_logs_metrics_pages_and_audit_events(
    served: Delegating, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a token, of users, of the operator, and the credentials that brokers store."""
    caplog.set_level("DEBUG")
    made = served.create()
    with served.admin(**served.with_token(made)) as admin:
        admin.list_topics()
    wrong = served.arguments(made.token.id, "a wrong secret", sasl_token_auth=True)
    with served.admin(**wrong) as admin, pytest.raises(AuthenticationError):
        admin.list_topics()
    with served.admin(**served.arguments("alice")) as admin:
        admin.expire_token(made.token.id)
    arguments = served.arguments("root")
    with served.admin(**arguments) as admin:
        wait_until(
            lambda: "__audit" in admin.list_topics(internal=True),
            timeout_s=20,
            what="the first audit events are stored",
        )
    texts = [caplog.text, repr(made)]
    with Consumer(
        str(served.broker.address), auto_offset_reset="earliest", **arguments
    ) as consumer:
        consumer.assign([TopicPartition("__audit", 0)])
        while not any("expire_token" in text and made.token.id in text for text in texts[2:]):
            texts += [(record.value or b"").decode() for record in consumer.poll(20_000)]
    http = Secured(served.broker, served.files)
    try:
        for path in PATHS:
            status, text = http.get(path, "root", password=PASSWORDS["root"])
            assert status == 200, path
            texts.append(text)
    finally:
        served.broker.await_(http.server.stop())
    keys = [
        key
        for user in served.broker.broker.context.cluster.machine.users.values()
        for scram in user.credentials.values()
        for key in (scram.salt, scram.stored_key, scram.server_key)
    ]
    hidden = [SECRET, "a wrong secret", *PASSWORDS.values(), base64.b64decode(made.hmac), *keys]
    assert keys
    for text in (*texts, caplog.text):
        assert found_in(text, hidden) == []


def test_the_command_line_creates_lists_and_removes(
    served: Delegating, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", str(served.broker.address))
    for name, value in served.arguments("alice").items():
        monkeypatch.setenv(f"RAFTLOG_{name.upper()}", value)

    def out(*arguments: str) -> str:
        assert run(["token", *arguments]) == 0
        return capsys.readouterr().out

    made = json.loads(out("create", "--renewer", "User:bob", "--json"))
    assert (made["owner"], made["renewers"]) == ("User:alice", ["User:bob"])
    listed = json.loads(out("list", "--owner", "User:alice", "--json"))
    assert made["id"] in [each["id"] for each in listed]
    assert made["hmac"] not in json.dumps(listed)
    assert made["id"] in out("list")
    renewed = json.loads(out("renew", made["id"], "--period-ms", "600000", "--json"))
    assert renewed["expires_ms"] == made["max_ms"]
    assert "expires at" in out("expire", made["id"])

    profile = out("create")
    assert 'sasl_token_auth = "true"' in profile
    monkeypatch.setenv("RAFTLOG_SASL_TOKEN_AUTH", "true")
    for line in profile.splitlines():
        name, _, value = line.partition(" = ")
        monkeypatch.setenv(f"RAFTLOG_{name.upper()}", json.loads(value))
    assert run(["topic", "list"]) == 0
