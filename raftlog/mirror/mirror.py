"""Mirror: runs sessions until all records are copied or it is stopped."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

from raftlog.client.administration.admin import Admin
from raftlog.client.administration.groups import GroupListing
from raftlog.client.base import ClientEnvironment
from raftlog.client.consumer import Checked
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.descriptions import (
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from raftlog.client.readers import BatchReader
from raftlog.client.resumable import RECORDS_MAX, ResumableProducer
from raftlog.client.settings import Bootstrap
from raftlog.errors import (
    ClusterNotReadyError,
    CorruptBatchError,
    GroupNotEmptyError,
    InvalidRequestError,
    OffsetMovedError,
    OutOfOrderSequenceError,
    RaftlogError,
    RefusedError,
    RequestTimedOutError,
    UnknownGroupError,
    UnknownTopicError,
)
from raftlog.mirror import compacted
from raftlog.protocol.records import DescribedProducer
from raftlog.record import (
    COLUMNS,
    HEADER_BYTES,
    BatchBody,
    BatchHeader,
    decode_records,
    parse_header,
)
from raftlog.record.codec import hole_of
from raftlog.types import (
    Buffer,
    ConsumerRecord,
    LeaderEpoch,
    NewTopic,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)

# -- groups ----------------------------------------------------------------------------------------
#
# Committed offsets of consumer groups that a mirror copies. Pure.
#
# Offsets are the same in both clusters. So an offset is copied unchanged when all records below it
# are in the target. What happens to a group that exists in the target is a ``Policy``.


class Policy(Enum):
    """Offsets of groups that exist in the target.

    ADVANCE: never move back, because consumers may have continued there. KEEP: leave the group
    unchanged. OVERWRITE: set them.
    """

    ADVANCE = "advance"
    KEEP = "keep"
    OVERWRITE = "overwrite"


def commits_due(
    source: Mapping[TopicPartition, OffsetAndMetadata],
    target: Mapping[TopicPartition, OffsetAndMetadata],
    copied: Mapping[TopicPartition, tuple[TopicPartition, Offset]],
    policy: Policy = Policy.ADVANCE,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit in the target for one group.

    ``source``, ``target``: committed offsets of the group in each cluster. ``copied``: the copy of
    each source partition, and the end of its committed records.
    """
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, committed in source.items():
        if tp not in copied:
            continue
        copy, end = copied[tp]
        # guard: a copied offset of a group is not beyond the copied records
        offset = min(committed.offset, end)
        known = target[copy].offset if copy in target else -1
        # guard: a copied offset of a group never moves back
        if offset > known or (offset < known and policy is not Policy.ADVANCE):
            found[copy] = OffsetAndMetadata(offset, committed.metadata)
    return found


# -- mirror ----------------------------------------------------------------------------------------


logger: Final = logging.getLogger(__name__)

_STEP_S: Final = 0.2  # longest wait for records before acknowledgements are processed
_BUSY_S: Final = 0.01  # the same, while acknowledgements are pending
_PAUSE_S: Final = 1.0  # between a failed session and the next one
_FAILURES_MAX: Final = 10  # consecutive sessions without a copied batch, with ``once``


