"""A place of its own for a run: a network and a table of mounts that vanish with it.

What a run makes there (networks for brokers, mounted disks) belongs to the processes in it. When
the last of them has ended, however it ended, the kernel takes everything back; nobody else on the
machine sees any of it, and several runs never meet. Linux, and root, only.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

MARK: Final = "RAFTLOG_CHAOS_SANDBOX"  # in the environment: the network namespace of the inside
COMMANDS: Final = ("unshare", "sh", "ip", "mount", "mkdir", "readlink")
TRIAL_TIMEOUT_S: Final = 20.0
# What `ip netns` makes, it also mounts: in a file system that nobody else sees.
_SETUP: Final = (
    "ip link set lo up && mkdir -p /run/netns"
    " && mount -t tmpfs -o mode=755 raftlog-netns /run/netns"
    f' && {MARK}=$(readlink "/proc/$$/ns/net") && export {MARK}'
)
_UNSHARE: Final = ("unshare", "--net", "--mount", "--propagation", "private", "--", "sh", "-c")


@functools.cache
def why_not() -> str:
    """Why there can be no sandbox on this machine; empty if there can. It was tried, once."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root, to make namespaces"
    missing = [command for command in COMMANDS if shutil.which(command) is None]
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
        return f"no namespaces can be made: {error}"
    complaint = " ".join(trial.stderr.split()) or f"status {trial.returncode}"
    return f"no namespaces can be made: {complaint}" if trial.returncode else ""


def is_inside() -> bool:
    """Whether this process is in a sandbox already."""
    mark = os.environ.get(MARK)
    return mark is not None and mark == os.readlink("/proc/self/ns/net")


def enter(argv: Sequence[str]) -> NoReturn:
    """Become the command ``argv``, in a sandbox of its own. Does not return.

    It is this process still, with its id, its standard streams and its terminal: whoever waits for
    it, or interrupts it, notices nothing. Raises ``OSError`` when not even that can be tried; what
    fails later is told on standard error, with status 1 or 2. Ask ``why_not`` first.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(_UNSHARE[0], [*_UNSHARE, f'{_SETUP} && exec "$@"', "raftlog-sandbox", *argv])
