"""A coordinator's shard carries out what is committed, and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    ConcurrentTransactionsError,
    DiskFullError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    ProducerFencedError,
    RaftlogError,
)
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.server.transactions.hanging import HangingTransactions
from raftlog.server.transactions.shard import (
    BUSY_SECONDS,
    PAUSE_SECONDS_MAX,
    TRIES_TOLD,
    ActiveTransactions,
    MarkedPart,
    Place,
    TransactionServices,
)
from raftlog.transactions import (
    BUMPING_VERSION,
    Marker,
    Part,
    ProducerIdentity,
    TransactionPart,
    TransactionSettings,
)
from tests.running import runs
from tests.server.cluster.fake import Scene, play, state_of

ALL = (1, 2, 3)
A: Part = ("id", 0)
B: Part = ("id", 1)


class Shown:
    """A shard of a partition that broker 1 leads, the markers that it sends, and what came of what
    it was asked. With others in the ISR nothing is committed before the test says ``commit``.
    """

    def __init__(self, s: Scene, *, isr: tuple[int, ...] = (1,), host: Partition | None = None):
        self.s = s
        self.host = host or s.host()
        self.isr = isr
        self.questions: list[Acknowledge] | None = None  # whether this broker leads
        self.sent: list[tuple[int, MarkedPart, Acknowledge]] = []
        self.places: dict[Part, Place | RaftlogError | None] = {}
        self.noted: list[Any] = []
        self.host.lead(state_of(*isr, epoch=5), 1, lag_max_seconds=10)
        services = TransactionServices(
            loop=s.loop,
            clock=s.services.clock,
            confirm=self._confirm,
            on_unreadable=lambda _host, _offset: None,
            reading=asyncio.Lock(),
            settings=TransactionSettings(),
            find=self._find,
            mark=lambda leader, marked, done: self.sent.append((leader, marked, done)),
        )
        self.shard = ActiveTransactions(self.host, services)

    def _confirm(self, _host: Partition, done: Acknowledge) -> None:
        if self.questions is None:
            done(None)
        else:
            self.questions.append(done)

    def _find(self, part: Part, _topics_version: int) -> Place | None:
        found = self.places.get(part, Place(TransactionPart("t", *part), 2))
        if isinstance(found, RaftlogError):
            raise found
        return found

    async def ready(self) -> Shown:
        """Once it is read, and id ``x`` has a transaction with ``A`` and ``B``."""
        await self.rest()
        self.init()
        await self.rest()
        assert self.noted == [(77, 0)]
        self.add(A, B)
        await self.rest()
        assert self.noted == [(77, 0), None]
        self.noted.clear()
        return self

    async def rest(self) -> None:
        await self.s.come_to_rest()
        self.commit()
        await self.s.come_to_rest()

    def commit(self) -> None:
        """The others have all that there is."""
        end = self.host.log.log_end_offset
        for follower in self.isr[1:]:
            self.host.on_follower(
                follower, f"disk-{follower}", fetch_offset=end, durable_offset=end
            )

    def _failed(self, error: RaftlogError) -> None:
        self.noted.append(type(error))

    def init(self) -> None:
        self.shard.init(
            "x",
            self.noted.append,
            self._failed,
            timeout_ms=60_000,
            new_id=77,
            expected=None,
            may_use=lambda _producer_id: True,
        )

    def add(self, *parts: Part, epoch: int = 0) -> None:
        self.shard.add(
            "x",
            ProducerIdentity(77, epoch),
            parts,
            self.noted.append,
            self._failed,
            version=BUMPING_VERSION,
            topics_version=0,
        )

    def verify(self, *parts: Part, adds: bool, epoch: int = 0) -> None:
        def done(error: RaftlogError | None) -> None:
            self.noted.append(None if error is None else type(error))

        self.shard.verify(
            "x", ProducerIdentity(77, epoch), parts, done, adds=adds, topics_version=0
        )

    def end(self, *, commit: bool = True, reserved: tuple[Part, ...] = ()) -> None:
        self.shard.end(
            "x",
            ProducerIdentity(77, 0),
            self.noted.append,
            self._failed,
            is_commit=commit,
            version=BUMPING_VERSION,
            new_id=78,
            reserved=reserved,
        )

    def answer(self, error: RaftlogError | None = None) -> None:
        """The leader has taken the oldest marker, or has not."""
        self.sent.pop(0)[2](error)

    @property
    def status(self) -> str:
        assert self.shard._state is not None
        return self.shard._state.view("x").status


@runs(play)
async def test_a_decision_is_told_and_carried_out_once_it_is_committed(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.end()
    await s.come_to_rest()
    assert (shown.noted, shown.sent) == ([], [])
    shown.commit()
    assert shown.noted == [(77, 1)]
    sent = [(leader, marked.part, marked.number) for leader, marked, _ in shown.sent]
    assert sent == [(2, TransactionPart("t", *part), 1) for part in (A, B)]
    assert shown.sent[0][1].marker == Marker(77, 1, True, 5, True)


@runs(play)
async def test_a_decision_is_carried_out_though_the_disk_hung_before_it_was_committed(
    s: Scene,
) -> None:
    """The waits of its responses fail, and nothing else would ever end the transaction."""
    shown = await Shown(s, isr=ALL).ready()
    shown.end()
    await s.come_to_rest()
    shown.host.disk_hangs()
    await s.come_to_rest()
    assert (shown.noted, shown.sent) == ([CommitUnknownError], [])
    shown.commit()
    await asyncio.sleep(PAUSE_SECONDS_MAX)
    await s.come_to_rest()
    assert [marked.part for _, marked, _ in shown.sent] == [
        TransactionPart("t", *part) for part in (A, B)
    ]


@runs(play)
async def test_leaders_are_told_which_partitions_are_reserved(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.end(reserved=(B,))
    await shown.rest()
    assert [marked.marker.reserves for _, marked, _ in shown.sent] == [False, True]


@runs(play)
async def test_the_next_transaction_waits_until_all_partitions_have_the_marker(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.end()
    await shown.rest()
    shown.noted.clear()
    shown.add(A, epoch=1)
    await shown.rest()
    shown.answer()
    await shown.rest()
    assert shown.noted == []
    shown.answer()
    await shown.rest()
    assert shown.noted == [None]


@runs(play)
async def test_who_waits_too_long_is_told_to_ask_again(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.end()
    await shown.rest()
    shown.noted.clear()
    shown.add(A, epoch=1)
    await asyncio.sleep(BUSY_SECONDS - 0.1)
    assert shown.noted == []
    await asyncio.sleep(0.2)
    assert shown.noted == [ConcurrentTransactionsError]


@runs(play)
async def test_another_instance_begins_when_the_open_transaction_is_aborted(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.init()
    await shown.rest()
    assert (shown.noted, shown.status) == ([], "prepare_abort")
    shown.answer()
    shown.answer()
    await shown.rest()
    assert shown.noted == [(77, 2)]


@runs(play)
async def test_markers_are_sent_until_they_are_taken(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    shown = await Shown(s).ready()
    shown.places[B] = LeaderNotAvailableError("not known yet")
    shown.end()
    await shown.rest()
    assert len(shown.sent) == 1
    for _ in range(TRIES_TOLD):
        shown.answer(BrokerUnavailableError("down"))
        await asyncio.sleep(2.0)
        assert len(shown.sent) == 1, "one at a time"
    assert "marker sent again" in caplog.text
    shown.places[B] = Place(TransactionPart("t", *B), None)
    await asyncio.sleep(2.0)
    assert len(shown.sent) == 1, "there is no leader"
    shown.places[B] = None  # deleted
    await asyncio.sleep(2.0)
    assert shown.status == "prepare_commit"
    shown.answer()
    await shown.rest()
    assert shown.status == "complete_commit"


@runs(play)
async def test_a_partition_with_a_newer_epoch_needs_no_marker(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.end()
    await shown.rest()
    shown.answer()
    shown.answer(ProducerFencedError("newer"))
    await shown.rest()
    assert shown.status == "complete_commit"


@runs(play)
async def test_a_late_answer_counts_for_no_later_transaction(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.end()
    await shown.rest()
    late = shown.sent[0][2]
    shown.answer()
    shown.answer()
    shown.add(A, epoch=1)
    await shown.rest()
    shown.shard.end(
        "x",
        ProducerIdentity(77, 1),
        shown.noted.append,
        shown._failed,
        is_commit=True,
        version=BUMPING_VERSION,
        new_id=78,
    )
    await shown.rest()
    late(None)
    await shown.rest()
    assert shown.status == "prepare_commit"


@runs(play)
async def test_what_the_log_does_not_take_is_not_carried_out(
    s: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = await Shown(s).ready()

    def full(*_args: object) -> None:
        raise DiskFullError("full")

    monkeypatch.setattr(Partition, "append", full)
    shown.end()
    monkeypatch.undo()
    await asyncio.sleep(1.0)
    assert (shown.noted, shown.sent, shown.status) == ([DiskFullError], [], "ongoing")


@runs(play)
async def test_markers_that_are_missing_are_sent_after_a_reload(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.end()
    await shown.rest()
    shown.answer()
    old = shown.sent.pop()[2]
    shown.shard._begin_anew(NotEnoughReplicasError("as if an append had failed"))
    await asyncio.sleep(1.0)
    assert [marked.part.partition for _, marked, _ in shown.sent] == [0, 1], "all of them"
    old(None)
    shown.answer()
    await shown.rest()
    assert shown.status == "prepare_commit"
    shown.answer()
    await shown.rest()
    assert shown.status == "complete_commit"


@runs(play)
async def test_a_partition_is_verified_by_a_coordinator_that_still_leads(s: Scene) -> None:
    """Else a former one could confirm what its successor has ended."""
    shown = await Shown(s).ready()
    shown.questions = []
    for adds in (True, False):
        shown.verify(A, adds=adds)
        await shown.rest()
        assert shown.noted == []
        shown.questions.pop()(None)
        assert shown.noted.pop() is None


@runs(play)
async def test_a_partition_that_is_added_is_verified_when_that_is_committed(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.verify(("id", 2), adds=True)
    await s.come_to_rest()
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [None]


@runs(play)
async def test_who_waits_learns_that_another_broker_leads(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.end()
    await shown.rest()
    shown.noted.clear()
    shown.add(A, epoch=1)
    await shown.rest()
    shown.shard.close(BrokerUnavailableError("the broker stops"))
    await s.come_to_rest()
    assert len(shown.noted) == 1


@runs(play)
async def test_a_check_that_was_given_up_takes_no_answer_from_others(s: Scene) -> None:
    """A check of open transactions waits for a limited time, and its answer comes all the same."""
    shown = await Shown(s).ready()
    shown.questions = []
    context: Any = SimpleNamespace(
        loop=s.loop, config=SimpleNamespace(transaction_max_timeout_ms=60_000)
    )
    hanging = HangingTransactions(context, lambda: [shown.shard])
    with pytest.raises(TimeoutError):
        await hanging._ask_here([(77, A)])
    shown.shard.ask(lambda state: state.view("x").status, shown.noted.append, shown._failed)
    while shown.questions:
        shown.questions.pop(0)(None)
    assert shown.noted == ["ongoing"]
    await hanging.stop()
