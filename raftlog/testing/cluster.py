"""Clusters of broker processes on this machine: start, network partitions, data loss, and stop.

For tests, ``raftlog demo`` and ``raftlog up``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from raftlog.client.admin import Admin
from raftlog.config.address import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.protocol.topics import PartitionDescription
from raftlog.testing.administrator import (
    CREDENTIALS_FILE,
    authentication_settings,
    private_file,
)
from raftlog.testing.certificates import Certificates, create, environment_of
from raftlog.testing.probes import (
    HOST,
    answers,
    describe_partition,
    free_port,
    free_ports,
    members,
    wait_until,
)
from raftlog.testing.processes import READY_TIMEOUT_S, BrokerProcess
from raftlog.testing.relays import RelayLinks
from raftlog.testing.toxics import Hold, Reset

__all__ = [
    "BrokerProcess",
    "Cluster",
    "answers",
    "cluster",
    "free_port",
    "local_cluster",
    "secret_file",
    "wait_until",
]

SECRET_FILE: Final = "cluster.secret"  # noqa: S105 - a name, no secret
SECRET_BYTES: Final = 32
TLS_DIRECTORY: Final = "tls"  # certificates of a secured cluster


@dataclass
class Cluster:
    """Brokers and their addresses. ``links`` are cut and healed by broker ids."""

    brokers: list[BrokerProcess]
    relays: RelayLinks | None = None
    directory: Path | None = None
    _apart: set[frozenset[int]] = field(default_factory=set)  # pairs whose links are cut

    @property
    def bootstrap(self) -> str:
        return ",".join(str(broker.address) for broker in self.brokers)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of clients; empty if the brokers are not secured."""
        return environment_of(self.brokers[0].settings)

    def broker(self, broker_id: int) -> BrokerProcess:
        """Return the broker with this id; ids start from 1. Raises `ValueError` for an unknown
        id."""
        for broker in self.brokers:
            if broker.id == broker_id:
                return broker
        raise ValueError(f"no broker {broker_id}; there are {[b.id for b in self.brokers]}")

    # -- all brokers

    def start(self) -> None:
        """Start all brokers that are down. Return when all, including those that ran before,
        respond and are members of the cluster.

        Does not wait for brokers that are paused, or isolated from the majority. Raises
        ``BrokerUnavailableError`` if one ends, ``TimeoutError`` if one does not join.
        """
        starting = [broker for broker in self.brokers if not broker.running]
        for broker in starting:
            broker.spawn()
        for broker in starting:
            broker.wait_ready()
        if len(self.brokers) > 1:
            self.wait_members()

    def wait_members(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the brokers of the majority are members of one cluster in the view of each.

        Returns immediately if there is no majority of brokers that run, are not paused, and reach
        each other. Raises ``BrokerUnavailableError`` with its final log output if one ends,
        ``TimeoutError``.
        """
        sides = {broker.id: self._reached_by(broker) for broker in self.brokers}
        waiting = [b for b in self.brokers if 2 * len(sides[b.id]) > len(self.brokers)]

        def has_joined(broker: BrokerProcess) -> bool:
            for other in waiting:
                if not other.running:
                    raise BrokerUnavailableError(f"broker {other.id} ended: {other.last_words()}")
            return sides[broker.id] <= members(broker.address, tls=broker.tls, secret=broker.secret)

        for broker in waiting:
            wait_until(
                partial(has_joined, broker),
                timeout_s=timeout_s,
                progress=lambda: [other.progress() for other in waiting],
                what=f"broker {broker.id} has {sorted(sides[broker.id])} in the cluster "
                f"({broker.log_path})",
            )

    def _reached_by(self, broker: BrokerProcess) -> set[int]:
        """Return the running brokers that this one reaches, including itself; empty if it does not
        run."""
        at_work = {other.id for other in self.brokers if other.running and not other.paused}
        if broker.id not in at_work:
            return set()
        return {other for other in at_work if frozenset((broker.id, other)) not in self._apart}

    def kill(self) -> None:
        """Send SIGKILL to all, at the same time if possible."""
        for broker in self.brokers:
            broker.send_kill()
        for broker in self.brokers:
            broker.kill()

    def stop(self) -> None:
        """Send SIGTERM to all, and SIGKILL to those that do not end."""
        for broker in self.brokers:
            broker.send_stop()
        for broker in self.brokers:
            broker.stop()

    def close(self) -> None:
        """Kill all processes and stop the relays. The cluster cannot be used afterwards."""
        self.kill()
        if self.relays is not None:
            self.relays.close()
            self.relays = None

    # -- brokers that join and leave

    def add(self, broker_id: int, address: Address) -> BrokerProcess:
        """Return a new broker that joins this cluster when it is started.

        It gets the settings of the first broker, except those of that broker alone.
        """
        assert self.directory is not None, "only for clusters of local_cluster"
        shared = {k: v for k, v in self.brokers[0].settings.items() if k not in _OF_ONE_BROKER}
        if "tls.broker.id.required" in shared:
            shared |= _certificates(self.directory, [broker_id]).broker_settings(broker_id)
        new = BrokerProcess(
            id=broker_id,
            address=address,
            data_dir=self.directory / f"broker-{broker_id}",
            settings={**shared, "join": self.bootstrap},
        )
        self.brokers.append(new)
        return new

    def join(self, count: int = 1, *, timeout_s: float = READY_TIMEOUT_S) -> list[BrokerProcess]:
        """Start ``count`` new brokers, with IDs that the cluster assigns. Returns when they are
        members of the cluster.

        Raises ``BrokerUnavailableError`` if one ends, ``TimeoutError`` if one does not join.
        """
        ids = reserve_ids(self, count)
        new = [self.add(broker_id, free_address()) for broker_id in ids]
        for broker in new:
            broker.spawn()
        for broker in new:
            broker.wait_ready()
        self.wait_known(new, timeout_s=timeout_s)
        return new

    def forget(self, broker_id: int) -> None:
        """Kill the process of a removed broker, and remove it from ``brokers``."""
        broker = self.broker(broker_id)
        broker.kill()
        self.brokers.remove(broker)

    def wait_known(self, brokers: Iterable[BrokerProcess], *, timeout_s: float) -> None:
        """Return when all running brokers know these as members of the cluster."""
        expected = {broker.id for broker in brokers}
        for broker in [each for each in self.brokers if each.running and not each.paused]:
            wait_until(
                partial(_knows, broker, expected),
                timeout_s=timeout_s,
                what=f"broker {broker.id} has {sorted(expected)} in the cluster "
                f"({broker.log_path})",
            )

    # -- views of the brokers

    def views(self, topic: str, partition: int) -> dict[int, PartitionDescription]:
        """Return each broker's view of a partition, by broker id, without brokers that do not
        respond."""
        asked = [broker for broker in self.brokers if broker.running and not broker.paused]
        views = {
            b.id: describe_partition(b.address, topic, partition, tls=b.tls, secret=b.secret)
            for b in asked
        }
        return {broker_id: view for broker_id, view in views.items() if view is not None}

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the broker that reports itself as leader of the partition, in the latest epoch."""
        return _leader(self.views(topic, partition))

    def is_in_sync(self, topic: str, partition: int) -> bool:
        """Return whether the leader reports all replicas in the ISR, and each replica reports that
        it has all records that the leader had."""
        views = self.views(topic, partition)
        leader = _leader(views)
        if leader is None:
            return False
        # Not its high watermark: a new leader may not know yet what is committed. A broker with an
        # empty disk has the ID of a member of the ISR, and no records.
        info, end = views[leader].info, views[leader].log_end_offset
        complete = {
            broker_id
            for broker_id, view in self.views(topic, partition).items()
            if view.log_end_offset >= end
        }
        return set(info.isr) == set(info.replicas) <= complete

    # -- faults

    def wipe(self, broker_id: int) -> None:
        """Remove a broker's data, as a new disk would. Raises `ValueError` if the broker runs."""
        broker = self.broker(broker_id)
        if broker.running:
            raise ValueError(f"broker {broker_id} is running. Kill it first")
        if broker.data_dir.exists():
            shutil.rmtree(broker.data_dir)

    def partition(self, sides: Iterable[Collection[int]]) -> None:
        """Let brokers reach each other within a side only, until the next call.

        Brokers that are in no side form another side. Clients still reach every broker.
        """
        side_of: dict[int, int] = {}
        for number, side in enumerate(sides):
            for broker_id in side:
                if side_of.setdefault(self.broker(broker_id).id, number) != number:
                    raise ValueError(f"broker {broker_id} is on two sides")
        self._set_apart(pair for pair in self._pairs() if len({*map(side_of.get, pair)}) > 1)

    def isolate(self, broker_id: int) -> None:
        """Isolate a broker from all others, in addition to earlier cuts."""
        self.broker(broker_id)
        self._set_apart(self._apart | {pair for pair in self._pairs() if broker_id in pair})

    def cut(self, one: int, other: int) -> None:
        """Cut the links between two brokers, in addition to earlier cuts; both still reach the
        others."""
        self._set_apart(self._apart | {frozenset((self.broker(one).id, self.broker(other).id))})

    def heal(self) -> None:
        """End all network partitions."""
        self._set_apart(())

    def _pairs(self) -> set[frozenset[int]]:
        return {frozenset(pair) for pair in self._relays().pairs}

    def _set_apart(self, pairs: Iterable[frozenset[int]]) -> None:
        relays, apart = self._relays(), set(pairs)
        for pair in relays.pairs:
            if frozenset(pair) in apart:
                relays.set(pair, Hold(), Reset())
            else:
                relays.clear(pair, Hold)
            relays.clear(pair, Reset)  # only the connections that were open
        self._apart = apart

    def _relays(self) -> RelayLinks:
        if self.relays is None:
            raise ValueError("this cluster was created without relays. Set with_relays=True")
        return self.relays


# Settings of one broker that the others of its cluster do not share.
_OF_ONE_BROKER: Final = ("voters", "join", "bootstrap.without", "http.listen", "kafka.listen")


def free_address() -> Address:
    return Address(HOST, free_port())


def reserve_ids(cluster: Cluster, count: int, *, is_running: bool = False) -> list[int]:
    """Have the cluster assign the IDs of ``count`` brokers that join.

    ``is_running``: another process runs the brokers.
    """
    settings = cluster.brokers[0].settings
    authority = settings.get("tls.ca.file")
    with Admin(
        [str(each.address) for each in cluster.brokers if each.running or is_running],
        cluster_secret_file=settings.get("cluster.secret.file"),
        security_protocol="SSL" if authority else "PLAINTEXT",
        ssl_cafile=authority,
    ) as admin:
        return [admin.reserve_broker_id() for _ in range(count)]


def _knows(broker: BrokerProcess, expected: Collection[int]) -> bool:
    return {*expected} <= members(broker.address, tls=broker.tls)


def _leader(views: Mapping[int, PartitionDescription]) -> int | None:
    leading = [broker_id for broker_id, view in views.items() if view.info.leader == broker_id]
    return max(leading, key=lambda broker_id: views[broker_id].info.leader_epoch, default=None)


def local_cluster(
    directory: Path,
    *,
    brokers: int = 1,
    addresses: Mapping[int, Address] | None = None,
    settings: Mapping[str, str] | None = None,
    with_relays: bool = False,
    secure: bool = False,
    voters: Mapping[int, Address] | None = None,
) -> Cluster:
    """Create the cluster in ``directory``, not started. The caller must call ``close``.

    ``addresses``: by broker id, from 1; default: free ports of this machine.
    ``with_relays``: brokers reach each other through relays, which can be cut.
    ``secure``: brokers use TLS and require authentication; ``Cluster.environment`` has the
        credentials of the administrator. Requires the package `cryptography`.
    ``voters``: addresses of the brokers that create, or have created, the cluster; the others join
        it. Default: all.
    """
    directory = directory.resolve()
    if addresses is None:
        ports = free_ports(brokers)
        addresses = {number: Address(HOST, port) for number, port in enumerate(ports, start=1)}
    shared = authentication_settings(directory / CREDENTIALS_FILE) if secure else {}
    shared.update(settings or {})
    files = _certificates(directory, addresses) if secure else None
    made = Cluster(
        [
            BrokerProcess(
                id=number,
                address=address,
                data_dir=directory / f"broker-{number}",
                settings=({} if files is None else files.broker_settings(number)) | shared,
            )
            for number, address in sorted(addresses.items())
        ],
        directory=directory,
    )
    voters = addresses if voters is None else voters
    is_alone = len(made.brokers) == len(voters) == 1 and made.brokers[0].id in voters
    if not is_alone or secure:
        _introduce(made, directory, addresses, voters, with_relays=with_relays)
    return made


def _introduce(
    made: Cluster,
    directory: Path,
    addresses: Mapping[int, Address],
    founders: Mapping[int, Address],
    *,
    with_relays: bool,
) -> None:
    """Configure the voters and the secret of each broker."""
    secret_path = secret_file(directory)
    if with_relays:
        made.relays = RelayLinks(addresses, clients=False)
    for broker in made.brokers:
        voters = dict(founders)
        for other in founders:
            if made.relays is not None and other != broker.id:
                voters[other] = made.relays.address(broker.id, other)
        broker.settings = {
            # They listen on this machine only, and their secret was created here.
            "operations.require.secret": "false",
            **broker.settings,
            **_place(broker, made, voters),
            "cluster.secret.file": str(secret_path),
        }


def _place(broker: BrokerProcess, made: Cluster, voters: Mapping[int, Address]) -> dict[str, str]:
    """Return the setting with which the broker creates or joins the cluster."""
    if broker.id in voters:
        return {"voters": ",".join(f"{number}@{at}" for number, at in sorted(voters.items()))}
    others = [str(each.address) for each in made.brokers if each is not broker]
    return {"join": ",".join(others)} if others else {}


def _certificates(directory: Path, brokers: Iterable[int]) -> Certificates:
    """Return the certificates of the cluster in ``directory``. Creates the CA, and certificates
    that name these brokers, if they do not exist."""
    files = Certificates(directory / TLS_DIRECTORY)
    missing = [broker for broker in brokers if not files.of_broker(broker)[0].exists()]
    return create(files.directory, brokers=missing) if missing else files


def secret_file(directory: Path) -> Path:
    """Return the file with the secret of the cluster in ``directory``. Creates it if it does not
    exist."""
    return private_file(directory / SECRET_FILE, secrets.token_hex(SECRET_BYTES))


@contextlib.contextmanager
def cluster(
    brokers: int = 1,
    *,
    directory: Path | None = None,
    settings: Mapping[str, str] | None = None,
    with_relays: bool | None = None,
    secure: bool = False,
) -> Iterator[Cluster]:
    """Run a cluster during the block, in ``directory`` or in a temporary directory.

    ``settings``: of every broker, as in its configuration file.
    ``with_relays``: whether ``partition`` and ``heal`` work; by default, if there is more than one
        broker. Relays cost throughput between brokers.
    ``secure``: as in ``local_cluster``.
    """
    owner = os.getpid()
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="raftlog-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        running = local_cluster(
            directory,
            brokers=brokers,
            settings=settings,
            with_relays=brokers > 1 if with_relays is None else with_relays,
            secure=secure,
        )
        stack.callback(running.close)
        running.start()
        try:
            yield running
        finally:
            if os.getpid() != owner:  # a forked child leaves the block: the parent still uses it
                stack.pop_all()
