"""Sandbox of a run: private network and mount namespaces that the kernel removes after the run.

Networks and mounts that a run creates belong to its processes. The kernel removes them when the
last of these processes has ended, also after a crash. Other processes of the machine do not see
these resources, and several runs are independent. Requires Linux and root.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

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
