"""``raftlog broker``: run one broker in this process until a signal stops it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from raftlog.config import (
    Address,
    BrokerConfig,
    parse_address,
    parse_addresses,
    parse_voters,
    read_toml,
)
from raftlog.disk import OsDisk
from raftlog.errors import BrokerUnavailableError, InvalidConfigError
from raftlog.server.broker import read_secret
from raftlog.server.main import run
from raftlog.storage.state_files import stored_identity
from raftlog_cli import options, output
from raftlog_cli.main import Failed, describe_os_error
from raftlog_cli.workers import PAUSE_S_MIN, WORKERS, Supervisor, configs_of

if TYPE_CHECKING:
    from raftlog_cli.console.app import Console


@click.command()
@click.option(
    "--config",
    "config_path",
    envvar="RAFTLOG_CONFIG",
    show_envvar=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file of settings; the options below override it.",
)
@click.option(
    "--id", "broker_id", type=click.IntRange(min=0), help="ID of the broker, unique in the cluster."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=options.checked(parse_address),
    help="Address to listen on.",
)
@click.option("--data-dir", metavar="DIR", help="Data directory.")
@click.option(
    "--voters",
    metavar="ID@HOST:PORT,...",
    callback=options.checked(parse_voters),
    help="Voters of the cluster, including this broker; the same list on each voter.",
)
@click.option(
    "--bootstrap-without",
    metavar="ID,...",
    help="Voters to exclude at the first start, because they are new or lost permanently.",
)
@click.option(
    "--cluster-secret-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the secret of the cluster, which all brokers share.",
)
@click.option(
    "--join",
    metavar="HOST:PORT,...",
    callback=options.checked(parse_addresses),
    help="Join the running cluster of these brokers; one of them must respond.",
)
@click.option("--rack", help="Rack of the broker. Replicas are placed in different racks.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _context, _parameter, pairs: dict(map(options.key_and_value, pairs)),
    help="Any other setting; may be repeated.",
)
@click.option(
    "--workers",
    type=WORKERS,
    default=1,
    show_default=True,
    envvar="RAFTLOG_WORKERS",
    metavar="N|auto",
    help="Brokers on this host, each of which uses a core: on the next ports. auto: one per core.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow a listener beyond this machine without TLS and authentication.",
)
@click.option(
    "--stop-with-stdin",
    is_flag=True,
    help="Stop when standard input closes; for programs that start brokers.",
)
@click.pass_context
def broker(
    context: click.Context,
    config_path: Path | None,
    broker_id: int | None,
    listen: str | None,
    data_dir: str | None,
    voters: str | None,
    bootstrap_without: str | None,
    cluster_secret_file: str | None,
    join: str | None,
    rack: str | None,
    settings: dict[str, str],
    workers: int,
    insecure: bool,
    stop_with_stdin: bool,
) -> None:
    """Run one broker.

    With --workers, it runs several that share this host, each of which uses a core.

    The broker logs to stderr: "ready" with its address when it can serve requests. SIGTERM or
    Ctrl-C stops it after the requests in flight are completed. Without --voters and --join it is a
    cluster of one broker. A broker that has joined a cluster does not require --join or --voters at
    later starts. A broker that joins without --id receives its ID from the cluster.

    \b
    Example:
      raftlog broker --id 1 --listen 127.0.0.1:9100 --data-dir raftlog-data/broker-1
      raftlog broker --id 2 --listen 10.0.0.2:9100 --data-dir data --cluster-secret-file secret \\
          --voters 1@10.0.0.1:9100,2@10.0.0.2:9100,3@10.0.0.3:9100
      raftlog broker --join 10.0.0.1:9100,10.0.0.2:9100 --listen 10.0.0.4:9100 --data-dir data \\
          --cluster-secret-file secret
      raftlog broker --workers auto --config raftlog.toml
    """
    if workers > 1 and stop_with_stdin:
        raise click.UsageError("--stop-with-stdin is for one broker, and not for --workers")
    given = {
        "id": broker_id,
        "listen": listen,
        "data.dir": data_dir,
        "voters": voters,
        "bootstrap.without": bootstrap_without,
        "join": join,
        "rack": rack,
        "cluster.secret.file": cluster_secret_file,
    }
    overrides = settings | {key: str(value) for key, value in given.items() if value is not None}
    if insecure:
        overrides["insecure.allowed"] = "true"
    document = options.read_text(config_path) if config_path else ""
    config = BrokerConfig.from_toml(document, overrides)
    names_itself = "id" in {**read_toml(document), **overrides}
    if workers > 1:
        _run_workers(context, config, workers, names_itself=names_itself)
    if not names_itself:
        config = with_id(config)
    if stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    context.exit(run(config, _make_api))


def _run_workers(
    context: click.Context, config: BrokerConfig, count: int, *, names_itself: bool
) -> NoReturn:
    first, *others = configs_of(config, count)
    ports = [each.http_listen for each in others if each.http_listen is not None]
    starts = [
        partial(_run_worker, first, names_itself=names_itself, workers=ports),
        *(partial(_run_worker, each, names_itself=False) for each in others),
    ]
    context.exit(Supervisor(starts, say=partial(click.echo, err=True)).run())


def _run_worker(
    config: BrokerConfig, *, names_itself: bool, workers: Sequence[Address] = ()
) -> int:
    """Run a worker. One that joins waits for the cluster, which gives it an ID. ``workers``: HTTP
    ports of the others.
    """
    while not names_itself:
        try:
            config, names_itself = with_id(config), True
        except BrokerUnavailableError:
            time.sleep(PAUSE_S_MIN)
    return run(config, _make_api, workers)


def _make_api(address: Address, config: BrokerConfig) -> Console:
    from raftlog_cli.console.app import Console  # with the libraries of the HTTP port

    return Console(str(address), config)


def _stop_with_stdin() -> None:
    """Stop the broker at the end of standard input: the process that started it has ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


