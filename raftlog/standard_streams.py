"""File descriptors 0 to 2 of a process that was started without some of them, as by ``<&-``.

The next files and sockets would get these numbers: what the process, or a library, writes to its
standard streams would go there, and libuv, the loop of uvloop, aborts a process that closes one.
"""

from __future__ import annotations

import os
from typing import Final

STDOUT: Final = 1
STDERR: Final = 2


def occupy() -> list[int]:
    """Open the null device in place of closed standard streams. Returns the descriptors.

    For reading: a write still fails, as to a closed stream. Call it before the first event loop of
    a process, and before a broker or command opens a file.
    """
    occupied = []
    while (opened := os.open(os.devnull, os.O_RDONLY)) <= STDERR:
        occupied.append(opened)
    os.close(opened)
    return occupied
