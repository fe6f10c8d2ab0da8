"""An external cluster: its addresses, and a user's script that injects faults into its brokers.

The arguments of the script are an action and its targets: ``kill 2``, ``start 2``, ``pause 2``,
``resume 2``, ``wipe 2`` (remove the data of a broker that is down), ``cut 1 2`` (block messages
from 1 to 2; 0 is the id of the clients), ``heal`` (undo all cuts), ``state 2`` (write running,
stopped or gone to standard output). Exit status 0: done; 3: not supported, reported as not
injected; any other: failed, with the reason on standard error. ``start`` may return before the
broker responds. Calls for several brokers run in parallel.
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
from raftlog.testing.cluster import POLL_INTERVAL_S, answers
from raftlog_jepsen.plan import Shape
from raftlog_jepsen.status import Answers, Asking, ClusterStatus, lacking, until_nothing

CANNOT: Final = 3  # exit status of the script for an action that it does not support
SCRIPT_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 60.0
STATES: Final = ("running", "stopped", "gone")


class ScriptError(OSError):
    """The script failed. The text contains its arguments and its output."""


class CannotError(ScriptError):
    """The script does not support the action."""


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """An external broker. Properties that only local brokers have are None or empty."""

    id: int
    address: Address
    disk: None = None
    data_dir: None = None
    broker_pid: None = None
    process: None = None
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Script:
    """The user's script. ``path`` None: no faults can be injected into brokers."""

    def __init__(self, path: Path | None, *, timeout_s: float = SCRIPT_TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._cannot: dict[str, str] = {}  # reason, by action that the script does not support

    def cannot(self, act: str) -> str:
        """Return why the action is not possible; empty if it is possible or was not tried yet."""
        if self.path is None:
            return "no control script. Set --control"
        return self._cannot.get(act, "")

    def do(self, act: str, *ids: int) -> str:
        """Run the script and return its output. Raises ``ScriptError`` if it fails, and
        ``CannotError`` if it does not support the action."""
        return self.do_all(act, [ids])[0]

    def do_all(self, act: str, calls: Sequence[tuple[int, ...]]) -> list[str]:
        """Run several calls in parallel. All have ended when this returns or raises."""
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
            why = " ".join(complaint.split()) or "the script does not support it"
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
    """The network, blocked by the script. Only the links of clients can be observed."""

    backend: Final = "script"
    links: None = None

    def __init__(self, script: Script, addresses: Mapping[int, Address]) -> None:
        self._script = script
        self._addresses = addresses
        self._cut: set[tuple[int, int]] = set()

    def cut(self, pairs: Collection[tuple[int, int]]) -> None:
        """Block pairs. Raises ``ScriptError``; ``CannotError`` if the script does not support
        it."""
        self._cut |= set(pairs)  # recorded first, so that a partial failure is undone too
        self._script.do_all("cut", sorted(pairs))

    def mend(self, pairs: Collection[tuple[int, int]]) -> None:
        """Undo all cuts, because the script cannot undo one, and block the other pairs again."""
        rest = self._cut - set(pairs)
        self.heal()
        self.cut(rest)

    def heal(self) -> None:
        if self._cut:
            self._script.do("heal")
            self._cut = set()

    def reaches(self, a: int, b: int) -> bool:
        """Return whether b accepts connections, observed if a is 0 (clients).

        Between brokers, return whether the script was not called to block a direction.
        """
        if a == 0:
            return answers(self._addresses[b])
        return self._cut.isdisjoint({(a, b), (b, a)})

    def passes(self, a: int, b: int) -> bool:
        """Return whether the script was not called to block this direction."""
        return (a, b) not in self._cut

    def slow(self, broker: int, bits_per_s: int) -> None:
        """Raise ``CannotError``: the script has no such action."""
        raise CannotError(f"broker {broker}: the script cannot slow links to {bits_per_s} bit/s")

    def unslow(self, broker: int) -> None:
        pass


class ExternalCluster:
    """An external cluster, with the parts of ``ClusterUnderTest``'s interface that apply to it.

    ``bootstrap``: "host:port,host:port". ``script``: see the module; None: no faults are injected.
    ``shape``: the shape in the plan. Raises ``ValueError`` if the broker ids differ from those of
    the plan, which begin at 1, and ``RaftlogError`` if the cluster does not respond.
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
                f"the cluster has the brokers {sorted(self.hosts)}, the plan has "
                f"{list(self.shape.broker_ids)}. Use a cluster with the broker ids 1 to --brokers"
            )
        places = {host.id: host.address for host in self.hosts.values()}
        self._asking = Asking(places)
        self.net = ScriptNet(self.script, places)
        self._down: set[int] = set()
        self._paused: set[int] = set()
        self._kills = dict.fromkeys(self.hosts, 0)

    # -- all brokers

    def addresses(self) -> dict[int, str]:
        """Return the address of each broker for clients, by broker id."""
        return {host.id: str(host.address) for host in self.hosts.values()}

    def data_directories(self) -> dict[int, Path]:
        """Return an empty mapping: the data directories are not accessible."""
        return {}

    def start(self) -> None:
        """Wait until all brokers respond and are members. Starts no broker.

        Raises ``BrokerUnavailableError`` after 60 s.
        """
        missing = until_nothing(
            lambda: lacking(self.hosts.keys(), self.hosts.keys(), self.answers()),
            timeout_s=READY_TIMEOUT_S,
        )
        if missing:
            raise BrokerUnavailableError(f"{self.bootstrap}: {'; '.join(missing)}")

    def stop(self) -> None:
        """Do nothing: the cluster continues to run."""

    def close(self) -> None:
        """Disconnect from the cluster. Does not change the cluster."""
        self._asking.close()

    # -- single brokers

    def cannot(self, act: str) -> str:
        """Return why the action is not possible; empty if it is possible or was not tried yet."""
        return self.script.cannot(act)

    def up(self) -> set[int]:
        """Return the brokers that the script has not killed or paused."""
        return self.hosts.keys() - self._down - self._paused

    def kill(self, broker_ids: Collection[int]) -> dict[int, str]:
        """Kill those of these brokers that run. Returns how each ended. Raises ``ScriptError``."""
        ran = sorted(set(broker_ids) - self._down)
        self._down |= set(ran)  # recorded first, so that a partial failure is undone too
        self.script.do_all("kill", [(broker_id,) for broker_id in ran])
        self._paused -= set(ran)
        for broker_id in ran:
            self._kills[broker_id] += 1
        return dict.fromkeys(ran, "killed, as the script reports")

    def spawn(self, broker_id: int) -> None:
        """Start the broker with the script, unless it runs."""
        if broker_id in self._down:
            self.script.do("start", broker_id)
            self._down.discard(broker_id)

    def start_broker(self, broker_id: int) -> float:
        """Start the broker with the script, unless it runs. Returns the seconds until it responds.

        Raises ``ScriptError``, and ``BrokerUnavailableError`` if it does not respond in 60 s.
        """
        began = time.monotonic()
        self.spawn(broker_id)
        address = self.hosts[broker_id].address
        while not answers(address):
            if time.monotonic() - began > READY_TIMEOUT_S:
                raise BrokerUnavailableError(
                    f"broker {broker_id} does not respond at {address} {READY_TIMEOUT_S:g} s after "
                    "the script was called to start it"
                )
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic() - began

    def pause(self, broker_ids: Collection[int]) -> None:
        """Pause the running brokers with the script. Raises ``ScriptError``."""
        ids = sorted(set(broker_ids) - self._down)
        self._paused |= set(ids)
        self.script.do_all("pause", [(broker_id,) for broker_id in ids])

    def resume(self, broker_ids: Collection[int]) -> None:
        """Resume the paused brokers with the script. Raises ``ScriptError``."""
        ids = sorted(self._paused & set(broker_ids))
        self.script.do_all("resume", [(broker_id,) for broker_id in ids])
        self._paused -= set(ids)

    def wipe(self, broker_id: int) -> None:
        """Remove the data of a broker with the script.

        Raises ``ValueError`` if the broker runs, and ``ScriptError``.
        """
        if broker_id not in self._down:
            raise ValueError(f"broker {broker_id} is running. Kill it first")
        self.script.do("wipe", broker_id)

    def state(self, broker_id: int) -> str:
        """Return the state of the broker's process, as the script reports it.

        If the script does not report it: ``running`` if the broker responds, else ``unknown``.
        """
        try:
            said = self.script.do("state", broker_id)
        except ScriptError:
            said = ""
        if said in STATES:
            return said
        return "running" if answers(self.hosts[broker_id].address) else "unknown"

    def exits(self) -> list[object]:
        """Return an empty list: unexpected ends cannot be observed."""
        return []

    def expect_exit(self, broker_ids: Collection[int]) -> None:
        """Do nothing: see ``exits``."""

    def unexpected_exits(self) -> list[str]:
        """Return an empty list: see ``exits``."""
        return []

    def kills(self) -> dict[int, int]:
        """Return the number of kills of each broker by the script."""
        return dict(self._kills)

    def ensure_all_up(self) -> list[str]:
        """Resume and start the brokers that the script has paused and killed. Returns the actions
        and failures."""
        reported = []
        for act, ids in (("resume", self._paused), ("start", self._down)):
            for broker_id in sorted(ids):
                try:
                    if act == "resume":
                        self.resume([broker_id])
                    else:
                        self.start_broker(broker_id)
                    reported.append(f"broker {broker_id} still needed {act}")
                except (ScriptError, BrokerUnavailableError) as error:
                    reported.append(f"broker {broker_id} failed to {act}: {error}")
        return reported

    # -- status

    def answers(self) -> Answers:
        """Return the responses of the running brokers, in at most 3 s."""
        return self._asking.answers(self.up())

    def status(self) -> ClusterStatus:
        """Return all partitions, from the newest leader epoch that any broker reports; in at most
        3 s."""
        return self.answers().status()

    def wait_quiet(self, timeout_s: float) -> list[str]:
        """Wait until all brokers are members and all replicas are complete.

        Returns the conditions that are not met after ``timeout_s``; empty if the cluster has
        converged.
        """
        return until_nothing(
            lambda: lacking(self.hosts.keys(), self.up(), self.answers()), timeout_s=timeout_s
        )
