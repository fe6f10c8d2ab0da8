"""Who may do what on the console: requests that are refused, sessions, rules and users."""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from raftlog import Admin, Consumer, TopicPartition, limits
from raftlog.client.administration.security import AclDecision, UserListing
from raftlog.client.settings import SECRET_FILE_VARIABLE
from raftlog.clock import SystemClock
from raftlog.config import BrokerConfig
from raftlog.errors import AccessDeniedError, InvalidRequestError, RaftlogError
from raftlog.security.acl import USER, Acl, AclFilter, Principal
from raftlog.security.quota import QuotaEntity
from raftlog.server.http.app import HttpUser
from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing.cluster import free_port
from raftlog.types import AUDIT_TOPIC
from raftlog_cli.console import app, history
from raftlog_cli.console.app import Sessions
from raftlog_cli.console.pages import Pages
from tests.cli.console.conftest import Browser, Consoles
from tests.cli.console.test_app import ATTRIBUTE, MARKUP, check
from tests.cli.console.test_pages import text_of
from tests.server.harness import FakeClock

# -- guard -----------------------------------------------------------------------------------------

# Which requests are refused, and why.


OWN = {"host": "127.0.0.1:9200", "origin": "http://127.0.0.1:9200"}
FORM = {"token": "secret"}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9200", "localhost:9200", "LOCALHOST", "[::1]:9200", "127.9.9.9"]
)
def test_a_loopback_port_serves_loopback_names(host: str) -> None:
    assert app.refusal(host, listens_on_loopback=True) == ""


