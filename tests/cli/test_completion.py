"""``raftlog completion``: scripts that call back, and what they are answered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import Raftlog


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_ask_raftlog(raftlog: Raftlog, shell: str) -> None:
    ran = raftlog("completion", shell)
    assert ran.status == 0
    assert b"_RAFTLOG_COMPLETE" in ran.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("raftlog to", {"topic"}),
        ("raftlog topic desc", {"describe"}),
        ("raftlog produce --comp", {"--compression"}),
        ("raftlog produce --compression z", {"zstd"}),
    ],
)
def test_the_shell_completes_commands_and_options(words: str, expected: set[str]) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "_RAFTLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert {line.partition(",")[2] for line in ran.stdout.splitlines()} == expected
