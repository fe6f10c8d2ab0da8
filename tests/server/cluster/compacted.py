"""Logs that hold one history in different batches; a leader and its follower with two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from raftlog.record import split, validate
from raftlog.record.compaction import Rewriter, open_original
from raftlog.server.partition import Partition
from raftlog.server.peers import Answer
from raftlog.storage import Log
from tests.record.batches import NOW_MS, batch_of
from tests.server.cluster.copying import Copying
from tests.server.cluster.fake import FakeReply, Scene
from tests.server.cluster.leading import Leading

ROUNDS_MAX = 300
EPOCH = 5  # the leader's


def history(
    s: Scene,
    *runs: tuple[int, Sequence[int]],
    after: Sequence[bytes] = (),
    now_ms: int = NOW_MS,
) -> list[bytes]:
    """Batches as leaders have stored them, ``after`` others: for each run its epoch, and how many
    records each has.
    """
    log = log_of(s, after) if after else s.log()
    start = log.log_end_offset
    for epoch, lengths in runs:
        for length in lengths:
            offsets = [b"%d" % (log.log_end_offset + number) for number in range(length)]
            batch = batch_of(offsets, keys=[b"key"] * length)
            log.append(batch, validate(batch), leader_epoch=epoch, now_ms=now_ms)
    parts = log.read(start_offset=start, end_offset=log.log_end_offset, bytes_max=1 << 24)
    return [bytes(batch) for part in parts for batch in split(part)]


def joined(batches: Sequence[bytes], sizes: Sequence[int], *, keep: int = 0) -> list[bytes]:
    """Compacted: so many batches become one each, with one record; the rest stay.

    ``keep``: the number of the batch whose last record that is; 0 is the last one.
    """
    left = iter(batches)
    found: list[bytes] = []
    for size in sizes:
        rewriter = Rewriter(bytes_target=1 << 20)
        group = [open_original(batch) for batch in islice(left, size)]
        for number, original in enumerate(group, start=1):
            kept = np.zeros(original.header.record_count, np.bool_)
            kept[-1:] = number == (keep or len(group))
            assert rewriter.add(original, kept) == [], "batches of two epochs are not joined"
        found += [b"".join(map(bytes, batch.buffers)) for batch in rewriter.finish()]
    return [*found, *left]


def log_of(s: Scene, batches: Sequence[bytes], *, start: int = 0, **config: Any) -> Log:
    """A log that has copied these, from its start on."""
    log = s.log(cleanup_policy="compact", **config)
    if start:
        log.restart_at(start)
    log.append_replicated(b"".join(batches))
    log.sync()
    if start > log.log_start_offset:
        log.advance_log_start(start).run()
    return log


class Pair:
    """A leader's session for a follower, and that follower's fetcher, with a fake link."""

    def __init__(self, s: Scene, leader: Log, follower: Log, *, committed: int) -> None:
        self.leading = Leading(s)
        self.host = self.leading.leader(leader, epoch=EPOCH, isr=[1])
        self.copying = Copying(s)
        self.follower: Partition = self.copying.follower(follower, epoch=EPOCH)
        self.follower.advance_high_watermark(committed)
        self.cuts: list[tuple[int, int]] = []  # each from where to where
        self._seen = 0
        self._pending: list[tuple[FakeReply, asyncio.Future[Any]]] = []
        self._s = s

    async def run(self) -> None:
        """Until the follower has what the leader has."""
        leader, follower = self.host.log, self.follower.log
        self.copying.fetcher.add(self.follower)
        for _ in range(ROUNDS_MAX):
            before = follower.log_end_offset
            await self._s.come_to_rest()
            self._pass_on()
            await self._s.come_to_rest()
            if follower.log_end_offset < before:
                self.cuts.append((before, follower.log_end_offset))
            if follower.log_end_offset == leader.log_end_offset:
                return
            await asyncio.sleep(0.05)  # it may rest for a while
        raise AssertionError(f"it does not get on: {self.cuts}")

    def _pass_on(self) -> None:
        asked = self._s.links.asked
        for _, request, future in asked[self._seen :]:
            reply = FakeReply()
            self.leading.session.fetch(request, reply.as_reply)
            self._pending.append((reply, future))
        self._seen = len(asked)
        for reply, future in self._pending:
            if reply.answers and not future.done():
                message, buffers = reply.answers[0]
                future.set_result(Answer(message, memoryview(b"".join(buffers))))
