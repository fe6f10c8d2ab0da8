"""The console in a real Chromium: `make console-test`.

With RAFTLOG_SCREENSHOTS=DIR, the pictures of docs/how-to/console.md are written there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgpack
import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.client.resumable import ResumableProducer
from raftlog.security.acl import Acl
from raftlog.security.quota import QuotaEntity
from raftlog.testing import Cluster
from raftlog.testing.cluster import free_ports, local_cluster
from tests.client.named import body

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = playwright.expect

pytestmark = [pytest.mark.browser, pytest.mark.integration]
WAIT_MS = 30_000
# What Chromium and htmx log when a broker does not answer.
EXPECTED = ("Failed to load resource", "htmx:")
MARKUP = "<script>document.title='taken'</script>"
ATTRIBUTE = '"><img src=x onerror="document.title=\'taken\'">'
LONG = "team.domain." + "x" * 237  # the longest name
PAGES = (
    *("/", "/broker?id=1", "/topics", "/topics/clicks", "/topics/clicks/partitions/0"),
    *("/topics/clicks/records", "/topics/clicks/records/0/1", "/new-topic", "/groups"),
    *("/group?name=billing", "/group/reset?name=billing&to=earliest", "/events"),
    *("/transactions", "/transaction?id=billing", f"/transaction?id={LONG}"),
    *("/topics/clicks/producers", "/topics/clicks/producers?partition=0"),
    *("/topics/clicks/check", "/topics/clicks/check?partition=0"),
    *("/topics/clicks/produce", "/topics/clicks/groups", f"/topics/{LONG}"),
    *(f"/topics/{LONG}/{page}" for page in ("partitions/0", "records", "records/0/0", "produce")),
    *(f"/topics/{LONG}/{page}" for page in ("groups", "producers", "check")),
    *(f"/group?name={LONG}", f"/group/reset?name={LONG}&to=earliest"),
    *("/access", "/access/new-rule", "/access/check", "/access/users"),
)
# Elements that scroll sideways, or end beyond the window, except drawings.
SIDEWAYS = """[...document.querySelectorAll("body *")].filter((e) => {
  if (e.closest(".uplot, svg, .skip, thead") || !e.getClientRects().length) return false;
  const scrolls = ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  return (scrolls && e.scrollWidth > e.clientWidth + 1)
    || e.getBoundingClientRect().right > innerWidth + 1;
}).map((e) => e.outerHTML.slice(0, 120))"""
SECURED_PAGES = (
    *("/access", "/access/new-rule", "/access/users"),
    "/access/check?principal=alice&resource_name=clicks",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers with consoles that can change the cluster."""
    made = local_cluster(tmp_path_factory.mktemp("cluster"), brokers=3)
    for broker, port in zip(made.brokers, free_ports(3), strict=True):
        broker.settings = {
            **broker.settings,
            "http.listen": f"127.0.0.1:{port}",
            "http.console.read.only": "false",
        }
    try:
        made.start()
        fill(made.bootstrap)
        yield made
    finally:
        made.close()


def fill(bootstrap: str) -> None:
    """Topics, records and groups, the same in each run."""
    chance = random.Random(7)
    topics = {
        LONG: 1,
        "clicks": 6,
        "orders": 3,
        "payments": 12,
        "page-views": 24,
        "empty": 1,
        "hostile": 1,
    }
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics([NewTopic(name, count) for name, count in topics.items()])
        for number in range(1_200):
            user = f"user-{chance.randrange(300)}"
            click = {"user": user, "page": chance.choice(["/", "/pricing", "/docs", "/login"])}
            headers = [("trace", b"%016x" % chance.getrandbits(64))]
            producer.send("clicks", json.dumps(click).encode(), user.encode(), headers)
            order = {"id": number, "total": chance.randrange(10_000) / 100}
            producer.send("orders", msgpack.packb(order), str(number).encode())
            producer.send("page-views", b"GET /item/%d 200" % number, user.encode())
        for value in (MARKUP, ATTRIBUTE, json.dumps({MARKUP: ATTRIBUTE})):
            hostile = [(ATTRIBUTE, MARKUP.encode())]
            producer.send("hostile", value.encode(), ATTRIBUTE.encode(), hostile)
        for value in (b"w" * 500, b'{"a": "%s"}' % (b"v" * 300)):
            producer.send(LONG, value, b"k" * 200, [("h" * 100, b"v" * 300)])
        producer.flush()
        for name in ("billing", LONG):
            with Producer(bootstrap, transactional_id=name) as job, job.transaction() as txn:
                txn.send("clicks", b"{}")
        for group, topic, share in (
            ("billing", "clicks", 0.4),
            ("search", "page-views", 0.9),
            (LONG, LONG, 0),
        ):
            ends = admin.offsets(topic)
            admin.alter_group_offsets(
                group,
                {TopicPartition(topic, p): int(share * (end or 0)) for p, end in ends.items()},
            )


