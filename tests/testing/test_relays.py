"""Relays: each toxic on real sockets, and one connection."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import tls
from raftlog.config.address import Address
from raftlog.errors import InvalidConfigError, InvalidRequestError
from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.protocol.api import FETCH, PRODUCE, RAFT
from raftlog.protocol.connection import FIXED_BYTES, FRAME, LENGTH_MIN, MAGIC
from raftlog.record import Codec, encode, seal, stamp, to_kafka
from raftlog.record.batch import LEADER_BYTES, parse_header
from raftlog.testing.certificates import create
from raftlog.testing.cluster import free_port, wait_until
from raftlog.testing.kafka_wire import batches_of, encoded, request, response
from raftlog.testing.relays import (
    BACKWARD,
    COPY_BYTES_MAX,
    DIRECTIONS,
    FORWARD,
    Bandwidth,
    Channel,
    Counts,
    Direction,
    Duplicate,
    FrameWatch,
    Garble,
    Hold,
    Late,
    Latency,
    MangledStream,
    Mangler,
    ProxyConnection,
    RelayLinks,
    Reset,
    Slicer,
    SlowClose,
    Stall,
    Toxic,
    Toxics,
    cancel,
    close,
    delay_of,
    find,
    pieces,
    unread,
)
from raftlog.types import ConsumerRecord, TopicPartition
from tests.record.kafka_batches import KafkaRecord, kafka_batch, kafka_resealed

# -- toxics ----------------------------------------------------------------------------------------

# Each toxic on real sockets: what arrives, what does not, and what is counted.


SOON_S = 10.0
LINK = (1, 2)


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SOON_S)
        yield server


@pytest.fixture
def links(target: socket.socket) -> Iterator[RelayLinks]:
    there = Address(*target.getsockname())
    made = RelayLinks({1: Address("127.0.0.1", free_port()), 2: there}, clients=True)
    with contextlib.closing(made):
        yield made


class Ends:
    """The two ends of a connection through a relay."""

    def __init__(self, links: RelayLinks, target: socket.socket) -> None:
        before = links.counts(LINK, FORWARD).connections
        self.near = socket.create_connection(links.address(*LINK), timeout=SOON_S)
        self.far, _ = target.accept()
        self.far.settimeout(SOON_S)
        wait_until(lambda: links.counts(LINK, FORWARD).connections > before)

    def passes(self, data: bytes = b"bytes") -> None:
        for one, other in ((self.near, self.far), (self.far, self.near)):
            one.sendall(data)
            assert receive(other, len(data)) == data

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def ends(links: RelayLinks, target: socket.socket) -> Iterator[Ends]:
    with contextlib.closing(Ends(links, target)) as made:
        yield made


def receive(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = end.recv(size - len(data))
        assert part, f"the stream has ended after {data!r}"
        data += part
    return data


def is_quiet(end: socket.socket) -> bool:
    """Whether nothing has come, not even an end."""
    return not select.select([end], [], [], 0)[0]


def is_reset(end: socket.socket) -> bool:
    """True when an RST comes; False for an orderly end."""
    try:
        return end.recv(1) is None
    except ConnectionResetError:
        return True


def test_who_dials_whom(links: RelayLinks) -> None:
    assert set(links.pairs) == {(0, 1), (0, 2), (1, 2), (2, 1)}
    assert len({links.address(*pair) for pair in links.pairs}) == 4
    with pytest.raises(KeyError):
        links.address(1, 1)


def test_clients_have_relays_only_if_asked_for() -> None:
    addresses = {n: Address("127.0.0.1", free_port()) for n in (1, 2)}
    with contextlib.closing(RelayLinks(addresses, clients=False)) as links:
        assert set(links.pairs) == {(1, 2), (2, 1)}


def test_bytes_pass_both_ways_and_are_counted(links: RelayLinks, ends: Ends) -> None:
    ends.passes(b"there and back")
    for way in (FORWARD, BACKWARD):
        wait_until(lambda: links.counts(LINK, way).passed == 14)  # noqa: B023 - called at once
        counts = links.counts(LINK, way)
        assert (counts.connections, counts.delayed, counts.dropped) == (1, 0, 0)
    assert links.counts((2, 1), FORWARD).connections == 0
    assert links.open(LINK) == 1


def test_many_bytes_pass(links: RelayLinks, ends: Ends) -> None:
    data = bytes(range(256)) * 20_000
    writer = threading.Thread(target=ends.near.sendall, args=(data,))
    writer.start()
    assert receive(ends.far, len(data)) == data
    writer.join()


def test_each_end_of_a_stream_passes_by_itself(links: RelayLinks, ends: Ends) -> None:
    ends.near.shutdown(socket.SHUT_WR)
    assert ends.far.recv(1) == b""
    ends.far.sendall(b"answer")
    assert receive(ends.near, 6) == b"answer"
    ends.far.close()
    assert ends.near.recv(1) == b""
    wait_until(lambda: links.open(LINK) == 0)


def test_a_target_that_is_down_resets_who_dials(links: RelayLinks) -> None:
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection(links.address(2, 1), timeout=SOON_S) as near,
    ):
        near.recv(1)
    assert not links.carries((2, 1), timeout_s=SOON_S)
    assert links.carries(LINK, timeout_s=SOON_S)


@pytest.mark.parametrize("toxic", [Stall, Hold])
def test_a_stalled_connection_is_half_open_and_goes_on(
    links: RelayLinks, ends: Ends, toxic: type[Toxic]
) -> None:
    links.set(LINK, toxic(direction=FORWARD))
    ends.near.sendall(b"held")
    wait_until(lambda: links.held(LINK, FORWARD) == 4)
    ends.far.sendall(b"passed")
    assert receive(ends.near, 6) == b"passed"
    assert is_quiet(ends.far)
    links.clear(LINK, toxic)
    assert receive(ends.far, 4) == b"held"
    assert links.counts(LINK, FORWARD).dropped == 0


def test_a_stall_can_be_both_ways(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Stall())
    ends.near.sendall(b"question")
    ends.far.sendall(b"answer")
    for way, size in ((FORWARD, 8), (BACKWARD, 6)):
        wait_until(partial(lambda way, size: links.held(LINK, way) == size, way, size))
    assert is_quiet(ends.near)
    assert is_quiet(ends.far)


def test_a_held_link_makes_no_connections(links: RelayLinks, target: socket.socket) -> None:
    links.set(LINK, Hold(direction=BACKWARD))
    assert not links.carries(LINK, timeout_s=0.05)
    with socket.create_connection(links.address(*LINK), timeout=SOON_S) as near:
        near.sendall(b"it waits")
        assert is_quiet(target)
        links.clear(LINK, Hold)
        with target.accept()[0] as far:
            far.settimeout(SOON_S)
            assert receive(far, 8) == b"it waits"


def test_who_gave_up_meanwhile_is_not_heard_of(links: RelayLinks, target: socket.socket) -> None:
    links.set(LINK, Hold())
    with socket.create_connection(links.address(*LINK), timeout=SOON_S) as near:
        near.sendall(b"too late")
    links.clear(LINK, Hold)
    with contextlib.closing(Ends(links, target)) as ends:
        ends.passes()
        assert links.counts(LINK, FORWARD).connections == 1


def test_a_stalled_link_makes_connections(links: RelayLinks, target: socket.socket) -> None:
    links.set(LINK, Stall())
    with contextlib.closing(Ends(links, target)) as ends:
        ends.near.sendall(b"half open")
        wait_until(lambda: links.held(LINK, FORWARD) == 9)
        assert is_quiet(ends.far)


def test_clearing_leaves_a_netsplit_alone(links: RelayLinks) -> None:
    links.set(LINK, Hold(), Latency(delay_s=1))
    links.clear(LINK)
    assert not links.carries(LINK, timeout_s=0.05)
    links.clear(LINK, Hold, BACKWARD)
    assert not links.carries(LINK, timeout_s=0.05)
    links.clear(LINK, Hold, FORWARD)
    assert links.carries(LINK, timeout_s=SOON_S)


def test_late_bytes_keep_their_order(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Latency(delay_s=0.02, jitter_s=0.02))
    sent = b"".join(b"%d " % n for n in range(200))
    for n in range(200):
        ends.near.sendall(b"%d " % n)
    assert receive(ends.far, len(sent)) == sent
    assert links.counts(LINK, FORWARD).delayed > 0


def test_bytes_are_late(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Latency(delay_s=60, direction=FORWARD))
    ends.near.sendall(b"slow")
    wait_until(lambda: links.held(LINK, FORWARD) == 4)
    ends.far.sendall(b"fast")
    assert receive(ends.near, 4) == b"fast"
    assert is_quiet(ends.far)


def test_a_slow_link_passes_all(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Bandwidth(bytes_per_s=100_000))
    data = bytes(range(256)) * 80
    ends.near.sendall(data)
    assert receive(ends.far, len(data)) == data
    counts = links.counts(LINK, FORWARD)
    assert len(data) // 2 < counts.delayed < len(data)


def test_slices_arrive_in_pieces(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Slicer(bytes_max=3, pause_s=0.001))
    data = b"in very small pieces indeed"
    ends.near.sendall(data)
    largest, got = 0, b""
    while len(got) < len(data):
        part = ends.far.recv(1_000)
        largest = max(largest, len(part))
        got += part
    assert got == data
    assert largest < len(data)


def test_a_reset_hits_both_ends_at_once(links: RelayLinks, ends: Ends) -> None:
    ends.passes()
    links.set(LINK, Reset())
    assert is_reset(ends.near)
    assert is_reset(ends.far)
    assert links.counts(LINK, FORWARD).resets == 1
    wait_until(lambda: links.open(LINK) == 0)


def test_a_reset_waits_for_so_many_bytes(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Reset(after_bytes=10, direction=BACKWARD))
    ends.passes(b"x" * 9)
    ends.near.sendall(b"y" * 20)
    assert receive(ends.far, 20) == b"y" * 20
    ends.far.sendall(b"z")
    with contextlib.suppress(ConnectionResetError):
        while ends.near.recv(1):
            pass
    assert is_reset(ends.far)
    assert links.counts(LINK, BACKWARD).resets == 1
    assert links.counts(LINK, FORWARD).resets == 0


def test_a_slow_close_is_an_end_that_comes_later(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, SlowClose(delay_s=60, direction=FORWARD))
    ends.near.sendall(b"last words")
    ends.near.shutdown(socket.SHUT_WR)
    assert receive(ends.far, 10) == b"last words"
    ends.far.sendall(b"more")
    assert receive(ends.near, 4) == b"more"
    assert is_quiet(ends.far)
    ends.far.shutdown(socket.SHUT_WR)
    assert ends.near.recv(1) == b"", "the other end of the stream is not slow"


def test_bytes_of_a_connection_that_is_lost_come_late(
    links: RelayLinks, target: socket.socket, ends: Ends
) -> None:
    ends.passes()
    links.set(LINK, Late(gather_s=SOON_S, delay_s=0.2))
    ends.near.sendall(b"old")
    assert is_reset(ends.near)
    with contextlib.closing(Ends(links, target)) as again:
        again.passes(b"new")
        assert is_quiet(ends.far), "the new connection's bytes were first"
        assert receive(ends.far, 3) == b"old"
        assert ends.far.recv(1) == b""
        counts = links.counts(LINK, FORWARD)
        assert (counts.late, counts.resets, counts.dropped) == (3, 1, 0)
        again.passes()


def test_late_bytes_that_nobody_takes_are_dropped(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Late(gather_s=SOON_S, delay_s=0.2))
    ends.near.sendall(b"old")
    assert is_reset(ends.near)
    ends.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    ends.far.close()
    wait_until(lambda: links.open(LINK) == 0)
    assert links.counts(LINK, FORWARD).passed + links.counts(LINK, FORWARD).dropped == 3


def test_an_idle_connection_is_not_made_late(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Late(gather_s=0, delay_s=SOON_S))
    ends.far.sendall(b"not what the dialler sends")
    receive(ends.near, 26)
    ends.passes()
    assert links.counts(LINK, FORWARD).late == links.counts(LINK, FORWARD).resets == 0


def test_bits_flip(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Garble(every_bytes=50, sealed_only=False, direction=FORWARD))
    ends.near.sendall(bytes(1_000))
    bits = sum(byte.bit_count() for byte in receive(ends.far, 1_000))
    assert bits == links.counts(LINK, FORWARD).changed > 0
    ends.far.sendall(bytes(1_000))
    assert receive(ends.near, 1_000) == bytes(1_000)
    assert links.counts(LINK, BACKWARD).changed == 0


def test_frames_are_sent_twice(links: RelayLinks, ends: Ends) -> None:
    links.set(LINK, Duplicate(every_bytes=1))
    frame = bytes.fromhex("10000000524c0e00000000000100000000000000")
    ends.near.sendall(frame)
    assert receive(ends.far, 40) == frame + frame
    assert links.counts(LINK, FORWARD).changed == 1


def test_the_same_seed_garbles_the_same(target: socket.socket) -> None:
    seen = []
    for _ in range(2):
        address = Address(*target.getsockname())
        with contextlib.closing(RelayLinks({1: address, 2: address}, clients=False)) as links:
            links.set(LINK, Garble(every_bytes=50, sealed_only=False))
            with contextlib.closing(Ends(links, target)) as ends:
                ends.near.sendall(bytes(1_000))
                seen.append(receive(ends.far, 1_000))
    assert seen[0] == seen[1]
    assert seen[0] != bytes(1_000)


def test_nothing_is_left_of_relays(target: socket.socket) -> None:
    before = threading.active_count()
    address = Address(*target.getsockname())
    links = RelayLinks({1: address, 2: address}, clients=True)
    with contextlib.closing(Ends(links, target)) as ends:
        links.set(LINK, Late(delay_s=SOON_S))
        links.close()
        links.close()
        assert is_reset(ends.near)
        assert is_reset(ends.far)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(links.address(*LINK), timeout=SOON_S)
    assert threading.active_count() == before


def test_sockets_are_made_where_the_dialler_is(target: socket.socket) -> None:
    places = []

    def socket_in(place: int) -> socket.socket:
        places.append(place)
        return socket.socket()

    address = Address(*target.getsockname())
    with contextlib.closing(
        RelayLinks({1: address, 2: address}, clients=True, socket_in=socket_in)
    ) as links:
        assert sorted(places) == [0, 0, 1, 2]
        with contextlib.closing(Ends(links, target)) as ends:
            ends.passes()
        assert places[4:] == [1]


def test_relays_that_cannot_listen_leave_no_thread() -> None:
    before = threading.active_count()
    nowhere = {n: Address("127.0.0.1", 1) for n in (1, 2)}
    with pytest.raises(OSError, match="assign"):
        RelayLinks(nowhere, clients=False, host="203.0.113.1")
    assert threading.active_count() == before


# -- toxics ----------------------------------------------------------------------------------------
#
# What comes out of toxics: sealed bytes found, bits flipped, frames doubled, pieces cut.


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


# -- certificates ----------------------------------------------------------------------------------
#
# Development certificates: what is in the files, and what is replaced when they are renewed.


def test_a_renewal_keeps_the_ca_and_replaces_all_else(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    every = (files.ca, files.ca_key, files.broker, files.broker_key, files.client, files.client_key)
    before = {path: path.read_bytes() for path in every}
    create(tmp_path / "tls")
    same = {path for path in every if path.read_bytes() == before[path]}
    assert same == {files.ca, files.ca_key}


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    for key in (files.ca_key, files.broker_key, files.client_key):
        assert key.stat().st_mode & 0o777 == 0o600
    assert files.directory.stat().st_mode & 0o777 == 0o700


def test_a_client_certificate_is_no_certificate_of_a_broker(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    server = tls.server_context(certificate=str(files.client), key=str(files.client_key))
    client = tls.client_context(ca=str(files.ca), check_hostname=False)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        one.do_handshake()


@pytest.mark.parametrize("host", ["", "a b", "b\u00fccher.example", "x" * 300])
def test_what_is_no_host_name_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a host name or an IP address"):
        create(tmp_path / "tls", hosts=[host])
    assert not (tmp_path / "tls").exists()


def test_a_ca_without_its_key_signs_nothing_and_stays(tmp_path: Path) -> None:
    files = create(tmp_path / "tls")
    ca = files.ca.read_bytes()
    files.ca_key.unlink()
    with pytest.raises(InvalidConfigError, match=r"Restore ca\.pem and ca\.key"):
        create(tmp_path / "tls")
    assert files.ca.read_bytes() == ca


# -- kafka wire ------------------------------------------------------------------------------------
#
# The client's side of Kafka's wire: requests and responses of any version, and record batches.


HERE = TopicPartition("t", 3)
RECORDS = [
    KafkaRecord(b"one", b"key", 5_000, (("name", b"x"), ("none", None))),
    KafkaRecord(None, None, 4_000),
    KafkaRecord(b"three" * 50, b"", 9_000),
]


def read(data: bytes) -> list[tuple[int, int, list[ConsumerRecord]]]:
    return list(batches_of(HERE, memoryview(data)))


@pytest.mark.parametrize("codec_", Codec)
def test_batches_are_read_as_clients_write_them(codec_: Codec) -> None:
    batch = kafka_resealed(kafka_batch(RECORDS, codec=codec_), base_offset=100, leader_epoch=7)
    expected = [
        ConsumerRecord(*HERE, 100 + row, *record[1::-1], record.headers, record.timestamp_ms, 7)
        for row, record in enumerate(RECORDS)
    ]
    assert read(batch) == [(103, 7, expected)]
    assert read(batch + batch[:-1]) == [(103, 7, expected)], "the rest of a batch is ignored"


def test_compacted_batches_and_append_times_are_read() -> None:
    body = encode([b"a", b"b"], timestamps_ms=1, offset_deltas=[1, 4], last_offset_delta=8)
    batch = seal(body) + body.payload
    leader, _ = stamp(
        parse_header(batch),
        base_offset=10,
        leader_epoch=2,
        append_timestamp_ms=77,
        log_append_time=True,
        previous_chain=0,
    )
    ((next_offset, epoch, records),) = read(b"".join(to_kafka(leader + batch[LEADER_BYTES:])))
    assert (next_offset, epoch) == (19, 2)
    assert [(each.offset, each.value, each.timestamp_ms) for each in records] == [
        (11, b"a", 77),
        (14, b"b", 77),
    ]


def test_a_corrupt_batch_is_noticed() -> None:
    batch = bytearray(kafka_batch(RECORDS))
    batch[-1] ^= 1
    with pytest.raises(AssertionError, match="CRC"):
        read(bytes(batch))


def test_a_request_has_a_header_and_a_response_is_read() -> None:
    sent = request(apis.HEARTBEAT, 4, correlation_id=9, client_id=b"me")
    assert struct.unpack_from(">ihhih2sb", sent) == (len(sent) - 4, 12, 4, 9, 2, b"me", 0)
    message = codec.structs("response", apis.HEARTBEAT.key).root(error_code=27)
    data = b"\0\0\0\x09\0" + encoded("response", apis.HEARTBEAT, 4, message)
    assert response(apis.HEARTBEAT, 4, struct.pack(">i", len(data)) + data) == (9, message)


# -- one connection --------------------------------------------------------------------------------

# One connection through a relay: how it ends, what it drops, and what it keeps in order.


class ConnectionEnds:
    """A connection in between two pairs of sockets, and what both its ends say."""

    def __init__(self) -> None:
        self.channels = {way: Channel(way, Random(0)) for way in DIRECTIONS}
        for channel in self.channels.values():
            channel.flowing.set()
        self.near, dialler = _joined()
        target, self.far = _joined()
        self.connection = ProxyConnection(self.channels, dialler, target)
        self.run = asyncio.get_running_loop().create_task(self.connection.run())

    async def send(self, end: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(end, data)

    async def receive(self, end: socket.socket, size: int) -> bytes:
        async with asyncio.timeout(SOON_S):
            return await asyncio.get_running_loop().sock_recv(end, size)


def _joined() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for end in (one, other):
        end.setblocking(False)
    return one, other


@contextlib.asynccontextmanager
async def connection_ends() -> AsyncIterator[ConnectionEnds]:
    made = ConnectionEnds()
    try:
        yield made
    finally:
        await cancel([made.run])
        made.near.close()
        made.far.close()


def played(test: Callable[[ConnectionEnds], Awaitable[None]]) -> Callable[[], None]:
    """The test, on a loop of its own."""

    async def play() -> None:
        async with connection_ends() as made:
            await test(made)

    def run() -> None:
        asyncio.run(play())

    run.__name__ = test.__name__
    return run


@played
async def test_it_ends_when_both_streams_have(made: ConnectionEnds) -> None:
    await made.send(made.near, b"there")
    assert await made.receive(made.far, 100) == b"there"
    made.near.shutdown(socket.SHUT_WR)
    assert await made.receive(made.far, 1) == b""
    assert not made.run.done()
    made.far.shutdown(socket.SHUT_WR)
    assert await made.receive(made.near, 1) == b""
    async with asyncio.timeout(SOON_S):
        await made.run


@played
async def test_it_is_reset_when_one_end_is(made: ConnectionEnds) -> None:
    close(made.near, is_reset=True)
    with pytest.raises(ConnectionResetError):
        await made.receive(made.far, 1)
    async with asyncio.timeout(SOON_S):
        await made.run


@played
async def test_what_never_went_on_is_dropped(made: ConnectionEnds) -> None:
    made.channels[FORWARD].toxics[Latency] = Latency(delay_s=60)
    await made.send(made.near, b"never")
    made.connection.reset()
    async with asyncio.timeout(SOON_S):
        await made.run
    counts = made.channels[FORWARD].counts
    assert (counts.dropped, counts.passed, counts.resets) == (5, 0, 1)
    assert made.channels[BACKWARD].counts.resets == 0


@played
async def test_slices_and_ends_keep_their_order(made: ConnectionEnds) -> None:
    made.channels[FORWARD].toxics |= {
        Slicer: Slicer(bytes_max=7, pause_s=0.0001),
        Latency: Latency(delay_s=0.001, jitter_s=0.001),
        SlowClose: SlowClose(delay_s=0.001),
    }
    data = bytes(range(256)) * 4
    await made.send(made.near, data)
    made.near.shutdown(socket.SHUT_WR)
    got = b""
    while part := await made.receive(made.far, 1 << 16):
        got += part
    assert got == data
    assert made.channels[FORWARD].counts.delayed == len(data)


def test_unread_bytes_are_counted() -> None:
    one, other = _joined()
    with one, other:
        other.setblocking(True)
        assert unread(other) == 0
        one.sendall(b"four")
        other.recv(1, socket.MSG_PEEK)
        assert unread(other) == 4


def test_a_socket_may_be_closed_twice() -> None:
    one, other = _joined()
    with other:
        close(one, is_reset=True)
        close(one, is_reset=True)
        other.setblocking(True)
        with pytest.raises(ConnectionResetError):
            other.recv(1)
