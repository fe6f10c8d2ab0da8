"""Keeps the objects of partitions out of garbage collections.

A full collection visits every container object of the process, and holds the event loop for that
time. Frozen objects (``gc.freeze``) are not visited. They are freed by their reference counts;
cyclic garbage among them is freed after ``gc.unfreeze``.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

CHANGE_PARTITIONS: Final = 200  # created or deleted since the objects were frozen
INTERVAL_SECONDS: Final = 1.0


class LongLivedObjects:
    """Freezes all objects at the start, and again after many partitions were created."""

    def __init__(
        self,
        partition_count: Callable[[], int],
        *,
        freeze: Callable[[], object] = gc.freeze,
        unfreeze: Callable[[], object] = gc.unfreeze,
    ) -> None:
        self._partition_count = partition_count
        self._freeze = freeze
        self._unfreeze = unfreeze
        self._frozen_at = partition_count()
        freeze()

    def update(self) -> None:
        """Freeze the objects of new partitions. Let the next full collection visit all objects, if
        many partitions were deleted.
        """
        count = self._partition_count()
        if count >= self._frozen_at + CHANGE_PARTITIONS:
            self._freeze()
        elif count <= self._frozen_at - CHANGE_PARTITIONS:
            self._unfreeze()
        else:
            return
        self._frozen_at = count

    async def watch(self) -> None:
        """Update once a second, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.update()
