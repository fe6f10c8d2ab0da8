"""Links to peers, and the transport through which PySyncObj sends.

A ``Link`` is the state of the connection to one peer: whether it is up, the number of this broker's
session, and the newest session and envelope received from the peer. It queues the messages of all
groups to the peer. No sockets: input and output are bytes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pysyncobj.transport import Transport

from raftlog.consensus import envelope
from raftlog.consensus.envelope import Envelope, Message
from raftlog.consensus.settings import ENVELOPE_BYTES, OUTBOX_BYTES_MAX, SEQUENCE_JUMP_MAX

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
        size = envelope.size_of(message)
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
        return envelope.encode(Envelope(*session, directory_id, journal_sequence, messages))

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
        if not self.is_up or (arrived.boot, arrived.directory_id) != (self.boot, self.directory_id):
            return False
        link, sequence = self._arrived
        if arrived.link == link:
            if not sequence < arrived.sequence <= sequence + SEQUENCE_JUMP_MAX:
                return False
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

    __slots__ = ("_generation", "_group_id", "_links")

    def __init__(self, links: dict[int, Link], group_id: str, generation: int) -> None:
        self._links = links
        self._group_id = group_id
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
        return link is not None and link.post([self._group_id, self._generation, *message])

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
