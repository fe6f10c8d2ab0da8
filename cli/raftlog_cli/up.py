"""``raftlog up``: run a local cluster in the foreground."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import click

from raftlog import limits
from raftlog.client import profiles
from raftlog.config import Address, parse_address, parse_voters
from raftlog.config.address import PORT_MAX
from raftlog.disk import DIRECTORY_MODE, Lock, OsDisk
from raftlog.errors import BrokerUnavailableError, DataDirectoryError, RefusedError, counted
from raftlog.server.main import STATUS_REMOVED
from raftlog.testing import BrokerProcess, Cluster, wait_until
from raftlog.testing.certificates import Certificates
from raftlog.testing.cluster import (
    CREDENTIALS_FILE,
    HOST,
    PROFILE_FILE,
    TLS_DIRECTORY,
    answers,
    check_free,
    free_address,
    free_ports,
    local_cluster,
    members,
    progress,
    reserve_ids,
    write_profile,
)
from raftlog.tls import client_context
from raftlog_cli import options, output
from raftlog_cli.main import STATUS_INTERRUPTED
from raftlog_cli.workers import WORKERS

# -- supervisor ------------------------------------------------------------------------------------
#
# Supervisor of the brokers of ``raftlog up``, and ``cluster.json`` with processes and addresses.
#
# A supervisor locks ``up.lock`` of its directory. Another process requests the start of a broker
# with a file ``start-ID``. So every broker is a child of the supervisor, and no other process
# signals it.


# -- cluster.json ----------------------------------------------------------------------------------


CLUSTER_FILE: Final = "cluster.json"
HTTP_LISTEN: Final = "http.listen"
HTTP_READ_ONLY: Final = "http.console.read.only"
IDENTITY_FILE: Final = "identity"  # of a broker that has started
BROKERS_DEFAULT: Final = 3
FOUNDERS_MIN: Final = 3  # hosts; with fewer, all brokers create the cluster
PORT_DEFAULT: Final = 9100


def describe_cluster(cluster: Cluster, workers: int = 1) -> dict[str, Any]:
    """Return the contents of the file. The pid of a broker that is down is null. ``workers``:
    brokers of each host.
    """
    return {
        "bootstrap": cluster.bootstrap,
        "environment": environment_of(cluster),
        "voters": _voters_of(cluster),
        "workers": workers,
        "brokers": [
            {
                "id": broker.id,
                "pid": broker.pid,
                "address": str(broker.address),
                "data_dir": str(broker.data_dir),
                "http": _http_of(broker),
            }
            for broker in cluster.brokers
        ],
    }


def environment_of(cluster: Cluster) -> dict[str, str]:
    """Return the environment variables of clients, with a profile instead of a password."""
    credentials = cluster.brokers[0].settings.get("admin.credentials.file")
    if credentials is None:
        return cluster.environment
    return {profiles.VARIABLE: str(Path(credentials).with_name(PROFILE_FILE))}


def _voters_of(cluster: Cluster) -> str:
    """Return the voters setting of the cluster."""
    named = (broker.settings.get("voters", "") for broker in cluster.brokers)
    return next(filter(None, named), "")


def _http_of(broker: BrokerProcess) -> str | None:
    """Return the URL of the HTTP port of a broker; None without one."""
    address = broker.settings.get(HTTP_LISTEN)
    if address is None:
        return None
    return f"{'https' if _authenticates(broker) else 'http'}://{address}"


def _authenticates(broker: BrokerProcess) -> bool:
    """Return whether the broker requires authentication. With `raftlog up`, this implies TLS."""
    return broker.settings.get("authentication.required") == "true"


def choose_http(directory: Path, addresses: Mapping[int, Address]) -> dict[int, Address]:
    """Return the address of the HTTP port by broker ID: that of the last run, or a free one.

    ``addresses``: of the brokers. The ports can change, so that a process that uses one does not
    prevent the start of the cluster.
    """
    taken = {address.port for address in addresses.values()}
    free = [port for port in free_ports(2 * len(addresses)) if port not in taken]
    last = recorded_addresses(directory, "http")
    chosen = {}
    for broker, port in zip(addresses, free, strict=False):
        chosen[broker] = Address(HOST, port)
        with suppress(KeyError, BrokerUnavailableError):
            check_free(last[broker])
            chosen[broker] = last[broker]
    return chosen


def write_cluster_file(directory: Path, cluster: Cluster, workers: int = 1) -> None:
    """Write ``cluster.json`` with the current state. The file is replaced atomically."""
    text = json.dumps(describe_cluster(cluster, workers), indent=2) + "\n"
    OsDisk().write_atomic(str(directory / CLUSTER_FILE), text.encode())


def recorded_addresses(directory: Path, field: str = "address") -> dict[int, Address]:
    """Return the addresses of the last run in ``directory``, by broker ID.

    ``field``: "address", or "http" for the HTTP ports. Brokers without one are omitted.
    """
    path = directory / CLUSTER_FILE
    if not path.exists():
        return {}
    with _naming(path):
        brokers = json.loads(path.read_bytes())["brokers"]
        texts = {int(entry["id"]): entry.get(field) for entry in brokers}
        if field == "address" and None in texts.values():
            raise ValueError("a broker has no address")
        return {broker: _parse(text) for broker, text in texts.items() if text is not None}


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise ``DataDirectoryError`` for a file that is not one of ``raftlog up``."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataDirectoryError(
            f"{path} is not a file of `raftlog up`: it is no JSON, or a broker has no ID or "
            "address. Remove it"
        ) from error


def console_urls(directory: Path) -> list[str]:
    """Return the URLs of the HTTP ports of the last run in ``directory``."""
    scheme = "https" if (directory / CREDENTIALS_FILE).exists() else "http"
    return [f"{scheme}://{at}/" for at in recorded_addresses(directory, "http").values()]


def recorded_workers(directory: Path) -> int:
    """Return the number of brokers of each host in the last run in ``directory``; 1 without one."""
    path = directory / CLUSTER_FILE
    with _naming(path):
        return int(json.loads(path.read_bytes()).get("workers", 1)) if path.exists() else 1


def founders_of(
    directory: Path, addresses: Mapping[int, Address], workers: int = 1
) -> dict[int, Address]:
    """Return the addresses of the brokers that create, or have created, the cluster in
    ``directory``, by ID.

    ``addresses``: of the next run. Brokers that were removed since are included: the others must
    not create another cluster without them. ``workers``: brokers of each host. Of several hosts,
    the first broker of each is a founder, so that the loss of a host is that of one voter.
    """
    path = directory / CLUSTER_FILE
    if path.exists():
        text = json.loads(path.read_bytes()).get("voters", "")
        voters = {voter.id: voter.address for voter in parse_voters(text)}
        return {broker: addresses.get(broker, at) for broker, at in voters.items()} or dict(
            addresses
        )
    homes = [directory / f"broker-{broker}" for broker in addresses]
    if any((each / IDENTITY_FILE).exists() for each in homes):
        return dict(addresses)
    firsts = {host_of(broker, workers): broker for broker in sorted(addresses, reverse=True)}
    chosen = sorted(firsts.values() if len(firsts) >= FOUNDERS_MIN else addresses)
    return {broker: addresses[broker] for broker in chosen[: limits.VOTERS_PER_CLUSTER_MAX]}


def choose_workers(directory: Path, workers: int | None) -> int:
    """Return the number of brokers of each host in the next run. Raises ``RefusedError`` if
    ``directory`` has another one.
    """
    last = recorded_workers(directory)
    if workers not in (None, last) and recorded_addresses(directory):
        raise RefusedError(
            f"{directory} contains a cluster of {counted(last, 'broker')} on each host, not of "
            f"{workers}: omit --workers to resume it, or pass another --data-dir"
        )
    return workers or last


def host_of(broker: int, workers: int) -> int:
    """Return the number of the host of a broker, from 1."""
    return (broker - 1) // workers + 1


def _parse(text: str) -> Address:
    return parse_address(text.rpartition("/")[2])


def certificates_of(directory: Path) -> Certificates | None:
    """Return the certificates of a secured cluster in ``directory``; None if it has none."""
    files = Certificates(directory.resolve() / TLS_DIRECTORY)
    return files if files.ca.exists() else None


def _cluster(
    directory: Path, addresses: Mapping[int, Address], *, workers: int = 1, secure: bool = False
) -> Cluster:
    """Return the cluster in ``directory``. With certificates, the brokers use TLS; with an
    administrator or ``secure``, they require authentication. ``workers``: brokers of each host.
    """
    secure = secure or (directory / CREDENTIALS_FILE).exists()
    only_tls = None if secure else certificates_of(directory)
    return local_cluster(
        directory,
        addresses=addresses,
        settings=None if only_tls is None else only_tls.broker_settings(),
        secure=secure,
        voters=founders_of(directory, addresses, workers),
    )


def choose_addresses(
    directory: Path, *, brokers: int | None, port: int | None, workers: int = 1
) -> dict[int, Address]:
    """Return the addresses for the next run in ``directory``, by broker ID.

    ``brokers``: number of brokers; None: that of ``directory``, or 3. ``port``: first port; None:
    the ports of the last run, or from 9100 on; 0: free ports. ``workers``: more than 1: brokers of
    each host; ``brokers`` are hosts then, and None is one.

    Raises ``RefusedError`` if the directory has another number of brokers, or a port would exceed
    the maximum.
    """
    last = recorded_addresses(directory)
    held = len(last) or len(list(directory.glob("broker-*/")))
    default = BROKERS_DEFAULT if workers == 1 else workers
    count = workers * brokers if brokers else held or default
    if count > limits.BROKERS_PER_CLUSTER_MAX:
        raise RefusedError(
            f"{counted(count, 'broker')} are over BROKERS_PER_CLUSTER_MAX "
            f"({limits.BROKERS_PER_CLUSTER_MAX})"
        )
    if held and count != held:
        raise RefusedError(
            f"{directory} contains a cluster of {held} broker{'s' * (held > 1)}, not of {count}: "
            "omit --brokers to resume it, or pass another --data-dir"
        )
    if port is None and last:
        return last
    first = PORT_DEFAULT if port is None else port
    if first + count - 1 > PORT_MAX:
        raise RefusedError(f"{counted(count, 'broker')} need ports {first} to {first + count - 1}")
    ports = free_ports(count) if first == 0 else range(first, first + count)
    ids = sorted(last) or range(1, count + 1)  # IDs are not reused: some may be missing
    return {number: Address(HOST, port) for number, port in zip(ids, ports, strict=True)}


# -- the brokers -----------------------------------------------------------------------------------


LOCK_FILE: Final = "up.lock"
POLL_INTERVAL_S: Final = 0.05
RESTART_DELAY_S: Final = 1.0  # limits the restarts of a broker that cannot run
STALLED_S: Final = 30.0  # without progress, a start has failed
ADD_PREFIX: Final = "add-"  # of a request to add a broker; the rest is its ID

Note = Callable[[str], None]


class Supervisor:
    """The brokers of one directory, from ``start`` to ``stop``."""

    def __init__(
        self,
        directory: Path,
        *,
        addresses: Mapping[int, Address],
        restart: bool,
        note: Note,
        secure: bool = False,
        workers: int = 1,
    ) -> None:
        """``secure``: create certificates and an administrator if the directory has none.
        ``workers``: brokers of each host; replicas of a partition are on different hosts, where
        there are enough.
        """
        self._directory = directory.resolve()
        self._directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        self._lock = self._take_lock()
        certificates = certificates_of(directory)
        http = choose_http(self._directory, addresses)
        self._workers = workers
        self.cluster = _cluster(self._directory, addresses, workers=workers, secure=secure)
        for broker in self.cluster.brokers:
            broker.settings = {
                **broker.settings,
                **self._rack_of(broker.id),
                HTTP_LISTEN: str(http[broker.id]),
                # With certificates alone, any program on this machine could change the cluster.
                HTTP_READ_ONLY: str(
                    certificates is not None and not _authenticates(broker)
                ).lower(),
            }
        credentials = self._directory / CREDENTIALS_FILE
        if credentials.exists():
            files = Certificates(self._directory / TLS_DIRECTORY)
            profile = self._directory / PROFILE_FILE
            write_profile(profile, files, credentials, self.cluster.bootstrap)
        self._restart = restart
        self._note = note
        self._up: dict[int, int] | None = None  # pid in cluster.json by broker ID
        self._restart_at: dict[int, float] = {}
        self._is_new = not any(
            (broker.data_dir / "identity").exists() for broker in self.cluster.brokers
        )

    def _rack_of(self, broker: int) -> dict[str, str]:
        return {} if self._workers == 1 else {"rack": f"host-{host_of(broker, self._workers)}"}

    def _take_lock(self) -> Lock:
        try:
            return OsDisk().lock(str(self._directory / LOCK_FILE))
        except BlockingIOError as error:
            raise DataDirectoryError(
                f"another `raftlog up` runs in {self._directory}: stop it, "
                "or use another --data-dir"
            ) from error

    def describe(self) -> dict[str, Any]:
        """Return the contents of ``cluster.json``."""
        return describe_cluster(self.cluster, self._workers)

    def start(self) -> None:
        """Start all brokers, and wait until they respond and have joined the cluster.

        A minority that does not start is reported, and remains down until its start is requested.
        Raises ``BrokerUnavailableError`` if a majority does not start, or any broker of a new
        cluster, whose creation requires all of them.
        """
        try:
            for broker in self.cluster.brokers:
                _check_port(broker.address)
            self._record()  # before anything can fail: the directory identifies the cluster
            for broker in self.cluster.brokers:
                broker.spawn()
            self._await_ready()
            self.cluster.wait_members()
        except BaseException:
            self.stop()
            raise
        self._record()

    def _await_ready(self) -> None:
        failed: list[BrokerUnavailableError] = []
        for broker in self.cluster.brokers:
            try:
                broker.wait_ready()
            except BrokerUnavailableError as error:
                failed.append(error)
                if self._is_new or 2 * len(failed) >= len(self.cluster.brokers):
                    raise
                self._note(str(error))
                broker.kill()

    def run(self, stopping: threading.Event) -> None:
        """Watch the brokers and the requests in the directory until ``stopping`` is set."""
        while not stopping.wait(POLL_INTERVAL_S):
            for broker in list(self.cluster.brokers):
                self._check(broker)
            for request in sorted(self._directory.glob(f"{ADD_PREFIX}*")):
                self._add(request)
            self._record()

    def stop(self) -> None:
        """Stop every broker and release the lock of the directory."""
        self.cluster.stop()
        if self._up is not None:
            self._record()
        self._lock.release()

    def _add(self, request: Path) -> None:
        """Start a broker that joins the cluster, with the ID in the name of the request."""
        try:
            broker_id = int(request.name.removeprefix(ADD_PREFIX))
        except ValueError:
            return  # the file of another program
        request.unlink(missing_ok=True)
        if any(broker.id == broker_id for broker in self.cluster.brokers):
            return
        broker = self.cluster.add(broker_id, free_address())
        http = {HTTP_LISTEN: str(free_address())}
        broker.settings = {**broker.settings, **self._rack_of(broker_id), **http}
        self._spawn(broker)

    def _check(self, broker: BrokerProcess) -> None:
        request = self._directory / f"start-{broker.id}"
        wanted = request.exists()
        if broker.running:
            request.unlink(missing_ok=True)
            return
        if broker.exit_status == STATUS_REMOVED:
            self._note(f"broker {broker.id} was removed from the cluster")
            self.cluster.forget(broker.id)
            return
        if self._up and broker.id in self._up:
            self._restart_at[broker.id] = time.monotonic() + RESTART_DELAY_S
            status = broker.exit_status or 0
            killed = f"signal {-status}, {signal.strsignal(-status)}"
            reason = killed if status < 0 else broker.last_words()
            again = "" if self._restart else f". Start it: raftlog up --start {broker.id}"
            self._note(f"broker {broker.id} has ended: {reason}{again}")
        due = self._restart and time.monotonic() >= self._restart_at.get(broker.id, 0.0)
        if wanted or due:
            request.unlink(missing_ok=True)
            self._restart_at[broker.id] = time.monotonic() + RESTART_DELAY_S
            self._spawn(broker)

    def _spawn(self, broker: BrokerProcess) -> None:
        try:
            broker.spawn()
        except (
            BrokerUnavailableError
        ) as error:  # another process took its port: the others continue
            self._note(f"broker {broker.id} cannot start: {error}")
        else:
            self._note(f"broker {broker.id} restarted as process {broker.pid}")

    def _record(self) -> None:
        up = {broker.id: broker.pid for broker in self.cluster.brokers if broker.pid is not None}
        if up != self._up or not (self._directory / CLUSTER_FILE).exists():
            self._up = up
            write_cluster_file(self._directory, self.cluster, self._workers)


def _progress(directory: Path, ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return a value that changes while these brokers of the last run work."""
    rows = json.loads((directory / CLUSTER_FILE).read_bytes())["brokers"]
    pids = {row["id"]: row["pid"] for row in rows}
    return [progress(pids.get(broker), directory / f"broker-{broker}.log") for broker in ids]


