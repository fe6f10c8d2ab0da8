"""How a proposal ends: once, and saying no more than is known."""

from __future__ import annotations

import pytest

from raftlog.consensus import Applied, NotProposed, Outcome, Unknown
from raftlog.consensus.hosted_group import NEVER, Proposal, Proposals

LEADER, TERM = 2, 5


class Rig:
    """Proposals 1, 2, ... with deadlines 11, 12, ..., and what they ended with."""

    def __init__(self, count: int = 3) -> None:
        self.ended: dict[int, list[Outcome]] = {number: [] for number in range(1, count + 1)}
        self.proposals = Proposals(lambda done, outcome: done(outcome))
        self.all = {
            number: Proposal(number, b"", self.ended[number].append, 10.0 + number)
            for number in self.ended
        }
        for proposal in self.all.values():
            self.proposals.add(proposal)

    def kinds(self) -> list[str]:
        assert all(len(outcomes) <= 1 for outcomes in self.ended.values()), "once"
        return ["".join(type(each).__name__ for each in ends) for ends in self.ended.values()]

    def waiting(self, now: float = 0.0) -> list[int]:
        return [proposal.number for proposal in self.proposals.waiting(now)]


def test_proposals_wait_in_order_of_arrival() -> None:
    rig = Rig()
    assert rig.waiting() == [1, 2, 3]
    rig.proposals.placed(rig.all[2])
    assert rig.waiting() == [1, 3]
    assert len(rig.proposals) == 3


def test_the_end_comes_once() -> None:
    rig = Rig()
    rig.proposals.finish(rig.all[1], Applied(1))
    rig.proposals.finish(rig.all[1], Unknown(""))
    rig.proposals.close("")
    assert rig.kinds() == ["Applied", "NotProposed", "NotProposed"]


def test_what_waited_too_long_had_no_effect_and_what_was_sent_may_have() -> None:
    rig = Rig()
    rig.proposals.placed(rig.all[2])
    rig.proposals.expire(11.5)
    assert rig.kinds() == ["NotProposed", "", ""]
    rig.proposals.expire(20.0)
    assert rig.kinds() == ["NotProposed", "Unknown", "NotProposed"]


def test_it_is_due_at_the_first_deadline() -> None:
    rig = Rig()
    assert rig.proposals.due() == 11.0
    rig.proposals.placed(rig.all[1])
    assert rig.proposals.due() == 11.0
    rig.proposals.close("")
    assert rig.proposals.due() == NEVER


def test_a_refused_proposal_waits_again_in_its_place_but_not_at_once() -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    rig.proposals.refused(1, LEADER, not_before=5.0)
    assert rig.proposals.due() == 5.0
    assert rig.waiting(4.0) == [2, 3]
    assert rig.waiting(5.0) == [1, 2, 3]
    assert rig.proposals.due() == 11.0, "it is asked for once, then it waits for something else"


def test_only_the_leader_that_was_asked_answers_once() -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    assert rig.proposals.answered(1, LEADER + 1) is None
    assert rig.proposals.answered(99, LEADER) is None
    assert rig.proposals.answered(2, LEADER) is None, "it was never sent"
    assert rig.proposals.answered(1, LEADER) is rig.all[1]
    assert rig.proposals.answered(1, LEADER) is None
    rig.proposals.refused(1, LEADER, not_before=0.0)
    assert rig.waiting() == [2, 3], "a refusal after that changes nothing"


@pytest.mark.parametrize(
    ("leader", "term", "kind"),
    [(LEADER, TERM, ""), (LEADER + 1, TERM, "Unknown"), (LEADER, TERM + 1, "Unknown"),
     (None, TERM, "Unknown")],
)  # fmt: skip
def test_what_was_forwarded_to_another_leader_is_unknown(
    leader: int | None, term: int, kind: str
) -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    rig.proposals.placed(rig.all[2])
    rig.proposals.leader_is(leader, term)
    assert rig.kinds() == [kind, "", ""]


def test_what_was_forwarded_over_a_lost_link_is_unknown() -> None:
    rig = Rig()
    rig.proposals.forwarded(rig.all[1], LEADER, TERM)
    rig.proposals.forwarded(rig.all[2], LEADER + 1, TERM)
    rig.proposals.link_lost(LEADER)
    assert rig.kinds() == ["Unknown", "", ""]


@pytest.mark.parametrize(("is_applied", "placed"), [(True, NotProposed), (False, Unknown)])
def test_the_end_of_a_generation(is_applied: bool, placed: type[Outcome]) -> None:
    rig = Rig(4)
    rig.proposals.placed(rig.all[1])
    rig.proposals.forwarded(rig.all[2], LEADER, TERM)
    rig.all[3].generation = 7
    rig.proposals.generation_ended(7, is_applied=is_applied)
    assert rig.kinds() == [placed.__name__, "Unknown", "NotProposed", ""]
    assert rig.waiting() == [4], "that one waits for the next"


def test_closing_ends_all() -> None:
    rig = Rig()
    rig.proposals.placed(rig.all[1])
    rig.proposals.close("closed")
    assert rig.kinds() == ["Unknown", "NotProposed", "NotProposed"]
    assert not rig.proposals
