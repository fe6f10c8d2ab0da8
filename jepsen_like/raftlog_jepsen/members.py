"""The members of consumer groups: starts, stops and kills their processes and records their events.

A group has *slots*, each with one process at a time. The events that a process reports are recorded
in the history, with the time that the process reports. A slot whose process ended unexpectedly gets
a new process, unless a nemesis keeps the slot empty. All methods are thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.testing.fork_server import SOURCE, python_path
from raftlog.testing.history import Commit, Member, Note, Poll, Recorder, Seen
from raftlog_jepsen.cluster import how_it_ended, state_of
from raftlog_jepsen.member import Event, Settings
from raftlog_jepsen.plan import ClientName, GroupShape, MemberShape

COMMAND: Final = (sys.executable, "-P", "-m", "raftlog_jepsen.member")
STOP_TIMEOUT_S: Final = 20.0
LAST_WORDS_BYTES: Final = 2_000
FENCED: Final = "InstanceFencedError"  # ends a static member; expected
_DECODER: Final = msgspec.json.Decoder(Event)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a group. ``number``: unique in the run, from 1."""

    number: int
    group: GroupShape
    shape: MemberShape

    @property
    def name(self) -> str:
        return f"{self.group.name}/m{self.number}"


@dataclass
class Life:
    """One process in a slot, and the events that it has reported."""

    slot: Slot
    name: str
    process: subprocess.Popen[bytes]
    reader: threading.Thread | None = None
    generation: int = 0  # increases with every change of the assignment
    is_ending: bool = False  # the harness has stopped or killed it
    is_paused: bool = False
    error: str = ""  # last reported error
    owned: set[str] = field(default_factory=set)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None


