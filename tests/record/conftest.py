"""What the tests of records share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.record.batches import numpy_from


@pytest.fixture(params=[1, 1 << 30], ids=["numpy", "loop"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Integers are computed with numpy, and by loops."""
    with numpy_from(request.param):
        yield
