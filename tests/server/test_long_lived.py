"""Objects of partitions are frozen as they are created, and released as they are deleted."""

from __future__ import annotations

from raftlog.server.main import CHANGE_PARTITIONS, LongLivedObjects


def test_many_new_partitions_are_frozen_and_many_deleted_ones_are_released() -> None:
    calls: list[str] = []
    partitions = 10
    objects = LongLivedObjects(
        lambda: partitions,
        freeze=lambda: calls.append("freeze"),
        unfreeze=lambda: calls.append("unfreeze"),
    )
    assert calls == ["freeze"], "what was made at the start"
    for partitions, expected in (
        (10 + CHANGE_PARTITIONS - 1, []),
        (10 + CHANGE_PARTITIONS, ["freeze"]),
        (10 + CHANGE_PARTITIONS, []),
        (11, []),
        (10, ["unfreeze"]),
        (0, []),
    ):
        calls.clear()
        objects.update()
        assert calls == expected, partitions
