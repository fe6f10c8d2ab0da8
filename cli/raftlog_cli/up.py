"""``raftlog up``: run a local cluster in the foreground."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from raftlog import limits
from raftlog_cli import options, output
from raftlog_cli.main import STATUS_INTERRUPTED
from raftlog_cli.supervisor import (
    BROKERS_DEFAULT,
    PORT_DEFAULT,
    PORT_MAX,
    Supervisor,
    choose_addresses,
    describe_cluster,
    request_add,
    request_start,
)


@click.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, limits.VOTERS_PER_CLUSTER_MAX),
    help="Number of brokers; use an odd number. Add more later with --add.  "
    f"[default: as in the last run, or {BROKERS_DEFAULT}]",
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
    addresses = choose_addresses(data_dir, brokers=brokers, port=port)
    supervisor = Supervisor(
        data_dir, addresses=addresses, restart=restart, note=output.note, secure=secure
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
    state = describe_cluster(supervisor.cluster)
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
