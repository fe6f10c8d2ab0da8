"""Switching a broker's failpoints from outside."""

from __future__ import annotations

from pathlib import Path

from raftlog.failpoints import Failpoints, Hit, hits_path
from raftlog.testing.cluster import FailpointSwitch


def test_the_environment_has_failpoints_read_the_file(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm(["*=note", "segment.*=crash # later"])
    made = Failpoints.from_environment(switch.environment)
    assert made is not None
    assert made.described.startswith("2 rules")


def test_arming_replaces_what_was_armed(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    switch.arm(["*=note"])
    before = switch.path.stat().st_ino
    switch.arm(["*=crash"])
    assert switch.path.read_text() == "*=crash\n"
    assert switch.path.stat().st_ino != before, "another file took its place, whole"
    switch.disarm()
    assert switch.path.read_text() == ""


def test_hits_are_read_and_forgotten(tmp_path: Path) -> None:
    switch = FailpointSwitch(tmp_path / "f")
    assert switch.hits == []
    switch.forget_hits()
    hits_path(switch.path).write_text("7 segment.write.before crash *=crash # a b\n")
    assert switch.hits == [Hit(7, "segment.write.before", "crash", "*=crash # a b")]
    switch.forget_hits()
    assert switch.hits == []
