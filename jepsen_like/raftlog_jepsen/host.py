"""One broker of the cluster under test, with its process, disk and environment."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raftlog.config.address import Address
from raftlog.config.voters import parse_voters
from raftlog.errors import BrokerUnavailableError
from raftlog.server.main import STATUS_REMOVED
from raftlog.testing.probes import POLL_INTERVAL_S
from raftlog.testing.processes import READY_TIMEOUT_S, BrokerProcess

if TYPE_CHECKING:
    from raftlog_jepsen.control.disks import LoopDisk

PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Exit:
    """An end of a broker without a command of the harness. ``status``: negative for a signal.

    ``expected``: a nemesis expected it.
    """

    broker: int
    status: int
    last_words: str
    expected: bool
    monotonic_ns: int

    def __str__(self) -> str:
        how = how_it_ended(self.status)
        return f"broker {self.broker} ended unexpectedly with {how}: {self.last_words}"


@dataclass
class Host:
    """One broker. ``address``: for clients; ``process.address``: where it listens.

    ``disk``: None if the data directory is an ordinary directory. ``may_exit``: the broker is
    expected to end. ``leaves``: the broker may be removed from the cluster, and then ends.
    """

    process: BrokerProcess
    address: Address
    disk: LoopDisk | None = None
    environment: dict[str, str] = field(default_factory=dict)
    may_exit: bool = False
    leaves: bool = False
    exits: list[Exit] = field(default_factory=list)
    _words_at: int = 0  # offset in the log of the output since its last start

    def __post_init__(self) -> None:
        self.process.environment = self.environment
        self.process.on_death = self._note_exit

    @property
    def id(self) -> int:
        return self.process.id

    @property
    def data_dir(self) -> Path:
        return self.process.data_dir

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.process.prefix

    @property
    def broker_pid(self) -> int | None:
        """Process id of the broker itself, also if a wrapper command started it."""
        return self.process.broker_pid

    def join(self) -> None:
        """Configure the broker to join the cluster of its configured voters at the next start."""
        settings = dict(self.process.settings)
        voters = parse_voters(settings.pop("voters", ""))
        if voters:
            addresses = [str(voter.address) for voter in voters if voter.id != self.id]
            self.process.settings = {**settings, "join": ",".join(addresses)}

    def spawn(self) -> None:
        """Start the process without waiting for it. Raises ``ValueError`` if it runs."""
        log = self.process.log_path
        self._words_at = log.stat().st_size if log.exists() else 0
        self.process.spawn()

    def wait_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the broker's log reports that it is ready.

        Sends no request, because the network may be blocked. Raises ``BrokerUnavailableError`` if
        the broker ends (with its final log output) or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            if not self.process.running:
                raise BrokerUnavailableError(
                    f"broker {self.id} ended with status {self.process.exit_status}: "
                    f"{self.process.last_words()}"
                )
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"broker {self.id} is not ready after {timeout_s:g} s; see "
                    f"{self.process.log_path}"
                )
            time.sleep(POLL_INTERVAL_S)

    def state(self) -> str:
        """Return the state of the process: ``gone``, ``stopped`` (all threads), ``running``, or
        ``unknown`` without /proc."""
        pid = self.broker_pid
        if pid is None:
            return "running" if self.process.running else "gone"
        return state_of(pid)

    def _is_ready(self) -> bool:
        with self.process.log_path.open("rb") as log:
            log.seek(self._words_at)
            said = log.read()
        # In a cluster, "ready" comes only when enough of the others are there.
        name = f"raftlog broker {self.id}"
        return any(f"{name} {what} on ".encode() in said for what in ("listens", "ready"))

    def _note_exit(self, status: int) -> None:
        words = self.process.last_words()
        is_expected = self.may_exit or (self.leaves and status == STATUS_REMOVED)
        self.exits.append(Exit(self.id, status, words, is_expected, time.monotonic_ns()))


def how_it_ended(status: int | None) -> str:
    """Describe a process's exit status."""
    if status is None:
        return "no end"
    return f"signal {-status}" if status < 0 else f"status {status}"


def state_of(pid: int) -> str:
    """Return the state of a process, from the states of its threads; see proc(5).

    ``gone``; ``stopped`` if all threads are stopped; ``running``; ``unknown`` without /proc.
    """
    if not PROC.exists():
        return "unknown"
    states = set()
    for stat in (PROC / str(pid) / "task").glob("*/stat"):
        try:
            states.add(stat.read_text().rpartition(")")[2].split()[0])
        except OSError:  # the thread has ended
            continue
    if not states - {"Z", "X"}:
        return "gone"
    return "stopped" if states <= {"T", "t"} else "running"