class Mirror:
    """Copies topics of one cluster to another, offset by offset, each record once.

    All state is in the target cluster: the next run continues where this one ends, also after a
    crash. Two concurrent runs interrupt each other, but store no record twice.
    """

    def __init__(
        self,
        source: Bootstrap | Source,
        target: Bootstrap,
        *,
        topics: str | re.Pattern[str],
        prefix: str = "",
        groups: str | re.Pattern[str] | None = None,
        existing_groups: Policy = Policy.ADVANCE,
        keep_settings: bool = False,
        on_progress: Callable[[Progress], object] = lambda _progress: None,
        on_error: Callable[[RaftlogError], object] = lambda _error: None,
        source_host: ClientEnvironment | None = None,
        target_host: ClientEnvironment | None = None,
    ) -> None:
        """Create the mirror. It opens its first connection with ``run``.

        ``source``, ``target``: addresses of brokers, as for ``Producer``. ``source`` can be a
            ``Source``, such as a backup.
        ``topics``: regular expression that matches whole topic names. Internal topics are excluded.
        ``prefix``: of the topic names in the target cluster. Default: the same names.
        ``groups``: regular expression that matches whole names of consumer groups. Their committed
            offsets are copied every 10 s and at the end of ``once``. A group with members in the
            target keeps its offsets. Default: no group.
        ``existing_groups``: what happens to the offsets of groups that exist in the target.
            Default: they never move back.
        ``keep_settings``: topics that exist in the target keep their settings. Default: they get
            those of their source, also when these change, except ``min.insync.replicas``.
        ``on_progress``: called after each step. ``on_error``: called after a failed session; the
            mirror then starts another one.
        """
        self._settings = MirrorSettings(
            source=source if isinstance(source, Source) else ClusterSource(source, source_host),
            target=target,
            topics=re.compile(topics),
            prefix=prefix,
            groups=None if groups is None else re.compile(groups),
            existing_groups=existing_groups,
            keeps_settings=keep_settings,
            target_host=target_host,
        )
        self._on_progress, self._on_error = on_progress, on_error
        self._stopping = threading.Event()
        self.progress = Progress()

    def stop(self) -> None:
        """End ``run`` after its current step. Any thread can call it."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> Progress:
        """Copy until ``stop`` is called. Returns the progress.

        ``once``: end when the records that the source had at the start are committed in the
            target. Raises the last error if 10 sessions in a row fail and copy nothing. Default:
            False.

        Raises ``InvalidRequestError`` if both clusters are the same.
        """
        failures = 0
        while not self._stopping.is_set():
            before = self.progress.size_bytes
            try:
                if self._ran_session(once=once):
                    break
            except InvalidRequestError:
                raise
            except RaftlogError as error:
                logger.warning("mirror session failed: error=%s", error)
                failures = 1 if self.progress.size_bytes > before else failures + 1
                if once and failures >= _FAILURES_MAX:
                    raise
                self._on_error(error)
                self._stopping.wait(_PAUSE_S)
        return self.progress

    def _ran_session(self, *, once: bool) -> bool:
        """Run one session. Returns False if the next one must start, with other topics."""
        with Session(self._settings, self.progress) as session:
            if not session.start():
                return False
            self._on_progress(self.progress)
            while not self._stopping.is_set():
                if once and session.is_caught_up:
                    return session.finish()
                if not session.step(_BUSY_S if session.is_busy else _STEP_S):
                    return False
                self._on_progress(self.progress)
            return True


# -- batches ---------------------------------------------------------------------------------------
#
# Batches that a mirror appends: copies, and holes for deleted offsets. Pure.
#
# A copy has the payload and the offset range of its original. Only batches of Kafka's clients
# and the rest of a joined batch are decoded. The producer fields are those of the mirror, so that a
# partition accepts each copy once (docs/adr/0017). A sequence counts offsets.


# Offsets of one epoch of the mirror's producer, and thus of one hole.
SPAN_MAX = RECORDS_MAX


def copy_of(header: BatchHeader, data: Buffer) -> BatchBody:
    """Return the body of a batch with the same payload and range of offsets."""
    return BatchBody(
        payload=bytes(memoryview(data)[HEADER_BYTES:]),
        codec=header.codec,
        uncompressed_length=header.uncompressed_length,
        record_count=header.record_count,
        first_timestamp_ms=header.first_timestamp,
        max_timestamp_ms=header.max_timestamp,
        last_offset_delta=header.last_offset_delta,
    )


def holes(start: Offset, end: Offset) -> Iterator[BatchBody]:
    """Yield batches without records for the offsets from ``start`` to before ``end``."""
    while start < end:
        count = min(end - start, SPAN_MAX)
        yield hole_of(count)
        start += count


def bodies(batch: Checked, position: Offset) -> Iterator[BatchBody]:
    """Yield the bodies to append at ``position``, so that the copy ends at the end of ``batch``.

    Offsets before the batch, which its source has deleted, become holes. The source may have joined
    batches by compaction, so that ``position`` is inside of one: only its rest is then copied. A
    batch of a Kafka client is copied as columns, because its checksum covers the producer fields.
    Raises ``CorruptBatchError`` if ``position`` is inside of a batch that was never compacted.
    """
    header, data = batch
    yield from holes(position, header.base_offset)
    is_whole = header.base_offset >= position
    if is_whole and header.layout == COLUMNS:
        yield copy_of(header, data)
    elif header.next_offset > position:
        if not (is_whole or header.is_compacted):
            raise CorruptBatchError(
                f"the copy ends at offset {position}, inside the source batch with offsets "
                f"{header.base_offset} to {header.next_offset - 1}. It is a copy of another log"
            )
        from raftlog.record.compaction import tail_of  # imports numpy

        rest = tail_of(data, max(position, header.base_offset))
        yield copy_of(parse_header(rest), rest)


# -- positions -------------------------------------------------------------------------------------
#
# Position from which the copy of a partition continues, or the reason why it must not. Pure.
#
# The end of the copy is the position: the copy has the same offsets as its source. The state of the
# mirror's producer proves that no other producer has written. The last records of both logs,
# compared, prove that the copy belongs to this source, and replace an expired producer state.


@dataclass(frozen=True, slots=True)
class Place:
    """State of a partition and its copy, queried in the order of the fields.

    ``end``: end offset of the copy. ``written``: state of the mirror's producer in it.
    """

    start: Offset
    end: Offset
    written: DescribedProducer
    source_start: Offset
    source_end: Offset

    @property
    def is_known(self) -> bool:
        return self.written.last_offset >= 0

    @property
    def position(self) -> Offset:
        """The next offset to copy. The state is younger than ``end``."""
        return max(self.end, self.written.last_offset + 1)

    @property
    def is_empty(self) -> bool:
        """True if the copy has no records, or if all are deleted."""
        return self.start == self.position

    @property
    def is_comparable(self) -> bool:
        """True if both logs have the last copied offset."""
        return not self.is_empty and self.position > self.source_start


class Sequence(NamedTuple):
    """Epoch of the mirror's producer, and the number of offsets that it has written in it."""

    epoch: int
    offsets: int


