"""Links to peers, and the transport through which PySyncObj sends.

A ``Link`` is the state of the connection to one peer: whether it is up, the number of this broker's
session, and the newest session and envelope received from the peer. It queues the messages of all
groups to the peer. No sockets: input and output are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
from pysyncobj.transport import Transport

from raftlog.consensus.settings import (
    APPEND_ENTRIES_MAX,
    BASE_BYTES_MAX,
    BROKER_ID_MAX,
    COMMAND_OVERHEAD_BYTES,
    DIRECTORY_ID_CHARS_MAX,
    ENVELOPE_BYTES,
    ENVELOPE_BYTES_MAX,
    MESSAGES_PER_ENVELOPE_MAX,
    NUMBER_MAX,
    OUTBOX_BYTES_MAX,
    RAFT_ID_CHARS_MAX,
    SEQUENCE_JUMP_MAX,
    VOTERS_MAX,
)
from raftlog.limits import MIB

NEVER: Final = float("inf")


class Heard(NamedTuple):
    """State of a peer's journal as reported since this broker started. In memory only."""

    directory_id: str
    boot: int  # newest boot number that had a link
    sequence: int  # last journal block that it reported, in this boot or an older one


class Link:
    """Link to one peer. Invariant: the outbox is empty while the link is down."""

    __slots__ = (
        "_arrived",
        "_number",
        "_outbox",
        "_outbox_bytes",
        "_room",
        "_sequence",
        "alive_at",
        "boot",
        "directory_id",
        "is_up",
        "journal_sequence",
    )

    def __init__(self) -> None:
        self.is_up = False
        self.directory_id = ""  # of the peer, authenticated when the link was established
        self.boot = 0  # of the peer
        self.journal_sequence = 0  # last journal block that the peer reported for its directory
        # Monotonic seconds at which the peer last showed that its consensus works; -NEVER for a
        # peer that sends no beats.
        self.alive_at = -NEVER
        self._number = 0  # of this broker's session
        self._sequence = 0  # of the newest envelope sent in it
        self._arrived = (0, 0)  # session and sequence of the newest envelope received
        self._outbox: list[list[Message]] = []  # of each envelope
        self._outbox_bytes = 0
        self._room = 0  # bytes that the last of these envelopes may get in addition

    def up(self, directory_id: str, boot: int) -> None:
        """Start a session for a new connection, also if the old one is still considered up."""
        if (directory_id, boot) != (self.directory_id, self.boot):
            self._arrived = (0, 0)
        if directory_id != self.directory_id:
            self.journal_sequence = 0
        self.directory_id = directory_id
        self.boot = boot
        self.is_up = True
        self.alive_at = -NEVER
        # guard: each connection is a new session
        self._number += 1
        self._sequence = 0
        self._empty()

    def down(self) -> None:
        self.is_up = False
        self.alive_at = -NEVER
        self._empty()

    def _empty(self) -> None:
        self._outbox = []
        self._outbox_bytes = self._room = 0

    # -- out ---------------------------------------------------------------------------------------

    @property
    def has_mail(self) -> bool:
        return bool(self._outbox)

    def post(self, message: Message) -> bool:
        """Queue a message for the next flush. Returns False if it will not be sent."""
        if not self.is_up or self._outbox_bytes > OUTBOX_BYTES_MAX:
            return False
        size = size_of(message)
        if size > self._room:
            self._outbox.append([])
            self._room = ENVELOPE_BYTES
        self._outbox[-1].append(message)
        self._outbox_bytes += size
        self._room -= size
        return True

    def collect(self, boot: int, directory_id: str, journal_sequence: int) -> list[bytes]:
        """Return the envelopes with all queued messages. The arguments are this broker's durable
        values.
        """
        parts = self._outbox
        self._empty()
        return [self._sealed(boot, directory_id, journal_sequence, part) for part in parts]

    def beat(self, boot: int, directory_id: str, journal_sequence: int) -> bytes:
        """Return an envelope without messages. The arguments are those of ``collect``."""
        return self._sealed(boot, directory_id, journal_sequence, [])

    def _sealed(
        self, boot: int, directory_id: str, journal_sequence: int, messages: list[Message]
    ) -> bytes:
        self._sequence += 1
        session = boot, self._number, self._sequence
        return encode(Envelope(*session, directory_id, journal_sequence, messages))

    # -- in ----------------------------------------------------------------------------------------

    def note_alive(self, now: float, *, is_beat: bool) -> None:
        """Record the arrival of an admitted envelope."""
        if is_beat or self.alive_at > -NEVER:
            self.alive_at = now

    def is_silent(self, now: float, limit_s: float) -> bool:
        """Return whether a peer that has sent beats on this link sent nothing for ``limit_s``."""
        return -NEVER < self.alive_at <= now - limit_s

    def admits(self, arrived: Envelope) -> bool:
        """Return whether an envelope is from the peer's newest session and newer than all before.

        Lost envelopes cause gaps. Envelopes that are duplicate, out of order or of an earlier
        session are not admitted (hazards 3 and 5).
        """
        # guard: envelopes while the link is down
        # guard: envelopes of another boot or directory
        if not self.is_up or (arrived.boot, arrived.directory_id) != (self.boot, self.directory_id):
            return False
        link, sequence = self._arrived
        if arrived.link == link:
            # guard: repeated and late envelopes
            if not sequence < arrived.sequence <= sequence + SEQUENCE_JUMP_MAX:
                return False
        # guard: envelopes of a superseded connection
        elif not link < arrived.link <= link + SEQUENCE_JUMP_MAX:
            return False
        self._arrived = (arrived.link, arrived.sequence)
        self.journal_sequence = max(self.journal_sequence, arrived.journal_sequence)
        return True


