"""Failed attempts to authenticate: clients learn of them late."""

from __future__ import annotations

from raftlog import limits
from raftlog.errors import RaftlogError
from raftlog.server.reply import Exchange


def fail_later(reply: Exchange, error: RaftlogError) -> None:
    """Reply with the error after ``AUTHENTICATION_DELAY_S``, and close the connection.

    Until then, the connection handles no other request: its exchange has failed.
    """
    connection = reply.connection

    def fail() -> None:
        reply.fail(error)
        connection.hang_up(str(error))

    connection.services.loop.call_later(limits.AUTHENTICATION_DELAY_S, fail)
