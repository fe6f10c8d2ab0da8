"""What the wheel installs, and that a wheel built from the source distribution is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT: Final = str(Path(__file__).parents[2])


def _files(builder: SdistBuilder | WheelBuilder, *, installed: bool = False) -> set[str]:
    """Return the paths of the files in the repository, or where a wheel installs them."""
    return {
        file.distribution_path if installed else file.relative_path
        for file in builder.recurse_included_files()
        if "__pycache__" not in file.distribution_path
    }


def test_the_wheel_installs_only_names_of_raftlog() -> None:
    installed = _files(WheelBuilder(ROOT), installed=True)
    assert {name.split("/")[0] for name in installed} == {
        "raftlog",
        "raftlog_cli",
        "raftlog_jepsen",
        "pyspark_raftlog",
    }
    assert "raftlog_cli/main.py" in installed


def test_the_source_distribution_contains_all_that_the_wheel_installs() -> None:
    """``python -m build`` and ``pip install raftlog-0.1.0.tar.gz`` build the wheel from it."""
    assert sorted(_files(WheelBuilder(ROOT)) - _files(SdistBuilder(ROOT))) == []
