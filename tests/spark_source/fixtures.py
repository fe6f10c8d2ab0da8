"""The types of what the fixtures in ``conftest.py`` give."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NewTopicFunction = Callable[..., str]
LoadFunction = Callable[..., "DataFrame"]
