"""Raw sockets that speak to a broker as if they were peers: what is proved counts, nothing else.

A bystander, a sound peer of the same broker, has its link up throughout, and its envelopes arrive
after every offence.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.config import Address
from raftlog.consensus import Heard
from raftlog.errors import (
    AccessDeniedError,
    BrokerIdInUseError,
    FrameError,
    InvalidRequestError,
    RaftlogError,
    StaleBrokerError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import security
from raftlog.protocol.api import Api
from raftlog.protocol.connection import (
    FRAME,
    MAGIC,
    Broken,
    ClientConnectionState,
    Request,
    Response,
)
from raftlog.protocol.peer import (
    ENVELOPE_BYTES_MAX,
    DurablePosition,
    EncodedPartitionState,
    PartitionStatesRequest,
    PeerHelloRequest,
    PeerHelloResponse,
    PeerIdentity,
    PeerPingRequest,
    PeerPingResponse,
    PeerProveRequest,
    PeerProveResponse,
    RaftRequest,
    ReplicaFetchRequest,
    ReplicaProgressRequest,
)
from raftlog.protocol.schema import Message
from raftlog.protocol.security import ApiVersionsRequest, Dialling
from raftlog.server import dispatch as dispatching
from raftlog.server.apis import peer
from raftlog.server.context import BrokerContext
from raftlog.server.peers import SocketPeerConnector
from raftlog.types import Buffer
from tests.server.cluster.fake import FakeReply
from tests.server.peers.world import HANDLERS, SECRET, FakeBroker

TIMEOUT_S = 20.0
TARGET, BYSTANDER, STRANGER, CUT = 1, 2, 3, 4
PING = PeerPingRequest(sent=0, broker_epoch=9)


class RawPeer:
    """One socket. Says what it is told to, and hears what comes back."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._state = ClientConnectionState()
        self._events: deque[Response | Broken] = deque()

    async def __aenter__(self) -> RawPeer:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._writer.transport.abort()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, api: Api, message: Message, attachment: Sequence[Buffer] = ()) -> None:
        self.write(b"".join(self._state.send(api, message, attachment)[1]))

    async def event(self) -> Response | Broken:
        """The next thing that the broker says."""
        while not self._events:
            data = await self._reader.read(65_536)
            assert data, "the broker closed without a word"
            view = self._state.get_buffer()
            view[: len(data)] = data
            self._events += self._state.received(len(data))
        return self._events.popleft()

    async def ask(self, api: Api, message: Message) -> Any:
        self.send(api, message)
        event = await self.event()
        assert isinstance(event, Response), event
        if isinstance(event.message, RaftlogError):
            raise event.message
        return event.message

    async def prove(self, dialling: Dialling) -> PeerProveRequest:
        """Become a peer; the proof with which that was done."""
        prove = dialling.check(await self.ask(apis.PEER_HELLO, dialling.hello()))
        assert isinstance(await self.ask(apis.PEER_PROVE, prove), PeerProveResponse)
        return prove

    async def last_words(self) -> RaftlogError:
        """The farewell, after which the broker has closed the connection."""
        event = await self.event()
        assert isinstance(event, Broken), event
        assert await self._reader.read() == b""
        return event.error


class Scene:
    """A broker on a free port of 127.0.0.1, and its bystander."""

    def __init__(self, target: FakeBroker, bystander: FakeBroker, address: Address) -> None:
        self.target = target
        self.bystander = bystander
        self.address = address
        self._envelopes = 0

    def raw(self) -> RawPeer:
        return RawPeer(self.address)

    def dialling(self, **claims: Any) -> Dialling:
        secret = claims.pop("secret", SECRET)
        return Dialling(secret, identity(**claims), os.urandom(32))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - what it looks at tells nobody
                await asyncio.sleep(0.001)

    async def check_bystander(self) -> None:
        """Its link was up all along, and it is still who it was."""
        self._envelopes += 1
        envelope = b"from the bystander %d" % self._envelopes
        self.bystander.links.send(TARGET, envelope)
        await self.until(lambda: (BYSTANDER, envelope) in self.target.received)
        assert self.bystander.events == [("up", TARGET)]
        assert self.target.registry.latest(BYSTANDER) == self.bystander.identity
        assert self.target.context.counters.mistakes == 0

    def strangers_envelopes(self) -> list[bytes]:
        return [data for peer, data in self.target.received if peer != BYSTANDER]


