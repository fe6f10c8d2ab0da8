"""Tests of raftlog.bench.broker: it runs to its end; what is measured is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench import broker


@pytest.mark.integration
def test_creation_stands_beside_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "REST_S", 0.1)
    monkeypatch.setattr(broker, "QUIET_S", 0.1)
    figure = broker.topics(tmp_path, partitions=3, rounds=1)
    assert figure.values["creation_s"] > 0
    assert figure.values["deletion_s"] > 0
    assert figure.values["ratio"] > 0
    assert list(tmp_path.iterdir()) == []
