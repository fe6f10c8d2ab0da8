"""A broker with an HTTP port, for the tests of this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.http.serving import Serving, serving


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "data") as started:
        yield started
