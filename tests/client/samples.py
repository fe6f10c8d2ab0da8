"""Settings, topics, clocks and interpreters that client tests share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raftlog import limits
from raftlog.client.cluster import PartitionView, TopicView
from raftlog.client.settings import ConsumerSettings, ProducerSettings
from raftlog.record import LEADER_BYTES, Codec, encode, parse_header, seal, stamp

ROOT = Path(__file__).resolve().parents[2]
MAX_MESSAGE_BYTES = limits.MIB + 12


def producer_settings(**changes: Any) -> ProducerSettings:
    defaults: dict[str, Any] = {
        "acks": -1,
        "idempotent": True,
        "codec": Codec.NONE,
        "compression_level": None,
        "linger_ms": 5,
        "batch_bytes_max": limits.MIB,
        "buffer_memory": 32 * limits.MIB,
        "max_block_ms": 60_000,
        "delivery_timeout_ms": 120_000,
        "partitioner": None,
    }
    return ProducerSettings(**{**defaults, **changes})


def topic_view(
    name: str = "t",
    partitions: int = 1,
    *,
    leaders: tuple[int | None, ...] | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> TopicView:
    known = leaders or (1,) * partitions
    views = tuple(PartitionView(leader) for leader in known)
    return TopicView(name, f"{name}-id", max_message_bytes, views)


@dataclass
class HandClock:
    """Both clocks stand still until they are moved."""

    seconds: float = 1_000.0
    ms: int = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own; one that hangs fails."""
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def consumer_settings(**changes: Any) -> ConsumerSettings:
    defaults: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "check_crcs": True,
        "fetch_min_bytes": 1,
        "fetch_max_wait_ms": 500,
        "fetch_max_bytes": limits.FETCH_BYTES_MAX,
        "max_partition_fetch_bytes": limits.MIB,
    }
    return ConsumerSettings(**{**defaults, **changes})


def stored_batch(
    base_offset: int,
    *values: bytes,
    chain: int = 0,
    leader_epoch: int = 3,
    codec: Codec = Codec.NONE,
) -> bytes:
    """A batch as a broker has it."""
    body = encode(list(values), timestamps_ms=1_700_000_000_000 + base_offset, codec=codec)
    batch = seal(body) + body.payload
    section, _ = stamp(
        parse_header(batch),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_timestamp_ms=1_700_000_000_000,
        log_append_time=False,
        previous_chain=chain,
    )
    return section + batch[LEADER_BYTES:]
