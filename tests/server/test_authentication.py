"""Authentication against a broker that requires it, on real sockets, by raw and by real clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog import Acl, Admin, Consumer, NewTopic, Producer, limits
from raftlog.clock import SystemClock
from raftlog.config import BrokerConfig
from raftlog.errors import (
    AccessDeniedError,
    AuthenticationError,
    ClusterNotReadyError,
    InvalidConfigError,
    InvalidRequestError,
    RaftlogError,
    SessionEndedError,
    UnknownUserError,
    UnsupportedFeatureError,
    UserExistsError,
)
from raftlog.kafka import api as kafka_apis
from raftlog.kafka import codec
from raftlog.protocol import api as apis
from raftlog.protocol.records import MetadataRequest
from raftlog.protocol.security import SaslAuthenticateRequest
from raftlog.replication.cluster_commands import PutUser
from raftlog.replication.cluster_state import ClusterMachine, Done
from raftlog.security.acl import ANONYMOUS, Principal
from raftlog.security.sasl import ScramClientExchange, make_credentials
from raftlog.server.authentication import Authenticator
from raftlog.server.broker import ADMIN_VARIABLE, read_first_user
from raftlog.testing.certificates import Certificates
from raftlog.testing.cluster import free_port
from tests.security.fuzz import Inputs, fuzz_exchanges
from tests.server.harness import Client, RunningBroker, closed_by_peer, running
from tests.server.kafka.kafka_client import KafkaClient
from tests.server.test_tls import client_of, secured_settings

SECRET = "the secret of the cluster"
ADMIN_PASSWORD = "the administrator's"
PASSWORD = "a user's password"
CREDENTIALS = make_credentials(PASSWORD, bytes)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A cluster of one broker that requires authentication."""
    directory = tmp_path_factory.mktemp("secured")
    credentials = directory / "admin"
    credentials.write_text(f"admin:{ADMIN_PASSWORD}\n")
    credentials.chmod(0o600)
    port = free_port()
    settings = {
        "listen": f"127.0.0.1:{port}",
        "voters": f"1@127.0.0.1:{port}",
        "cluster_secret": SECRET,
        "authentication_required": "true",
        "admin_credentials_file": str(credentials),
    }
    with running(directory / "data", clock=SystemClock(), **settings) as broker:
        with admin_of(broker) as admin:
            admin.create_topics([NewTopic("t")])
        yield broker


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUTHENTICATION_DELAY_S", 0.01)


def as_user(name: str = "admin", password: str = ADMIN_PASSWORD, **more: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_username": name,
        "sasl_password": password,
        **more,
    }


def admin_of(broker: RunningBroker, **arguments: Any) -> Admin:
    return Admin(str(broker.address), bootstrap_timeout_ms=20_000, **(arguments or as_user()))


# -- what a client gets ----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_clients_with_the_password_are_served(secured: RunningBroker, mechanism: str) -> None:
    arguments = as_user(sasl_mechanism=mechanism)
    with Producer(str(secured.address), **arguments) as producer:
        producer.send("t", mechanism.encode()).result(20)
    with Consumer(str(secured.address), auto_offset_reset="earliest", **arguments) as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(20_000)


def test_a_client_whose_session_has_ended_connects_again(secured: RunningBroker) -> None:
    """As after a pause of the broker: the credentials are right, and nothing was done."""

    def end_sessions() -> None:
        for connection in secured.broker.connections._open:
            connection.session_ends_seconds = 0.0

    address, arguments = str(secured.address), as_user()
    with (
        admin_of(secured) as admin,
        Producer(address, idempotent=False, **arguments) as producer,
        Consumer(address, auto_offset_reset="earliest", **arguments) as consumer,
    ):
        admin.create_topics([NewTopic("paused")])
        consumer.subscribe(["paused"])
        for number in range(2):
            producer.send("paused", b"x").result(20)
            found = consumer.poll(20_000)
            assert [record.offset for record in found] == [number]
            secured.call(end_sessions)
        admin.delete_topics(["paused"])


@pytest.mark.parametrize(
    "arguments",
    [as_user(password="another one"), as_user("nobody"), {"security_protocol": "PLAINTEXT"}],
)
def test_others_are_rejected_at_once(secured: RunningBroker, arguments: dict[str, Any]) -> None:
    with admin_of(secured, **arguments) as admin, pytest.raises(AuthenticationError):
        admin.list_topics()


