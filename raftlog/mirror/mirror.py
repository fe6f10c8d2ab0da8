"""Mirror: runs sessions until all records are copied or it is stopped."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Final

from raftlog.client.environment import ClientEnvironment
from raftlog.client.settings import Bootstrap
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.mirror.groups import Policy
from raftlog.mirror.session import MirrorSettings, Progress, Session
from raftlog.mirror.source import ClusterSource, Source

logger: Final = logging.getLogger(__name__)

_STEP_S: Final = 0.2  # longest wait for records before acknowledgements are processed
_BUSY_S: Final = 0.01  # the same, while acknowledgements are pending
_PAUSE_S: Final = 1.0  # between a failed session and the next one
_FAILURES_MAX: Final = 10  # consecutive sessions without a copied batch, with ``once``


class Mirror:
    """Copies topics of one cluster to another, offset by offset, each record once.

    All state is in the target cluster: the next run continues where this one ends, also after a
    crash. Two concurrent runs interrupt each other, but store no record twice.
    """

    def __init__(
        self,
        source: Bootstrap | Source,
        target: Bootstrap,
        *,
        topics: str | re.Pattern[str],
        prefix: str = "",
        groups: str | re.Pattern[str] | None = None,
        existing_groups: Policy = Policy.ADVANCE,
        keep_settings: bool = False,
        on_progress: Callable[[Progress], object] = lambda _progress: None,
        on_error: Callable[[RaftlogError], object] = lambda _error: None,
        source_host: ClientEnvironment | None = None,
        target_host: ClientEnvironment | None = None,
    ) -> None:
        """Create the mirror. It opens its first connection with ``run``.

        ``source``, ``target``: addresses of brokers, as for ``Producer``. ``source`` can be a
            ``Source``, such as a backup.
        ``topics``: regular expression that matches whole topic names. Internal topics are excluded.
        ``prefix``: of the topic names in the target cluster. Default: the same names.
        ``groups``: regular expression that matches whole names of consumer groups. Their committed
            offsets are copied every 10 s and at the end of ``once``. A group with members in the
            target keeps its offsets. Default: no group.
        ``existing_groups``: what happens to the offsets of groups that exist in the target.
            Default: they never move back.
        ``keep_settings``: topics that exist in the target keep their settings. Default: they get
            those of their source, also when these change, except ``min.insync.replicas``.
        ``on_progress``: called after each step. ``on_error``: called after a failed session; the
            mirror then starts another one.
        """
        self._settings = MirrorSettings(
            source=source if isinstance(source, Source) else ClusterSource(source, source_host),
            target=target,
            topics=re.compile(topics),
            prefix=prefix,
            groups=None if groups is None else re.compile(groups),
            existing_groups=existing_groups,
            keeps_settings=keep_settings,
            target_host=target_host,
        )
        self._on_progress, self._on_error = on_progress, on_error
        self._stopping = threading.Event()
        self.progress = Progress()

    def stop(self) -> None:
        """End ``run`` after its current step. Any thread can call it."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> Progress:
        """Copy until ``stop`` is called. Returns the progress.

        ``once``: end when the records that the source had at the start are committed in the
            target. Raises the last error if 10 sessions in a row fail and copy nothing. Default:
            False.

        Raises ``InvalidRequestError`` if both clusters are the same.
        """
        failures = 0
        while not self._stopping.is_set():
            before = self.progress.size_bytes
            try:
                if self._ran_session(once=once):
                    break
            except InvalidRequestError:
                raise
            except RaftlogError as error:
                logger.warning("mirror session failed: error=%s", error)
                failures = 1 if self.progress.size_bytes > before else failures + 1
                if once and failures >= _FAILURES_MAX:
                    raise
                self._on_error(error)
                self._stopping.wait(_PAUSE_S)
        return self.progress

    def _ran_session(self, *, once: bool) -> bool:
        """Run one session. Returns False if the next one must start, with other topics."""
        with Session(self._settings, self.progress) as session:
            if not session.start():
                return False
            self._on_progress(self.progress)
            while not self._stopping.is_set():
                if once and session.is_caught_up:
                    return session.finish()
                if not session.step(_BUSY_S if session.is_busy else _STEP_S):
                    return False
                self._on_progress(self.progress)
            return True
