"""Fork server: a process that has imported what brokers need, and forks one per start.

A new interpreter spends a second of CPU on imports before it runs a broker; a fork of this one
spends none. The server has one thread and no event loop, so a fork of it is a clean process. It is
started with the first broker, serves one process, and ends with it, after its last child.

    client                                          server
      | -- length, arguments, environment, stdin,      |
      |    log, exit socket ------------------------>  | fork, setpgid
      | <-- process id ------------------------------  |
      | <-- exit status (exit socket) ---------------  | the child has ended, and is a zombie
      | -- end of the exit socket ------------------>  | waitpid: from now on, the id may be reused
      | <-- end of the exit socket ------------------  |
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any, Final, NoReturn

from raftlog.errors import BrokerUnavailableError

COMMAND: Final = (
    *(sys.executable, "-P", "-c"),
    "import sys; from raftlog.testing import fork_server; fork_server.main(int(sys.argv[1]))",
)
VARIABLE: Final = "RAFTLOG_TESTING_FORK"  # "0": brokers are new interpreters
# Variables that the interpreter and the loader of programs read once, at the start of a process.
READ_AT_START: Final = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "OPENBLAS_", "OMP_")
# The command of a broker, and the console that it serves.
COMMAND_MODULES: Final = (
    "raftlog_cli.main",
    "raftlog_cli.broker",
    "raftlog_cli.console.app",
)
SOURCE: Final = Path(__file__).resolve().parents[2]
LENGTH: Final = struct.Struct("!I")
STATUS: Final = struct.Struct("!i")  # exit status, negative for a signal
PID: Final = struct.Struct("!i")
REQUEST_BYTES_MAX: Final = 8 << 20  # arguments and environment
FDS: Final = 3  # with each request: stdin, log, exit socket
_PR_SET_PDEATHSIG: Final = 1  # of prctl(2)


class ForkedProcess:
    """A process that the server has forked, with the part of ``subprocess.Popen`` that
    ``BrokerProcess`` uses. Its id is not reused before ``poll`` or ``wait`` returns its status.
    """

    def __init__(self, pid: int, stdin: FileIO, exit_socket: socket.socket) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._exit_socket = exit_socket
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises ``subprocess.TimeoutExpired`` after ``timeout`` s."""
        status = self._ended_within(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return status

    def _ended_within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            try:
                has_ended = _await_readable(self._exit_socket, timeout_s)
            except ValueError:  # another thread has read the status and closed the socket
                has_ended = True
            if has_ended:
                self._read_status()
        return self.returncode

    def _read_status(self) -> None:
        with self._lock:
            if self.returncode is None:
                data = self._exit_socket.recv(STATUS.size)
                if data:
                    self._wait_for_release()
                    self.returncode = STATUS.unpack(data)[0]
                else:  # the server was killed, and the kernel kills its children
                    _await_readable(self._pidfd, None)
                    self.returncode = -signal.SIGKILL
                self._exit_socket.close()
                os.close(self._pidfd)

    def _wait_for_release(self) -> None:
        """Let the server wait for the child, and return when it has: then no zombie is left.

        Closing the socket is not enough: another thread that polls it keeps the kernel's file open,
        so that the server would not see its end, and that thread would not see the server's.
        """
        with suppress(OSError):  # the server has ended
            self._exit_socket.shutdown(socket.SHUT_WR)
            self._exit_socket.recv(1)


def _await_readable(file: int | socket.socket, timeout_s: float | None) -> bool:
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1_000))


# -- client ----------------------------------------------------------------------------------------


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a process with this environment can be a fork of the server.

    False outside Linux: on macOS, system libraries do not work in a forked process.
    """
    return (
        sys.platform == "linux"
        and environment.get(VARIABLE) != "0"
        and _read_at_start(environment) == _read_at_start(os.environ)
    )


def python_path(source: Path) -> dict[str, str]:
    """Return ``PYTHONPATH``, by its name, for a process that imports raftlog from ``source``."""
    folders = (source, *(source / name for name in ("cli", "spark_source", "jepsen_like")))
    parts = (*(str(folder) for folder in folders if folder.is_dir()), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, parts))}


def fork(arguments: Sequence[str], environment: Mapping[str, str], log: int) -> ForkedProcess:
    """Run ``python -m raftlog ARGUMENTS`` in a fork of the server, as the leader of a new process
    group.

    ``log``: file descriptor of its stdout and stderr. Its stdin is a pipe from this process. Raises
    ``BrokerUnavailableError`` if the server cannot be started.
    """
    request = json.dumps(
        {
            "arguments": [*arguments],
            "environment": {**environment},
            "directory": os.getcwd(),
            "umask": _umask(),
        }
    ).encode()
    sys.audit("raftlog.testing.fork", arguments)
    stdin_read, stdin_write = os.pipe()
    ours, theirs = socket.socketpair()
    try:
        pid = _server.fork(request, (stdin_read, log, theirs.fileno()))
    except BaseException:
        ours.close()
        os.close(stdin_write)
        raise
    finally:
        os.close(stdin_read)
        theirs.close()
    return ForkedProcess(pid, FileIO(stdin_write, "w"), ours)


class _Server:
    """The server of this process. Started at the first use, and again if it has been killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: bytes, fds: Sequence[int]) -> int:
        with self._lock:
            for is_last_try in (False, True):
                try:
                    return self._request(request, fds)
                except OSError as error:
                    self._discard()
                    if is_last_try:
                        raise BrokerUnavailableError(
                            f"the fork server of brokers has ended: {error}. Set {VARIABLE}=0 to "
                            "start brokers without it"
                        ) from error
            raise AssertionError("the last try returns or raises")

    def forget(self) -> None:
        """After a fork of this process: the server belongs to the parent."""
        if self._control is not None:
            self._control.close()
        self.__init__()  # type: ignore[misc] # the lock may be held by a thread of the parent

    def _request(self, request: bytes, fds: Sequence[int]) -> int:
        control = self._control or self._start()
        socket.send_fds(control, [LENGTH.pack(len(request))], fds)
        control.sendall(request)
        return int(PID.unpack(_receive(control, PID.size))[0])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*COMMAND, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    # A BLAS of numpy would start threads at its import, which a fork does not have.
                    env={**os.environ, **python_path(SOURCE), "OPENBLAS_NUM_THREADS": "1"},
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # Ctrl-C signals the client only
                )
            except BaseException:
                ours.close()
                raise
        self._control = ours
        return ours

    def _discard(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


_server: Final = _Server()
os.register_at_fork(after_in_child=_server.forget)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read at the start of a process. Of PYTHONPATH, brokers need
    what comes first, which is in the server."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name != "PYTHONPATH"
    }


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _receive(connection: socket.socket, count: int) -> bytes:
    """Return exactly ``count`` bytes. Raises ``ConnectionError`` at the end of the stream."""
    parts = bytearray()
    while len(parts) < count:
        data = connection.recv(count - len(parts))
        if not data:
            raise ConnectionError("connection closed")
        parts += data
    return bytes(parts)


