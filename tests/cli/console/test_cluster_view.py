"""What the console knows of a cluster: descriptions, samples of the plots, checks of copies."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from raftlog import Admin, Producer, limits
from raftlog.client.administration.groups import GroupListing
from raftlog.client.descriptions import (
    ClusterDescription,
    CopyVerification,
    PartitionOverview,
    PartitionVerification,
    TopicListing,
)
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    UnknownGroupError,
    UnknownPartitionError,
)
from raftlog.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from raftlog_cli.console import pages as checks
from raftlog_cli.console.history import PAUSE_FACTOR, History, Sampler
from raftlog_cli.console.pages import Check, Checks, ClusterView, Pages
from tests.cli.console.conftest import Browser, Consoles
from tests.cli.console.test_app import check as check_markup
from tests.cli.console.test_pages import text_of
from tests.cli.test_health import UP, WELL
from tests.server.harness import FakeClock

# -- cluster view ----------------------------------------------------------------------------------

# One description for all viewers, for a time that depends on its cost.


@dataclass
class Described:
    """An admin client whose cluster gets 10 records per call, each of which takes ``cost_s``."""

    now: float = 100.0
    cost_s: float = 0.0
    calls: int = 0
    clusters: list[ClusterDescription] = field(default_factory=list)

    def summarize_cluster(self) -> ClusterDescription:
        self.calls += 1
        self.now += self.cost_s
        part = replace(WELL, high_watermark=10 * self.calls)
        return ClusterDescription("c", (UP,), 1, (part,))


def view_of(admin: Described) -> ClusterView:
    return ClusterView(cast(Any, admin), lambda: admin.now)


def test_a_description_serves_requests_for_a_second() -> None:
    admin = Described()
    view = view_of(admin)
    first = view.samples()
    assert first[1] is None
    admin.now += 0.9
    assert view.samples() == first
    assert admin.calls == 1
    admin.now += 0.1
    now, before = view.samples()
    assert before == first[0]
    assert now.at_s == 101.0


def test_an_expensive_description_serves_longer() -> None:
    admin = Described(cost_s=2.0)
    view = view_of(admin)
    view.samples()
    admin.now += 17.9
    view.samples()
    assert admin.calls == 1
    admin.now += 0.1
    view.samples()
    assert admin.calls == 2


def test_descriptions_of_topics_are_kept_until_something_changes() -> None:
    admin = Described()
    view = view_of(admin)
    values = iter(range(100))
    assert [view.kept("t", lambda: next(values)) for _ in range(2)] == [0, 0]
    assert view.kept("other", lambda: next(values)) == 1
    view.forget()
    assert view.kept("t", lambda: next(values)) == 2
    for number in range(limits.CONSOLE_DESCRIPTIONS_MAX):
        view.kept(str(number), lambda: None)
    assert view.kept("t", lambda: next(values)) == 3


# -- history ---------------------------------------------------------------------------------------

# Samples of the plots: of the cluster, of which groups, how many, and how often.


@dataclass
class Sampled:
    """An admin client whose cluster gets 10 records per call, and whose groups lag by as many
    records as the calls in each of two partitions; of another one, retention has deleted all
    records; no broker leads the topic ``gone``.
    """

    groups: list[str] = field(default_factory=lambda: ["b", "a"])
    calls: int = 0
    described: list[str] = field(default_factory=list)
    closed: bool = False

    def summarize_cluster(self) -> ClusterDescription:
        self.calls += 1
        self.described.clear()
        part = replace(WELL, high_watermark=10 * self.calls)
        return ClusterDescription("c", (UP,), 1, (part,))

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(name, "empty", 0, 1) for name in self.groups]

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        self.described.append(group)
        if group == "deleted since":
            raise UnknownGroupError
        offsets = {("t", 0): 9, ("t", 1): -1, ("t", 2): 100, ("t", 3): 3, ("gone", 0): 0}
        return {TopicPartition(*tp): OffsetAndMetadata(at) for tp, at in offsets.items()}

    def list_offsets(self, queries: dict[TopicPartition, str]) -> dict[TopicPartition, Any]:
        if TopicPartition("gone", 0) in queries:
            raise LeaderNotAvailableError
        places = {
            "earliest": {0: 0, 1: 0, 2: 0, 3: 40},
            "latest": {0: 9 + self.calls, 1: self.calls, 2: 7, 3: 40},
        }
        return {
            tp: OffsetAndTimestamp(places[place][tp.partition], -1) for tp, place in queries.items()
        }

    def close(self) -> None:
        self.closed = True


def sample(history: History, admin: Sampled, *times: int) -> None:
    for at in times:
        history.sample(cast(Any, admin), at, 1_000 + at)


def test_samples_are_there_before_the_first_view_and_views_add_none() -> None:
    history, admin = History(is_timed=True), Sampled(groups=["b", "deleted since", "a"])
    sample(history, admin, 0, 5, 15)
    rates = [(1_005, 2.0), (1_015, 1.0)]
    assert history.rates(None, 1_020) == rates
    assert history.rates(7.0, 1_020) == [*rates, (1_020, 7.0)]
    assert history.rates(None, 1_021) == rates
    lags = [(1_000, 2), (1_005, 4), (1_015, 6)]
    assert [history.lags("a", 9, at) for at in (1_018, 1_020)] == [
        [*lags, (1_018, 9)],
        [*lags, (1_020, 9)],
    ]


def test_without_a_timer_views_add_points() -> None:
    history = History(is_timed=False)
    assert history.lags("a", 1, 5) == [(5, 1)]
    assert history.lags("a", 2, 6) == [(5, 1), (6, 2)]
    assert [history.rates(3.0, at) for at in (5, 6)][1] == [(5, 3.0), (6, 3.0)]


def test_points_and_groups_are_bounded_and_viewed_groups_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CONSOLE_POINTS_MAX", 3)
    monkeypatch.setattr(limits, "CONSOLE_GROUPS_KEPT_MAX", 2)
    history, admin = History(is_timed=True), Sampled(groups=["d", "c", "b", "a"])
    sample(history, admin, 0, 1, 2, 3, 4)
    assert admin.described == ["a", "b"]
    assert len(history.rates(None, 9)) == 3
    assert history.lags("d", 0, 9) == [(9, 0)]
    sample(history, admin, 5)
    assert admin.described[0] == "d"
    assert len(admin.described) == 2
    assert history.lags("d", 0, 9) == [(1_005, 12), (9, 0)]
    admin.groups = ["c", "a"]
    sample(history, admin, 6)
    assert "d" not in admin.described
    assert history.lags("d", 0, 9) == [(9, 0)]  # created again, it is another group


def test_a_sampler_pauses_for_the_cost_of_a_sample_and_continues_after_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, admin = FakeClock(), Sampled()
    history = History(is_timed=True)
    sampler = Sampler(history, lambda: cast(Any, admin), clock)
    assert sampler.sample(cast(Any, admin)) == limits.CONSOLE_SAMPLE_S
    clock.now_ms += 15_000
    described = Sampled.summarize_cluster

    def slow(self: Sampled) -> ClusterDescription:
        clock.now_ms += 1_000
        return described(self)

    monkeypatch.setattr(Sampled, "summarize_cluster", slow)
    assert sampler.sample(cast(Any, admin)) == PAUSE_FACTOR
    assert len(history.rates(None, 9)) == 1

    def fail(self: Sampled) -> ClusterDescription:
        raise BrokerUnavailableError

    monkeypatch.setattr(Sampled, "summarize_cluster", fail)
    assert sampler.sample(cast(Any, admin)) == limits.CONSOLE_SAMPLE_S
    sampler.close()
    assert not admin.closed  # it was not started


# -- checks ----------------------------------------------------------------------------------------

# Checks of copies: step by step, of a fake cluster and of a real one.


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
