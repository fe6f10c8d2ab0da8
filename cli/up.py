"""``raftlog up``: a local cluster in the foreground."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Final

import click

from cli import options, output
from cli.main import STATUS_INTERRUPTED
from cli.supervisor import Supervisor, recorded_addresses, request_start

PORT_DEFAULT: Final = 9100


@click.command()
@click.option(
    "--brokers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many; this release runs one.",
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
    type=click.IntRange(0, 65_535),
    help=f"The broker's port; 0 takes a free one.  [default: the last run's, or {PORT_DEFAULT}]",
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
    brokers: int,
    data_dir: Path,
    port: int | None,
    restart: bool,
    start_id: int | None,
    as_json: bool,
) -> None:
    """Run a local cluster in the foreground.

    Ctrl-C stops it. A broker that is killed stays down unless --restart; `raftlog up --start ID` in
    another shell brings it back. DIR/cluster.json says at any time what runs where.

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
    if port is None:
        last = recorded_addresses(data_dir).get(1)
        port = last.port if last else PORT_DEFAULT
    supervisor = Supervisor(data_dir, brokers=brokers, port=port, restart=restart, note=output.note)
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
    state = supervisor.describe()
    if as_json:
        output.print_json({**state, "ready": True})
        return
    for broker in state["brokers"]:
        click.echo(f"broker {broker['id']}: process {broker['pid']}, data in {broker['data_dir']}")
    click.echo(f"bootstrap: {state['bootstrap']}")
    click.echo("ready")
