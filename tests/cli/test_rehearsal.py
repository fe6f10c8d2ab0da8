"""What the demo reports. The run itself is ``test_demo.py``'s."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.cli.ledger import Verdict
from raftlog.cli.outages import Outage
from raftlog.cli.rehearsal import Result
from raftlog.cli.replicas import Comparison, Copy

GOOD = Result(
    verdict=Verdict(10, 10, 0, 0, in_order=True, identical=True, sha256="ab"),
    outages=[
        Outage(2, 4711, 4, 0.5, leader=1, wiped=True),
        Outage(1, 4712, 7, 0.25, leader=2, wiped=False),
    ],
    comparison=Comparison((Copy(1, 10, 300, "cd", "ef"), Copy(2, 10, 300, "cd", "ef"))),
    brokers=3,
    bytes_sent=200,
    unavailable_seconds=0.5004,
    seconds=6.0,
)


def test_the_report_has_the_promised_keys() -> None:
    report = GOOD.to_dict()
    assert GOOD.holds
    promised = {"acknowledged": 10, "found": 10, "lost": 0, "duplicated": 0, "brokers": 3}
    assert promised.items() <= report.items()
    assert report["failovers"] == 2
    assert report["failover_seconds"] == [0.5, 0.25]
    assert report["wiped"] == 2
    assert report["replicas_identical"] is True
    assert report["acknowledged_before_kill"] == 4
    assert report["unavailable_seconds"] == 0.5
    assert report["replicas"][1]["broker"] == 2


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, verdict=replace(GOOD.verdict, lost=1)),
        replace(GOOD, verdict=replace(GOOD.verdict, duplicated=1)),
        replace(GOOD, verdict=replace(GOOD.verdict, in_order=False)),
        replace(GOOD, comparison=Comparison(())),
        replace(GOOD, comparison=Comparison((Copy(1, 10, 300, "cd", "ef", problem="torn"),))),
        replace(
            GOOD,
            comparison=Comparison((Copy(1, 10, 300, "cd", "ef"), Copy(2, 10, 300, "cd", "00"))),
        ),
    ],
)
def test_one_thing_that_is_wrong_breaks_the_promise(bad: Result) -> None:
    assert not bad.holds


def test_nobody_lost_a_disk_in_a_cluster_of_one() -> None:
    alone = replace(GOOD, outages=[replace(GOOD.outages[0], wiped=False)])
    assert alone.wiped is None
