"""One description for all viewers, for a time that depends on its cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from raftlog import limits
from raftlog.client.descriptions import ClusterDescription
from raftlog_cli.console.pages import ClusterView
from tests.cli.test_health import UP, WELL


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
