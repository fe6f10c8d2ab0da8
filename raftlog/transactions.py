"""All transactional ids of one partition of ``__transaction_state``: the coordinator's state.

    empty --add--> ongoing --end--> prepare_commit --all marked--> complete_commit --add--> ongoing
      ^               +--end, timeout, init--> prepare_abort --all marked--> complete_abort --> ...
      +-- init: the next epoch, or the next producer id

Every operation changes the state at once and returns the records of the change. The caller appends
these records as one batch. Until they are committed, it must not send the result, nor any marker.
If they cannot be committed, the caller discards the shard, and a new one is built from the log.

A record of ``prepare_*`` is the decision: once it is committed, it is never taken back, and the
markers that carry it out are sent until every partition has one. They may be sent again by a later
coordinator, so a leader takes a marker twice.

Clients end transactions in one of two ways (``transaction.version``). In version 1, the next
transaction has the same epoch. In version 2 (KIP-890), every end increments the epoch, and tells
the client the next one; a late batch of a transaction that has ended is then of an older epoch.

A completion is written later (``COMPLETION_SECONDS``), or with the next change of its id: a
coordinator that does not know of it sends the markers again, which changes nothing.

A client of version 2 may *reserve* partitions when it commits: the record of the decision then says
that they are in its next transaction, too. Their leaders are told with the marker, and append the
first batch without a question. The next transaction begins, and is ongoing, with the completion
of this one. If the client does not use it, it is aborted like any other after its time limit.

The module is pure: time and new producer ids are arguments. ``now`` is in monotonic seconds (time
limits), ``now_ms`` in wall-clock milliseconds, and ``expiry_ms`` is a separate time that decides
which ids expire.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from raftlog import limits
from raftlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerMappingError,
    InvalidRequestError,
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    ThrottledError,
    TransactionAbortedError,
    UnknownTransactionError,
)
from raftlog.record.key_hash import partition_of_key
from raftlog.types import NO_PRODUCER_ID, LeaderEpoch, TimestampMs

T = TypeVar("T")

# Exclusive limit of the epochs that clients get; only the markers that end the last transaction of
# a producer id have it. Then the transactional id gets another producer id.
EPOCH_MAX: Final = 32_766
STORED_EPOCH_MAX: Final = 32_767  # 16 bits, of a log that another program wrote
NO_EPOCH: Final = -1
FIRST_VERSION: Final = 1  # of transactions: the epoch stays
BUMPING_VERSION: Final = 2  # every end increments the epoch
COMPLETION_SECONDS: Final = 1.0  # until a completion is written
CHECK_MS_MAX: Final = 600_000  # between two looks at an idle id
TICK_IDS_MAX: Final = 1_000  # that one tick looks at

Part: TypeAlias = tuple[str, int]  # topic id, partition
OpenPart: TypeAlias = tuple[int, Part]  # of the transaction of a producer id
Status: TypeAlias = Literal[
    "empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort"
]
STATUSES: Final[tuple[Status, ...]] = (
    "empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort",
)  # fmt: skip


class TransactionPart(NamedTuple):
    """A partition of a transaction. ``topic_id``: a topic that was created again is another one.

    A partition of ``__consumer_offsets`` holds the offsets of groups that the transaction commits.
    """

    topic: str
    topic_id: str
    partition: int


class Marker(NamedTuple):
    """The end of a transaction in one partition.

    ``coordinator_epoch``: leader epoch of the coordinator's partition of ``__transaction_state``;
    a marker of an older coordinator is refused. ``is_bumped``: the transaction ended with a bump of
    the producer's epoch (``transaction.version=2``, KIP-890): ``producer_epoch`` is the bumped one,
    so it must be above that of the transaction's batches. Otherwise it is that of the batches.
    ``reserves``: it is committed at the coordinator that the partition is in the producer's next
    transaction, of the bumped epoch.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: LeaderEpoch
    is_bumped: bool
    reserves: bool = False


class ProducerIdentity(NamedTuple):
    """Producer id and epoch that a client uses from now on."""

    producer_id: int
    epoch: int


