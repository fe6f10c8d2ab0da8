"""What the pages show of a real cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import msgpack
import pytest

from raftlog import Admin, Consumer, Producer, TopicPartition, limits
from raftlog.client.administration.groups import GroupDescription, GroupListing, PartitionLag
from raftlog.client.descriptions import BrokerDescription, DiskDescription
from raftlog.errors import InvalidRequestError
from raftlog.testing import wait_until
from raftlog_cli.console.pages import ClusterView, Pages, change, fullest, leader_skew, points
from tests.cli.conftest import Raftlog
from tests.cli.console.conftest import Browser, Consoles

integration = pytest.mark.integration


def text_of(html: str) -> str:
    """The text of a page, on one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", html.partition("<main")[2]).split())


def test_values_of_pages() -> None:
    assert [change(None, 5), change(5, 5), change(5, 2), change(5, 2_005)] == [
        *("new", "none", "-3", "+2,000")
    ]
    rows = [{"state": "up", "leads": 7}, {"state": "up", "leads": 4}, {"state": "down", "leads": 0}]
    assert (leader_skew(rows), leader_skew([])) == (3, 0)
    assert points([(1.4, 2), (3.0, 4.26)]) == "[[1, 3], [2, 4.3]]"


@integration
def test_avro_is_decoded_with_the_schemas_of_the_broker(
    consoles: Consoles, topic: str, bootstrap: str, tmp_path: Path
) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "color", "type": "string"}]}
    (tmp_path / f"{topic}-value.avsc").write_text(json.dumps(schema))
    with Producer(bootstrap) as producer:
        producer.send(topic, value=b"\x08blue", partition=0)
        producer.send(topic, value=b"\x06red", partition=0)
    browser = consoles(avro_schemas=str(tmp_path))
    page = f"/topics/{topic}/records"
    assert "{ &#34;color&#34;: &#34;blue&#34; }" in text_of(browser.get(page))
    found = text_of(browser.get(f"{page}?q=color%3DRED&in=JSON+field"))
    assert "&#34;red&#34;" in found
    assert "&#34;blue&#34;" not in found
    one = browser.get(f"/topics/{topic}/records/0/0?as=avro")
    assert "5 B, avro" in text_of(one)
    assert "<option selected>avro</option>" in one


class Topics1:
    """An admin client that records changes of topics; two of three groups read ``clicks``."""

    def __init__(self) -> None:
        self.changes: list[Any] = []
        self.described: list[str] = []

    def delete_records(self, before: dict[TopicPartition, int]) -> None:
        self.changes.append(before)

    def transfer_leader(self, *values: Any) -> None:
        self.changes.append(values)

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(name, "stable", 0, 1) for name in ("a", "b", "c")]

    def describe_groups(self, names: list[str]) -> list[GroupDescription]:
        self.described += names
        lags = {"a": {"clicks": 2}, "b": {"orders": 7}, "c": {"clicks": 5, "orders": 9}}
        return [
            GroupDescription(
                *(name, "stable", 1, "", 1),
                partitions=tuple(
                    PartitionLag(topic, 0, 0, lag=lag) for topic, lag in lags[name].items()
                ),
            )
            for name in names
        ]


def pages_of(admin: Topics1) -> Pages:
    unused: Any = None
    view = ClusterView(cast(Any, admin), lambda: 0.0)
    arguments: Any = {"make_producer": unused, "is_secured": False}
    return Pages(cast(Any, admin), view, unused, unused, unused, **arguments)


def test_records_are_deleted_before_an_offset_and_leaders_moved() -> None:
    admin = Topics1()
    pages, form = pages_of(admin), {"name": "clicks", "partition": "3"}
    assert pages.delete_records({**form, "before": "40"}) == "/topics/clicks/partitions/3"
    assert pages.move_leader({**form, "to": "2"}) == "/topics/clicks/partitions/3"
    changes = [{TopicPartition("clicks", 3): 40}, ("clicks", 3, 2)]
    assert admin.changes == changes
    for before in ("", " ", "-1"):  # -1 would delete all records
        with pytest.raises(InvalidRequestError, match=r"^before: "):
            pages.delete_records({**form, "before": before})
    assert admin.changes == changes


def test_the_groups_of_a_topic_have_their_lag_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Topics1()
    pages = pages_of(admin)
    shown = pages.topic_groups({"name": "clicks"})
    assert [(group.group, group.lag) for group in shown["page"].rows] == [("c", 5), ("a", 2)]
    monkeypatch.setattr(limits, "CONSOLE_GROUPS_DESCRIBED_MAX", 2)
    shown = pages_of(admin).topic_groups({"name": "orders"})
    assert (shown["page"].total, shown["omitted"]) == (1, 1)


