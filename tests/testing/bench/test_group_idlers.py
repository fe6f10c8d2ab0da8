"""What it takes as a program; ``test_groups`` has it run."""

from __future__ import annotations

import inspect

from raftlog.testing.bench import group_idlers


def test_its_arguments_are_those_that_groups_gives() -> None:
    names = list(inspect.signature(group_idlers.main).parameters)
    assert names == ["bootstrap", "kind", "topic", "members", "groups"]