class Ending(NamedTuple):
    """A transaction whose end is decided. ``parts``: those that have not confirmed the marker.
    ``reserved``: those that are in the next transaction of the marker's epoch.

    ``number``: of the transaction, 1 for the first of its transactional id. ``topics_version``: a
    topic of the transaction that is unknown in this version of the cluster's state, or in a later
    one, is deleted.
    """

    transactional_id: str
    number: int
    marker: Marker
    parts: frozenset[Part]
    topics_version: int
    reserved: frozenset[Part] = frozenset()


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One record of ``__transaction_state``. A ``value`` of None is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class StateChange(Generic[T]):
    """Effects of an operation. The ``result`` must not be sent before ``records`` are committed.

    ``ending``: ids whose markers must be sent once ``records`` are committed. ``ended``: ids whose
    last transaction is complete. ``notes``: lines for the broker's log.
    """

    result: T
    records: tuple[TransactionRecord, ...] = ()
    ending: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Times in ms. ``epoch_max``: as ``EPOCH_MAX``, lower in tests."""

    timeout_ms_max: int = 900_000
    expiration_ms: int = 604_800_000
    epoch_max: int = EPOCH_MAX
    ids_max: int = limits.TRANSACTIONAL_IDS_MAX


@dataclass(frozen=True, slots=True)
class TransactionView:
    """Description of a transactional id. ``started_ms``: -1 if no transaction is open."""

    transactional_id: str
    status: Status
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: TimestampMs
    parts: tuple[Part, ...]


@dataclass(slots=True)
class Transaction:
    """A transactional id, and its current or last transaction.

    ``last_epoch``: epoch of the client before ``epoch``, with which it may repeat a request; -1 if
    ``epoch`` belongs to a new instance. ``next_id``: producer id from the end of this transaction
    on, -1 for the same. ``reserved``: parts of the next transaction, while this one ends.
    ``committed_epoch``: of the client's last transaction, if its commit has reserved this one, and
    the client has requested nothing of this one since; else -1. ``left``: parts without a confirmed
    marker. ``is_unwritten``: the log does not have the completion yet. ``timer``: time of the
    earliest entry in the heap of the shard.
    """

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: Status = "empty"
    previous_id: int = NO_PRODUCER_ID
    next_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    parts: set[Part] = field(default_factory=set)
    started_ms: TimestampMs = -1
    updated_ms: TimestampMs = -1
    version: int = FIRST_VERSION
    number: int = 0
    topics_version: int = 0
    is_bumped: bool = False
    reserved: set[Part] = field(default_factory=set)
    committed_epoch: int = NO_EPOCH
    left: set[Part] = field(default_factory=set)
    is_unwritten: bool = False
    deadline: float = math.inf
    timer: float = math.inf

    @property
    def is_ending(self) -> bool:
        """Whether the end is decided, and not carried out everywhere."""
        return self.status in ("prepare_commit", "prepare_abort")

    @property
    def identity(self) -> ProducerIdentity:
        """What the client uses after the transaction that ends."""
        if self.next_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_id, 0)
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def limit_ms(self) -> int:
        """Time limit of the open transaction. A reserved one begins before its client uses it."""
        is_reserved = self.committed_epoch != NO_EPOCH
        return self.timeout_ms + limits.TRANSACTION_RESERVED_MS * is_reserved

    def has_ended(self, *, is_commit: bool) -> bool:
        """Whether the last transaction was decided so."""
        return self.status.endswith("_commit" if is_commit else "_abort")


class TransactionShard:
    """Transactional ids of one coordinator. Call ``replay`` for each record, then ``start`` once.

    ``skipped_records``: number of replayed records of newer releases, which are ignored.
    """

    def __init__(self, settings: TransactionSettings, coordinator_epoch: LeaderEpoch) -> None:
        """``coordinator_epoch``: of the partition's leader, for the markers."""
        self.skipped_records = 0
        self._settings = settings
        self._coordinator_epoch = coordinator_epoch
        self._transactions: dict[str, Transaction] = {}
        self._timers: list[tuple[float, int, str]] = []
        self._order = count()

    # -- the log -----------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. Call ``start`` after the last record.

        Ignores and counts kinds and versions of newer releases. Raises ``InvalidRequestError`` if
        the bytes are not a valid record; the state is then unchanged.
        """
        name = decode_key(key)
        if name is None:
            self.skipped_records += 1
        elif value is None:
            self._transactions.pop(name, None)
        else:
            content = decode_value(value)
            if content is None:
                self.skipped_records += 1
            else:
                self._transactions[name] = _restored(name, content)

    def start(self, *, now: float, now_ms: TimestampMs) -> StateChange[None]:
        """Become the coordinator. Time limits go on; the markers of ended transactions are sent
        again.
        """
        ending = []
        for txn in self._transactions.values():
            if txn.is_ending:
                ending.append(txn.id)
            elif txn.status == "ongoing":
                left_ms = txn.limit_ms - (now_ms - txn.started_ms)
                # guard: a time limit goes on at another coordinator
                txn.deadline = now + max(0, min(left_ms, txn.limit_ms)) / 1_000
            self._plan(txn, now=now, now_ms=now_ms)
        return StateChange(None, ending=tuple(ending))

    # -- requests of clients -----------------------------------------------------------------------

    def init(
        self,
        name: str,
        *,
        timeout_ms: int,
        new_id: int,
        expected: ProducerIdentity | None = None,
        may_use: Callable[[int], bool] = lambda _producer_id: True,
        now: float,
        now_ms: TimestampMs,
    ) -> StateChange[ProducerIdentity | None]:
        """Begin another epoch, which ends those before it. The result is None if that has to abort
        a transaction first: ask again when it has ended.

        ``new_id``: used for a new transactional id, after the last epoch, and if ``may_use`` says
        that the producer id belongs to another principal. ``expected``: what the client has
        (KIP-360). Then it goes on from there, or is told that another instance has begun.

        Raises ``InvalidRequestError`` (name), ``InvalidTransactionTimeoutError``,
        ``ThrottledError`` (too many ids), ``ConcurrentTransactionsError`` or
        ``ProducerFencedError``.
        """
        check_transactional_id(name)
        self._check_timeout(timeout_ms)
        txn = self._transactions.get(name)
        if txn is None:
            txn = self._new(name, new_id, timeout_ms)
            return self._write(txn.identity, txn, now=now, now_ms=now_ms)
        if txn.is_ending:
            raise _concurrent(txn)
        is_next = expected is None or expected == (txn.producer_id, txn.epoch)
        # guard: a client goes on from the epoch that no other instance has
        if not is_next and not (txn.status != "ongoing" and _is_repeated(txn, expected)):
            raise _fenced(txn, NO_EPOCH if expected is None else expected.epoch)
        if txn.status == "ongoing":
            self._decide(txn, is_commit=False, is_bumped=True)
            notes = (f"aborted: transactional_id={name!r} reason=another_instance",)
            return self._write(None, txn, now=now, now_ms=now_ms, notes=notes)
        txn.timeout_ms = timeout_ms
        txn.status, txn.committed_epoch = "empty", NO_EPOCH
        # guard: who goes on after an abort gets no epoch after the last one
        if is_next or txn.epoch >= self._settings.epoch_max:
            last_epoch = NO_EPOCH if expected is None else expected.epoch
            if txn.epoch + 1 >= self._settings.epoch_max or not may_use(txn.producer_id):
                txn.previous_id, txn.producer_id, txn.epoch = txn.producer_id, new_id, 0
            else:
                txn.epoch += 1
            txn.last_epoch = last_epoch
        return self._write(txn.identity, txn, now=now, now_ms=now_ms)

    def add(
        self,
        name: str,
        producer: ProducerIdentity,
        parts: Iterable[Part],
        *,
        version: int,
        topics_version: int,
        now: float,
        now_ms: TimestampMs,
    ) -> StateChange[None]:
        """Add partitions to the transaction; begin it with the first.

        ``version``: of transactions, 1 or 2. ``topics_version``: cluster-state version in which the
        topics exist. Raises ``InvalidProducerMappingError``, ``ConcurrentTransactionsError``,
        ``ProducerFencedError``, ``TransactionAbortedError`` (it has timed out) or
        ``InvalidRequestError`` (too many partitions).
        """
        txn = self._of(name, producer, version=version)
        new = set(parts) - (txn.parts if txn.status == "ongoing" else set())
        if not new:
            return StateChange(None)
        if len(txn.parts) + len(new) > limits.TRANSACTION_PARTS_MAX:
            raise InvalidRequestError(
                f"the transaction of {name!r} would have {len(txn.parts) + len(new)} partitions; "
                f"the limit is {limits.TRANSACTION_PARTS_MAX}. Use several transactions"
            )
        is_reserved, txn.committed_epoch = txn.committed_epoch != NO_EPOCH, NO_EPOCH
        if txn.status != "ongoing":
            self._begin(txn, now=now, now_ms=now_ms)
        elif is_reserved:
            self._limit(txn, now=now, now_ms=now_ms)
        txn.version = version
        txn.parts |= new
        txn.topics_version = max(txn.topics_version, topics_version)
        return self._write(None, txn, now=now, now_ms=now_ms)

    def has(self, name: str, producer: ProducerIdentity, parts: Iterable[Part]) -> bool:
        """Whether all ``parts`` are in the open transaction of the producer."""
        txn = self._transactions.get(name)
        return (
            txn is not None
            and txn.status == "ongoing"
            and producer == (txn.producer_id, txn.epoch)
            and txn.parts.issuperset(parts)
        )

    def check(
        self, name: str, producer: ProducerIdentity, parts: Iterable[Part], *, version: int
    ) -> None:
        """Raise unless all ``parts`` are in the open transaction of the producer: the errors of
        ``add``, and ``TransactionAbortedError``.
        """
        self._of(name, producer, version=version)
        if not self.has(name, producer, parts):
            raise TransactionAbortedError(
                f"the transaction of {name!r} does not have the partition, or it has ended. Abort "
                "the transaction, and run its block again"
            )

    def end(
        self,
        name: str,
        producer: ProducerIdentity,
        *,
        is_commit: bool,
        version: int,
        new_id: int,
        reserved: Iterable[Part] = (),
        now: float,
        now_ms: TimestampMs,
    ) -> StateChange[ProducerIdentity]:
        """Commit or abort. The result is what the client uses from now on: in version 1, what it
        has; in version 2, the next epoch, or ``new_id`` after the last epoch. ``reserved``: those
        of its partitions that the next transaction has, after a commit in version 2.

        A repeated request has the same result, as long as no other one has followed. Raises
        ``InvalidProducerMappingError``, ``ConcurrentTransactionsError``, ``ProducerFencedError``,
        ``TransactionAbortedError`` (a commit after the time limit, version 2), or
        ``InvalidTransactionStateError``.
        """
        txn = self._known(name)
        is_bumping = version >= BUMPING_VERSION
        if is_bumping and _is_end_repeated(txn, producer):
            result = self._repeated(txn, is_commit=is_commit)
            return self._following(result, txn, new_id, now=now, now_ms=now_ms)
        # guard: a commit that has reserved can be repeated
        if is_commit and _is_of_client(txn, producer, txn.committed_epoch):
            return StateChange(txn.identity)  # of the commit that has reserved this transaction
        self._check_mapping(txn, producer)
        if txn.is_ending:
            is_same = not txn.is_bumped and producer == (txn.producer_id, txn.epoch)
            if is_bumping or not is_same:
                raise _concurrent(txn)
            return StateChange(self._repeated(txn, is_commit=is_commit))
        # guard: an older epoch ends no transaction
        if producer.epoch != txn.epoch:
            raise _fenced(txn, producer.epoch)
        before = txn.status
        if not is_bumping and before != "ongoing":
            if before == "empty":
                raise _bad_state(txn, "has no partition to commit or abort")
            return StateChange(self._repeated(txn, is_commit=is_commit))
        txn.version, txn.committed_epoch = version, NO_EPOCH
        if before != "ongoing":
            txn.number += 1
        self._decide(txn, is_commit=is_commit, is_bumped=is_bumping, new_id=new_id)
        if is_commit and is_bumping and txn.next_id == NO_PRODUCER_ID:
            # guard: a commit reserves partitions of its transaction only
            txn.reserved = txn.parts.intersection(reserved)
        result = txn.identity
        if not txn.parts:
            self._complete(txn, now=now, now_ms=now_ms)
        return self._write(result, txn, now=now, now_ms=now_ms)

    def _following(
        self,
        result: ProducerIdentity,
        txn: Transaction,
        new_id: int,
        *,
        now: float,
        now_ms: TimestampMs,
    ) -> StateChange[ProducerIdentity]:
        """Return what a client uses after an end that it repeats, or that was not its own."""
        # guard: who is aborted gets no epoch after the last one
        if result.epoch < self._settings.epoch_max:
            return StateChange(result)
        txn.next_id = new_id  # the abort by the time limit, say, had none
        result = txn.identity
        if not txn.is_ending:
            self._take_next_id(txn)
        return self._write(result, txn, now=now, now_ms=now_ms)

    def _repeated(self, txn: Transaction, *, is_commit: bool) -> ProducerIdentity:
        """Return the result of an end that was decided before."""
        if txn.has_ended(is_commit=is_commit):
            return txn.identity
        if is_commit and txn.is_bumped:
            raise TransactionAbortedError(
                f"the transaction of {txn.id!r} was aborted by an operator, or as it took longer "
                f"than its time limit of {txn.timeout_ms} ms. Abort it, and run its block again"
            )
        raise _bad_state(txn, f"cannot {'commit' if is_commit else 'abort'}: it has ended")

    # -- carrying out ------------------------------------------------------------------------------

    def ending(self, name: str) -> Ending | None:
        """Return the markers that are to be sent, or None if no transaction of the id ends."""
        txn = self._transactions.get(name)
        if txn is None or not txn.is_ending:
            return None
        marker = Marker(
            producer_id=txn.producer_id,
            producer_epoch=txn.epoch,
            is_commit=txn.status == "prepare_commit",
            coordinator_epoch=self._coordinator_epoch,
            is_bumped=txn.is_bumped,
        )
        return Ending(
            name,
            txn.number,
            marker,
            frozenset(txn.left),
            txn.topics_version,
            frozenset(txn.reserved),
        )

    def marked(
        self, name: str, number: int, parts: Iterable[Part], *, now: float, now_ms: TimestampMs
    ) -> StateChange[None]:
        """Note that ``parts`` have a committed marker of transaction ``number``, or are deleted.
        The last one completes the transaction, which has no record at once.
        """
        txn = self._transactions.get(name)
        # guard: confirmations count for their transaction
        if txn is None or not txn.is_ending or txn.number != number:
            return StateChange(None)
        txn.left.difference_update(parts)
        if txn.left:
            return StateChange(None)
        self._complete(txn, now=now, now_ms=now_ms)
        txn.is_unwritten, txn.updated_ms = True, now_ms
        self._plan(txn, now=now, now_ms=now_ms)
        return StateChange(None, ended=(name,))

    def abort(self, name: str, *, now: float, now_ms: TimestampMs) -> StateChange[None]:
        """Abort the open transaction, as after its time limit; or it is being aborted already.

        A client of version 2 is told that the transaction was aborted, one of version 1 that it is
        fenced. Raises ``UnknownTransactionError`` or ``InvalidTransactionStateError`` (none is
        open, or its commit is decided).
        """
        txn = self._found(name)
        if txn.status == "prepare_abort":
            return StateChange(None)
        if txn.status == "prepare_commit":
            raise _bad_state(txn, "cannot be aborted: its commit is decided")
        if txn.status != "ongoing":
            raise _bad_state(txn, "is not open")
        self._decide(txn, is_commit=False, is_bumped=True)
        notes = (f"aborted: transactional_id={name!r} reason=operator",)
        return self._write(None, txn, now=now, now_ms=now_ms, notes=notes)

    # -- descriptions ------------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Return all transactional ids."""
        return tuple(self._transactions)

    def view(self, name: str) -> TransactionView:
        """Describe one transactional id. Raises ``UnknownTransactionError``."""
        txn = self._found(name)
        return TransactionView(
            transactional_id=name,
            status=txn.status,
            producer_id=txn.producer_id,
            epoch=txn.epoch,
            timeout_ms=txn.timeout_ms,
            started_ms=txn.started_ms if txn.parts else -1,
            parts=tuple(sorted(txn.parts)),
        )

    def opened(self, *, wanted: Set[OpenPart]) -> frozenset[OpenPart]:
        """Return those of ``wanted`` that are in a transaction which has not ended everywhere."""
        return frozenset(
            (txn.producer_id, part)
            for txn in self._transactions.values()
            for part in txn.parts | txn.reserved
            if (txn.producer_id, part) in wanted
        )

    # -- time --------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when to call ``tick``, in monotonic seconds, or None. It may be too early."""
        return self._timers[0][0] if self._timers else None

    def tick(self, *, now: float, now_ms: int, expiry_ms: int | None) -> StateChange[None]:
        """Abort transactions that take too long, and remove ids that are not used.

        ``expiry_ms``: wall-clock milliseconds by which ids expire; None: unknown, none expires. The
        amount of work is bounded: if ``deadline`` is still in the past, call it again.
        """
        records: list[TransactionRecord] = []
        ending: list[str] = []
        notes: list[str] = []
        for _ in range(TICK_IDS_MAX):
            if not self._timers or self._timers[0][0] > now:
                break
            at, _order, name = heapq.heappop(self._timers)
            txn = self._transactions.get(name)
            if txn is None or txn.timer != at:
                continue
            txn.timer = math.inf
            if txn.status == "ongoing" and txn.deadline <= now:
                self._decide(txn, is_commit=False, is_bumped=True)
                notes.append(
                    f"aborted: transactional_id={name!r} reason=timeout after {txn.timeout_ms} ms"
                )
                records += self._write(None, txn, now=now, now_ms=now_ms).records
                ending.append(name)
            elif self._is_expired(txn, expiry_ms):
                del self._transactions[name]
                records.append(TransactionRecord(encode_key(name), None))
            elif txn.is_unwritten:
                records += self._write(None, txn, now=now, now_ms=now_ms).records
            else:
                self._plan(txn, now=now, now_ms=now_ms)
        return StateChange(None, tuple(records), tuple(ending), notes=tuple(notes))

    def _is_expired(self, txn: Transaction, expiry_ms: int | None) -> bool:
        # guard: ids in use do not expire
        if expiry_ms is None or txn.is_ending or txn.status == "ongoing":
            return False
        return txn.updated_ms + self._settings.expiration_ms <= expiry_ms

    def _plan(self, txn: Transaction, *, now: float, now_ms: TimestampMs) -> None:
        """Set the timer, unless an earlier one is set."""
        if txn.is_unwritten:
            due = min(txn.deadline, now + COMPLETION_SECONDS)
        elif txn.status == "ongoing":
            due = txn.deadline
        else:
            # Often, so that entries of the heap that have no effect do not pile up.
            left_ms = txn.updated_ms + self._settings.expiration_ms - now_ms
            due = now + (left_ms if 0 < left_ms < CHECK_MS_MAX else CHECK_MS_MAX) / 1_000
        if due < txn.timer:
            txn.timer = due
            heapq.heappush(self._timers, (due, next(self._order), txn.id))

    # -- inside ------------------------------------------------------------------------------------

    def _known(self, name: str) -> Transaction:
        txn = self._transactions.get(name)
        if txn is None:
            raise InvalidProducerMappingError(
                f"transactional id {name!r} is not known, or has expired. Initialize the producer"
            )
        return txn

    def _found(self, name: str) -> Transaction:
        txn = self._transactions.get(name)
        if txn is None:
            raise UnknownTransactionError(f"there is no transactional id {name!r}")
        return txn

    def _of(self, name: str, producer: ProducerIdentity, *, version: int) -> Transaction:
        """Return the transactional id of a producer that may begin or continue a transaction.

        The order of the checks matters: a client that has just ended a transaction may have an
        epoch, or a producer id, that only applies from its completion on.
        """
        txn = self._known(name)
        self._check_mapping(txn, producer)
        # guard: who asks too early waits before its epoch is checked
        if txn.is_ending:
            raise _concurrent(txn)
        # guard: an older epoch begins no transaction
        if producer.epoch != txn.epoch:
            is_timed_out = txn.status == "complete_abort" and txn.version >= BUMPING_VERSION
            if version >= BUMPING_VERSION and is_timed_out and producer.epoch == txn.epoch - 1:
                self._repeated(txn, is_commit=True)
            raise _fenced(txn, producer.epoch)
        return txn

    def _check_mapping(self, txn: Transaction, producer: ProducerIdentity) -> None:
        if producer.producer_id == txn.producer_id:
            return
        if txn.is_ending and producer.producer_id == txn.next_id:
            return
        raise InvalidProducerMappingError(
            f"transactional id {txn.id!r} has producer id {txn.producer_id}, not "
            f"{producer.producer_id}. Initialize the producer"
        )

    def _check_timeout(self, timeout_ms: int) -> None:
        longest = self._settings.timeout_ms_max
        if not 0 < timeout_ms <= longest:
            raise InvalidTransactionTimeoutError(
                f"transaction.timeout.ms={timeout_ms} must be from 1 to {longest}, the "
                "transaction.max.timeout.ms of the broker"
            )

    def _new(self, name: str, producer_id: int, timeout_ms: int) -> Transaction:
        if len(self._transactions) >= self._settings.ids_max:
            raise ThrottledError(
                f"this coordinator has {len(self._transactions)} transactional ids, which is the "
                "limit (TRANSACTIONAL_IDS_MAX). Use fewer, or lower transactional.id.expiration.ms"
            )
        txn = Transaction(name, producer_id, 0, timeout_ms)
        self._transactions[name] = txn
        return txn

    def _decide(
        self,
        txn: Transaction,
        *,
        is_commit: bool,
        is_bumped: bool,
        new_id: int = NO_PRODUCER_ID,
    ) -> None:
        """End the transaction. ``is_bumped``: with the next epoch, which is one increment in total,
        also if the end fences the client.
        """
        txn.status = "prepare_commit" if is_commit else "prepare_abort"
        txn.is_bumped = is_bumped
        txn.left = set(txn.parts)
        txn.deadline = math.inf
        if is_bumped:
            txn.last_epoch = txn.epoch
            txn.epoch = min(txn.epoch + 1, STORED_EPOCH_MAX)
            # guard: the last epoch is followed by another producer id
            if txn.epoch >= self._settings.epoch_max:
                txn.next_id = new_id

    def _complete(self, txn: Transaction, *, now: float, now_ms: TimestampMs) -> None:
        is_commit = txn.status == "prepare_commit"
        txn.status = "complete_commit" if is_commit else "complete_abort"
        txn.parts, txn.reserved = txn.reserved, set()
        if txn.parts:
            txn.committed_epoch = txn.last_epoch
            self._begin(txn, now=now, now_ms=now_ms)
            return
        txn.topics_version = 0
        if txn.next_id != NO_PRODUCER_ID:
            self._take_next_id(txn)

    def _take_next_id(self, txn: Transaction) -> None:
        txn.previous_id, txn.producer_id = txn.producer_id, txn.next_id
        txn.next_id, txn.epoch = NO_PRODUCER_ID, 0

    def _begin(self, txn: Transaction, *, now: float, now_ms: TimestampMs) -> None:
        txn.status = "ongoing"
        txn.number += 1
        # guard: an open transaction forgets how its epoch was asked for
        txn.previous_id, txn.last_epoch = NO_PRODUCER_ID, NO_EPOCH
        self._limit(txn, now=now, now_ms=now_ms)

    def _limit(self, txn: Transaction, *, now: float, now_ms: TimestampMs) -> None:
        txn.started_ms = now_ms
        txn.deadline = now + txn.limit_ms / 1_000

    def _write(
        self,
        result: T,
        txn: Transaction,
        *,
        now: float,
        now_ms: TimestampMs,
        notes: tuple[str, ...] = (),
    ) -> StateChange[T]:
        txn.updated_ms, txn.is_unwritten = now_ms, False
        self._plan(txn, now=now, now_ms=now_ms)
        is_complete = txn.status.startswith("complete_")
        return StateChange(
            result,
            (TransactionRecord(encode_key(txn.id), _encode(_value_of(txn))),),
            ending=(txn.id,) if txn.is_ending else (),
            ended=(txn.id,) if is_complete else (),
            notes=notes,
        )


