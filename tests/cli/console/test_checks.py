"""Checks of copies: step by step, of a fake cluster and of a real one."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from raftlog import Admin, Producer, limits
from raftlog.client.descriptions import (
    ClusterDescription,
    CopyVerification,
    PartitionOverview,
    PartitionVerification,
    TopicListing,
)
from raftlog.errors import InvalidRequestError, UnknownPartitionError
from raftlog_cli.console import pages as checks
from raftlog_cli.console.pages import Check, Checks, Pages
from tests.cli.console.conftest import Browser, Consoles
from tests.cli.console.test_app import check as check_markup
from tests.cli.console.test_pages import text_of
from tests.cli.test_health import WELL

END = 9


class Copies:
    """An admin client whose brokers verify 4 of 9 offsets per call."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = tuple(
            replace(WELL, topic="t", partition=number, replicas=(1, 2, 3), leader=2)
            for number in range(partitions)
        )
        self.calls = 0
        self.gate: threading.Event | None = None
        self.begun = threading.Event()
        self.results: dict[int, CopyVerification] = {}  # of broker 3, by partition

    def find_topics(self, names: list[str]) -> dict[str, TopicListing]:
        assert names == ["t"]
        return {"t": TopicListing("t", "id", len(self.partitions))}

    def describe_cluster(self, names: list[str]) -> ClusterDescription:
        assert names == ["t"]
        return ClusterDescription("c", (), 1, tuple(reversed(self.partitions)))

    def verify_copies(
        self, partition: PartitionOverview, before: PartitionVerification | None, *, time_ms: int
    ) -> PartitionVerification:
        assert 0 <= time_ms <= limits.CONSOLE_CHECK_STEP_MS
        self.calls += 1
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(10)
        reached = 4 if before is None else min(before.copies[0].end_offset + 4, END)
        copies = tuple(
            CopyVerification(broker, 0, reached, is_partial=reached < END) for broker in (1, 2, 3)
        )
        if reached == END and partition.partition in self.results:
            copies = (*copies[:2], self.results[partition.partition])
        return PartitionVerification(partition.topic, partition.partition, END, copies)


def started(admin: Copies) -> Check:
    return Checks(cast(Admin, admin)).start("t", None)


def step(check: Check, admin: Copies) -> None:
    check.step(cast(Admin, admin))


def pages_of(admin: Copies) -> Pages:
    unused: Any = [None] * 4
    return Pages(cast(Admin, admin), *unused, make_producer=unused[0], is_secured=False)


def test_a_step_ends_after_its_time_and_the_next_one_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Copies(2)
    check = started(admin)
    assert (check.done, check.is_running, check.rows()) == (0, True, [])
    monkeypatch.setattr(limits, "CONSOLE_CHECK_STEP_MS", 0)
    step(check, admin)
    assert admin.calls == 0  # no time
    monkeypatch.setattr(limits, "CONSOLE_CHECK_STEP_MS", 60_000)
    check.partitions[:] = check.partitions[:1]
    step(check, admin)
    assert (admin.calls, check.done, check.is_running) == (3, 1, False)
    step(check, admin)
    assert admin.calls == 3


def test_a_partial_result_is_shown_and_continued() -> None:
    admin = Copies()
    check = started(admin)
    found = admin.verify_copies(check.partitions[0], None, time_ms=0)
    check._results[:] = [found]
    assert (check.done, check.is_running) == (0, True)
    assert [(row.state, row.up_to, round(row.share, 2)) for row in check.rows()] == [
        ("partial", 4, 0.44)
    ] * 3
    step(check, admin)
    assert (check.done, admin.calls) == (1, 3)
    assert [(row.state, row.is_leader) for row in check.rows()] == [
        ("equal", False),
        ("equal", True),
        ("equal", False),
    ]


