"""Interrupting an application that reads, and what it has in hand at that moment."""

from __future__ import annotations

import pytest

from raftlog.client.subscription import Subscription
from tests.client.samples import consumer_settings
from tests.client.test_subscription import A, B, at, bring, decode, read, subscription, wants


def test_an_iteration_ends_between_two_records_and_nothing_is_skipped() -> None:
    made = subscription()
    at(made, 0)
    bring(made, 6)
    chunk = made.next_chunk()
    assert chunk is not None
    decode(chunk)
    run = made.begin_run(chunk)
    assert run is not None
    seen = []
    for record in run:
        made.part(A).position = record.offset + 1
        seen.append(record.offset)
        if record.offset == 2:
            made.interrupt()
    assert (seen, made.part(A).processed) == ([0, 1, 2], 2)
    assert made.begin_run(chunk) is None, "there is something to do first"
    made.interrupted = False
    made.all_processed()
    assert made.part(A).processed == 3
    again = made.begin_run(chunk)
    assert again is not None
    assert [record.offset for record in again] == [3, 4, 5]


def test_a_wait_ends_when_there_is_something_to_do() -> None:
    made = subscription()
    woken: list[str] = []
    made.when_ready(lambda: woken.append("waiting"))
    made.interrupt()
    made.when_ready(lambda: woken.append("at once"))
    assert woken == ["waiting", "at once"]
    made.interrupted = False
    made.when_ready(lambda: woken.append("never"))
    assert woken == ["waiting", "at once"]


def test_closing_ends_an_iteration() -> None:
    made = subscription()
    at(made, 0)
    bring(made, 3)
    chunk = made.next_chunk()
    assert chunk is not None
    decode(chunk)
    run = made.begin_run(chunk)
    assert run is not None
    next(run)
    made.shut()
    assert list(run) == []


def test_what_was_handed_out_is_unprocessed_until_more_is_asked_for() -> None:
    made = subscription(A, B)
    at(made, 0, A)
    at(made, 0, B)
    bring(made, 3, tp=A)
    for _ in range(2):
        made.hand_out(made.part(A))
        read(made, 1)
    assert (made.part(A).position, made.part(A).processed) == (2, 0)
    made.all_processed()
    assert made.part(A).processed == 2
    made.hand_out(made.part(A))
    read(made, 1)
    made.forget_unprocessed()
    assert (made.part(A).position, made.part(A).processed) == (2, 2)
    assert wants(made)[A] == 2, "it is left to whoever reads next"


@pytest.mark.parametrize("how", ["seek", "reset"])
def test_moving_is_a_word_about_what_was_handed_out(how: str) -> None:
    made = subscription()
    at(made, 0)
    bring(made, 3)
    made.hand_out(made.part(A))
    read(made, 3)
    if how == "seek":
        made.seek(A, 1)
    else:
        made.reset(A, "latest")
    made.forget_unprocessed()
    assert made.part(A).processed == (1 if how == "seek" else None)


def test_partitions_come_and_go_one_by_one() -> None:
    made = Subscription(consumer_settings(auto_offset_reset="latest"), start="committed")
    made.assign([A])
    assert (made.part(A).reset, made.part(A).policy) == ("committed", "latest")
    made.add_assigned({A: "id", B: "id"}, [])
    assert (made.part(B).reset, made.part(B).policy) == ("committed", "latest")
    assert made.part(B).assigned_id == "id"
    kept = made.part(B)
    made.remove([A])
    made.remove([A])
    assert list(made.parts) == [B]
    assert made.part(B) is kept
    made.add_assigned({A: "id"}, [A])
    assert (made.part(A).reset, made.part(A).policy) == ("committed", "earliest")