def request_start(directory: Path, broker_id: int) -> Address:
    """Request the start of a broker from the supervisor. Returns its address once it responds."""
    addresses = _recorded_cluster(directory)
    if broker_id not in addresses:
        known = ", ".join(map(str, addresses))
        raise RefusedError(f"the cluster in {directory} has no broker {broker_id}; it has: {known}")
    _need_supervisor(directory)
    request = directory / f"start-{broker_id}"
    request.touch()
    address = addresses[broker_id]
    certificates = certificates_of(directory)
    tls = None if certificates is None else client_context(ca=str(certificates.ca))
    try:
        wait_until(
            lambda: not request.exists() and answers(address, tls=tls),
            timeout_s=STALLED_S,
            progress=lambda: _progress(directory, [broker_id]),
            what=f"broker {broker_id} at {address} responds",
        )
    finally:
        request.unlink(missing_ok=True)
    return address


def request_add(directory: Path, count: int) -> dict[int, Address]:
    """Request new brokers from the supervisor. Returns their addresses once they have joined."""
    addresses = _recorded_cluster(directory)
    _need_supervisor(directory)
    certificates = certificates_of(directory)
    cluster = _cluster(directory, addresses)
    secret = cluster.brokers[0].secret
    ids = reserve_ids(cluster, count, is_running=True)
    requests = [directory / f"{ADD_PREFIX}{broker}" for broker in ids]
    for request in requests:
        request.touch()
    tls = None if certificates is None else client_context(ca=str(certificates.ca))

    def have_joined() -> bool:
        known = recorded_addresses(directory)
        return {*ids} <= known.keys() and all(
            {*ids} <= members(known[broker], tls=tls, secret=secret) for broker in ids
        )

    try:
        wait_until(
            have_joined,
            timeout_s=STALLED_S,
            progress=lambda: _progress(directory, ids),
            what=f"brokers {ids} have joined",
        )
    finally:
        for request in requests:
            request.unlink(missing_ok=True)
    known = recorded_addresses(directory)
    return {broker: known[broker] for broker in ids}


