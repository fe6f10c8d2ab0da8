"""``FrameReader``: bytes in, complete frames out. It uses no sockets and does not know the APIs.

Its owner is an ``asyncio.BufferedProtocol``, or an object with the same methods::

    view = reader.get_buffer()      # the kernel writes here
    frames = reader.received(n)     # n bytes of it were written
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog import limits
from raftlog.errors import FrameError
from raftlog.protocol.frame import (
    FIXED_BYTES,
    FRAME,
    LENGTH_BYTES,
    LENGTH_MIN,
    MAGIC,
    Frame,
    flaw,
)

_unpack_from: Final = FRAME.unpack_from


class FrameReader:
    """Frame reader of one direction of a connection. It holds no memory between frames.

    It parses frames in ``scratch``, which all readers of a thread can share: ``received`` copies
    the bytes of an incomplete frame before it returns. An incomplete frame that is larger than
    ``limits.FRAME_SMALL_BYTES_MAX`` gets a separate buffer. ``get_buffer`` then returns the free
    part of that buffer, so that the kernel writes directly into the frame. The buffer grows with
    the number of received bytes, not with the length in the frame.

    ``bytes_max``: longest frame, in bytes. ``first_bytes_max``: the same for the first frame;
    default ``bytes_max``. ``trusted_bytes``: bytes to allocate for a frame before its data arrives,
    for trusted peers; default 0. ``may_trust``: returns whether to allocate as much as the largest
    earlier frame of the peer, up to ``limits.FRAME_TRUSTED_BYTES_MAX``, because growing a buffer
    is more expensive than filling it. ``scratch``: receive buffer; None creates one.
    """

    __slots__ = (
        "_bytes_max",
        "_bytes_max_later",
        "_earned_bytes",
        "_filled",
        "_held",
        "_held_position",
        "_large",
        "_large_total",
        "_may_trust",
        "_scratch",
        "_small_max",
        "_trusted_bytes",
        "_waiting",
        "error",
        "first_bytes",
    )

    def __init__(
        self,
        bytes_max: int = limits.FRAME_BYTES_MAX,
        *,
        first_bytes_max: int | None = None,
        trusted_bytes: int = 0,
        may_trust: Callable[[], bool] = lambda: False,
        scratch: memoryview | None = None,
    ) -> None:
        if scratch is None:
            scratch = memoryview(bytearray(limits.RECEIVE_BYTES))
        assert len(scratch) > FIXED_BYTES and not scratch.readonly
        assert bytes_max <= limits.FRAME_BYTES_MAX
        self._bytes_max = bytes_max if first_bytes_max is None else min(first_bytes_max, bytes_max)
        self._bytes_max_later = bytes_max  # limit after the first complete frame
        self._trusted_bytes = trusted_bytes
        self._may_trust = may_trust
        self._earned_bytes = 0  # largest large frame received so far, within the limit
        self._scratch = scratch
        # Invariant: the held part of an incomplete frame is shorter than the scratch buffer.
        self._small_max = min(limits.FRAME_SMALL_BYTES_MAX, len(scratch))
        self._held = b""
        self._held_position = 0  # not 0 only while waiting
        self._waiting = False
        self._large: bytearray | None = None
        self._large_total = 0  # bytes; final size of the frame in _large
        self._filled = 0  # bytes of _large that have arrived
        self.error: FrameError | None = None  # after it is set, the reader returns no frames
        self.first_bytes = b""  # start of the invalid input

    def permit(self, bytes_max: int) -> None:
        """Accept frames of up to ``bytes_max`` bytes from now on."""
        self._bytes_max = self._bytes_max_later = bytes_max

    @property
    def waiting(self) -> bool:
        """True if ``frames_max`` held back frames. Call ``received(0)`` before the next read."""
        return self._waiting

    @property
    def bytes_held(self) -> int:
        """Bytes of memory of this connection, without the shared scratch buffer."""
        return len(self._held) if self._large is None else len(self._large)

    @property
    def pending_bytes(self) -> int:
        """Number of received bytes that are not part of a returned frame."""
        return len(self._held) - self._held_position if self._large is None else self._filled

    @property
    def in_frame(self) -> bool:
        """True if a frame is incomplete. A peer that then stops sending has stalled."""
        return self.pending_bytes > 0 and not self._waiting

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer for the next input. It is never empty."""
        assert not self._waiting, "call received(0) first: held frames occupy the scratch buffer"
        large = self._large
        if large is not None:
            if self._filled == len(large):
                large = self._grow(large)
            return memoryview(large)[self._filled :]
        held = self._held
        if not held:
            return self._scratch
        self._scratch[: len(held)] = held
        return self._scratch[len(held) :]

    def received(self, count: int, *, frames_max: int | None = None) -> list[Frame]:
        """Process ``count`` new bytes and return the complete frames, at most ``frames_max``.

        Raises ``FrameError`` if the bytes are not a valid frame, and on every later call. Valid
        frames before the invalid bytes are returned first, with ``error`` set.
        """
        if self.error is not None:
            raise self.error
        if self._large is not None:
            return self._received_large(self._large, count)
        if count:
            return self._parse(self._scratch, 0, len(self._held) + count, frames_max)
        if self._waiting:
            held = memoryview(self._held)
            return self._parse(held, self._held_position, len(held), frames_max)
        return []

    def end_of_stream(self) -> FrameError | None:
        """Return an error if the stream ended inside a frame, else None."""
        if not self.in_frame:
            return None
        return FrameError(f"the connection ended after {self.pending_bytes} bytes of a frame")

    def _parse(
        self, view: memoryview, position: int, end: int, frames_max: int | None
    ) -> list[Frame]:
        frames: list[Frame] = []
        owns_memory = view is not self._scratch
        bytes_max = self._bytes_max
        self._waiting = False
        while end - position >= FIXED_BYTES:
            length, magic, api_or_status, version, flags, correlation_id, header_length = (
                _unpack_from(view, position)
            )
            if (
                magic != MAGIC
                or flags
                or not LENGTH_MIN + header_length <= length <= bytes_max
                or header_length > limits.FRAME_HEADER_BYTES_MAX
            ):
                return self._break(bytes(view[position : position + FIXED_BYTES]), frames)
            header = position + FIXED_BYTES
            attachment = header + header_length
            following = position + LENGTH_BYTES + length
            if following > end:
                break
            if len(frames) == frames_max:
                self._waiting = True
                break
            frames.append(
                Frame(
                    api_or_status,
                    version,
                    correlation_id,
                    view[header:attachment],
                    view[attachment:following],
                    owns_memory,
                )
            )
            position = following
            bytes_max = self._bytes_max = self._bytes_max_later
        return self._set_aside(view, position, end, frames)

    def _set_aside(
        self, view: memoryview, position: int, end: int, frames: list[Frame]
    ) -> list[Frame]:
        """Copy the rest of ``view``, which other readers may share."""
        if position == end:
            self._hold(b"")
            return frames
        rest = view[position:end]
        if self._waiting:
            if view is self._scratch:
                self._hold(bytes(rest))
            else:
                self._held_position = position
        elif len(rest) < FIXED_BYTES:
            start = bytes(rest)
            if flaw(start, bytes_max=self._bytes_max) is not None:
                return self._break(start, frames)
            self._hold(start)
        else:
            total = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "little")
            room = max(self._trusted(), 2 * len(rest)) if total > self._small_max else 0
            if room >= self._small_max:
                self._begin_large(rest, total, room)
            else:
                self._hold(bytes(rest))
        return frames

    def _hold(self, held: bytes) -> None:
        self._held, self._held_position = held, 0

    def _break(self, start: bytes, frames: list[Frame]) -> list[Frame]:
        problem = flaw(start, bytes_max=self._bytes_max)
        assert problem is not None, "the reader and flaw() disagree"
        self.error = FrameError(problem)
        self.first_bytes = start
        self._hold(b"")
        if frames:
            return frames
        raise self.error

    # -- large frames in a separate buffer

    def _trusted(self) -> int:
        """Return the bytes to allocate before the data of a frame arrives."""
        if self._trusted_bytes or not self._earned_bytes:
            return self._trusted_bytes
        return self._earned_bytes if self._may_trust() else 0

    def _begin_large(self, start: memoryview, total: int, room: int) -> None:
        large = bytearray(min(total, room))
        memoryview(large)[: len(start)] = start
        self._large, self._large_total, self._filled = large, total, len(start)
        self._hold(b"")

    def _grow(self, large: bytearray) -> bytearray:
        """Double the buffer. Its free part is never larger than the received part."""
        # A new buffer, because the owner may still hold a view of the old one.
        larger = bytearray(min(self._large_total, 2 * len(large)))
        memoryview(larger)[: len(large)] = large
        self._large = larger
        return larger

    def _received_large(self, large: bytearray, count: int) -> list[Frame]:
        self._filled += count
        assert self._filled <= len(large), "received more bytes than get_buffer() returned"
        if self._filled < self._large_total:
            return []
        self._large, self._filled = None, 0
        self._bytes_max = self._bytes_max_later
        self._earned_bytes = min(
            max(self._earned_bytes, self._large_total), limits.FRAME_TRUSTED_BYTES_MAX
        )
        _, _, api_or_status, version, _, correlation_id, header_length = _unpack_from(large)
        view = memoryview(large).toreadonly()
        attachment = FIXED_BYTES + header_length
        header = view[FIXED_BYTES:attachment]
        return [Frame(api_or_status, version, correlation_id, header, view[attachment:], True)]