def test_a_wrong_password_and_an_unknown_user_read_the_same(secured: RunningBroker) -> None:
    texts = set()
    for name in ("admin", "nobody"):
        with (
            admin_of(secured, **as_user(name, "another one")) as admin,
            pytest.raises(AuthenticationError) as caught,
        ):
            admin.list_topics()
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_producer_fails_its_records_when_its_user_is_deleted(secured: RunningBroker) -> None:
    """Within a second: its connection is closed, and the next one is rejected."""
    with admin_of(secured) as admin:
        admin.create_user("brief", "brief's password")
        admin.create_acls([Acl("User:brief", "WRITE", "TOPIC", "t")])
        arguments = as_user("brief", "brief's password")
        with Producer(str(secured.address), **arguments) as producer:
            producer.send("t", b"before").result(20)
            admin.delete_user("brief")
            began = time.monotonic()
            assert isinstance(first_failure(producer), AuthenticationError)
            assert time.monotonic() < began + 5


def first_failure(producer: Producer) -> Exception:
    """Send records until one fails."""
    for _ in range(10_000):
        try:
            producer.send("t", b"after").result(20)
        except RaftlogError as error:
            return error
    raise AssertionError("no record failed")


def connections(broker: RunningBroker, name: str) -> int:
    """How many open connections a user has."""
    opened = broker.broker.connections._open
    return broker.call(lambda: sum(c.principal.name == name for c in opened))


@pytest.mark.parametrize("change", ["delete", "rotate"])
def test_open_connections_of_a_revoked_user_are_closed(secured: RunningBroker, change: str) -> None:
    name = f"revoked-{change}"
    with admin_of(secured) as admin:
        admin.create_user(name, "a password")
        with admin_of(secured, **as_user(name, "a password")) as other:
            other.list_topics()
            assert connections(secured, name) == 1
            if change == "delete":
                admin.delete_user(name)
            else:
                admin.rotate_user(name, "a new password")
            assert connections(secured, name) == 0, "closed before the change is acknowledged"
            assert connections(secured, "admin") >= 1


# -- users -----------------------------------------------------------------------------------------


def test_users_are_created_listed_rotated_and_deleted(secured: RunningBroker) -> None:
    with admin_of(secured) as admin:
        admin.create_user("alice", "alice's password")
        assert {"admin", "alice"} <= {user.name for user in admin.list_users()}
        with pytest.raises(UserExistsError, match="raftlog user rotate"):
            admin.create_user("alice", "another password")
        admin.rotate_user("alice", "a new password")
        with admin_of(secured, **as_user("alice", "a new password")) as alice:
            assert alice.list_topics() == []
            admin.create_acls([Acl("User:alice", "READ", "TOPIC", "t")])
            assert alice.list_topics() == ["t"]
        admin.delete_user("alice")
        with pytest.raises(UnknownUserError):
            admin.delete_user("alice")
        with pytest.raises(UnknownUserError):
            admin.rotate_user("alice", "any password")


def test_the_secret_of_the_cluster_opens_a_cluster_whose_password_is_lost(
    secured: RunningBroker,
) -> None:
    with admin_of(secured, cluster_secret=SECRET) as admin:
        assert "admin" in [user.name for user in admin.list_users()]
    with (
        admin_of(secured, cluster_secret="some other secret") as admin,
        pytest.raises(AuthenticationError),
    ):
        admin.list_topics()


def test_users_of_an_open_cluster_require_the_secret(tmp_path: Path) -> None:
    port = free_port()
    settings = {"listen": f"127.0.0.1:{port}", "voters": f"1@127.0.0.1:{port}"}
    with running(tmp_path, clock=SystemClock(), cluster_secret=SECRET, **settings) as broker:
        with (
            admin_of(broker, security_protocol="PLAINTEXT") as admin,
            pytest.raises(AccessDeniedError, match="cluster secret"),
        ):
            admin.create_user("mallory", "mallory's own")
        with admin_of(broker, cluster_secret=SECRET) as admin:
            admin.create_user("alice", "alice's own")
            assert [user.name for user in admin.list_users()] == ["alice"]


@pytest.mark.parametrize(
    ("rules", "name"), [("", "raftlog client"), ("RULE:CN=([a-z]+) .*/$1/U", "RAFTLOG")]
)
def test_a_certificate_authenticates_its_owner(
    tmp_path: Path, certificates: Certificates, rules: str, name: str
) -> None:
    settings = secured_settings(
        certificates,
        cluster_secret=SECRET,
        tls_client_ca_file=str(certificates.ca),
        ssl_principal_mapping_rules=rules,
    )
    arguments = client_of(
        certificates, ssl_certfile=certificates.client, ssl_keyfile=certificates.client_key
    )
    with (
        running(tmp_path, clock=SystemClock(), **settings) as broker,
        admin_of(broker, **arguments) as admin,
    ):
        assert admin.list_topics() == []
        assert connections(broker, name) == 1


