"""What comes out of toxics: sealed bytes found, bits flipped, frames doubled, pieces cut."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.protocol.api import FETCH, PRODUCE, RAFT
from raftlog.protocol.connection import FIXED_BYTES, FRAME, LENGTH_MIN, MAGIC
from raftlog.testing.relays import (
    BACKWARD,
    COPY_BYTES_MAX,
    FORWARD,
    Bandwidth,
    Counts,
    Direction,
    Duplicate,
    FrameWatch,
    Garble,
    Latency,
    MangledStream,
    Mangler,
    Slicer,
    Toxic,
    Toxics,
    delay_of,
    find,
    pieces,
)

FOUND = 0  # the status of an answer


def frame(api_or_status: int, attachment: bytes, header: bytes = b"head") -> bytes:
    length = LENGTH_MIN + len(header) + len(attachment)
    return FRAME.pack(length, MAGIC, api_or_status, 0, 0, 7, len(header)) + header + attachment


def toxics(*each: Toxic) -> Toxics:
    return {type(toxic): toxic for toxic in each}


def stream(direction: Direction, seed: int = 0) -> tuple[MangledStream, Counts]:
    counts = Counts()
    return Mangler(Random(seed), counts).stream(direction), counts


def flipped(before: bytes, after: bytes) -> list[int]:
    """Which bits differ."""
    assert len(before) == len(after)
    return [
        8 * at + bit
        for at, (one, other) in enumerate(zip(before, after, strict=True))
        for bit in range(8)
        if (one ^ other) >> bit & 1
    ]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


@pytest.mark.parametrize(
    ("direction", "api_or_status", "has_batches"),
    [
        (FORWARD, PRODUCE.number, True),
        (FORWARD, RAFT.number, False),  # an envelope, without a sum
        (FORWARD, FETCH.number, False),
        (BACKWARD, FOUND, True),
        (BACKWARD, 1, False),  # a failure
    ],
)
@given(cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_batches_are_found_however_the_stream_is_cut(
    direction: Direction, api_or_status: int, has_batches: bool, cuts: list[int]
) -> None:
    one, other = frame(api_or_status, b"batch"), frame(api_or_status, b"", b"")
    data = one + other + one
    watch = FrameWatch(direction)
    found, ends = [], []
    for at, part in zip(
        [sum(map(len, cut(data, cuts)[:n])) for n in range(len(cuts) + 1)],
        cut(data, cuts),
        strict=True,
    ):
        batches, last = watch.feed(part)
        found += [at + place for places in batches for place in places]
        ends += [at + end for end in last]
    first = FIXED_BYTES + len(b"head")
    second = len(one) + len(other) + first
    wanted = [*range(first, first + 5), *range(second, second + 5)]
    assert found == (wanted if has_batches else [])
    assert ends == [len(one), len(one) + len(other), len(data)]


def test_a_stream_of_something_else_has_no_batches() -> None:
    watch = FrameWatch(BACKWARD)
    assert watch.feed(b"HTTP/1.1 200 OK\r\n\r\n and more than that") == ([], [])
    assert watch.feed(frame(FOUND, b"batch")) == ([], [])


def test_only_sealed_bytes_are_garbled() -> None:
    garbled, counts = stream(BACKWARD)
    data = frame(FOUND, bytes(1_000))
    batches = range(FIXED_BYTES + 4, len(data))
    bits = []
    for _ in range(100):
        bits += flipped(data, garbled.change(data, toxics(Garble(every_bytes=100))))
    assert {bit // 8 for bit in bits} <= set(batches)
    assert 800 < len(bits) == counts.changed < 1_200
    assert len(set(bits)) > 500, "they are the same ones again and again"


def test_any_byte_may_be_garbled_when_so_asked() -> None:
    garbled, counts = stream(FORWARD)
    data = frame(RAFT.number, bytes(100))
    toxic = Garble(every_bytes=10, sealed_only=False)
    bits = [bit for _ in range(200) for bit in flipped(data, garbled.change(data, toxics(toxic)))]
    assert counts.changed == len(bits)
    assert {bit // 8 for bit in bits} == set(range(len(data)))


def test_small_pieces_are_garbled_as_often_as_large_ones() -> None:
    garbled, counts = stream(FORWARD)
    toxic = Garble(every_bytes=100, sealed_only=False)
    for _ in range(10_000):
        garbled.change(b"x", toxics(toxic))
    assert 50 < counts.changed < 150


def test_bytes_without_toxics_are_left_alone() -> None:
    clean, counts = stream(FORWARD)
    data = frame(PRODUCE.number, b"batch")
    assert clean.change(data, {}) is data
    assert clean.change(data, toxics(Latency(delay_s=1), Slicer(bytes_max=1))) is data
    assert counts == Counts()


@given(cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_whole_frames_are_sent_twice(cuts: list[int]) -> None:
    doubled, counts = stream(FORWARD)
    frames = [frame(number, bytes([number]) * 20) for number in range(5)]
    out = b"".join(
        doubled.change(part, toxics(Duplicate(every_bytes=1)))
        for part in cut(b"".join(frames), cuts)
    )
    assert out == b"".join(each + each for each in frames)
    assert counts.changed == 5


def test_about_as_many_are_sent_twice_as_asked() -> None:
    doubled, counts = stream(FORWARD)
    one = frame(RAFT.number, bytes(76))
    assert len(one) == 100
    out = b"".join(doubled.change(one, toxics(Duplicate(every_bytes=1_000))) for _ in range(1_000))
    assert out == one * (1_000 + counts.changed)
    assert 60 < counts.changed < 140


def test_a_frame_whose_beginning_was_not_seen_is_not_sent_twice() -> None:
    doubled, counts = stream(FORWARD)
    one = frame(RAFT.number, b"envelope")
    twice = toxics(Duplicate(every_bytes=1))
    assert doubled.change(one[:10], {}) + doubled.change(one[10:], twice) == one
    assert doubled.change(one, twice) == one + one
    assert counts.changed == 1


def test_a_long_frame_is_not_sent_twice() -> None:
    doubled, counts = stream(FORWARD)
    twice = toxics(Duplicate(every_bytes=1))
    one = frame(RAFT.number, bytes(COPY_BYTES_MAX))
    parts = cut(one, list(range(0, len(one), 1 << 16)))
    assert b"".join(doubled.change(part, twice) for part in parts) == one
    short = frame(RAFT.number, b"")
    assert doubled.change(short, twice) == short + short
    assert counts.changed == 1


@given(
    size=st.integers(0, 10_000),
    bytes_max=st.integers(1, 5_000),
    bytes_per_s=st.integers(1_000, 100_000),
)
def test_pieces_add_up(size: int, bytes_max: int, bytes_per_s: int) -> None:
    both = toxics(Slicer(bytes_max=bytes_max, pause_s=0.5), Bandwidth(bytes_per_s=bytes_per_s))
    found = list(pieces(size, both, Random(0)))
    assert sum(piece for piece, _ in found) == size
    assert all(0 < piece <= bytes_max for piece, _ in found)
    for piece, pause_s in found:
        assert piece / bytes_per_s <= pause_s <= piece / bytes_per_s + 0.5


def test_a_slow_link_takes_its_time() -> None:
    slow = toxics(Bandwidth(bytes_per_s=1_000))
    found = list(pieces(10_000, slow, Random(0)))
    assert sum(pause_s for _, pause_s in found) == pytest.approx(10)
    assert max(pause_s for _, pause_s in found) < 0.1, "in turns, and not all at the end"


def test_bytes_go_out_whole_and_at_once_without_toxics() -> None:
    assert list(pieces(10_000, {}, Random(0))) == [(10_000, 0.0)]
    assert delay_of({}, Random(0)) == 0


def test_delays_lie_around_what_was_asked_for() -> None:
    late = toxics(Latency(delay_s=0.1, jitter_s=0.3))
    random = Random(0)
    found = [delay_of(late, random) for _ in range(1_000)]
    assert min(found) == 0, "no byte arrives before it was sent"
    assert 0.39 < max(found) <= 0.4


def test_counts_can_be_compared() -> None:
    before, after = Counts(passed=1, late=2), Counts(passed=5, late=2, resets=1)
    assert after - before == Counts(passed=4, resets=1)
    assert before + (after - before) == after


def test_toxics_are_found_by_their_kind() -> None:
    latency = Latency(delay_s=1)
    assert find(toxics(latency), Latency) is latency
    assert find(toxics(latency), Slicer) is None


def test_a_new_measure_begins_anew() -> None:
    counts = Counts()
    mangler = Mangler(Random(0), counts)
    garbled = mangler.stream(FORWARD)
    garbled.change(b"x", toxics(Garble(every_bytes=10**9, sealed_only=False)))
    mangler.forget(Garble)
    garbled.change(bytes(100), toxics(Garble(every_bytes=1, sealed_only=False)))
    assert counts.changed > 10
