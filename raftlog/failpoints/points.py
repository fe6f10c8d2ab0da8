"""Failpoints of one process: the active rules, the actions of a hit, and their log."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from raftlog.errors import InvalidConfigError
from raftlog.failpoints.rules import Rule, parse
from raftlog.failpoints.sites import LOG_DIRS, SITES

logger = logging.getLogger(__name__)

VARIABLE: Final = "RAFTLOG_FAILPOINTS"
FILE_MARK: Final = "@"
FILE_BYTES_MAX: Final = 1 << 20
HITS_SUFFIX: Final = ".hits"
REFUSED: Final = "refused"  # in a hits file, in place of an action, for an invalid rules file

# Identifies the state of a file: inode, size, modification time. None: the file does not exist.
_Stamp = tuple[int, int, int] | None


class Hit(NamedTuple):
    """One line of a hits file: a rule that acts at a failpoint, written before it acts.

    ``action``: the name of the action, with the rule as ``text``; or ``REFUSED`` if the changed
    rules file is invalid, with the reason as ``text``.
    """

    pid: int
    site: str
    action: str
    text: str


def hits_path(path: Path) -> Path:
    """Return the file to which a broker with ``RAFTLOG_FAILPOINTS=@path`` writes its hits."""
    return path.with_name(path.name + HITS_SUFFIX)


def read_hits(path: Path) -> list[Hit]:
    """Return the hits recorded for the rules file ``path``, in order; none without a hits file."""
    try:
        lines = hits_path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    fields = (line.split(" ", 3) for line in lines[:-1])  # the last one is incomplete
    return [Hit(int(pid), site, action, text) for pid, site, action, text in fields]


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep(seconds: float) -> None:
    """Sleep without ``time.sleep``, which fails with EINVAL under libfaketime."""
    threading.Event().wait(seconds)


class Failpoints:
    """Failpoints with their rules. Thread-safe.

    A stall blocks the thread that calls ``hit``; a crash ends the process. With ``@file``, each hit
    checks whether the file has changed. A missing file contains no rules. A rule that is unchanged
    in the new text, including its comment, keeps its hit count. An invalid new text disables all
    rules and is logged.
    """

    def __init__(
        self,
        text: str,
        *,
        sites: Collection[str] = SITES | LOG_DIRS,
        crash: Callable[[], None] = _kill_self,
        sleep: Callable[[float], None] = _sleep,
    ) -> None:
        """``text``: the value of the variable. Raises ``InvalidConfigError`` if it is invalid."""
        self._sites = sites
        self._crash = crash
        self._sleep = sleep
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()  # hits by site, including those without an action
        self._rules: dict[str, Rule] = {}
        self._by_site: dict[str, list[Rule]] = {}
        self._path: Path | None = None
        self._stamp: _Stamp = None
        try:
            if text.startswith(FILE_MARK):
                self._path = Path(text.removeprefix(FILE_MARK))
                self._stamp = self._read_stamp()
                text = self._read()
            self._take(text)
        except (InvalidConfigError, OSError, UnicodeDecodeError) as error:
            raise InvalidConfigError(f"{VARIABLE}: {error}") from error

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Failpoints | None:
        """Return the failpoints of ``RAFTLOG_FAILPOINTS``; None if it is empty or missing."""
        text = environment.get(VARIABLE, "").strip()
        return cls(text) if text else None

    @property
    def described(self) -> str:
        """The number of rules and their file, for the log."""
        return f"{len(self._rules)} rules" + (f", from {self._path}" if self._path else "")

    # -- a hit -------------------------------------------------------------------------------------

    def hit(self, site: str) -> None:
        """Count a hit of ``site`` and run the actions of its rules.

        It may block, and does not return after a crash. Raises ``OSError`` for a rule that fails.
        """
        with self._lock:
            self.counts[site] += 1
            self._renew()
            rules = self._by_site.get(site)
            if rules is None:
                rules = [rule for rule in self._rules.values() if rule.covers(site)]
                self._by_site[site] = rules
            striking = [(rule, rule.seconds()) for rule in rules if rule.strikes()]
        for rule, seconds in striking:
            self._act(rule, site, seconds)

    def _act(self, rule: Rule, site: str, seconds: float) -> None:
        if rule.action == "note":
            with self._lock:
                is_new = site not in rule.noted
                rule.noted.add(site)
            if is_new:
                self._report(rule, site)
            return
        self._report(rule, site)
        if rule.action == "stall":
            self._sleep(seconds)
        elif rule.action == "crash":
            self._crash()
        else:
            raise OSError(rule.error, f"{os.strerror(rule.error)} (failpoint {site})")

    def _report(self, rule: Rule, site: str) -> None:
        """Log a hit before the action, which may crash the process."""
        logger.warning("failpoint hit: site=%s rule=%s", site, rule.text)
        self._note(site, rule.action, rule.text)

    def _note(self, site: str, action: str, text: str) -> None:
        if self._path is None:
            return
        line = f"{os.getpid()} {site} {action} {text}".replace("\n", " ") + "\n"
        fd = os.open(hits_path(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    # -- the file ----------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Read the rules file again if it has changed."""
        if self._path is None or (stamp := self._read_stamp()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._take(self._read())
        except (InvalidConfigError, OSError, UnicodeDecodeError) as error:
            self._activate(())
            logger.error("all failpoints disabled: path=%s error=%s. Correct the file", self._path,
                         error)  # fmt: skip
            self._note("-", REFUSED, str(error))
        else:
            logger.warning("failpoints changed: path=%s rules=%d", self._path, len(self._rules))

    def _read_stamp(self) -> _Stamp:
        assert self._path is not None
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> str:
        assert self._path is not None
        try:
            with self._path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return ""
        if len(data) > FILE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"larger than {FILE_BYTES_MAX} bytes", str(self._path))
        return data.decode("utf-8")

    def _take(self, text: str) -> None:
        self._activate(parse(text, sites=self._sites))

    def _activate(self, rules: Iterable[Rule]) -> None:
        self._rules = {rule.text: self._rules.get(rule.text, rule) for rule in rules}
        self._by_site = {}
