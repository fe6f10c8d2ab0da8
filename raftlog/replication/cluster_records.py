"""The records that the cluster's state is made of, and that state as bytes and back.

Nothing here decides anything: commands are applied in ``cluster_state``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftlog.config import TopicConfig
from raftlog.errors import InvalidRequestError
from raftlog.replication.commands import BrokerId, DirectoryId
from raftlog.replication.placement import Assignment

SNAPSHOT_FORMAT: Final = 2


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True):
    """One broker. ``broker_epoch`` grows at every registration (KIP-903).

    ``boot`` counts the starts of the data directory. A ``fenced`` broker leads nothing and joins no
    ISR (KIP-841).
    """

    id: BrokerId
    host: str
    port: int
    rack: str
    directory_id: DirectoryId
    boot: int
    broker_epoch: int
    fenced: bool


@dataclass(frozen=True, slots=True)
class PlacementRange:
    """Partitions of a topic that were made together: from ``first_partition`` to the next era's."""

    first_partition: int
    min_isr: int
    directories: Mapping[BrokerId, DirectoryId]  # of their voters, at that time


def joined(eras: tuple[PlacementRange, ...], era: PlacementRange) -> tuple[PlacementRange, ...]:
    """``eras`` and one more, which becomes part of the last one if it says nothing else."""
    last = eras[-1] if eras else None
    if (
        last is None
        or last.min_isr != era.min_isr
        or any(last.directories.get(broker, at) != at for broker, at in era.directories.items())
    ):
        return (*eras, era)
    return (*eras[:-1], replace(last, directories={**last.directories, **era.directories}))


@dataclass(frozen=True, slots=True)
class InitialState:
    """What a partition's group starts from: the same for ever, on every broker.

    Who comes late, with nothing in its journal, has to begin where the others began, and not with
    the replicas, directories or settings of today. ``directories`` has those of all voters.
    """

    replicas: tuple[BrokerId, ...]
    witnesses: tuple[BrokerId, ...]
    directories: Mapping[BrokerId, DirectoryId]
    min_isr: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One topic. ``id`` tells it from an earlier topic of the same name."""

    name: str
    id: str
    replication_factor: int
    partitions: tuple[Assignment, ...]
    overrides: Mapping[str, str]
    config: TopicConfig
    eras: tuple[PlacementRange, ...] = field(repr=False)

    def birth(self, partition: int) -> InitialState:
        """What generation 0 of the partition's group has as voters and as state."""
        assignment = self.partitions[partition]
        era = next(era for era in reversed(self.eras) if era.first_partition <= partition)
        replicas, witnesses = assignment.first or (assignment.replicas, assignment.witnesses)
        directories = {voter: era.directories[voter] for voter in (*replicas, *witnesses)}
        return InitialState(replicas, witnesses, directories, era.min_isr)


@dataclass(slots=True)
class ClusterRecords:
    """The whole state. The defaults are what it is before the first command."""

    cluster_id: str = ""
    version: int = 0
    brokers: dict[BrokerId, BrokerRecord] = field(default_factory=dict)
    topics: dict[str, TopicRecord] = field(default_factory=dict)  # by name


# -- as bytes -----------------------------------------------------------------------------------


Place = Annotated[int, Meta(ge=0)]


class _EraRow(msgspec.Struct, frozen=True, array_like=True):
    first_partition: int
    min_isr: int
    directories: list[tuple[BrokerId, Place]]  # places in the snapshot's list of directories


class _TopicRow(msgspec.Struct, frozen=True, array_like=True):
    name: str
    id: str
    replication_factor: int
    partitions: tuple[Assignment, ...]
    overrides: dict[str, str]
    eras: list[_EraRow]


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Each directory id, 32 characters, stands in it once; topics only point at it."""

    format: int
    cluster_id: str
    version: int
    directories: list[DirectoryId]
    brokers: list[BrokerRecord]
    topics: list[_TopicRow]


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(_Snapshot)


def encode_records(records: ClusterRecords) -> bytes:
    """Equal states give equal bytes, whatever way led to them."""
    topics = [topic for _, topic in sorted(records.topics.items())]
    directories = sorted(
        {name for topic in topics for era in topic.eras for name in era.directories.values()}
    )
    place_of = {name: place for place, name in enumerate(directories)}
    snapshot = _Snapshot(
        format=SNAPSHOT_FORMAT,
        cluster_id=records.cluster_id,
        version=records.version,
        directories=directories,
        brokers=[record for _, record in sorted(records.brokers.items())],
        topics=[_to_row(topic, place_of) for topic in topics],
    )
    return _encoder.encode(snapshot)


def founding_state(cluster_id: str) -> bytes:
    """What the ``cluster`` group of a new cluster begins with: the cluster's id, and no more."""
    return encode_records(ClusterRecords(cluster_id=cluster_id, version=1))


def decode_records(data: bytes) -> ClusterRecords:
    """The state in ``data``; of no bytes, the state before the first command.

    Raises ``InvalidRequestError`` for bytes that are no snapshot, or one of another format, and
    ``InvalidConfigError`` for one with a topic setting that this release does not know.
    """
    if not data:
        return ClusterRecords()
    try:
        snapshot = _decoder.decode(data)
        if snapshot.format != SNAPSHOT_FORMAT:
            raise InvalidRequestError(
                f"a cluster snapshot of format {snapshot.format}: this release reads format "
                f"{SNAPSHOT_FORMAT}"
            )
        topics = {row.name: _from_row(row, snapshot.directories) for row in snapshot.topics}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError) as error:
        raise InvalidRequestError(f"no cluster snapshot: {error!r}") from error
    return ClusterRecords(
        cluster_id=snapshot.cluster_id,
        version=snapshot.version,
        brokers={record.id: record for record in snapshot.brokers},
        topics=topics,
    )


def _to_row(topic: TopicRecord, place_of: Mapping[DirectoryId, int]) -> _TopicRow:
    eras = [
        _EraRow(
            first_partition=era.first_partition,
            min_isr=era.min_isr,
            directories=[(b, place_of[name]) for b, name in sorted(era.directories.items())],
        )
        for era in topic.eras
    ]
    return _TopicRow(
        name=topic.name,
        id=topic.id,
        replication_factor=topic.replication_factor,
        partitions=topic.partitions,
        overrides=dict(topic.overrides),
        eras=eras,
    )


def _from_row(row: _TopicRow, directories: list[DirectoryId]) -> TopicRecord:
    """Raises ``LookupError`` for a row that contradicts itself."""
    eras = tuple(
        PlacementRange(
            first_partition=era.first_partition,
            min_isr=era.min_isr,
            directories={broker: directories[place] for broker, place in era.directories},
        )
        for era in row.eras
    )
    if not (eras and eras[0].first_partition == 0 and all(a.replicas for a in row.partitions)):
        raise LookupError(row.name)
    return TopicRecord(
        name=row.name,
        id=row.id,
        replication_factor=row.replication_factor,
        partitions=row.partitions,
        overrides=row.overrides,
        config=TopicConfig.from_text(row.overrides),
        eras=eras,
    )
