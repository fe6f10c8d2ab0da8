"""What the tests of scenarios share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Tell a figure that is part of the result, whether or not the test passes."""

    def noted(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return noted
