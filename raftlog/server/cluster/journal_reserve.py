"""Room on the disk that is kept for the consensus journal, so that a full disk does not end votes.

The last bytes of a disk go to records otherwise, and the broker that leads cannot even agree to
lead no more. Some room behind the journal's end is taken in advance; it is not part of the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from raftlog import limits
from raftlog.server.workers import Workers

logger = logging.getLogger(__name__)

# A step of a partition's group takes some 200 bytes: thousands of them.
KEPT_BYTES: Final = 4 * limits.MIB
AGAIN_SECONDS: Final = 10.0  # after there was not so much


class JournalReserve:
    """``look`` now and then: it costs a comparison while there is enough."""

    def __init__(
        self,
        reserve: Callable[[int], None],
        *,
        size: Callable[[], int],
        worker: Workers,
        now: Callable[[], float],
    ) -> None:
        """``reserve``: see ``Store.reserve_for_journal``; ``size``: of the journal, in bytes.

        ``worker``: the journal's own, so that its file is not replaced meanwhile.
        """
        self._reserve = reserve
        self._size = size
        self._worker = worker
        self._now = now
        self._kept_at: int | None = None  # the file's size when that much was kept behind it
        self._not_before = float("-inf")
        self._is_out = False

    def look(self) -> None:
        """Keep room again, if half of it is used up or the file is another one."""
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
