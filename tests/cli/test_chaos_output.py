"""What ``raftlog chaos`` prints while it runs, and what it makes of errors."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click
import pytest

from raftlog.cli import chaos_output
from raftlog.cli.chaos_output import NothingKnownError, Rate
from raftlog.errors import UnknownTopicError
from raftlog.jepsen_like.runner import Progress


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.at(0.0, 0) == 0.0
    assert rate.at(1.0, 1_000) == 1_000.0
    for half in range(3, 9):
        rate.at(half / 2, 1_000)
    assert rate.at(5.0, 1_000) == 0.0
    assert rate.at(6.0, 3_000) == pytest.approx(1_000.0, rel=0.01)


@pytest.mark.parametrize("error", [UnknownTopicError("t"), OSError(28, "No space left", "/d")])
def test_errors_of_the_world_are_unknown(error: Exception) -> None:
    with pytest.raises(NothingKnownError) as caught, chaos_output.failing_as_unknown():
        raise error
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "error",
    [click.UsageError("no"), click.exceptions.Exit(0), BrokenPipeError(), KeyboardInterrupt()],
)
def test_what_others_deal_with_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, chaos_output.failing_as_unknown():
        raise error
    assert caught.value is error


def test_complaints_of_clients_go_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "clients.log"
    logger = logging.getLogger("raftlog.client.sender")
    before = logging.getLogger("raftlog").handlers[:]
    with chaos_output.clients_log(path):
        logger.warning("broker %d is silent", 2)
    assert "WARNING raftlog.client.sender broker 2 is silent" in path.read_text()
    assert capsys.readouterr().err == ""
    assert logging.getLogger("raftlog").handlers == before
    assert logging.getLogger("raftlog").propagate


def test_on_a_terminal_one_line_lives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with chaos_output.watching(quiet=False) as (say, show):
        assert show is not None
        say("[load] begins")
        show(Progress("load", 2.0, 60.0, 5_000, 3, ("kill",)))
    told = capsys.readouterr().err
    assert "[load] begins" in told


def test_elsewhere_there_are_lines_and_when_quiet_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with chaos_output.watching(quiet=False) as (say, show):
        say("load")
    assert (show, capsys.readouterr().err) == (None, "load\n")
    with chaos_output.watching(quiet=True) as (say, show):
        say("load")
    assert (show, capsys.readouterr().err) == (None, "")
