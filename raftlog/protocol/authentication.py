"""``sasl_authenticate``: one message of a SASL exchange (RFC 4422). ``raftlog.security`` has the
mechanisms.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Message

_Data = Annotated[bytes, Meta(max_length=limits.SASL_MESSAGE_BYTES_MAX)]


class SaslAuthenticateRequest(Message):
    """A message of the client. ``mechanism``: begins an exchange; empty: continues it.

    On a connection that is authenticated, a new exchange extends the session. It must be of the
    same user.
    """

    data: _Data
    mechanism: Annotated[str, Meta(max_length=64)] = ""

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest(mechanism={self.mechanism!r}, data=(hidden))"


class SaslAuthenticateResponse(Message):
    """A challenge, or the last message of the broker if ``is_complete``.

    ``session_lifetime_ms``: the client must authenticate again in this time, or the broker closes
    the connection; 0: never.
    """

    data: _Data
    is_complete: bool
    session_lifetime_ms: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0

    def __repr__(self) -> str:
        return f"SaslAuthenticateResponse(is_complete={self.is_complete}, data=(hidden))"