# -- joining ---------------------------------------------------------------------------------------
#
# ID of a broker that joins a cluster without --id: from its data directory, or a new one.


TIMEOUT_MS: Final = 30_000  # for the response of a broker of the cluster


def with_id(config: BrokerConfig) -> BrokerConfig:
    """Return the settings with the ID of the data directory. In a new directory, a broker that
    joins a cluster gets the next ID of the cluster.

    Raises ``RaftlogError`` if no broker of the cluster responds or the directory is unreadable.
    """
    identity = stored_identity(OsDisk(), config.data_dir)
    if identity is not None:
        return replace(config, id=identity.broker_id)
    if not config.join:
        return config
    if config.tls_broker_id_required:
        raise InvalidConfigError(
            "tls.broker.id.required: the certificate of this broker names its ID, so the cluster "
            "cannot assign one. Set --id to the ID in the certificate"
        )
    from raftlog import Admin  # only here: other brokers start faster without the client

    with Admin(
        [str(address) for address in config.join],
        cluster_secret=read_secret(config).decode(),
        security_protocol="SSL" if config.tls_ca_file else "PLAINTEXT",
        ssl_cafile=config.tls_ca_file or None,
        ssl_certfile=config.tls_certificate_file or None,
        ssl_keyfile=config.tls_key_file or None,
        bootstrap_timeout_ms=TIMEOUT_MS,
    ) as admin:
        return replace(config, id=admin.reserve_broker_id())


# -- ready -----------------------------------------------------------------------------------------
#
# ``raftlog ready``: wait until a broker is ready, or can be restarted. For scripts.


INTERVAL_S: Final = 0.5
REQUEST_S: Final = 3.0
TIMEOUT_S_DEFAULT: Final = 60.0


@click.command()
@click.argument("url", metavar="URL", callback=options.parsed(options.http_url))
@click.option(
    "--restart", is_flag=True, help="Wait until all partitions accept writes without this broker."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=options.FiniteRange(min=0),
    default=TIMEOUT_S_DEFAULT,
    show_default=True,
    help="Seconds to wait; 0: query once.",
)
@options.ca_file
@options.as_json
def ready(url: str, restart: bool, timeout_s: float, ca_file: str | None, as_json: bool) -> None:
    """Wait until a broker is ready, or can be restarted.

    URL is the address of http.listen of the broker: https:// with authentication.required. A broker
    is ready if it has joined the cluster, its replicas are in sync, and its disk works. Exit status
    1, with the reasons, after --timeout.

    \b
    Example:
      raftlog ready http://127.0.0.1:9200 --restart && systemctl restart raftlog
    """
    tls = options.https(ca_file)
    deadline = time.monotonic() + timeout_s
    while True:
        is_ok, found, reason = _query(url, restart=restart, tls=tls)
        if is_ok:
            what = "safe to restart" if restart else "ready"
            output.report(found, f"{url} is {what}", as_json=as_json)
            return
        if time.monotonic() >= deadline:
            raise Failed(f"{url} is not {'safe to restart' if restart else 'ready'}: {reason}")
        time.sleep(INTERVAL_S)


def _query(
    url: str, *, restart: bool, tls: ssl.SSLContext | None
) -> tuple[bool, dict[str, Any], str]:
    """Return whether the broker is ready, its response, and the reasons if it is not."""
    request = urllib.request.Request(  # noqa: S310 - only http and https
        f"{url.rstrip('/')}/readyz{'?restart' if restart else ''}",
        headers={"Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_S, context=tls) as response:  # noqa: S310 - only http and https
            return True, json.load(response), ""
    except urllib.error.HTTPError as error:
        with error:
            try:
                found: dict[str, Any] = json.load(error)
                return False, found, "; ".join([*found["not_ready"], *found["not_safe"]])
            except (ValueError, KeyError, TypeError):
                return (
                    False,
                    {},
                    f"status {error.code}. Check that this is the http.listen of a broker",
                )
    except (ValueError, http.client.HTTPException):
        return False, {}, "the response is not that of a broker's http.listen"
    except OSError as error:
        return False, {}, describe_os_error(error)