def sequence_of(place: Place) -> Sequence:
    if not place.is_known:
        return Sequence(0, 0)
    return Sequence(place.written.producer_epoch, place.written.last_sequence + 1)


def refusal(place: Place) -> str:
    """Return why the copy must not be continued, from the known state; "" if there is no reason."""
    # guard: a copy with records of another producer is not continued
    if place.is_known and place.written.last_offset + 1 < place.end:
        return (
            f"another producer has written the offsets {place.written.last_offset + 1} to "
            f"{place.end - 1} of the copy. Stop it and delete the topic, or mirror with --prefix"
        )
    # guard: a copy that is longer than its source is not continued
    if place.position > place.source_end:
        return (
            f"the copy ends at offset {place.position}, beyond the end {place.source_end} of its "
            "source: the source topic was created again, or has lost records. Delete the copy to "
            "mirror it again"
        )
    if not (place.is_known or place.is_empty or place.is_comparable):
        return (
            f"the topic may have records that this mirror has not written, and its source "
            f"has deleted the offset {place.position - 1} to compare. Delete the topic, or mirror "
            "with --prefix"
        )
    return ""


def difference(place: Place, source: Checked, copy: Checked) -> str:
    """Return why the copy does not belong to its source; "" if the records are equal.

    ``source``, ``copy``: the batches with the last copied offset. Compaction may have removed
    different records of them: those that both have are compared.
    """
    times = not (source[0].log_append_time or copy[0].log_append_time)
    ours, theirs = _by_offset(source), _by_offset(copy)
    common = sorted(ours.keys() & theirs.keys())
    for offset in common:
        # guard: the last records of a copy and its source are compared
        if _content(ours[offset], times=times) != _content(theirs[offset], times=times):
            return (
                f"the record at offset {offset} differs from the source: the source topic was "
                "created again, or the topic is not a copy. Delete the topic, or mirror with "
                "--prefix"
            )
    if common or place.is_known:
        return ""
    return (
        "the topic may have records that this mirror has not written, and compaction has "
        "left none at its end to compare. Delete the topic, or mirror with --prefix"
    )


def _by_offset(batch: Checked) -> dict[Offset, ConsumerRecord]:
    records = decode_records(batch[1], topic="", partition=0, check_crc=False)
    return {record.offset: record for record in records}


def _content(record: ConsumerRecord, *, times: bool) -> tuple[object, ...]:
    time = record.timestamp_ms if times else None
    return (record.key, record.value, tuple(map(tuple, record.headers)), time)


# -- source ----------------------------------------------------------------------------------------
#
# Source of a mirror: a cluster, or an object with the same queries.


_ONE_BATCH_BYTES: Final = 1  # a fetch then returns one batch


class SourceAdmin(Protocol):
    """The methods of ``Admin`` that a mirror calls for its source."""

    def describe_cluster(self, *, partitions: bool = True) -> ClusterDescription: ...

    def find_topics(self) -> dict[str, TopicListing]: ...

    def list_topics(self) -> list[str]: ...

    def describe_topics(self, topics: Iterable[str]) -> list[TopicDescription]: ...

    def list_offsets(
        self, at: Mapping[TopicPartition, Literal["earliest", "latest"]]
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]: ...

    def list_groups(self) -> list[GroupListing]: ...

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]: ...


class SourceReader(Protocol):
    """The methods of ``BatchReader``."""

    def start(self, positions: Mapping[TopicPartition, Offset]) -> None: ...

    def poll(self, timeout_s: float) -> tuple[TopicPartition | None, list[Checked]]: ...

    def take_removed_below(self) -> Mapping[TopicPartition, Mapping[LeaderEpoch, Offset]]: ...


