"""One broker for all benchmarks' tests: they measure nothing, they see that figures come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.bench.figures import Target, target


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home: Path = tmp_path_factory.mktemp("bench")
    with target(home) as running:
        yield running
