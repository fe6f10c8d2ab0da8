"""Invariant checks of transactions after each event, from inside all brokers of a simulation.

``Model`` gets what the leaders append and what they commit, in the order of each log. It derives
from that which transactions are open and how they ended, without the broker's own tables.
``TransactionObserver`` feeds it after each event of a broker, and compares the tables and the last
stable offsets of all replicas with it. Without a change this costs a few comparisons. It adds no
event: a simulation has the same events with and without it.

``INVARIANTS`` hold for clients of ``transaction.version=2``, as the clients of raftlog are: no two
transactions of a producer id have the same epoch. That no transaction hangs is no invariant of
one moment; it is checked at the end of a run, once all faults are mended.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from raftlog.consumer_groups.values import OffsetKey, OffsetValue, PendingKey, PendingValue
from raftlog.consumer_groups.values import decode_key as decode_group_key
from raftlog.consumer_groups.values import decode_value as decode_group_value
from raftlog.errors import CorruptBatchError, DamagedLogError
from raftlog.record import BatchHeader, decode_lists, split_checked
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.partition import Partition
from raftlog.testing.disk import SimDisk, Stopped
from raftlog.testing.simulator.loop import NodeLoop
from raftlog.testing.simulator.observer import node_on
from raftlog.testing.simulator.world import BrokerMachine, World
from raftlog.transactions import STATUSES, TransactionValue, decode_key, decode_value
from raftlog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, LeaderEpoch, Offset, TopicPartition

INVARIANTS: Final[Mapping[str, str]] = {
    "TWO-DECISIONS": "of each transaction, at most one result is committed",
    "UNDECIDED-MARKER": "a leader appends a marker only after its decision is committed, and with "
    "the decided result",
    "UNMARKED": "when the completion is committed, each partition has a committed marker, and no "
    "pending offset is left",
    "NOT-A-PART": "a leader appends a batch only if it is committed that its partition is part of "
    "the transaction",
    "STABLE-OFFSET": "below the last stable offset of a replica, and only there, all transactions "
    "have ended by committed markers",
    "INVISIBLE": "a reader receives all records of committed transactions in order, and no others",
    "OFFSETS-TORN": "offsets of a transaction are committed if and only if the transaction is",
    "REPLICAS-DIFFER": "replicas whose logs end at the same batch, and are not compacted, have the "
    "same producers and the same open transactions",
    "ZOMBIE-EPOCH": "nothing of an epoch takes effect once a newer instance has its own",
    "ABORTED-LIST": "a replica lists every aborted transaction that has records, and no others "
    "(of a compacted log: no others)",
}
LOG_BYTES_PER_READ: Final = 1 << 20
_COMMIT: Final = "prepare_commit"
_ENDING: Final = (STATUSES.index(_COMMIT), STATUSES.index("prepare_abort"))

Producer: TypeAlias = tuple[int, int]  # id, epoch
Part: TypeAlias = tuple[str, int]  # topic id, partition
Violated: TypeAlias = Callable[[str, str], None]
Record: TypeAlias = tuple[bytes, bytes | None]


class Batch(NamedTuple):
    """A batch of a log. ``records``: keys and values, of the topics of the coordinators only."""

    header: BatchHeader
    records: Sequence[Record] = ()


class Aborted(NamedTuple):
    """``last_data``: offset of the last record."""

    producer_id: int
    first: Offset
    marker: Offset
    last_data: Offset


@dataclass(slots=True)
class _Open:
    epoch: int
    first: Offset
    extents: list[tuple[Offset, Offset]] = field(default_factory=list)  # first and last offsets


@dataclass(slots=True)
class Stream:
    """What is committed in a partition. ``stable``: last stable offset for each high watermark.
    ``visible``: extents that readers of committed records get. ``pending``: offsets of open
    transactions.
    """

    name: TopicPartition
    part: Part
    committed: Offset = 0
    stable: dict[Offset, Offset] = field(default_factory=lambda: {0: 0})
    markers: set[Producer] = field(default_factory=set)
    visible: list[tuple[Offset, Offset]] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)
    pending: dict[PendingKey, PendingValue] = field(default_factory=dict)
    open: dict[int, _Open] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)  # epoch of the last marker, by producer id


class _Ending(NamedTuple):
    number: int
    producer: Producer  # of the marker
    parts: frozenset[Part]


class Model:
    """Transactions, as a function of what is appended and committed.

    ``groups``: groups whose offsets are committed in transactions only.
    """

    def __init__(self, violated: Violated, *, groups: Container[str] = ()) -> None:
        self.streams: dict[Part, Stream] = {}
        self._names: dict[TopicPartition, Stream] = {}
        self._violated = violated
        self._groups = groups
        self._decisions: dict[Producer, bool] = {}  # is it a commit? By producer of the marker
        self._numbers: dict[tuple[str, int], bool] = {}  # the same, by transactional id and number
        self._parts: dict[Producer, set[Part]] = {}
        self._endings: dict[str, _Ending] = {}
        self._complete: list[tuple[str, _Ending]] = []
        self._instances: dict[int, int] = {}  # epoch of the newest instance, by producer id
        self._positions: dict[tuple[str, TopicPartition], Offset] = {}

    def stream(self, name: TopicPartition, part: Part) -> Stream:
        stream = self.streams.get(part)
        if stream is None:
            stream = self.streams[part] = self._names[name] = Stream(name, part)
        return stream

    # -- the coordinators --------------------------------------------------------------------------

    def decided(self, records: Iterable[Record]) -> None:
        """Take committed records of ``__transaction_state``."""
        for key, data in records:
            name, value = decode_key(key), None if data is None else decode_value(data)
            if name is not None and value is not None:
                self._decided(name, value)

    def _decided(self, name: str, value: TransactionValue) -> None:
        status, producer = STATUSES[value.status], (value.producer_id, value.epoch)
        ending = self._endings.get(name)
        # A completion is written with the next change of the id, unless that comes late.
        if ending is not None and (ending.number, True) != (value.number, value.status in _ENDING):
            del self._endings[name]
            self._complete.append((name, ending))
        if status.endswith(("_commit", "_abort")):
            self._decide(name, value, is_commit=status.endswith("_commit"))
        if value.status in _ENDING:
            self._prepared(name, value)
        elif status == "ongoing":
            self._parts.setdefault(producer, set()).update(_listed(value.parts))
        elif status == "empty":
            newest = self._instances.get(value.producer_id, -1)
            self._instances[value.producer_id] = max(newest, value.epoch)

    def _decide(self, name: str, value: TransactionValue, *, is_commit: bool) -> None:
        if self._numbers.setdefault((name, value.number), is_commit) != is_commit:
            self._violated("TWO-DECISIONS", f"{name!r}, {value.number}: {is_commit=}")

    def _prepared(self, name: str, value: TransactionValue) -> None:
        producer, is_commit = (value.producer_id, value.epoch), STATUSES[value.status] == _COMMIT
        if self._decisions.setdefault(producer, is_commit) != is_commit:
            self._violated("TWO-DECISIONS", f"{name!r}, {producer}: {is_commit=}")
        if value.epoch - value.is_bumped < self._instances.get(value.producer_id, -1):
            self._violated("ZOMBIE-EPOCH", f"{name!r}: an end of {producer}")
        # The partitions of the next transaction are decided with the end of this one.
        self._parts.setdefault(producer, set()).update(_listed(value.reserved))
        parts = frozenset(_listed(value.parts))
        self._endings[name] = _Ending(value.number, producer, parts)

    def check_complete(self) -> None:
        """Check the completions since the last call. Call it after what the same event committed
        elsewhere.
        """
        for name, ending in self._complete:
            for part in ending.parts:
                stream = self.streams.get(part)
                if stream is not None and not self._is_marked(stream, ending.producer):
                    text = f"{stream.name}: {name!r}, {ending.number} of {ending.producer}"
                    self._violated("UNMARKED", text)
        self._complete.clear()

    @staticmethod
    def _is_marked(stream: Stream, producer: Producer) -> bool:
        if stream.name.topic != OFFSETS_TOPIC:
            return producer in stream.markers
        return not any(
            key.producer_id == producer[0] and value.producer_epoch < producer[1]
            for key, value in stream.pending.items()
        )

    # -- partitions --------------------------------------------------------------------------------

    def appended(self, stream: Stream, header: BatchHeader) -> None:
        """Take a batch that a leader has appended, before it is committed."""
        producer = header.producer_id, header.producer_epoch
        where = f"{stream.name}, {header.base_offset}: {producer}"
        if header.is_control:
            if self._decisions.get(producer) is not header.is_commit:
                is_commit = header.is_commit
                self._violated("UNDECIDED-MARKER", f"{where}, {is_commit=}")
        elif header.is_transactional and stream.part not in self._parts.get(producer, ()):
            self._violated("NOT-A-PART", where)

    def committed(self, stream: Stream, batch: Batch) -> None:
        """Take the next committed batch of a partition: ``appended`` has taken it before."""
        header = batch.header
        if header.is_control:
            self._marked(stream, header)
        elif header.is_transactional:
            self._written(stream, header)
        else:
            insort(stream.visible, _extent(header))
        if batch.records:
            self._offsets(stream, batch.records)
        stream.committed = end = header.next_offset
        stream.stable[end] = min((each.first for each in stream.open.values()), default=end)

    def _marked(self, stream: Stream, header: BatchHeader) -> None:
        producer_id = header.producer_id
        stream.markers.add((producer_id, header.producer_epoch))
        newest = stream.newest.get(producer_id, -1)
        stream.newest[producer_id] = max(newest, header.producer_epoch)
        ended = stream.open.pop(producer_id, None)
        if ended is None:
            return
        if header.is_commit:
            for extent in ended.extents:
                insort(stream.visible, extent)
        else:
            last_data = ended.extents[-1][1]
            each = Aborted(producer_id, ended.first, header.base_offset, last_data)
            stream.aborted.append(each)

    def _written(self, stream: Stream, header: BatchHeader) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        newest = max(self._instances.get(producer_id, -1), stream.newest.get(producer_id, -1))
        if epoch < newest:
            text = f"{stream.name}, {header.base_offset}: {producer_id}, {epoch} after {newest}"
            self._violated("ZOMBIE-EPOCH", text)
        opened = stream.open.setdefault(producer_id, _Open(epoch, header.base_offset))
        opened.extents.append(_extent(header))

    def _offsets(self, stream: Stream, records: Iterable[Record]) -> None:
        """Compare what one step of a group coordinator commits with what was pending."""
        ended: dict[PendingKey, PendingValue] = {}
        offsets: dict[tuple[str, str, int], OffsetValue] = {}
        for raw, data in records:
            key = decode_group_key(raw)
            if isinstance(key, PendingKey):
                value = None if data is None else decode_group_value(key, data)
                if isinstance(value, PendingValue):
                    stream.pending[key] = value
                elif (before := stream.pending.pop(key, None)) is not None:
                    ended[key] = before
            elif isinstance(key, OffsetKey) and data is not None:
                value = decode_group_value(key, data)
                if isinstance(value, OffsetValue):
                    offsets[key.group, key.topic, key.partition] = value
        for pending, was in ended.items():
            where = pending.group, pending.topic, pending.partition
            result = self._decisions.get((pending.producer_id, was.producer_epoch + 1))
            is_there = offsets.get(where) == was.offset
            if is_there:
                del offsets[where]
            if (is_there and not result) or (result and not is_there and where not in offsets):
                text = f"{where} of {pending.producer_id}, {was.producer_epoch}: {result=}"
                self._violated("OFFSETS-TORN", f"{text}, {is_there=}")
        for where in offsets:
            if where[0] in self._groups:
                self._violated("OFFSETS-TORN", f"{where}: an offset of no transaction")

    # -- readers -----------------------------------------------------------------------------------

    def delivered(self, reader: str, where: TopicPartition, offset: Offset) -> None:
        """Take a record that a reader of committed records got. Each reader begins at offset 0."""
        before = self._positions.get((reader, where), -1)
        self._positions[reader, where] = offset
        visible = self._names[where].visible
        index = bisect_left(visible, before + 1, key=_last)
        expected = max(visible[index][0], before + 1) if index < len(visible) else None
        if offset != expected:
            self._violated("INVISIBLE", f"{where}: {reader} got {offset}, not {expected}")


def _extent(header: BatchHeader) -> tuple[Offset, Offset]:
    return header.base_offset, header.next_offset - 1


def _last(extent: tuple[Offset, Offset]) -> Offset:
    return extent[1]


def _marker(aborted: Aborted) -> Offset:
    return aborted.marker


def _listed(topics: Mapping[str, Iterable[int]]) -> set[Part]:
    return {(topic_id, each) for topic_id, numbers in topics.items() for each in numbers}


@dataclass(slots=True)
class _Tail:
    """What the newest leader of a partition has appended and not committed, up to ``end``."""

    leader: tuple[LeaderEpoch, str, int] = (-1, "", 0)  # epoch, machine, its boots
    end: Offset = 0
    batches: deque[Batch] = field(default_factory=deque)


class TransactionObserver:
    """Checks one simulation. ``violated`` is called with a kind and a text."""

    def __init__(self, world: World, violated: Violated, *, groups: Container[str] = ()) -> None:
        self.model = Model(violated, groups=groups)
        self._violated = violated
        self._machines = {machine.name: machine for machine in world.brokers}
        self._seen: dict[tuple[str, str], tuple[object, ...]] = {}
        self._lists: dict[tuple[str, Part], tuple[object, ...]] = {}
        self._tails: dict[Part, _Tail] = {}
        self._tables: dict[tuple[Part, Offset, LeaderEpoch], tuple[str, str]] = {}
        world.time.on_event = self._after

    def _after(self, loop: NodeLoop) -> None:
        machine = self._machines.get(loop.name)
        node = node_on(machine, loop)
        if machine is None or node is None:
            return
        changed: list[tuple[HostedPartition, Partition]] = []
        known = self._seen
        for hosted in node.partitions.hosted.values():
            host = hosted.host
            if host is None:
                continue
            log = host.log
            seen = (
                log.log_end_offset,
                host.high_watermark,
                host.leader_epoch,
                log.log_start_offset,
                host,
            )
            key = loop.name, hosted.raft_id
            if seen != known.get(key):
                known[key] = seen
                changed.append((hosted, host))
        if changed:
            # What a coordinator has committed may be carried out within the same event.
            changed.sort(key=lambda each: each[0].topic != TRANSACTIONS_TOPIC)
            for hosted, host in changed:
                self._take(machine, hosted, host)
            self.model.check_complete()

    def _take(self, machine: BrokerMachine, hosted: HostedPartition, host: Partition) -> None:
        name = TopicPartition(hosted.topic, hosted.partition)
        stream = self.model.stream(name, (hosted.topic_id, hosted.partition))
        if host.leadership is not None:
            self._follow(machine, stream, host)
        if hosted.topic not in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
            self._check_replica(machine.name, stream, host)

    def _follow(self, machine: BrokerMachine, stream: Stream, host: Partition) -> None:
        """Give the model what the newest leader has appended, and what any leader has committed.

        A former leader may learn last that its records are on all replicas in sync.
        """
        tail = self._tails.setdefault(stream.part, _Tail())
        leader = host.leader_epoch, machine.name, machine.boots
        if leader > tail.leader:
            self._tails[stream.part] = tail = _Tail(leader, stream.committed)
        if leader == tail.leader:
            self._append(machine.disk, stream, tail, host)
        while tail.batches and tail.batches[0].header.next_offset <= host.high_watermark:
            batch = tail.batches.popleft()
            if stream.name.topic == TRANSACTIONS_TOPIC:
                stream.committed = batch.header.next_offset
                self.model.decided(batch.records)
            else:
                self.model.committed(stream, batch)

    def _append(self, disk: SimDisk, stream: Stream, tail: _Tail, host: Partition) -> None:
        while tail.end < host.log.log_end_offset:
            found = _stored(disk, host, tail.end)
            if not found:
                break  # the process has ended, or what it has stored is corrupt
            for header, data in found:
                batch = Batch(header)
                if stream.name.topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
                    records = decode_lists(data, check_crc=False)
                    keys = (key or b"" for key in records.keys)
                    batch = Batch(header, list(zip(keys, records.values, strict=True)))
                else:
                    self.model.appended(stream, header)
                tail.batches.append(batch)
                tail.end = header.next_offset

    def _check_replica(self, name: str, stream: Stream, host: Partition) -> None:
        log, who = host.log, f"{name}, {stream.name}"
        if log.damage:
            return  # it knows the transactions up to there, and is copied again
        watermark, end, start = host.high_watermark, log.log_end_offset, log.log_start_offset
        stable = stream.stable.get(watermark)
        if stable is not None:
            # After a restart, the high watermark is older than what is known to be committed.
            most = max(stable, min(watermark, stream.stable[stream.committed]))
            if not max(stable, start) <= host.last_stable_offset <= max(most, start):
                text = f"{who}: {host.last_stable_offset} of {watermark}, not {stable} to {most}"
                self._violated("STABLE-OFFSET", text)
        table = log.producers
        transactions = table.transactions
        written = [
            (each.producer_id, each.epoch, each.newest, each.coordinator_epoch)
            for each in table.active(0, len(table))
        ]
        found = f"{written} {transactions.opened()}"
        first = self._tables.setdefault((stream.part, end, log.last_epoch), (found, who))
        # A copy of a compacted log does not have the ended transactions, and not all markers.
        if first[0] != found and not log.config.is_compacted:
            self._violated("REPLICAS-DIFFER", f"{who} has {found}; {first[1]} has {first[0]}")
        self._check_aborted(name, stream, host)

    def _check_aborted(self, name: str, stream: Stream, host: Partition) -> None:
        log, key = host.log, (name, stream.part)
        start, transactions = log.log_start_offset, log.producers.transactions
        # Above its high watermark, a replica may have what will be truncated.
        watermark = min(host.high_watermark, stream.committed)
        count = bisect_left(stream.aborted, watermark, key=_marker)
        listed = host, start, count, transactions.aborted_count
        if listed == self._lists.get(key):
            return
        self._lists[key] = listed
        ended = stream.aborted[:count]
        wrong = {
            each[:3]
            for each in transactions.aborted(0, watermark)
            if each.marker_offset < watermark
        }.symmetric_difference(each[:3] for each in ended)
        # Compaction removes records of aborted transactions, and then forgets these.
        is_compacted = log.config.is_compacted
        wrong -= {each[:3] for each in ended if is_compacted or each.last_data < start}
        if wrong:
            self._violated("ABORTED-LIST", f"{name}, {stream.name} from {start}: {sorted(wrong)}")


def _stored(disk: SimDisk, host: Partition, start: Offset) -> list[tuple[BatchHeader, memoryview]]:
    """Return the next batches of a log, read without the faults that wait for the broker."""
    faults, before = disk.faults, disk.before
    disk.faults, disk.before = [], None
    try:
        pieces = host.read_uncommitted(start_offset=start, bytes_max=LOG_BYTES_PER_READ)
        return [each for piece in pieces for each in split_checked(piece)]
    except (Stopped, DamagedLogError, CorruptBatchError):
        return []
    finally:
        disk.faults, disk.before = faults, before
