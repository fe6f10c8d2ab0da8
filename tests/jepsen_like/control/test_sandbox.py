"""What a run makes in its sandbox is nobody else's, and is gone with the run, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raftlog.testing import wait_until
from raftlog_jepsen.control import namespaces
from raftlog_jepsen.control.disks import LoopDisk, why_not

ENTER = "import sys; from raftlog_jepsen.control import namespaces; namespaces.enter(sys.argv[1:])"
# A run at work: a network, a disk, and a process in that network that is stopped.
RUN = """
import os, signal, subprocess, sys
from pathlib import Path
from raftlog_jepsen.control.disks import LoopDisk
from raftlog_jepsen.control.namespaces import Namespaces
with Namespaces(2) as spaces, LoopDisk(Path(sys.argv[1]), "disk", 16 << 20) as disk:
    command = ["cat", str(disk.mount_point / "a"), "-"]
    (disk.mount_point / "a").touch()
    reader = subprocess.Popen([*spaces.prefix(1), *command], stdin=subprocess.PIPE, process_group=0)
    reader.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, reader.pid, os.WSTOPPED)  # the kernel continues what has stopped by then
    print(subprocess.check_output(["ip", "netns", "list"], text=True).split(), reader.pid)
    sys.stdout.flush()
    sys.stdin.read()
"""


def popen(*command: str) -> subprocess.Popen[str]:
    if namespaces.why_no_sandbox():
        pytest.skip(f"no sandbox can be made here: {namespaces.why_no_sandbox()}")
    return subprocess.Popen(
        [sys.executable, "-c", ENTER, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def end(process: subprocess.Popen[str]) -> None:
    with process:  # closes its pipes, which its children may hold open
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = popen(sys.executable, "-c", RUN, str(tmp_path))
    yield process
    end(process)


def loop_devices(image: Path) -> list[str]:
    """The machine's loop devices that are made of a file."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().strip() == str(image):
                found.append(backing.parts[3])
        except OSError:  # it is just being taken apart
            found.append(backing.parts[3])
    return found


@pytest.mark.integration
def test_a_command_in_it_is_the_same_process_with_the_same_streams() -> None:
    process = popen("sh", "-c", 'read line; echo "$$ $line"; echo oops >&2; exit 7')
    said, complaint = process.communicate("hello\n")
    assert said == f"{process.pid} hello\n"
    assert complaint == "oops\n"
    assert process.returncode == 7


@pytest.mark.integration
def test_an_interrupt_reaches_the_command() -> None:
    process = popen(sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate()
        assert complaint.endswith("KeyboardInterrupt\n")
        assert process.returncode == -signal.SIGINT
    finally:
        end(process)


@pytest.mark.integration
def test_the_inside_knows_that_it_is_inside() -> None:
    look = "from raftlog_jepsen.control import namespaces; print(namespaces.is_inside())"
    assert popen(sys.executable, "-c", look).communicate()[0] == "True\n"
    # A mark that came from elsewhere is none.
    outside = subprocess.run(
        [sys.executable, "-c", look],
        env={**os.environ, namespaces.MARK: "net:[1]"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert outside.stdout == "False\n"
    assert not namespaces.is_inside()


@pytest.mark.integration
def test_it_has_a_network_of_its_own_with_a_loopback_device() -> None:
    said, _ = popen("ip", "-brief", "address").communicate()
    (line,) = said.splitlines()
    assert line.startswith("lo ")
    assert "127.0.0.1" in line


@pytest.mark.integration
def test_nothing_is_left_when_the_run_is_killed(
    at_work: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert at_work.stdout is not None
    names, _, reader = at_work.stdout.readline().rpartition(" ")
    assert "b1" in names, at_work.communicate()
    assert "b2" in names
    image = tmp_path / "disk.img"
    child = os.pidfd_open(int(reader))
    try:
        assert loop_devices(image)  # the one thing that all the machine shares
        assert str(tmp_path) not in Path("/proc/mounts").read_text()
        at_work.kill()
        at_work.wait()
        gone = Path(f"/proc/{int(reader)}")
        wait_until(lambda: not gone.exists(), what="the stopped child's end")
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
    wait_until(lambda: not loop_devices(image), what="the loop device's end")
    assert list((tmp_path / "disk").iterdir()) == []
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, check=True, text=True)
    assert not {"b1", "b2"} & set(listed.stdout.split())


@pytest.mark.integration
def test_a_machine_without_the_means_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    why_not = namespaces.why_no_sandbox.__wrapped__
    monkeypatch.setattr(namespaces, "_UNSHARE", ("sh", "-c", "echo not permitted >&2; exit 1"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces, "SANDBOX_COMMANDS", ("sh",))
    assert why_not() == "cannot create namespaces: not permitted"
    monkeypatch.setattr(namespaces, "SANDBOX_COMMANDS", ("sh", "no-such-command"))
    assert why_not() == "no no-such-command"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "requires root, to create namespaces"
    monkeypatch.setattr(sys, "platform", "plan9")
    assert why_not() == "requires Linux"


@pytest.mark.integration
def test_a_sandbox_does_not_keep_the_disks_of_others_mounted(tmp_path: Path) -> None:
    """Its table of mounts began as a copy: a power cut outside would wait for it to end."""
    if why_not():
        pytest.skip(f"not injected: {why_not()}")
    with LoopDisk(tmp_path, "disk", 16 << 20) as disk:
        inside = popen("sh", "-c", "echo here; read -r wait")
        try:
            assert inside.stdout is not None
            assert inside.stdout.readline() == "here\n"
            disk.mark()
            disk.cut_power()
            assert not disk.marked()
        finally:
            end(inside)
