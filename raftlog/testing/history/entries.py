"""The history of a run, a line of JSON for each event: ``history.jsonl``, format 1.

The terms are those of Jepsen. A *process* invokes an operation and later completes it: ``ok``
(acknowledged), ``fail`` (certainly without effect) or ``info`` (unknown outcome). An operation that
is never completed is ``info``. Times are nanoseconds of one monotonic clock, that of the harness
process. A file of any origin that follows this format can be checked (``raftlog chaos check``);
docs/reference/fault-injection.md describes it for authors of histories.

Values are integers, unique among all sends of a run. Contiguous records are written as a run: a
hundred records with consecutive offsets and values are one tuple.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, TypeAlias

import msgspec

FORMAT: Final = 1
STRANGE: Final = -1  # the value of a record that no send of this run can have created

Type: TypeAlias = Literal["invoke", "ok", "fail", "info"]
Where: TypeAlias = tuple[int, int, int]  # first value, count, first offset
Seen: TypeAlias = tuple[int, int, int, int]  # first offset, count, first value, leader epoch


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="f"):
    """An entry. ``time``: ns. ``process``: name of the process. A client that does not know the
    outcome of its operation takes a new name, and so does a consumer that changes its position."""

    time: int
    process: str
    type: Type


class Start(Entry, tag="start"):
    """The first line: the options of the run, and its environment. ``type`` is always ``info``."""

    format: int = FORMAT
    plan: dict[str, Any] = {}
    facts: dict[str, str] = {}  # versions, kernel, processors, facilities that were used


class Append(Entry, tag="append"):
    """``count`` values from ``first`` on, sent to one partition in this order.

    The completion repeats ``first``. Its ``offsets`` contain the acknowledged values, which count
    for every ``type``. ``ok``: all of them; ``fail``: all others certainly had no effect.
    """

    partition: str
    first: int
    count: int = 1
    acks: int = -1
    idempotent: bool = True
    offsets: list[Where] = []
    error: str = ""


class Poll(Entry, tag="poll"):
    """One call of a consumer; an invocation contains the positions that it reads from.

    ``group``: of the consumer group that it is a member of. A member's poll is completed when the
    application has processed the records, and before the next poll; ``at``: this time, by the
    member's clock, which is the history's. ``resets_to_latest``: if the next record was deleted,
    the consumer continues at the end. A member that knows that its partition ``t:0`` belongs to a
    deleted topic of this name writes ``t@ID:0``, here and in the entries of its group.
    """

    positions: dict[str, int] = {}
    records: dict[str, list[Seen]] = {}  # in the order of delivery, by partition
    source: Literal["leader", "replica"] = "leader"
    group: str = ""
    at: int = 0
    resets_to_latest: bool = False
    error: str = ""


class Ends(Entry, tag="ends"):
    """End offsets of partitions for consumers: their high watermarks."""

    ends: dict[str, int] = {}
    error: str = ""


class Delete(Entry, tag="delete"):
    """A request to delete the records of a partition below ``before``."""

    partition: str
    before: int
    error: str = ""


class Admin(Entry, tag="admin"):
    """A change of topics or leaders. ``what``: create, delete, add-partitions, transfer, alter.

    A deleted topic keeps no records: earlier records are not checked, except that they must not
    reappear.
    """

    what: str
    topic: str = ""
    args: dict[str, Any] = {}
    error: str = ""


class Commit(Entry, tag="commit"):
    """Offsets of a consumer group to continue from, by partition.

    Committed by a member of the group, whose name the process is (up to a ``#``), or by a client
    without a membership. The completion repeats the offsets. ``at``: time of the commit, if
    another process wrote the line.
    """

    group: str
    offsets: dict[str, int] = {}
    at: int = 0
    error: str = ""


class Committed(Entry, tag="committed"):
    """A request for the committed offsets of a consumer group. -1: none, for that partition."""

    group: str
    offsets: dict[str, int] = {}  # in the completion
    error: str = ""


class Member(Entry, tag="member"):
    """An event of a member of a consumer group; ``process``: the name of one process of it.

    ``what``: ``start`` (``args`` has ``topics``, ``commits``: "manual" if it reports each commit
    and "auto" if not, ``session_timeout_s``, ``handling_s``: maximum time between two polls);
    ``assigned``, ``revoked`` and ``lost`` with partitions, as reported to the application;
    ``killed``, ``paused``, ``resumed``, ``cut`` and ``mended`` by a nemesis; ``end``, for any
    reason. A member assumes that it owns its assigned partitions until it is notified, ends or is
    killed.
    """

    group: str
    what: str
    partitions: list[str] = []
    args: dict[str, Any] = {}
    at: int = 0
    error: str = ""


class Fault(Entry, tag="fault"):
    """A fault. ``type``: ``invoke`` before, ``info`` after the nemesis acted; ``phase``: whether it
    started or ended the fault. ``effect`` contains observations only, never expectations."""

    id: int
    kind: str
    phase: Literal["begin", "end"]
    targets: list[int] = []
    args: dict[str, Any] = {}
    effect: dict[str, Any] = {}
    injected: bool = True  # False: it was not injected; ``effect`` has the reason
    budget: Literal["within", "beyond"] = "within"
    expects: Literal["available", "outage"] = "available"  # whether writes must continue


class Phase(Entry, tag="phase"):
    """The runner's next step: setup, load, heal, quiesce, drain, read, dump, end. With ``drain``,
    members of consumer groups have time to receive all records."""

    name: str


class Note(Entry, tag="note"):
    """A remark of the runner. ``is_trouble``: the verdict cannot be better than unknown, because a
    part of the harness failed."""

    text: str
    is_trouble: bool = False


class Read(Entry, tag="read"):
    """Part of the records that a new consumer read of a partition at the end, from its start to its
    end. The parts of one reader follow each other."""

    partition: str
    start: int  # the log start offset
    end: int  # the high watermark that it read up to
    records: list[Seen] = []


class Dump(Entry, tag="dump"):
    """Part of the records in the files of one replica, read offline after all brokers stopped.

    ``should_be_whole``: it was in the ISR after convergence, so it has to store all records.
    """

    broker: int
    partition: str
    start: int
    end: int
    chain: str = ""  # of the last batch, in hexadecimal
    should_be_whole: bool = True
    problem: str = ""  # corruption found in the files
    records: list[Seen] = []


AnyEntry: TypeAlias = (
    Start
    | Append
    | Poll
    | Ends
    | Delete
    | Admin
    | Commit
    | Committed
    | Member
    | Fault
    | Phase
    | Note
    | Read
    | Dump
)

_DECODER: Final = msgspec.json.Decoder(AnyEntry)
_ENCODER: Final = msgspec.json.Encoder()


class DamagedHistoryError(Exception):
    """A line of a history cannot be read; contains its number, and the reason."""


class Recorder:
    """Writes a history. Thread-safe; lines are in the order of their times.

    ``now_ns``: the run's clock. ``acknowledged`` and ``unknown``: records of appends until now.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int]) -> None:
        self.path = path
        self.now_ns = now_ns
        self.acknowledged = self.unknown = 0
        self._lock = Lock()
        self._file = path.open("wb")

    def record(self, entry: AnyEntry) -> None:
        """Set the time of ``entry`` and write it. Record an invocation before its work starts, and
        a completion after it has ended."""
        with self._lock:
            entry.time = self.now_ns()
            self._file.write(_ENCODER.encode(entry) + b"\n")
            if isinstance(entry, Append) and entry.type != "invoke":
                self._count(entry)

    def _count(self, entry: Append) -> None:
        acknowledged = sum(count for _, count, _ in entry.offsets)
        self.acknowledged += acknowledged
        if entry.type == "info":
            self.unknown += entry.count - acknowledged

    def close(self) -> None:
        with self._lock:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def write(path: Path, entries: Iterable[AnyEntry]) -> None:
    """Write a complete history. Raises ``OSError``."""
    with path.open("wb") as file:
        file.writelines(_ENCODER.encode(entry) + b"\n" for entry in entries)


def read(path: Path) -> Iterator[AnyEntry]:
    """Yield the entries of a history, in order. Raises ``DamagedHistoryError``, ``OSError``."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError as error:
                raise DamagedHistoryError(f"{path}, line {number}: {error}") from error
