"""Separate networks for brokers: network namespaces on one bridge. Requires Linux and root.

Broker N runs in namespace ``bN`` with the address 10.77.0.N on ``e0``; the other end of that cable
is ``vN``, a port of the bridge ``br0``. Clients and the harness (id 0) have 10.77.0.254 on the
bridge, in the namespace where ``Namespaces`` was entered. Neighbour tables have permanent entries,
so there are no ARP requests whose replies can be late or lost. This module injects no faults; see
``net``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, TypeVar

from raftlog.config.address import Address

T = TypeVar("T")

CONTROL: Final = 0  # the id of clients and of the harness
BROKERS_MAX: Final = 250
BRIDGE: Final = "br0"
DEVICE: Final = "e0"  # a broker's end of its cable
FOLDER: Final = Path("/run/netns")  # directory of `ip netns`
UNUSED_MAC: Final = "02:00:00:00:ff:ff"  # a hardware address that no device has
COMMANDS: Final = ("ip", "bridge", "tc", "nsenter", "unshare", "mount", "umount")
COMMAND_TIMEOUT_S: Final = 20.0

_SUBNET: Final = "10.77.0"
_CONTROL_HOST: Final = 254
_CLONE_NEWNET: Final = 0x4000_0000
_TRIAL: Final = (
    f"ip link add {BRIDGE} type bridge && ip link add v1 type veth peer name {DEVICE}"
    f" && ip link set v1 master {BRIDGE}"
)


@functools.cache
def why_not() -> str:
    """Return why namespaces cannot be created on this machine; empty if they can.

    Tests it in a temporary namespace.
    """
    if sys.platform != "linux":
        return "requires Linux"
    if os.geteuid() != 0:
        return "requires root, to create network namespaces"
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        return f"no {', '.join(missing)}"
    try:
        run("unshare", "--net", "--mount", "sh", "-c", _TRIAL)
    except OSError as error:
        return f"cannot create a network: {error}"
    return ""


def run(*command: str, stdin: str = "") -> str:
    """Return the output of a command. Raises ``OSError`` if it fails or takes 20 s."""
    return run_all([(command, stdin)])[0]


def run_all(commands: Sequence[tuple[Sequence[str], str]]) -> list[str]:
    """Run commands in parallel, each with its standard input. Returns their outputs in order.

    Raises ``OSError`` with the error output of the first failed command, after all have ended.
    """
    started = []
    complaint = ""
    for command, _ in commands:
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = []
    for process, (command, stdin) in zip(started, commands, strict=True):
        try:
            answer, error = process.communicate(stdin, timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            answer, error = process.communicate()
        said.append(answer)
        if process.returncode and not complaint:
            complaint = f"{' '.join(command)}: {error.strip() or process.returncode}"
    if complaint:
        raise OSError(complaint)
    return said


class Namespaces:
    """The network of ``count`` brokers, for the duration of a ``with`` block.

    Use it in a dedicated network namespace and mount namespace (``unshare --net --mount``):
    namespaces get their names in a private tmpfs.
    """

    def __init__(self, count: int) -> None:
        if not 1 <= count <= BROKERS_MAX:
            raise ValueError(
                f"cannot create namespaces for {count} brokers. Use 1 to {BROKERS_MAX}"
            )
        self.ids: tuple[int, ...] = tuple(range(1, count + 1))
        self._handles: dict[int, int] = {}  # file descriptors of namespaces by id, with CONTROL
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Namespaces:
        """Create the network. Raises ``OSError`` with the reason, after removing all that was
        created."""
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the network. Processes that still run in a namespace keep it, without name and
        cable."""
        self._stack.close()

    # -- addresses and names

    def address(self, place: int) -> str:
        """Return the IPv4 address of a broker; of clients and the harness for 0."""
        self._check(place)
        return f"{_SUBNET}.{place or _CONTROL_HOST}"

    def mac(self, place: int) -> str:
        """Return the hardware address of a broker's ``e0``; of the bridge for 0."""
        self._check(place)
        return f"02:00:0a:4d:00:{place or _CONTROL_HOST:02x}"

    def device(self, place: int) -> str:
        """Return the name of the network device in that namespace; of the bridge for 0."""
        self._check(place)
        return DEVICE if place else BRIDGE

    def port(self, broker: int) -> str:
        """Return the name of a broker's port of the bridge, in the namespace of the harness."""
        self._check(broker)
        return f"v{broker}"

    def prefix(self, place: int) -> tuple[str, ...]:
        """Return the command prefix that runs a command in that namespace; empty for 0."""
        self._check(place)
        return ("nsenter", f"--net={FOLDER / f'b{place}'}") if place else ()

    # -- actions in namespaces

    def run(self, place: int, *command: str) -> str:
        """Run a command in that namespace and return its output. Raises ``OSError`` if it
        fails."""
        return run(*self.prefix(place), *command)

    def batches(self, lines: Mapping[int, Sequence[str]]) -> None:
        """Run ``ip -batch`` with these lines in several namespaces in parallel."""
        run_all(
            [
                ((*self._ip(place), "-batch", "-"), "".join(f"{line}\n" for line in todo))
                for place, todo in lines.items()
            ]
        )

    def within(self, place: int, work: Callable[[], T]) -> T:
        """Return the result of ``work()``, called in a thread that uses the network of that id.

        Sockets that it creates stay in that network, also in other threads.
        """
        results: list[T] = []
        errors: list[BaseException] = []

        def enter_and_work() -> None:
            try:
                self.enter(place)
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
                errors.append(error)

        thread = threading.Thread(target=enter_and_work, name=f"raftlog-within-{place}")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def enter(self, place: int) -> None:
        """Move only the calling thread to the network of that id."""
        self._check(place)
        set_namespace(self._handles[place])

    def socket(self, place: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """Return a new socket in the network of that id. The calling thread must be in the network
        of the harness."""
        try:
            self.enter(place)
            return socket.socket(socket.AF_INET, kind)
        finally:
            self.enter(CONTROL)

    # -- construction

    def _make(self) -> None:
        taken = {name for _, name in socket.if_nameindex()} & {BRIDGE, *map(self.port, self.ids)}
        if taken:
            raise OSError(f"this network namespace already has {', '.join(sorted(taken))}")
        self._private_folder()
        self._hold(CONTROL, Path("/proc/thread-self/ns/net"))
        for broker in self.ids:
            run("ip", "netns", "add", f"b{broker}")
            self._stack.callback(run, "ip", "netns", "del", f"b{broker}")
            self._hold(broker, FOLDER / f"b{broker}")
        self._stack.callback(self._remove_links)
        cables = "".join(map(self._lines_of_cable, self.ids))
        run("ip", "-batch", "-", stdin=self._lines_of_bridge() + cables)
        self.batches({place: self._lines_within(place) for place in (CONTROL, *self.ids)})

    def _private_folder(self) -> None:
        """Mount a tmpfs over the names of other networks of this machine, until the exit."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "raftlog-netns", str(FOLDER))
        self._stack.callback(run, "umount", "--lazy", str(FOLDER))

    def _hold(self, place: int, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, handle)
        self._handles[place] = handle

    def _remove_links(self) -> None:
        """Remove those cables and the bridge that exist."""
        there = {name for _, name in socket.if_nameindex()}
        ours = [name for name in (*map(self.port, self.ids), BRIDGE) if name in there]
        run("ip", "-batch", "-", stdin="".join(f"link del {name}\n" for name in ours))

    def _lines_of_bridge(self) -> str:
        return (
            "link set lo up\n"
            f"link add {BRIDGE} address {self.mac(CONTROL)} type bridge\n"
            f"addr add {self.address(CONTROL)}/24 dev {BRIDGE}\n"
            f"link set {BRIDGE} up\n"
        )

    def _lines_of_cable(self, broker: int) -> str:
        port = self.port(broker)
        return (
            f"link add {port} type veth peer name {DEVICE} address {self.mac(broker)}"
            f" netns b{broker}\n"
            f"link set {port} master {BRIDGE}\n"
            f"link set {port} up\n"
        )

    def _lines_within(self, place: int) -> list[str]:
        lines = []
        if place != CONTROL:
            lines += [
                "link set lo up",
                f"addr add {self.address(place)}/24 dev {DEVICE}",
                f"link set {DEVICE} up",
            ]
        others = (other for other in (CONTROL, *self.ids) if other != place)
        return lines + [self.neighbour(place, other) for other in others]

    def neighbour(self, place: int, other: int, mac: str = "") -> str:
        """Return the ``ip -batch`` line in ``place`` that sets the hardware address of ``other``.

        ``mac``: default: the real hardware address.
        """
        return (
            f"neigh replace {self.address(other)} lladdr {mac or self.mac(other)} nud permanent"
            f" dev {self.device(place)}"
        )

    def _ip(self, place: int) -> tuple[str, ...]:
        return ("ip", "-n", f"b{place}") if place else ("ip",)

    def _check(self, place: int) -> None:
        if place != CONTROL and place not in self.ids:
            raise ValueError(f"unknown id {place}. Use {self.ids}, or {CONTROL} for clients")


def set_namespace(handle: int) -> None:
    """Move only the calling thread to the network namespace of an open file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


# -- member places ---------------------------------------------------------------------------------
#
# Separate networks for members of consumer groups, on the brokers' bridge. Requires Linux and
# root.
#
# Member N runs in the network namespace ``mN`` with the address 10.77.0.(100 + N), see
# ``namespaces``. Connections are blocked at the member's end: its neighbour table maps the broker
# to an unused hardware address. Packets from the broker still arrive, but replies do not.


_run_all = run_all

COUNT_MAX: Final = 100
PROBE_TIMEOUT_S: Final = 0.3
_FIRST: Final = 100


class MemberPlaces:
    """Networks of ``count`` members, for the duration of a ``with`` block.

    ``namespaces``: the brokers' networks, which must be closed later. ``addresses``: where brokers
    listen.
    """

    def __init__(
        self, namespaces: Namespaces, addresses: Mapping[int, Address], count: int
    ) -> None:
        if not 1 <= count <= COUNT_MAX:
            raise ValueError(f"cannot create namespaces for {count} members. Use 1 to {COUNT_MAX}")
        self._namespaces = namespaces
        self._addresses = addresses
        self._slots = range(1, count + 1)
        self._handles: dict[int, int] = {}
        self._cut: dict[int, list[int]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> MemberPlaces:
        """Create the networks. Raises ``OSError`` with the reason, after removing all that was
        created."""
        try:
            for slot in self._slots:
                self._make(slot)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def prefix(self, slot: int) -> tuple[str, ...]:
        """Return the command prefix that runs a command in the member's network."""
        return ("nsenter", f"--net={FOLDER / f'm{slot}'}")

    def cut(self, slot: int, brokers: Collection[int]) -> None:
        """Block packets from the member to these brokers."""
        # recorded first, so that a partial failure is undone too
        self._cut[slot] = [*self._cut.get(slot, ()), *brokers]
        self._point(slot, dict.fromkeys(brokers, UNUSED_MAC))

    def mend(self, slot: int) -> None:
        """Undo all cuts of the member."""
        brokers = set(self._cut.pop(slot, ()))
        self._point(slot, {broker: self._namespaces.mac(broker) for broker in brokers})

    def reaches(self, slot: int, broker: int) -> bool:
        """Return whether the broker accepts or refuses a TCP connection within 0.3 s, as
        observed."""
        try:
            set_namespace(self._handles[slot])
            probe = socket.socket()
        finally:
            self._namespaces.enter(CONTROL)
        with probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            try:
                address = self._addresses[broker]
                probe.connect((address.host, address.port))
            except ConnectionRefusedError:
                return True
            except OSError:
                return False
            return True

    def _point(self, slot: int, macs: Mapping[int, str]) -> None:
        """Set the hardware addresses of brokers in the member's neighbour table."""
        lines = [
            f"neigh replace {self._namespaces.address(broker)} lladdr {mac} nud permanent"
            f" dev {DEVICE}\n"
            for broker, mac in sorted(macs.items())
        ]
        if lines:
            _run_all([(("ip", "-n", f"m{slot}", "-batch", "-"), "".join(lines))])

    def _make(self, slot: int) -> None:
        name, port, address = f"m{slot}", f"w{slot}", f"{_SUBNET}.{_FIRST + slot}"
        run("ip", "netns", "add", name)
        self._stack.callback(run, "ip", "netns", "del", name)
        handle = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, handle)
        self._handles[slot] = handle
        run(
            "ip", "-batch", "-",
            stdin=f"link add {port} type veth peer name {DEVICE} netns {name}\n"
            f"link set {port} master {BRIDGE}\n"
            f"link set {port} up\n",
        )  # fmt: skip
        self._stack.callback(self._unplug, port)
        _run_all(
            [
                (
                    ("ip", "-n", name, "-batch", "-"),
                    f"link set lo up\naddr add {address}/24 dev {DEVICE}\nlink set {DEVICE} up\n",
                )
            ]
        )

    def _unplug(self, port: str) -> None:
        if port in {name for _, name in socket.if_nameindex()}:
            run("ip", "link", "del", port)


# -- sandbox ---------------------------------------------------------------------------------------
#
# Sandbox of a run: private network and mount namespaces that the kernel removes after the run.
#
# Networks and mounts that a run creates belong to its processes. The kernel removes them when the
# last of these processes has ended, also after a crash. Other processes of the machine do not see
# these resources, and several runs are independent. Requires Linux and root.


MARK: Final = "RAFTLOG_CHAOS_SANDBOX"  # environment variable: network namespace of the sandbox
SANDBOX_COMMANDS: Final = ("unshare", "sh", "ip", "mount", "mkdir", "readlink")
TRIAL_TIMEOUT_S: Final = 20.0
# `ip netns` creates mounts: they are in a private file system.
_SETUP: Final = (
    "ip link set lo up && mkdir -p /run/netns"
    " && mount -t tmpfs -o mode=755 raftlog-netns /run/netns"
    f' && {MARK}=$(readlink "/proc/$$/ns/net") && export {MARK}'
)
_UNSHARE: Final = ("unshare", "--net", "--mount", "--propagation", "private", "--", "sh", "-c")


@functools.cache
def why_no_sandbox() -> str:
    """Return why a sandbox cannot be created on this machine; empty if it can. Tests it once."""
    if sys.platform != "linux":
        return "requires Linux"
    if os.geteuid() != 0:
        return "requires root, to create namespaces"
    missing = [command for command in SANDBOX_COMMANDS if shutil.which(command) is None]
    if missing:
        return f"no {', '.join(missing)}"
    try:
        trial = subprocess.run(
            [*_UNSHARE, f"{_SETUP} && ip netns add trial"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot create namespaces: {error}"
    complaint = " ".join(trial.stderr.split()) or f"status {trial.returncode}"
    return f"cannot create namespaces: {complaint}" if trial.returncode else ""


def is_inside() -> bool:
    """Return whether this process is in a sandbox."""
    mark = os.environ.get(MARK)
    return mark is not None and mark == os.readlink("/proc/self/ns/net")


def enter(argv: Sequence[str]) -> NoReturn:
    """Execute the command ``argv`` in a new sandbox. Does not return.

    The process keeps its id, its standard streams and its terminal. Raises ``OSError`` if
    ``unshare`` cannot be executed. Later failures are reported on standard error, with exit status
    1 or 2. Call ``why_not`` first.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(_UNSHARE[0], [*_UNSHARE, f'{_SETUP} && exec "$@"', "raftlog-sandbox", *argv])  # noqa: S606 - becomes the given command
