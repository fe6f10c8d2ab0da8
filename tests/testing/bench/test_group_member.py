"""What it takes as a program; ``test_groups`` has it run."""

from __future__ import annotations

import inspect

from raftlog.testing.bench import group_member


def test_its_arguments_are_those_that_groups_gives() -> None:
    names = list(inspect.signature(group_member.main).parameters)
    assert names == ["bootstrap", "group", "topic", "session_timeout_ms"]
