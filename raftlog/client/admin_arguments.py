"""Checks of the arguments of the admin clients. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

from raftlog import limits
from raftlog.client.partition_requests import At
from raftlog.client.settings import integer
from raftlog.client.subscription import check_partitions
from raftlog.errors import InvalidRequestError
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition, check_group_id

V = TypeVar("V", str, str | None)
GroupOffsets: TypeAlias = Mapping[TopicPartition, Offset | OffsetAndMetadata]

_NO_EPOCH: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1


def config_text(config: Mapping[str, V]) -> dict[str, V]:
    """Return settings as a dict. Raises ``TypeError`` if they are no texts by name."""
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config={config!r} is not a dict of settings, such as {{'retention.ms': '1000'}}"
        )
    for key, value in config.items():
        if not all(isinstance(text, str | None) for text in (key, value)) or key is None:
            raise TypeError(f"config: {key!r}={value!r} is not a str. Pass str names and values")
    return dict(config)


def time_or_end(at: object) -> At:
    """Return a time, or an end of a log. Raises ``TypeError`` and ``InvalidRequestError``."""
    if at == "earliest":
        return "earliest"
    if at == "latest":
        return "latest"
    if isinstance(at, bool) or not isinstance(at, int):
        raise TypeError(f"{at!r} is not 'earliest', 'latest', or a time in ms since 1970")
    return integer("the time", at, 0, limits.TIMESTAMP_MS_MAX)


def group_ids(groups: Iterable[str]) -> list[str]:
    """Return names of groups, each once. Raises ``TypeError`` and ``InvalidGroupError``."""
    if isinstance(groups, str | bytes):
        raise TypeError(f"groups={groups!r} is not a list of names. Pass [{groups!r}]")
    names = list(dict.fromkeys(groups))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not the name of a consumer group (str)")
    return [check_group_id(name) for name in names]


def group_offsets(offsets: GroupOffsets, metadata: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets to commit. ``metadata``: of those given as a number only."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets={offsets!r} is not a dict of TopicPartition to offset")
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, wanted in zip(check_partitions(offsets), offsets.values(), strict=True):
        given = (
            wanted if isinstance(wanted, OffsetAndMetadata) else OffsetAndMetadata(wanted, metadata)
        )
        checked[tp] = OffsetAndMetadata(
            integer("offset", given.offset, 0, limits.OFFSET_MAX),
            _note(given.metadata),
            integer("leader_epoch", given.leader_epoch, _NO_EPOCH, _EPOCH_MAX),
        )
    return checked


def _note(metadata: object) -> str:
    if not isinstance(metadata, str):
        raise TypeError(f"metadata={metadata!r} is not a str")
    if len(metadata) > limits.OFFSET_METADATA_CHARS_MAX:
        raise InvalidRequestError(
            f"the offset metadata has {len(metadata)} characters. Shorten it to "
            f"{limits.OFFSET_METADATA_CHARS_MAX}"
        )
    return metadata