class Members:
    """The members of all groups. The owner must call ``close``.

    ``prefix``: the command that moves a slot's process into its network, if it has one.
    """

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        bootstrap: str,
        groups: Sequence[GroupShape],
        *,
        client: ClientName = "raftlog",
        prefix: Callable[[int], Sequence[str]] = lambda _slot: (),
    ) -> None:
        slots = [(group, shape) for group in groups for shape in group.members]
        self.slots = [Slot(n, *slot) for n, slot in enumerate(slots, start=1)]
        # by group, partition: end of the delivered records
        self.given: dict[tuple[str, str], int] = {}
        self._directory = directory
        self._recorder = recorder
        self._bootstrap = bootstrap
        self._client = client
        self._prefix = prefix
        self._lives: dict[int, Life] = {}  # by slot: the latest
        self._counts: dict[int, int] = {}
        self._held: set[int] = set()  # slots that a nemesis keeps empty
        self._lock = threading.RLock()
        self._is_closed = False

    # -- state

    def running(self, group: str | None = None) -> list[int]:
        """Return the slots, of one group or all, with a process that runs and is not paused."""
        with self._lock:
            return [
                slot.number
                for slot in self.slots
                if group in {None, slot.group.name}
                and slot.number in self._lives
                and self._lives[slot.number].runs
                and not self._lives[slot.number].is_paused
            ]

    def owned(self, slot: int) -> set[str]:
        """Return the partitions that the member owns in its own view."""
        life = self._lives.get(slot)
        return set(life.owned) if life is not None else set()

    def state(self, slot: int) -> str:
        """Return the state of the slot's process: gone, stopped, running, or unknown."""
        life = self._lives.get(slot)
        return state_of(life.process.pid) if life is not None and life.runs else "gone"

    def name(self, slot: int) -> str:
        """Return the name of the current or last process."""
        life = self._lives.get(slot)
        return life.name if life is not None else f"slot {slot}"

    # -- actions

    def start(self, slots: Iterable[int]) -> None:
        """Start processes in those of these slots that have no running process."""
        for number in slots:
            with self._lock:
                life = self._lives.get(number)
                self._held.discard(number)
                if not self._is_closed and (life is None or not life.runs):
                    self._start(self.slots[number - 1])

    def mind(self) -> None:
        """Restart members that ended unexpectedly."""
        self.start(slot.number for slot in self.slots if slot.number not in self._held)

    def kill(self, slots: Collection[int]) -> dict[int, str]:
        """Send SIGKILL. The slots stay empty until ``start``. Returns how each running process
        ended."""
        ended: dict[int, str] = {}
        lives = self._take(slots)
        for life in lives:
            life.process.kill()
        for life in lives:
            ended[life.slot.number] = how_it_ended(life.process.wait())
            self._record(life, "killed", args={"ended": ended[life.slot.number]})
            self._bury(life)
        return ended

    def stop(self, slots: Collection[int], *, timeout_s: float = STOP_TIMEOUT_S) -> dict[int, str]:
        """Make members leave their groups and end. The slots stay empty until ``start``.

        Returns how each process ended. A process that does not end in time is killed ("signal 9").
        """
        lives = self._take(slots)
        for life in lives:
            self._record(life, "close")
            _say(life, b"stop\n")
        deadline = time.monotonic() + timeout_s
        ended = {}
        for life in lives:
            try:
                status = life.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                life.process.kill()
                status = life.process.wait()
                self._record(life, "killed", error=f"did not end within {timeout_s:g} s")
            ended[life.slot.number] = how_it_ended(status)
            self._bury(life)
        return ended

    def pause(self, slots: Collection[int]) -> None:
        """Send SIGSTOP."""
        for life in self._lives_of(slots):
            self._record(life, "paused")
            life.is_paused = True
            life.process.send_signal(signal.SIGSTOP)

    def resume(self, slots: Collection[int]) -> None:
        """Send SIGCONT."""
        for life in self._lives_of(slots):
            life.process.send_signal(signal.SIGCONT)
            life.is_paused = False
            self._record(life, "resumed")

    def note(self, slots: Collection[int], what: str) -> None:
        """Record a change of their network: ``cut`` or ``mended``."""
        for life in self._lives_of(slots):
            self._record(life, what)

    def close(self) -> None:
        """Kill all running processes. Can be called twice."""
        with self._lock:
            self._is_closed = True
        self.kill([slot.number for slot in self.slots])

    # -- processes

    def _lives_of(self, slots: Collection[int]) -> list[Life]:
        with self._lock:
            found = (self._lives.get(number) for number in slots)
            return [life for life in found if life is not None and life.runs]

    def _take(self, slots: Collection[int]) -> list[Life]:
        with self._lock:
            self._held |= set(slots)
            lives = self._lives_of(slots)
            for life in lives:
                life.is_ending = True
            return lives

    def _start(self, slot: Slot) -> None:
        count = self._counts[slot.number] = self._counts.get(slot.number, 0) + 1
        settings = self._settings(slot, f"{slot.name}.{count}")
        self._directory.mkdir(parents=True, exist_ok=True)
        with self._log(slot).open("ab") as log:
            process = subprocess.Popen(
                [
                    *self._prefix(slot.number),
                    *COMMAND,
                    msgspec.json.encode(settings).decode(),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **python_path(SOURCE)},
                process_group=0,
            )
        life = self._lives[slot.number] = Life(slot, settings.name, process)
        self._record(life, "start", args=_reported(settings))
        life.reader = threading.Thread(
            target=self._listen, args=(life,), name=f"listen {life.name}", daemon=True
        )
        life.reader.start()

    def _settings(self, slot: Slot, name: str) -> Settings:
        group, shape = slot.group, slot.shape
        return Settings(
            bootstrap=self._bootstrap,
            name=name,
            group=group.name,
            topics=list(group.topics),
            by_pattern=group.by_pattern,
            style=shape.style,
            commits=shape.commits,
            commit_every=shape.commit_every,
            auto_commit_s=shape.auto_commit_s,
            records_max=shape.records_max,
            handling_s=shape.handling_s,
            instance=shape.instance,
            assignor=group.assignor,
            session_timeout_s=group.session_timeout_s,
            protocol=group.protocol if self._client == "kafka" else "",
        )

    def _log(self, slot: Slot) -> Path:
        return self._directory / f"{slot.name.replace('/', '-')}.log"

    def _bury(self, life: Life) -> None:
        """Wait until all events of an ended process are in the history."""
        if life.reader is not None:
            life.reader.join()

    # -- events

    def _listen(self, life: Life) -> None:
        assert life.process.stdout is not None
        with life.process.stdout as lines:
            for line in lines:
                try:
                    event = _DECODER.decode(line)
                except msgspec.DecodeError:  # the process was killed during the write
                    continue
                self._take_down(life, event)
        status = life.process.wait()
        self._ended(life, status)

    def _ended(self, life: Life, status: int) -> None:
        if life.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                life.process.stdin.close()
        how = how_it_ended(status)
        self._record(life, "end", args={"ended": how}, error=life.error if status else "")
        if status and not life.is_ending and FENCED not in life.error:
            text = f"member {life.name} ended unexpectedly with {how}: {self._last_words(life)}"
            self._recorder.record(
                Note(time=0, process="members", type="info", text=text, is_trouble=True)
            )

    def _last_words(self, life: Life) -> str:
        said = self._log(life.slot).read_bytes()[-LAST_WORDS_BYTES:]
        return said.decode(errors="replace").strip()

    def _take_down(self, life: Life, event: Event) -> None:
        if event.what == "given":
            self._given(life, event.at, event.records)
        elif event.what == "commit":
            self._recorder.record(
                Commit(
                    time=0,
                    process=life.name,
                    type=_TYPES[event.type],
                    group=life.slot.group.name,
                    offsets=event.offsets,
                    at=event.at,
                    error=event.error,
                )
            )
        elif event.what in {"error", "end"}:  # ``_ended`` records the end with its exit status
            life.error = event.error or life.error
            if event.what == "error":
                self._record(life, "error", at=event.at, error=event.error)
        else:
            life.generation += 1
            change = set(event.partitions)
            life.owned = life.owned | change if event.what == "assigned" else life.owned - change
            self._record(life, event.what, at=event.at, partitions=event.partitions)

    def _given(self, life: Life, at: int, records: dict[str, list[Seen]]) -> None:
        """Record a poll. Its process name changes with the assignment of the member."""
        group = life.slot.group.name
        process = f"{life.name}#{life.generation}"
        with self._lock:
            for type_, found in (("invoke", {}), ("ok", records)):
                self._recorder.record(
                    Poll(
                        time=0,
                        process=process,
                        type=_TYPES[type_],
                        records=found,
                        group=group,
                        at=at,
                    )
                )
            for partition, runs in records.items():
                end = max(offset + count for offset, count, _, _ in runs)
                key = group, partition
                self.given[key] = max(end, self.given.get(key, 0))

    def _record(
        self,
        life: Life,
        what: str,
        *,
        at: int = 0,
        partitions: Sequence[str] = (),
        args: dict[str, Any] | None = None,
        error: str = "",
    ) -> None:
        self._recorder.record(
            Member(
                time=0,
                process=life.name,
                type="info",
                group=life.slot.group.name,
                what=what,
                partitions=list(partitions),
                args=args or {},
                at=at or self._recorder.now_ns(),
                error=error,
            )
        )


_TYPES: Final[dict[str, Any]] = {name: name for name in ("invoke", "ok", "fail", "info")}


def _say(life: Life, line: bytes) -> None:
    if life.process.stdin is not None:
        with contextlib.suppress(BrokenPipeError, ValueError):  # the process has ended
            life.process.stdin.write(line)
            life.process.stdin.flush()


def _reported(settings: Settings) -> dict[str, Any]:
    """Return the settings of a member that the checker needs."""
    return {
        "topics": settings.topics,
        "commits": settings.commits,
        "style": settings.style,
        "instance": settings.instance,
        "session_timeout_s": settings.session_timeout_s,
        "handling_s": settings.handling_s,
    }