class PeerTransport(Transport):  # type: ignore[misc]  # the library has no types
    """Adds the group id and generation to the messages of one group, and queues them on links.

    ``ConsensusNode`` passes received messages to the group directly, so the library's callbacks
    are not stored.
    """

    __slots__ = ("_generation", "_links", "_raft_id")

    def __init__(self, links: dict[int, Link], raft_id: str, generation: int) -> None:
        self._links = links
        self._raft_id = raft_id
        self._generation = generation

    def send(self, node: Any, message: tuple[Any, ...]) -> bool:
        """Send ``message``, (term, type, field, ...), to the broker with id ``node.id``."""
        return self.post(node.id, message)

    def alive_at(self, broker_id: int) -> float:
        """Return ``Link.alive_at`` of a peer."""
        link = self._links.get(broker_id)
        return -NEVER if link is None else link.alive_at

    def post(self, broker_id: int, message: tuple[Any, ...]) -> bool:
        link = self._links.get(broker_id)
        return link is not None and link.post([self._raft_id, self._generation, *message])

    def setOnMessageReceivedCallback(self, callback: object) -> None:  # noqa: N802
        pass

    def setOnNodeConnectedCallback(self, callback: object) -> None:  # noqa: N802
        pass

    def setOnNodeDisconnectedCallback(self, callback: object) -> None:  # noqa: N802
        pass

    def setOnReadonlyNodeConnectedCallback(self, callback: object) -> None:  # noqa: N802
        pass

    def setOnReadonlyNodeDisconnectedCallback(self, callback: object) -> None:  # noqa: N802
        pass

    def setOnUtilityMessageCallback(self, message: str, callback: object) -> None:  # noqa: N802
        pass


# -- envelope --------------------------------------------------------------------------------------
#
# Messages between brokers about Raft groups, and the envelope around them.
#
#     envelope = [boot, link, sequence, directory id, journal sequence, [message, ...]]
#     message  = [group id, generation, term, type, field, ...]
#
# An envelope without messages is a *beat*: it shows that consensus and the disk of its sender work.
# ``boot`` and ``link`` identify the sender's session. Each link is a new session. ``journal
# sequence`` is the durable sequence of the last block of its journal: a broker that starts with a
# lower one has lost state that it acted on. All fields are untrusted msgpack: ``decode`` checks
# every type, length and number. Its callers check only their meaning. Values only; no state.


Message: TypeAlias = list[Any]

# -- types of messages, with their fields ----------------------------------------------------------
HELLO: Final = 0  # is answer. The message has the current generation of the sender
OFFER: Final = 1  # voters, base: initial state of the generation of this message
PRE_VOTE: Final = 2  # round, last term, last index
PRE_VOTE_ANSWER: Final = 3  # round, is granted
VOTE: Final = 4  # last term, last index
VOTE_ANSWER: Final = 5  # is granted
APPEND: Final = 6  # previous index, its term, commit index, [[term, command], ...]
APPEND_ANSWER: Final = 7  # is appended, previous index, last common index or guess
PROPOSE: Final = 8  # number, command: forwarded to the leader
PROPOSED: Final = 9  # number, index: the leader appended it there, in the term of this message
REFUSED: Final = 10  # number: the leader did not append it

# -- types of commands: the first byte of an entry -------------------------------------------------
NO_OP: Final = 1  # PySyncObj's: the first entry of a log, and the first of a leader
COMMAND: Final = 0x10  # followed by a command of the state machine
SEAL: Final = 0x11  # followed by the next generation's voters: [[broker id, directory id], ...]

ENTRY_BYTES_MAX: Final = 1 * MIB + COMMAND_OVERHEAD_BYTES
_MESSAGE_BYTES: Final = 64  # approximate size of a message without its commands

assert ENVELOPE_BYTES // _MESSAGE_BYTES < MESSAGES_PER_ENVELOPE_MAX, "the envelope is too large"


class Envelope(NamedTuple):
    boot: int
    link: int
    sequence: int
    directory_id: str
    journal_sequence: int
    messages: list[Message]


class EnvelopeError(ValueError):
    """The bytes are not a valid envelope."""


def encode(envelope: Envelope) -> bytes:
    return bytes(msgpack.packb(envelope))


