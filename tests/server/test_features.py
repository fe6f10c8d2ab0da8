"""The versions that a broker reports of its formats."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.protocol.security import PEER_PROTOCOL_VERSION, PEER_PROTOCOL_VERSION_MIN
from raftlog.server.context import features


@pytest.mark.parametrize("version", range(PEER_PROTOCOL_VERSION_MIN, PEER_PROTOCOL_VERSION + 1))
def test_a_broker_reads_what_it_writes(version: int) -> None:
    for each in features(version):
        assert each.version_min <= each.level <= each.version_max, each
    names = [each.name for each in features(version)]
    assert names == sorted(set(names))
    assert len(names) <= limits.FEATURES_MAX
