"""The console as a whole: requests to it, and the command that finds it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import threading
import webbrowser
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from raftlog import Admin, NewTopic, Producer, limits
from raftlog.config import Address, BrokerConfig
from raftlog.testing import cluster
from raftlog.testing.certificates import create
from raftlog.testing.cluster import free_ports
from raftlog_cli.console import app
from raftlog_cli.console.app import FILES, FOLDER, Console
from raftlog_cli.console.command import first_that_responds
from raftlog_cli.main import Failed
from tests.cli.conftest import Raftlog
from tests.cli.console.conftest import LOOPBACK, Browser, Consoles

pytestmark = pytest.mark.integration

# -- requests --------------------------------------------------------------------------------------

# Requests to the console: files, refusals, changes, and what no page may contain.


SSL = {"security_protocol": "SSL"}
PAGES = (
    *("/", "/broker?id=1", "/topics", "/new-topic", "/groups", "/transactions"),
    *("/events", "/access", "/access/new-rule", "/access/check", "/access/users"),
)


class Elements(HTMLParser):
    """Elements of a page that run code or load something, and attributes that do."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "script":
            self.scripts.append(values)
        if tag in {"style", "iframe", "object", "embed", "img", "b"}:
            self.problems.append(tag)
        self.problems += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.problems += [
            str(v) for n, v in attrs if n == "href" and str(v).startswith("javascript")
        ]
        if values.get("id"):
            self.ids.append(str(values["id"]))


def check(text: str) -> None:
    """The page keeps its own Content-Security-Policy, and its ids are unique."""
    found = Elements(text)
    assert found.problems == []
    assert all(str(script["src"]).startswith("/static/") for script in found.scripts)
    assert len(found.ids) == len(set(found.ids))


@pytest.mark.parametrize("path", PAGES)
def test_every_page_needs_no_inline_code(browser: Browser, path: str) -> None:
    response = browser.client.get(path)
    assert response.status_code == 200
    assert response.headers["content-security-policy"] == app.CONTENT_SECURITY_POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    check(response.text)


def test_files_are_the_vendored_ones_and_no_others(browser: Browser) -> None:
    for name in FILES:
        response = browser.client.get(f"/static/{name}")
        assert response.content == (FOLDER / "static" / name).read_bytes()
        assert "immutable" in response.headers["cache-control"]
    for name in ("../app.py", "vendor/vendored.json", "%2e%2e/app.py", "nothing"):
        assert browser.client.get(f"/static/{name}").status_code == 404


