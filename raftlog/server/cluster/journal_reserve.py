"""Disk space reserved for the consensus journal, so that a full disk does not stop votes.

Without a reserve, records use the last bytes of the disk, and a leader cannot even commit the
transfer of its leadership. The space is allocated after the end of the journal, and is not part of
the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from raftlog import limits
from raftlog.server.workers import Workers

logger = logging.getLogger(__name__)

# A command of a partition's group needs about 200 bytes: enough for thousands of them.
KEPT_BYTES: Final = 4 * limits.MIB
AGAIN_SECONDS: Final = 10.0  # seconds until the next attempt, after there was not enough space


class JournalReserve:
    """Call ``poll`` regularly: while the reserve is large enough, it costs one comparison."""

    def __init__(
        self,
        reserve: Callable[[int], None],
        *,
        size: Callable[[], int],
        worker: Workers,
        now: Callable[[], float],
    ) -> None:
        """``reserve``: see ``Store.reserve_for_journal``. ``size``: of the journal, in bytes.

        ``worker``: the journal's own worker, so that its file is not replaced during the call.
        """
        self._reserve = reserve
        self._size = size
        self._worker = worker
        self._now = now
        self._kept_at: int | None = None  # size of the file, in bytes, when the space was reserved
        self._not_before = float("-inf")
        self._is_out = False

    def poll(self) -> None:
        """Reserve space again, if half of it is used or the file was replaced."""
        size = self._size()
        kept_at = self._kept_at
        if kept_at is not None and kept_at <= size < kept_at + KEPT_BYTES // 2:
            return
        if self._is_out or self._now() < self._not_before:
            return
        self._is_out = True
        self._not_before = self._now() + AGAIN_SECONDS

        def done(_result: None, error: Exception | None) -> None:
            self._is_out = False
            if error is None:
                self._kept_at = size
                self._not_before = float("-inf")
            else:
                logger.debug("journal reserve not allocated: error=%s", error)

        self._worker.submit(lambda: self._reserve(KEPT_BYTES), done)
