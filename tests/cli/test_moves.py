"""Plans of replica moves as text, and what is no plan."""

from __future__ import annotations

import pytest

from raftlog.replication.placement import PlannedMove
from raftlog_cli import cluster
from tests.cli.conftest import Raftlog


def test_a_printed_plan_is_read_again() -> None:
    plan = [PlannedMove("t", 0, (1, 2), (1, 3)), PlannedMove("u", 4, (), (2,))]
    assert cluster.parse(cluster.output.to_json({"moves": cluster.rows(plan)})) == plan
    assert cluster.parse('[{"topic": "t", "partition": 1, "to": [2]}]') == [
        PlannedMove("t", 1, (), (2,))
    ]


@pytest.mark.parametrize(
    ("arguments", "plan", "reason"),
    [
        (["--topic", "t"], "", "--brokers"),
        (["--verify", "--cancel"], "", "one of"),
        (["--topic", "t:0", "--brokers", "1,1"], "", "different broker ids"),
        (["--throttle", "fast"], "", "is not a rate"),
        (["--throttle", "1MB", "--verify"], "", "only prints"),
        (["--plan", "-"], "{", "the plan is not JSON: invalid from line 1, column 2 on"),
        (["--plan", "-"], "{}", 'no list "moves"'),
        (["--plan", "-"], '[{"topic": "t", "partition": 0}]', 'is not an object with "topic"'),
        (["--plan", "-"], '[{"topic": "t", "partition": "0", "to": [1]}]', "are numbers"),
        (["--plan", "-"], '["t"]', 'is not an object with "topic"'),
    ],
)
def test_what_is_no_plan_is_wrong_usage(
    raftlog: Raftlog, arguments: list[str], plan: str, reason: str
) -> None:
    ran = raftlog("cluster", "reassign", *arguments, stdin=plan.encode())
    assert (ran.status, reason in ran.err) == (2, True), ran.err
