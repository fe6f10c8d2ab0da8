"""A broker's place in the cluster: it registers, is let in, and others are fenced when gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from raftlog.config import Address
from raftlog.consensus import Applied
from raftlog.replication.cluster_commands import (
    ClusterCommand,
    DecommissionBroker,
    FenceBroker,
    RegisterBroker,
    RemoveBroker,
    SetKafkaAddress,
    UnfenceBroker,
    decode_command,
    founding_state,
)
from raftlog.replication.cluster_state import Refused
from raftlog.server.cluster.membership import CLUSTER_GROUP, Incarnation, Membership
from tests.server.cluster.paper import DISKS, Scene, play, status

SESSION_S = 3.0


class Joining:
    """This broker is 1; voters are 1, 2 and 3."""

    def __init__(self, s: Scene, *, leads: bool = True) -> None:
        self.s = s
        self.is_ready = True
        self.address = Address("h", 1)
        self.kafka_address = Address("", 0)
        s.plane.machines[CLUSTER_GROUP] = s.machine
        s.plane.statuses[CLUSTER_GROUP] = status(voters={b: DISKS[b] for b in (1, 2, 3)})
        if leads:
            s.plane.leading.add(CLUSTER_GROUP)
        self.membership = Membership(
            1,
            s.me,
            rack="r1",
            voters=[1, 2, 3],
            address=lambda: self.address,
            kafka_address=lambda: self.kafka_address,
            machine=s.machine,
            plane=s.plane.as_plane,
            liveness=s.liveness,
            session_seconds=SESSION_S,
            is_ready=lambda: self.is_ready,
            now=s.loop.time,
        )

    def wants(self) -> ClusterCommand | None:
        """What it proposes when it looks; None for nothing."""
        self.membership.poll()
        proposals = self.s.plane.proposals
        assert len(proposals) <= 1, "one at a time"
        return decode_command(proposals[0].command) if proposals else None

    def agree(self) -> Any:
        return self.s.plane.agree()


def named(s: Scene) -> None:
    s.machine.restore(founding_state("c"))


def test_from_nothing_to_a_member() -> None:
    async def test(s: Scene) -> None:
        j = Joining(s)
        assert j.wants() is None, "there is no cluster yet"
        named(s)
        assert not j.membership.is_registered
        registration = j.wants()
        assert registration == RegisterBroker(
            id=1, host="h", port=1, rack="r1", directory_id=DISKS[1], boot=1
        )
        j.agree()
        assert j.membership.is_registered
        assert not j.membership.is_in, "it is fenced until it serves"
        assert isinstance(j.wants(), UnfenceBroker)
        j.agree()
        assert j.membership.is_in
        assert j.wants() is None

    play(test)


def test_its_address_for_kafka_clients_is_set_before_it_serves() -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s)
        j.kafka_address = Address("outside", 9092)
        assert isinstance(j.wants(), RegisterBroker)
        j.agree()
        epoch = s.machine.brokers[1].broker_epoch
        assert j.wants() == SetKafkaAddress(id=1, broker_epoch=epoch, host="outside", port=9092)
        j.agree()
        assert isinstance(j.wants(), UnfenceBroker)
        j.agree()
        assert j.wants() is None
        j.kafka_address = Address("", 0)
        assert isinstance(j.wants(), SetKafkaAddress), "kafka.listen was removed"

    play(test)


def test_it_is_let_in_when_it_is_ready_and_looks_after_others_until_then() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        s.command(FenceBroker(id=1, broker_epoch=s.machine.brokers[1].broker_epoch))
        j = Joining(s)
        j.is_ready = False
        j.address = Address("h", 1)
        s.command(RegisterBroker(id=1, host="h", port=1, rack="r1", directory_id=DISKS[1], boot=1))
        s.see(2)
        assert j.wants() is None
        s.lose(2)
        await asyncio.sleep(SESSION_S)
        fence = j.wants()
        assert isinstance(fence, FenceBroker)
        assert fence.id == 2
        j.agree()
        j.is_ready = True
        assert isinstance(j.wants(), UnfenceBroker)

    play(test)


@pytest.mark.parametrize("change", ["boot", "disk", "address"])
def test_it_registers_anew_in_each_run(change: str) -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        assert j.membership.is_registered
        if change == "boot":
            j.membership._me = Incarnation(DISKS[1], 2)
        elif change == "disk":
            j.membership._me = Incarnation("new", 1)
        else:
            j.address = Address("elsewhere", 1)
        assert not j.membership.is_registered
        assert not j.membership.is_in
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_a_silent_broker_is_fenced_by_the_leader_after_a_sessions_time() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2, 3)
        j = Joining(s)
        s.see(2, 3)
        s.lose(3)
        await asyncio.sleep(SESSION_S * 0.9)
        assert j.wants() is None
        await asyncio.sleep(SESSION_S * 0.2)
        fence = j.wants()
        assert fence == FenceBroker(id=3, broker_epoch=s.machine.brokers[3].broker_epoch)
        j.agree()
        assert j.wants() is None, "fenced once"

    play(test)


def test_who_does_not_lead_fences_nobody() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s, leads=False)
        await asyncio.sleep(60)
        assert j.wants() is None

    play(test)


def test_a_broker_that_came_back_meanwhile_is_not_fenced_by_the_old_word() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s)
        await asyncio.sleep(SESSION_S)
        assert isinstance(j.wants(), FenceBroker)
        epoch = s.command(
            RegisterBroker(id=2, host="h", port=2, rack="", directory_id=DISKS[2], boot=2)
        )
        s.command(UnfenceBroker(id=2, broker_epoch=epoch))
        assert isinstance(j.agree(), Refused)
        assert not s.machine.brokers[2].fenced

    play(test)


def test_who_is_there_on_another_disk_has_its_old_registration_fenced() -> None:
    """Else the new one is refused for ever: the link is up, so nobody is silent."""

    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s)
        s.liveness.link_up(2, Incarnation("wiped", 1))
        assert j.wants() == FenceBroker(id=2, broker_epoch=s.machine.brokers[2].broker_epoch)

    play(test)


def test_a_wiped_broker_waits_until_its_old_registration_is_fenced() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        j.membership._me = Incarnation("wiped", 1)
        assert isinstance(j.wants(), RegisterBroker)
        assert isinstance(j.agree(), Refused)
        assert "is in use by the live broker at" in j.membership.refusal
        for _ in range(5):
            assert j.wants() is None, "nothing has changed: the same again would be refused"
        s.command(FenceBroker(id=1, broker_epoch=s.machine.brokers[1].broker_epoch))
        assert isinstance(j.wants(), RegisterBroker)
        j.agree()
        assert j.membership.is_registered
        assert j.membership.refusal == ""

    play(test)


def test_a_registration_that_an_older_state_refused_is_repeated_after_a_session() -> None:
    """This broker may know a newer state by then, which does not change any more."""

    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        j.membership._me = Incarnation("wiped", 1)
        j.wants()
        assert isinstance(j.agree(), Refused)
        assert j.wants() is None
        await asyncio.sleep(SESSION_S)
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_a_wiped_broker_that_leads_the_group_fences_its_own_old_registration() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        s.me = Incarnation("wiped", 1)
        s.liveness.link_up(1, s.me)
        j = Joining(s)
        j.membership._me = s.me
        assert isinstance(j.wants(), RegisterBroker)
        assert isinstance(j.agree(), Refused)
        assert isinstance(j.wants(), FenceBroker)
        j.agree()
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1)
        j = Joining(s, leads=False)
        j.membership._me = Incarnation("wiped", 1)
        for other in (2, 3):
            j.wants()
            j.agree()
            s.register(other)
        assert len(caplog.records) == 1

    with caplog.at_level(logging.ERROR):
        play(test)


@pytest.mark.parametrize("outcome", ["refuse", "lose"])
def test_what_comes_to_nothing_is_proposed_again_at_the_next_look(outcome: str) -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s, leads=False)
        assert isinstance(j.wants(), RegisterBroker)
        getattr(s.plane, outcome)()
        assert s.plane.proposals == [], "not at once: that would never end"
        assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_one_proposal_at_a_time() -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s)
        for _ in range(3):
            assert isinstance(j.wants(), RegisterBroker)

    play(test)


def test_who_leaves_asks_for_nothing() -> None:
    async def test(s: Scene) -> None:
        named(s)
        j = Joining(s)
        j.membership.is_leaving = True
        assert j.wants() is None

    play(test)


def test_a_voter_on_a_new_disk_votes_again_from_the_next_generation_on() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2, 3)
        j = Joining(s)
        s.see(2, 3)
        s.command(FenceBroker(id=3, broker_epoch=s.machine.brokers[3].broker_epoch))
        s.liveness.link_up(3, Incarnation("wiped", 1))
        j.membership.poll()
        (seal,) = s.plane.proposals
        assert (seal.group_id, seal.seal) == (
            CLUSTER_GROUP,
            {1: DISKS[1], 2: DISKS[2], 3: "wiped"},
        )
        j.membership.poll()
        assert len(s.plane.proposals) == 1
        s.plane.agree()
        j.membership.poll()
        assert s.plane.proposals == []

    play(test)


def test_a_fourth_broker_gets_no_vote_and_a_fifth_does() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2, 3, 4)
        j = Joining(s)
        s.see(2, 3, 4)
        assert j.wants() is None
        s.register(5)
        s.see(5)
        j.membership.poll()
        assert s.plane.proposals[0].seal == {b: DISKS[b] for b in (1, 2, 3, 4)}, "one at a time"

    play(test)


def test_a_broker_that_was_removed_asks_for_nothing() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        s.command(DecommissionBroker(id=1))
        s.command(RemoveBroker(id=1, broker_epoch=s.machine.brokers[1].broker_epoch))
        assert Joining(s, leads=False).wants() is None

    play(test)


def test_a_seal_that_fails_is_tried_again() -> None:
    async def test(s: Scene) -> None:
        named(s)
        s.register(1, 2)
        j = Joining(s)
        s.see(2)
        s.plane.statuses[CLUSTER_GROUP] = status(voters={1: DISKS[1]})
        j.membership.poll()
        s.plane.refuse()
        j.membership.poll()
        assert s.plane.proposals[0].seal == {1: DISKS[1], 2: DISKS[2]}
        s.plane.proposals.pop().done(Applied(1))

    play(test)
