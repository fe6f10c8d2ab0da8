"""Fuzzing of the handshakes: damaged messages for each exchange, and for a broker.

    python -m tests.security.fuzz --inputs 1000000 --seed 1

Each input is a complete exchange of which one message is damaged: bytes flipped, parts cut,
repeated or taken from another exchange. The broker's side must reject it with an error of
``raftlog.errors``, and accepts only an exchange whose proof is unchanged. A broker must close the
connection or answer; an exception in a handler, a file descriptor that stays open, and memory that
grows are failures. The counts are printed, and the seed repeats a run.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from raftlog import limits
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol import schema
from raftlog.protocol.connection import ClientConnectionState
from raftlog.protocol.peer import PeerHelloRequest, PeerProveRequest
from raftlog.protocol.security import (
    ApiVersionsRequest,
    OperatorHelloRequest,
    OperatorProveRequest,
    SaslAuthenticateRequest,
)
from raftlog.security.credentials import SCRAM_MECHANISMS
from raftlog.security.sasl import (
    Accepted,
    Exchange,
    PlainExchange,
    ScramClientExchange,
    ScramExchange,
)
from raftlog.server.oauth import TokenExchange, TokenSettings
from raftlog.testing.cluster import wait_until
from tests.protocol.test_security import ONE, answering, asking, dialling, granting
from tests.security.test_sasl import PASSWORD, STORE
from tests.server.harness import RunningBroker, running
from tests.server.provider import AUDIENCE, ISSUER
from tests.server.test_oauth import KEYS, NOW, PROVIDER

Step: TypeAlias = Callable[[bytes], bool]  # a message; returns whether the client is accepted
CLOSED_S: Final = 30  # for the broker to close all connections
SENT_INPUTS_PART: Final = 500  # one of so many inputs is also sent to a broker
COSTLY_PART: Final = 200  # one of so many is PLAIN, which takes milliseconds
TIMEOUT_S: Final = 20
GROWTH_BYTES_MAX: Final = 64 * limits.MIB


class Dialogue:
    """Messages of a client that the broker's side accepts. ``begin`` starts the broker's side."""

    def __init__(
        self, name: str, messages: list[bytes], begin: Callable[[], Step], *, proof: bytes = b""
    ) -> None:
        """``proof``: part of the last message without which none is accepted. Other encodings of
        equal messages are accepted. Default: all messages must be unchanged.
        """
        self.name = name
        self.messages = messages
        self._proof = proof
        self.begin = begin
        assert self.accepts(messages), f"{name} does not accept its own messages"

    def may_accept(self, messages: list[bytes]) -> bool:
        """Whether the messages prove what the client knows."""
        return messages == self.messages or bool(self._proof and self._proof in messages[-1])

    def accepts(self, messages: list[bytes]) -> bool:
        """Raises ``RaftlogError`` for a rejection."""
        step = self.begin()
        return [step(message) for message in messages][-1]


def _same(size: int) -> bytes:
    """The entropy of each exchange, so that recorded messages are valid."""
    return b"n" * size


def _sasl(begin: Callable[[], Exchange]) -> Callable[[], Step]:
    def start() -> Step:
        exchange = begin()
        return lambda data: isinstance(exchange.step(data), Accepted)

    return start


def _scram(mechanism: str) -> Dialogue:
    chosen = next(each for each in SCRAM_MECHANISMS if each == mechanism)
    client = ScramClientExchange(chosen, "alice", PASSWORD, _same)
    broker = ScramExchange(chosen, STORE, _same)
    first = client.first()
    challenge = broker.step(first)
    assert isinstance(challenge, bytes)
    messages = [first, client.next(challenge)]
    begin = _sasl(lambda: ScramExchange(chosen, STORE, _same))
    # Not all bits of the last letter of a proof in base64 are used.
    return Dialogue(mechanism, messages, begin, proof=messages[-1].rstrip(b"=")[:-1])


def _token() -> Dialogue:
    token = PROVIDER.token(NOW).encode()
    message = b"n,,\x01auth=Bearer " + token + b"\x01\x01"
    settings = TokenSettings(ISSUER, AUDIENCE, "sub", clock_skew_seconds=30)
    begin = _sasl(lambda: TokenExchange(settings, KEYS, float(NOW)))
    return Dialogue("OAUTHBEARER", [message], begin, proof=token)


def _two_steps(hello: Callable[[bytes], object], prove: Callable[[bytes], bool]) -> Step:
    """The broker's side of a dialogue of a hello and a proof."""
    greeted: list[bytes] = []

    def step(data: bytes) -> bool:
        if greeted:
            return prove(data)
        greeted.append(data)
        hello(data)
        return False

    return step


