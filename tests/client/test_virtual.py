"""The event loop in virtual time ends tests that would run forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.client import virtual
from tests.client.virtual import VirtualLoop


async def _sleep() -> None:
    while True:  # noqa: ASYNC110 - it waits for nothing
        await asyncio.sleep(1)


async def _wait_for_no_event() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("endless", "message"), [(_sleep, "in 100 turns"), (_wait_for_no_event, "everything waits")]
)
def test_a_test_that_does_not_end_fails(
    endless: Callable[[], Coroutine[Any, Any, None]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "TURNS_MAX", 100)
    loop = VirtualLoop()
    with pytest.raises(AssertionError, match=message):
        loop.run_until_complete(endless())
    loop.close()
