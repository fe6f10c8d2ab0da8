"""No order of messages, failover or time limit breaks a promise of the coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.transactions.shard import BUMPING_VERSION, FIRST_VERSION, TransactionShard
from tests.transactions import explore
from tests.transactions.explore import Bounds, Explorer

STATES = 3_500  # of each world at most: together 24,000, in 3 seconds
WORLDS = (
    Bounds(),
    Bounds(instances=1, parts=1, inits=1, timeouts=0, guards=2),
    Bounds(parts=1, failovers=0),
    Bounds(instances=1, parts=1, transactions=1, inits=1, timeouts=0, guards=1),
    Bounds(instances=1, parts=1, inits=1, timeouts=0, guards=1),
)
ANY_VERSION = {
    *("empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort"),
    *("init done", "init ConcurrentTransactionsError", "init ProducerFencedError"),
    *("end done", "end again", "end ProducerFencedError", "end InvalidProducerMappingError"),
    *("add ConcurrentTransactionsError", "add ProducerFencedError"),
    *("add InvalidProducerMappingError", "batch appended", "batch fenced"),
    *("mark again", "mark stale"),
}
REACHED = {
    FIRST_VERSION: ANY_VERSION
    | {"end ConcurrentTransactionsError", "end InvalidTransactionStateError"},
    BUMPING_VERSION: ANY_VERSION
    | {"end TransactionAbortedError", "add TransactionAbortedError"}
    | {"batch of a reserved partition"},
}


@pytest.mark.parametrize("version", [FIRST_VERSION, BUMPING_VERSION])
def test_every_state_keeps_the_promises(version: int) -> None:
    seen: set[str] = set()
    for bounds in WORLDS:
        explorer = Explorer(version, bounds)
        explorer.run(STATES)
        seen |= explorer.seen
    assert REACHED[version] <= seen, REACHED[version] - seen


def test_it_notices_a_leader_that_appends_what_was_verified_before_a_marker() -> None:
    class Careless(Explorer):
        def _delivered(self, world: Any, message: Any) -> Any:
            yield from super()._delivered(world, message)
            if message[0] == "verified":
                leader = explore._leader(world, message[1], message[2])
                if message[3] >= leader.epoch:
                    yield self._append(world, message[1], leader, message[3])

    with pytest.raises(AssertionError, match="is open after the transaction is complete"):
        Careless(FIRST_VERSION, WORLDS[1]).run(100_000)


def test_it_notices_a_coordinator_that_counts_late_confirmations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take_any(self: TransactionShard, name: str, number: int, parts: Any, **times: Any) -> Any:
        ending = self.ending(name)
        return marked(self, name, number if ending is None else ending.number, parts, **times)

    marked = TransactionShard.marked
    monkeypatch.setattr(TransactionShard, "marked", take_any)
    with pytest.raises(AssertionError, match="is open after the transaction is complete"):
        Explorer(FIRST_VERSION, WORLDS[1]).run(100_000)