# -- what a broker accepts on a raw connection ----------------------------------------------------


def begin(client: Client, password: str = ADMIN_PASSWORD) -> bytes:
    """Begin an exchange; the proof to send."""
    exchange = ScramClientExchange("SCRAM-SHA-256", "admin", password, bytes)
    request = SaslAuthenticateRequest(data=exchange.first(), mechanism="SCRAM-SHA-256")
    return exchange.next(client.ask(apis.SASL_AUTHENTICATE, request).data)


def refusal(client: Client) -> str:
    """The first of the broker's two errors: in the response, and as its last words."""
    data = b""
    client.send(apis.METADATA, MetadataRequest(topics=[]))
    while chunk := client.socket.recv(65_536):
        data += chunk
    return data.decode(errors="replace")


def test_requests_before_authentication_end_the_connection(secured: RunningBroker) -> None:
    with secured.client() as client:
        assert "requires authentication" in refusal(client)
        assert client.is_closed_by_broker()


def test_requests_between_two_messages_are_rejected(secured: RunningBroker) -> None:
    with secured.client() as client:
        begin(client)
        assert "requires authentication" in refusal(client)


def test_an_exchange_is_one_attempt(secured: RunningBroker) -> None:
    with secured.client() as client:
        begin(client)
        with pytest.raises(AuthenticationError, match="a second exchange"):
            begin(client)
        assert client.is_closed_by_broker()
    with secured.client() as client:
        wrong = begin(client, "another one")
        first = client.send(apis.SASL_AUTHENTICATE, SaslAuthenticateRequest(data=wrong))
        second = client.send(apis.SASL_AUTHENTICATE, SaslAuthenticateRequest(data=wrong))
        assert isinstance(client.answer(first).message, AuthenticationError)
        with pytest.raises(AssertionError, match="closed the connection"):
            client.answer(second)


def test_a_captured_exchange_cannot_be_repeated(secured: RunningBroker) -> None:
    with secured.client() as client:
        proof = begin(client)
        assert client.ask(apis.SASL_AUTHENTICATE, SaslAuthenticateRequest(data=proof)).is_complete
    with secured.client() as client:
        begin(client)  # the client's nonce is the same, and the broker's is not
        with pytest.raises(AuthenticationError):
            client.ask(apis.SASL_AUTHENTICATE, SaslAuthenticateRequest(data=proof))


def test_a_mechanism_that_is_not_available_is_named(secured: RunningBroker) -> None:
    with secured.client() as client:
        for mechanism in ("PLAIN", "GSSAPI"):
            request = SaslAuthenticateRequest(data=b"", mechanism=mechanism)
            with pytest.raises(UnsupportedFeatureError, match="SCRAM-SHA-256, SCRAM-SHA-512"):
                client.ask(apis.SASL_AUTHENTICATE, request)
        proof = begin(client)
        request = SaslAuthenticateRequest(data=proof)
        assert client.ask(apis.SASL_AUTHENTICATE, request).is_complete
        assert client.ask(apis.METADATA, MetadataRequest(topics=[])).brokers


def test_a_message_of_no_exchange_is_rejected(secured: RunningBroker) -> None:
    with secured.client() as client, pytest.raises(InvalidRequestError, match="no exchange"):
        client.ask(apis.SASL_AUTHENTICATE, SaslAuthenticateRequest(data=b"x"))


def test_a_long_first_request_ends_the_connection(secured: RunningBroker) -> None:
    """Until a client has authenticated, its requests take little memory."""
    with secured.client() as client:
        size = limits.UNAUTHENTICATED_BYTES_MAX + 1
        client.socket.sendall(struct.pack("<I2sHHHII", size, b"RL", 39, 0, 0, 7, 8))
        assert closed_by_peer(client.socket)
    raw = socket.create_connection(secured.address, timeout=20)
    with raw:
        raw.sendall(struct.pack(">ihhi", limits.UNAUTHENTICATED_BYTES_MAX + 1, 36, 2, 1))
        assert closed_by_peer(raw)


