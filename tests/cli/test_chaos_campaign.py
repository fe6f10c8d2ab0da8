"""``raftlog chaos campaign``: what it asks of the harness, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raftlog.jepsen_like import campaign as module
from raftlog.jepsen_like.campaign import CampaignOptions, Mix, Row
from tests.cli.conftest import Raftlog

MIX = Mix(name="kill", nemeses=("kill",))


class Fake:
    """Takes the place of the campaign."""

    def __init__(self, *verdicts: str) -> None:
        self.asked: list[CampaignOptions] = []
        self._rows = [
            Row(MIX, seed, verdict, 9.0, {"acknowledged": 50, "injected": {"kill": 2}})
            for seed, verdict in enumerate(verdicts, start=1)
        ]

    def __call__(self, options: CampaignOptions) -> list[Row]:
        self.asked.append(options)
        options.say("1 kill: valid")
        return self._rows


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (("valid", "valid"), 0),
        (("valid", "invalid", "unknown"), 1),
        (("valid", "unknown"), 3),
        (("valid", "it hung"), 3),
        ((), 3),
    ],
)
def test_the_worst_run_decides(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, verdicts: tuple[str, ...], status: int
) -> None:
    monkeypatch.setattr(module, "campaign", Fake(*verdicts))
    ran = raftlog("chaos", "campaign")
    assert ran.status == status
    assert f"{len(verdicts)} runs, {verdicts.count('valid')} valid" in ran.out.decode()


def test_options_are_passed_on(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = Fake("valid")
    monkeypatch.setattr(module, "campaign", fake)
    words = "--time 60 --run-time 20 --jobs 3 --seed 7 --json --report"
    ran = raftlog("chaos", "campaign", *words.split(), str(tmp_path / "here"))
    (asked,) = fake.asked
    assert (asked.time_s, asked.run_s, asked.jobs, asked.seed) == (60, 20, 3, 7)
    assert asked.directory == tmp_path / "here"
    (row,) = json.loads(ran.out)
    assert row["verdict"] == "valid"
    assert row["arguments"][:4] == ["--workload", "append", "--nemesis", "kill"]
    assert row["acknowledged"] == 50
