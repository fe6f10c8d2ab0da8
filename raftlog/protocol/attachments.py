"""Division of an attachment into the parts given by the ``length`` fields of its message."""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.errors import InvalidRequestError
from raftlog.types import Buffer


def slices(attachment: Buffer, lengths: Sequence[int]) -> list[memoryview]:
    """Return one view per length, in order. ``lengths`` are in bytes.

    Raises ``InvalidRequestError`` if a length is negative, or if the lengths do not add up to the
    size of the attachment.
    """
    view = memoryview(attachment)
    parts = []
    position = 0
    for length in lengths:
        if length < 0:
            raise InvalidRequestError(f"attachment part has a length of {length} bytes")
        parts.append(view[position : position + length])
        position += length
    if position != len(view):
        raise InvalidRequestError(
            f"attachment has {len(view)} bytes, but the lengths in the message add up to {position}"
        )
    return parts
