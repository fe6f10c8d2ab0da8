"""Samples of the plots: of the cluster, of which groups, how many, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.client.administration.groups import GroupListing
from raftlog.client.descriptions import ClusterDescription
from raftlog.errors import BrokerUnavailableError, LeaderNotAvailableError, UnknownGroupError
from raftlog.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from raftlog_cli.console.history import PAUSE_FACTOR, History, Sampler
from tests.cli.test_health import UP, WELL
from tests.server.harness import FakeClock


@dataclass
class Sampled:
    """An admin client whose cluster gets 10 records per call, and whose groups lag by as many
    records as the calls in each of two partitions; no broker leads the topic ``gone``.
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
        offsets = {("t", 0): 9, ("t", 1): -1, ("t", 2): 100, ("gone", 0): 0}
        return {TopicPartition(*tp): OffsetAndMetadata(at) for tp, at in offsets.items()}

    def list_offsets(self, queries: dict[TopicPartition, str]) -> dict[TopicPartition, Any]:
        if TopicPartition("gone", 0) in queries:
            raise LeaderNotAvailableError
        ends = {0: 9 + self.calls, 1: self.calls, 2: 7}
        assert set(queries.values()) == {"latest"}
        return {tp: OffsetAndTimestamp(ends[tp.partition], -1) for tp in queries}

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