def _recorded_cluster(directory: Path) -> dict[int, Address]:
    """Return the addresses of the last run. Raises ``RefusedError`` without a cluster."""
    addresses = recorded_addresses(directory)
    if not addresses:
        raise RefusedError(
            f"{directory} has no cluster of `raftlog up`. Pass the directory of the cluster with "
            "--data-dir"
        )
    return addresses


def _check_port(address: Address) -> None:
    try:
        check_free(address)
    except BrokerUnavailableError as error:
        raise BrokerUnavailableError(
            f"cannot listen on {address}: another process uses this port, or the address is not "
            "that of this machine. Pass another port with --port, such as --port 0 for free ports"
        ) from error


def _need_supervisor(directory: Path) -> None:
    try:
        OsDisk().lock(str(directory / LOCK_FILE)).release()
    except BlockingIOError:
        return  # a supervisor holds the lock
    raise RefusedError(
        f"no `raftlog up` runs in {directory}: run `raftlog up --data-dir {directory}`, "
        "which starts all of its brokers"
    )


# -- up --------------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, limits.VOTERS_PER_CLUSTER_MAX),
    help="Number of brokers; use an odd number. Add more later with --add.  "
    f"[default: as in the last run, or {BROKERS_DEFAULT}]",
)
@click.option(
    "--workers",
    type=WORKERS,
    metavar="N|auto",
    help="Brokers of one host, or of each of --brokers hosts: a broker uses about one core. "
    "auto: as many as there are cores.  [default: as in the last run, or 1]",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="raftlog-data",
    show_default=True,
    help="Data directory. The same directory resumes the cluster.",
)
@click.option(
    "--port",
    type=click.IntRange(0, PORT_MAX),
    help="Port of the first broker; the others use the next ports. 0: free ports.  "
    f"[default: as in the last run, or {PORT_DEFAULT}]",
)
@click.option("--restart", is_flag=True, help="Restart a broker that exits.")
@click.option(
    "--secure",
    is_flag=True,
    help="Use TLS and require authentication. DIR/admin.toml is the profile of the administrator. "
    "The directory remains secured.",
)
@click.option(
    "--start",
    "start_id",
    type=click.IntRange(min=1),
    help="Start this broker of the running cluster in the same --data-dir, and return.",
)
@click.option(
    "--add",
    type=click.IntRange(1, limits.BROKERS_PER_CLUSTER_MAX),
    help="Add this many brokers to the running cluster in the same --data-dir, and return.",
)
@options.as_json
@click.pass_context
def up(
    context: click.Context,
    brokers: int | None,
    workers: int | None,
    data_dir: Path,
    port: int | None,
    restart: bool,
    secure: bool,
    start_id: int | None,
    add: int | None,
    as_json: bool,
) -> None:
    """Run a local cluster in the foreground.

    Ctrl-C stops the cluster. The same --data-dir resumes it with all records. A killed broker
    remains down unless --restart is set. `raftlog up --start ID` in another shell starts it, even
    if its directory (DIR/broker-ID) was deleted. DIR/cluster.json lists processes and addresses.

    \b
    Example:
      raftlog up --data-dir raftlog-data --port 9100
      raftlog up --data-dir raftlog-data --add 2
      raftlog up --data-dir wide-data --brokers 3 --workers 2
    """
    if start_id is not None:
        address = request_start(data_dir, start_id)
        if as_json:
            output.print_json({"id": start_id, "address": str(address), "ready": True})
        else:
            click.echo(f"broker {start_id} ready at {address}")
        return
    if add is not None:
        added = request_add(data_dir, add)
        if as_json:
            rows = [{"id": number, "address": str(at)} for number, at in added.items()]
            output.print_json({"added": rows})
        else:
            for number, at in added.items():
                click.echo(f"broker {number} has joined at {at}")
            click.echo("to move replicas to it: raftlog cluster rebalance")
        return
    workers = choose_workers(data_dir, workers)
    addresses = choose_addresses(data_dir, brokers=brokers, port=port, workers=workers)
    supervisor = Supervisor(
        data_dir,
        addresses=addresses,
        restart=restart,
        note=output.note,
        secure=secure,
        workers=workers,
    )
    context.exit(_run(supervisor, as_json=as_json))


def _run(supervisor: Supervisor, *, as_json: bool) -> int:
    stopping = threading.Event()
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        stopping.set()

    supervisor.start()  # until here, Ctrl-C raises KeyboardInterrupt
    previous = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        _announce(supervisor, as_json=as_json)
        supervisor.run(stopping)
    finally:
        supervisor.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
    return STATUS_INTERRUPTED if received and received[0] == signal.SIGINT else 0


def _announce(supervisor: Supervisor, *, as_json: bool) -> None:
    state = supervisor.describe()
    if as_json:
        output.print_json({**state, "ready": True})
        return
    for broker in state["brokers"]:
        click.echo(f"broker {broker['id']}: process {broker['pid']}, data in {broker['data_dir']}")
        click.echo(f"broker {broker['id']}: console, metrics and health at {broker['http']}")
    click.echo(f"bootstrap: {state['bootstrap']}")
    if state["environment"]:
        variables = " ".join(f"{name}={value}" for name, value in state["environment"].items())
        click.echo(f"clients: export {variables}")
    click.echo("ready")
