"""What is done to bytes shows in the effect, and is over when it ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from raftlog.config.address import Address
from raftlog.protocol.connection import FRAME, LENGTH_MIN, MAGIC
from raftlog.testing.cluster import wait_until
from raftlog.testing.relays import BACKWARD, Hold, RelayLinks
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.network import DRAWS, LINKS_KINDS, LinksNemesis
from raftlog_jepsen.net import Net, NoNet, RelayNet
from raftlog_jepsen.plan import Shape, TopicShape

SOON_S = 20.0
SHAPE = Shape(
    brokers=3, topics=(TopicShape(name="t", partitions=1, replication_factor=3, min_isr=2),)
)
LINK = (1, 2)
ANSWER = FRAME.pack(LENGTH_MIN + 100, MAGIC, 0, 0, 0, 0, 0) + bytes(100)


@dataclass
class FakeCluster:
    net: Net


class Echo:
    """Sends what comes back, in the shape of answers, on every connection."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self.server.getsockname())
        self._open = [self.server]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                there, _ = self.server.accept()
                self._open.append(there)
                self._threads.append(threading.Thread(target=self._echo, args=(there,)))
                self._threads[-1].start()

    def _echo(self, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while there.recv(len(ANSWER)):
                there.sendall(ANSWER)

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()


class Traffic:
    """Asks, waits for the answer, and asks again; dials again when it loses the connection."""

    def __init__(self, links: RelayLinks) -> None:
        self._address = links.address(*LINK)
        self._end = threading.Event()
        self._near: socket.socket | None = None
        self._thread = threading.Thread(target=self._go)
        self._thread.start()
        wait_until(lambda: links.counts(LINK, BACKWARD).passed > 0)

    def _go(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self._address) as near:
                self._near = near
                while not self._end.is_set() and near.send(ANSWER) and near.recv(len(ANSWER)):
                    pass

    def close(self) -> None:
        self._end.set()
        while self._thread.is_alive():
            near = self._near
            if near is not None:
                with contextlib.suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)
            self._thread.join(0.01)


@pytest.fixture
def links() -> Iterator[RelayLinks]:
    with contextlib.ExitStack() as stack:
        echoes = {n: stack.enter_context(contextlib.closing(Echo())) for n in SHAPE.broker_ids}
        made = RelayLinks({n: echo.address for n, echo in echoes.items()}, clients=True)
        stack.callback(made.close)
        yield made


@pytest.fixture
def nemesis(links: RelayLinks) -> LinksNemesis:
    return LinksNemesis(FakeCluster(RelayNet(links)))


def fault(kind: str, *toxics: dict[str, object], pairs: list[list[int]] | None = None) -> FaultPlan:
    listed = [{"direction": None} | toxic for toxic in toxics]
    return FaultPlan(kind=kind, args={"pairs": pairs or [list(LINK)], "toxics": listed})


EACH = [
    fault("link-delay", {"toxic": "Latency", "delay_s": 0.01, "jitter_s": 0.005}),
    fault("link-delay", {"toxic": "Bandwidth", "bytes_per_s": 10_000}),
    fault("link-delay", {"toxic": "Slicer", "bytes_max": 10, "pause_s": 0.0001}),
    fault("link-stall", {"toxic": "Stall"}),
    fault("link-stall", {"toxic": "Stall", "direction": "backward"}),
    fault("link-reset", {"toxic": "Reset", "after_bytes": 0}),
    fault("link-reset", {"toxic": "Reset", "after_bytes": 1_000, "direction": "backward"}),
    fault("link-garble", {"toxic": "Garble", "every_bytes": 500, "sealed_only": True}),
    fault("link-garble", {"toxic": "Duplicate", "every_bytes": 500}),
    fault("link-late", {"toxic": "Late", "gather_s": 1.0, "delay_s": 0.05}),
]


@pytest.mark.parametrize("plan", EACH, ids=lambda plan: plan.args["toxics"][0]["toxic"])
def test_what_a_toxic_does_is_seen(
    nemesis: LinksNemesis, links: RelayLinks, plan: FaultPlan
) -> None:
    with contextlib.closing(Traffic(links)):
        effect = nemesis.begin(plan)
        assert effect.injected, effect
        assert nemesis.end(plan).injected
        assert not nemesis.end(plan).injected, "it has ended already"
    with contextlib.closing(Traffic(links)):
        idle = fault("link-stall", {"toxic": "Stall"}, pairs=[[2, 1]])
        assert not nemesis.end(idle).injected


