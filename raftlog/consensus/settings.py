"""Settings of consensus, and their limits.

Times of a group are settings, in milliseconds. What bounds memory and messages is a constant here,
with its unit in its name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from raftlog.limits import KIB, MIB

# -- numbers and names in messages -----------------------------------------------------------------
NUMBER_MAX: Final = (1 << 62) - 1  # any counter: fits 63 bits, and so does its successor
TERM_JUMP_MAX: Final = 1 << 20  # elections that a broker may have missed; more is a bad message
SEQUENCE_JUMP_MAX: Final = 1 << 20  # envelopes lost within one session; more is a bad message
FORCED_GENERATIONS: Final = 1_000  # that an operator's recovery skips: above any that was lost
GROUP_ID_CHARS_MAX: Final = 300
DIRECTORY_ID_CHARS_MAX: Final = 200
BROKER_ID_MAX: Final = (1 << 31) - 1
VOTERS_MAX: Final = 99

# -- sizes -----------------------------------------------------------------------------------------
BASE_BYTES_MAX: Final = 64 * MIB  # the state that a generation begins with
ENVELOPE_BYTES: Final = 1 * MIB  # messages of one flush are split at about this size
ENVELOPE_BYTES_MAX: Final = BASE_BYTES_MAX + 2 * MIB  # one message that is larger travels alone
MESSAGES_PER_ENVELOPE_MAX: Final = 20_000
APPEND_BYTES: Final = 256 * KIB  # entries in one append, but at least one entry
APPEND_ENTRIES_MAX: Final = 1_000
WINDOW_ENTRIES: Final = 4_000  # sent to one follower and not yet answered
COMMAND_OVERHEAD_BYTES: Final = 8 * KIB  # of a seal's voters and a command's type

# -- what waits ------------------------------------------------------------------------------------
INPUTS_MAX: Final = 20_000  # envelopes that arrive while the journal is being synced
INPUT_BYTES_MAX: Final = 128 * MIB
OUTBOX_BYTES_MAX: Final = 128 * MIB  # to one peer, while the journal is being synced
PROPOSALS_MAX: Final = 20_000  # of one broker, all its groups together

assert ENVELOPE_BYTES < ENVELOPE_BYTES_MAX <= INPUT_BYTES_MAX, "the largest envelope must fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSettings:
    """Raises ``ValueError`` for values that do not go together."""

    election_timeout_ms: int = 3_000  # least silence of a leader before an election; at most twice
    suspect_timeout_ms: int = 100  # the same when the link to it is down; at most 4 times that
    heartbeat_ms: int = 1_000  # of a group, and of a broker to each peer
    idle_heartbeat_ms: int = 16_000  # of a group without news, at most
    tick_ms: int = 50  # of a group with something to do; heartbeats fall on its multiples
    propose_timeout_ms: int = 5_000
    seal_after_entries: int = 1_000  # in a generation's journal, before the leader seals it
    command_bytes_max: int = 60_000

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
