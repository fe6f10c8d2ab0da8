"""Builds that are broken on purpose can still be made, and every night the harness finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jepsen_like.broken_builds import BUILDS, Build, guards_of, is_found, make


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_a_build_lacks_its_guards_and_nothing_else(tmp_path: Path, build: Build) -> None:
    whole = Path(__file__).resolve().parents[2]
    source = make(build, tmp_path / "source")
    changed = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if path.read_text() != (whole / path.relative_to(source)).read_text()
    }
    assert changed == {guard.module for guard in guards_of(build)}


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_the_harness_finds_it(tmp_path: Path, build: Build) -> None:
    found, what = is_found(build, tmp_path / "report", make(build, tmp_path / "source"))
    assert found, what
