"""Failpoints: places in a running broker at which a test makes it crash, stall or fail.

Without the environment variable ``RAFTLOG_FAILPOINTS``, a broker has no failpoints. With it, the
broker wraps its disk (``FailpointDisk``) and its sends (``raftlog.server.failpoints``).
"""

from __future__ import annotations

import errno
import logging
import math
import os
import os.path
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from raftlog.disk import TEMPORARY_SUFFIX, Disk, File, Lock
from raftlog.errors import InvalidConfigError
from raftlog.types import Buffer

logger = logging.getLogger(__name__)

# -- names of failpoints ---------------------------------------------------------------------------
#
#     <role>.<operation>.<before or after>      a file or a directory; see ``role``
#     reply.<api>.<before or after>             a response to a client or to another broker
#     peer.<api>.<before or after>              a request to another broker
#
# ``after`` of a response or request: the operating system has accepted it. Directories are synced,
# not written. Reads have no ``after``, because they change nothing. A test runs all operations of a
# cluster and verifies that it hits exactly the failpoints of this list.

_ON_DISK: Final = {
    "catalog": "create read write truncate sync rename remove",
    "checkpoint": "create read write sync remove",
    "clean": "create read write truncate sync rename remove",
    "cleaned": "create write sync remove",
    "brokers": "create read write truncate sync rename",
    "clock": "create read write truncate sync rename remove",
    "compaction": "create read write truncate sync rename remove",
    "copies": "create read write truncate sync rename remove",
    "data-dir": "create sync",
    "epochs": "create read write truncate sync rename remove",
    "identity": "create read write truncate sync rename remove",
    "index": "create read write truncate rename remove",
    "journal": "read write truncate sync rename",
    "journal-draft": "create write truncate sync remove",
    "parent-dir": "sync",
    "partition-dir": "create sync rename remove",
    "producers": "create read write truncate sync rename remove",
    "segment": "create read write truncate sync rename remove",
    "topic-dir": "create sync remove",
    "topics-dir": "create sync",
}
_ANSWERS: Final = (
    "add_partitions alter_topics api_versions create_topics delete_groups delete_offsets "
    "delete_records delete_topics describe_cluster describe_copies describe_groups describe_topics "
    "fetch find_coordinators group_heartbeat init_producer_id list_groups list_offsets metadata "
    "offset_commit offset_fetch peer_hello peer_ping peer_prove produce reassign recover_cluster "
    "replica_fetch survey transfer_leader"
)
_REQUESTS: Final = (
    "api_versions cluster_state describe_copies partition_states peer_hello peer_ping peer_prove "
    "propose raft replica_fetch replica_progress survey"
)

READS: Final = frozenset(
    f"{what}.read.before" for what, operations in _ON_DISK.items() if "read" in operations.split()
)
CHANGES: Final = frozenset(  # of the disk
    f"{what}.{operation}.{moment}"
    for what, operations in _ON_DISK.items()
    for operation in operations.split()
    for moment in ("before", "after")
    if operation != "read"
)
SENDS: Final = frozenset(
    f"{way}.{api}.{moment}"
    for way, apis in (("reply", _ANSWERS), ("peer", _REQUESTS))
    for api in apis.split()
    for moment in ("before", "after")
)
SITES: Final = READS | CHANGES | SENDS
# All files in directories of ``log.dirs``, under one name. Most brokers have none.
LOG_DIRS: Final = frozenset(
    f"log-dir.{operation}.{moment}"
    for operation in ("create", "write", "truncate", "sync", "rename", "remove")
    for moment in ("before", "after")
) | {"log-dir.read.before"}

# -- failpoints of one process ---------------------------------------------------------------------

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


# -- rules -----------------------------------------------------------------------------------------
#
# SITE=ACTION[@SKIP][xTIMES][%CHANCE]          several, with ; or a new line between them
#
# - SITE: one of ``SITES``, or a pattern with ``*`` or ``?`` that matches some of them.
# - ACTION: ``crash`` (the process sends itself SIGKILL); ``stall(SECONDS)``, or ``stall(MIN..MAX)``
#   for a random time per hit; ``fail(ERRNO)``, such as ``fail(EIO)``; ``note``, which only logs the
#   first hit of each site.
# - ``@3`` skips the first 3 hits; ``x2`` acts twice (default: ``crash`` once, the others without
#   limit); ``%5`` acts at 5 of 100 hits. The text is the random seed: it selects the same hits in
#   each run.

