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
from random import Random
from threading import Lock
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from raftlog.types import Header, Headers

FORMAT: Final = 1
STRANGE: Final = -1  # the value of a record that no send of this run can have created

Type: TypeAlias = Literal["invoke", "ok", "fail", "info"]
Where: TypeAlias = tuple[int, int, int]  # first value, count, first offset
Seen: TypeAlias = tuple[int, int, int, int]  # first offset, count, first value, leader epoch
Placed: TypeAlias = tuple[str, int]  # partition, value


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


class Transact(Entry, tag="transact"):
    """A transaction: the values that it sends, in order. ``ok``: committed; ``fail``: aborted.

    ``name``: unique in the history. ``ending``: time of the request to commit, in the completion;
    0: it was never requested. ``read``: values that it was made from, each for the value of
    ``sent`` at the same index; it commits their offsets. ``after_fence``: the process had been told
    before that a newer instance has its transactional id.
    """

    name: str
    sent: list[Placed] = []
    read: list[Placed] = []
    ending: int = 0
    after_fence: bool = False
    error: str = ""


class TxnRead(Entry, tag="txn-read"):
    """Values of committed transactions that a reader got, by partition: offset and value.

    ``is_final``: by a new reader at the end, from the start of the log on. Its last entry
    ``is_complete``: ``committed`` has the offsets of the group whose workers wrote transactions, if
    it ``has_group``; ``unsettled`` tells what did not come to an end after all faults were healed.
    """

    records: dict[str, list[tuple[int, int]]] = {}
    is_final: bool = False
    is_complete: bool = False
    has_group: bool = False
    committed: dict[str, int] = {}
    unsettled: list[str] = []


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
    | Transact
    | TxnRead
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
            elif isinstance(entry, Transact) and entry.type != "invoke":
                self.acknowledged += len(entry.sent) * (entry.type == "ok")
                self.unknown += len(entry.sent) * (entry.type == "info")

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


# -- keys ------------------------------------------------------------------------------------------
#
# Keys of records, and which records are tombstones: both follow from the record's value. Pure.
#
# In a compacted topic every record has a key, and some are tombstones: a key without a value. A
# history does not contain either: the value and the number of keys of its partition determine the
# key and whether it deletes. A record that returns with another key is therefore detected.
#
# A few keys are frequent, most are rare: the last record of a rare key has to outlive thousands of
# others.


HOT: Final = 16  # keys that three quarters of all records have
HEADER: Final = "value"  # of a tombstone, which can store the value only here
_MASK: Final = (1 << 64) - 1
# Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (OOPSLA 2014), SplitMix64.
_ADD: Final = 0x9E3779B97F4A7C15
_STEPS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST: Final = 31
_HOT_BITS: Final = 3  # mask of two bits: three of four values are hot
_TOMBSTONE_SHIFT: Final = 2
_TOMBSTONE_BITS: Final = 7  # mask of three bits: one of eight
_KEY_SHIFT: Final = 8
_DIGITS_MAX: Final = 9

Ints = npt.NDArray[np.int64]


def _mixed(value: int) -> int:
    mixed = (value + _ADD) & _MASK
    for shift, factor in _STEPS:
        mixed = ((mixed ^ mixed >> shift) * factor) & _MASK
    return mixed ^ mixed >> _LAST


def key_of(value: int, keys: int) -> int:
    """Return the key of a value, 0 to ``keys`` - 1, in a partition with ``keys`` keys."""
    mixed = _mixed(value)
    return (mixed >> _KEY_SHIFT) % (min(HOT, keys) if mixed & _HOT_BITS else keys)


def is_tombstone(value: int) -> bool:
    """Return whether the record of this value deletes its key."""
    return (_mixed(value) >> _TOMBSTONE_SHIFT) & _TOMBSTONE_BITS == 0


def keys_of(column: Ints, keys: int) -> Ints:
    """Return ``key_of`` for a column of values."""
    mixed = _mixed_column(column)
    counts = np.where(mixed & np.uint64(_HOT_BITS), np.uint64(min(HOT, keys)), np.uint64(keys))
    return ((mixed >> np.uint64(_KEY_SHIFT)) % counts).astype(np.int64)


def are_tombstones(column: Ints) -> npt.NDArray[np.bool_]:
    """Return ``is_tombstone`` for a column of values."""
    mixed = _mixed_column(column)
    found: npt.NDArray[np.bool_] = (
        (mixed >> np.uint64(_TOMBSTONE_SHIFT)) & np.uint64(_TOMBSTONE_BITS)
    ) == 0
    return found


def _mixed_column(column: Ints) -> npt.NDArray[np.uint64]:
    mixed = column.astype(np.uint64) + np.uint64(_ADD)
    for shift, factor in _STEPS:
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return mixed ^ mixed >> np.uint64(_LAST)


