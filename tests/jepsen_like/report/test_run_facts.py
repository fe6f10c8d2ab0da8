"""What a run was, and the commands that make it and judge it again."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog_jepsen.report import html
from raftlog_jepsen.report.digest import Digest, digest
from tests.jepsen_like.report.histories import PLAN, start


def of(plan: dict[str, Any]) -> Digest:
    return digest([start(plan=plan), start(75, plan=plan)])


def test_the_plan_and_the_machine_are_told() -> None:
    facts = dict(html.rows(of(PLAN)))
    assert facts["seed"] == "42"
    assert facts["workload"] == "append"
    assert facts["clients"] == "3 producers, 2 consumers"
    assert facts["kinds of fault"] == "kill, partition, power, disk-full, two at a time"
    assert facts["brokers"] == "3"
    assert facts["topic chaos-a"] == "4 partitions, replication factor 3, min ISR 2"
    assert facts["flush policy"] == "durable"
    assert facts["load"] == "1 min 0 s"
    assert facts["complete run"] == "1 min 15 s"
    assert facts["network"] == "namespaces"


def test_the_run_can_be_made_again() -> None:
    assert html.again_command(of(PLAN)) == (
        "raftlog chaos run --seed 42 --workload append --nemesis kill,partition,power,disk-full "
        "--time 60 --brokers 3 --pairs"
    )
    quiet = {"seed": 1, "nemeses": [], "rate": 500.0}
    assert html.again_command(of(quiet)) == ("raftlog chaos run --seed 1 --nemesis none --rate 500")


def test_words_for_the_shell_are_quoted() -> None:
    command = html.again_command(of({"seed": 1, "nemeses": ["$(reboot)"]}))
    assert "'$(reboot)'" in command
    commands = dict(html.repeat_commands(of(PLAN), "/a b/history.jsonl"))
    assert commands["check this history again"] == "raftlog chaos check '/a b/history.jsonl'"
    assert "run the same plan again" in commands


@pytest.mark.parametrize(
    "plan",
    [
        {"mine": True},
        {"shape": 3, "workload": "append", "nemeses": 7, "time_s": "long"},
        {"shape": {"topics": [None, 4]}, "workload": {"producers": 5}},
        {"shape": {"topics": 9}},
    ],
)
def test_plans_of_others_are_no_reason_to_fail(plan: dict[str, Any]) -> None:
    found = of(plan)
    assert "complete run" in dict(html.rows(found))
    assert list(dict(html.repeat_commands(found, "h"))) == ["check this history again"]


def test_without_a_plan_only_the_length_is_known() -> None:
    assert html.rows(Digest(length_s=5)) == [("complete run", "5 s")]
