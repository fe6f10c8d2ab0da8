"""A process without standard streams: its clients work, and its files do not become streams."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CLIENT = """
import os
from raftlog.client.threads import LoopThread
async def work(): return 1
thread = LoopThread()
assert thread.call(work) == 1
with open("/dev/zero", "rb") as file: assert file.fileno() > 2
thread.stop()
"""
WRITES = """
import os
from raftlog.standard_streams import occupy
assert occupy() == [1, 2]
assert occupy() == []
for number in (1, 2):
    try: os.write(number, b"x")
    except OSError: continue
    raise SystemExit("a write to a closed stream succeeds")
"""


def status_of(code: str, closed: str) -> int:
    """Exit status of Python code that a shell starts with these redirections."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    return subprocess.run(shell, check=False).returncode


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_client_of_a_program_without_streams_is_not_aborted(closed: str) -> None:
    assert status_of(CLIENT, closed) == 0


def test_a_write_to_a_closed_stream_fails_as_before() -> None:
    assert status_of(WRITES, ">&- 2>&-") == 0
