"""Tests that are coroutines: a decorator has them run by a function that makes what they need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def runs(runner: Callable[..., Any], **settings: Any) -> Callable[[Test], Callable[..., None]]:
    """``runner(test, **settings)`` calls the test with its first arguments; pytest has the others.

    Every argument without a fixture or a parameter of its name is the runner's, and comes first.
    """

    def decorate(test: Test) -> Callable[..., None]:
        every = list(inspect.signature(test).parameters.values())
        own = [one for one in every if one.kind is not one.KEYWORD_ONLY]

        def run(**values: Any) -> None:
            async def filled(*made: Any) -> None:
                await test(*made, **values)

            runner(filled, **settings)

        vars(run).update(
            __name__=test.__name__,
            __qualname__=test.__qualname__,
            __module__=test.__module__,
            __doc__=test.__doc__,
            __signature__=inspect.Signature(every[len(own) :]),
        )
        return run

    return decorate
