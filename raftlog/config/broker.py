"""The settings of a broker: Kafka's names where Kafka has the setting, short ones where it has not.

They come as text from a TOML file (dotted keys, so ``data.dir = "x"`` and ``[data] dir = "x"`` are
the same) or from the command line. The walls that no setting can move are in ``raftlog.limits``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from raftlog import limits
from raftlog.config.address import Address, parse_address
from raftlog.config.keys import INT64_MAX, ConfigKey, number, parse
from raftlog.errors import InvalidConfigError


def _optional_address(text: str) -> Address | None:
    return parse_address(text) if text else None


def _text(chars_max: int) -> Any:
    def parse_text(text: str) -> str:
        if len(text) > chars_max:
            raise ValueError(f"{len(text)} characters")
        return text

    return parse_text


def _directory(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("not a path")
    return text


BROKER_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    number("id", 1, 0, (1 << 31) - 1, "", "The broker's number, unique in its cluster."),
    ConfigKey(
        "listen",
        Address("127.0.0.1", 9100),
        parse_address,
        "HOST:PORT",
        "Where to accept connections; port 0 picks a free one, which the ready line shows.",
    ),
    ConfigKey(
        "advertised.listen",
        None,
        _optional_address,
        "HOST:PORT, or nothing",
        "The address that clients are told to connect to; by default, that of `listen`.",
    ),
    ConfigKey(
        "data.dir",
        "raftlog-data",
        _directory,
        "a directory",
        "Where everything is stored. One broker at a time can use it.",
    ),
    ConfigKey("rack", "", _text(256), "text", "Where the broker stands; shown in metadata."),
    number(
        "connections.max.idle.ms",
        600_000,
        1,
        INT64_MAX,
        "ms",
        "Close a connection that was silent for so long.",
    ),
    number(
        "controlled.shutdown.timeout.ms",
        10_000,
        0,
        INT64_MAX,
        "ms",
        "How long a shutdown waits for requests in flight to be answered.",
    ),
    number(
        "fetch.max.bytes",
        16 * limits.MIB,
        1_024,
        limits.FETCH_BYTES_MAX,
        "bytes",
        "The largest fetch answer, whatever the consumer asks for (one batch is always sent).",
    ),
    number(
        "log.checkpoint.interval.ms",
        60_000,
        1,
        INT64_MAX,
        "ms",
        "How often each partition's checkpoint is written, which bounds recovery's work.",
    ),
    number(
        "log.retention.check.interval.ms",
        300_000,
        1,
        INT64_MAX,
        "ms",
        "How often segments are looked at for retention, rolling and deletion.",
    ),
    number(
        "max.connections",
        10_000,
        1,
        1_000_000,
        "connections",
        "Connections beyond this number are closed as soon as they are accepted.",
    ),
    number(
        "queued.max.request.bytes",
        64 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for requests that have arrived in part, over all connections; above it, reading "
        "waits on all but the oldest of them.",
    ),
    number(
        "queued.max.response.bytes",
        64 * limits.MIB,
        limits.MIB,
        INT64_MAX,
        "bytes",
        "Memory for fetch answers that clients have not taken yet, over all connections; above "
        "it, fetches wait.",
    ),
    number(
        "queued.max.wait.ms",
        10_000,
        1,
        INT64_MAX,
        "ms",
        "While others wait for memory: close a connection that has held some for so long, by not "
        "ending its request or by not taking its answer.",
    ),
    number(
        "request.receive.timeout.ms",
        60_000,
        1,
        INT64_MAX,
        "ms",
        "Close a connection whose request is not complete so long after its first byte.",
    ),
    number(
        "socket.request.max.bytes",
        limits.FRAME_BYTES_MAX,
        limits.MIB,
        limits.FRAME_BYTES_MAX,
        "bytes",
        "The largest request.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker; each field is the key of ``BROKER_KEYS`` with ``.`` for ``_``."""

    id: int = 1
    listen: Address = Address("127.0.0.1", 9100)
    advertised_listen: Address | None = None
    data_dir: str = "raftlog-data"
    rack: str = ""
    connections_max_idle_ms: int = 600_000
    controlled_shutdown_timeout_ms: int = 10_000
    fetch_max_bytes: int = 16 * limits.MIB
    log_checkpoint_interval_ms: int = 60_000
    log_retention_check_interval_ms: int = 300_000
    max_connections: int = 10_000
    queued_max_request_bytes: int = 64 * limits.MIB
    queued_max_response_bytes: int = 64 * limits.MIB
    queued_max_wait_ms: int = 10_000
    request_receive_timeout_ms: int = 60_000
    socket_request_max_bytes: int = limits.FRAME_BYTES_MAX

    @classmethod
    def from_text(cls, overrides: Mapping[str, str]) -> BrokerConfig:
        """Settings with ``overrides``; raises ``InvalidConfigError`` that names the bad one."""
        return cls(**parse(BROKER_KEYS, overrides, what="broker"))

    @classmethod
    def from_toml(cls, document: str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Settings from a TOML document, with ``overrides`` (the command line's) on top."""
        return cls.from_text({**read_toml(document), **(overrides or {})})

    def to_text(self) -> dict[str, str]:
        """Every key with its value, as text; an address that is not set is left empty."""
        values = ((key.name, getattr(self, key.field)) for key in BROKER_KEYS)
        return {name: "" if value is None else str(value) for name, value in values}


def read_toml(document: str) -> dict[str, str]:
    """The document's settings by dotted key, as text; what they mean is not looked at."""
    try:
        return dict(_flatten(tomllib.loads(document), prefix=""))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(f"the configuration is not TOML: {error}") from error


def _flatten(table: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, prefix=name + ".")
        elif isinstance(value, str | int) and not isinstance(value, bool):
            yield name, str(value)
        else:
            raise InvalidConfigError(
                f"{name} = {str(value)[:100]} is a {type(value).__name__}; settings are text or "
                "whole numbers"
            )


assert [f.name for f in fields(BrokerConfig)] == [key.field for key in BROKER_KEYS]
assert all(getattr(BrokerConfig(), key.field) == key.default for key in BROKER_KEYS)
