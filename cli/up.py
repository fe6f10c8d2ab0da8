"""``raftlog up``: a local cluster in the foreground."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from raftlog import limits
from raftlog.cli import cluster_file, options, output
from raftlog.cli.cluster_file import BROKERS_DEFAULT, PORT_DEFAULT
from raftlog.cli.main import STATUS_INTERRUPTED
from raftlog.cli.supervisor import Supervisor, request_start


@click.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, limits.VOTERS_PER_CLUSTER_MAX),
    help="How many, best an odd number; a directory keeps the number it was made with.  "
    f"[default: the last run's, or {BROKERS_DEFAULT}]",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="raftlog-data",
    show_default=True,
    help="Where everything is stored; the same directory resumes the cluster.",
)
@click.option(
    "--port",
    type=click.IntRange(0, cluster_file.PORT_MAX),
    help="The first broker's port, the others' follow; 0 takes free ones.  "
    f"[default: the last run's, or {PORT_DEFAULT}]",
)
@click.option("--restart", is_flag=True, help="Start a broker again when it ends by itself.")
@click.option(
    "--start",
    "start_id",
    type=click.IntRange(min=1),
    help="Bring back this broker of the cluster that runs in the same --data-dir, and return.",
)
@options.as_json
@click.pass_context
def up(
    context: click.Context,
    brokers: int | None,
    data_dir: Path,
    port: int | None,
    restart: bool,
    start_id: int | None,
    as_json: bool,
) -> None:
    """Run a local cluster in the foreground.

    Ctrl-C stops it; the same --data-dir resumes it, with all its records. A broker that is killed
    stays down unless --restart; `raftlog up --start ID` in another shell brings it back, even if
    its disk (DIR/broker-ID) is gone. DIR/cluster.json says at any time what runs where.

    \b
    Example:
      raftlog up --data-dir raftlog-data --port 9100
    """
    if start_id is not None:
        address = request_start(data_dir, start_id)
        if as_json:
            output.print_json({"id": start_id, "address": str(address), "ready": True})
        else:
            click.echo(f"broker {start_id} ready at {address}")
        return
    addresses = cluster_file.choose_addresses(data_dir, brokers=brokers, port=port)
    supervisor = Supervisor(data_dir, addresses=addresses, restart=restart, note=output.note)
    context.exit(_run(supervisor, as_json=as_json))


def _run(supervisor: Supervisor, *, as_json: bool) -> int:
    stopping = threading.Event()
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        stopping.set()

    supervisor.start()  # Ctrl-C until here is an ordinary KeyboardInterrupt
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
    state = cluster_file.describe(supervisor.cluster)
    if as_json:
        output.print_json({**state, "ready": True})
        return
    for broker in state["brokers"]:
        click.echo(f"broker {broker['id']}: process {broker['pid']}, data in {broker['data_dir']}")
    click.echo(f"bootstrap: {state['bootstrap']}")
    click.echo("ready")
