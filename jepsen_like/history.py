"""What happened in a run, a line of JSON for each event: ``history.jsonl``, format 1.

The vocabulary is Jepsen's. A *process* invokes an operation and later completes it: ``ok``
(acknowledged), ``fail`` (certainly without effect) or ``info`` (nobody knows); an operation that is
never completed is ``info``. Times are nanoseconds of one monotonic clock, that of the process which
runs the harness. A file that follows this format can be judged wherever it came from
(``raftlog chaos check``); docs/reference/fault-injection.md describes it for others who write one.

Values are integers that no two sends of a run share. What is contiguous is written as a run: a
hundred records that follow each other in offset and value are one tuple.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, TypeAlias

import msgspec

FORMAT: Final = 1
STRANGE: Final = -1  # the value of a record that no send of this run can have made

Type: TypeAlias = Literal["invoke", "ok", "fail", "info"]
Where: TypeAlias = tuple[int, int, int]  # first value, count, first offset
Seen: TypeAlias = tuple[int, int, int, int]  # first offset, count, first value, leader epoch


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="f"):
    """``time``: ns. ``process``: who; a client that does not know how its operation ended takes a
    new name, and so does a consumer that changes its position."""

    time: int
    process: str
    type: Type


class Start(Entry, tag="start"):
    """The first line: what was asked for, and where it ran. ``type`` is always ``info``."""

    format: int = FORMAT
    plan: dict[str, Any] = {}
    facts: dict[str, str] = {}  # versions, kernel, processors, back-ends that were used


class Append(Entry, tag="append"):
    """``count`` values from ``first`` on, sent to one partition in this order.

    The completion repeats ``first`` and has, in ``offsets``, what was acknowledged, which binds
    whatever ``type`` says of the rest. ``ok``: all of it; ``fail``: all others certainly had no
    effect.
    """

    partition: str
    first: int
    count: int = 1
    acks: int = -1
    idempotent: bool = True
    offsets: list[Where] = []
    error: str = ""


class Poll(Entry, tag="poll"):
    """One call of a consumer; an invocation says the positions that it reads from.

    ``group``: of the consumer group that it is a member of. A member's poll is completed when the
    application has dealt with the records, and before it asks for more; ``at``: when that was, by
    the member's own clock, which is the history's.
    """

    positions: dict[str, int] = {}
    records: dict[str, list[Seen]] = {}  # in the order given, by partition
    source: Literal["leader", "replica"] = "leader"
    group: str = ""
    at: int = 0
    error: str = ""


class Ends(Entry, tag="ends"):
    """Where partitions end for consumers: their high watermarks."""

    ends: dict[str, int] = {}
    error: str = ""


class Delete(Entry, tag="delete"):
    """The records of a partition below ``before`` are to be deleted."""

    partition: str
    before: int
    error: str = ""


class Admin(Entry, tag="admin"):
    """A change of topics or leaders. ``what``: create, delete, add-partitions, transfer, alter.

    A topic that was deleted keeps nothing: what was sent to it before is judged no more, but must
    not come back.
    """

    what: str
    topic: str = ""
    args: dict[str, Any] = {}
    error: str = ""


class Commit(Entry, tag="commit"):
    """Offsets to go on from, committed for a consumer group, by partition.

    By a member of it, whose name the process is, or by one who is nobody's member. The completion
    repeats the offsets. ``at``: when it was, if it was somebody else who wrote the line.
    """

    group: str
    offsets: dict[str, int] = {}
    at: int = 0
    error: str = ""


class Committed(Entry, tag="committed"):
    """Somebody asks what a consumer group has committed. -1: nothing, for that partition."""

    group: str
    offsets: dict[str, int] = {}  # of the completion
    error: str = ""


class Member(Entry, tag="member"):
    """What happened to a member of a consumer group; ``process``: its name, of one life of it.

    ``what``: ``start`` (``args`` has ``topics``, ``commits``: "manual" where it says so of each
    commit and "auto" where it does not, ``session_timeout_s``, ``handling_s``: how long it may be
    away from the consumer at most); ``assigned``, ``revoked`` and ``lost`` with partitions, as the
    application was told; ``killed``, ``paused``, ``resumed``, ``cut`` and ``mended`` by a nemesis;
    ``end``, however it ended. Until it is told, ends or is killed, a member believes that it has
    what it was assigned.
    """

    group: str
    what: str
    partitions: list[str] = []
    args: dict[str, Any] = {}
    at: int = 0
    error: str = ""


class Fault(Entry, tag="fault"):
    """A nemesis at work. ``type``: ``invoke`` before, ``info`` after it acted; ``phase`` says
    whether it began or ended the fault. ``effect`` is what was seen of it, never what was hoped."""

    id: int
    kind: str
    phase: Literal["begin", "end"]
    targets: list[int] = []
    args: dict[str, Any] = {}
    effect: dict[str, Any] = {}
    injected: bool = True  # False: it did not come about; ``effect`` says why
    budget: Literal["within", "beyond"] = "within"
    expects: Literal["available", "outage"] = "available"  # whether writes should go on meanwhile


class Phase(Entry, tag="phase"):
    """The runner's next step: setup, load, heal, quiesce, drain, read, dump, end. With ``drain``,
    members of consumer groups get the time to be given all that there is."""

    name: str


class Note(Entry, tag="note"):
    """What the runner wants to be known; ``is_trouble``: the verdict cannot be better than unknown,
    because something of the harness itself failed."""

    text: str
    is_trouble: bool = False


class Read(Entry, tag="read"):
    """Part of what a fresh consumer read of a partition at the end, from its start to its end; the
    parts of one reader follow each other."""

    partition: str
    start: int  # the log start offset
    end: int  # the high watermark that it read up to
    records: list[Seen] = []


class Dump(Entry, tag="dump"):
    """Part of what the files of one replica hold, read offline when all brokers were down.

    ``should_be_whole``: it was in the ISR when all was quiet, so it has to hold all of it.
    """

    broker: int
    partition: str
    start: int
    end: int
    chain: str = ""  # of the last batch, in hexadecimal
    should_be_whole: bool = True
    problem: str = ""  # damage that was found in the files
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
    """A line of a history cannot be read; says which, and why."""


class Recorder:
    """Writes a history as it happens. Any thread may record; lines are in the order of their times.

    ``now_ns``: the run's clock. ``acknowledged`` and ``unknown``: records of appends so far.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int]) -> None:
        self.path = path
        self.now_ns = now_ns
        self.acknowledged = self.unknown = 0
        self._lock = Lock()
        self._file = path.open("wb")

    def record(self, entry: AnyEntry) -> None:
        """Stamp ``entry`` with the time and write it. An invocation is recorded before its work
        begins, a completion after it has ended."""
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


def read(path: Path) -> Iterator[AnyEntry]:
    """The entries of a history, in order. Raises ``DamagedHistoryError``, ``OSError``."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError as error:
                raise DamagedHistoryError(f"{path}, line {number}: {error}") from error
