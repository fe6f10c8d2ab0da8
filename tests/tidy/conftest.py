"""These tests parse all code: collections of garbage would take a quarter of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_collections_of_garbage() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