def _peer() -> Dialogue:
    def begin() -> Step:
        broker = answering()
        return _two_steps(
            lambda data: broker.answer(schema.decode(data, PeerHelloRequest)),
            lambda data: broker.check(schema.decode(data, PeerProveRequest)) == ONE,
        )

    client = dialling()
    hello = client.hello()
    prove = client.check(answering().answer(hello))
    sent = [schema.encode(hello), schema.encode(prove)]
    return Dialogue("broker", sent, begin, proof=prove.proof)


def _operator() -> Dialogue:
    def begin() -> Step:
        broker = granting()

        def check(data: bytes) -> bool:
            broker.check(schema.decode(data, OperatorProveRequest))
            return True

        return _two_steps(
            lambda data: broker.answer(schema.decode(data, OperatorHelloRequest)), check
        )

    client = asking()
    hello = client.hello()
    prove = client.check(granting().answer(hello))
    sent = [schema.encode(hello), schema.encode(prove)]
    return Dialogue("operator", sent, begin, proof=prove.proof)


class Inputs:
    """Damaged dialogues, from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        plain = [f"\0alice\0{PASSWORD}".encode()]
        self._costly = Dialogue("PLAIN", plain, _sasl(lambda: PlainExchange(STORE)))
        self._others = [*map(_scram, SCRAM_MECHANISMS), _token(), _peer(), _operator()]

    def next(self) -> tuple[Dialogue, list[bytes]]:
        chance = self.chance
        is_costly = not chance.randrange(COSTLY_PART)
        dialogue = self._costly if is_costly else chance.choice(self._others)
        messages = list(dialogue.messages)
        number = chance.randrange(len(messages))
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            messages[number] = self._damaged(messages[number])
        return dialogue, messages

    def _damaged(self, message: bytes) -> bytes:
        chance, data = self.chance, bytearray(message)
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes((chance.randrange(256),))
        elif kind == 1:
            del data[at : at + chance.randrange(1, 9)]
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = data[at : at + chance.randrange(1, 64)] * chance.choice((1, 1, 1_000))
        elif kind == 4:
            other = chance.choice(chance.choice(self._others).messages)
            data[at:] = other[chance.randrange(len(other)) :]
        else:
            data[at:at] = chance.choice((b"\0", b",", b"=", b"\x01", b"\xff\xff", "é".encode()))
        return bytes(data)


def fuzz_exchanges(inputs: Inputs, count: int, counts: Counter[str]) -> Iterator[list[bytes]]:
    """Give damaged dialogues to the broker's side of each exchange. Yields some of them."""
    for number in range(count):
        dialogue, messages = inputs.next()
        try:
            is_accepted = dialogue.accepts(messages)
        except RaftlogError:
            is_accepted = False
        assert not is_accepted or dialogue.may_accept(messages), (dialogue.name, messages)
        assert is_accepted or messages != dialogue.messages, dialogue.name
        counts[f"{dialogue.name}: {'accepted' if is_accepted else 'rejected'}"] += 1
        if not number % SENT_INPUTS_PART:
            yield messages


def fuzz_broker(broker: RunningBroker, messages: list[bytes], counts: Counter[str]) -> None:
    """Send a dialogue to the broker, each message with the request that it belongs to."""
    client = ClientConnectionState()
    requests = [
        client.send(apis.API_VERSIONS, ApiVersionsRequest(client_id="f"), [])[1],
        *(
            client.send(
                apis.SASL_AUTHENTICATE,
                SaslAuthenticateRequest(mechanism="SCRAM-SHA-256", data=message[:16_000]),
                [],
            )[1]
            for message in messages
        ),
        messages,  # without frames
    ]
    with socket.create_connection(tuple(broker.address), TIMEOUT_S) as connection:
        counts["connections to a broker"] += 1
        for buffers in requests:
            try:
                connection.sendall(b"".join(buffers))
            except OSError:
                counts["closed by the broker"] += 1
                return


def memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * limits.KIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    inputs = Inputs(options.seed)
    for _ in fuzz_exchanges(inputs, options.inputs // 10, Counter()):
        pass  # memory of caches
    before = memory_bytes()
    with (
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory), insecure_allowed="true") as broker,
    ):
        files = len(os.listdir("/proc/self/fd"))
        for messages in fuzz_exchanges(inputs, options.inputs, counts):
            fuzz_broker(broker, messages, counts)
        connections = broker.broker.connections
        wait_until(lambda: not connections, timeout_s=CLOSED_S, what="the end of all connections")
        assert broker.broker.context.counters.mistakes == 0, "see the broker's log"
        assert len(os.listdir("/proc/self/fd")) <= files + 4, "files stay open"
    grown = memory_bytes() - before
    lines = [f"seed {options.seed}", *(f"{name}: {count:,}" for name, count in counts.items())]
    sys.stdout.write("\n".join([*lines, f"memory: {grown:,} bytes more"]) + "\n")
    assert grown < GROWTH_BYTES_MAX


if __name__ == "__main__":
    main()