ActionKind: TypeAlias = Literal["crash", "stall", "fail", "note"]
ACTIONS: Final = get_args(ActionKind)
_TAKES_ARGUMENT: Final = ("stall", "fail")

STALL_SECONDS_MAX: Final = 3_600.0
COUNT_MAX: Final = 1_000_000_000  # of hits, to skip or to act at
NEAR_MAX: Final = 3  # similar names in the error about an unknown one
ALLOWED: Final = (
    "SITE=ACTION[@SKIP][xTIMES][%CHANCE], where ACTION is crash, stall(SECONDS), "
    "stall(MIN..MAX), fail(ERRNO) or note; separate several rules with ;"
)

_RULE: Final = re.compile(
    r"(?P<site>[^=\s]+)\s*=\s*(?P<action>[a-z]+)(?:\((?P<argument>[^()]*)\))?"
    r"(?:@(?P<skip>[0-9]+))?(?:x(?P<times>[0-9]+))?(?:%(?P<chance>[0-9]+(?:\.[0-9]+)?))?"
)
_ERRNO: Final = {name: number for number, name in errno.errorcode.items()}


class Rule:
    """One rule and its hit counts. Not thread-safe: the owner holds a lock."""

    def __init__(
        self,
        text: str,
        site: str,
        action: ActionKind,
        *,
        seconds: tuple[float, float] = (0.0, 0.0),
        error: int = 0,
        skip: int = 0,
        times: float = math.inf,
        chance: float = 1.0,
    ) -> None:
        """``text``: the rule and its comment, as written. It identifies the rule."""
        self.text = text
        self.site = site
        self.action: Final = action
        self.error = error
        self.noted: set[str] = set()  # sites whose first hit was logged, for ``note``
        self._seconds = seconds
        self._skip = skip
        self._times = times
        self._chance = chance
        self._random = Random(text)  # noqa: S311 - seeded: repeatable

    def covers(self, site: str) -> bool:
        return fnmatchcase(site, self.site)

    def strikes(self) -> bool:
        """Count a hit. Returns whether the rule acts at it."""
        if self._skip > 0:
            self._skip -= 1
            return False
        if self._times <= 0 or (self._chance < 1.0 and self._random.random() >= self._chance):
            return False
        self._times -= 1
        return True

    def seconds(self) -> float:
        """Return the duration of this stall."""
        return self._random.uniform(*self._seconds)