def identity(**claims: Any) -> PeerIdentity:
    facts: dict[str, Any] = {
        "broker_id": STRANGER,
        "directory_id": "strange disk",
        "boot": 1,
        "host": "127.0.0.1",
        "port": 1,
        "protocol_version": 1,
        "cluster_id": "c1",
    }
    return PeerIdentity(**{**facts, **claims})


Play = Callable[[Scene], Coroutine[Any, Any, None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Play], None]:
    """Run a test, and see that the bystander has noticed nothing."""
    for number, handler in HANDLERS.items():
        monkeypatch.setitem(dispatching.HANDLERS, number, handler)

    async def whole(test: Play) -> None:
        loop = asyncio.get_running_loop()
        heard = {CUT: Heard("strange disk", boot=3, sequence=30)}.get
        target = FakeBroker(loop, SocketPeerConnector(), TARGET, heard=heard)
        bystander = FakeBroker(loop, SocketPeerConnector(), BYSTANDER)
        server = await loop.create_server(target.make, "127.0.0.1", 0)
        address = Address(*server.sockets[0].getsockname()[:2])
        bystander.links.set_addresses({TARGET: address})
        scene = Scene(target, bystander, address)
        try:
            await scene.until(lambda: bystander.links.is_up(TARGET))
            await scene.check_bystander()
            await test(scene)
            await scene.check_bystander()
        finally:
            await bystander.close()
            server.close()
            await target.close()

    return lambda test: asyncio.run(asyncio.wait_for(whole(test), 3 * TIMEOUT_S))


# -- as it should be -----------------------------------------------------------------------------


def test_a_proved_peer_may_ping_and_send_envelopes(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await raw.prove(s.dialling())
            raw.send(apis.RAFT, RaftRequest(), (b"one",))
            raw.send(apis.RAFT, RaftRequest(), (b"two",))
            assert isinstance(await raw.ask(apis.PEER_PING, PING), PeerPingResponse)
            assert s.strangers_envelopes() == [b"one", b"two"]
            assert s.target.peering.broker_epochs[STRANGER] == 9
            assert s.target.registry.is_live(STRANGER)

    play(test)


def test_the_answering_side_proves_itself_too(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            dialling = s.dialling(secret=b"other")
            response = await raw.ask(apis.PEER_HELLO, dialling.hello())
            with pytest.raises(AccessDeniedError):
                dialling.check(response)

    play(test)


def test_without_a_secret_there_are_no_peers(play: Callable[[Play], None]) -> None:
    """Anyone could prove to know an empty one."""

    async def test(s: Scene) -> None:
        s.target.peering.secret = b""
        async with s.raw() as raw:
            with pytest.raises(AccessDeniedError, match="no cluster secret"):
                await raw.ask(apis.PEER_HELLO, s.dialling(secret=b"").hello())

    play(test)


# -- no frames, no proof -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 64,
        b"GET /peers HTTP/1.1\r\n\r\n",
        bytes(range(256)),
        FRAME.pack(0xFFFF_FFFF, MAGIC, apis.RAFT.number, 0, 0, 1, 0),
        FRAME.pack(20, MAGIC, apis.RAFT.number, 0, 0xFFFF, 1, 4) + b"\x80\x80\x80\x80",
    ],
    ids=["zeros", "http", "all bytes", "endless", "flags"],
)
def test_garbage_ends_its_own_connection(play: Callable[[Play], None], data: bytes) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            raw.write(data)
            event = await raw.event()
            assert isinstance(event, Broken)
            assert isinstance(event.error, FrameError)
        async with s.raw() as proved:  # and a proved peer's too
            await proved.prove(s.dialling())
            proved.write(data)
            event = await proved.event()
            assert isinstance(event, Broken)
        await s.until(lambda: not s.target.registry.is_live(STRANGER))

    play(test)


@pytest.mark.parametrize("said_hello", [False, True])
def test_envelopes_without_a_proof_are_denied(
    play: Callable[[Play], None], said_hello: bool
) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            if said_hello:
                await raw.ask(apis.PEER_HELLO, s.dialling().hello())
            for _ in range(3):
                raw.send(apis.RAFT, RaftRequest(), (b"let me in",))
            error = await raw.last_words()
            assert isinstance(error, AccessDeniedError)
            assert "peer_prove" in str(error)
        assert s.strangers_envelopes() == []
        assert s.target.registry.latest(STRANGER) is None

    play(test)