def _is_repeated(txn: Transaction, expected: ProducerIdentity | None) -> bool:
    """Whether a client that names its identity repeats the request that gave it the present one."""
    return expected is not None and _is_of_client(txn, expected, txn.last_epoch)


def _is_of_client(txn: Transaction, given: ProducerIdentity, epoch: int) -> bool:
    """Whether a client has the identity of its former ``epoch``, which can be ``NO_EPOCH``."""
    if epoch == NO_EPOCH or given.epoch != epoch:
        return False
    return given.producer_id == (txn.producer_id if txn.epoch else txn.previous_id)


def _is_end_repeated(txn: Transaction, producer: ProducerIdentity) -> bool:
    """Whether a client repeats the end of a transaction that has incremented its epoch, or that was
    ended with such an increment by the coordinator.
    """
    if txn.status in ("empty", "ongoing") or txn.version < BUMPING_VERSION or not txn.is_bumped:
        return False
    if txn.is_ending:
        return producer == (txn.producer_id, txn.last_epoch)
    return _is_repeated(txn, producer)


def _concurrent(txn: Transaction) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the last transaction of {txn.id!r} is being completed: {len(txn.left)} of its partitions "
        "have not confirmed its end. Try again soon"
    )


def _fenced(txn: Transaction, epoch: int) -> ProducerFencedError:
    return ProducerFencedError(
        f"transactional id {txn.id!r} has epoch {txn.epoch}, not {epoch}: another instance uses "
        "it, or its transaction took longer than its time limit, or an operator aborted it. "
        "Initialize the producer"
    )