def test_a_client_that_does_not_authenticate_is_sent_away(
    secured: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise connections without credentials occupy max.connections."""
    connections = secured.broker.connections
    with secured.client() as client, secured.client() as other:
        proof = begin(other)
        assert other.ask(apis.SASL_AUTHENTICATE, SaslAuthenticateRequest(data=proof)).is_complete
        monkeypatch.setattr(limits, "AUTHENTICATION_S", -1.0)
        secured.call(connections._sweeper.cancel)
        secured.call(connections._sweep)
        assert client.is_closed_by_broker()
        assert other.ask(apis.METADATA, MetadataRequest(topics=[])).brokers


def test_a_kafka_client_must_authenticate_too(secured: RunningBroker) -> None:
    client = KafkaClient(secured.address)
    try:
        request = codec.structs("request", kafka_apis.METADATA.key).root(topics=[])
        client.send(kafka_apis.METADATA, 9, request)
        assert closed_by_peer(client._socket)
    finally:
        client.close()


# -- decisions of the authenticator ----------------------------------------------------------------


class Loop:
    """A loop whose time is set."""

    now = 0.0

    def time(self) -> float:
        return self.now


def peer(**fields: Any) -> Any:
    held: dict[str, Any] = {
        "peer": "10.0.0.1:1",
        "peer_host": "10.0.0.1",
        "principal": ANONYMOUS,
        "exchange": None,
        "has_sasl": False,
        "rejection": None,
        "used": None,
        "session_ends_seconds": None,
        "is_encrypted": False,
        "is_authenticated": False,
        "peer_identity": None,
        "is_operator": False,
        "permit_long_requests": lambda: None,
    }
    return SimpleNamespace(**(held | fields))


def authenticator(loop: Loop | None = None, **settings: str) -> Authenticator:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    config = BrokerConfig.from_text({"voters": "1@h:1", **named})
    return Authenticator(config, loop or Loop(), bytes)  # type: ignore[arg-type]


def test_an_address_that_fails_too_often_is_refused_before_any_work() -> None:
    judge = authenticator()
    judge.users_changed(users_of("alice"))
    for _ in range(limits.AUTHENTICATION_FAILURES_MAX):
        with pytest.raises(AuthenticationError):
            list(judge.begin(peer(rejection=AuthenticationError("E")), "SCRAM-SHA-256"))
    with pytest.raises(RaftlogError, match="AUTHENTICATION_FAILURES_MAX"):
        list(judge.begin(peer(), "SCRAM-SHA-256"))
    assert attempt(judge, peer(peer_host="10.0.0.2")).is_complete


def users_of(*names: str) -> ClusterMachine:
    """A cluster with these users, whose password is PASSWORD."""
    machine = ClusterMachine()
    for name in names:
        command = PutUser(name, CREDENTIALS, expected="any", secret=bytes(32))
        assert isinstance(machine.apply(command.encode()), Done)
    return machine


def finished(steps: Any) -> Any:
    """The result of steps whose thread work runs here."""
    result: Any = None
    while True:
        try:
            work = steps.send(result)
        except StopIteration as end:
            return end.value
        result = None if work is None else work()


def attempt(judge: Authenticator, client: Any, user: str = "alice") -> Any:
    """Authenticate with PASSWORD; what the broker returns, or its error."""
    exchange = ScramClientExchange("SCRAM-SHA-256", user, PASSWORD, bytes)
    finished(judge.begin(client, "SCRAM-SHA-256"))
    challenge = finished(judge.proceed(client, exchange.first()))
    return finished(judge.proceed(client, exchange.next(challenge.data)))


def test_a_user_that_is_deleted_during_the_exchange_is_rejected() -> None:
    judge, client = authenticator(), peer()
    judge.users_changed(users_of("alice"))
    exchange = ScramClientExchange("SCRAM-SHA-256", "alice", PASSWORD, bytes)
    finished(judge.begin(client, "SCRAM-SHA-256"))
    challenge = finished(judge.proceed(client, exchange.first()))
    judge.users_changed(users_of("bob"))
    with pytest.raises(AuthenticationError, match="changed during the attempt"):
        finished(judge.proceed(client, exchange.next(challenge.data)))
    assert client.principal is ANONYMOUS


def test_a_user_that_is_deleted_is_revoked() -> None:
    judge, client = authenticator(), peer()
    judge.users_changed(users_of("alice"))
    assert attempt(judge, client).is_complete
    assert not judge.is_revoked(client)
    judge.users_changed(users_of("bob"))
    assert judge.is_revoked(client)
    assert not judge.is_revoked(peer()), "it has used no credential"


def test_a_connection_stays_with_its_user() -> None:
    judge, client = authenticator(), peer()
    judge.users_changed(users_of("alice", "bob"))
    for _ in range(2):
        assert attempt(judge, client).is_complete
    with pytest.raises(AuthenticationError, match="belongs to User:alice"):
        attempt(judge, client, "bob")


def test_a_broker_without_users_rejects_no_password() -> None:
    """It may not have applied the users of the cluster yet."""
    with pytest.raises(ClusterNotReadyError, match="knows no users yet"):
        finished(authenticator().begin(peer(), "SCRAM-SHA-256"))


def test_a_broker_that_has_just_started_rejects_no_password() -> None:
    """It has replayed some changes of users: the next one may create the user."""
    judge, client = authenticator(), peer()
    judge.users_changed(users_of("bob"))
    judge.is_current = lambda: False
    with pytest.raises(ClusterNotReadyError, match="does not know all users"):
        attempt(judge, client)
    judge.users_changed(users_of("bob", "alice"))
    assert attempt(judge, client).is_complete, "on the same connection"
    with pytest.raises(ClusterNotReadyError):
        asyncio.run(judge.verify("10.0.0.3", "carol", PASSWORD))
    judge.is_current = lambda: True
    with pytest.raises(AuthenticationError):
        asyncio.run(judge.verify("10.0.0.3", "carol", PASSWORD))


def test_a_plain_password_requires_tls() -> None:
    judge = authenticator()
    judge.users_changed(users_of("alice"))
    with pytest.raises(UnsupportedFeatureError, match="PLAIN requires TLS"):
        finished(judge.begin(peer(), "PLAIN"))
    client = peer(is_encrypted=True)
    finished(judge.begin(client, "PLAIN"))
    message = f"\0alice\0{PASSWORD}".encode()
    assert finished(judge.proceed(client, message)).is_complete
    assert str(client.principal) == "User:alice"


def test_a_session_ends_unless_the_client_authenticates_again() -> None:
    loop = Loop()
    judge = authenticator(loop, authentication_required="true")
    client = peer(is_authenticated=True, principal=Principal("User", "a"), session_ends_seconds=5.0)
    loop.now = 4.9
    judge.check(client)
    loop.now = 5.0
    with pytest.raises(SessionEndedError, match=r"connections\.max\.reauth\.ms"):
        judge.check(client)


def test_without_the_setting_clients_need_not_authenticate() -> None:
    authenticator().check(peer())
    with pytest.raises(AuthenticationError):
        authenticator(authentication_required="true").check(peer())


def test_a_broker_alone_keeps_its_users(tmp_path: Path) -> None:
    credentials = tmp_path / "admin"
    credentials.write_text(f"admin:{ADMIN_PASSWORD}\n")
    credentials.chmod(0o600)
    settings = {"authentication_required": "true", "admin_credentials_file": str(credentials)}
    for _ in range(2):
        with (
            running(tmp_path / "data", clock=SystemClock(), **settings) as broker,
            admin_of(broker) as admin,
        ):
            assert [user.name for user in admin.list_users()] == ["admin"]
        credentials.unlink(missing_ok=True)


# -- the first user --------------------------------------------------------------------------------


def test_the_first_user_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    config = BrokerConfig.from_text({"admin.credentials.file": str(path)})
    assert read_first_user(config, {}) is None, "the file was deleted after the first start"
    path.write_text("root:a password\n")
    path.chmod(0o600)
    assert read_first_user(config, {}) == ("root", "a password")
    assert read_first_user(config, {ADMIN_VARIABLE: "x:y:zzzzzz"}) == ("x", "y:zzzzzz")
    assert "a password" not in repr(read_first_user(config, {}))


@pytest.mark.parametrize("text", ["admin", ":a password", "admin:short", "admin:" + "x" * 257])
def test_other_texts_are_rejected_without_repeating_them(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="is not NAME:PASSWORD") as caught:
        read_first_user(BrokerConfig(), {ADMIN_VARIABLE: text})
    assert text.partition(":")[2] not in str(caught.value) or not text.partition(":")[2]


def test_a_file_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    path.write_text("root:a password\n")
    path.chmod(0o644)
    with pytest.raises(InvalidConfigError, match="mode 0644"):
        read_first_user(BrokerConfig.from_text({"admin.credentials.file": str(path)}), {})


def test_the_log_has_no_secret(secured: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), admin_of(secured) as admin:
        admin.create_user("logged", "logged's password")
        with (
            admin_of(secured, **as_user("logged", "wrong password")) as other,
            pytest.raises(AuthenticationError),
        ):
            other.list_topics()
        admin.delete_user("logged")
    assert "User:admin" in caplog.text
    for secret in ("logged's password", "wrong password", ADMIN_PASSWORD, SECRET):
        assert secret not in caplog.text


def test_damaged_handshakes_are_rejected() -> None:
    """A short part of ``make handshake-fuzz``, without a broker."""
    counts: Counter[str] = Counter()
    for _ in fuzz_exchanges(Inputs(1), 3_000, counts):
        pass
    assert counts.total() == 3_000
    assert {name.partition(":")[0] for name in counts} >= {"broker", "operator", "OAUTHBEARER"}