def test_the_worst_copies_are_first() -> None:
    admin = Copies(4)
    admin.results = {
        1: CopyVerification(3, 0, 5, damage="a flipped bit"),
        2: CopyVerification(3, 0, END, differs_at=7),
        3: CopyVerification(3, 0, 0, problem="broker 3 is unreachable"),
    }
    check = started(admin)
    step(check, admin)
    rows = check.rows()
    assert [(row.partition, row.state, row.up_to) for row in rows[:4]] == [
        (1, "corrupt", 5),
        (2, "differs", 7),
        (3, "unverified", 0),
        (0, "equal", END),
    ]
    assert "a flipped bit" in rows[0].detail
    assert rows[2].detail == "broker 3 is unreachable"
    assert len(rows) == 12


def test_one_step_runs_at_a_time() -> None:
    admin = Copies()
    check = started(admin)
    admin.gate = threading.Event()
    first = threading.Thread(target=step, args=(check, admin))
    first.start()
    assert admin.begun.wait(30)
    step(check, admin)  # returns at once
    assert admin.calls == 1
    admin.gate.set()
    first.join(30)
    assert not check.is_running


def test_a_stopped_check_does_not_continue() -> None:
    admin = Copies()
    pages = pages_of(admin)
    form = {"name": "t", "action": "start", "partition": "0"}
    pages.checks.start("t", 0)
    assert checks.continue_check(pages, {**form, "action": "stop"}) == "/topics/t/check?partition=0"
    checks.continue_check(pages, {**form, "action": "continue"})
    assert admin.calls == 0
    checks.continue_check(pages, form)
    assert admin.calls == 3
    shown = checks.check(pages, {"name": "t", "partition": "0"})
    assert (shown["counts"]["equal"], shown["page"].total) == (3, 3)
    assert checks.check(pages, {"name": "t"})["check"] is None


def test_wrong_values_are_refused() -> None:
    pages = pages_of(Copies())
    with pytest.raises(UnknownPartitionError):
        checks.continue_check(pages, {"name": "t", "action": "start", "partition": "1"})
    for wrong in ({"action": "destroy"}, {"partition": "x"}):
        with pytest.raises(InvalidRequestError):
            checks.continue_check(pages, {"name": "t", **wrong})
    assert checks.continue_check(pages, {"name": "t", "page": "2"}) == "/topics/t/check?page=2"


def test_few_checks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONSOLE_CHECKS_MAX", 2)
    kept = Checks(cast(Admin, Copies(3)))
    for number in (0, 1, 0, 2):
        kept.start("t", number)
    assert [kept.find("t", number) is not None for number in range(3)] == [True, False, True]


@pytest.mark.integration
@pytest.mark.parametrize("read_only", [False, True])
def test_a_read_only_console_checks_copies(
    consoles: Consoles, topic: str, bootstrap: str, read_only: bool
) -> None:
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2).result(30)
    browser: Browser = consoles(read_only=read_only)
    path = f"/topics/{topic}/check"
    html = browser.get(path)
    check_markup(html)
    assert f"No check of {topic} has run" in text_of(html)
    own = {"origin": str(browser.client.base_url)}
    refused = browser.client.post(path, data={"action": "start"}, headers=own)
    assert (refused.status_code, "reload it" in refused.text) == (403, True)
    fields = {"token": html.partition('name="token" value="')[2].partition('"')[0]}
    response = browser.client.post(path, data={**fields, "action": "start"}, headers=own)
    assert response.status_code == 200
    check_markup(response.text)
    text = text_of(response.text)
    assert "Partitions 2 / 2 checked" in text
    assert f"{topic}:0 1 leader 0 10 equal" in text
    assert f"{topic}:1 1 leader 0 10 equal" in text
    assert "Check again" in text
    one = browser.client.post(
        path, data={**fields, "action": "start", "partition": "1"}, headers=own
    )
    assert "Partitions 1 / 1" in text_of(one.text)
    browser.get("/topics/no-such/check", 404)
    browser.get(f"{path}?partition=x", 400)
    browser.get(f"{path}?partition=2", 404)
    missing = {**fields, "action": "start"}
    response = browser.client.post("/topics/no-such/check", data=missing, headers=own)
    assert response.status_code == 404