def url_of(cluster: Cluster, broker: int = 1) -> str:
    settings = cluster.broker(broker).settings
    scheme = "https" if "authentication.required" in settings else "http"
    return f"{scheme}://{settings['http.listen']}"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path is not None, "install chromium: apt-get install chromium"
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker with authentication, users and rules."""
    made = local_cluster(
        tmp_path_factory.mktemp("secured"),
        brokers=1,
        settings={
            "http.listen": f"127.0.0.1:{free_ports(1)[0]}",
            "http.console.read.only": "false",
        },
        secure=True,
    )
    try:
        made.start()
        with admin_of(made) as admin:
            for name in ("alice", "billing-service"):
                admin.create_user(name, "correct horse battery")
            admin.create_acls(
                [
                    Acl("User:alice", "READ", "TOPIC", "clicks", host="10.0.0.1"),
                    Acl("User:alice", "READ", "GROUP", "alice-", "PREFIXED"),
                    Acl("User:billing-service", "ALL", "TOPIC", "billing.", "PREFIXED"),
                    Acl("User:billing-service", "DELETE", "TOPIC", "*", permission="DENY"),
                ]
            )
            admin.alter_quotas({QuotaEntity("alice"): {"producer_byte_rate": 1_000_000.0}})
        yield made
    finally:
        made.close()


def admin_of(secured: Cluster) -> Admin:
    """An admin client of the administrator."""
    options = {name.lower(): value for name, value in secured.environment.items()}
    arguments: Any = {name.removeprefix("raftlog_"): each for name, each in options.items()}
    return Admin(secured.bootstrap, **arguments)


@pytest.fixture
def administrator(secured: Cluster) -> dict[str, Any]:
    """Arguments of a browser's page for the administrator of ``secured``."""
    path = Path(secured.brokers[0].settings["admin.credentials.file"])
    name, _, password = path.read_text().strip().partition(":")
    return {
        "http_credentials": {"username": name, "password": password},
        "ignore_https_errors": True,
    }