def test_a_ping_without_a_proof_is_answered_with_why_not(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            with pytest.raises(AccessDeniedError):
                await raw.ask(apis.PEER_PING, PING)
            assert isinstance(await raw.last_words(), AccessDeniedError)
        assert STRANGER not in s.target.peering.broker_epochs

    play(test)


def test_an_unproved_connection_may_ask_what_clients_ask(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await raw.ask(apis.PEER_HELLO, s.dialling().hello())
            await raw.ask(apis.API_VERSIONS, ApiVersionsRequest())

    play(test)


# -- handshakes that fail ------------------------------------------------------------------------


async def denied(raw: RawPeer, message: Message, error: type[RaftlogError]) -> str:
    """The answer to a step of the handshake says why not, and the connection is closed."""
    api = apis.PEER_HELLO if isinstance(message, PeerHelloRequest) else apis.PEER_PROVE
    with pytest.raises(error) as caught:
        await raw.ask(api, message)
    assert type(await raw.last_words()) is error
    return str(caught.value)


def test_a_proof_with_another_secret_is_denied(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            ours = s.dialling()
            response: PeerHelloResponse = await raw.ask(apis.PEER_HELLO, ours.hello())
            proof = bytearray(ours.check(response).proof)
            proof[0] ^= 1
            why = await denied(raw, PeerProveRequest(proof=bytes(proof)), AccessDeniedError)
            assert "secret" in why
        assert s.target.registry.latest(STRANGER) is None

    play(test)


def test_what_follows_a_failed_proof_in_the_same_write_is_not_handled(
    play: Callable[[Play], None],
) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await raw.ask(apis.PEER_HELLO, s.dialling().hello())
            prove = raw._state.send(apis.PEER_PROVE, PeerProveRequest(proof=bytes(32)))[1]
            envelope = raw._state.send(apis.RAFT, RaftRequest(), (b"sneak",))[1]
            raw.write(b"".join(prove + envelope))
            event = await raw.event()
            assert isinstance(event, Response)
            assert isinstance(event.message, AccessDeniedError)
            assert isinstance(await raw.last_words(), AccessDeniedError)
        assert s.strangers_envelopes() == []

    play(test)


def test_a_proof_before_any_hello_is_denied(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await denied(raw, PeerProveRequest(proof=bytes(32)), AccessDeniedError)

    play(test)


def test_a_replayed_handshake_is_denied(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        recorded = s.dialling()
        async with s.raw() as sound:
            prove = await sound.prove(recorded)
        async with s.raw() as raw:
            await raw.ask(apis.PEER_HELLO, recorded.hello())
            assert "secret" in await denied(raw, prove, AccessDeniedError)
        await s.until(lambda: not s.target.registry.is_live(STRANGER))

    play(test)


def test_a_second_hello_on_one_connection_is_denied(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await raw.ask(apis.PEER_HELLO, s.dialling().hello())
            await denied(raw, s.dialling().hello(), AccessDeniedError)
        async with s.raw() as proved:
            await proved.prove(s.dialling())
            await denied(proved, s.dialling().hello(), AccessDeniedError)

    play(test)


def test_a_second_proof_on_one_connection_is_denied(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            prove = await raw.prove(s.dialling())
            await denied(raw, prove, AccessDeniedError)

    play(test)


@pytest.mark.parametrize(
    ("claims", "error"),
    [
        ({"broker_id": TARGET}, BrokerIdInUseError),
        ({"broker_id": TARGET, "directory_id": "disk-1"}, AccessDeniedError),
        ({"directory_id": "disk-1"}, AccessDeniedError),
    ],
    ids=["our id", "ourselves", "our directory"],
)
def test_a_hello_in_our_own_name_is_refused(
    play: Callable[[Play], None], claims: dict[str, Any], error: type[RaftlogError]
) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await denied(raw, s.dialling(**claims).hello(), error)

    play(test)


@pytest.mark.parametrize(
    ("claims", "error", "says"),
    [
        ({"cluster_id": "c2"}, WrongClusterError, "c2"),
        ({"protocol_version": 0}, UnsupportedVersionError, "version"),
        ({"broker_id": BYSTANDER}, BrokerIdInUseError, "strange disk"),
        ({"broker_id": BYSTANDER, "directory_id": "disk-2", "boot": 0}, StaleBrokerError, "boot"),
        (
            {"broker_id": CUT, "boot": 4, "journal_sequence": 29},
            StaleBrokerError,
            "has lost acknowledged",
        ),
    ],
    ids=["cluster", "version", "id in use", "stale", "journal"],
)
def test_a_proved_peer_that_may_not_take_part_is_told_why(
    play: Callable[[Play], None], claims: dict[str, Any], error: type[RaftlogError], says: str
) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            dialling = s.dialling(**claims)
            response = await raw.ask(apis.PEER_HELLO, dialling.hello())
            prove = proof_regardless(dialling, response)
            assert says in await denied(raw, prove, error)

    play(test)


def proof_regardless(dialling: Dialling, response: PeerHelloResponse) -> PeerProveRequest:
    """The right proof, of one that does not mind whom it talks to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(security, "check_version", lambda _peer: None)
        return dialling.check(response)


def test_a_claim_without_proof_takes_nobodys_place(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            claim = PeerHelloRequest(identity=s.bystander.identity, nonce=os.urandom(32))
            await raw.ask(apis.PEER_HELLO, claim)
            await denied(raw, PeerProveRequest(proof=bytes(32)), AccessDeniedError)

    play(test)


# -- requests of proved peers that are wrong -----------------------------------------------------


@pytest.mark.parametrize("size", [0, ENVELOPE_BYTES_MAX + 1])
def test_an_envelope_of_no_possible_size_ends_its_connection(
    play: Callable[[Play], None], size: int
) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await raw.prove(s.dialling())
            raw.send(apis.RAFT, RaftRequest(), (bytes(size),))
            assert await raw._reader.read() == b""
        assert s.strangers_envelopes() == []

    play(test)


def test_fields_out_of_range_are_refused_and_prove_nothing(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            for hello in (
                PeerHelloRequest(identity=identity(), nonce=b"short"),
                PeerHelloRequest(identity=identity(directory_id="x" * 10_000), nonce=bytes(32)),
                PeerHelloRequest(identity=identity(broker_id=-1), nonce=bytes(32)),
                PeerHelloRequest(identity=identity(boot=-1), nonce=bytes(32)),
            ):
                with pytest.raises(InvalidRequestError):
                    await raw.ask(apis.PEER_HELLO, hello)
            await raw.prove(s.dialling())  # none of those was a hello

    play(test)


def test_a_handshake_that_stops_half_way_harms_nobody(play: Callable[[Play], None]) -> None:
    async def test(s: Scene) -> None:
        async with s.raw() as raw:
            await raw.ask(apis.PEER_HELLO, s.dialling(broker_id=BYSTANDER).hello())
            await s.check_bystander()

    play(test)


# -- replica ---------------------------------------------------------------------------------------
#
# ``replica_fetch``, ``replica_progress`` and ``partition_states``: from requests to sessions.


class Context:
    """As much of a broker's context as these requests need."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.state_broadcast = SimpleNamespace(
            receive=lambda states, _recovery: self.calls.append(("take", states))
        )

    @property
    def cluster(self) -> Context:
        return self

    def session(self, connection: Any) -> Any:
        return SimpleNamespace(
            fetch=lambda message, reply: self.calls.append(("fetch", connection, message, reply)),
            progress=lambda parts: self.calls.append(("progress", connection, parts)),
        )


def handle(handler: Any, message: Any) -> tuple[Context, FakeReply]:
    context, reply = Context(), FakeReply()
    request = cast(Request, SimpleNamespace(message=message))
    handler(cast(BrokerContext, context), request, reply.as_reply)
    return context, reply


def test_a_fetch_goes_to_the_session_of_its_connection_which_answers() -> None:
    message = ReplicaFetchRequest(partitions=[], full=True)
    context, reply = handle(peer.handle_fetch, message)
    assert context.calls == [("fetch", reply.connection, message, reply)]
    assert (reply.answers, reply.ends) == ([], 0)


def test_progress_goes_there_too_and_wants_no_answer() -> None:
    position = DurablePosition("T1", 0, 1, 5)
    context, reply = handle(peer.handle_progress, ReplicaProgressRequest(partitions=[position]))
    assert context.calls == [("progress", reply.connection, [position])]
    assert (reply.answers, reply.ends) == ([], 1)


def test_states_are_believed_or_not_and_want_no_answer() -> None:
    state = EncodedPartitionState("T1", 0, 1, b"")
    context, reply = handle(peer.handle_states, PartitionStatesRequest(states=[state]))
    assert context.calls == [("take", [state])]
    assert (reply.answers, reply.ends) == ([], 1)
