"""The words that nemeses share."""

from __future__ import annotations

from raftlog.jepsen_like.nemesis.base import FaultPlan, not_injected


def test_what_was_not_injected_says_why() -> None:
    effect = not_injected("it needs root")
    assert not effect.injected
    assert effect.seen == {"why": "it needs root"}


def test_a_fault_is_harmless_unless_it_says_otherwise() -> None:
    fault = FaultPlan(kind="pause")
    assert not fault.lossy
    assert fault.expects == "available"
