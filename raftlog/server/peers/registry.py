"""Registry of the other brokers: identities proved on connections, and those they exclude.

Links (outgoing) and handlers (incoming) share one ``PeerRegistry``, because each of them rejects
peers by what the other has learned. It uses proved identities only: a claim on a connection that
has not proved knowledge of the cluster secret never reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from raftlog.errors import BrokerIdInUseError, RefusedError, StaleBrokerError
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.peer_auth import check_boot, check_journal, check_version
from raftlog.tls import check_broker_id


def _nobody(_peer: PeerIdentity) -> None:
    """Do nothing: there is no listener."""


class SeenPeer(Protocol):
    """Durable knowledge of a peer and its journal (``Journal.peers``)."""

    @property
    def directory_id(self) -> str: ...
    @property
    def boot(self) -> int: ...
    @property
    def run(self) -> str: ...
    @property
    def sequence(self) -> int: ...


class HeardOfPeer(Protocol):
    """A peer's report on its journal since this broker started (``ConsensusNode.heard``)."""

    @property
    def directory_id(self) -> str: ...
    @property
    def boot(self) -> int: ...
    @property
    def sequence(self) -> int: ...


class IncomingConnection(Protocol):
    """The part of a server's ``Connection`` that the registry uses."""

    last_active_seconds: float
    peer_identity: PeerIdentity | None

    @property
    def is_closed(self) -> bool: ...
    @property
    def certificate(self) -> Mapping[str, Any] | None: ...
    def abort(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Incoming:
    identity: PeerIdentity
    connection: IncomingConnection


class PeerRegistry:
    """Invariant: at most one incoming connection per peer is valid, the newest.

    ``seen``: durable knowledge of a peer, or None. ``heard``: knowledge of a peer's journal in
    memory, or None. ``time``: seconds, monotonic. ``session_timeout_s``: an incoming connection
    without a message for this time is not live. ``version_min``: returns the version of the
    protocol between brokers that a peer must support. ``check_state``: raises the reason why the
    state of the cluster excludes a peer. ``needs_certificate``: connections with peers require
    certificates that name their ids.
    """

    def __init__(
        self,
        *,
        seen: Callable[[int], SeenPeer | None],
        heard: Callable[[int], HeardOfPeer | None],
        time: Callable[[], float],
        session_timeout_s: float,
        version_min: Callable[[], int] = lambda: 0,
        check_state: Callable[[PeerIdentity], None] = _nobody,
        needs_certificate: bool = False,
    ) -> None:
        self._needs_certificate = needs_certificate
        self._version_min = version_min
        self._check_state = check_state
        self._seen = seen
        self._heard = heard
        self._time = time
        self._session_timeout_s = session_timeout_s
        self._latest: dict[int, PeerIdentity] = {}  # last admitted, in this incarnation
        # Directories whose journal lost its end, and the reason.
        self._forgetful: dict[int, tuple[str, str]] = {}
        self._incoming: dict[int, _Incoming] = {}
        self._outgoing: dict[int, PeerIdentity] = {}  # links that are up
        # Called for every peer that has connected: it is reachable, and its older incarnations have
        # ended.
        self.on_incoming: Callable[[PeerIdentity], None] = _nobody

    def latest(self, broker_id: int) -> PeerIdentity | None:
        """Return the last peer admitted under this id since this broker started, or None."""
        return self._latest.get(broker_id)

    def all_latest(self) -> list[PeerIdentity]:
        """Return the last peer admitted under each id since this broker started."""
        return list(self._latest.values())

    def is_live(self, broker_id: int) -> bool:
        """Whether a link to the peer is up, or one from it had a message within the session
        timeout.
        """
        return bool(self._live(broker_id))

    def check_certificate(self, broker_id: int, certificate: Mapping[str, Any] | None) -> None:
        """Check that the connection with ``broker_id`` has a certificate of this broker, if one is
        required. ``certificate``: the verified one; None without.

        Raises ``AccessDeniedError``.
        """
        if self._needs_certificate:
            check_broker_id(certificate, broker_id)

    def check(self, peer: PeerIdentity) -> None:
        """Raise the reason why ``peer`` must be refused.

        ``BrokerIdInUseError``: another live data directory has its broker id, or it is a copy of a
        directory that is live elsewhere with the same boot number. ``StaleBrokerError``: its data
        directory was seen with a later boot number, so this is an old copy without later votes and
        acknowledgements; or its journal has lost its end, with the same effect.
        ``UnsupportedVersionError``: it would misread the state of the cluster. And the errors of
        ``check_state``.
        """
        check_version(peer, self._version_min())
        self._check_state(peer)
        for live in self._live(peer.broker_id):
            if live.directory_id != peer.directory_id:
                raise BrokerIdInUseError(
                    f"broker id {peer.broker_id} is in use by the live broker at "
                    f"{live.host}:{live.port} with data directory {live.directory_id}: the broker "
                    f"at {peer.host}:{peer.port} with data directory {peer.directory_id} is "
                    "rejected. Set a different id for each broker (if the live broker was just "
                    "stopped, wait)"
                )
            if live.boot == peer.boot and (live.host, live.port) != (peer.host, peer.port):
                raise BrokerIdInUseError(
                    f"the data directory {peer.directory_id} of broker {peer.broker_id} is used "
                    f"twice, at {live.host}:{live.port} and at {peer.host}:{peer.port}: one is a "
                    "copy. Stop the copy, wipe it, and start it with a different broker id"
                )
        for seen in (self._seen(peer.broker_id), self._latest.get(peer.broker_id)):
            if seen is not None:
                check_boot(
                    peer,
                    seen_directory_id=seen.directory_id,
                    seen_boot=seen.boot,
                    seen_run=seen.run,
                )
        self._check_journal(peer)

    def _check_journal(self, peer: PeerIdentity) -> None:
        """Refuse a directory permanently once its journal was too short. Each boot adds blocks to
        its journal, and with enough of them it would look complete again.
        """
        directory_id, why = self._forgetful.get(peer.broker_id, ("", ""))
        if directory_id == peer.directory_id:
            raise StaleBrokerError(why)
        for heard in (self._heard(peer.broker_id), self._seen(peer.broker_id)):
            if heard is None:
                continue
            try:
                check_journal(
                    peer,
                    heard_directory_id=heard.directory_id,
                    heard_boot=heard.boot,
                    heard_sequence=heard.sequence,
                )
            except StaleBrokerError as error:
                self._forgetful[peer.broker_id] = peer.directory_id, str(error)
                raise

    def admit_incoming(self, peer: PeerIdentity, connection: IncomingConnection) -> None:
        """Admit ``peer``, which has proved its identity on ``connection``. Its older connections
        are closed.

        Messages in flight on an older connection must not arrive after those of this one. Raises
        the errors of ``check``.
        """
        self.check(peer)
        older = self._incoming.get(peer.broker_id)
        self._incoming[peer.broker_id] = _Incoming(peer, connection)
        self._latest[peer.broker_id] = peer
        if older is not None and older.connection is not connection:
            older.connection.peer_identity = None  # requests that it has already read have no peer
            older.connection.abort(f"broker {peer.broker_id} has opened a new connection")
        self.on_incoming(peer)

    def admit_outgoing(self, peer: PeerIdentity) -> None:
        """Note that a link to ``peer`` is up. Raises the errors of ``check``."""
        self.check(peer)
        self._latest[peer.broker_id] = self._outgoing[peer.broker_id] = peer

    def end_refused(self) -> None:
        """Close connections of peers that the state of the cluster excludes by now. They connect
        again, and get the reason.
        """
        for each in list(self._incoming.values()):
            if why := self.exclusion(each.identity):
                each.connection.abort(why)

    def exclusion(self, peer: PeerIdentity) -> str:
        """Return why the state of the cluster excludes the peer; empty if it does not."""
        try:
            check_version(peer, self._version_min())
            self._check_state(peer)
        except RefusedError as error:
            return str(error)
        return ""

    def outgoing_down(self, broker_id: int) -> None:
        """Note that the link to the peer is down."""
        self._outgoing.pop(broker_id, None)

    def _live(self, broker_id: int) -> list[PeerIdentity]:
        incoming = self._incoming.get(broker_id)
        live = []
        if incoming is not None and not incoming.connection.is_closed:
            silent_s = self._time() - incoming.connection.last_active_seconds
            if silent_s < self._session_timeout_s:
                live.append(incoming.identity)
        if broker_id in self._outgoing:
            live.append(self._outgoing[broker_id])
        return live
