"""``raftlog broker``: run one broker in this process until a signal stops it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftlog.config import (
    Address,
    BrokerConfig,
    parse_address,
    parse_addresses,
    parse_voters,
    read_toml,
)
from raftlog.server.main import run
from raftlog_cli import options
from raftlog_cli.joining import with_id

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
    insecure: bool,
    stop_with_stdin: bool,
) -> None:
    """Run one broker.

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
    """
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
    if "id" not in {**read_toml(document), **overrides}:
        config = with_id(config)
    if stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    context.exit(run(config, _make_api))


def _make_api(address: Address, config: BrokerConfig) -> Console:
    from raftlog_cli.console.app import Console  # with the libraries of the HTTP port

    return Console(str(address), config)


def _stop_with_stdin() -> None:
    """Stop the broker at the end of standard input: the process that started it has ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
