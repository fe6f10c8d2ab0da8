"""One run from beginning to end, and what can go wrong before there is anything to judge."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from raftlog.testing.checker.judge import judge_file
from raftlog.testing.history.entries import Append, Fault, Phase, Poll, Start, read
from raftlog_jepsen import runner
from raftlog_jepsen.nemesis.driver import KINDS, needs_of
from raftlog_jepsen.runner import (
    HISTORY,
    SUMMARY,
    VERDICT,
    ChaosError,
    Progress,
    RunOptions,
    facts,
    needs,
    run,
)


def options(directory: Path, **others: Any) -> RunOptions:
    given = {
        "workload": "append",
        "nemeses": ("kill",),
        "time_s": 7.0,
        "seed": 4,
        "rate": 200.0,
        "without_root": True,
        **others,
    }
    return RunOptions(directory=directory, **given)


@pytest.mark.integration
def test_a_whole_run(tmp_path: Path) -> None:
    said: list[str] = []
    shown: list[Progress] = []
    directory = tmp_path / "run"
    outcome = run(options(directory, say=said.append, progress=shown.append))
    assert outcome.verdict.valid == "valid", outcome.verdict

    entries = list(read(directory / HISTORY))
    assert isinstance(entries[0], Start)
    assert entries[0].plan["seed"] == 4
    phases = [entry.name for entry in entries if isinstance(entry, Phase)]
    assert phases == ["setup", "load", "heal", "quiesce", "read", "dump", "end"]
    assert [text for text in said if text in phases] == phases
    faults = [entry for entry in entries if isinstance(entry, Fault)]
    assert {fault.kind for fault in faults} == {"kill"}
    assert sum(isinstance(entry, Append | Poll) for entry in entries) > 50

    summary = json.loads((directory / SUMMARY).read_bytes())
    assert summary["verdict"] == "valid"
    assert summary["injected"]["kill"] >= 1
    assert summary["effects"]["SIGKILLs of brokers"] >= 1
    assert 0 < shown[-1].acknowledged <= summary["acknowledged"]
    verdict = json.loads((directory / VERDICT).read_bytes())
    assert verdict["counts"] == dict(judge_file(directory / HISTORY).counts), "anybody may judge"
    assert outcome.report.read_text().startswith("<!")


@pytest.mark.integration
def test_a_cluster_that_does_not_start_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "source" / "raftlog").mkdir(parents=True)
    (tmp_path / "source" / "raftlog" / "__init__.py").write_text("raise SystemExit('too old')\n")
    with pytest.raises(ChaosError, match=r"did not start.*too old"):
        run(options(tmp_path / "run", source=tmp_path / "source"))
    assert not (tmp_path / "run" / VERDICT).exists()


def test_the_clients_thread_ends_though_a_client_waits_for_a_task_that_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a producer does that is closed after the tasks that deliver its records."""
    monkeypatch.setattr(runner, "CLOSE_SECONDS", 0.01)
    thread = runner._LoopThread()
    begun = asyncio.Event()

    async def client() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    thread.start(client())
    thread.wait(begun.wait())
    thread.close()
    assert not thread._thread.is_alive()


def test_kinds_say_what_a_cluster_is_made_with() -> None:
    assert needs(("kill",), with_root=True) == needs((), with_root=False)
    power = needs(("power",), with_root=True)
    assert power.loop_disks
    assert not power.namespaces
    everything = needs(KINDS, with_root=True)
    assert all(getattr(everything, name) for name in needs_of(KINDS))


@pytest.mark.parametrize("kind", ["partition", "one-way", "slow-link"])
def test_without_root_the_network_is_cut_in_relays(kind: str) -> None:
    assert needs((kind,), with_root=True).namespaces
    made = needs((kind,), with_root=False)
    assert made.relays
    assert not made.namespaces
    assert not needs(("power", "clock-bases"), with_root=False).loop_disks


def test_facts_have_all_versions() -> None:
    found = facts()
    assert {"raftlog", "pysyncobj", "python", "system", "processors"} == found.keys()
    assert all(found.values())
