"""Network namespaces for tests: a thread that has a network and mounts to itself, gone with it."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from raftlog_jepsen.control.namespaces import why_not

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18


def unshare() -> None:
    """Give the calling thread a network and a table of mounts of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET) or libc.mount(
        None, b"/", None, MS_REC | MS_PRIVATE, None
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def in_its_own_network(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in such a thread. Where that cannot be, nothing was tested."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        if why_not():
            pytest.skip(f"not injected: there are no network namespaces here: {why_not()}")
        errors: list[BaseException] = []

        def work() -> None:
            try:
                unshare()
                test(*arguments, **fixtures)
            except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
                errors.append(error)

        thread = threading.Thread(target=work, name="in-its-own-network")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    return run