def decode(data: bytes) -> Envelope:
    """Raises ``EnvelopeError``, and no other error, for bytes that are not an envelope."""
    if len(data) > ENVELOPE_BYTES_MAX:
        raise EnvelopeError(f"{len(data)} bytes exceed the limit of {ENVELOPE_BYTES_MAX}")
    try:
        fields = msgpack.unpackb(data)
    except Exception as error:  # noqa: BLE001 - the decoder may raise any error
        raise EnvelopeError(f"not msgpack: {error!r}") from None
    if type(fields) is not list or len(fields) != len(Envelope._fields):
        raise EnvelopeError("not an envelope")
    *numbers, directory_id, journaled, messages = fields
    if not (all(map(_number, [*numbers, journaled])) and _directory(directory_id)):
        raise EnvelopeError("invalid fields of an envelope")
    if type(messages) is not list or len(messages) > MESSAGES_PER_ENVELOPE_MAX:
        raise EnvelopeError("invalid messages of an envelope")
    for message in messages:
        # guard: messages are checked completely
        if not is_message(message):
            raise EnvelopeError(f"invalid message: {message!r:.200}")
    return Envelope(*fields)


def is_message(message: object) -> bool:
    """Return whether all fields have the types, lengths and ranges of the module docstring."""
    if type(message) is not list or len(message) < 4:
        return False
    raft_id, generation, term, kind = message[:4]
    if type(raft_id) is not str or not 0 < len(raft_id) <= RAFT_ID_CHARS_MAX:
        return False
    if not (_number(generation) and _number(term) and type(kind) is int):
        return False
    checks = _FIELDS.get(kind)
    if checks is None or len(checks) != len(message) - 4:
        return False
    return all([check(field) for check, field in zip(checks, message[4:], strict=True)])  # noqa: C419 - a list is faster


def size_of(message: Message) -> int:
    """Return the approximate size of a message in bytes."""
    kind = message[3]
    if kind == APPEND:
        return _MESSAGE_BYTES + sum([_MESSAGE_BYTES + len(entry[1]) for entry in message[7]])
    if kind == OFFER:
        return len(message[4]) * DIRECTORY_ID_CHARS_MAX + len(message[5])
    if kind == PROPOSE:
        return _MESSAGE_BYTES + len(message[5])
    return _MESSAGE_BYTES


# -- voters ----------------------------------------------------------------------------------------


def encode_seal(voters: Mapping[int, str]) -> bytes:
    """Return the entry that ends a generation."""
    pairs: bytes = msgpack.packb(sorted(voters.items()))
    return bytes([SEAL]) + pairs


def decode_seal(entry: bytes) -> dict[int, str] | None:
    """Return the next generation's voters; None if the entry is invalid."""
    try:
        fields = msgpack.unpackb(entry[1:])
    except Exception:  # noqa: BLE001 - untrusted bytes, as in decode
        return None
    return dict(fields) if _voters(fields) else None


def is_seal(entry: bytes) -> bool:
    """Return whether this entry of a log ends its generation. An invalid seal has no effect."""
    # guard: an invalid seal ends no generation
    return entry[0] == SEAL and decode_seal(entry) is not None


def is_entry(entry: object) -> bool:
    """Return whether this is valid as an entry of a log."""
    return type(entry) is bytes and 0 < len(entry) <= ENTRY_BYTES_MAX


def is_proposable(entry: object) -> bool:
    """Return whether a broker may forward this entry to a leader."""
    if not (type(entry) is bytes and is_entry(entry)):
        return False
    return entry[0] == COMMAND or is_seal(entry)


# -- checks of one field ---------------------------------------------------------------------------


def _number(field: object) -> bool:
    return type(field) is int and 0 <= field <= NUMBER_MAX


def _flag(field: object) -> bool:
    return type(field) is bool


def _directory(field: object) -> bool:
    return type(field) is str and len(field) <= DIRECTORY_ID_CHARS_MAX


def _base(field: object) -> bool:
    return type(field) is bytes and len(field) <= BASE_BYTES_MAX


def _voters(field: object) -> bool:
    if type(field) is not list or not 0 < len(field) <= VOTERS_MAX:
        return False
    for pair in field:
        if type(pair) is not list or len(pair) != 2 or not _directory(pair[1]):
            return False
        if type(pair[0]) is not int or not 0 <= pair[0] <= BROKER_ID_MAX:
            return False
    return len({broker_id for broker_id, _directory_id in field}) == len(field)


def _entries(field: object) -> bool:
    if type(field) is not list or len(field) > APPEND_ENTRIES_MAX:
        return False
    term = 0
    for entry in field:
        if type(entry) is not list or len(entry) != 2:
            return False
        if not (_number(entry[0]) and entry[0] >= term and is_entry(entry[1])):
            return False
        term = entry[0]
    return True


_FIELDS: Final[Mapping[int, tuple[Callable[[object], bool], ...]]] = {
    HELLO: (_flag,),
    OFFER: (_voters, _base),
    PRE_VOTE: (_number, _number, _number),
    PRE_VOTE_ANSWER: (_number, _flag),
    VOTE: (_number, _number),
    VOTE_ANSWER: (_flag,),
    APPEND: (_number, _number, _number, _entries),
    APPEND_ANSWER: (_flag, _number, _number),
    PROPOSE: (_number, is_proposable),
    PROPOSED: (_number, _number),
    REFUSED: (_number,),
}