@pytest.mark.parametrize(
    "host",
    ["", "[", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9200", "10.0.0.1"],
)
def test_a_loopback_port_refuses_names_that_a_site_may_point_to_it(host: str) -> None:
    assert "loopback" in app.refusal(host, listens_on_loopback=True)
    assert app.refusal(host, listens_on_loopback=False) == ""


def test_a_change_from_its_own_page_is_accepted() -> None:
    assert app.change_refusal(OWN, FORM, "secret", is_read_only=False) == ""
    without_origin = {"host": "127.0.0.1:9200"}
    assert app.change_refusal(without_origin, FORM, "secret", is_read_only=False) == ""


@pytest.mark.parametrize(
    ("headers", "form", "is_read_only", "noted"),
    [
        (OWN, FORM, True, "read-only"),
        (OWN, {}, False, "reload it"),
        (OWN, {"token": "guess"}, False, "reload it"),
        ({**OWN, "origin": "http://evil.example"}, FORM, False, "another site"),
        ({**OWN, "origin": "null"}, FORM, False, "another site"),
        ({**OWN, "origin": "http://["}, FORM, False, "another site"),
        ({**OWN, "origin": "http://127.0.0.1:9300"}, FORM, False, "another site"),
        ({**OWN, "sec-fetch-site": "cross-site"}, FORM, False, "another site"),
        ({**OWN, "sec-fetch-site": "same-site"}, FORM, False, "another site"),
    ],
)
def test_other_changes_are_refused(
    headers: dict[str, str], form: dict[str, str], is_read_only: bool, noted: str
) -> None:
    refused = app.change_refusal(headers, form, "secret", is_read_only=is_read_only)
    assert noted in refused


def test_the_policy_allows_no_inline_code() -> None:
    policy = app.HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")


def test_the_pages_of_a_topic_offer_what_the_user_may_change() -> None:
    allowed = {("WRITE", "TOPIC", "clicks"), ("ALTER", "CLUSTER", "kafka-cluster")}

    def rights(topic: str, *, is_read_only: bool = False) -> set[str]:
        return {*app.rights(topic, lambda *asked: asked in allowed, is_read_only=is_read_only)}

    assert rights("clicks") == {"WRITE", app.MOVE_LEADERS}
    assert rights("orders") == {app.MOVE_LEADERS}
    assert rights("clicks", is_read_only=True) == rights("") == set()
    every = app.rights("__consumer_offsets", lambda *_asked: True, is_read_only=False)
    assert every == {app.MOVE_LEADERS}  # clients change no internal topic


# -- sessions --------------------------------------------------------------------------------------

# Clients of the console's users: how many, for how long, and for whom.


def user(name: str, password: str = "a password", host: str = "10.0.0.1") -> HttpUser:
    return HttpUser(Principal(USER, name), host, "SCRAM-SHA-256", password)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sessions(clock: FakeClock) -> Iterator[Sessions]:
    made = Sessions("127.0.0.1:1", BrokerConfig(data_dir="."), clock)
    yield made
    made.close()


def test_each_user_has_a_client(sessions: Sessions) -> None:
    alice = sessions.of(user("alice"))
    assert sessions.of(user("alice", host="10.0.0.2")) is alice
    assert sessions.of(user("bob")) is not alice
    assert sessions.of(user("alice", "another one")) is not alice
    with pytest.raises(RaftlogError, match="closed"):
        alice.admin.list_topics()
    assert "a password" not in repr(alice)


def test_users_do_not_act_with_the_secret_of_the_brokers_environment(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("the secret of the cluster")
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(tmp_path / "secret"))
    secrets = [sessions.of(each).admin._settings.operator_secret for each in (user("alice"), None)]
    assert secrets == [b"", b""]


def test_clients_are_few_and_end_when_they_are_idle(
    sessions: Sessions, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONSOLE_USERS_MAX", 2)
    alice, bob = sessions.of(user("alice")), sessions.of(user("bob"))
    assert sessions.of(user("alice")) is alice
    carol = sessions.of(user("carol"))
    assert sessions.of(user("alice")) is alice
    assert sessions.of(user("bob")) is not bob  # its client was used last before the others
    clock.now_ms += int(1_000 * limits.CONSOLE_USER_IDLE_S)
    assert sessions.of(user("carol")) is not carol


# -- rules and users -------------------------------------------------------------------------------

# Pages of rules and users: of a fake cluster, and of a real one with authentication.


RULE = Acl("User:alice", "READ", "TOPIC", "clicks", host="10.0.0.1")
PASSWORD = "correct horse battery"


class Cluster1:
    """An admin client with some rules, users and quotas."""

    def __init__(self) -> None:
        self.acls = [Acl("User:bob", "WRITE", "TOPIC", f"t{number}") for number in range(60)]
        self.users = ["alice", "bob", *(f"user-{number}" for number in range(60))]
        self.selections: list[AclFilter] = []
        self.checked: list[Any] = []
        self.changes: list[Any] = []
        self.denied = False

    def describe_acls(self, selection: AclFilter) -> list[Acl]:
        self.selections.append(selection)
        return [acl for acl in self.acls if selection.selects(acl)]

    def create_acls(self, acls: list[Acl]) -> None:
        self.acls += acls

    def delete_acls(self, selections: list[AclFilter]) -> list[Acl]:
        gone = [acl for acl in self.acls if selections[0].selects(acl)]
        self.acls = [acl for acl in self.acls if acl not in gone]
        return gone

    def check_acl(self, *values: str, host: str) -> AclDecision:
        self.checked.append((*values, host))
        return AclDecision(True, RULE, is_super_user=False, is_enforced=True, reason="")

    def list_users(self) -> list[UserListing]:
        if self.denied:
            raise AccessDeniedError("the cluster secret is required")
        return [UserListing(name, ("SCRAM-SHA-512",)) for name in self.users]

    def describe_quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return {
            QuotaEntity("alice"): {"producer_byte_rate": 1_000.0, "connections": 5.0},
            QuotaEntity("alice", "app"): {"producer_byte_rate": 7.0},
            QuotaEntity(None, "app"): {"producer_byte_rate": 7.0},
            QuotaEntity("<default>"): {"request_percentage": 50.0},
        }

    def create_user(self, name: str, password: str) -> None:
        self.changes.append((name, password))


def pages_of(admin: Cluster1, *, is_secured: bool = True) -> Pages:
    unused = cast(Any, None)
    arguments: Any = {"make_producer": unused, "is_secured": is_secured}
    return Pages(cast(Admin, admin), unused, unused, unused, unused, **arguments)


def test_rules_are_selected_by_what_applies_to_a_name_and_are_paged() -> None:
    admin = Cluster1()
    shown = app.rules(pages_of(admin), {"principal": " bob ", "page": "2", "host": ""})
    assert (shown["page"].total, len(shown["page"].rows)) == (60, 10)
    assert shown["page"].address(1) == "/access?principal=+bob+"
    app.rules(pages_of(admin), {"principal": "User:*", "resource_name": "t1"})
    assert admin.selections == [
        AclFilter(principal="User:bob"),
        AclFilter(principal="User:*", resource_name="t1", pattern_type="MATCH"),
    ]
    with pytest.raises(InvalidRequestError, match=r"^operation: 'FLY'"):
        app.rules(pages_of(admin), {"operation": "FLY"})


def test_a_rule_is_created_and_only_this_one_is_deleted() -> None:
    admin = Cluster1()
    pages = pages_of(admin)
    form = {
        "principal": "alice",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "t1",
        "pattern_type": "PREFIXED",
        "permission": "DENY",
        "host": "",
    }
    assert app.create_rule(pages, form) == "/access?principal=User%3Aalice"
    assert admin.acls[-1] == Acl("User:alice", "READ", "TOPIC", "t1", "PREFIXED", "DENY")
    app.create_rule(pages, {**form, "permission": "ALLOW"})
    app.create_rule(pages, {**form, "resource_type": "CLUSTER", "operation": "DESCRIBE"})
    assert admin.acls[-1].resource_name == "kafka-cluster"
    before = len(admin.acls)
    assert app.delete_rule(pages, form) == "/access"
    assert (len(admin.acls), admin.acls[-2].permission) == (before - 1, "ALLOW")
    with pytest.raises(InvalidRequestError, match="does not exist"):
        app.delete_rule(pages, form)


@pytest.mark.parametrize(
    ("changed", "noted"),
    [
        ({"principal": ""}, "not a principal"),
        ({"operation": "CLUSTER_ACTION"}, "has no operation"),
        ({"resource_type": "PLANET"}, "resource_type: 'PLANET'"),
        ({"resource_name": ""}, "0 characters"),
        ({"resource_name": "x" * 10_000}, "10000 characters"),
        ({"pattern_type": "MATCH"}, "pattern_type: 'MATCH'"),
        ({"host": "example.org"}, "not an IP address"),
    ],
)
def test_a_rule_that_could_never_apply_is_refused(changed: dict[str, str], noted: str) -> None:
    admin = Cluster1()
    form = {"principal": "a", "operation": "READ", "resource_type": "TOPIC", "resource_name": "t"}
    with pytest.raises(InvalidRequestError, match=noted):
        app.create_rule(pages_of(admin), {**form, **changed})
    assert len(admin.acls) == 60


def test_a_check_is_made_when_the_form_is_complete() -> None:
    admin = Cluster1()
    pages = pages_of(admin)
    assert app.check_access(pages, {})["decision"] is None
    assert app.check_access(pages, {"principal": "alice"})["decision"] is None
    named = {"principal": "alice", "resource_name": "clicks", "host": "10.0.0.1"}
    assert app.check_access(pages, named)["decision"].acl == RULE
    app.check_access(pages, {"principal": "User:b", "resource_type": "CLUSTER"})
    assert admin.checked == [
        ("User:alice", "READ", "TOPIC", "clicks", "10.0.0.1"),
        ("User:b", "READ", "CLUSTER", "kafka-cluster", "0.0.0.0"),
    ]


def test_users_are_searched_and_have_quotas() -> None:
    admin = Cluster1()
    shown = app.users(pages_of(admin), {"q": "USER-", "page": "2"})
    assert (shown["page"].total, len(shown["page"].rows), shown["total"]) == (60, 10, 62)
    assert shown["quotas"] == {
        "alice": "produce-bytes 1,000, connections 5",
        "<default>": "request-percent 50",
    }


def test_a_refused_list_of_users_is_a_problem_without_security_only() -> None:
    admin = Cluster1()
    admin.denied = True
    shown = app.users(pages_of(admin, is_secured=False), {})
    assert (shown["page"].total, shown["problem"]) == (0, "the cluster secret is required")
    with pytest.raises(AccessDeniedError):
        app.users(pages_of(admin), {})


def test_a_password_is_entered_twice() -> None:
    admin = Cluster1()
    form = {"user": " carol ", "password": PASSWORD, "repeated": PASSWORD}
    assert app.create_user(pages_of(admin), form) == "/access/users"
    assert admin.changes == [("carol", PASSWORD)]
    with pytest.raises(InvalidRequestError, match="not equal") as raised:
        app.create_user(pages_of(admin), {**form, "repeated": "another"})
    assert PASSWORD not in str(raised.value)
    assert len(admin.changes) == 1


# -- without authentication ------------------------------------------------------------------------


@pytest.mark.integration
def test_without_security_the_pages_say_how_to_turn_it_on(
    browser: Browser, consoles: Consoles
) -> None:
    for path in ("/access", "/access/new-rule", "/access/check", "/access/users"):
        html = browser.get(path)
        check(html)
        assert "Security is off." in text_of(html)
        assert "raftlog security init" in text_of(html)
        assert '<form method="post"' not in consoles(read_only=True).get(path)
    text = text_of(browser.get("/access/check?principal=alice&resource_name=clicks"))
    assert "denied User:alice must not READ TOPIC clicks" in text
    assert "No rule applies. The brokers do not require authentication" in text


# -- with authentication ---------------------------------------------------------------------------


class SecuredConsole:
    """Console of a broker with authentication, used by one user."""

    def __init__(self, running: Cluster, name: str, password: str) -> None:
        settings = running.brokers[0].settings
        self._context = ssl.create_default_context(cafile=settings["tls.ca.file"])
        self.url = f"https://{settings['http.listen']}"
        encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {encoded}", "Origin": self.url}

    def send(self, path: str, form: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status and text of a page, or of the page that follows a change."""
        data = None if form is None else urlencode(form).encode()
        request = urllib.request.Request(self.url + path, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def get(self, path: str, status: int = 200) -> str:
        found, text = self.send(path)
        assert found == status, text
        check(text)
        return text

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        found = re.search(r'name="token" value="([^"]+)"', self.get("/access/new-rule"))
        assert found is not None
        status, text = self.send(path, {"token": found[1], **fields})
        check(text)
        return status, text


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("secured")
    settings = {
        "http.listen": f"127.0.0.1:{free_port()}",
        "http.console.read.only": "false",
    }
    with cluster(brokers=1, directory=directory, settings=settings, secure=True) as running:
        made = SecuredConsole(running, "admin", password_of(running))
        wait_until(lambda: made.send("/")[0] == 200, what="the administrator")
        yield running


def password_of(running: Cluster) -> str:
    path = Path(running.brokers[0].settings["admin.credentials.file"])
    return path.read_text().strip().partition(":")[2]


@pytest.fixture
def console(secured: Cluster) -> SecuredConsole:
    return SecuredConsole(secured, "admin", password_of(secured))


def as_user(secured: Cluster, name: str) -> SecuredConsole:
    return SecuredConsole(secured, name, PASSWORD)


@pytest.mark.integration
def test_users_are_created_changed_and_deleted(console: SecuredConsole, secured: Cluster) -> None:
    passwords = {"password": PASSWORD, "repeated": PASSWORD}
    status, text = console.post("/access/new-user", user="alice", **passwords)
    assert status == 200
    assert re.search(r"alice SCRAM-SHA-256, SCRAM-SHA-512 ", text_of(text))
    assert "Security is off" not in text
    status, text = console.post("/access/new-user", user="alice", **passwords)
    assert (status, "alice" in text, PASSWORD in text) == (409, True, False)
    status, text = console.post("/access/new-user", user="b", password="short", repeated="short")
    assert (status, "short" in text_of(text)) == (400, False)
    # Of another user: what its rules allow, whatever page it has.
    alice = as_user(secured, "alice")
    for path in ("/access", "/access/users"):
        assert "User:alice may not DESCRIBE the cluster" in text_of(alice.get(path, 403))
    status, text = alice.post("/access/new-user", user="mallory", **passwords)
    assert (status, "may not ALTER the cluster" in text) == (403, True)
    status, _ = alice.post("/access/delete-user", user="admin")
    assert status == 403
    rule = {"principal": "alice", "operation": "ALL", "resource_type": "CLUSTER"}
    status, _ = alice.post("/access/new-rule", **rule)
    assert status == 403
    changed = {"password": PASSWORD + "!", "repeated": PASSWORD + "!"}
    assert console.post("/access/new-password", user="alice", **changed)[0] == 200
    assert alice.send("/topics")[0] == 401
    status, text = console.post("/access/delete-user", user="alice")
    assert (status, "alice" in text_of(text)) == (200, False)
    assert console.post("/access/delete-user", user="alice")[0] == 404


@pytest.mark.integration
def test_rules_are_created_checked_and_deleted(console: SecuredConsole) -> None:
    rule = {
        "principal": "bob",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "clicks",
        "pattern_type": "PREFIXED",
        "permission": "ALLOW",
        "host": "10.0.0.1",
    }
    question = "/access/check?principal=bob&operation=READ&resource_name=clicks-1&host=10.0.0."
    assert "No rule applies" in text_of(console.get(question + "1"))
    status, text = console.post("/access/new-rule", **rule)
    assert status == 200
    assert "User:bob ALLOW READ TOPIC prefix clicks 10.0.0.1" in text_of(text)
    text = text_of(console.get(question + "1"))
    assert "allowed User:bob may READ TOPIC clicks-1 from 10.0.0.1." in text
    assert "The rule that decides: ALLOW User:bob READ on TOPIC prefix clicks" in text
    assert "User:bob must not READ" in text_of(console.get(question + "2"))
    assert "1 rule" in text_of(console.get("/access?resource_name=clicks-9"))
    assert "No rule matches" in text_of(console.get("/access?resource_name=other"))
    assert "is not an IP address" in console.post("/access/new-rule", **{**rule, "host": "x"})[1]
    status, text = console.post("/access/delete-rule", **rule)
    assert (status, "User:bob" in text) == (200, False)
    assert console.post("/access/delete-rule", **rule)[0] == 400


@pytest.mark.integration
def test_a_page_offers_the_changes_that_its_user_may_make(
    console: SecuredConsole, secured: Cluster
) -> None:
    assert console.post("/new-topic", name="offered")[0] == 200
    passwords = {"password": PASSWORD, "repeated": PASSWORD}
    assert console.post("/access/new-user", user="erin", **passwords)[0] == 200
    for fields in (
        {"operation": "DESCRIBE", "resource_type": "CLUSTER"},
        {"operation": "WRITE", "resource_type": "TOPIC", "resource_name": "offered"},
    ):
        assert console.post("/access/new-rule", principal="erin", **fields)[0] == 200
    erin = as_user(secured, "erin")
    changes = ("produce", "delete", "settings", "partitions")
    for user, offered in ((console, changes), (erin, changes[:1])):
        page = user.get("/topics/offered")
        assert tuple(c for c in changes if f'"/topics/offered/{c}"' in page) == offered
    assert "/delete-records" in console.get("/topics/offered/partitions/0")
    assert "/delete-records" not in erin.get("/topics/offered/partitions/0")
    status, text = erin.post("/topics/offered/delete", confirmed="offered")
    assert (status, "may not DELETE TOPIC" in text_of(text)) == (403, True)
    status, text = erin.post("/topics/offered/produce", value="of erin")
    assert (status, "Stored in partition 0, at offset 0" in text_of(text)) == (200, True)
    assert "of erin" in console.get("/topics/offered/records")


@pytest.mark.integration
def test_a_secured_broker_samples_for_the_plots_with_the_cluster_secret(
    secured: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONSOLE_SAMPLE_S", 0.05)
    monkeypatch.setattr(history, "PAUSE_FACTOR", 0.0)
    config = BrokerConfig.from_text(secured.brokers[0].settings)
    sessions = Sessions(secured.bootstrap, config, SystemClock())
    admin = HttpUser(Principal(USER, "admin"), "127.0.0.1", "PLAIN", password_of(secured))
    try:
        sessions.start()
        pages = sessions.of(admin).pages
        # Views add no points to these plots, besides the one of now.
        wait_until(lambda: len(json.loads(pages.cluster({})["rates"])[0]) > 3, what="three samples")
    finally:
        sessions.close()


@pytest.mark.integration
def test_names_cannot_add_markup_to_a_page(console: SecuredConsole) -> None:
    for name in (MARKUP, ATTRIBUTE):
        status, text = console.post(
            "/access/new-user", user=name, password=PASSWORD, repeated=PASSWORD
        )
        assert status == 200
        assert "&lt;" in text
        assert console.post("/access/new-rule", principal=name, resource_name=name)[0] == 200
        for path in ("/access?", "/access/new-rule?", "/access/check?resource_name=x&"):
            console.get(path + urlencode({"principal": name, "resource_name": name}))
        assert console.post("/access/delete-user", user=name)[0] == 200


@pytest.mark.integration
def test_changes_are_in_the_audit_as_those_of_the_signed_in_user(
    console: SecuredConsole, secured: Cluster
) -> None:
    fields = {"user": "audited", "password": PASSWORD, "repeated": PASSWORD}
    assert console.post("/access/new-user", **fields)[0] == 200
    options = {name.lower(): value for name, value in secured.environment.items()}
    arguments: Any = {name.removeprefix("raftlog_"): value for name, value in options.items()}
    with Consumer(secured.bootstrap, auto_offset_reset="earliest", **arguments) as consumer:
        wait_until(lambda: console.send(f"/topics/{AUDIT_TOPIC}")[0] == 200, what="the topic")
        consumer.assign([TopicPartition(AUDIT_TOPIC, 0)])
        events: list[str] = []

        def is_noted() -> bool:
            events.extend(
                (record.value or b"").decode() for record in consumer.poll(timeout_ms=500)
            )
            return any("alter_users" in each and "audited" in each for each in events)

        wait_until(is_noted, what="the event")
    event = next(json.loads(each) for each in events if "audited" in each)
    assert event["principal"] == "User:admin"
    assert not any(PASSWORD in each for each in events)


@pytest.mark.integration
def test_a_change_needs_the_token_of_its_user(console: SecuredConsole) -> None:
    for path in ("new-rule", "delete-rule", "new-user", "new-password", "delete-user"):
        status, text = console.send(f"/access/{path}", {"user": "admin"})
        assert (status, "reload it" in text) == (403, True), path
