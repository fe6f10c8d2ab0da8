"""Tests of raftlog.record.compression."""

from __future__ import annotations

from raftlog import limits
from raftlog.record.compression import Pool


def test_spares_are_kept_few_and_small() -> None:
    made: list[object] = []
    pool: Pool[object] = Pool(lambda: made.append(0) or object())
    spares = [pool.take() for _ in range(limits.CODEC_STATES_KEPT_MAX + 3)]
    for spare in spares:
        pool.give_back(spare, size_bytes=1)
    assert len({id(pool.take()) for _ in spares} & set(map(id, spares))) == (
        limits.CODEC_STATES_KEPT_MAX
    )
    made.clear()
    pool.give_back(object(), size_bytes=limits.CODEC_STATE_BYTES_MAX + 1)
    pool.take()
    assert made
