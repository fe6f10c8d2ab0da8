"""``raftlog explain``: wrong usage. What it says: ``test_explaining``, and ``test_cluster``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Raftlog


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["partition", "clicks"], 2),
        (["broker", "x"], 2),
        (["disk", "x"], 2),
        (["lag", ""], 1),
        (["lag", "g", "--bootstrap", "127.0.0.1:1"], 1),
    ],
)
def test_wrong_usage_is_told(raftlog: Raftlog, arguments: list[str], status: int) -> None:
    ran = raftlog("explain", *arguments)
    assert (ran.status, ran.out) == (status, b"")
    assert ran.err