@pytest.fixture
def page(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page; a script error, and a violation of the Content-Security-Policy, fail the test."""
    named = "administrator" in request.fixturenames
    arguments = request.getfixturevalue("administrator") if named else {}
    opened = chromium.new_page(viewport={"width": 1280, "height": 860}, **arguments)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console",
        lambda message: (
            problems.append(message.text)
            if message.type == "error" and not message.text.startswith(EXPECTED)
            else None
        ),
    )
    opened.on("dialog", lambda dialog: problems.append(dialog.message))
    opened.set_default_timeout(WAIT_MS)
    yield opened
    opened.close()
    assert problems == []


def picture(page: Any, name: str) -> None:
    folder = os.environ.get("RAFTLOG_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.mark.parametrize("path", PAGES)
def test_every_page_at_every_width_in_both_schemes(cluster: Cluster, page: Any, path: str) -> None:
    check_layout(cluster, page, path)


@pytest.mark.usefixtures("administrator")
@pytest.mark.parametrize("path", SECURED_PAGES)
def test_pages_of_a_secured_cluster_at_every_width(secured: Cluster, page: Any, path: str) -> None:
    check_layout(secured, page, path)
    for summary in page.locator("details > summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 800


def check_layout(cluster: Cluster, page: Any, path: str) -> None:
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 800)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 860})
        assert page.goto(url_of(cluster) + path).status == 200
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(18, 22, 27)") == (scheme == "dark")
        assert page.evaluate("typeof htmx + typeof uPlot") == "objectfunction"
    page.set_viewport_size({"width": 390, "height": 860})
    page.reload()
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(SIDEWAYS) == []


def test_records_of_strangers_run_no_code(cluster: Cluster, page: Any) -> None:
    with Consumer(cluster.bootstrap, group="strangers", client_id=ATTRIBUTE) as consumer:
        consumer.subscribe(["hostile"])
        consumer.poll(timeout_ms=5_000)
        for path in (
            *("/topics/hostile/records", "/topics/hostile/records/0/0", "/group?name=strangers"),
            *(f"/topics?q={quote(ATTRIBUTE)}", f"/topics/hostile/records?q={quote(MARKUP)}"),
        ):
            page.goto(url_of(cluster) + path)
            for summary in page.locator("details > summary").all():
                summary.click()
            assert "taken" not in page.title()
            assert page.locator("main script, main img").count() == 0
        page.goto(url_of(cluster) + "/topics/hostile/records")
        page.locator("summary").first.click()
        expect(page.locator(".record pre").first).to_contain_text("<img src=x")


def test_records_are_searched_opened_and_followed(cluster: Cluster, page: Any) -> None:
    page.goto(url_of(cluster) + "/topics/clicks/records")
    page.locator("summary").first.click()
    expect(page.locator(".record pre").last).to_contain_text('"user"')
    picture(page, "console-records")
    page.get_by_role("button", name="Follow").click()
    before = page.locator(".record").count()
    with Producer(cluster.bootstrap) as producer:
        producer.send("clicks", b'{"page": "/new"}', b"user-1", partition=0).result(30)
    expect(page.locator(".record").first).to_contain_text("/new")
    assert page.locator(".record").count() == before + 1
    page.keyboard.press("/")
    page.keyboard.type("/pricing")
    page.get_by_label("From").fill("earliest")
    page.keyboard.press("Enter")
    expect(page.locator(".records .cell").nth(1)).to_contain_text("/pricing")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    lines = download.value.path().read_text().splitlines()
    assert lines
    assert all("/pricing" in json.loads(line)["value"] for line in lines)
    page.set_viewport_size({"width": 390, "height": 860})
    expect(page.locator(".records .cell").nth(1)).to_contain_text("/pricing")
    assert page.locator(".records .cell").nth(1).bounding_box()["width"] > 250


def test_keys_go_to_pages(cluster: Cluster, page: Any) -> None:
    page.goto(url_of(cluster) + "/")
    for key, heading in (
        ("t", "Topics"),
        ("g", "Consumer groups"),
        ("e", "Events"),
        ("a", "Access rules"),
        ("c", "Cluster"),
    ):
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(heading)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    page.keyboard.press("p")
    expect(page.locator("#connection")).to_contain_text("paused")
    page.keyboard.press("p")
    expect(page.locator("#connection")).to_be_hidden()


def test_a_topic_is_created_changed_written_and_deleted(cluster: Cluster, page: Any) -> None:
    page.goto(url_of(cluster) + "/topics")
    page.get_by_role("link", name="Create topic").click()
    page.get_by_label("Name").fill("made-in-a-browser")
    page.get_by_role("button", name="Create topic").click()
    expect(page.locator("h1")).to_have_text("made-in-a-browser")
    page.get_by_label("retention.ms", exact=True).fill("60000")
    page.get_by_label("retention.ms", exact=True).press("Enter")
    expect(page.locator("tr.set code").first).to_have_text("retention.ms")
    page.get_by_label("cleanup.policy", exact=True).select_option("compact,delete")
    page.locator("tr", has_text="cleanup.policy").get_by_role("button", name="Save").click()
    expect(page.locator(".stats")).to_contain_text("compact,delete")
    page.get_by_role("link", name="Produce", exact=True).click()
    page.locator("[name=key]").fill("k")
    page.locator("[name=value]").fill("one\ntwo")
    page.get_by_role("button", name="Produce").click()
    page.locator(".findings.good a").click()
    expect(page.locator("pre").last).to_have_text("one\ntwo")
    page.goto(url_of(cluster) + "/topics/made-in-a-browser/partitions/0")
    led = page.locator(".stat dd").first.inner_text()
    page.get_by_role("button", name="Move").click()
    expect(page.locator(".stat dd").first).not_to_have_text(led)
    page.goto(url_of(cluster) + "/topics/made-in-a-browser")
    expect(page.locator("#groups .empty")).to_be_visible()
    page.get_by_text("Delete made-in-a-browser").click()
    page.get_by_label("Type its name").fill("made-in-a-browser")
    page.get_by_role("button", name="Delete this topic").click()
    expect(page.locator("h1")).to_have_text("Topics")
    expect(page.locator("tbody")).not_to_contain_text("made-in-a-browser")
    page.goto(url_of(cluster) + "/topics/clicks")
    picture(page, "console-topic")


def test_a_group_is_reset_after_its_preview(cluster: Cluster, page: Any) -> None:
    page.goto(url_of(cluster) + "/group?name=billing")
    expect(page.locator(".plot .uplot")).to_be_visible(timeout=WAIT_MS)  # after the second sample
    picture(page, "console-group")
    page.get_by_label("To", exact=True).fill("latest")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("h1")).to_have_text("Preview of the reset")
    expect(page.locator("td").last).to_contain_text("+")
    page.get_by_role("button", name="Reset 6 partitions").click()
    expect(page.locator(".stat dd").first).to_contain_text("0")


def test_producers_are_reached_from_a_topic(cluster: Cluster, page: Any) -> None:
    tp = TopicPartition("orders", 1)
    with ResumableProducer(cluster.bootstrap, name="nightly-import", epoch=3) as producer:
        assert producer.stored([tp]) == {tp: 0}
        producer.append(tp, body(b"x"))
        producer.flush()
    page.goto(url_of(cluster) + "/topics/orders")
    page.get_by_role("link", name="Producers").click()
    expect(page.locator("h1")).to_have_text("Producers")
    expect(page.locator("tbody")).to_contain_text("named")
    expect(page.locator("tbody")).to_contain_text("idempotent")
    picture(page, "console-producers")
    page.goto(url_of(cluster) + "/topics/orders/partitions/1")
    page.get_by_role("link", name="Producers").click()
    expect(page.locator("tbody tr")).to_have_count(2)


def test_copies_are_checked_while_the_page_is_open(cluster: Cluster, page: Any) -> None:
    page.goto(url_of(cluster) + "/topics/page-views")
    page.get_by_role("link", name="Check copies").click()
    page.get_by_role("button", name="Check the copies").click()
    expect(page.get_by_role("button", name="Check again")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator(".stat dd").first).to_contain_text("24 / 24")
    expect(page.locator("tbody tr")).to_have_count(72)
    expect(page.locator(".badge.good")).to_have_count(72)
    picture(page, "console-check")


@pytest.mark.usefixtures("administrator")
def test_a_rule_is_created_checked_and_deleted(secured: Cluster, page: Any) -> None:
    page.goto(url_of(secured) + "/access")
    picture(page, "console-access")
    page.get_by_role("link", name="Create rule").click()
    page.get_by_label("User A name").fill("carol")
    page.get_by_label("Name * for all").fill("orders")
    page.get_by_role("button", name="Create rule").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("User:carol")
    page.get_by_role("link", name="Check access").click()
    page.get_by_label("May the user").fill("carol")
    page.get_by_label("named").fill("orders")
    page.keyboard.press("Enter")
    expect(page.locator(".verdict")).to_contain_text("User:carol may READ TOPIC orders")
    picture(page, "console-check-access")
    page.goto(url_of(secured) + "/access?principal=carol")
    page.get_by_text("Delete", exact=True).click()
    page.get_by_role("button", name="Delete this rule").click()
    expect(page.locator("tbody")).not_to_contain_text("carol")


@pytest.mark.usefixtures("administrator")
def test_a_user_is_created_and_deleted(secured: Cluster, page: Any) -> None:
    page.goto(url_of(secured) + "/access/users")
    new = page.locator("form[action='/access/new-user']")
    new.get_by_label("Name").fill("dora")
    new.get_by_label("Password", exact=True).fill("correct horse battery")
    new.get_by_label("Repeat the password").fill("correct horse battery")
    new.get_by_role("button").click()
    row = page.locator("tbody tr", has_text="dora")
    expect(row).to_contain_text("SCRAM-SHA-512")
    assert "correct horse" not in page.content()
    picture(page, "console-users")
    row.get_by_text("Delete", exact=True).click()
    row.get_by_role("button", name="Delete this user").click()
    expect(page.locator("tbody")).not_to_contain_text("dora")


@pytest.mark.usefixtures("administrator")
def test_users_and_rules_of_strangers_run_no_code(secured: Cluster, page: Any) -> None:
    with admin_of(secured) as admin:
        for name in (MARKUP, ATTRIBUTE):
            admin.create_user(name, "correct horse battery")
        rules = [
            Acl(f"User:{MARKUP}", "READ", "TOPIC", ATTRIBUTE),
            Acl(f"User:{ATTRIBUTE}", "WRITE", "TRANSACTIONAL_ID", MARKUP),
        ]
        admin.create_acls(rules)
    for path in (
        *("/access", "/access/users", f"/access/users?q={quote(MARKUP)}"),
        f"/access?principal={quote(ATTRIBUTE)}&resource_name={quote(MARKUP)}",
        f"/access/new-rule?principal={quote(ATTRIBUTE)}",
        f"/access/check?principal={quote(MARKUP)}&resource_name={quote(ATTRIBUTE)}",
    ):
        page.goto(url_of(secured) + path)
        for summary in page.locator("details > summary").all():
            summary.click()
        assert "taken" not in page.title()
        assert page.locator("main script, main img").count() == 0
    page.goto(url_of(secured) + "/access")
    expect(page.locator("tbody")).to_contain_text("<img src=x")


def test_brokers_that_are_killed_while_the_page_is_open(cluster: Cluster, page: Any) -> None:
    page.goto(url_of(cluster) + "/")
    expect(page.locator(".findings.good")).to_be_visible()
    with Producer(cluster.bootstrap) as producer:
        for number in range(300):
            producer.send("page-views", b"x" * 100, partition=number % 24)
    expect(page.locator(".plot .uplot")).to_be_visible(timeout=WAIT_MS)  # after the second sample
    page.emulate_media(color_scheme="dark")
    picture(page, "console-cluster-dark")
    page.emulate_media(color_scheme="light")
    cluster.broker(3).kill()
    expect(page.locator(".findings")).to_contain_text("Broker 3", timeout=WAIT_MS)
    expect(page.locator(".findings")).to_contain_text("Start it.")
    expect(page.locator(".findings")).to_contain_text("not in sync", timeout=WAIT_MS)
    expect(page.locator(".findings")).not_to_contain_text("no leader", timeout=WAIT_MS)
    picture(page, "console-problem")
    page.goto(url_of(cluster) + "/topics/orders/check?partition=0")
    page.get_by_role("button", name="Check the copies").click()
    expect(page.get_by_role("button", name="Check again")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("tbody tr").first).to_contain_text("unverified")
    expect(page.locator(".badge.good")).to_have_count(2)
    page.goto(url_of(cluster) + "/events")
    expect(page.locator(".timeline li").first).to_be_visible()
    picture(page, "console-events")
    page.goto(url_of(cluster) + "/")
    cluster.broker(3).start()
    expect(page.locator(".findings.good")).to_be_visible(timeout=WAIT_MS)
    cluster.broker(1).kill()
    expect(page.locator("#connection")).to_contain_text("No response from this broker")
    cluster.broker(1).start()
    expect(page.locator("#connection")).to_be_hidden(timeout=WAIT_MS)
    expect(page.locator(".findings.good")).to_be_visible(timeout=WAIT_MS)
