"""Settings of consensus, and their limits.

The times of a group are settings, in milliseconds. The limits of memory and messages are constants
of this module, with the unit in the name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol, TypeAlias

from raftlog.limits import KIB, MIB, RAFT_ENVELOPE_BYTES_MAX

# -- numbers and names in messages -----------------------------------------------------------------
NUMBER_MAX: Final = (1 << 62) - 1  # any counter; its successor also fits 63 bits
TERM_JUMP_MAX: Final = 1 << 20  # elections that a broker may miss; a larger jump is invalid
SEQUENCE_JUMP_MAX: Final = 1 << 20  # envelopes lost in a session; a larger jump is invalid
FORCED_GENERATIONS: Final = 1_000  # skipped by an operator's recovery: above any lost one
RAFT_ID_CHARS_MAX: Final = 300
DIRECTORY_ID_CHARS_MAX: Final = 200
BROKER_ID_MAX: Final = (1 << 31) - 1
VOTERS_MAX: Final = 99

# -- sizes -----------------------------------------------------------------------------------------
BASE_BYTES_MAX: Final = 64 * MIB  # initial state of a generation
ENVELOPE_BYTES: Final = (
    32 * KIB
)  # messages of one flush are split at about this size: 1 to 2 ms each
ENVELOPE_BYTES_MAX: Final = RAFT_ENVELOPE_BYTES_MAX  # of one large message
MESSAGES_PER_ENVELOPE_MAX: Final = 20_000
APPEND_BYTES: Final = 256 * KIB  # entries in one append; one entry may be larger
APPEND_ENTRIES_MAX: Final = 1_000
WINDOW_ENTRIES: Final = 4_000  # in flight to one follower
COMMAND_OVERHEAD_BYTES: Final = 8 * KIB  # a seal's voters and a command's type

# -- queues ----------------------------------------------------------------------------------------
INPUTS_MAX: Final = 20_000  # envelopes that arrive while the journal is being synced
INPUT_BYTES_MAX: Final = 128 * MIB
OUTBOX_BYTES_MAX: Final = 128 * MIB  # to one peer, while the journal is being synced
PROPOSALS_MAX: Final = 20_000  # of all groups of one broker

assert BASE_BYTES_MAX + 2 * MIB <= ENVELOPE_BYTES_MAX, "the largest state must fit an envelope"
assert ENVELOPE_BYTES < ENVELOPE_BYTES_MAX <= INPUT_BYTES_MAX, "the largest envelope must fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSettings:
    """Raises ``ValueError`` for values that are out of range or contradict each other."""

    election_timeout_ms: int = 3_000  # minimum time without messages of the leader; maximum: twice
    suspect_timeout_ms: int = 100  # the same if the link to it is down; maximum: 4 times
    heartbeat_ms: int = 1_000  # of a group, and of a broker to each peer
    idle_heartbeat_ms: int = 16_000  # of an idle group, at most
    tick_ms: int = 50  # of a group with work; heartbeats are at multiples of it
    propose_timeout_ms: int = 5_000
    seal_after_entries: int = 1_000  # in a generation's journal, before the leader seals it
    command_bytes_max: int = 60_000
    groups_per_turn: int = 64  # processed in one call: 2 to 4 ms

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1")
        if self.election_timeout_ms < 3 * self.heartbeat_ms:
            raise ValueError("election_timeout_ms must be at least 3 times heartbeat_ms")
        if self.idle_heartbeat_ms < self.heartbeat_ms:
            raise ValueError("idle_heartbeat_ms must be at least heartbeat_ms")
        if self.heartbeat_ms < self.tick_ms:
            raise ValueError("heartbeat_ms must be at least tick_ms")
        if self.suspect_timeout_ms > self.election_timeout_ms:
            raise ValueError("suspect_timeout_ms must be at most election_timeout_ms")
        if self.seal_after_entries < 10:
            raise ValueError("seal_after_entries must be at least 10")
        if self.command_bytes_max > MIB:
            raise ValueError(f"command_bytes_max must be at most {MIB}")


# -- machine ---------------------------------------------------------------------------------------
#
# State machine of a Raft group: three functions of bytes.


class StateMachine(Protocol):
    """The replicated state of one group.

    Deterministic: the same commands in the same order produce the same results and state on every
    broker, independent of clocks, random numbers and hash order.
    """

    def apply(self, command: bytes) -> object:
        """Change the state. A rejection is a return value: it must not raise (hazard 16)."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state, for ``restore``."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by that of ``snapshot``. Raises ``ValueError`` if it is invalid."""
        ...


# -- outcome ---------------------------------------------------------------------------------------
#
# Outcomes of proposed commands. Values only.


@dataclass(frozen=True, slots=True)
class Applied:
    """Committed, and applied on this broker. ``result``: the return value of the machine's
    ``apply``; for a seal, the number of the next generation.
    """

    result: object


@dataclass(frozen=True, slots=True)
class NotProposed:
    """The command has no effect, now or later: it can be proposed again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The command may have been applied, or may be later: only retry a compare-and-set."""

    reason: str


Outcome: TypeAlias = Applied | NotProposed | Unknown


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """The result of a command for which the machine raised, which is a bug of the machine."""

    error: str
