"""Frames of Kafka's protocol: a length of four bytes, a header, and one message.

    request    length i32 | api key i16 | version i16 | correlation ID i32 | client ID | tags
               | message
    response   length i32 | correlation ID i32 | tags | message

Tags are present in flexible versions only (KIP-482); a response to ApiVersions never has them
(KIP-511), so that a client can read it before it knows the broker's versions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka.codec import BadMessageError, read_varint
from raftlog.types import Buffer

LENGTH_BYTES: Final = 4
REQUEST_BYTES_MIN: Final = 8  # of the header without a client ID
# Bytes of a connection that distinguish Kafka's protocol from raftlog's: length, half of the key.
CHOICE_BYTES: Final = 6
_KEYS_MAX: Final = 1_024  # less than raftlog's magic; Kafka's API keys are below 100
_HEAD: Final = struct.Struct(">hhi")
_INT32: Final = struct.Struct(">i")
_PIECE_BYTES_MAX: Final = 4 * limits.KIB  # smaller pieces of a response are joined
_BUFFER_BYTES_MIN: Final = 16 * limits.KIB


def is_kafka(first: bytes, bytes_max: int) -> bool:
    """Return whether a connection that begins with these bytes is a Kafka client's: with
    ``CHOICE_BYTES`` or more.

    A Kafka request begins with its length, at most ``bytes_max``, and an API key, also one that
    does not exist: below ``_KEYS_MAX``, or negative. Others are refused as damaged raftlog frames,
    at once, and not when as many bytes have arrived as they claim.
    """
    length = int.from_bytes(first[:LENGTH_BYTES], "big")
    key = int.from_bytes(first[LENGTH_BYTES:CHOICE_BYTES], "big", signed=True)
    return REQUEST_BYTES_MIN <= length <= bytes_max and key < _KEYS_MAX


class FrameReader:
    """Separates received bytes into requests. Requests own their memory.

    The buffer grows with the received bytes, not by the length that a client claims, unless
    ``may_trust`` returns True.
    """

    def __init__(
        self, bytes_max: int, *, scratch: memoryview, may_trust: Callable[[], bool] = lambda: False
    ) -> None:
        """``bytes_max``: longest request. ``scratch``: receive buffer that connections share."""
        self._bytes_max = bytes_max
        self._scratch = scratch
        self._may_trust = may_trust
        self._bytes_min = REQUEST_BYTES_MIN
        self._own = bytearray()  # used instead of the scratch while a request is incomplete
        self._have = 0  # bytes in it
        self.waiting = False  # complete requests may be held back
        self.error: BadMessageError | None = None  # no further request can be separated
        self.refused_head = b""  # of the request with the error, as far as it was received

    def permit(self, bytes_max: int) -> None:
        """Accept requests of up to ``bytes_max`` bytes from now on."""
        self._bytes_max = bytes_max

    def expect_tokens(self, *, are_next: bool) -> None:
        """Accept frames of any length, which are no requests, or no longer."""
        self._bytes_min = 0 if are_next else REQUEST_BYTES_MIN

    @property
    def in_frame(self) -> bool:
        """Whether a request is incomplete."""
        return self._have > 0 and not self.waiting

    @property
    def bytes_held(self) -> int:
        return len(self._own)

    def get_buffer(self) -> memoryview:
        """Return memory for the next received bytes."""
        if not self._have:
            return self._scratch
        if self._have == len(self._own):
            self._own = self._enlarged()
        return memoryview(self._own)[self._have :]

    def received(self, count: int, *, frames_max: int) -> list[memoryview]:
        """Return up to ``frames_max`` requests after ``count`` new bytes in the buffer.

        A length out of range sets ``error``, after the requests before it were returned.
        """
        if self.error is not None or not (self._have or count):
            return []
        source = memoryview(self._own) if self._have else self._scratch
        view = source[: self._have + count]
        frames: list[memoryview] = []
        at = 0
        while len(frames) < frames_max and len(view) - at >= LENGTH_BYTES:
            try:
                end = at + LENGTH_BYTES + self._length(view, at)
            except BadMessageError as error:
                self.error = error
                head = view[at + LENGTH_BYTES : at + LENGTH_BYTES + REQUEST_BYTES_MIN]
                self.refused_head = bytes(head)
                self._own, self._have = bytearray(), 0
                return frames
            if end > len(view):
                break
            if self._have and at == 0 and end == len(source):
                frames.append(view[LENGTH_BYTES:end])  # the request takes over the buffer
            else:
                frames.append(memoryview(bytes(view[at + LENGTH_BYTES : end])))
            at = end
        rest = view[at:]
        self.waiting = len(frames) == frames_max and len(rest) > 0
        if at or not self._have:
            self._keep(rest)
        else:
            self._have = len(view)
        return frames

    def _keep(self, rest: memoryview) -> None:
        self._have = len(rest)
        if not rest:
            self._own = bytearray()
            return
        kept = bytes(rest)
        self._own = bytearray(kept)
        self._own = self._enlarged()

    def _enlarged(self) -> bytearray:
        """Return a copy of the own buffer with space for the rest of its request, or with twice the
        size.
        """
        have = self._have
        wanted = max(2 * have, _BUFFER_BYTES_MIN)
        if have >= LENGTH_BYTES:
            size = LENGTH_BYTES + self._length(memoryview(self._own), 0)
            if size > have:
                is_trusted = size <= limits.FRAME_TRUSTED_BYTES_MAX and self._may_trust()
                wanted = size if is_trusted else min(wanted, size)
        larger = bytearray(wanted)
        larger[:have] = self._own[:have]
        return larger

    def _length(self, view: memoryview, at: int) -> int:
        length = int.from_bytes(view[at : at + LENGTH_BYTES], "big")
        if not self._bytes_min <= length <= self._bytes_max:
            raise BadMessageError(
                f"a request of {length} bytes; {self._bytes_min} to {self._bytes_max} are "
                "permitted (socket.request.max.bytes)"
            )
        key = view[at + LENGTH_BYTES : at + CHOICE_BYTES]
        if self._bytes_min and len(key) == 2 and length > limits.KAFKA_REQUEST_BYTES_MAX:
            number = int.from_bytes(key, "big")
            if number != apis.PRODUCE.key:
                raise BadMessageError(
                    f"a request of {length} bytes with API key {number}; at most "
                    f"{limits.KAFKA_REQUEST_BYTES_MAX} are permitted (KAFKA_REQUEST_BYTES_MAX)"
                )
        return length


def read_head(frame: memoryview) -> tuple[int, int, int]:
    """Return the API key, version and correlation ID of a request."""
    key, version, correlation_id = _HEAD.unpack_from(frame)
    return key, version, correlation_id


def read_client_id(frame: memoryview, *, flexible: bool) -> tuple[str, int]:
    """Return the client ID ("" for null), and the position of the message.

    Raises one of ``codec.READ_ERRORS``.
    """
    at = _HEAD.size
    size = int.from_bytes(frame[at : at + 2], "big", signed=True)
    at += 2
    if size > len(frame) - at:
        raise BadMessageError("client ID beyond the end")
    client_id = "" if size < 0 else str(frame[at : at + size], "utf-8")
    at += max(size, 0)
    if not flexible:
        return client_id, at
    count, at = read_varint(frame, at)
    if count > limits.KAFKA_TAGS_MAX:
        raise BadMessageError("number of tagged fields")
    for _ in range(count):
        _, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        at += size
        if at > len(frame):
            raise BadMessageError("tagged field beyond the end")
    return client_id, at


def response(correlation_id: int, pieces: list[Buffer], *, flexible: bool) -> list[Buffer]:
    """Return the buffers of a response: small pieces joined, large ones unchanged.

    ``flexible``: whether its header has tags.
    """
    head = _INT32.pack(correlation_id) + (b"\0" if flexible else b"")
    length = len(head) + sum(map(len, pieces))
    return joined([_INT32.pack(length), head, *pieces])


def joined(pieces: Iterable[Buffer]) -> list[Buffer]:
    """Return the pieces as buffers: small neighbours joined, large ones unchanged."""
    buffers: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) <= _PIECE_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            buffers.append(b"".join(small))
            small = []
        buffers.append(piece)
    if small:
        buffers.append(b"".join(small))
    return buffers
