"""One question for all who came before it was asked, and none for those who came after."""

from __future__ import annotations

from raftlog.errors import NotLeaderError, RaftlogError
from raftlog.server.groups.confirming import RECENT_SECONDS, RENEWED_SECONDS, Confirmations
from raftlog.server.waiters import Acknowledge


class Asked:
    """Questions that wait for their answers, and what those who wait were told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.questions: list[Acknowledge] = []
        self.told: list[tuple[str, RaftlogError | None]] = []
        self.confirmations = Confirmations(self.questions.append, lambda: self.now)

    def confirm(self, name: str) -> None:
        self.confirmations.confirm(lambda error: self.told.append((name, error)))

    def answer(self, error: RaftlogError | None = None) -> None:
        self.questions.pop(0)(error)


def test_who_comes_while_a_question_is_under_way_waits_for_the_next() -> None:
    a = Asked()
    a.confirm("first")
    a.confirm("second")
    a.confirm("third")
    assert len(a.questions) == 1
    a.answer()
    assert a.told == [("first", None)]
    assert len(a.questions) == 1
    a.answer()
    assert a.told == [("first", None), ("second", None), ("third", None)]
    assert not a.questions


def test_an_error_is_told_to_those_who_waited_for_it() -> None:
    a = Asked()
    a.confirm("first")
    a.confirm("second")
    error = NotLeaderError("not any more")
    a.answer(error)
    a.answer()
    assert a.told == [("first", error), ("second", None)]


def test_who_asks_again_when_told_has_a_question_of_its_own() -> None:
    a = Asked()
    a.confirmations.confirm(lambda _error: a.confirm("again"))
    a.answer()
    assert (a.told, len(a.questions)) == ([], 1)
    a.answer()
    assert a.told == [("again", None)]


def test_it_is_recent_from_when_it_was_asked_and_renewed_in_time() -> None:
    a = Asked()
    assert not a.confirmations.is_recent
    assert not a.questions, "who needs to know asks"
    a.confirm("first")
    a.now += 1
    a.answer()
    a.now += RENEWED_SECONDS - 1.5
    assert a.confirmations.is_recent
    assert not a.questions
    a.now += 1
    assert a.confirmations.is_recent
    assert a.confirmations.is_recent
    assert len(a.questions) == 1, "one at a time"
    a.answer(NotLeaderError("not any more"))
    a.now += RECENT_SECONDS - RENEWED_SECONDS - 1
    assert a.confirmations.is_recent
    a.answer()
    a.now += RECENT_SECONDS
    assert a.confirmations.is_recent
    a.answer(NotLeaderError("not any more"))
    a.now += 0.1
    assert not a.confirmations.is_recent
