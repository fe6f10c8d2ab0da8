"""One question for all who came before it was asked, and none for those who came after."""

from __future__ import annotations

from raftlog.errors import NotLeaderError, RaftlogError
from raftlog.server.scheduling import Acknowledge, Rounds


class Asked:
    """Questions that wait for their answers, and what those who wait were told."""

    def __init__(self) -> None:
        self.questions: list[Acknowledge] = []
        self.told: list[tuple[str, RaftlogError | None]] = []
        self.rounds = Rounds(self.questions.append)

    def ask(self, name: str, since: int | None = None) -> None:
        self.rounds.ask(lambda error: self.told.append((name, error)), since=since)

    def answer(self, error: RaftlogError | None = None) -> None:
        self.questions.pop(0)(error)


def test_who_comes_while_a_question_is_under_way_waits_for_the_next() -> None:
    a = Asked()
    a.ask("first")
    a.ask("second")
    a.ask("third")
    assert len(a.questions) == 1
    a.answer()
    assert a.told == [("first", None)]
    assert len(a.questions) == 1
    a.answer()
    assert a.told == [("first", None), ("second", None), ("third", None)]
    assert not a.questions


def test_an_error_is_told_to_those_who_waited_for_it() -> None:
    a = Asked()
    a.ask("first")
    a.ask("second")
    error = NotLeaderError("not any more")
    a.answer(error)
    a.answer()
    assert a.told == [("first", error), ("second", None)]


def test_who_asks_again_when_told_has_a_question_of_its_own() -> None:
    a = Asked()
    a.rounds.ask(lambda _error: a.ask("again"))
    a.answer()
    assert (a.told, len(a.questions)) == ([], 1)
    a.answer()
    assert a.told == [("again", None)]


def test_an_answer_counts_for_all_that_came_before_its_question() -> None:
    a = Asked()
    before = a.rounds.mark
    a.ask("first")
    during = a.rounds.mark
    a.answer()
    a.ask("from before", since=before)
    assert a.told == [("first", None), ("from before", None)]
    assert not a.questions
    a.ask("from the time it was out", since=during)
    assert len(a.questions) == 1
    a.answer()
    a.ask("now", since=a.rounds.mark)
    assert len(a.questions) == 1
    assert [name for name, _ in a.told] == ["first", "from before", "from the time it was out"]


def test_an_error_counts_for_nobody_else() -> None:
    a = Asked()
    before = a.rounds.mark
    a.ask("first")
    a.answer(NotLeaderError("not any more"))
    a.ask("second", since=before)
    assert len(a.questions) == 1
