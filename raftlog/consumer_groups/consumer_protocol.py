"""Subscriptions and assignments of the classic protocol type ``consumer``: read, never written.

The coordinator passes these bytes on as they are. It reads them only to describe a group, to
protect the offsets of subscribed topics, and to compare a static member with its predecessor.
Format: Kafka's ``ConsumerProtocolSubscription`` and ``ConsumerProtocolAssignment``, versions 0 and
later. Fields after the topics differ between versions and are not read.
"""

from __future__ import annotations

import struct
from typing import Final

CONSUMER: Final = "consumer"  # the protocol type of consumers; Connect and Streams have others
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_VERSION_BYTES: Final = _SHORT.size


def subscribed_topics(data: bytes) -> tuple[str, ...] | None:
    """Return the sorted topics of a subscription, or None if the bytes are not one."""
    try:
        topics, _ = _names(data)
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return tuple(sorted(set(topics)))


def assigned_partitions(data: bytes) -> dict[str, tuple[int, ...]] | None:
    """Return the partitions of an assignment by topic, or None if the bytes are not one.

    Empty bytes are an empty assignment.
    """
    if not data:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    try:
        count, at = _count(data, _VERSION_BYTES)
        for _ in range(count):
            topic, at = _name(data, at)
            partitions, at = _count(data, at, each_bytes=_INT.size)
            numbers = struct.unpack_from(f">{partitions}i", data, at)
            at += partitions * _INT.size
            found[topic] = tuple(sorted(numbers))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return found


def _names(data: bytes) -> tuple[list[str], int]:
    count, at = _count(data, _VERSION_BYTES)
    names: list[str] = []
    for _ in range(count):
        name, at = _name(data, at)
        names.append(name)
    return names, at


def _count(data: bytes, at: int, *, each_bytes: int = _SHORT.size) -> tuple[int, int]:
    """Return a count that fits the remaining bytes, and the position after it."""
    (count,) = _INT.unpack_from(data, at)
    at += _INT.size
    if not 0 <= count * each_bytes <= len(data) - at:
        raise ValueError("count exceeds the bytes")
    return count, at


def _name(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, at)
    at += _SHORT.size
    if not 0 <= length <= len(data) - at:
        raise ValueError("length exceeds the bytes")
    return data[at : at + length].decode(), at + length