def _bad_state(txn: Transaction, what: str) -> InvalidTransactionStateError:
    return InvalidTransactionStateError(
        f"the transaction of {txn.id!r} {what} (state {txn.status})"
    )


def check_transactional_id(name: str) -> str:
    """Return ``name`` if it is a valid transactional id, else raise ``InvalidRequestError``."""
    if not 0 < len(name) <= limits.TRANSACTIONAL_ID_CHARS_MAX:
        raise InvalidRequestError(
            f"a transactional id has 1 to {limits.TRANSACTIONAL_ID_CHARS_MAX} characters, not "
            f"{len(name)}: {name[:60]!r}"
        )
    return name


def partition_of_id(name: str, partition_count: int) -> int:
    """Return the partition of ``__transaction_state`` that holds the record of the id.

    It depends on ``partition_count``, so this must not change after ids exist.
    """
    return partition_of_key(name.encode("utf-8", "surrogatepass"), partition_count)


# -- records ---------------------------------------------------------------------------------------
#
# Records of ``__transaction_state``: the format in which coordinators persist transactions.
#
#     key    msgpack [1, transactional id]       value    msgpack [version, ...]
#
# Each record contains the complete state of its id, so the state follows from the last record of
# each key. Partitions are listed by the id of their topic: a topic that was created again is not in
# the transaction. New fields are added at the end, with a default; older releases ignore them. A
# change that an older release must not misread gets a new version or kind, which they skip.


