"""Bytes, however they are cut, become the same frames, in bounded memory; or a ``FrameError``."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import FrameError
from raftlog.protocol.connection import (
    FIXED_BYTES,
    FRAME,
    LENGTH_BYTES,
    LENGTH_MIN,
    MAGIC,
    Frame,
    FrameReader,
    flaw,
)
from tests.protocol.link import SCRIBBLE, cuts, deliver, pieces

SMALL = limits.FRAME_SMALL_BYTES_MAX
LARGE = 2 * limits.MIB


def frame_bytes(header: bytes = b"", attachment: bytes = b"", *, kind: int = 1) -> bytes:
    length = LENGTH_MIN + len(header) + len(attachment)
    return FRAME.pack(length, MAGIC, kind, 2, 0, 7, len(header)) + header + attachment


def declared(total: int) -> bytes:
    """The fixed bytes of a frame that will be ``total`` bytes long."""
    return FRAME.pack(total - LENGTH_BYTES, MAGIC, 1, 0, 0, 7, 0)


def new_scratch(size: int = 4096) -> memoryview:
    return memoryview(bytearray(size))


def contents(frames: list[Frame]) -> list[tuple[Any, ...]]:
    return [(f.api_or_status, f.version, f.correlation_id, f.header, f.attachment) for f in frames]


class KeepingReader(FrameReader):
    """Keeps every frame, as an owner does that uses it later."""

    def received(self, count: int, *, frames_max: int | None = None) -> list[Frame]:
        return [frame.keep() for frame in super().received(count, frames_max=frames_max)]


frames_of_bytes = st.lists(
    st.builds(
        frame_bytes,
        st.binary(max_size=60),
        st.binary(max_size=60) | st.binary(min_size=200, max_size=300),
        kind=st.integers(0, 65_535),
    ),
    max_size=6,
)


# -- frames ----------------------------------------------------------------------------------------


@given(frames_of_bytes, cuts(), st.integers(FIXED_BYTES + 1, 120))
def test_frames_do_not_depend_on_how_they_are_cut(
    parts: list[bytes], sizes: list[int], scratch_size: int
) -> None:
    scratch = new_scratch(scratch_size)
    reader = KeepingReader(scratch=scratch)
    found = deliver(parts, reader, sizes=sizes, scratch=scratch)
    assert contents(found) == [
        (
            int.from_bytes(part[6:8], "little"),
            2,
            7,
            part[FIXED_BYTES : FIXED_BYTES + int.from_bytes(part[16:20], "little")],
            part[FIXED_BYTES + int.from_bytes(part[16:20], "little") :],
        )
        for part in parts
    ]
    assert reader.bytes_held == 0
    assert not reader.in_frame


@given(
    st.data(),
    st.binary(max_size=200) | frames_of_bytes.map(b"".join),
    st.integers(FIXED_BYTES + 1, 120),
)
def test_any_bytes_give_frames_or_a_frame_error(
    data: st.DataObject, stream: bytes, scratch_size: int
) -> None:
    if stream:
        position = data.draw(st.integers(0, len(stream) - 1))
        flipped = stream[position] ^ (1 << data.draw(st.integers(0, 7)))
        stream = stream[:position] + bytes([flipped]) + stream[position + 1 :]
    outcomes = []
    for sizes in ([], data.draw(cuts())):
        reader = KeepingReader(scratch=new_scratch(scratch_size))
        found: list[Frame] = []
        try:
            deliver(stream, reader, sizes=sizes, found=found)
        except FrameError:
            assert reader.error is not None
        outcomes.append((contents(found), reader.error is not None))
    assert outcomes[0] == outcomes[1], "cutting the bytes changed what they mean"


def test_two_readers_share_one_scratch() -> None:
    scratch = new_scratch()
    readers = [KeepingReader(scratch=scratch) for _ in range(3)]
    streams = [frame_bytes(bytes([number]) * 30, b"tail") * 5 for number in range(3)]
    found: list[list[Frame]] = [[], [], []]
    turns = [pieces(stream, [17, 3, 41]) for stream in streams]
    for turn in zip(*turns, strict=True):
        for number, piece in enumerate(turn):
            found[number] += deliver(piece, readers[number])
    for number in range(3):
        assert [frame.header for frame in found[number]] == [bytes([number]) * 30] * 5


def test_a_frame_that_came_whole_is_a_view_of_the_scratch() -> None:
    scratch = new_scratch()
    (frame,) = deliver(frame_bytes(b"head", b"tail"), FrameReader(scratch=scratch))
    assert not frame.owns_memory
    assert frame.attachment.obj is scratch.obj
    scratch[:] = bytes([SCRIBBLE]) * len(scratch)
    assert frame.attachment != b"tail", "which is why it has to be kept"


def test_sizes_at_the_edges() -> None:
    for first in [1, 19, 20, 21, 5000]:
        for total in [SMALL - 1, SMALL, SMALL + 1, LARGE]:
            body = bytes(range(256)) * (total // 256 + 1)
            data = frame_bytes(b"head", body[: total - FIXED_BYTES - 4])
            assert len(data) == total
            reader = KeepingReader()
            found = deliver(data[:first], reader) + deliver(data[first:] + data[:first], reader)
            assert contents(found) == [(1, 2, 7, b"head", data[24:])]
            assert reader.pending_bytes == first


def test_a_large_frame_is_written_to_once() -> None:
    """The kernel writes into the memory that the attachment is a view of."""
    data = frame_bytes(b"head", bytes(limits.MIB))
    reader = FrameReader(trusted_bytes=2 * limits.MIB, scratch=new_scratch())
    assert deliver(data[:1000], reader) == []
    view = reader.get_buffer()
    assert len(view) == len(data) - 1000, "room for the rest of the frame and not more"
    (frame,) = deliver(data[1000:], reader)
    assert frame.owns_memory
    assert frame.attachment.obj is view.obj
    assert frame.attachment.readonly


# -- memory ----------------------------------------------------------------------------------------


def test_nothing_is_held_between_frames() -> None:
    reader = FrameReader(scratch=new_scratch())
    deliver(frame_bytes(b"head", bytes(SMALL)) + frame_bytes(), reader)
    assert (reader.bytes_held, reader.pending_bytes, reader.in_frame) == (0, 0, False)


def test_what_is_held_of_a_small_frame_is_what_has_come() -> None:
    reader = FrameReader(scratch=new_scratch())
    deliver(frame_bytes(bytes(100))[:70], reader)
    assert (reader.bytes_held, reader.pending_bytes, reader.in_frame) == (70, 70, True)


def test_a_lying_length_takes_little_memory() -> None:
    scratch = new_scratch()
    tracemalloc.start()
    try:
        reader = FrameReader(scratch=scratch)
        deliver(declared(limits.FRAME_BYTES_MAX), reader)
        reader.get_buffer()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.bytes_held < 3 * limits.MIB
    assert taken < 3 * limits.MIB


def test_memory_grows_only_with_what_arrives() -> None:
    total = 21 * limits.MIB
    reader = FrameReader(scratch=new_scratch())
    deliver(declared(total), reader)
    arrived = FIXED_BYTES
    piece = bytes(700 * limits.KIB)
    while arrived < total:
        count = min(len(piece), total - arrived)
        found = deliver(piece[:count], reader)
        arrived += count
        assert reader.bytes_held <= 2 * arrived
    assert [len(frame.attachment) for frame in found] == [total - FIXED_BYTES]
    assert reader.bytes_held == 0


def test_a_length_takes_no_memory_before_bytes_come() -> None:
    reader = FrameReader()
    assert deliver(declared(limits.FRAME_BYTES_MAX), reader) == []
    assert reader.bytes_held == FIXED_BYTES


@pytest.mark.parametrize("has_plenty", [True, False])
def test_who_has_sent_large_frames_is_trusted_with_as_much_again(has_plenty: bool) -> None:
    reader = FrameReader(may_trust=lambda: has_plenty)
    claim = declared(limits.FRAME_BYTES_MAX)
    assert len(deliver(frame_bytes(b"head", bytes(LARGE // 2)) + claim, reader)) == 1
    trusted = LARGE // 2 + FIXED_BYTES + 4
    assert reader.bytes_held == (trusted if has_plenty else FIXED_BYTES)


def test_the_first_frame_has_a_limit_of_its_own() -> None:
    small, large = frame_bytes(b"head"), frame_bytes(b"head", bytes(SMALL))
    reader = FrameReader(first_bytes_max=SMALL)
    assert len(deliver(small + large + large, reader)) == 3
    with pytest.raises(
        FrameError, match=f"{len(large) - LENGTH_BYTES}.*exceeds the limit of {SMALL}"
    ):
        deliver(large, FrameReader(first_bytes_max=SMALL))


def test_an_owner_may_hold_on_to_old_views() -> None:
    """asyncio does: the view is alive while it calls ``buffer_updated``."""
    reader = FrameReader(scratch=new_scratch())
    views = []
    data = frame_bytes(b"", bytes(3 * LARGE))
    found = []
    position = 0
    while position < len(data):
        views.append(reader.get_buffer())
        count = min(len(views[-1]), len(data) - position)
        views[-1][:count] = data[position : position + count]
        found += reader.received(count)
        position += count
    assert len(found) == 1


# -- holding frames back ---------------------------------------------------------------------------


@given(frames_of_bytes, st.integers(1, 3), st.integers(0, 30))
def test_frames_held_back_come_when_asked_for(
    parts: list[bytes], frames_max: int, cut: int
) -> None:
    data = b"".join(parts)
    data, tail = data[: len(data) - cut], data[len(data) - cut :]
    scratch = new_scratch()
    reader = KeepingReader(scratch=scratch)
    reader.get_buffer()[: len(data)] = data
    found = reader.received(len(data), frames_max=frames_max) if data else []
    while reader.waiting:
        scratch[:] = bytes([SCRIBBLE]) * len(scratch)
        assert not reader.in_frame
        more = reader.received(0, frames_max=frames_max)
        assert 0 < len(more) <= frames_max
        found += more
        assert len(found) <= len(parts), "frames come again and again"
    assert reader.received(0) == []
    found += deliver(tail, reader)
    assert contents(found) == contents(deliver(data + tail, KeepingReader()))
    assert reader.bytes_held == 0


def test_none_are_given_when_none_are_wanted() -> None:
    reader = FrameReader(scratch=new_scratch())
    data = frame_bytes(b"head")
    reader.get_buffer()[: len(data)] = data
    assert reader.received(len(data), frames_max=0) == []
    assert reader.waiting
    assert [frame.header for frame in reader.received(0)] == [b"head"]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stranger",
    [b"GET / HTTP/1.1", b"SSH-2.0-x", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 20, b"\xff" * 20],
)
def test_strangers_are_recognised_by_their_sixth_byte(stranger: bytes) -> None:
    reader = FrameReader(scratch=new_scratch())
    with pytest.raises(FrameError):
        deliver(stranger[:6], reader, sizes=[1])
    assert stranger.startswith(reader.first_bytes)
    assert reader.bytes_held == 0


@given(
    st.integers(0, 60) | st.sampled_from([999, 1000, 1001, 1 << 31]),
    st.sampled_from([MAGIC, MAGIC, MAGIC, MAGIC ^ 1]),
    st.sampled_from([0, 0, 0, 1, 0x8000]),
    st.integers(0, 60) | st.sampled_from([984, 985, limits.FRAME_HEADER_BYTES_MAX + 1]),
)
def test_a_reader_refuses_what_is_flawed_and_nothing_else(
    length: int, magic: int, flags: int, header_length: int
) -> None:
    fixed = FRAME.pack(length, magic, 1, 0, flags, 7, header_length)
    reader = FrameReader(1000, scratch=new_scratch())
    problem = flaw(fixed, bytes_max=1000)
    if problem is None:
        (frame,) = deliver(fixed + bytes(length - LENGTH_MIN), reader)
        assert len(frame.header) == header_length
        assert len(frame.header) + len(frame.attachment) == length - LENGTH_MIN
    else:
        with pytest.raises(FrameError) as caught:
            deliver(fixed, reader)
        assert str(caught.value) == problem


def test_a_header_over_its_limit_is_refused_in_a_frame_within_its_own() -> None:
    most = limits.FRAME_HEADER_BYTES_MAX
    fixed = FRAME.pack(2 * most, MAGIC, 1, 0, 0, 7, most + 1)
    with pytest.raises(FrameError, match="FRAME_HEADER_BYTES_MAX"):
        deliver(fixed, FrameReader(scratch=new_scratch()))


def test_an_oversize_frame_is_refused_before_memory_is_taken() -> None:
    reader = FrameReader(1000, scratch=new_scratch())
    assert len(deliver(declared(1000 + LENGTH_BYTES) + bytes(984), reader)) == 1
    with pytest.raises(FrameError, match="1001 bytes exceeds the limit of 1000"):
        deliver(declared(1001 + LENGTH_BYTES), reader)


def test_an_error_is_for_good() -> None:
    reader = FrameReader(scratch=new_scratch())
    with pytest.raises(FrameError, match="not a raftlog frame"):
        deliver(bytes(6), reader)
    with pytest.raises(FrameError, match="not a raftlog frame"):
        deliver(frame_bytes(b"head"), reader)


def test_frames_before_the_bad_bytes_come_first() -> None:
    reader = FrameReader(scratch=new_scratch())
    found = deliver(frame_bytes(b"one") + frame_bytes(b"two") + b"GET / HTTP/1.1", reader)
    assert [frame.header for frame in found] == [b"one", b"two"]
    assert reader.error is not None
    with pytest.raises(FrameError, match="not HTTP"):
        reader.received(0)


@pytest.mark.parametrize("size", [1, 19, 20, 30, SMALL + 100])
def test_a_stream_that_ends_in_a_frame_says_so(size: int) -> None:
    reader = FrameReader()
    assert reader.end_of_stream() is None
    deliver(frame_bytes(b"whole") + frame_bytes(bytes(2 * SMALL))[:size], reader)
    assert f"after {size} bytes of a frame" in str(reader.end_of_stream())
