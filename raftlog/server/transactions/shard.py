"""Transactions of one partition of ``__transaction_state``, while this broker leads it.

``raftlog.transactions`` decides, and ``LogShard`` writes its decisions to the partition's
log. A decision to commit or abort is carried out from its commit on: a marker goes to the leader of
each partition of the transaction, again and again until that has committed it, or its topic is
deleted. The next coordinator goes on with what this one leaves.
"""

from __future__ import annotations

import logging
from asyncio import TimerHandle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from raftlog.errors import (
    ConcurrentTransactionsError,
    ProducerFencedError,
    RaftlogError,
    RetriableError,
)
from raftlog.server.log_shard import Decision, Failed, LogServices, LogShard
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.transactions import (
    BUMPING_VERSION,
    FIRST_VERSION,
    Ending,
    Marker,
    Part,
    ProducerIdentity,
    StateChange,
    TransactionPart,
    TransactionSettings,
    TransactionShard,
)
from raftlog.types import Offset

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds that a request waits for the completion of the last transaction of its id.
BUSY_SECONDS: Final = 0.5
# The same for a question of a leader, which asks again: others may share its request.
VERIFY_BUSY_SECONDS: Final = 0.05
PAUSE_SECONDS_MIN: Final = 0.02  # before a marker is sent again
PAUSE_SECONDS_MAX: Final = 1.0
TRIES_TOLD: Final = 6  # from which the log of the broker has the reason


class MarkedPart(NamedTuple):
    """A marker for one partition. ``number``: of the transaction; see ``Ending``."""

    part: TransactionPart
    marker: Marker
    number: int


class Place(NamedTuple):
    """Where a partition of a transaction is. ``leader``: None while it has none."""

    part: TransactionPart
    leader: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionServices(LogServices):
    """Services of the broker that all its shards share.

    ``find``: called with a partition and a version of the cluster's state. Returns None for one of
    a topic that is deleted in this version or a later one; raises ``RetriableError`` if this broker
    does not know yet. ``mark``: sends a marker to a leader.
    """

    settings: TransactionSettings
    find: Callable[[Part, int], Place | None]
    mark: Callable[[int, MarkedPart, Acknowledge], None]


@dataclass(slots=True)
class _Marking:
    """Markers of one transaction that are being sent."""

    number: int
    under_way: set[Part] = field(default_factory=set)
    tries: int = 0
    timer: TimerHandle | None = None