def test_vendored_files_are_what_the_list_says() -> None:
    folder = FOLDER / "static" / "vendor"
    listed = {"vendored.json"}
    for package in json.loads((folder / "vendored.json").read_text()):
        for name, file in package["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == file["sha256"], name
            listed.add(name)
    assert listed == {path.name for path in folder.iterdir()}


MARKUP = "<script>alert(1)</script>"
ATTRIBUTE = "\"><img src=x onerror='alert(1)'>"


def test_records_cannot_add_markup_to_a_page(browser: Browser, topic: str, bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        for value in (MARKUP, ATTRIBUTE, json.dumps({MARKUP: ATTRIBUTE}), f"[{MARKUP}"):
            producer.send(
                topic,
                value=value.encode(),
                key=(MARKUP + value).encode(),
                headers=[(ATTRIBUTE, MARKUP.encode()), (MARKUP, ATTRIBUTE.encode())],
                partition=0,
            )
    for path in (
        f"/topics/{topic}/records",
        f"/topics/{topic}/records?q=%3Cscript%3E",
        f"/topics/{topic}/records/0/3",
        f"/topics/{topic}/tail?at=0:0",
    ):
        text = browser.get(path)
        check(text)
        assert "&lt;script&gt;alert(1)" in text, path


def test_addresses_cannot_add_markup_to_a_page(browser: Browser, topic: str) -> None:
    for path in ("/topics?q=", "/groups?q=", "/events?q=", f"/topics/{topic}/records?q="):
        check(browser.get(path + MARKUP))
        check(browser.get(path + ATTRIBUTE))
    for path in ("/events?since=", "/group?name=", f"/topics/{topic}/records?from=", "/topics/"):
        response = browser.client.get(path + ATTRIBUTE)
        assert response.status_code in {400, 404}
        check(response.text)


def test_pages_of_errors_have_the_navigation(
    browser: Browser,
    topic: str,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, value=b"any")

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError

    missing = browser.client.get("/no/such/page")
    monkeypatch.setattr("raftlog_cli.console.records.decode", fail)
    failed = browser.client.get(f"/topics/{topic}/records")
    assert (missing.status_code, failed.status_code) == (404, 500)
    assert "The log of the broker has the reason" in failed.text
    assert "The cluster does not respond" not in failed.text
    assert "ZeroDivisionError" in caplog.text
    for page in (missing, failed):
        assert "<nav" in page.text
        assert page.headers["content-security-policy"]
    assert browser.client.get("/api/v1/no/such").text == "Not Found"


def test_other_hosts_are_refused_on_a_loopback_port(browser: Browser, consoles: Consoles) -> None:
    response = browser.client.get("/", headers={"host": "evil.example"})
    assert response.status_code == 421
    assert "evil.example" in response.text
    assert "content-security-policy" in response.headers
    response = browser.client.post("/new-topic", headers={"host": "evil.example"})
    assert response.status_code == 421
    for path in ("/topics/t/records.jsonl", "/api/v1/topics"):
        response = browser.client.get(path, headers={"host": "evil.example"})
        assert response.status_code == 421
    open_to_all = consoles(Address("10.0.0.1", 9200), read_only=True)
    assert open_to_all.client.get("/", headers={"host": "broker.example"}).status_code == 200


# -- changes ---------------------------------------------------------------------------------------


def test_a_topic_is_created_and_changed(browser: Browser, bootstrap: str) -> None:
    made = browser.post(
        "/new-topic",
        **{"name": "made-here", "partitions": "2", "cleanup.policy": "compact,delete"},
        **{"setting": "retention.ms", "value": "1.5 min", "flush.policy": ""},
    )
    assert made == (303, "/topics/made-here")
    altered = browser.post("/topics/made-here/settings", setting="segment.bytes", value="1MiB")
    assert altered == (303, "/topics/made-here?tab=settings")
    assert browser.post("/topics/made-here/partitions", partitions="3")[0] == 303
    with Admin(bootstrap) as admin:
        (described,) = admin.describe_topics(["made-here"])
        assert len(described.partitions) == 3
        assert described.config["cleanup.policy"] == "compact,delete"
        overrides = ("cleanup.policy", "retention.ms", "segment.bytes")
        assert described.config_overrides == overrides
        assert described.config["retention.ms"] == "90000"
        assert described.config["segment.bytes"] == "1048576"
        browser.post("/topics/made-here/settings", setting="segment.bytes", value="9", reset="1")
        assert admin.describe_topics(["made-here"])[0].config_overrides == overrides[:2]
        page = browser.get("/topics/made-here")
        assert "<option selected>compact,delete</option>" in page
        assert 'value="90s" aria-label="retention.ms" title="90,000 ms"></form>' in page
        assert '<span title="604,800,000 ms">7 days</span></td>' in page
        assert browser.post("/topics/made-here/delete", confirmed="made-her")[0] == 400
        assert "made-here" in admin.list_topics()
        assert browser.post("/topics/made-here/delete", confirmed="made-here")[1] == "/topics"
        assert "made-here" not in admin.list_topics()


def test_a_change_that_is_not_possible_says_why(browser: Browser, topic: str) -> None:
    for path, fields, status, noted in (
        ("/new-topic", {"name": topic}, 409, "exists"),
        ("/new-topic", {"name": "a b"}, 400, "a b"),
        ("/new-topic", {"name": "t", "partitions": "x"}, 400, "partitions"),
        (f"/topics/{topic}/settings", {"setting": "no.such", "value": "1"}, 400, "no.such"),
        (f"/topics/{topic}/partitions", {"partitions": "1"}, 400, "partitions"),
    ):
        code, text = browser.post(path, **fields)
        assert (code, noted in text) == (status, True), (path, fields, text)
        check(text)


CHANGES = (
    *("/new-topic", "/topics/t/settings", "/topics/t/partitions", "/group/reset"),
    *("/topics/t/delete", "/topics/t/produce", "/topics/t/partitions/0/delete-records"),
    "/topics/t/partitions/0/leader",
    *("/access/new-rule", "/access/delete-rule", "/access/new-user", "/access/new-password"),
    "/access/delete-user",
)


@pytest.mark.parametrize("path", [*CHANGES, "/topics/t/check"])
def test_a_change_needs_the_token_and_the_origin(browser: Browser, path: str) -> None:
    fields = {"name": "forged", "token": browser.token()}
    own = {"origin": f"http://{LOOPBACK}"}
    for data, headers in (
        ({**fields, "token": "guess"}, own),
        ({"name": "forged"}, own),
        (fields, {"origin": "http://evil.example"}),
        (fields, {**own, "sec-fetch-site": "cross-site"}),
    ):
        response = browser.client.post(path, data=data, headers=headers)
        assert response.status_code == 403, (data, headers)
    assert browser.client.get("/topics/forged").status_code == 404


def test_a_read_only_console_changes_nothing(consoles: Consoles, topic: str) -> None:
    console = consoles(read_only=True)
    for path in (
        *(f"/topics/{topic}", f"/topics/{topic}/partitions/0", f"/topics/{topic}/produce"),
        *("/topics", "/new-topic"),
    ):
        text = console.get(path)
        check(text)
        assert '<form method="post"' not in text
        assert 'name="token"' not in text
    # The page of a check has a valid token, because a check changes nothing.
    found = re.search(r'name="token" value="([^"]+)"', console.get(f"/topics/{topic}/check"))
    assert found is not None
    for path in CHANGES:
        response = console.client.post(
            path,
            data={"token": found[1], "name": "x", "user": "x", "principal": "x"},
            headers={"origin": str(console.client.base_url)},
        )
        assert (response.status_code, "http.console.read.only=false" in response.text) == (
            403,
            True,
        ), path
    console.get("/topics/x", 404)


def test_forms_are_bounded(browser: Browser) -> None:
    big = {"name": "x" * (limits.CONSOLE_FORM_BYTES_MAX + 1)}
    assert browser.client.post("/new-topic", data=big).status_code == 413
    many = "&".join(f"f{n}=1" for n in range(limits.CONSOLE_FORM_FIELDS_MAX + 1))
    assert browser.client.post("/new-topic", content=many).status_code == 400
    assert browser.client.post("/new-topic", content=b"\xff=\xff").status_code == 400


def test_the_console_of_a_broker_with_tls(tmp_path: Path) -> None:
    certificates = create(tmp_path)
    with cluster(brokers=1, settings=certificates.broker_settings()) as running:
        config = BrokerConfig.from_text(running.brokers[0].settings)
        console = Console(running.bootstrap, config)
        try:
            with TestClient(Starlette(routes=console.routes())) as client:
                assert "Healthy." in client.get("/").text
                with Admin(running.bootstrap, **SSL, ssl_cafile=config.tls_ca_file) as admin:
                    admin.create_topics([NewTopic("t")])
                assert "no records yet" in client.get("/topics/t/records").text
                assert client.get("/api/v1/topics").json() == ["t"]
        finally:
            asyncio.run(console.close())


def test_a_cluster_that_does_not_answer_is_a_page(consoles: Consoles) -> None:
    from raftlog.testing.cluster import free_port

    browser = consoles(bootstrap=f"127.0.0.1:{free_port()}")
    response = browser.client.get("/")
    assert response.status_code == 503
    assert "The cluster does not respond" in response.text
    assert '<a href="/">Try again</a>' in response.text
    check(response.text)
    status, text = browser.post("/topics/t/delete", confirmed="t")
    assert (status, "Try again" in text) == (503, False), "no page has this address"


# -- command ---------------------------------------------------------------------------------------

# `raftlog console`: which URL it finds.


@pytest.fixture(scope="module")
def served() -> Iterator[int]:
    """The HTTP port of a broker."""
    (port,) = free_ports(1)
    with cluster(brokers=1, settings={"http.listen": f"127.0.0.1:{port}"}):
        yield port


def test_the_url_of_a_broker_that_responds(
    served: int, raftlog: Raftlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    (down,) = free_ports(1)
    brokers = [
        {"id": n, "address": "127.0.0.1:1", "http": f"http://127.0.0.1:{port}"}
        for n, port in enumerate((down, served))
    ]
    (tmp_path / "cluster.json").write_text(json.dumps({"brokers": brokers}))
    url = f"http://127.0.0.1:{served}/"
    assert raftlog("console", "--data-dir", tmp_path, "--no-browser", "--json").json == {"url": url}
    assert opened == []
    ran = raftlog("console", "--url", url)
    assert (ran.status, ran.out.decode()) == (0, f"{url}\n")
    assert opened == [url]


def test_a_console_that_cannot_be_found(raftlog: Raftlog, tmp_path: Path) -> None:
    ran = raftlog("console", "--data-dir", tmp_path, "--no-browser")
    assert (ran.status, "Pass its --data-dir, or --url" in ran.err) == (1, True)
    (down,) = free_ports(1)
    ran = raftlog("console", "--url", f"http://127.0.0.1:{down}", "--no-browser")
    assert (ran.status, "no broker responds" in ran.err) == (1, True)
    assert raftlog("console", "--url", "file:///etc/passwd").status == 2


def test_a_port_that_is_not_http_is_no_console() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Failed, match="not that of a broker's http"):
            first_that_responds([url])
        answering.join()