def parse(text: str, *, sites: Collection[str]) -> list[Rule]:
    """Return the rules of a text; ``#`` starts a comment. Raises ``InvalidConfigError``."""
    return [_rule(whole, part, sites) for whole, part in _parts(text)]


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield for each rule the text with the comment, which identifies it, and the text to parse."""
    for line in text.splitlines():
        code, hash_mark, comment = line.partition("#")
        for part in code.split(";"):
            if part.strip():
                yield f"{part.strip()} {hash_mark}{comment}".strip(), part.strip()


def _rule(name: str, text: str, sites: Collection[str]) -> Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise InvalidConfigError(f"failpoint {text!r} is invalid. Write {ALLOWED}")
    site, action, argument = found["site"], found["action"], found["argument"]
    _check_site(site, sites)
    if action not in ACTIONS or (argument is None) is (action in _TAKES_ARGUMENT):
        raise InvalidConfigError(
            f"failpoint {text!r}: unknown action or wrong argument. Write {ALLOWED}"
        )
    skip, times = (_count(text, found[part]) for part in ("skip", "times"))
    if times == 0:
        raise InvalidConfigError(f"failpoint {text!r}: xTIMES must be at least 1")
    chance = 100.0 if found["chance"] is None else float(found["chance"])
    if not 0 < chance <= 100:
        raise InvalidConfigError(f"failpoint {text!r}: %CHANCE must be more than 0 and at most 100")
    return Rule(
        name,
        site,
        cast(ActionKind, action),
        seconds=_seconds(text, argument or "") if action == "stall" else (0.0, 0.0),
        error=_error(text, argument or "") if action == "fail" else 0,
        skip=skip or 0,
        times=times or (1 if action == "crash" else math.inf),
        chance=chance / 100.0,
    )


def _check_site(site: str, sites: Collection[str]) -> None:
    if any(fnmatchcase(known, site) for known in sites):
        return
    near = get_close_matches(site, sites, n=NEAR_MAX) or sorted(sites)[:NEAR_MAX]
    raise InvalidConfigError(
        f"no failpoint matches {site!r}. Similar names: {', '.join(near)} "
        "(raftlog.failpoints.SITES lists all names; * matches any part of a name)"
    )


def _count(text: str, digits: str | None) -> int | None:
    if digits is None:
        return None
    if len(digits) > len(str(COUNT_MAX)) or int(digits) > COUNT_MAX:
        raise InvalidConfigError(f"failpoint {text!r}: hits must be at most {COUNT_MAX}")
    return int(digits)


def _seconds(text: str, argument: str) -> tuple[float, float]:
    low, _, high = argument.partition("..")
    try:
        seconds = float(low), float(high or low)
    except ValueError:
        seconds = math.nan, math.nan
    if not 0.0 <= seconds[0] <= seconds[1] <= STALL_SECONDS_MAX:
        raise InvalidConfigError(
            f"failpoint {text!r}: invalid time. Write stall(SECONDS) or stall(MIN..MAX), with 0 to "
            f"{STALL_SECONDS_MAX:g} seconds"
        )
    return seconds


def _error(text: str, argument: str) -> int:
    number = _ERRNO.get(argument)
    if number is None:
        near = ", ".join(get_close_matches(argument, _ERRNO, n=NEAR_MAX) or ("EIO", "ENOSPC"))
        raise InvalidConfigError(
            f"failpoint {text!r}: unknown error. Write fail(ERRNO) with the name of an error, such "
            f"as {near}"
        )
    return number


# -- the disk --------------------------------------------------------------------------------------
#
# A ``Disk`` with failpoints before and after each change, and before each read.
#
# The names of failpoints contain the role of a file in the broker (``role``), not its path.

T = TypeVar("T")
OnHit = Callable[[str], None]

OTHER: Final = "other"
LOG_DIR: Final = "log-dir"  # everything in a directory of ``log.dirs``
_STATE_FILES: Final = {
    "lock": "lock",
    "identity": "identity",
    "clean": "clean",
    "clock": "clock",
    "brokers": "brokers",
    "cluster": "brokers",
    "place": "identity",
    "place.mark": "identity",
    "catalog": "catalog",
    "catalog.spare": "catalog",
    "copies": "copies",
    "copies.spare": "copies",
    "consensus.journal": "journal",
}
_LOG_FILES: Final = {
    ".log": "segment",
    ".index": "index",
    ".producers": "producers",
    ".cleaned": "cleaned",
}
_LOG_STATE_FILES: Final = frozenset(("checkpoint", "compaction", "epochs"))
_TOPICS: Final = "topics"
_DIRECTORIES: Final = ("data-dir", "topics-dir", "topic-dir", "topic-dir", "partition-dir")


def role(relative: str) -> str:
    """Return the role of a path relative to the data directory.

    A temporary file (``.tmp``) has the role of the file that it replaces. Only that of the journal
    has its own role, because the journal is also written in place.
    """
    if relative == "..":
        return "parent-dir"
    parts = [] if relative in ("", ".") else relative.split("/")
    if not parts or (parts[0] == _TOPICS and len(parts) < len(_DIRECTORIES)):
        return _DIRECTORIES[len(parts)]
    name = parts[-1].removesuffix(TEMPORARY_SUFFIX)
    if len(parts) == 1:
        found = _STATE_FILES.get(name, OTHER)
        return "journal-draft" if found == "journal" and name != parts[-1] else found
    if parts[0] == _TOPICS and len(parts) == len(_DIRECTORIES):
        return name if name in _LOG_STATE_FILES else _LOG_FILES.get(_suffix(name), OTHER)
    return OTHER


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""


class FailpointFile:
    """A file with failpoints. After a failure, earlier writes remain, as in a real file."""

    def __init__(self, file: File, what: str, hit: OnHit) -> None:
        self._file = file
        self._what = what
        self._hit = hit

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def is_in_place(self) -> bool:
        return self._file.is_in_place()

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._hit(f"{self._what}.write.before")
        self._file.append(buffers)
        self._hit(f"{self._what}.write.after")

    def pread(self, size: int, position: int) -> bytes:
        self._hit(f"{self._what}.read.before")
        return self._file.pread(size, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._hit(f"{self._what}.write.before")
        self._file.pwrite(data, position)
        self._hit(f"{self._what}.write.after")

    def truncate(self, size: int) -> None:
        self._hit(f"{self._what}.truncate.before")
        self._file.truncate(size)
        self._hit(f"{self._what}.truncate.after")

    def sync(self) -> None:
        self._hit(f"{self._what}.sync.before")
        self._file.sync()
        self._hit(f"{self._what}.sync.after")

    def close(self) -> None:
        self._file.close()


class FailpointDisk:
    """A disk with failpoints. ``directory``: the data directory, to which roles are relative.

    ``log_dirs``: the directories of ``log.dirs``.
    """

    def __init__(
        self, disk: Disk, hit: OnHit, directory: str, log_dirs: Sequence[str] = ()
    ) -> None:
        self._log_dirs = log_dirs
        self._disk = disk
        self._hit = hit
        self._directory = directory

    def _role(self, path: str) -> str:
        if any(path == each or path.startswith(f"{each}/") for each in self._log_dirs):
            return LOG_DIR
        return role(os.path.relpath(path, self._directory))

    def _around(self, path: str, operation: str, act: Callable[[], T]) -> T:
        site = f"{self._role(path)}.{operation}"
        self._hit(f"{site}.before")
        result = act()
        self._hit(f"{site}.after")
        return result

    def open(
        self, path: str, *, create: bool = False, write: bool = True, pooled: bool = False
    ) -> File:
        def opens() -> File:
            return self._disk.open(path, create=create, write=write, pooled=pooled)

        is_new = create and not self._disk.exists(path)
        opened = self._around(path, "create", opens) if is_new else opens()
        return FailpointFile(opened, self._role(path), self._hit)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def inode(self, path: str) -> int:
        return self._disk.inode(path)

    def list_dir(self, path: str) -> list[str]:
        return self._disk.list_dir(path)

    def make_dirs(self, path: str) -> None:
        if not self._disk.exists(path):
            self.make_dirs(os.path.dirname(path) or ".")
            self._around(path, "create", lambda: self._disk.make_dirs(path))

    def make_dir(self, path: str) -> None:
        if not self._disk.exists(path):
            self._around(path, "create", lambda: self._disk.make_dir(path))

    def rename(self, source: str, target: str) -> None:
        self._around(target, "rename", lambda: self._disk.rename(source, target))

    def remove(self, path: str) -> None:
        self._around(path, "remove", lambda: self._disk.remove(path))

    def remove_tree(self, path: str) -> None:
        """Remove a directory tree file by file, as the disk does, with failpoints."""
        for name in self._disk.list_dir(path):
            below = f"{path}/{name}"
            if self._disk.list_dir(below):
                self.remove_tree(below)
            else:
                with suppress(
                    IsADirectoryError, PermissionError
                ):  # an empty directory: removed with its parent
                    self.remove(below)
        self._around(path, "remove", lambda: self._disk.remove_tree(path))

    def sync_dir(self, path: str) -> None:
        self._around(path, "sync", lambda: self._disk.sync_dir(path))

    def read_file(self, path: str, *, bytes_max: int) -> bytes:
        self._hit(f"{self._role(path)}.read.before")
        return self._disk.read_file(path, bytes_max=bytes_max)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write a file atomically, in the same steps as ``OsDisk``, with failpoints."""
        temporary = path + TEMPORARY_SUFFIX
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append([data])
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_dir(os.path.dirname(path) or ".")

    def lock(self, path: str) -> Lock:
        return self._disk.lock(path)

    def mutex(self) -> AbstractContextManager[object]:
        return self._disk.mutex()

    def make_private(self, path: str) -> None:
        self._disk.make_private(path)

    def real_path(self, path: str) -> str:
        return self._disk.real_path(path)

    def dangling_link(self, path: str) -> str:
        return self._disk.dangling_link(path)

    def is_mount(self, path: str) -> bool:
        return self._disk.is_mount(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)

    def has_surplus(self) -> bool:
        return self._disk.has_surplus()

    def close_surplus(self, path: str) -> None:
        self._disk.close_surplus(path)

    def inodes(self, path: str) -> tuple[int, int]:
        return self._disk.inodes(path)

    def open_files(self) -> tuple[int, int]:
        return self._disk.open_files()

    def reserve(self, path: str, size: int) -> None:
        self._disk.reserve(path, size)