ID_KIND: Final = 1
VERSION: Final = 1


class TransactionValue(msgspec.Struct, frozen=True, array_like=True):
    """State of a transactional id, as in ``Transaction``. ``status``: index in ``STATUSES``."""

    version: int
    producer_id: int
    previous_id: int
    next_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    status: int
    parts: dict[str, list[int]]
    started_ms: int
    updated_ms: int
    client_version: int
    number: int
    topics_version: int
    is_bumped: bool
    reserved: dict[str, list[int]]
    committed_epoch: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_any: Final = msgspec.msgpack.Decoder().decode
_KEY: Final = msgspec.msgpack.Decoder(tuple[int, str])
_VALUE: Final = msgspec.msgpack.Decoder(TransactionValue)


def encode_key(name: str) -> bytes:
    """Return the key of the record of a transactional id."""
    return _encode((ID_KIND, name))


def decode_key(data: bytes) -> str | None:
    """Return the transactional id, or None for a kind of a newer release.

    Raises ``InvalidRequestError`` if the bytes are not a valid key.
    """
    try:
        if _head(data) != ID_KIND:
            return None
        return _KEY.decode(data)[1]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"invalid key of a transaction record: {error}") from error


def decode_value(data: bytes) -> TransactionValue | None:
    """Return the value, or None for a version of a newer release.

    Raises ``InvalidRequestError`` if the bytes are not a valid value.
    """
    try:
        if _head(data) > VERSION:
            return None
        value = _VALUE.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"invalid value of a transaction record: {error}") from error
    if not 0 <= value.status < len(STATUSES) or not 0 <= value.epoch <= STORED_EPOCH_MAX:
        raise InvalidRequestError(
            f"invalid value of a transaction record: status {value.status}, epoch {value.epoch}"
        )
    return value


