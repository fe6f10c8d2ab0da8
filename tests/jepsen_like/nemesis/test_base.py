"""What a broker says when its disk was harmed is found, and an empty disk is given with consent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from raftlog.types import TopicPartition
from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import (
    FaultBudget,
    Start,
    Words,
    availability,
    poll,
    replace_disk,
    try_start,
    why_not_lose,
)
from raftlog_jepsen.plan import Shape, TopicShape
from raftlog_jepsen.status import ClusterStatus, PartitionStatus
from tests.jepsen_like.nemesis.stores import FakeLedger, fake_cluster


def test_only_what_was_said_since_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert Words(path).text() == ""
    path.write_text("the damage of yesterday\n")
    words = Words(path)
    assert words.lines() == []
    with path.open("a") as log:
        log.write("all is well\nthere is damage\nthere is damage\nsomething torn\n")
    assert words.lines() == ["there is damage", "something torn"]
    assert words.lines(("well",)) == ["all is well"]


def test_a_broker_that_starts(tmp_path: Path) -> None:
    cluster = fake_cluster(tmp_path)
    cluster.kill([2])
    start = try_start(cluster, 2)
    assert start.started
    assert start.to_history() == {"started_after_s": 0.25}
    assert cluster.expected == {2}


def test_a_broker_that_refuses_says_so_in_a_sentence(tmp_path: Path) -> None:
    cluster = fake_cluster(tmp_path)
    cluster.kill([2])
    (cluster.hosts[2].data_dir / "identity").write_text("nonsense")
    start = try_start(cluster, 2)
    assert not start.started
    assert start.is_refusal
    assert "identity is corrupt" in start.to_history()["refused"]
    assert cluster.up() == {1, 3}


def test_a_traceback_is_no_sentence() -> None:
    start = Start(False, 0.1, "broker 2 ended with status 1: KeyError: 'topics'")
    assert start.to_history()["in_a_sentence"] is False


def test_an_empty_disk_is_given_with_the_ledgers_consent(tmp_path: Path) -> None:
    cluster, ledger = fake_cluster(tmp_path), FakeLedger(["not now"])
    data_dir = cluster.hosts[2].data_dir
    old = disks.directory_id(data_dir)
    assert replace_disk(cluster, ledger, 2) == {"disk": "kept", "why": "not now"}
    assert disks.directory_id(data_dir) == old
    assert cluster.up() == {1, 3}
    assert replace_disk(cluster, ledger, 2)["disk"].startswith("replaced")
    assert disks.directory_id(data_dir) not in {"", old}
    assert cluster.up() == {1, 2, 3}
    assert ledger.asked == [(2,), (2,)]


def test_polling_ends_with_the_time_or_the_condition() -> None:
    answers = [False, False, True]
    assert poll(lambda: answers.pop(0), 60.0, interval_s=0.0)
    assert not poll(lambda: False, 0.0)


# -- fault budget ----------------------------------------------------------------------------------
#
# The ledger refuses what could cost an acknowledged record, and little else.


def part(name: str = "t", **facts: Any) -> PartitionStatus:
    """One of three replicas on 1, 2, 3, all well, unless ``facts`` say otherwise."""
    replicas = facts.get("replicas", (1, 2, 3))
    return PartitionStatus(
        **{
            "topic": name,
            "partition": 0,
            "leader": replicas[0],
            "leader_epoch": 1,
            "replicas": replicas,
            "isr": frozenset(replicas),
            "min_isr": 2,
            "log_end_offset": 10,
            "agreed": frozenset(replicas),
            "caught_up": frozenset(replicas),
            **facts,
        }
    )


def status_of(*parts: PartitionStatus) -> ClusterStatus:
    return {each.name: each for each in parts}


def decide(
    *targets: int,
    brokers: int = 5,
    up: Collection[int] | None = None,
    failed: Collection[int] = (),
    parts: Collection[PartitionStatus] = (part(),),
    recoverable: bool = False,
) -> str:
    everybody = range(1, brokers + 1)
    refusal = why_not_lose(
        frozenset(targets),
        everybody,
        frozenset(everybody if up is None else up),
        frozenset(failed),
        status_of(*parts),
        recoverable=recoverable,
    )
    return "" if refusal is None else refusal.why


ALLOWED: dict[str, dict[str, Any]] = {
    "one of three": {"targets": (1,)},
    "the leader's disk as well as any": {"targets": (2,)},
    "nobody": {"targets": ()},
    "who has no replica": {"targets": (4, 5)},
    "one that is down itself": {"targets": (1,), "up": (2, 3, 4, 5)},
    "a replica out of the ISR, which counts as failed anyway": {
        "targets": (3,), "parts": (part(isr=frozenset((1, 2))),)},
    "one, while another outside the ISR lags": {
        "targets": (1,),
        "parts": (part(leader=2, isr=frozenset((1, 2)), caught_up=frozenset((1, 2))),)},
    "two of three with two witnesses: n-1 of n data, n of 2n-1 votes are left": {
        "targets": (1, 2), "parts": (part(witnesses=(4, 5)),)},
    "two of three with an operator at hand": {
        "targets": (1, 2), "brokers": 3, "recoverable": True},
    "a witness": {"targets": (4,), "parts": (part(witnesses=(4, 5)),)},
}  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED)
def test_it_allows(case: str) -> None:
    facts = dict(ALLOWED[case])
    assert decide(*facts.pop("targets"), **facts) == ""


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "all of three": (
        {"targets": (1, 2, 3), "recoverable": True},
        "t:0: no in-sync replica would be left of 1, 2, 3"),
    "two of three brokers": (
        {"targets": (1, 2), "brokers": 3},
        "the cluster's voters would be 3 of 3: no majority"),
    "two of a partition's three voters": (
        {"targets": (1, 2)},
        "t:0: its voters would be 3 of 3: no majority"),
    "one data copy and both witnesses, for their votes": (
        {"targets": (1, 4, 5), "brokers": 9, "parts": (part(witnesses=(4, 5)),)},
        "t:0: its voters would be 2, 3 of 5: no majority"),
    "the whole ISR, though a replica is left": (
        {"targets": (1, 2), "parts": (part(isr=frozenset((1, 2)), witnesses=(4, 5)),)},
        "t:0: no in-sync replica would be left of 1, 2"),
    "a partition with one copy": (
        {"targets": (2,), "parts": (part(), part("lonely", replicas=(2,))), "recoverable": True},
        "lonely:0: no in-sync replica would be left of 2"),
    "while the rest of the ISR has lost its disks": (
        {"targets": (1,), "failed": (2, 3), "recoverable": True},
        "t:0: no in-sync replica would be left of 1, 2, 3"),
    "while a lost voter is not back": (
        {"targets": (1,), "failed": (2,)},
        "t:0: its voters would be 3 of 3: no majority"),
    "while too many brokers are not back": (
        {"targets": (4,), "failed": (1, 2)},
        "the cluster's voters would be 3, 5 of 5: no majority"),
    "while a member of the ISR that has to be enough is down": (
        {"targets": (1,), "up": (1, 2, 4, 5)},
        "t:0: required in-sync replica 3 is down"),
    "while a member of the ISR does not know that it is one": (
        {"targets": (1,), "parts": (part(agreed=frozenset((1, 2))),)},
        "t:0: required in-sync replica 3 reports a different ISR"),
    "while a member of the ISR lags": (
        {"targets": (1,), "parts": (part(caught_up=frozenset((1, 3))),)},
        "t:0: required in-sync replica 2 is lagging"),
    "while nobody leads": (
        {"targets": (2,), "parts": (part(leader=None),)},
        "t:0: it has no leader"),
    "while the leader of a partition with votes to lose is silent": (
        {"targets": (4,), "parts": (part(log_end_offset=-1, witnesses=(4, 5)),)},
        "t:0: its leader, 1, does not respond"),
    "while the leader is silent": (
        {"targets": (2,), "parts": (part(log_end_offset=-1, caught_up=frozenset()),)},
        "t:0: its leader, 1, does not respond"),
    "while nobody knows anything": ({"targets": (2,), "parts": ()},
        "no broker reports any partition"),
    "who is not there": ({"targets": (2, 6)}, "unknown broker 6"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(case: str) -> None:
    facts, why = dict(REFUSED[case][0]), REFUSED[case][1]
    assert decide(*facts.pop("targets"), **facts) == why


@dataclass
class FakeCluster:
    """One whose status changes at each look, and stays as it was last."""

    shape: Shape
    looks: list[ClusterStatus]
    down: set[int] = field(default_factory=set)

    def up(self) -> set[int]:
        return set(self.shape.broker_ids) - self.down

    def status(self) -> ClusterStatus:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def shape_of(brokers: int, min_isr: int = 2) -> Shape:
    topic = TopicShape(name="t", partitions=1, replication_factor=3, min_isr=min_isr)
    return Shape(brokers=brokers, topics=(topic,))


def ledger_of(*looks: ClusterStatus, brokers: int = 3) -> tuple[FaultBudget, FakeCluster]:
    cluster = FakeCluster(shape_of(brokers), list(looks))
    return FaultBudget(
        cluster, patience_s=3.0, sleep=lambda _: None, clock=count().__next__
    ), cluster


WHOLE = status_of(part())


@pytest.mark.parametrize(
    "moment",
    [
        status_of(part(caught_up=frozenset((1, 2)))),
        status_of(part(agreed=frozenset((1, 2)))),
        status_of(part(log_end_offset=-1)),
        status_of(part(leader=None)),
        {},
    ],
)
def test_it_waits_for_what_takes_a_moment(moment: ClusterStatus) -> None:
    assert ledger_of(moment, moment, WHOLE)[0].may_lose([1]) == ""
    ledger, cluster = ledger_of(moment, moment, moment, WHOLE)
    assert ledger.may_lose([1]) != ""
    assert cluster.looks == [WHOLE]


def test_it_does_not_wait_for_what_takes_longer() -> None:
    ledger, cluster = ledger_of(status_of(part(isr=frozenset((1,)))), WHOLE)
    assert "no in-sync replica" in ledger.may_lose([1])
    assert cluster.looks == [WHOLE]


def test_a_lost_disk_counts_until_the_replica_is_whole_by_its_own_word() -> None:
    ledger, cluster = ledger_of(WHOLE)
    ledger.lost([2])
    assert ledger.failed == {2}
    assert ledger.may_lose([1], recoverable=True) == ""  # 3 is left
    assert "no in-sync" in ledger.may_lose([1, 3], recoverable=True)
    assert "no majority" in ledger.may_lose([1])
    ledger.returned([2])
    for stale in (
        part(caught_up=frozenset((1, 3))),  # the ISR is from before the loss
        part(agreed=frozenset((1, 3))),
        part(isr=frozenset((1, 3))),
    ):
        cluster.looks = [status_of(stale)]
        assert ledger.may_lose([1]) != ""
        assert ledger.failed == {2}
    cluster.looks = [status_of(part(), part("u", isr=frozenset((1, 3))))]
    assert ledger.may_lose([1]) != ""  # whole in one partition is not enough
    cluster.looks = [WHOLE]
    assert ledger.may_lose([1]) == ""
    assert ledger.failed == frozenset()


def test_what_has_not_returned_is_not_whole() -> None:
    ledger, _ = ledger_of(WHOLE)
    ledger.returned([2])  # it was never lost
    ledger.lost([2])
    assert ledger.may_lose([1]) != ""
    assert ledger.failed == {2}
    ledger.returned([2])
    ledger.lost([2])  # again, before it was whole
    assert ledger.may_lose([1]) != ""


def test_a_lost_witness_is_back_when_it_knows_the_state() -> None:
    votes = {"witnesses": (4, 5), "agreed": frozenset((1, 2, 3, 5))}
    ledger, cluster = ledger_of(status_of(part(**votes)), brokers=5)
    ledger.lost([4])
    ledger.returned([4])
    assert ledger.may_lose([5]) == ""
    assert ledger.failed == {4}
    cluster.looks = [status_of(part(witnesses=(4, 5), agreed=frozenset((1, 2, 3, 4, 5))))]
    assert ledger.may_lose([5]) == ""
    assert ledger.failed == frozenset()


@pytest.mark.parametrize(
    ("up", "facts", "expected"),
    [
        ((1, 2, 3, 4, 5), {}, "available"),
        ((1, 2, 3), {}, "available"),
        ((2, 3, 4, 5), {}, "available"),
        ((4, 5), {}, "outage"),  # no majority of brokers
        ((3, 4, 5), {}, "outage"),  # none of the partition's voters
        ((3, 4, 5), {"min_isr": 1, "witnesses": (4, 5)}, "available"),
        ((3, 4, 5), {"min_isr": 2, "witnesses": (4, 5)}, "outage"),
        ((1, 2, 4, 5), {"isr": frozenset((1, 3))}, "outage"),  # 1 alone is too few
    ],
)
def test_writes_go_on(up: tuple[int, ...], facts: dict[str, Any], expected: str) -> None:
    assert availability(frozenset(up), shape_of(5), status_of(part(**facts))) == expected


def test_of_what_nobody_tells_the_shape_decides() -> None:
    assert availability(frozenset((1, 2, 3, 4)), shape_of(5), {}) == "available"
    assert availability(frozenset((1, 2, 3)), shape_of(5), {}) == "outage"
    assert availability(frozenset((1, 2, 3)), shape_of(5, min_isr=1), {}) == "available"


def test_what_is_down_already_counts() -> None:
    ledger, cluster = ledger_of(WHOLE)
    assert ledger.may_stop([1]) == "available"
    assert ledger.may_stop([]) == "available"
    cluster.down = {2}
    assert ledger.may_stop([2]) == "available"
    assert ledger.may_stop([1]) == "outage"


def test_names_of_partitions_are_those_of_topics() -> None:
    assert part().name == TopicPartition("t", 0)
