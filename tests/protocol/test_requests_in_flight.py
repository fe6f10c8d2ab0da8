"""A broker's connection takes so many requests at a time, loses none, and keeps their order."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.protocol.connection import Broken, Refusal, Request, ServerConnectionState, State
from tests.protocol.link import cuts, deliver
from tests.protocol.pair import NO_BROKERS, pipelined, raw


def test_a_broker_pauses_at_its_limit_and_resumes_at_half_of_it() -> None:
    server = ServerConnectionState()
    most = limits.REQUESTS_IN_FLIGHT_MAX
    requests = deliver(pipelined(most + 10), server)
    assert len(requests) == server.in_flight == most
    assert server.paused
    for request in requests[: most // 2 - 1]:
        server.reply(request, NO_BROKERS)
        assert server.resume() == []
    server.reply(requests[most // 2 - 1], NO_BROKERS)
    late = server.resume()
    assert [event.correlation_id for event in late if isinstance(event, Request)] == list(
        range(most, most + 10)
    )
    assert (server.state, server.bytes_held) == (State.OPEN, 0)


def test_what_is_in_flight_already_counts() -> None:
    server = ServerConnectionState(requests_in_flight_max=4)
    assert len(deliver(pipelined(7)[: 3 * 21], server)) == 3
    assert not server.paused
    assert len(deliver(pipelined(7)[3 * 21 :], server)) == 1
    assert (server.in_flight, server.paused) == (4, True)


def test_a_broker_without_spare_room_pauses_even_with_nothing_held_back() -> None:
    server = ServerConnectionState(requests_in_flight_max=1)
    (request,) = deliver(raw(1, b"\x80"), server)
    assert server.paused
    server.reply(request, NO_BROKERS)
    assert server.resume() == []
    assert not server.paused


def test_refusals_take_no_room() -> None:
    server = ServerConnectionState(requests_in_flight_max=2)
    bad = raw(999, b"\x80")
    good = raw(1, b"\x80", correlation_id=1)
    events = deliver(bad * 5 + good + bad, server)
    assert [type(event) for event in events] == [Refusal] * 5 + [Request, Refusal]
    assert not server.paused


def test_what_was_held_back_may_be_broken() -> None:
    server = ServerConnectionState(requests_in_flight_max=1)
    (request,) = deliver(pipelined(2) + bytes(20), server)
    server.reply(request, NO_BROKERS)
    (second, broken) = server.resume()
    assert (type(second), type(broken)) == (Request, Broken)
    assert server.state is State.ERROR


@given(
    st.lists(st.sampled_from(["good", "bad"]), max_size=20),
    st.integers(1, 4),
    st.lists(st.integers(0, 3), min_size=1),
    cuts(),
)
def test_every_request_comes_once_in_order_and_within_the_limit(
    kinds: list[str], most: int, turns: list[int], sizes: list[int]
) -> None:
    """An owner that reads when it may, answers a few at a time, and resumes after each."""
    server = ServerConnectionState(requests_in_flight_max=most, scratch=memoryview(bytearray(64)))
    stream = b"".join(
        raw(1 if kind == "good" else 999, b"\x80", correlation_id=number)
        for number, kind in enumerate(kinds)
    )
    seen: list[int] = []
    open_requests: list[Request] = []
    size = cycle(sizes or [64])

    def take(events: list[Any]) -> None:
        seen.extend(event.correlation_id for event in events)
        open_requests.extend(event for event in events if isinstance(event, Request))
        assert len(seen) <= len(kinds)
        assert server.in_flight == len(open_requests) <= most

    for turn in cycle(turns):
        if stream and not server.paused:
            view = server.get_buffer()
            count = min(len(view), len(stream), next(size))
            view[:count] = stream[:count]
            stream = stream[count:]
            take(server.received(count))
        answers = turn if stream and not server.paused else max(turn, 1)
        for _ in range(min(answers, len(open_requests))):
            server.reply(open_requests.pop(0), NO_BROKERS)
            if server.paused:
                take(server.resume())
        if not stream and not open_requests:
            break
    assert seen == list(range(len(kinds)))
    assert (server.state, server.bytes_held) == (State.OPEN, 0)