@integration
def test_a_record_is_produced(browser: Browser, topic: str) -> None:
    page = f"/topics/{topic}/produce"
    record = {"key": "k<1>", "value": "a\r\nb", "headers": "trace=1=2\r\n\r\nkind=test"}
    assert browser.post(page, **record, partition="1") == (
        303,
        f"{page}?partition=1&stored=1&offset=0",
    )
    assert f'href="/topics/{topic}/records/1/0"' in browser.get(f"{page}?stored=1&offset=0")
    text = text_of(browser.get(f"/topics/{topic}/records/1/0"))
    for shown in ("Key 4 B", "Value 3 B", "trace 1=2 kind test", "k&lt;1&gt;"):
        assert shown in text
    assert browser.post(page, value="x", tombstone="1", partition="0")[0] == 303
    text = text_of(browser.get(f"/topics/{topic}/records/0/0"))
    assert "a tombstone" in text
    assert "Key 0 B, null" in text
    for fields, noted in (({"headers": "x"}, "headers: "), ({"partition": "9"}, "partition 9")):
        status, text = browser.post(page, **fields)
        assert (status // 100, noted in text) == (4, True), text


def test_the_fullest_disk_has_the_least_share_of_free_space() -> None:
    def broker(number: int, free: int, size: int) -> BrokerDescription:
        disk = DiskDescription(free, size, "normal", "") if size else None
        return BrokerDescription(number, "h", 1, None, live=True, problem="", disk=disk)

    brokers = [broker(1, 50, 100), broker(2, 60, 200), broker(3, 0, 0), broker(4, 40, 50)]
    assert fullest(brokers) == brokers[1]
    assert fullest(brokers[2:3]) is None


@integration
def test_the_cluster_and_its_broker(browser: Browser, topic: str) -> None:
    text = text_of(browser.get("/"))
    assert "Healthy." in text
    assert "Brokers 1 / 1 up" in text
    assert re.search(r"Fullest disk [\d.]+ \S+ free of [\d.]+ \S+, broker 1 ", text)
    assert "Disk free" in text
    # The list is that of a description, which is kept for a second.
    wait_until(lambda: f"{topic}:0" in text_of(browser.get("/broker?id=1")), what="the new topic")
    assert "Broker 1 at" in text_of(browser.get("/broker?id=1"))
    assert "no broker 9" in browser.get("/broker?id=9", 400)


@integration
def test_topics_are_searched_and_described(browser: Browser, topic: str) -> None:
    search = f"/topics?q={topic[5:].upper()}"
    # The list is that of a description, which is kept for a second.
    wait_until(lambda: f"{topic} 2 0" in text_of(browser.get(search)), what="the new topic")
    text = text_of(browser.get(search))
    assert " 1 topic " in text
    assert "No topic has “zzz” in its name" in text_of(browser.get("/topics?q=zzz"))
    html = browser.get(f"/topics/{topic}")
    assert 'name="setting" value="retention.ms"' in html
    assert "2 partitions" in text_of(html)
    text = text_of(browser.get(f"/topics/{topic}/partitions/1"))
    assert f"{topic}:1 is led by broker 1" in text
    browser.get("/topics/no-such", 404)
    browser.get(f"/topics/{topic}/partitions/9", 404)


@integration
def test_partitions_of_a_topic_are_shown_in_pages(browser: Browser, topic: str) -> None:
    browser.post(f"/topics/{topic}/partitions", partitions="250")
    for page, first, last in (("", 1, 100), ("?page=2", 101, 200), ("?page=99", 201, 250)):
        html = browser.get(f"/topics/{topic}{page}")
        assert f"{first}\N{EN DASH}{last} of 250 partitions" in text_of(html)
        assert html.count(f'href="/topics/{topic}/partitions/') == last - first + 1
    assert 'min="251"' in html
    assert f"{topic}:249 is led by broker 1" in text_of(
        browser.get(f"/topics/{topic}/partitions/249")
    )


@integration
def test_records_are_read_searched_followed_and_downloaded(
    browser: Browser, topic: str, bootstrap: str
) -> None:
    page = f"/topics/{topic}/records"
    assert "This topic has no records yet." in text_of(browser.get(page))
    with Producer(bootstrap) as producer:
        for number in range(60):
            producer.send(topic, value=b'{"n": %d}' % number, key=b"k", partition=0)
        producer.send(topic, value=msgpack.packb({"packed": True}), partition=1)
    html = browser.get(page + "?partition=0&n=25")
    assert 'id="r0-59"' in html
    assert 'id="r0-34"' not in html
    older = re.search(r'href="\?([^"]+)" rel="prev"', html)
    assert older is not None
    html = browser.get(f"{page}?{older[1].replace('&amp;', '&')}")
    assert 'id="r0-10"' in html
    assert 'rel="next">Newer' in html
    text = text_of(browser.get(page + "?from=earliest&q=%22n%22%3A+5"))
    assert "61 records read" in text
    assert 'id="r0-5"' in browser.get(page + "?from=earliest&q=%22n%22%3A+5")
    assert "None of the 61 records read contains “zzz”" in text_of(
        browser.get(page + "?from=earliest&q=zzz")
    )
    html = browser.get(f"/topics/{topic}/tail?at=0:58,1:1")
    assert "at=0:60,1:1" in html
    assert html.index('id="r0-59"') < html.index('id="r0-58"')
    assert "packed" in text_of("<main" + browser.get(f"/topics/{topic}/records/1/0"))
    assert "no record at offset 99" in browser.get(f"/topics/{topic}/records/1/99", 400)
    response = browser.client.get(f"{page}.jsonl?partition=0&from=55")
    assert response.text.count("\n") == 5
    assert (
        response.headers["content-disposition"] == f'attachment; filename="{topic}-0-55-59.jsonl"'
    )
    assert response.headers["x-raftlog-next"] == ""
    browser.get(page + "?from=never", 400)
    browser.get("/topics/no-such/records", 404)
    browser.get("/topics/no-such/records.jsonl", 404)


def consumer_of(bootstrap: str, group: str) -> Consumer:
    return Consumer(bootstrap, group=group, client_id="<i>id</i>", auto_commit=False)


@integration
def test_a_long_name_is_complete_in_its_title(
    browser: Browser, raftlog: Raftlog, bootstrap: str
) -> None:
    name = "n" * 200
    assert raftlog("topic", "create", name, "--bootstrap", bootstrap).status == 0
    link = f'<a class="cut" title="{name}" href="/topics/{name}">{name}</a>'
    wait_until(lambda: link in browser.get("/topics?q=nnnn"), what="the next description")


@integration
def test_a_group_is_described_and_reset_after_a_preview(
    browser: Browser, consoles: Consoles, topic: str, bootstrap: str
) -> None:
    name = f"team/{topic[5:]} <i>&"
    with Producer(bootstrap) as producer:
        for _ in range(10):
            producer.send(topic, value=b"v", partition=0)
    tp = TopicPartition(topic, 0)
    with Admin(bootstrap) as admin, consumer_of(bootstrap, name) as used:
        used.subscribe([topic])
        used.poll(timeout_ms=1_000)
        used.commit({tp: 4})
        page = f"/group?name={quote(name, safe='')}"
        html = browser.get(page)
        assert "<i>" not in html
        assert "&lt;i&gt;id&lt;/i&gt;" in html
        assert f"{topic}:0 4 10 6" in text_of(html)
        assert "Lag 6" in text_of(html)
        assert text_of(html).count("&lt;i&gt;id&lt;/i&gt; 127.0.0.1") == 3  # partitions, members
        listed = browser.get("/groups?q=TEAM")
        assert "team/" in listed
        assert "<i>" not in listed
        preview = f"/group/reset?name={quote(name, safe='')}&to=earliest"
        assert "The group has 1 member." in text_of(browser.get(preview))
        fields = {"name": name, "to": "earliest", "topic": ""}
        status, text = browser.post("/group/reset", **fields)
        assert (status, "Stop its consumers" in text) == (409, True)
        used.close()
        html = browser.get(preview)
        assert f"{topic}:0 4 0 -4" in text_of(html)
        assert admin.group_offsets(name)[tp].offset == 4
        assert "raftlog group reset" in consoles(read_only=True).get(preview)
        absolute = browser.get(f"{preview.removesuffix('earliest')}@-1h")
        assert re.search(r'name="to" value="@\d+"', absolute)
        status, address = browser.post("/group/reset", **fields)
        assert (status, address.startswith("/group?name=team")) == (303, True)
        assert admin.group_offsets(name)[tp].offset == 0
    browser.get("/group?name=no-such", 404)
    browser.get(f"/group/reset?name={quote(name, safe='')}&to=never", 400)


@integration
def test_events_are_listed(browser: Browser) -> None:
    assert "No event matches" in text_of(browser.get("/events?kind=zzz"))
    browser.get("/events?since=never", 400)
