"""``raftlog produce --follow``: send the lines that are appended to files, each exactly once.

A round has the new lines of all files. Its plan is stored in the state file before the lines are
sent: the bytes of each file, their partitions, and the sequence numbers that a named producer will
give them. After a crash, the brokers report which of these numbers are stored. The lines of the
others are read again at the same positions, and sent with the same numbers.

    files, rotated files  ->  read  ->  save the plan  ->  send  ->  advance the positions

A position belongs to the content of a file, not to its name: device, inode, and a digest of the
bytes before the position (``Mark``). So files that were renamed, truncated, copied or replaced are
recognized, also after a restart.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_hexdigest

from raftlog import limits
from raftlog.client.resumable import ResumableProducer
from raftlog.clock import SystemClock
from raftlog.disk import OsDisk
from raftlog.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RetriableError,
)
from raftlog.record import Codec, encode
from raftlog.record.key_hash import partition_of_key
from raftlog.types import Headers, TopicPartition

Note = Callable[[str], None]
Connect = Callable[[str, int], ResumableProducer]

POLL_S: Final = 0.25  # between two looks at files that had no new lines
DRAIN_S: Final = 10.0  # without growth, after which a rotated file is complete
RETRY_S: Final = 2.0  # after brokers have refused a round
OUTAGE_S: Final = 60.0  # between two failures, after which the second is noted again
CHUNK_BYTES: Final = limits.MIB  # of one file in one round, unless a line is longer
CHUNKS_MAX: Final = 16  # of one round: bounds its memory
MARK_BYTES: Final = 256  # before a position, whose digest identifies the content
FILES_MAX: Final = 1_000
ROTATED_MAX: Final = 100  # that are open for one file
FINISHED_KEPT: Final = 32  # rotated files that were read completely, of each file
STATE_BYTES_MAX: Final = 16 * limits.MIB
STATE_VERSION: Final = 1
RECORD_OVERHEAD: Final = 32  # bytes of a record in a batch, besides key and value: an upper bound
SEQUENCES_MAX: Final = 1 << 30  # of one epoch in one partition: below the limit of the producer
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".Z")


# -- positions in files ----------------------------------------------------------------------------


class Mark(NamedTuple):
    """Digest of the last bytes before a position, at most ``MARK_BYTES``."""

    length: int
    digest: str

    @classmethod
    def of(cls, before: bytes) -> Mark:
        last = before[-MARK_BYTES:]
        return cls(len(last), xxh3_64_hexdigest(last))


NO_MARK: Final = Mark.of(b"")


@dataclass(frozen=True)
class Place:
    """Position in a file: the bytes before it are stored. ``modified_ns``: of the file, then."""

    device: int
    inode: int
    position: int = 0
    mark: Mark = NO_MARK
    modified_ns: int = 0


@dataclass
class Chunk:
    """Lines of one file to send: ``start`` to before ``end``. ``after``: the mark at ``end``.

    ``counts``: records of each partition, without ``skip``: those that are stored, under an
    earlier epoch. ``data`` and ``source`` are set while this process has them.
    """

    path: str
    device: int
    inode: int
    start: int
    end: int
    digest: str
    after: Mark
    partition: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    skip: dict[int, int] = field(default_factory=dict)
    data: bytes | None = None
    source: Source | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _TRANSIENT}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Chunk:
        by_partition = {name: _numbered(fields[name]) for name in ("counts", "skip")}
        return cls(**fields | by_partition | {"after": Mark(*fields["after"])})


_TRANSIENT: Final = frozenset({"data", "source"})  # fields of a chunk that are not in the state


def _numbered(fields: dict[str, int]) -> dict[int, int]:
    """Return a map by partition, whose numbers are text in JSON."""
    return {int(number): count for number, count in fields.items()}


class Source:
    """An open file, read from its position. ``path``: where it was found, for messages."""

    def __init__(self, path: str, place: Place | None = None) -> None:
        """Open ``path``. Raises ``OSError``, and ``InvalidRequestError`` for no regular file."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise InvalidRequestError(
                f"{path} is not a regular file. Send the output of a program with "
                "`... | raftlog produce TOPIC`"
            )
        self.device, self.inode = status.st_dev, status.st_ino
        self.position, self.mark = (place.position, place.mark) if place else (0, NO_MARK)
        self.size = 0  # when it was last read
        self.modified_ns = place.modified_ns if place else status.st_mtime_ns
        self.grown_s: float | None = None  # monotonic; None: was not read yet

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def place(self) -> Place:
        return Place(self.device, self.inode, self.position, self.mark, self.modified_ns)

    def is_same(self, status: os.stat_result) -> bool:
        return (self.device, self.inode) == (status.st_dev, status.st_ino)

    def has_content(self) -> bool:
        """Return whether the bytes before the position are still those that were read."""
        return self._read(0) is not None

    def look(self, now_s: float) -> bool:
        """Note size and time of change. Returns whether the content was truncated or replaced."""
        status = os.fstat(self._fd)
        seen = (status.st_size, status.st_mtime_ns)
        if seen == (self.size, self.modified_ns) and self.grown_s is not None:
            return False
        if not self.has_content():
            return True
        self.size, self.modified_ns = seen
        self.grown_s = now_s
        return False

    def restart(self) -> None:
        self.position, self.mark, self.size, self.grown_s = 0, NO_MARK, 0, None

    def _read(self, size: int) -> bytes | None:
        """Return the mark's bytes and ``size`` more; None if the mark is different."""
        length = self.mark.length
        data = os.pread(self._fd, length + size, self.position - length)
        return data if Mark.of(data[:length]) == self.mark else None

    def chunk(self, path: str, *, is_final: bool) -> Chunk | None:
        """Return the next complete lines; with ``is_final``, also a last line without newline.

        Raises ``InvalidRequestError`` for a line that no batch can have.
        """
        size = CHUNK_BYTES
        while True:
            data = self._read(size)
            if data is None:
                return None  # truncated since look(), which notices it in the next round
            found = data[self.mark.length :]
            end = len(found) if is_final and len(found) < size else found.rfind(b"\n") + 1
            if end or len(found) < size:
                break
            if size > limits.BATCH_BYTES_MAX:  # so is the line: it has no end in these bytes
                raise InvalidRequestError(
                    f"{self.path}: the line at byte {self.position} is longer than "
                    f"{limits.BATCH_BYTES_MAX} bytes, the maximum of a batch. It was not sent. "
                    "Split it, or move the file away"
                )
            size = min(size * 4, limits.BATCH_BYTES_MAX + 1)
        if not end:
            return None
        lines, start = found[:end], self.position
        after = Mark.of(data[: self.mark.length + end])
        at = (path, self.device, self.inode, start, start + end)
        return Chunk(*at, xxh3_64_hexdigest(lines), after, data=lines, source=self)

    def reread(self, chunk: Chunk) -> bool:
        """Set the data of a planned chunk, if this file still has them at the same place."""
        data = self._read(chunk.end - chunk.start) if self.position == chunk.start else None
        found = None if data is None else data[self.mark.length :]
        if found is None or xxh3_64_hexdigest(found) != chunk.digest:
            return False
        chunk.data, chunk.source = found, self
        return True

    def advance(self, chunk: Chunk) -> None:
        if self.position == chunk.start:  # else it was truncated
            self.position, self.mark = chunk.end, chunk.after


