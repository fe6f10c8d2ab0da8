"""Partitions in numbers, and the reasons why a broker is not ready or must not be restarted."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.replication.partition_state import PartitionState
from raftlog.server.http.collect import Standing, Survey, readiness
from raftlog.server.partition import Partition
from raftlog.types import TopicPartition
from tests.running import runs
from tests.server.cluster.fake import Scene, play, state_of, write

SOUND = Standing(
    problem="", is_stopping=False, is_disk_hung=False, disk_space="", others_decide=True
)
T0 = TopicPartition("t", 0)


def of(
    state: PartitionState | None, host: Partition | None = None, *, is_live: bool = True
) -> Survey:
    survey = Survey(1)
    survey.add(T0, state, host, is_leader_live=is_live, now=0.0)
    return survey


@runs(play)
async def test_a_led_partition_is_measured_by_its_isr(s: Scene) -> None:
    for isr, numbers in (
        ([1, 2, 3], (0, 0, 0)),
        ([1, 2], (1, 1, 0)),
        ([1], (1, 0, 1)),
    ):
        state = state_of(1, 2, 3, leader=1, isr=isr, min_isr=2)
        log = s.log()
        write(log, b"a", b"b")
        host = s.host(log)
        host.lead(state, 1, lag_max_seconds=10)
        found = of(state, host)
        assert (found.under_replicated, found.at_min_isr, found.under_min_isr) == numbers
        assert (found.leading, found.following, found.offline) == (1, 0, 0)
        assert found.topics["t"].size_bytes == log.size_bytes > 0
        assert {f: lag.offsets for f, lag in found.followers.items()} == {2: 2, 3: 2}


@runs(play)
async def test_a_follower_measures_its_copy_only(s: Scene) -> None:
    state = state_of(1, 2, 3, leader=2, isr=[2], min_isr=2)
    host = s.host()
    host.follow(2, 1)
    found = of(state, host)
    assert (found.leading, found.following, found.under_replicated) == (0, 1, 0)
    assert found.out_of_sync == [T0]
    assert found.followers == {}


def test_a_partition_without_a_live_leader_is_offline() -> None:
    state = state_of(2, 3, 4, witnesses=[1], leader=2)
    assert of(None).offline == 1
    assert of(state, is_live=False).offline == 1
    found = of(state)
    assert (found.offline, found.witnessing, found.out_of_sync) == (0, 1, [])


def test_topics_over_the_limit_are_counted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_TOPICS_MAX", 1)

    async def test(s: Scene) -> None:
        survey = Survey(1)
        for topic in ("a", "b"):
            for partition in (0, 1):
                where = TopicPartition(topic, partition)
                survey.add(where, None, s.host(), is_leader_live=True, now=0.0)
        assert list(survey.topics) == ["a"]
        assert survey.omitted_topics == 1
        assert survey.following == 4

    play(test)


@pytest.mark.parametrize(
    ("isr", "standing", "reasons"),
    [
        ([1, 2, 3], {}, []),
        ([1, 2], {}, ["min.insync.replicas: 1 (t:0)"]),
        ([2, 3], {}, ["not in sync: 1 (t:0)"]),
        ([1, 2, 3], {"problem": "why"}, ["has not joined the cluster: why"]),
        ([1, 2, 3], {"is_stopping": True}, ["is stopping"]),
        ([1, 2, 3], {"is_disk_hung": True}, ["completes no sync"]),
        ([1, 2, 3], {"disk_space": "producers are refused"}, ["producers are refused"]),
        ([1, 2, 3], {"others_decide": False}, ["no majority"]),
    ],
)
def test_every_reason_is_named(
    isr: list[int], standing: dict[str, Any], reasons: list[str]
) -> None:
    survey = of(state_of(1, 2, 3, leader=isr[0], isr=isr, min_isr=2))
    values = {name: getattr(SOUND, name) for name in Standing.__slots__} | standing
    found = readiness(survey, Standing(**values))
    noted = [*found.not_ready, *found.not_safe]
    assert len(noted) == len(reasons)
    assert all(reason in text for reason, text in zip(reasons, noted, strict=True))
    assert found.is_restart_safe == (not reasons)
    is_for_restarts = reasons in (["min.insync.replicas: 1 (t:0)"], ["no majority"], [])
    assert found.is_ready == is_for_restarts
