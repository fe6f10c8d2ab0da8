"""The versions that a broker reports of its formats."""

from __future__ import annotations

from raftlog import limits
from raftlog.server.features import FEATURES


def test_a_broker_reads_what_it_writes() -> None:
    for each in FEATURES:
        assert each.version_min <= each.level <= each.version_max, each
    names = [each.name for each in FEATURES]
    assert names == sorted(set(names))
    assert len(names) <= limits.FEATURES_MAX
