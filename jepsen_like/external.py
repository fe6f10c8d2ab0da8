"""A cluster that is not ours: addresses, and a user's script that can do harm to its brokers.

The script is called with what to do and to whom: ``kill 2``, ``start 2``, ``pause 2``,
``resume 2``, ``wipe 2`` (remove the data of a broker that is down), ``cut 1 2`` (nothing that 1
sends arrives at 2 any more; 0 stands for the clients), ``heal`` (undo all cuts), ``state 2`` (write
running, stopped or gone on standard output). Status 0: it is done; 3: that cannot be done here,
which is reported as not injected; any other: it failed, and standard error says why. ``start`` may
return before the broker answers. Calls that are to happen at the same moment overlap.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftlog import Admin
from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.jepsen_like.plan import Shape
from raftlog.jepsen_like.status import Answers, Asking, ClusterStatus, lacking, until_nothing
from raftlog.testing.probes import POLL_INTERVAL_S, answers

CANNOT: Final = 3  # the script's status for what cannot be done there
SCRIPT_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 60.0
STATES: Final = ("running", "stopped", "gone")


class ScriptError(OSError):
    """The script failed: what it was called with, and what it said."""


class CannotError(ScriptError):
    """The script says that this cannot be done."""


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """A broker somewhere else. What only a broker of this machine has is None, or empty."""

    id: int
    address: Address
    disk: None = None
    data_dir: None = None
    broker_pid: None = None
    process: None = None
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Script:
    """The user's script; None: nothing can be done to brokers."""

    def __init__(self, path: Path | None, *, timeout_s: float = SCRIPT_TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._cannot: dict[str, str] = {}  # what it has refused

    def cannot(self, act: str) -> str:
        """Why that cannot be done; empty if it can, or nobody has tried yet."""
        if self.path is None:
            return "no script says how (--control)"
        return self._cannot.get(act, "")

    def do(self, act: str, *ids: int) -> str:
        """What it says. Raises ``ScriptError``, and ``CannotError`` if it cannot be done there."""
        return self.do_all(act, [ids])[0]

    def do_all(self, act: str, calls: Sequence[tuple[int, ...]]) -> list[str]:
        """The same with several at once. All have ended when this returns or raises."""
        why = self.cannot(act)
        if why:
            raise CannotError(f"{act}: {why}")
        assert self.path is not None
        commands = [[str(self.path), act, *map(str, ids)] for ids in calls]
        running: list[subprocess.Popen[str]] = []
        said, errors = [], []
        try:
            running.extend(map(_start, commands))
        except OSError as error:
            errors.append(ScriptError(f"{self.path} cannot be run: {error}"))
        for process, command in zip(running, commands, strict=False):
            try:
                said.append(self._end(process, command))
            except ScriptError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return said

    def _end(self, process: subprocess.Popen[str], command: Sequence[str]) -> str:
        shown = " ".join(command)
        try:
            output, complaint = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise ScriptError(f"{shown}: not done after {self._timeout_s:g} s") from None
        if process.returncode == CANNOT:
            why = " ".join(complaint.split()) or "the script says that it cannot"
            self._cannot[command[1]] = why
            raise CannotError(f"{shown}: {why}")
        if process.returncode:
            raise ScriptError(f"{shown}: status {process.returncode}: {complaint.strip()}")
        return output.strip()


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class ScriptNet:
    """The network as the script cuts it. Only what clients reach can be seen from here."""

    backend: Final = "script"
    links: None = None

    def __init__(self, script: Script, addresses: Mapping[int, Address]) -> None:
        self._script = script
        self._addresses = addresses
        self._cut: set[tuple[int, int]] = set()

    def cut(self, pairs: Collection[tuple[int, int]]) -> None:
        """Raises ``OSError``: ``CannotError`` if the script has no way to."""
        self._cut |= set(pairs)  # first: what fails half-way is healed too
        self._script.do_all("cut", sorted(pairs))

    def mend(self, pairs: Collection[tuple[int, int]]) -> None:
        """The script can only undo everything: what is to stay cut is cut again."""
        rest = self._cut - set(pairs)
        self.heal()
        self.cut(rest)

    def heal(self) -> None:
        if self._cut:
            self._script.do("heal")
            self._cut = set()

    def reaches(self, a: int, b: int) -> bool:
        """Observed for clients (0). Between brokers: as the script was told, both ways."""
        if a == 0:
            return answers(self._addresses[b])
        return self._cut.isdisjoint({(a, b), (b, a)})

    def passes(self, a: int, b: int) -> bool:
        """As the script was told."""
        return (a, b) not in self._cut

    def slow(self, broker: int, bits_per_s: int) -> None:
        """Raises ``CannotError``: the script is not asked for that."""
        raise CannotError(f"broker {broker}: no script slows links to {bits_per_s} bit/s")

    def unslow(self, broker: int) -> None:
        pass


class ExternalCluster:
    """A cluster that runs already. It has the face of ``ClusterUnderTest``, as far as it can.

    ``bootstrap``: "host:port,host:port". ``script``: see the module; None: no harm is done.
    ``shape``: what the plan takes it for. Raises ``ValueError`` if its brokers' ids are not those
    of the plan, from 1 on, and ``RaftlogError`` if it cannot be reached.
    """

    def __init__(self, bootstrap: str, script: Path | None, *, shape: Shape | None = None) -> None:
        self.bootstrap = bootstrap
        self.script = Script(script)
        with Admin(bootstrap) as admin:
            brokers = admin.describe_cluster(partitions=False).brokers
        self.hosts = {
            each.id: RemoteHost(each.id, Address(each.host, each.port))
            for each in sorted(brokers, key=lambda each: each.id)
        }
        self.shape = shape or Shape(brokers=len(self.hosts), topics=())
        if self.hosts.keys() != set(self.shape.broker_ids):
            raise ValueError(
                f"the cluster's brokers are {sorted(self.hosts)}, the plan's "
                f"{list(self.shape.broker_ids)}: brokers' ids have to go from 1 to their number"
            )
        places = {host.id: host.address for host in self.hosts.values()}
        self._asking = Asking(places)
        self.net = ScriptNet(self.script, places)
        self._down: set[int] = set()
        self._paused: set[int] = set()
        self._kills = dict.fromkeys(self.hosts, 0)

    # -- all of them

    def addresses(self) -> dict[int, str]:
        """Where clients reach each broker, by its id."""
        return {host.id: str(host.address) for host in self.hosts.values()}

    def data_directories(self) -> dict[int, Path]:
        """None: they are out of reach."""
        return {}

    def start(self) -> None:
        """Wait until all answer and are members; raises ``BrokerUnavailableError`` if not in 60 s.

        Nothing is started: whoever runs the cluster has done that.
        """
        missing = until_nothing(
            lambda: lacking(self.hosts.keys(), self.hosts.keys(), self.answers()),
            timeout_s=READY_TIMEOUT_S,
        )
        if missing:
            raise BrokerUnavailableError(f"{self.bootstrap}: {'; '.join(missing)}")

    def stop(self) -> None:
        """Nothing: it goes on for those that run it."""

    def close(self) -> None:
        """Let go of the cluster, and leave it as it is."""
        self._asking.close()

    # -- single ones

    def cannot(self, act: str) -> str:
        """Why the script cannot do that, as far as is known."""
        return self.script.cannot(act)

    def up(self) -> set[int]:
        """Those that the script was not told to kill, nor to pause."""
        return self.hosts.keys() - self._down - self._paused

    def kill(self, broker_ids: Collection[int]) -> dict[int, str]:
        """The script's word for those that ran. Raises ``ScriptError``."""
        ran = sorted(set(broker_ids) - self._down)
        self._down |= set(ran)  # first: whom it half-way killed is started again
        self.script.do_all("kill", [(broker_id,) for broker_id in ran])
        self._paused -= set(ran)
        for broker_id in ran:
            self._kills[broker_id] += 1
        return dict.fromkeys(ran, "killed, as the script says")

    def spawn(self, broker_id: int) -> None:
        """Have it started, unless it runs."""
        if broker_id in self._down:
            self.script.do("start", broker_id)
            self._down.discard(broker_id)

    def start_broker(self, broker_id: int) -> float:
        """Have it started, unless it runs, and wait until it answers; the seconds that took.

        Raises ``ScriptError``; ``BrokerUnavailableError`` if it does not answer in 60 s.
        """
        began = time.monotonic()
        self.spawn(broker_id)
        address = self.hosts[broker_id].address
        while not answers(address):
            if time.monotonic() - began > READY_TIMEOUT_S:
                raise BrokerUnavailableError(
                    f"broker {broker_id} does not answer at {address} {READY_TIMEOUT_S:g} s after "
                    "the script was told to start it"
                )
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic() - began

    def pause(self, broker_ids: Collection[int]) -> None:
        """Raises ``ScriptError``."""
        ids = sorted(set(broker_ids) - self._down)
        self._paused |= set(ids)
        self.script.do_all("pause", [(broker_id,) for broker_id in ids])

    def resume(self, broker_ids: Collection[int]) -> None:
        """Raises ``ScriptError``."""
        ids = sorted(self._paused & set(broker_ids))
        self.script.do_all("resume", [(broker_id,) for broker_id in ids])
        self._paused -= set(ids)

    def wipe(self, broker_id: int) -> None:
        """Have a broker's data removed; it has to be down. Raises ``ScriptError``."""
        if broker_id not in self._down:
            raise ValueError(f"broker {broker_id} runs: kill it first")
        self.script.do("wipe", broker_id)

    def state(self, broker_id: int) -> str:
        """What the script says of the broker's process.

        If it has no word for it: ``running`` if the broker answers, else ``unknown``.
        """
        try:
            said = self.script.do("state", broker_id)
        except ScriptError:
            said = ""
        if said in STATES:
            return said
        return "running" if answers(self.hosts[broker_id].address) else "unknown"

    def exits(self) -> list[object]:
        """None: who ended by itself cannot be seen from here."""
        return []

    def expect_exit(self, broker_ids: Collection[int]) -> None:
        """Nothing: see ``exits``."""

    def unexpected_exits(self) -> list[str]:
        """None: see ``exits``."""
        return []

    def kills(self) -> dict[int, int]:
        """How often the script has killed each broker."""
        return dict(self._kills)

    def ensure_all_up(self) -> list[str]:
        """Resume and start what the script was told to pause and kill; says what was done."""
        told = []
        for act, ids in (("resume", self._paused), ("start", self._down)):
            for broker_id in sorted(ids):
                try:
                    if act == "resume":
                        self.resume([broker_id])
                    else:
                        self.start_broker(broker_id)
                    told.append(f"broker {broker_id} had to be told to {act} still")
                except (ScriptError, BrokerUnavailableError) as error:
                    told.append(f"broker {broker_id} cannot be told to {act}: {error}")
        return told

    # -- what they say

    def answers(self) -> Answers:
        """What the brokers that are up answer, in 3 s at most."""
        return self._asking.answers(self.up())

    def status(self) -> ClusterStatus:
        """All partitions, by the newest leader epoch that any broker tells of; 3 s at most."""
        return self.answers().status()

    def wait_quiet(self, timeout_s: float) -> list[str]:
        """What is missing after at most ``timeout_s`` until all is at work and whole."""
        return until_nothing(
            lambda: lacking(self.hosts.keys(), self.up(), self.answers()), timeout_s=timeout_s
        )