@runtime_checkable
class Source(Protocol):
    """``reader``: with ``one_batch``, for single batches at given offsets."""

    def admin(self) -> AbstractContextManager[SourceAdmin]: ...

    def reader(self, *, one_batch: bool = False) -> AbstractContextManager[SourceReader]: ...


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """A cluster. ``host``: environment of its clients."""

    bootstrap: Bootstrap
    host: ClientEnvironment | None = None

    def admin(self) -> Admin:
        return Admin(self.bootstrap, host=self.host)

    def reader(self, *, one_batch: bool = False) -> BatchReader:
        if one_batch:
            return BatchReader(
                self.bootstrap,
                max_partition_fetch_bytes=_ONE_BATCH_BYTES,
                host=self.host,
            )
        return BatchReader(self.bootstrap, host=self.host)


# -- session ---------------------------------------------------------------------------------------
#
# Session of a mirror: finds the positions in the target cluster, and copies from there.
#
# A session stores no state outside of the target cluster. It ends after any error, and the next one
# starts as after a crash of the process.


EXISTS: Final = "the group exists in the cluster. --overwrite-groups sets its offsets"

REFRESH_S: Final = 2.0  # interval of the checks for new records, topics and partitions
GROUPS_S: Final = 10.0  # interval of the copies of committed offsets
_PROBE_S: Final = 30.0  # time limit for the batches to compare
_ABANDON_S: Final = 0.0  # wait for batches in flight after an error; the next session checks them
# Batches of a partition without acknowledgement. They are sent one by one, within _DELIVERY_MS.
PENDING_MAX: Final = 500
_DELIVERY_MS: Final = 30_000  # timeout of a batch, which ends the session


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """``target``: addresses of the cluster. ``topics``: pattern of whole topic names.
    ``prefix``: of the names of the copies. ``groups``: pattern of whole names of consumer groups
    whose committed offsets are copied; None for no group. ``existing_groups``: what happens to
    those that exist in the target; except with ADVANCE, offsets are copied only at the end of
    ``once``. ``keeps_settings``: copies that exist keep their settings; others follow the source.
    ``target_host``: environment of the clients of the target.
    """

    source: Source
    target: Bootstrap
    topics: re.Pattern[str]
    prefix: str = ""
    groups: re.Pattern[str] | None = None
    existing_groups: Policy = Policy.ADVANCE
    keeps_settings: bool = False
    target_host: ClientEnvironment | None = None


@dataclass(slots=True)
class Progress:
    """State of the mirror. ``lag``: offsets that are not copied yet. ``records``, ``size_bytes``:
    copied since the start. ``skipped``: offsets that the source had deleted before they were
    copied. ``copied_again``: names of topics that are copied again, because the source has removed
    tombstones that the deleted copies never had. ``altered``: names of copies whose settings were
    changed to those of their source. ``refused``: partitions that are not
    copied, with the reason. ``groups``: consumer groups whose offsets are copied;
    ``refused_groups``: those whose offsets are not, with the reason.
    """

    topics: int = 0
    partitions: int = 0
    lag: int = 0
    records: int = 0
    size_bytes: int = 0
    skipped: int = 0
    copied_again: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    groups: int = 0
    refused_groups: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Copy:
    """One partition that is copied. Offsets are the same in both clusters."""

    target: TopicPartition
    position: Offset  # next offset to append
    epoch: int
    count: int  # offsets written in this epoch
    acknowledged: Offset
    source_start: Offset
    source_end: Offset  # last known
    goal: Offset  # source end at the start of the session
    # True if the log of the copy starts with offsets that the source had deleted.
    starts_with_hole: bool
    known: compacted.Known  # for ``compacted.is_whole``
    pending: deque[tuple[DeliveryFuture, Offset, Offset]] = field(default_factory=deque)

    @property
    def lag(self) -> int:
        return max(self.source_end - self.acknowledged, 0)


