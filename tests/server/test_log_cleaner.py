"""Which log is compacted next, and what follows when it cannot be."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raftlog.config import BrokerConfig, TopicConfig
from raftlog.errors import (
    BrokerUnavailableError,
    DamagedLogError,
    DiskFullError,
    RaftlogError,
    StorageFailedError,
)
from raftlog.server.maintenance import LogCleaner, LogVerifier
from raftlog.server.metrics import Counters
from raftlog.server.partition import BrokerClock, Finished, Pass, Terms
from raftlog.storage import CompactionStatus
from raftlog.storage.compaction import LastPass
from raftlog.storage.state_files import storage_error
from raftlog.types import TopicPartition
from tests.running import runs
from tests.server.cluster.paper import Scene, play


class PaperCompaction:
    """Ends as it is told to, in the next turn of the loop."""

    def __init__(self, host: PaperHost) -> None:
        self.host = host
        self.is_given_up = False
        self.begun: list[dict[str, Any]] = []

    def begin(self, terms: Terms, *, finished: Finished, **others: Any) -> None:
        self.begun.append({"terms": terms, **others})
        self.host.order.append(self.host.topic_partition.partition)
        outcome = self.host.outcomes.pop(0) if self.host.outcomes else Pass(is_done=True)
        log = self.host.log
        if outcome.is_done:
            log.ratio = 0.0
            log.compaction = CompactionStatus(40, 0, False, LastPass(terms.now_ms, 1_000, 500, 7))
        elif isinstance(outcome.error, DamagedLogError):
            log.damage = str(outcome.error)
        asyncio.get_running_loop().call_soon(finished, outcome)


class PaperLog:
    def __init__(self, ratio: float, policy: str) -> None:
        self.config = TopicConfig(cleanup_policy=policy)
        self.ratio = ratio
        self.damage = ""
        self.compaction = CompactionStatus(0, 0, False, None)
        self.directory = "/logs/1"

    def disk_failed(self, doing: str, error: OSError) -> RaftlogError:
        return storage_error(doing, error)

    def dirty_ratio(self, *, now_ms: int, high_watermark: int, tombstones_kept_from: int) -> float:
        assert now_ms > 0
        assert (high_watermark, tombstones_kept_from) == (50, 30)
        return self.ratio


class PaperHost:
    def __init__(
        self,
        number: int,
        order: list[int],
        ratio: float = 0.7,
        *outcomes: Pass,
        policy: str = "compact",
    ) -> None:
        self.topic_partition = TopicPartition("t", number)
        self.order = order
        self.outcomes = list(outcomes)
        self.log: Any = PaperLog(ratio, policy)
        self.compaction = PaperCompaction(self)
        self.closed: RaftlogError | None = None
        self.high_watermark = 50
        self.tombstones_kept_from = 30


damaged: list[Any] = []


def compactor(
    s: Scene, hosts: list[Any], clock: BrokerClock | None = None, **settings: str
) -> LogCleaner:
    damaged.clear()
    config = BrokerConfig.from_text({name.replace("_", "."): v for name, v in settings.items()})
    return LogCleaner(
        config,
        lambda: hosts,
        s.workers,
        clock=clock or s.services.clock,
        entropy=lambda count: b"\x01" * count,
        verifier=LogVerifier(Counters(), on_damage=damaged.append),
        on_failed=s.failures.append,
    )


def of(test: Callable[[Scene, list[int]], Any]) -> None:
    play(lambda s: test(s, []))


@runs(of)
async def test_the_dirtiest_comes_first_and_each_as_long_as_it_is_due(
    s: Scene, order: list[int]
) -> None:
    hosts = [PaperHost(n, order, ratio) for n, ratio in enumerate((0.5, 0.9, 0.0, 0.7))]
    await compactor(s, hosts).step()
    assert order == [1, 3, 0]
    (begun,) = hosts[1].compaction.begun
    assert begun["high_watermark"]() == 50
    assert begun["tombstones_kept_from"]() == 30
    assert begun["terms"].memory_bytes == BrokerConfig().log_cleaner_dedupe_buffer_size
    assert begun["terms"].chance_seed == int.from_bytes(b"\x01" * 8)


@runs(of)
async def test_only_compacted_topics_are_compacted_from_when_they_are(
    s: Scene, order: list[int]
) -> None:
    policies = ("delete", "compact", "compact,delete")
    hosts = [PaperHost(n, order, policy=policy) for n, policy in enumerate(policies)]
    c = compactor(s, hosts)
    await c.step()
    assert order == [1, 2]
    hosts[0].log.config = TopicConfig(cleanup_policy="compact")  # as `topic alter` does
    await c.step()
    assert order == [1, 2, 0]


@runs(of)
async def test_nothing_is_compacted_while_the_time_is_unknown(s: Scene, order: list[int]) -> None:
    clock = BrokerClock(s.services.clock.machine, broker_id=1, voters=[1, 2, 3])
    c = compactor(s, [PaperHost(0, order)], clock)
    await c.step()
    assert order == []
    clock.on_peer(2, clock.wall_ms(), 0.0)
    clock.update()
    await c.step()
    assert order == [0]


@runs(of)
async def test_closed_hosts_are_left_alone(s: Scene, order: list[int]) -> None:
    host = PaperHost(0, order)
    host.closed = BrokerUnavailableError("gone")
    await compactor(s, [host]).step()
    assert order == []


@runs(of)
async def test_one_that_did_not_come_about_is_left_until_the_next_step(
    s: Scene, order: list[int]
) -> None:
    hosts = [PaperHost(0, order, 0.9, Pass()), PaperHost(1, order, 0.6)]
    c = compactor(s, hosts)
    await c.step()
    assert order == [0, 1]
    await c.step()
    assert order == [0, 1, 0]


@runs(of)
async def test_a_pass_is_told_in_a_line(
    s: Scene, order: list[int], *, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await compactor(s, [PaperHost(4, order)]).step()
    (line,) = caplog.messages
    assert (
        "compaction done: partition=t:4 clean_end=40 bytes_before=1000 bytes_after=500 "
        "records_removed=7"
    ) in line


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), DiskFullError("full")])
def test_a_full_disk_puts_it_off_and_is_told_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        full = Pass(error=error)
        host = PaperHost(0, order, 0.7, full, full, Pass(is_done=True), full)
        c = compactor(s, [host])
        for _ in range(2):
            await c.step()
        assert len(caplog.messages) == 1
        assert "compaction postponed" in caplog.text
        await c.step()
        host.log.ratio = 0.7
        await c.step()
        assert len(caplog.messages) == 2, "it had room in between"
        assert s.failures == []

    with caplog.at_level(logging.WARNING):
        of(test)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad"), StorageFailedError("bad")])
@runs(of)
async def test_a_disk_that_fails_is_reported(
    s: Scene, order: list[int], *, error: Exception
) -> None:
    await compactor(s, [PaperHost(0, order, 0.7, Pass(error=error))]).step()
    (failure,) = s.failures
    assert isinstance(failure, StorageFailedError)
    assert "bad" in str(failure)


@runs(of)
async def test_a_pass_of_several_tickets_is_told_when_it_is_through(
    s: Scene, order: list[int], *, caplog: pytest.LogCaptureFixture
) -> None:
    host = PaperHost(0, order)
    c = compactor(s, [host])
    begin = host.compaction.begin

    def begin_first(terms: Terms, *, finished: Finished, **others: Any) -> None:
        begin(terms, finished=finished, **others)
        host.compaction.begin = begin  # type: ignore[method-assign]
        host.log.ratio = 1.0
        host.log.compaction = replace(host.log.compaction, is_under_way=True)

    host.compaction.begin = begin_first  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        await c.step()
    assert order == [0, 0]
    assert len(caplog.messages) == 1


def test_damage_that_it_meets_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        host = PaperHost(0, order, 0.7, Pass(error=DamagedLogError("rot")))
        await compactor(s, [host]).step()
        assert damaged == [host]
        assert s.failures == []

    with caplog.at_level(logging.ERROR):
        of(test)
    assert "log corrupt: partition=t:0 reason=rot" in caplog.text


def test_a_log_that_cannot_be_looked_at_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        hosts = [PaperHost(0, order, 0.9), PaperHost(1, order)]

        def fails(**_terms: int) -> float:
            raise DamagedLogError("rot")

        hosts[0].log.dirty_ratio = fails
        await compactor(s, hosts).step()
        assert order == [1]

    with caplog.at_level(logging.WARNING):
        of(test)
    assert "compaction skipped: partition=t:0 error=rot" in caplog.text


def test_a_mistake_is_told_and_no_other_log_suffers(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene, order: list[int]) -> None:
        hosts = [PaperHost(0, order, 0.9, Pass(error=ValueError("oh"))), PaperHost(1, order)]
        await compactor(s, hosts).step()
        assert order == [0, 1]

    with caplog.at_level(logging.ERROR):
        of(test)
    assert "compaction failed: partition=" in caplog.text


@runs(of)
async def test_nobody_waits_any_more_when_it_ends(s: Scene, order: list[int]) -> None:
    host = PaperHost(0, order)
    task = asyncio.ensure_future(compactor(s, [host]).step())
    while not order:  # noqa: ASYNC110 - each turn of the loop may change it
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await s.come_to_rest()
