"""Texts on how to install raftlog and its extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from raftlog import install
from raftlog.install import install_command

ROOT: Final = Path(__file__).parents[1]
CALL: Final = re.compile(r"install_command\(['\"](\w+)['\"]\)")


def test_the_command_names_a_clone() -> None:
    assert install_command() == "pip install -e . in a clone of the repository"
    assert install_command("arrow") == "pip install -e '.[arrow]' in a clone of the repository"


def test_a_client_is_told_the_extra_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "find_spec", lambda _name: None)
    expected = "pip install './deploy/client[sasl]' in a clone of the repository"
    assert install_command("sasl") == expected


def test_the_extras_in_texts_exist() -> None:
    used = {
        found
        for package in ("raftlog", "cli", "spark_source")
        for file in (ROOT / package).rglob("*.py")
        for found in CALL.findall(file.read_text())
    }
    extras: set[str] = set()
    for path in (ROOT, ROOT / "deploy" / "client"):
        project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
        extras |= project["optional-dependencies"].keys()
    assert used
    assert used <= extras
