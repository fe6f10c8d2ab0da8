"""Failpoints: rules, points that are hit, and a disk that has them."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from raftlog.disk import OsDisk
from raftlog.errors import InvalidConfigError
from raftlog.failpoints import (
    CHANGES,
    FILE_BYTES_MAX,
    READS,
    REFUSED,
    SENDS,
    SITES,
    FailpointDisk,
    Failpoints,
    Rule,
    hits_path,
    parse,
    read_hits,
    role,
)
from raftlog.protocol.api import APIS
from raftlog.storage import Store
from raftlog.testing.cluster import FailpointSwitch
from raftlog.testing.disk import SimDisk
from tests.storage.directories import create_topic

# -- rules -----------------------------------------------------------------------------------------

# What a rule may say, when it acts, and what is said of a wrong one.


RULES_SITES = ("segment.write.before", "segment.write.after", "journal.sync.before")


def one(text: str) -> Rule:
    (rule,) = parse(text, sites=RULES_SITES)
    return rule


def strikes(rule: Rule, hits: int) -> list[int]:
    """The numbers of the hits, from 1, at which the rule acts."""
    return [number for number in range(1, hits + 1) if rule.strikes()]


def test_several_are_separated_by_semicolons_and_lines() -> None:
    text = "segment.write.before=crash; journal.sync.before=stall(2)\n\n# none\n*=note # all\n;"
    rules = parse(text, sites=RULES_SITES)
    assert [(rule.site, rule.action) for rule in rules] == [
        ("segment.write.before", "crash"),
        ("journal.sync.before", "stall"),
        ("*", "note"),
    ]


def test_a_rule_is_named_by_its_text_and_comment() -> None:
    assert one(" *=crash  # the 4th ").text == "*=crash # the 4th"
    assert one("*=crash").text == "*=crash"


@pytest.mark.parametrize(
    ("text", "acting"),
    [
        ("*=crash", [1]),
        ("*=crash@2", [3]),
        ("*=crash@1x2", [2, 3]),
        ("*=note", [1, 2, 3, 4, 5]),
        ("*=fail(EIO)@3", [4, 5]),
        ("*=stall(1)x1", [1]),
    ],
)
def test_it_acts_after_so_many_hits_and_so_often(text: str, acting: list[int]) -> None:
    assert strikes(one(text), 5) == acting


def test_chance_follows_from_the_text() -> None:
    first, again, other = (strikes(one(t), 1_000) for t in ("*=note%20", "*=note%20", "*=note%21"))
    assert first == again != other
    assert 150 < len(first) < 250


def test_times_counts_what_acts_and_not_what_chance_spares() -> None:
    assert len(strikes(one("*=fail(EIO)x2%10"), 1_000)) == 2


def test_a_pattern_covers_what_it_matches() -> None:
    rule = one("segment.*=crash")
    assert [site for site in RULES_SITES if rule.covers(site)] == [*RULES_SITES[:2]]


def test_errors_and_times_are_read() -> None:
    assert one("*=fail(ENOSPC)").error == errno.ENOSPC
    assert one("*=stall(1.5)").seconds() == 1.5
    drawn = one("*=stall(1..2)")
    times = [drawn.seconds() for _ in range(20)]
    assert all(1 <= seconds <= 2 for seconds in times)
    assert len(set(times)) > 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("segment.wrote.before=crash", r"Similar names: segment\.write\.before"),
        ("nothing=crash", r"no failpoint matches 'nothing'"),
        ("segment.write.before", r"Write SITE=ACTION"),
        ("*=explode", r"unknown action or wrong argument\. Write SITE=ACTION"),
        ("*=crash(1)", "unknown action or wrong argument"),
        ("*=stall", "unknown action or wrong argument"),
        ("*=stall()", r"Write stall\(SECONDS\)"),
        ("*=stall(nan)", r"stall\(MIN\.\.MAX\), with 0 to 3600 seconds"),
        ("*=stall(2..1)", "with 0 to 3600 seconds"),
        ("*=stall(3601)", "with 0 to 3600 seconds"),
        ("*=fail(EIOO)", "such as EIO"),
        ("*=fail()", "such as EIO, ENOSPC"),
        ("*=crashx0", "xTIMES must be at least 1"),
        ("*=crash@99999999999", "at most 1000000000"),
        ("*=crash%0", "more than 0 and at most 100"),
        ("*=crash%101", "more than 0 and at most 100"),
        ("*=crash x2", r"Write SITE=ACTION\[@SKIP\]\[xTIMES\]\[%CHANCE\]"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        parse(f"*=note;{text}", sites=RULES_SITES)


# -- points ----------------------------------------------------------------------------------------

# Failpoints that are hit: what they do, what they tell, and how a file switches them.


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


# -- disk ------------------------------------------------------------------------------------------

# A disk with failpoints does what the disk does, and comes by its failpoints in order.


IN_LOG = "topics/t/0123/0"


def test_a_path_has_a_role() -> None:
    for path, what in [
        ("", "data-dir"),
        (".", "data-dir"),
        ("..", "parent-dir"),
        ("identity.tmp", "identity"),
        ("catalog", "catalog"),
        ("clean", "clean"),
        ("clock.tmp", "clock"),
        ("brokers.tmp", "brokers"),
        ("lock", "lock"),
        ("consensus.journal", "journal"),
        ("consensus.journal.tmp", "journal-draft"),
        ("topics", "topics-dir"),
        ("topics/t", "topic-dir"),
        ("topics/t/0123", "topic-dir"),
        (IN_LOG, "partition-dir"),
        (f"{IN_LOG}.quarantine-1", "partition-dir"),
        (f"{IN_LOG}/00000000000000000000.log", "segment"),
        (f"{IN_LOG}/00000000000000000000.index.tmp", "index"),
        (f"{IN_LOG}/00000000000000000007.producers", "producers"),
        (f"{IN_LOG}/checkpoint", "checkpoint"),
        (f"{IN_LOG}/epochs.tmp", "epochs"),
        (f"{IN_LOG}/00000000000000000000.cleaned", "cleaned"),
        (f"{IN_LOG}/compaction", "compaction"),
        (f"{IN_LOG}/compaction.tmp", "compaction"),
        (f"{IN_LOG}/notes", "other"),
        (f"{IN_LOG}/a/b", "other"),
        ("a/b", "other"),
        ("notes", "other"),
    ]:
        assert role(path) == what


def test_operations_come_by_failpoints_before_and_after(tmp_path: Path) -> None:
    hits: list[str] = []
    disk = FailpointDisk(OsDisk(), hits.append, str(tmp_path))

    def came_by() -> list[str]:
        found, hits[:] = list(hits), []
        return found

    path = f"{tmp_path}/catalog"
    file = disk.open(path, create=True)
    assert came_by() == ["catalog.create.before", "catalog.create.after"]
    file.append([b"abc", b"de"])
    file.pwrite(b"x", 1)
    assert came_by() == ["catalog.write.before", "catalog.write.after"] * 2
    assert file.pread(3, 0) == b"axc"
    assert disk.read_file(path, bytes_max=9) == b"axcde"
    assert came_by() == ["catalog.read.before"] * 2
    file.truncate(2)
    file.sync()
    assert (file.size(), file.path) == (2, path)
    assert came_by() == [f"catalog.{what}.{m}" for what in ("truncate", "sync")
                         for m in ("before", "after")]  # fmt: skip
    file.close()
    disk.open(path, create=True).close()
    disk.rename(path, f"{tmp_path}/clean")
    disk.sync_dir(str(tmp_path))
    disk.remove(f"{tmp_path}/clean")
    assert came_by() == [f"{what}.{m}" for what in ("clean.rename", "data-dir.sync", "clean.remove")
                         for m in ("before", "after")]  # fmt: skip
    assert disk.list_dir(str(tmp_path)) == []
    assert came_by() == []
    assert disk.free_bytes(str(tmp_path)) > 0
    disk.open(path, create=True).close()
    disk.reserve(path, 4096)
    disk.remove(path)
    came_by()
    disk.lock(f"{tmp_path}/lock").release()
    assert disk.exists(f"{tmp_path}/lock")


def test_replacing_a_file_has_failpoints_in_between(tmp_path: Path) -> None:
    hits: list[str] = []
    disk = FailpointDisk(OsDisk(), hits.append, str(tmp_path))
    for data in (b"old, and long", b"new"):
        hits.clear()
        disk.write_atomic(f"{tmp_path}/identity", data)
        assert (tmp_path / "identity").read_bytes() == data
        steps = ("create", "truncate", "write", "sync", "rename")
        assert hits[::2] == [*(f"identity.{step}.before" for step in steps), "data-dir.sync.before"]
    assert os.listdir(tmp_path) == ["identity"]


def test_directories_are_made_and_removed_one_by_one(tmp_path: Path) -> None:
    hits: list[str] = []
    disk = FailpointDisk(OsDisk(), hits.append, str(tmp_path))
    disk.make_dirs(f"{tmp_path}/{IN_LOG}")
    disk.make_dirs(f"{tmp_path}/{IN_LOG}")
    assert hits[::2] == [f"{what}.create.before" for what in
                         ("topics-dir", "topic-dir", "topic-dir", "partition-dir")]  # fmt: skip
    (tmp_path / IN_LOG / "epochs").touch()
    (tmp_path / IN_LOG / "empty").mkdir()
    hits.clear()
    disk.remove_tree(f"{tmp_path}/topics/t")
    assert not (tmp_path / "topics/t").exists()
    assert "epochs.remove.before" in hits
    assert [hit for hit in hits if hit.endswith("-dir.remove.after")] == [
        "partition-dir.remove.after",
        "topic-dir.remove.after",
        "topic-dir.remove.after",
    ]
    disk.remove_tree(f"{tmp_path}/topics/t")


def test_what_fails_before_is_not_done_and_what_fails_after_is(tmp_path: Path) -> None:
    failing = ""

    def hit(site: str) -> None:
        if site == failing:
            raise OSError(errno.EIO, "no")

    disk = FailpointDisk(OsDisk(), hit, str(tmp_path))
    file = disk.open(f"{tmp_path}/catalog", create=True)
    failing = "catalog.write.before"
    with pytest.raises(OSError, match="no"):
        file.append([b"a"])
    assert file.size() == 0
    failing = "catalog.write.after"
    with pytest.raises(OSError, match="no"):
        file.append([b"a"])
    file.close()
    assert (tmp_path / "catalog").read_bytes() == b"a"


def test_a_store_works_on_it_and_comes_by_listed_failpoints_only() -> None:
    hits: list[str] = []
    sim = SimDisk(Random(1))
    disk = FailpointDisk(sim, hits.append, "/data")
    store = Store.open(disk, "/data")
    create_topic(store, "t", partitions=1, config={})
    store.close()
    with_out = Store.open(sim, "/data")
    assert list(with_out.topics) == ["t"]
    with_out.close()
    assert set(hits) <= SITES, sorted(set(hits) - SITES)
    assert len(set(hits)) > 40


def test_the_list_holds_each_kind_and_no_send_of_an_unknown_api() -> None:
    assert SITES == READS | CHANGES | SENDS
    assert {site.split(".")[1] for site in SENDS} <= {api.name for api in APIS.values()}