class Session:
    """Copies all selected topics. A context manager."""

    def __init__(self, settings: MirrorSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._stack = ExitStack()
        source, target = settings.source, settings.target
        enter = self._stack.enter_context
        self._source = enter(source.admin())
        self._target = enter(Admin(target, host=settings.target_host))
        self._reader = enter(source.reader())
        self._producers: dict[int, ResumableProducer] = {}  # by epoch
        self._copies: dict[TopicPartition, _Copy] = {}
        self._topics: dict[str, tuple[str, int]] = {}
        self._overrides: dict[str, dict[str, str]] = {}  # of the source, which the copies have
        self._name = ""
        self._now = (settings.target_host or ClientEnvironment()).clock.monotonic
        self._refresh_at = 0.0
        self._groups_at = 0.0

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for producer in self._producers.values():
            producer.close(None if error is None else _ABANDON_S)
        self._stack.__exit__(kind, error, trace)

    # -- start

    def start(self) -> bool:
        """Create missing topics, find the position of each partition, and start to read. Returns
        False if copies lack tombstones of the source: another session is needed to copy them again.
        """
        source = self._source.describe_cluster(partitions=False)
        target = self._target.describe_cluster(partitions=False)
        if not (source.cluster_id and target.cluster_id):
            raise ClusterNotReadyError("the ID of the source or target cluster is not known yet")
        if source.cluster_id == target.cluster_id:
            raise InvalidRequestError(
                f"source and target are the same cluster ({source.cluster_id}): the mirror would "
                "copy its copies. Pass the addresses of another cluster"
            )
        self._name = f"raftlog mirror of {source.cluster_id}"
        selected = self._selected()
        self._topics = _known(selected)
        descriptions = self._source.describe_topics(selected) if selected else []
        plan = planned(
            descriptions,
            self._target.find_topics(),
            prefix=self._settings.prefix,
            broker_count=len(target.brokers),
        )
        self._create(plan.create)
        for name, total in plan.extend.items():
            self._target.add_partitions(name, total)
        self._follow_settings(descriptions)
        self._progress.topics, self._progress.partitions = len(selected), len(plan.copies)
        places = self._places(plan.copies)
        refused = {tp: why for tp, place in places.items() if (why := refusal(place))}
        left = {tp: place for tp, place in places.items() if tp not in refused}
        refused |= self._compared(plan.copies, left)
        self._progress.refused = refused
        for tp in refused:
            left.pop(tp, None)
        starts = self._starts_with_hole(plan.copies, left)
        parts = compacted.by_partition(descriptions)
        for tp, place in left.items():
            hole = tp in starts
            self._copies[tp] = _begin(plan.copies[tp], place, parts[tp], starts_with_hole=hole)
        # guard: a mirror looks for removed tombstones when it begins
        if self._delete_stale(descriptions):
            return False
        self._open_sequences()
        self._reader.start(
            {tp: max(copy.position, copy.source_start) for tp, copy in self._copies.items()}
        )
        for tp, copy in self._copies.items():
            if copy.source_start == copy.source_end:  # no batch will show the hole
                self._note_hole(tp, copy, copy.source_end)
                for body in holes(copy.position, copy.source_end):
                    self._append(copy, body)
        self._refresh_at = self._now() + REFRESH_S
        self._count_lag()
        return True

    def _selected(self) -> dict[str, TopicListing]:
        listings, public = self._source.find_topics(), self._source.list_topics()
        return selected(listings, public, self._settings.topics)

    def _create(self, wanted: list[NewTopic]) -> None:
        if wanted:
            self._target.create_topics(wanted)
            logger.info("topics created: names=%s", ",".join(topic.name for topic in wanted))

    def _follow_settings(self, descriptions: list[TopicDescription]) -> None:
        """Give the copies the settings of their sources, if these have changed."""
        if self._settings.keeps_settings:
            return
        changed = {}
        for source in descriptions:
            if self._overrides.get(source.name) != source.overrides:
                self._overrides[source.name] = source.overrides
                changed[self._settings.prefix + source.name] = source
        for copy in self._target.describe_topics(changed) if changed else ():
            due = settings_due(changed[copy.name], copy)
            if not due:
                continue
            shown = ", ".join(f"{key}={value}" for key, value in sorted(due.items()))
            try:
                self._target.alter_topic(copy.name, due)
            except UnknownTopicError:  # deleted in between: the next session creates it
                raise
            except RefusedError as error:
                raise InvalidRequestError(
                    f"topic {copy.name!r} of the target cannot have the settings of its source "
                    f"({shown}): {error}. --keep-settings copies records only"
                ) from error
            logger.info("settings of a copy changed: topic=%s settings=%s", copy.name, shown)
            self._progress.altered.append(copy.name)

    def _places(
        self, copies: Mapping[TopicPartition, TopicPartition]
    ) -> dict[TopicPartition, Place]:
        """Query both clusters, in the order that ``Place`` requires."""
        if not copies:
            return {}
        targets = list(copies.values())
        ends = _offsets(self._target, targets, "latest")
        written = self._producer(0).described(targets)
        starts = _offsets(self._target, targets, "earliest")
        source_starts = _offsets(self._source, list(copies), "earliest")
        source_ends = _offsets(self._source, list(copies), "latest")
        return {
            tp: Place(starts[to], ends[to], written[to], source_starts[tp], source_ends[tp])
            for tp, to in copies.items()
        }

    def _compared(
        self,
        copies: Mapping[TopicPartition, TopicPartition],
        places: Mapping[TopicPartition, Place],
    ) -> dict[TopicPartition, str]:
        """Compare the last record of each copy with its source. Returns the differences."""
        lasts = {tp: place.position - 1 for tp, place in places.items() if place.is_comparable}
        theirs = self._probe(self._settings.source, lasts)
        ours = self._probe(
            self._copies_source, {copies[tp]: offset for tp, offset in lasts.items()}
        )
        found = {tp: difference(places[tp], theirs[tp], ours[copies[tp]]) for tp in lasts}
        return {tp: why for tp, why in found.items() if why}

    def _starts_with_hole(
        self,
        copies: Mapping[TopicPartition, TopicPartition],
        places: Mapping[TopicPartition, Place],
    ) -> set[TopicPartition]:
        behind = {tp: place for tp, place in places.items() if place.start < place.source_start}
        starts = {copies[tp]: place.start for tp, place in behind.items() if not place.is_empty}
        firsts = self._probe(self._copies_source, starts)
        return {
            tp
            for tp, place in behind.items()
            if place.is_empty or not firsts[copies[tp]][0].record_count
        }

    @property
    def _copies_source(self) -> Source:
        """Return the target cluster as a source, to read it."""
        return ClusterSource(self._settings.target, self._settings.target_host)

    def _probe(
        self, source: Source, offsets: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, Checked]:
        """Return the batch with the given offset of each partition."""
        found: dict[TopicPartition, Checked] = {}
        if not offsets:
            return found
        deadline = self._now() + _PROBE_S
        with source.reader(one_batch=True) as reader:
            reader.start(offsets)
            while len(found) < len(offsets):
                tp, batches_found = reader.poll(0.5)
                if tp is not None:
                    found.setdefault(tp, batches_found[0])
                elif self._now() > deadline:
                    missing = next(tp for tp in offsets if tp not in found)
                    raise RequestTimedOutError(
                        f"{missing}: received no records at offset {offsets[missing]} for "
                        f"{_PROBE_S:g} s"
                    )
        return found

    # -- steps

    def step(self, timeout_s: float) -> bool:
        """Copy the batches of one fetch, or wait for ``timeout_s``. Returns False if topics or
        partitions were added or deleted: another session is needed.
        """
        tp, found = self._reader.poll(timeout_s)
        if tp is not None:
            copy = self._copies[tp]
            for batch in found:
                self._copy(tp, copy, batch)
        for copy in self._copies.values():
            self._collect(copy)
        self._count_lag()
        return self._now() < self._refresh_at or self._refreshed()

    @property
    def is_busy(self) -> bool:
        """True while appended batches have no acknowledgement."""
        return any(copy.pending for copy in self._copies.values())

    def finish(self) -> bool:
        """Delete leading holes and copy group offsets, when all copies are caught up. Returns False
        if copies lack tombstones of the source, and are copied again: another session is needed.
        """
        # guard: a mirror looks for removed tombstones before it ends
        if self._delete_stale(self._described()):
            return False
        self._raise_starts()
        self._copy_groups()
        return True

    def _described(self) -> list[TopicDescription]:
        names = sorted({tp.topic for tp in self._copies})
        return self._source.describe_topics(names) if names else []

    def _delete_stale(self, descriptions: list[TopicDescription]) -> bool:
        """Delete copies that have records of deleted keys, and never get the tombstones (see
        ``compacted``). Returns whether there were any. A client cannot empty one partition.

        ``descriptions``: of the source, now.
        """
        parts = compacted.by_partition(descriptions)
        read = self._reader.take_removed_below()
        stale = sorted({
            copy.target.topic
            for tp, copy in self._copies.items()
            if tp in parts and not compacted.is_whole(copy.known, parts[tp], read.get(tp, {}))
        })  # fmt: skip
        if not stale:
            for tp, copy in self._copies.items():
                if tp in parts:
                    copy.known = copy.known.checked(parts[tp], copy.position)
            return False
        for copy in self._copies.values():
            self._wait_for(copy, 0)
        logger.warning(
            "copies deleted, to be copied again: topics=%s. The source has removed tombstones "
            "that they never received, so deleted records could remain in them",
            ",".join(stale),
        )
        self._target.delete_topics(stale)
        self._progress.copied_again += stale
        return True

    def _refreshed(self) -> bool:
        """Update lag and log starts. Returns False if topics or partitions have changed."""
        self._refresh_at = self._now() + REFRESH_S
        ends = _offsets(self._source, list(self._copies), "latest")
        for tp, copy in self._copies.items():
            copy.source_end = max(copy.source_end, ends[tp])
        descriptions = self._described()
        if self._delete_stale(descriptions):
            return False
        self._follow_settings(descriptions)
        self._raise_starts()
        # An interrupted restore must not leave a group, which the next run would not change.
        is_advancing = self._settings.existing_groups is Policy.ADVANCE
        if is_advancing and self._now() >= self._groups_at:
            self._copy_groups()
        self._count_lag()
        return _known(self._selected()) == self._topics

    @property
    def is_caught_up(self) -> bool:
        """True if the records that the source had at the start are committed in the target."""
        return all(copy.acknowledged >= copy.goal for copy in self._copies.values())

    def _count_lag(self) -> None:
        self._progress.lag = sum(copy.lag for copy in self._copies.values())

    def _copy(self, tp: TopicPartition, copy: _Copy, batch: Checked) -> None:
        self._note_hole(tp, copy, batch[0].base_offset)
        for body in bodies(batch, copy.position):
            self._append(copy, body)
            self._progress.records += body.record_count
            self._progress.size_bytes += body.size_bytes
        copy.source_end = max(copy.source_end, copy.position)

    def _note_hole(self, tp: TopicPartition, copy: _Copy, end: Offset) -> None:
        """Report offsets before ``end`` that the source has deleted since the start of the copy."""
        if 0 < copy.position < end:
            self._progress.skipped += end - copy.position
            logger.warning(
                "records deleted before they were copied: partition=%s offsets=%d..%d",
                tp,
                copy.position,
                end - 1,
            )

    def _open_sequences(self) -> None:
        """Set the next sequence of each copy in the producer of its epoch."""
        by_epoch: dict[int, list[TopicPartition]] = {}
        for copy in self._copies.values():
            by_epoch.setdefault(copy.epoch, []).append(copy.target)
        for epoch, partitions in by_epoch.items():
            self._producer(epoch).stored(partitions)

    def _append(self, copy: _Copy, body: BatchBody) -> None:
        span = body.last_offset_delta + 1
        # guard: an epoch of a mirror ends before its sequence wraps
        if copy.count + span > SPAN_MAX:
            # The next epoch fences this one, so all of its batches must be committed first.
            self._wait_for(copy, 0)
            copy.epoch, copy.count = copy.epoch + 1, 0
            self._producer(copy.epoch).stored([copy.target])
        self._wait_for(copy, PENDING_MAX - 1)
        future = self._producer(copy.epoch).append(copy.target, body, base_offset=copy.position)
        copy.pending.append((future, copy.position, copy.position + span))
        copy.position += span
        copy.count += span

    def _wait_for(self, copy: _Copy, pending_max: int) -> None:
        """Block until at most ``pending_max`` batches of the copy have no acknowledgement."""
        while len(copy.pending) > pending_max:
            copy.pending[0][0].result()
            self._collect(copy)

    def _collect(self, copy: _Copy) -> None:
        """Process acknowledgements. Raises the error of a batch that was not stored."""
        while copy.pending and copy.pending[0][0].done():
            future, start, end = copy.pending.popleft()
            stored = future.result().offset
            if stored != start:
                raise OutOfOrderSequenceError(
                    f"{copy.target}: the batch for offset {start} is stored at offset {stored}. "
                    "The broker does not support mirrors: upgrade it"
                )
            copy.acknowledged = end

    def _raise_starts(self) -> None:
        """Delete the holes at the start of copies, so that both logs start at the same offset."""
        ready = {
            copy.target: copy.source_start
            for copy in self._copies.values()
            if copy.starts_with_hole and copy.acknowledged >= copy.source_start
        }
        if not ready:
            return
        self._target.delete_records(ready)
        for copy in self._copies.values():
            copy.starts_with_hole &= copy.target not in ready

    def _copy_groups(self) -> None:
        """Copy committed offsets. A group with members in the target keeps its offsets.

        Other groups that exist there are processed as ``existing_groups`` specifies.
        """
        if self._settings.groups is None:
            return
        self._groups_at = self._now() + GROUPS_S
        copied = {tp: (copy.target, copy.acknowledged) for tp, copy in self._copies.items()}
        there = {listing.group for listing in self._target.list_groups()}
        found = [listing.group for listing in self._source.list_groups()]
        names = list(filter(self._settings.groups.fullmatch, found))
        refused: dict[str, str] = {}
        policy = self._settings.existing_groups
        for name in names:
            try:
                theirs = self._source.group_offsets(name)
                ours = self._target.group_offsets(name) if name in there else {}
                due = commits_due(theirs, ours, copied, policy)
                if due and name in there and policy is Policy.KEEP:
                    refused[name] = EXISTS
                elif due:
                    # A consumer of the target may have committed since: its offset stays.
                    known = {tp: committed.offset for tp, committed in ours.items()}
                    # guard: a mirror commits what it has read
                    self._target.commit_offsets(name, due, expected=known)
            except (GroupNotEmptyError, OffsetMovedError, UnknownGroupError) as error:
                refused[name] = str(error)
        self._progress.groups, self._progress.refused_groups = len(names) - len(refused), refused

    def _producer(self, epoch: int) -> ResumableProducer:
        found = self._producers.get(epoch)
        if found is None:
            found = self._producers[epoch] = ResumableProducer(
                self._settings.target,
                name=self._name,
                epoch=epoch,
                delivery_timeout_ms=_DELIVERY_MS,
                host=self._settings.target_host,
            )
        return found


def _begin(
    target: TopicPartition,
    place: Place,
    source: PartitionDescription,
    *,
    starts_with_hole: bool,
) -> _Copy:
    epoch, count = sequence_of(place)
    return _Copy(
        target=target,
        position=place.position,
        epoch=epoch,
        count=count,
        acknowledged=place.position,
        source_start=place.source_start,
        source_end=place.source_end,
        goal=place.source_end,
        starts_with_hole=starts_with_hole,
        known=(
            compacted.begun(source)
            if place.is_empty
            else compacted.Known(source.leader_epoch, place.position)
        ),
    )


def _known(found: Mapping[str, TopicListing]) -> dict[str, tuple[str, int]]:
    return {name: (topic.id, topic.partition_count) for name, topic in found.items()}


def _offsets(
    admin: SourceAdmin, partitions: list[TopicPartition], at: Literal["earliest", "latest"]
) -> dict[TopicPartition, Offset]:
    found = admin.list_offsets(dict.fromkeys(partitions, at))
    return {tp: hit.offset if hit else 0 for tp, hit in found.items()}


# -- topics ----------------------------------------------------------------------------------------
#
# Selection of the topics to mirror, and the changes that the target cluster needs. Pure.


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes of the target cluster, and each source partition with its copy.

    ``extend``: total partition counts of topics that have fewer than their source.
    """

    create: list[NewTopic]
    extend: dict[str, int]
    copies: dict[TopicPartition, TopicPartition]


def selected(
    listings: Mapping[str, TopicListing], public: Iterable[str], pattern: re.Pattern[str]
) -> dict[str, TopicListing]:
    """Return the topics in ``public`` whose whole name matches ``pattern``."""
    return {name: listings[name] for name in public if name in listings and pattern.fullmatch(name)}


# Of the cluster, not of the records: a target with fewer brokers has another value.
_OF_CLUSTERS: Final = frozenset(("min.insync.replicas",))


def settings_due(source: TopicDescription, copy: TopicDescription) -> dict[str, str | None]:
    """Return the settings of a copy that differ from those of its source. None: the default.

    Otherwise the copy could delete records that its source keeps.
    """
    wanted = _fitting(source.overrides, _replicas(copy))
    differing: dict[str, str | None] = {
        key: value for key, value in wanted.items() if copy.config.get(key) != value
    }
    differing |= dict.fromkeys(copy.overrides.keys() - wanted.keys())
    return {key: value for key, value in differing.items() if key not in _OF_CLUSTERS}


def _replicas(topic: TopicDescription) -> int:
    return max((len(part.replicas) for part in topic.partitions), default=0)


def _fitting(settings: dict[str, str], replicas: int) -> dict[str, str]:
    """Return the settings for a copy with so many replicas, which may be fewer than the source has:
    a topic that could commit no record, or has one copy that is not synced, is refused.
    """
    found = dict(settings)
    if int(found.get("min.insync.replicas", 0)) > replicas:
        found["min.insync.replicas"] = str(replicas)
    if replicas == 1 and found.get("flush.policy") == "os":
        del found["flush.policy"]
    return found


def planned(
    sources: Iterable[TopicDescription],
    existing: Mapping[str, TopicListing],
    *,
    prefix: str,
    broker_count: int,
) -> Plan:
    """Return the changes that the target cluster needs to receive ``sources``.

    ``existing``: topics of the target. ``broker_count``: brokers of the target; the replication
    factor of a new topic is that of its source, or this number if it is lower.
    """
    made = Plan([], {}, {})
    for source in sources:
        name, count = prefix + source.name, len(source.partitions)
        found = existing.get(name)
        if found is None:
            replicas = min(_replicas(source), broker_count)
            settings = _fitting(source.overrides, replicas)
            made.create.append(NewTopic(name, count, replicas, settings))
        elif found.partition_count < count:
            made.extend[name] = count
        for number in range(count):
            made.copies[TopicPartition(source.name, number)] = TopicPartition(name, number)
    return made