def test_where_nothing_passes_nothing_is_harmed(
    nemesis: LinksNemesis, links: RelayLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_jepsen.nemesis.network.EFFECT_TIMEOUT_S", 0.0)
    with contextlib.closing(Traffic(links)):
        for plan in EACH:
            elsewhere = FaultPlan(kind=plan.kind, args={**plan.args, "pairs": [[1, 3], [0, 1]]})
            assert not nemesis.begin(elsewhere).injected, plan
            assert not nemesis.end(elsewhere).injected


def test_connections_work_again_after_the_end(nemesis: LinksNemesis, links: RelayLinks) -> None:
    plan = fault("link-reset", {"toxic": "Reset", "after_bytes": 1})
    with contextlib.closing(Traffic(links)):
        assert nemesis.begin(plan).injected
        nemesis.end(plan)
    asks(links)


def asks(links: RelayLinks) -> None:
    with socket.create_connection(links.address(*LINK), timeout=SOON_S) as near:
        for _ in range(10):
            near.sendall(ANSWER)
            got = b""
            while len(got) < len(ANSWER):
                got += near.recv(len(ANSWER))
            assert got == ANSWER


def test_a_reset_of_what_is_open_is_over_at_once(nemesis: LinksNemesis, links: RelayLinks) -> None:
    plan = fault("link-reset", {"toxic": "Reset", "after_bytes": 0})
    with contextlib.closing(Traffic(links)):
        effect = nemesis.begin(plan)
        resets = effect.seen["resets"]
        assert resets in {1, 2}, "of what was open then, which may be an old and a new connection"
        asks(links)
        assert nemesis.end(plan).seen["resets"] == resets


def test_healing_takes_all_toxics_away_but_no_netsplit(
    nemesis: LinksNemesis, links: RelayLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_jepsen.nemesis.network.EFFECT_TIMEOUT_S", 0.0)
    links.set((2, 3), Hold())
    for plan in EACH:
        nemesis.begin(plan)
    nemesis.heal()
    nemesis.heal()
    asks(links)
    assert not links.carries((2, 3), timeout_s=0.05)


@pytest.mark.parametrize("kind", LINKS_KINDS)
def test_what_is_drawn_can_be_done(
    nemesis: LinksNemesis, links: RelayLinks, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_jepsen.nemesis.network.EFFECT_TIMEOUT_S", 0.0)
    random, again = Random(3), Random(3)
    sizes = set()
    for _ in range(100):
        plan = nemesis.draw(kind, random, SHAPE)
        assert plan == nemesis.draw(kind, again, SHAPE)
        assert {tuple(pair) for pair in plan.args["pairs"]} <= set(links.pairs)
        assert set(plan.targets) == {b for pair in plan.args["pairs"] for b in pair} - {0}
        sizes.add(len(plan.args["pairs"]))
        nemesis.begin(plan)
        assert "why" not in nemesis.end(plan).seen
    assert sizes == {1, 3, 4, 6}
    asks(links)


def test_only_what_is_sealed_is_garbled() -> None:
    random = Random(0)
    toxics = [toxic for _ in range(100) for toxic in DRAWS["link-garble"](random)[0]]
    assert all(getattr(toxic, "sealed_only", True) for toxic in toxics)


def test_why_not(nemesis: LinksNemesis) -> None:
    assert all(nemesis.why_not(kind) == "" for kind in LINKS_KINDS)
    assert "not a kind of this nemesis" in nemesis.why_not("kill")
    without = LinksNemesis(FakeCluster(NoNet({})))
    assert "no relays" in without.why_not("link-delay")
    without.heal()
    with pytest.raises(OSError, match="no relays"):
        without.begin(EACH[0])


def test_relays_that_are_not_there_are_not_harmed(nemesis: LinksNemesis) -> None:
    plan = fault("link-stall", {"toxic": "Stall"}, pairs=[[7, 8]])
    assert not nemesis.begin(plan).injected
    assert not nemesis.end(plan).injected
