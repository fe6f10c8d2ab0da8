"""The judge as a whole: files, limits, statistics; and that it is quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from raftlog.testing.checker.judge import Limits, judge, judge_file
from raftlog.testing.checker.verdict import KINDS
from raftlog.testing.history.entries import AnyEntry, Recorder
from tests.testing.checker.small import SECOND, Small, good
from tests.testing.checker.synthetic import Size, history


def write(path: Path, entries: list[AnyEntry]) -> Path:
    times = iter([entry.time for entry in entries])
    recorder = Recorder(path, lambda: next(times))
    for entry in entries:
        recorder.record(entry)
    recorder.close()
    return path


def test_a_file_is_judged_as_its_entries_are(tmp_path: Path) -> None:
    small = good()
    small.finish(log=small.log[:2])
    path = write(tmp_path / "history.jsonl", small.entries)
    assert judge_file(path) == small.judge()
    assert judge_file(path).valid == "invalid"


def test_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    small = good()
    small.finish()
    path = write(tmp_path / "history.jsonl", small.entries)
    path.write_bytes(path.read_bytes() + b'{"f":"app')
    verdict = judge_file(path)
    assert verdict.valid == "unknown"
    assert "line 16" in verdict.troubles[0]


def test_an_empty_history_proves_nothing() -> None:
    verdict = judge([])
    assert verdict.valid == "unknown"
    assert set(verdict.counts) == set(KINDS)


def test_all_of_a_verdict_fits_into_json() -> None:
    small = good()
    small.fault(1, injected=False)
    small.land(99)
    small.poll((0, 1, 6, 1))
    small.finish(log=small.log[1:])
    verdict = small.judge()
    assert json.loads(json.dumps(verdict.to_dict()))["valid"] == "invalid"
    for anomaly in verdict.anomalies:
        assert anomaly.kind in KINDS
        assert anomaly.message
        assert anomaly.evidence


def test_statistics() -> None:
    stats = judge(history(1)).stats
    assert stats["lines"]["append invoke"] == sum(stats["appends"].values())
    assert stats["partitions"] == 7
    assert stats["replicas_dumped"] == 21
    assert stats["groups"] == 3
    assert stats["group_operations"]["commits ok"] > 20
    assert stats["members"] == 5
    assert stats["faults_injected"] == {"kill": 1, "partition": 1}
    assert 70 < stats["load_s"] < stats["seconds"]
    assert 0 < stats["records_acknowledged"] < stats["records_sent"]


def test_limits() -> None:
    small = good()
    small.invoke(7, process="q")
    small.pass_s(6)
    small.complete(7, process="q")
    small.poll(at=0, takes_s=3)
    small.finish()
    assert small.found() == {}
    strict = Limits(outage_max_ns=5 * SECOND, lag_ns=5 * SECOND)
    assert small.judge(strict).kinds == {"UNAVAILABLE", "STALE-READ"}


def test_evidence_is_bounded() -> None:
    small = Small()
    for value in range(50):
        small.append(2 * value)
    small.finish(log=small.log[:1])
    assert small.judge().counts["LOST-tail"] == 49
    assert len(small.judge().anomalies) == 20
    assert len(small.judge(Limits(evidence_max=3)).anomalies) == 3


@pytest.mark.parametrize("phase", ["quiesce", "read"])
def test_a_cluster_that_does_not_come_to_rest(phase: str) -> None:
    small = good()
    small.phase(phase, "fail")
    small.finish()
    assert small.found() == {"STUCK": 1}


MILLION = """
import json, resource, sys, time
from pathlib import Path
from raftlog.testing.checker.judge import judge_file
begun = time.process_time()
verdict = judge_file(Path(sys.argv[1]))
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = verdict.stats["lines"]
operations = lines["append invoke"] + lines["poll invoke"]
print(json.dumps([verdict.valid, operations, time.process_time() - begun, rss / 1024]))
"""


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_a_million_operations_are_judged_in_a_minute_and_2_gib(tmp_path: Path) -> None:
    """Processor time, so that other work on the machine does not matter."""
    path = tmp_path / "history.jsonl"
    write_million(path)
    done = subprocess.run(
        [sys.executable, "-c", MILLION, str(path)], check=True, capture_output=True, text=True
    )
    valid, operations, seconds, mebibytes = json.loads(done.stdout)
    assert valid == "valid"
    assert operations >= 1_000_000
    assert seconds < 60
    assert mebibytes < 2_048


def write_million(path: Path) -> None:
    size = Size(
        operations=1_400_000, partitions=8, producers=16, consumers=8, group_max=50, time_s=600.0
    )
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for entry in history(1, size):
            file.write(encode(entry) + b"\n")