def _head(data: bytes) -> int:
    """Return the first number of an array: the kind of a key, or the version of a value."""
    fields: Any = _decode_any(data)
    if not (isinstance(fields, list) and fields and type(fields[0]) is int and fields[0] > 0):
        raise InvalidRequestError("transaction record does not begin with its kind or version")
    return fields[0]


def _value_of(txn: Transaction) -> TransactionValue:
    return TransactionValue(
        version=VERSION,
        producer_id=txn.producer_id,
        previous_id=txn.previous_id,
        next_id=txn.next_id,
        epoch=txn.epoch,
        last_epoch=txn.last_epoch,
        timeout_ms=txn.timeout_ms,
        status=STATUSES.index(txn.status),
        parts=_by_topic(txn.parts),
        started_ms=txn.started_ms,
        updated_ms=txn.updated_ms,
        client_version=txn.version,
        number=txn.number,
        topics_version=txn.topics_version,
        is_bumped=txn.is_bumped,
        reserved=_by_topic(txn.reserved),
        committed_epoch=txn.committed_epoch,
    )


def _by_topic(parts: Iterable[Part]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(parts):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _restored(name: str, value: TransactionValue) -> Transaction:
    parts = _listed(value.parts)
    return Transaction(
        name,
        value.producer_id,
        value.epoch,
        value.timeout_ms,
        status=STATUSES[value.status],
        previous_id=value.previous_id,
        next_id=value.next_id,
        last_epoch=value.last_epoch,
        parts=parts,
        started_ms=value.started_ms,
        updated_ms=value.updated_ms,
        version=value.client_version,
        number=value.number,
        topics_version=value.topics_version,
        is_bumped=value.is_bumped,
        reserved=_listed(value.reserved),
        committed_epoch=value.committed_epoch,
        left=set(parts),
    )


def _listed(topics: dict[str, list[int]]) -> set[Part]:
    return {(topic_id, each) for topic_id, numbers in topics.items() for each in numbers}
