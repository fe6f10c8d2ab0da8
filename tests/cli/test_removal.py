"""``raftlog cluster decommission``: it waits, says what for, and can be repeated."""

from __future__ import annotations

from typing import cast

import pytest

from raftlog import Admin
from raftlog.client.descriptions import DecommissionProgress
from raftlog_cli import removal


class Answers:
    """An ``Admin`` that returns one progress after the other."""

    def __init__(self, *answers: DecommissionProgress) -> None:
        self.answers = list(answers)

    def decommission_broker(self, broker: int) -> DecommissionProgress:
        assert broker == 3
        return self.answers.pop(0)


def test_it_waits_until_the_broker_is_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(removal, "POLL_INTERVAL_S", 0)
    hindered = DecommissionProgress(False, 1, has_vote=True, waits_for="t:0 has no leader")
    done = DecommissionProgress(True, 0, has_vote=False, waits_for="")
    admin = Answers(hindered, hindered, done)
    first = DecommissionProgress(False, 2, has_vote=True, waits_for="")
    assert removal.wait(cast(Admin, admin), 3, first) == done
    assert admin.answers == []
    assert capsys.readouterr().err.count("t:0 has no leader") == 1
