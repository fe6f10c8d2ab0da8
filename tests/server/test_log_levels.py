"""Levels of loggers: which can be changed, and what a failure changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from raftlog.errors import InvalidRequestError
from raftlog.server import metrics
from raftlog.server.metrics import LoggerLevel

NAME = "raftlog.test_log_levels"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    level = logging.root.level
    logging.getLogger(f"{NAME}.below").setLevel(logging.NOTSET)
    yield
    logging.root.setLevel(level)
    logging.getLogger(NAME).setLevel(logging.NOTSET)


def levels() -> dict[str, LoggerLevel]:
    return {each.name: each for each in metrics.describe()}


def test_a_level_holds_for_the_loggers_below() -> None:
    metrics.alter({"root": "warning"}, default="info")
    assert levels()["root"] == LoggerLevel("root", "warning", True)
    metrics.alter({NAME: "debug"}, default="info")
    assert levels()[f"{NAME}.below"] == LoggerLevel(f"{NAME}.below", "debug", False)
    metrics.alter({NAME: None, "root": None}, default="error")
    assert levels()[NAME] == LoggerLevel(NAME, "error", False)


@pytest.mark.parametrize("wrong", [{"raftlog.no_such": "debug"}, {NAME: "loud"}])
def test_all_changes_are_made_or_none(wrong: dict[str, str]) -> None:
    before = levels()
    with pytest.raises(InvalidRequestError, match=r"no_such|loud"):
        metrics.alter({"root": "error", **wrong}, default="info")
    assert levels() == before
    assert "raftlog.no_such" not in before
