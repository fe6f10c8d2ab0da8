"""Cutting an attachment into the parts that its message's ``length`` fields name. Nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.errors import InvalidRequestError
from raftlog.types import Buffer


def slices(attachment: Buffer, lengths: Sequence[int]) -> list[memoryview]:
    """One view per length, back to back: together they are the attachment, exactly."""
    view = memoryview(attachment)
    parts = []
    position = 0
    for length in lengths:
        if length < 0:
            raise InvalidRequestError(f"a part of {length} bytes in an attachment")
        parts.append(view[position : position + length])
        position += length
    if position != len(view):
        raise InvalidRequestError(
            f"the attachment has {len(view)} bytes, but the message's lengths add up to {position}"
        )
    return parts