# -- records ---------------------------------------------------------------------------------------


def encode(value: int, padding: int, keys: int) -> tuple[bytes, bytes | None, list[Header]]:
    """Return key, value and headers of the record for ``value``, of a partition with ``keys``
    keys."""
    key = b"%d/%d" % (key_of(value, keys), keys)
    if is_tombstone(value):
        return key, None, [(HEADER, b"%d" % value)]
    return key, encode_value(value, padding), []


def decode(key: bytes | None, record: bytes | None, headers: Headers) -> int:
    """Return the value that a record was created for; ``STRANGE`` for other records.

    A record without a key is one of ``values``.
    """
    if key is None:
        return decode_value(record)
    number, _, count = key.partition(b"/")
    if not (number.isdigit() and count.isdigit() and len(count) <= _DIGITS_MAX and int(count)):
        return STRANGE
    if record is None:
        said = dict(headers).get(HEADER) or b""
        value = decode_value(said + b" ")
    else:
        value = decode_value(record)
    if value == STRANGE or is_tombstone(value) != (record is None):
        return STRANGE
    return value if key == b"%d/%d" % (key_of(value, int(count)), int(count)) else STRANGE


# -- values ----------------------------------------------------------------------------------------
#
# The content of records, and a compact form of record sequences. Pure.
#
# A record's value is the text of an integer that is unique in the run, a space, and padding.
# The padding follows from the integer and its length. A record that was changed, or has the end of
# another one, can therefore be distinguished from one that was sent.


PADDING_MAX: Final = 1 << 20  # bytes
_VALUE_DIGITS_MAX: Final = 18  # more than any run can use
# Start positions of padding in the pool. A prime, so the padding of consecutive values differs.
_PLACES: Final = 4_093
_STEP: Final = 31
# Bytes. Half of each block is compressible. Do not change the pool: stored histories depend on it.
_BLOCK: Final = 4_096


def _pool(size: int) -> bytes:
    random = Random(1)
    blocks = (random.randbytes(_BLOCK) + random.randbytes(8) * (_BLOCK // 8) for _ in range(8))
    block = b"".join(blocks)
    return (block * (size // len(block) + 1))[:size]


_POOL: Final = _pool(PADDING_MAX + _PLACES)


def encode_value(value: int, padding: int) -> bytes:
    """Return the record for ``value`` (from 1) with ``padding`` bytes, up to ``PADDING_MAX``."""
    start = value * _STEP % _PLACES
    return b"%d " % value + _POOL[start : start + padding]


def decode_value(data: bytes | None) -> int:
    """Return the value that ``encode`` created this record for; ``STRANGE`` for other records."""
    head, space, padding = (data or b"").partition(b" ")
    if not space or not head.isdigit() or head.startswith(b"0") or len(head) > _VALUE_DIGITS_MAX:
        return STRANGE
    value = int(head)
    return value if _POOL.startswith(padding, value * _STEP % _PLACES) else STRANGE


def runs(records: Iterable[tuple[int, int, int]]) -> Iterator[Seen]:
    """Yield (offset, value, leader epoch) of each record as runs, in the given order.

    A run ends where the offset or the value does not increase by one, or the epoch changes.
    """
    first_offset = first_value = epoch = count = 0
    next_offset, next_value = -1, -1
    for offset, value, its_epoch in records:
        if value == next_value and offset == next_offset and its_epoch == epoch:
            count += 1
        else:
            if count:
                yield first_offset, count, first_value, epoch
            first_offset, first_value, epoch, count = offset, value, its_epoch, 1
            if value == STRANGE:  # no run continues after it
                next_offset = next_value = STRANGE - 1
                continue
        next_offset = offset + 1
        next_value = value + 1
    if count:
        yield first_offset, count, first_value, epoch


def joined(runs: Iterable[Seen]) -> Iterator[Seen]:
    """Yield the same runs, with adjacent ones merged."""
    open_run: Seen | None = None
    for run in runs:
        if open_run is not None:
            offset, count, value, epoch = open_run
            if (
                value != STRANGE
                and run[3] == epoch
                and run[0] == offset + count
                and run[2] == value + count
            ):
                open_run = offset, count + run[1], value, epoch
                continue
            yield open_run
        open_run = run
    if open_run is not None:
        yield open_run


def places(parts: Iterable[Where]) -> list[Where]:
    """Return the same parts of an append, with adjacent ones merged."""
    found: list[Where] = []
    for value, count, offset in parts:
        if found:
            first, length, at = found[-1]
            if value == first + length and offset == at + length:
                found[-1] = first, length + count, at
                continue
        found.append((value, count, offset))
    return found