class ActiveTransactions(LogShard[TransactionShard]):
    """The transactional ids of one partition, while this broker leads it in one epoch."""

    what = "transactions"

    def __init__(self, host: Partition, services: TransactionServices) -> None:
        """Start to load the state."""
        super().__init__(host, services)
        self._services = services
        self._marking: dict[str, _Marking] = {}
        # Requests that wait for the end of the last transaction, by transactional id.
        self._waiting: dict[str, dict[TimerHandle, Callable[[], None]]] = {}

    @property
    def is_loading(self) -> bool:
        """Whether the state is loading."""
        return self._state is None

    @property
    def loaded(self) -> TransactionShard | None:
        """The state, to be read only; None while it is loading."""
        return self._state

    # -- requests ----------------------------------------------------------------------------------

    def init(
        self,
        name: str,
        done: Callable[[ProducerIdentity], None],
        failed: Failed,
        *,
        timeout_ms: int,
        new_id: int,
        expected: ProducerIdentity | None,
        may_use: Callable[[int], bool],
    ) -> None:
        """Call ``done`` with the identity of an instance that begins, once it is committed. See
        ``TransactionShard.init``.
        """

        until = self._loop.time() + BUSY_SECONDS

        def begin() -> None:
            self._when_free(
                name,
                lambda state, now, now_ms: state.init(
                    name,
                    timeout_ms=timeout_ms,
                    new_id=new_id,
                    expected=expected,
                    may_use=may_use,
                    now=now,
                    now_ms=now_ms,
                ),
                begun,
                failed,
                until=until,
            )

        def begun(identity: ProducerIdentity | None) -> None:
            if identity is None:  # a transaction is being aborted first
                self._wait(name, begin, until)
            else:
                done(identity)

        begin()

    def add(
        self,
        name: str,
        producer: ProducerIdentity,
        parts: Sequence[Part],
        done: Callable[[None], None],
        failed: Failed,
        *,
        version: int,
        topics_version: int,
    ) -> None:
        """Call ``done`` once the partitions are in the transaction: ``TransactionShard.add``."""
        self._when_free(
            name,
            lambda state, now, now_ms: state.add(
                name,
                producer,
                parts,
                version=version,
                topics_version=topics_version,
                now=now,
                now_ms=now_ms,
            ),
            done,
            failed,
        )

    def end(
        self,
        name: str,
        producer: ProducerIdentity,
        done: Callable[[ProducerIdentity], None],
        failed: Failed,
        *,
        is_commit: bool,
        version: int,
        new_id: int,
        reserved: Sequence[Part] = (),
    ) -> None:
        """Call ``done`` once the decision is committed: it will be carried out. See
        ``TransactionShard.end``.
        """

        self._when_free(
            name,
            lambda state, now, now_ms: state.end(
                name,
                producer,
                is_commit=is_commit,
                version=version,
                new_id=new_id,
                reserved=reserved,
                now=now,
                now_ms=now_ms,
            ),
            done,
            failed,
        )

    def abort(self, name: str, done: Callable[[None], None], failed: Failed) -> None:
        """Call ``done`` once it is committed that the open transaction is aborted. See
        ``TransactionShard.abort``.
        """
        self.change(
            lambda state, now, now_ms: state.abort(name, now=now, now_ms=now_ms), done, failed
        )

    def verify(
        self,
        name: str,
        producer: ProducerIdentity,
        parts: Sequence[Part],
        done: Acknowledge,
        *,
        adds: bool,
        topics_version: int,
    ) -> None:
        """Call ``done`` once it is durable that the partitions are in the open transaction, or with
        the reason why they are not. ``adds``: adds those that are missing; for a short time, waits
        for the end of the last transaction.
        """
        version = BUMPING_VERSION if adds else FIRST_VERSION
        try:
            if not adds or self._serving().has(name, producer, parts):
                # Else an earlier coordinator could confirm what its successor has ended.
                # guard: a partition is verified by a confirmed leader
                self.ask(
                    lambda state: state.check(name, producer, parts, version=version), done, done
                )
                return
        except RaftlogError as error:
            done(error)
            return
        self._when_free(
            name,
            lambda state, now, now_ms: state.add(
                name,
                producer,
                parts,
                version=version,
                topics_version=topics_version,
                now=now,
                now_ms=now_ms,
            ),
            done,
            done,
            until=self._loop.time() + VERIFY_BUSY_SECONDS,
        )

    def _when_free(
        self,
        name: str,
        operation: Callable[[TransactionShard, float, int], StateChange[T]],
        done: Callable[[T], None],
        failed: Failed,
        *,
        until: float | None = None,
    ) -> None:
        """Do ``operation`` when the last transaction of the id is complete, or fail at ``until``:
        clients that are told to wait repeat their request much later.
        """
        end = self._loop.time() + BUSY_SECONDS if until is None else until

        def attempt() -> None:
            try:
                self.change(operation, done, refused)
            except RaftlogError as error:
                failed(error)

        def refused(error: RaftlogError) -> None:
            if isinstance(error, ConcurrentTransactionsError) and self._loop.time() < end:
                self._wait(name, attempt, end)
            else:
                failed(error)

        attempt()

    def _wait(self, name: str, go_on: Callable[[], None], until: float) -> None:
        if self._state is None or self._state.ending(name) is None:
            self._loop.call_soon(go_on)
            return

        def expire() -> None:
            del waiting[timer]
            go_on()

        waiting = self._waiting.setdefault(name, {})
        timer = self._loop.call_at(until, expire)
        waiting[timer] = go_on

    def _wake(self, name: str) -> None:
        for timer, go_on in self._waiting.pop(name, {}).items():
            timer.cancel()
            self._loop.call_soon(go_on)

    # -- what the log asks for ---------------------------------------------------------------------

    def _new_state(self) -> TransactionShard:
        return TransactionShard(self._services.settings, self.epoch)

    def _start(self, state: TransactionShard, now: float, now_ms: int) -> StateChange[None]:
        return state.start(now=now, now_ms=now_ms)

    def _act(self, step: Decision[Any]) -> None:
        assert isinstance(step, StateChange)
        for name in step.ended:
            self._wake(name)
        if step.ending:
            assert self._state is not None
            self._when_decided(self._state, step.ending, self._end)

    def _discarded(self, reason: RaftlogError) -> None:  # noqa: ARG002 - requests find it
        for marking in self._marking.values():
            if marking.timer is not None:
                marking.timer.cancel()
        self._marking.clear()
        for name in tuple(self._waiting):
            self._wake(name)

    # -- markers -----------------------------------------------------------------------------------

    def _when_decided(self, state: TransactionShard, names: Iterable[str], end: Offset) -> None:
        """Send the markers once the log is committed up to ``end``: a coordinator that replaces
        this one before may decide otherwise.
        """

        def decided(error: RaftlogError | None) -> None:
            if state is not self._state or self.is_over:
                return  # who coordinates them now sends them
            if error is not None:
                # The wait is over, and not the decision: the disk hangs.
                # guard: a decision is waited for until it is committed
                self._loop.call_later(PAUSE_SECONDS_MAX, self._when_decided, state, names, end)
                return
            for name in names:
                self._send(name)

        # guard: markers are sent once the decision is committed
        self.host.when_committed(end, decided)

    def _send(self, name: str) -> None:
        """Send the markers that are missing, and not under way."""
        state = self._state
        if state is None or self.is_over:
            return
        ending = state.ending(name)
        if ending is None:
            self._marking.pop(name, None)
            return
        marking = self._marking.get(name)
        if marking is None or marking.number != ending.number:
            marking = self._marking[name] = _Marking(ending.number)
        gone: list[Part] = []
        for part in sorted(ending.parts - marking.under_way):
            try:
                place = self._services.find(part, ending.topics_version)
            except RetriableError as error:
                self._retry(name, marking, error)
                continue
            if place is None:
                gone.append(part)
            elif place.leader is None:
                self._retry(name, marking, None)
            else:
                marking.under_way.add(part)
                marked = partial(self._marked, state, ending, part)
                marker = ending.marker._replace(reserves=part in ending.reserved)
                self._services.mark(
                    place.leader, MarkedPart(place.part, marker, ending.number), marked
                )
        if gone:
            self._confirm(ending, gone)

    def _marked(
        self,
        state: TransactionShard,
        ending: Ending,
        part: Part,
        error: RaftlogError | None,
    ) -> None:
        marking = self._marking.get(ending.transactional_id)
        # guard: answers to markers are of the state that has sent them
        if state is not self._state or marking is None or marking.number != ending.number:
            return
        marking.under_way.discard(part)
        if error is None:
            self._confirm(ending, [part])
        elif isinstance(error, ProducerFencedError):
            # A newer epoch has written there: no transaction of this one is open.
            logger.warning(
                "marker refused: partition=%s transactional_id=%r error=%s",
                self.host.topic_partition, ending.transactional_id, error,
            )  # fmt: skip
            self._confirm(ending, [part])
        else:
            self._retry(ending.transactional_id, marking, error)

    def _confirm(self, ending: Ending, parts: Sequence[Part]) -> None:
        name, number = ending.transactional_id, ending.number
        self._decide(
            lambda state, now, now_ms: state.marked(name, number, parts, now=now, now_ms=now_ms)
        )
        if self._state is None or self._state.ending(name) is None:
            self._marking.pop(name, None)

    def _retry(self, name: str, marking: _Marking, error: RaftlogError | None) -> None:
        """Send again later, as long as this broker coordinates the transaction."""
        if marking.timer is not None or self.is_over:
            return
        pause = min(PAUSE_SECONDS_MIN * 2 ** min(marking.tries, 10), PAUSE_SECONDS_MAX)
        marking.tries += 1
        if marking.tries >= TRIES_TOLD:
            logger.warning(
                "marker sent again: partition=%s transactional_id=%r tries=%d error=%s",
                self.host.topic_partition, name, marking.tries, error or "no leader",
            )  # fmt: skip

        def again() -> None:
            marking.timer = None
            if self._marking.get(name) is marking:
                self._send(name)

        marking.timer = self._loop.call_later(pause, again)