# -- followed files --------------------------------------------------------------------------------


class FollowedFile:
    """A path whose file grows, and the rotated files that still have lines to send.

    ``places``: positions of an earlier run, the oldest file first.
    """

    def __init__(
        self,
        path: str,
        *,
        places: Sequence[Place] = (),
        finished: Iterable[Place] = (),
        note: Note = lambda _text: None,
    ) -> None:
        self.path = path
        self._note = note
        self._noted = ""  # the problem that was last noted
        self._base = os.path.basename(path)
        self._rotated_name = re.compile(re.escape(self._base) + r"[.-]\d[\w.:+-]*")
        self._finished = deque(finished, maxlen=FINISHED_KEPT)
        self._sources: list[Source] = []
        self._is_known = bool(places)  # siblings that are newer than the last place were not read
        self._after_ns = max((place.modified_ns for place in places), default=0)
        for place in places:
            self._reopen(place)

    @property
    def places(self) -> list[Place]:
        return [source.place for source in self._sources]

    @property
    def finished(self) -> list[Place]:
        return list(self._finished)

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def read(self, now_s: float, *, is_last: bool = False) -> Chunk | None:
        """Return the next lines, or None. ``now_s``: monotonic seconds.

        ``is_last``: rotated files are complete now, without waiting for their writer.
        """
        self._look()
        for source in list(self._sources):
            was_modified_ns = source.modified_ns
            if source.look(now_s):
                self._truncated(source, now_s)
            elif not source.position and source.modified_ns != was_modified_ns:
                self._open_missed(source, was_modified_ns)  # before it was truncated, if it was
        for source in list(self._sources):
            is_rotated = source is not self._sources[-1]
            chunk = source.chunk(self.path, is_final=False)
            is_over = is_last or (source.grown_s or now_s) + DRAIN_S <= now_s
            if chunk is None and is_rotated and is_over:
                chunk = source.chunk(self.path, is_final=True)
                if chunk is None:
                    self._finish(source)
            if chunk is not None:
                return chunk
        return None

    def reread(self, chunk: Chunk) -> None:
        """Find the data of a chunk that an earlier run has planned."""
        any(source.reread(chunk) for source in self._sources)

    def complete(self, chunk: Chunk) -> None:
        """Advance the position to the end of a chunk, whose records are stored."""
        for source in self._sources:
            same = (source.device, source.inode) == (chunk.device, chunk.inode)
            if source is chunk.source or (chunk.source is None and same):
                source.advance(chunk)

    # -- rotation

    def _look(self) -> None:
        """Open the file of the path if it is another one than before."""
        try:
            status = os.stat(self.path)
            if self._sources and self._sources[-1].is_same(status):
                self._found()
                return
            newest = Source(self.path)
        except FileNotFoundError:
            if self._sources:
                self._problem("does not exist any more. What it had is sent; waiting for a new one")
            elif not self._is_known:
                self._problem("does not exist. Waiting for it")
            return
        except PermissionError as error:
            self._problem(f"cannot be read: {error.strerror}. Waiting for the permission")
            return
        self._found()
        self._after_ns = max([self._after_ns, *(each.modified_ns for each in self._sources)])
        self._sources.append(newest)
        if self._is_known:
            self._open_missed(newest, self._after_ns)
        self._is_known = True
        self._after_ns = newest.modified_ns
        if len(self._sources) > ROTATED_MAX:
            raise InvalidRequestError(
                f"{self.path}: more than {ROTATED_MAX} rotated files have lines that were not "
                "sent. Rotate less often, or by size"
            )

    def _problem(self, text: str) -> None:
        if text != self._noted:
            self._noted = text
            self._note(f"{self.path} {text}")

    def _found(self) -> None:
        if self._noted:
            self._noted = ""
            self._note(f"{self.path} is read")

    def _open_missed(self, newest: Source, after_ns: int) -> None:
        """Open files that were rotated since ``after_ns`` and not read, before ``newest``."""
        known = {(place.device, place.inode) for place in self.places}
        missed = [
            (status.st_mtime_ns, path)
            for path, status in self._siblings()
            if (status.st_dev, status.st_ino) not in known and status.st_mtime_ns >= after_ns
        ]
        for _, path in sorted(missed):
            if path.endswith(_COMPRESSED):
                self._note(
                    f"{path} was rotated and compressed before it was read: its lines are not "
                    "sent. Send them with `zcat ... | raftlog produce TOPIC`, and delay the "
                    "compression by one rotation (logrotate: delaycompress)"
                )
                continue
            with suppress(FileNotFoundError):
                self._sources.insert(self._sources.index(newest), self._missed(path))

    def _missed(self, path: str) -> Source:
        """Open a file that was missed, or that was read and has grown since."""
        status = os.stat(path)
        for place in self._finished:
            if (place.device, place.inode) == (status.st_dev, status.st_ino):
                source = Source(path, place)
                if source.has_content():
                    return source
                source.close()  # a new file with the inode of a deleted one
        return Source(path)

    def _siblings(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the rotated files of the path: its name, and a number or a date."""
        with suppress(FileNotFoundError), os.scandir(os.path.dirname(self.path) or ".") as entries:
            for entry in entries:
                if self._rotated_name.fullmatch(entry.name) and entry.is_file():
                    yield entry.path, entry.stat()

    def _reopen(self, place: Place) -> None:
        """Find the file of a place: at its path, renamed, or copied."""
        candidates = [self.path, *(path for path, _ in self._siblings())]
        for path in candidates:
            with suppress(FileNotFoundError, PermissionError):
                status = os.stat(path)
                if (status.st_dev, status.st_ino) == (place.device, place.inode):
                    source = Source(path, place)
                    if source.has_content():
                        self._sources.append(source)
                        return
                    source.close()
                    if path == self.path:  # truncated, or its inode is that of a new file
                        restarted = Source(path)
                        self._open_copy(place)
                        self._sources.append(restarted)
                        return
        if not self._open_copy(place):
            self._note(
                f"{self.path}: the file that was read until byte {place.position} is gone, and no "
                "rotated file has its content. Lines after this byte, if it had any, are not sent. "
                "Send them from an archive with `raftlog produce TOPIC --file`"
            )

    def _truncated(self, source: Source, now_s: float) -> None:
        """Read the rest from the copy that the rotation has made, then the file from its start."""
        unread = source.size - source.position
        if self._open_copy(source.place, before=source):
            self._note(f"{source.path} was truncated. The rest of its lines is read from a copy")
        elif unread > 0:
            self._note(
                f"{source.path} was truncated, and no copy has its content: {unread} bytes after "
                f"byte {source.position} are lost. Rotate by rename instead of copytruncate"
            )
        else:
            self._note(f"{source.path} was truncated. It is read from its start")
        source.restart()
        source.look(now_s)

    def _open_copy(self, place: Place, before: Source | None = None) -> bool:
        """Open a rotated file with the content before ``place``, and possibly more."""
        if not place.position:
            return False
        for path, status in sorted(self._siblings(), key=lambda each: -each[1].st_mtime_ns):
            is_own = (status.st_dev, status.st_ino) == (place.device, place.inode)
            if status.st_size < place.position or is_own or path.endswith(_COMPRESSED):
                continue
            with suppress(FileNotFoundError, PermissionError):
                copy = Source(path, place)
                if copy.has_content():
                    at = len(self._sources) if before is None else self._sources.index(before)
                    self._sources.insert(at, copy)
                    return True
                copy.close()
        return False

    def _finish(self, source: Source) -> None:
        self._sources.remove(source)
        self._finished.append(source.place)
        source.close()


# -- records ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Routing:
    """Which partition and key a line gets. Equal for equal lines, so that a round can be repeated.

    ``separator``: text between key and value of a line; empty: lines have no key.
    """

    partition: int | None = None
    key: str | None = None
    separator: str = ""

    def route(self, chunk: Chunk, partitions: int) -> dict[int, Records]:
        """Return the records of each partition, in the order of the lines."""
        assert chunk.data is not None, "read, or found again"
        lines = chunk.data.removesuffix(b"\n").split(b"\n")
        separator = os.fsencode(self.separator)
        key = None if self.key is None else os.fsencode(self.key)
        found: dict[int, Records] = {}
        if not separator:
            at = chunk.partition if key is None else partition_of_key(key, partitions)
            at = at if self.partition is None else self.partition
            return {at: Records(lines, [key] * len(lines))}
        for line in lines:
            start, is_found, rest = line.partition(separator)
            own, value = (start, rest) if is_found else (None, line)
            at = chunk.partition if own is None else partition_of_key(own, partitions)
            records = found.setdefault(at if self.partition is None else self.partition, Records())
            records.values.append(value)
            records.keys.append(own)
        return found


@dataclass
class Records:
    """Columns of records for one partition."""

    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)

    def batches(self, bytes_max: int, *, skip: int, extra: int) -> Iterator[Records]:
        """Yield the records after the first ``skip`` in batches. ``extra``: bytes of headers."""
        first, size = skip, 0
        for number in range(skip, len(self.values)):
            own = len(self.values[number]) + len(self.keys[number] or b"") + extra
            is_full = size + own > bytes_max or number - first == limits.RECORDS_PER_BATCH_MAX
            if is_full and number > first:
                yield Records(self.values[first:number], self.keys[first:number])
                first, size = number, 0
            size += own
        if first < len(self.values):
            yield Records(self.values[first:], self.keys[first:])


@dataclass
class Round:
    """Plan of a round. ``base``: sequence of the first record of each partition."""

    partitions: int
    base: dict[int, int]
    routing: Routing
    chunks: list[Chunk]

    def skips(self, stored: dict[int, int]) -> list[dict[int, int]]:
        """Return the records of each chunk and partition that are stored. ``stored``: counts."""
        left = {number: max(0, stored[number] - base) for number, base in self.base.items()}
        found = []
        for chunk in self.chunks:
            skip = {number: min(count, left[number]) for number, count in chunk.counts.items()}
            for number, count in skip.items():
                left[number] -= count
            found.append(skip)
        return found

    def without_lost(self, skips: Sequence[dict[int, int]]) -> Round:
        """Return the plan of the records that are left to send, for a new epoch."""
        kept = []
        for chunk, skip in zip(self.chunks, skips, strict=True):
            left = {n: count - skip[n] for n, count in chunk.counts.items() if count > skip[n]}
            if left and chunk.data is not None:
                done = {n: chunk.skip.get(n, 0) + skip[n] for n in chunk.counts}
                kept.append(replace(chunk, counts=left, skip=done))
        numbers = {number for chunk in kept for number in chunk.counts}
        return Round(self.partitions, dict.fromkeys(numbers, 0), self.routing, kept)


# -- state -----------------------------------------------------------------------------------------


@dataclass
class State:
    """What a run leaves to the next one. ``name``: of the producer, random for each new state."""

    topic: str
    topic_id: str
    name: str = ""
    epoch: int = 0
    files: dict[str, tuple[list[Place], list[Place]]] = field(default_factory=dict)
    round: Round | None = None

    def to_json(self) -> bytes:
        fields: dict[str, Any] = {"version": STATE_VERSION, "topic": self.topic}
        fields |= {"topic_id": self.topic_id, "name": self.name, "epoch": self.epoch}
        fields["files"] = {
            path: [[asdict(place) for place in places] for places in both]
            for path, both in self.files.items()
        }
        if self.round is not None:
            fields["round"] = {
                "partitions": self.round.partitions,
                "base": self.round.base,
                "routing": asdict(self.round.routing),
                "chunks": [chunk.as_dict() for chunk in self.round.chunks],
            }
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> State:
        """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for anything else."""
        fields = json.loads(data)
        if fields["version"] != STATE_VERSION:
            raise ValueError(f"its version is {fields['version']}")
        state = cls(fields["topic"], fields["topic_id"], fields["name"], fields["epoch"])
        for path, both in fields["files"].items():
            places, finished = ([_place(place) for place in places] for places in both)
            state.files[path] = (places, finished)
        if "round" in fields:
            plan = fields["round"]
            state.round = Round(
                plan["partitions"],
                _numbered(plan["base"]),
                Routing(**plan["routing"]),
                [Chunk.from_dict(chunk) for chunk in plan["chunks"]],
            )
        return state


def _place(fields: dict[str, Any]) -> Place:
    return Place(**fields | {"mark": Mark(*fields["mark"])})


def default_state_file(topic: str, topic_id: str) -> Path:
    """Return the state file of a topic for the files of this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "raftlog" / f"follow-{topic}-{topic_id}.json"


class StateFile:
    """The state on disk, which only one process uses. A context manager that holds its lock."""

    def __init__(self, path: Path, disk: OsDisk | None = None) -> None:
        self.path = path
        self._disk = disk or OsDisk(pooled_files_max=1)

    def __enter__(self) -> StateFile:
        self._disk.make_dirs(os.path.dirname(os.path.abspath(self.path)))
        try:
            self._lock = self._disk.lock(f"{self.path}.lock")
        except BlockingIOError:
            raise InvalidRequestError(
                f"{self.path} is in use: another `raftlog produce --follow` of this topic runs. "
                "Give both files to one of them, or use another --state FILE"
            ) from None
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def load(self, topic: str, topic_id: str) -> State:
        """Return the state, or a new one. Raises ``InvalidRequestError`` for another topic."""
        try:
            data = self._disk.read_file(str(self.path), bytes_max=STATE_BYTES_MAX)
        except FileNotFoundError:
            return State(topic, topic_id, name=f"follow-{uuid.uuid4().hex}")
        try:
            state = State.from_json(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequestError(
                f"{self.path} is not a state of `raftlog produce --follow` ({error!r}). Restore it "
                "from a backup, or delete it: all files are then sent from their start"
            ) from error
        if (state.topic, state.topic_id) != (topic, topic_id):
            raise InvalidRequestError(
                f"{self.path} belongs to the topic {state.topic!r} with the ID {state.topic_id}; "
                f"{topic!r} has the ID {topic_id}, because it was deleted and created again, or is "
                "in another cluster. To send all files from their start, use another --state FILE"
            )
        return state

    def save(self, state: State) -> None:
        self._disk.write_atomic(str(self.path), state.to_json())


# -- the agent -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sending:
    """How records are sent."""

    routing: Routing = Routing()
    headers: Headers = ()
    codec: Codec = Codec.NONE

    @property
    def overhead(self) -> int:
        """Bytes of one record in a batch, besides key and value: an upper bound."""
        named = sum(len(key) * 4 + len(value or b"") + 16 for key, value in self.headers)
        return RECORD_OVERHEAD + named


class Agent:
    """Sends what is appended to files, until it is interrupted.

    ``sent``: called with the partition and the first and last offset of records that were
    acknowledged. ``sleep``: waits for a number of seconds.
    """

    def __init__(
        self,
        file: StateFile,
        state: State,
        paths: Sequence[str],
        sending: Sending,
        *,
        sent: Callable[[int, int, int], None],
        note: Note,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._state, self._sending = file, state, sending
        self._sent, self._note, self._sleep, self._monotonic = sent, note, sleep, monotonic
        self._turn = 0  # of the partitions, for lines without keys
        self._first = 0  # number of the file that is read first in the next round
        self._is_saved = False  # by this run
        self._files: dict[str, FollowedFile] = {}
        self._paths = list(dict.fromkeys(map(os.path.abspath, paths)))
        if len(self._paths) > FILES_MAX:
            raise InvalidRequestError(f"{len(self._paths)} files exceed the maximum of {FILES_MAX}")
        planned = state.round.chunks if state.round else []
        for path in dict.fromkeys([*self._paths, *(chunk.path for chunk in planned)]):
            places, finished = state.files.get(path, ([], []))
            self._files[path] = FollowedFile(path, places=places, finished=finished, note=note)
        for chunk in planned:
            self._files[chunk.path].reread(chunk)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def run(self, connect: Connect, *, once: bool) -> None:
        """Send lines; with ``once``, return when no complete line is left.

        ``connect``: returns the producer of a name and an epoch. Retries while brokers are
        unavailable. Raises all other errors of the producer, and ``InvalidRequestError``.
        """
        is_over, noted, failed_s = False, "", 0.0
        while not is_over:
            try:
                with connect(self._state.name, self._state.epoch) as producer:
                    is_over = self._send_rounds(producer, once=once)
            except (RetriableError, OutcomeUnknownError, OutOfOrderSequenceError) as error:
                now_s = self._monotonic()
                if str(error) != noted or now_s > failed_s + OUTAGE_S:
                    self._note(f"{error} (trying again; no line is lost)")
                noted, failed_s = str(error), now_s
                self._sleep(RETRY_S)

    def _send_rounds(self, producer: ResumableProducer, *, once: bool) -> bool:
        """Send rounds. Returns False if the state has a new epoch, and True at the end."""
        if not self._recover(producer):
            return False
        while self._state.epoch == producer.epoch:
            if self._round(producer, is_last=once):
                continue
            if once:
                return True
            self._sleep(POLL_S)
        return False

    def _save(self, plan: Round | None) -> None:
        self._state.round = plan
        for path, file in self._files.items():
            self._state.files[path] = (file.places, file.finished)
        self._file.save(self._state)
        self._is_saved = True

    # -- a round

    def _round(self, producer: ResumableProducer, *, is_last: bool) -> bool:
        """Send one round. Returns False if there are no lines."""
        chunks = self._read(is_last=is_last)
        if not chunks:
            if self._state.round is not None or not self._is_saved:
                self._save(None)
            return False
        topic, routing = self._state.topic, self._sending.routing
        count = producer.partition_count(topic)
        for chunk in chunks:
            chunk.partition = self._turn % count
            self._turn += 1
            routed = routing.route(chunk, count)
            chunk.counts = {number: len(records.values) for number, records in routed.items()}
        wanted = {TopicPartition(topic, number) for chunk in chunks for number in chunk.counts}
        base = {tp.partition: stored for tp, stored in producer.stored(sorted(wanted)).items()}
        if max(base.values()) > SEQUENCES_MAX:
            self._state.epoch += 1  # the same lines are the next round
            self._save(None)  # the round before is complete
            return True
        plan = Round(count, base, routing, chunks)
        self._save(plan)
        self._send(producer, plan, [{}] * len(chunks))
        return True

    def _read(self, *, is_last: bool) -> list[Chunk]:
        """Return the next chunk of each file, at most ``CHUNKS_MAX``; files take turns."""
        chunks: list[Chunk] = []
        count = len(self._paths)
        for step in range(count):
            path = self._paths[(self._first + step) % count]
            chunk = self._files[path].read(self._monotonic(), is_last=is_last)
            if chunk is not None:
                chunks.append(chunk)
            if len(chunks) == CHUNKS_MAX:
                self._first = (self._first + step + 1) % count
                break
        return chunks

    def _send(
        self, producer: ResumableProducer, plan: Round, skips: Sequence[dict[int, int]]
    ) -> None:
        """Append the records that are not stored, wait for them, and advance the positions."""
        now_ms = SystemClock().wall_ms()
        headers, codec, extra = self._sending.headers, self._sending.codec, self._sending.overhead
        bytes_max = producer.max_message_bytes(self._state.topic) * 9 // 10
        futures = []
        for chunk, skip in zip(plan.chunks, skips, strict=True):
            left = {n: count for n, count in chunk.counts.items() if count > skip.get(n, 0)}
            routed = plan.routing.route(chunk, plan.partitions) if left else {}
            for number in left:
                done = chunk.skip.get(number, 0) + skip.get(number, 0)
                for part in routed[number].batches(bytes_max, skip=done, extra=extra):
                    body = encode(
                        part.values,
                        keys=part.keys if any(key is not None for key in part.keys) else None,
                        timestamps_ms=now_ms,
                        headers=[headers] * len(part.values) if headers else None,
                        codec=codec,
                    )
                    tp = TopicPartition(self._state.topic, number)
                    futures.append((number, len(part.values), producer.append(tp, body)))
        producer.flush()
        for number, count, future in futures:
            first = future.result().offset
            self._sent(number, first, first + count - 1)
        for chunk in plan.chunks:
            self._files[chunk.path].complete(chunk)
            chunk.data = chunk.source = None

    # -- the round of the run before

    def _recover(self, producer: ResumableProducer) -> bool:
        """Complete the round that the state has. Returns False if it continues in a new epoch."""
        plan = self._state.round
        if plan is None:
            return True
        topic = self._state.topic
        wanted = [TopicPartition(topic, number) for number in sorted(plan.base)]
        stored = {tp.partition: count for tp, count in producer.stored(wanted).items()}
        if forgotten := [number for number, base in plan.base.items() if stored[number] < base]:
            self._note(
                f"partition {forgotten[0]} of {topic} has no state of this agent any more: it is "
                "kept for 7 days. The last lines of the run before are sent again"
            )
            plan.base |= {number: stored[number] for number in forgotten}
            self._save(plan)
        skips = plan.skips(stored)
        is_lost = False
        for chunk, skip in zip(plan.chunks, skips, strict=True):
            if chunk.data is None and skip != chunk.counts:
                self._note(
                    f"{chunk.path}: bytes {chunk.start} to {chunk.end - 1} were read, but not "
                    "stored, and the file does not have them any more: these lines are lost"
                )
                is_lost = True
        if is_lost:
            for chunk, skip in zip(plan.chunks, skips, strict=True):
                if skip == chunk.counts:
                    self._files[chunk.path].complete(chunk)
            self._state.epoch += 1  # a late request must not use the numbers of other lines
            self._save(plan.without_lost(skips))
            return False
        self._send(producer, plan, skips)
        return True