# -- server ----------------------------------------------------------------------------------------


def main(control_fd: int) -> None:
    """Run the server with the client at the other end of a socket."""
    from raftlog.server.main import preload  # only the server needs the modules of a broker

    preload()
    for name in COMMAND_MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all objects
    with socket.socket(fileno=control_fd) as control:
        _serve(control)


def _serve(control: socket.socket) -> None:
    """Fork a process for each request, until the client has ended, and then all children."""
    woken, waker = socket.socketpair()
    for each in (woken, waker):
        each.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = _Children()
    events = select.poll()
    events.register(control, select.POLLIN)
    events.register(woken, select.POLLIN)
    is_open = True
    while is_open or children:
        for fd, _event in events.poll():
            if fd == woken.fileno():
                woken.recv(4_096)
                children.report()
            elif fd == control.fileno():
                is_open = _serve_request(control, children, events)
                if not is_open:
                    events.unregister(control)
            elif fd in children.exit_sockets:
                events.unregister(fd)
                children.release(fd)


class _Children:
    """Children that were not waited for."""

    def __init__(self) -> None:
        self.exit_sockets: dict[int, tuple[int, socket.socket]] = {}  # by file descriptor
        self._reported: set[int] = set()
        self._abandoned: set[int] = set()  # the client closed the exit socket before their end

    def __len__(self) -> int:
        return len(self.exit_sockets) + len(self._abandoned)

    def add(self, pid: int, exit_socket: socket.socket) -> None:
        self.exit_sockets[exit_socket.fileno()] = (pid, exit_socket)

    def report(self) -> None:
        """Send the status of the children that have ended. They remain zombies."""
        for pid, exit_socket in self.exit_sockets.values():
            if pid in self._reported:
                continue
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                self._reported.add(pid)
                with suppress(OSError):  # the client has ended
                    exit_socket.sendall(STATUS.pack(status))
        for pid in [*self._abandoned]:
            self._wait(pid)

    def release(self, fd: int) -> None:
        """The client needs the process id no longer: it has the status, or has ended."""
        pid, exit_socket = self.exit_sockets.pop(fd)
        self._reported.discard(pid)
        self._abandoned.add(pid)
        self._wait(pid)
        exit_socket.close()  # the client waits for this

    def _wait(self, pid: int) -> None:
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            self._abandoned.discard(pid)


def _serve_request(control: socket.socket, children: _Children, events: select.poll) -> bool:
    """Fork one child. Returns False if the client has ended."""
    try:
        head, fds, _flags, _address = socket.recv_fds(control, LENGTH.size, FDS)
        if len(head) < LENGTH.size:
            return False
        (length,) = LENGTH.unpack(head)
        if length > REQUEST_BYTES_MAX or len(fds) != FDS:
            return False
        request = json.loads(_receive(control, length))
    except ConnectionError:
        return False
    stdin, log, exit_fd = fds
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run(request, stdin, log, server)
    with suppress(OSError):  # the child does the same; it may have ended
        os.setpgid(pid, pid)
    os.close(stdin)
    os.close(log)
    exit_socket = socket.socket(fileno=exit_fd)
    children.add(pid, exit_socket)
    events.register(exit_socket, select.POLLIN)  # readable at its end
    with suppress(OSError):
        control.sendall(PID.pack(pid))
    children.report()  # its SIGCHLD may have come before it was in the table
    return True


def _run(request: Mapping[str, Any], stdin: int, log: int, server: int) -> NoReturn:
    """Become the requested process. Nothing of the server remains but its modules."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_with(server)
        os.setpgid(0, 0)
        for fd, standard in ((stdin, 0), (log, 1), (log, 2)):
            os.dup2(fd, standard)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        os.umask(request["umask"])
        os.chdir(request["directory"])
        sys.argv = ["raftlog", *request["arguments"]]
        runpy.run_module("raftlog", run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - what an interpreter prints at the end of a process
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _end_with(server: int) -> None:
    """Have the kernel kill this process if the server is killed: no process could wait for it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
