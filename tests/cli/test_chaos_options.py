"""The options of ``raftlog chaos run`` as the runner's, and the way into the sandbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import pytest

from raftlog.cli import chaos_options
from raftlog.jepsen_like.control import sandbox
from raftlog.jepsen_like.drawing import RunOptions


def checked(**changed: Any) -> RunOptions:
    asked: dict[str, Any] = {
        "workload": "append",
        "nemeses": "kill",
        "time_s": 60.0,
        "seed": 1,
        "directory": None,
        "brokers": 3,
        "rate": None,
        "pairs": False,
        "bootstrap": None,
        "control": None,
        "source": None,
        "without_root": False,
    }
    return chaos_options.checked(**{**asked, **changed})


def test_without_a_seed_one_is_drawn_that_can_be_repeated() -> None:
    seeds = {checked(seed=None).seed for _ in range(20)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**chaos_options.SEED_BITS for seed in seeds)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("kill", ("kill",)), (" kill , pause,", ("kill", "pause")), ("none", ()), ("", ())],
)
def test_kinds_are_named_with_commas(text: str, kinds: tuple[str, ...]) -> None:
    assert checked(nemeses=text).nemeses == kinds


def test_a_directory_of_its_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked().directory == Path("chaos-1")
    (tmp_path / "chaos-1").mkdir()
    (tmp_path / "chaos-1-2").mkdir()
    assert checked().directory == Path("chaos-1-3")


def test_a_directory_in_use_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    assert checked(directory=tmp_path).directory == tmp_path
    (tmp_path / "history.jsonl").touch()
    with pytest.raises(click.BadParameter, match="is not empty"):
        checked(directory=tmp_path)


def test_another_s_cluster_may_have_a_script() -> None:
    made = checked(bootstrap="a:1,b:2", control=Path("/c"))
    assert (made.bootstrap, made.control) == ("a:1,b:2", Path("/c"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"control": Path("/c")},
        {"bootstrap": "a:1", "source": Path("/s")},
        {"nemeses": "meteorite"},
        {"time_s": 0.0},
    ],
)
def test_what_makes_no_sense_is_wrong_usage(wrong: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError):
        checked(**wrong)


class EnteredError(Exception):
    """The process would have become another one."""


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    def enter(command: list[str]) -> None:
        calls.append(command)
        raise EnteredError

    monkeypatch.setattr(sandbox, "enter", enter)
    monkeypatch.setattr(sandbox, "is_inside", lambda: False)
    monkeypatch.setattr(sandbox, "why_not", lambda: "")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/raftlog", "chaos", "run", "--time", "9"])
    return calls


def test_the_same_command_runs_in_the_sandbox(entered: list[list[str]]) -> None:
    with pytest.raises(EnteredError):
        chaos_options.enter_sandbox()
    assert entered == [[sys.executable, "-m", "raftlog", "chaos", "run", "--time", "9"]]


def test_inside_it_goes_on(entered: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "is_inside", lambda: True)
    assert chaos_options.enter_sandbox() == ""
    assert entered == []


def test_where_there_is_none_the_reason_is_told(
    entered: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "why_not", lambda: "it needs root")
    assert chaos_options.enter_sandbox() == "it needs root"
    assert entered == []
