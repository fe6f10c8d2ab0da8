"""Failpoints that are hit: what they do, what they tell, and how a file switches them."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.errors import InvalidConfigError
from raftlog.failpoints.points import (
    FILE_BYTES_MAX,
    REFUSED,
    Failpoints,
    hits_path,
    read_hits,
)
from raftlog.testing.cluster import FailpointSwitch

ONE, OTHER = "segment.write.before", "journal.sync.before"


class Ending(BaseException):
    """The process ends here."""


def end() -> None:
    raise Ending


def points(text: str, slept: list[float] | None = None) -> Failpoints:
    return Failpoints(text, crash=end, sleep=(slept if slept is not None else []).append)


def test_nothing_set_is_nothing_made() -> None:
    assert Failpoints.from_environment({}) is None
    assert Failpoints.from_environment({"RAFTLOG_FAILPOINTS": " "}) is None


def test_the_environment_is_read() -> None:
    made = Failpoints.from_environment({"RAFTLOG_FAILPOINTS": f"{ONE}=fail(EIO)"})
    assert made is not None
    with pytest.raises(OSError, match="Input/output error"):
        made.hit(ONE)


def test_each_action_does_what_it_says() -> None:
    slept: list[float] = []
    made = points(f"{ONE}=stall(3)x1; {ONE}=fail(ENOSPC)@1x1; {OTHER}=crash", slept)
    made.hit(ONE)
    assert slept == [3.0]
    with pytest.raises(OSError, match=f"failpoint {ONE}") as caught:
        made.hit(ONE)
    assert caught.value.errno == errno.ENOSPC
    made.hit(ONE)
    assert slept == [3.0]
    with pytest.raises(Ending):
        made.hit(OTHER)
    made.hit(OTHER)
    assert made.counts == {ONE: 3, OTHER: 2}


@pytest.mark.integration
def test_a_crash_is_a_sigkill_to_itself() -> None:
    program = f"from raftlog.failpoints import Failpoints; Failpoints('*=crash').hit({ONE!r})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    logged = f"failpoint hit: site={ONE} rule=*=crash"
    assert logged.encode() in ended.stderr, "logged before the action"


def test_what_acts_is_logged_and_what_does_not_is_not(caplog: pytest.LogCaptureFixture) -> None:
    made = points("*=fail(EIO)@1x1")
    made.hit(ONE)
    assert not caplog.records
    with pytest.raises(OSError, match="Input/output"):
        made.hit(ONE)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, f"failpoint hit: site={ONE} rule=*=fail(EIO)@1x1")
    ]


def test_noting_tells_of_each_site_once(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm(["*=note # first"])
    made = points(f"@{switch.path}")
    for _ in range(3):
        made.hit(ONE)
        made.hit(OTHER)
    assert [(hit.site, hit.action) for hit in switch.hits] == [(ONE, "note"), (OTHER, "note")]
    switch.arm(["*=note # again"])
    made.hit(ONE)
    assert [hit.text for hit in switch.hits][2:] == ["*=note # again"]


# -- with a file -----------------------------------------------------------------------------------


def test_a_file_that_is_not_there_yet_has_no_rules(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    made = points(f"@{switch.path}")
    made.hit(ONE)
    assert switch.hits == []
    switch.arm([f"{ONE}=crash"])
    made.hit(OTHER)
    with pytest.raises(Ending):
        made.hit(ONE)
    switch.path.unlink()
    made.hit(ONE)


def test_a_change_is_noticed_at_the_next_hit(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.disarm()
    made = points(f"@{switch.path}")
    made.hit(ONE)
    switch.arm([f"{ONE}=fail(EIO)"])
    with pytest.raises(OSError, match="Input/output"):
        made.hit(ONE)
    switch.arm([f"{ONE}=fail(EPERM)"])  # as many bytes, perhaps in the same tick of its clock
    with pytest.raises(PermissionError):
        made.hit(ONE)
    switch.disarm()
    made.hit(ONE)


def test_a_rule_that_stays_goes_on_counting(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm([f"{ONE}=fail(EIO)x1"])
    made = points(f"@{switch.path}")
    with pytest.raises(OSError, match="Input/output"):
        made.hit(ONE)
    switch.arm([f"{ONE}=fail(EIO)x1", f"{OTHER}=note"])
    made.hit(ONE)
    switch.arm([f"{ONE}=fail(EIO)x1 # once more"])
    with pytest.raises(OSError, match="Input/output"):
        made.hit(ONE)


def test_hits_are_noted_before_they_act(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm([f"{ONE}=crash # number 1"])
    made = points(f"@{switch.path}")
    with pytest.raises(Ending):
        made.hit(ONE)
    (hit,) = read_hits(switch.path)
    assert hit == (os.getpid(), ONE, "crash", f"{ONE}=crash # number 1")
    switch.forget_hits()
    assert read_hits(switch.path) == []


def test_half_a_line_is_no_hit_yet(tmp_path: Path) -> None:
    path = tmp_path / "f"
    hits_path(path).write_text(f"1 {ONE} crash *=crash\n2 {OTHER} cr")
    assert [hit.pid for hit in read_hits(path)] == [1]


@pytest.mark.parametrize("text", [b"nonsense", b"\xff", b"#" * (FILE_BYTES_MAX + 1)])
def test_a_wrong_new_text_switches_everything_off_and_says_so(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm([f"{ONE}=crash"])
    made = points(f"@{switch.path}")
    switch.path.write_bytes(text)
    made.hit(ONE)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert [hit.action for hit in switch.hits] == [REFUSED]
    switch.arm([f"{ONE}=crash"])
    with pytest.raises(Ending):
        made.hit(ONE)


@pytest.mark.parametrize("text", ["nonsense", "*=explode"])
def test_a_wrong_text_at_the_start_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidConfigError, match="RAFTLOG_FAILPOINTS: failpoint "):
        points(text)
    path = tmp_path / "f"
    path.write_text(text)
    with pytest.raises(InvalidConfigError, match="RAFTLOG_FAILPOINTS: failpoint "):
        points(f"@{path}")


def test_a_file_that_cannot_be_read_at_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="Is a directory"):
        points(f"@{tmp_path}")


def test_what_is_on_is_described(tmp_path: Path) -> None:
    assert points("*=note;*=crash").described == "2 rules"
    assert points(f"@{tmp_path}/f").described == f"0 rules, from {tmp_path}/f"
