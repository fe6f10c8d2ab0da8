"""``raftlog security``: create certificates for TLS, and the administrator."""

from __future__ import annotations

from pathlib import Path

import click

from raftlog.client import profiles
from raftlog.config import Address
from raftlog.testing.certificates import DAYS_DEFAULT, LOCAL_HOSTS, create
from raftlog.testing.cluster import (
    CREDENTIALS_FILE,
    PROFILE_FILE,
    authentication_settings,
    write_profile,
)
from raftlog_cli import options, output
from raftlog_cli.main import Commands
from raftlog_cli.up import PORT_DEFAULT


@click.group(cls=Commands)
def security() -> None:
    """Create certificates for TLS, and the administrator of a cluster.

    \b
    Example:
      raftlog security init certs --hosts log1.example.com,log2.example.com
    """


@security.command(short_help="Create a CA, certificates, and an administrator.")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--hosts",
    default=",".join(LOCAL_HOSTS),
    show_default=True,
    metavar="HOST,...",
    help="Host names and IP addresses of the brokers, as clients connect to them.",
)
@click.option(
    "--brokers",
    metavar="ID,...",
    callback=options.parsed(options.broker_ids),
    help="IDs of brokers. Each gets a separate certificate, DIR/broker-ID.pem, that names its "
    "ID, and accepts only such certificates of other brokers.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=DAYS_DEFAULT,
    show_default=True,
    help="Validity of the certificates. The CA is valid for ten years.",
)
@options.as_json
def init(directory: Path, hosts: str, brokers: list[int] | None, days: int, as_json: bool) -> None:
    """Create a development CA, certificates for brokers and clients, and an administrator.

    Without --brokers, all brokers share the certificate DIR/broker.pem.
    DIR/admin.credentials contains the name and the password of the administrator, for the first
    start of the brokers; DIR/admin.toml is its profile.

    Repeat the command to renew the certificates before they expire. It keeps the CA, and running
    brokers reload their certificates and keys. Requires the package `cryptography`
    (extra `security`).

    \b
    Example:
      raftlog security init certs --hosts log1.example.com,10.0.0.1 --brokers 1,2
    """
    names = [host.strip() for host in hosts.split(",") if host.strip()]
    if not names:
        raise click.UsageError("--hosts contains no host")
    files = create(directory, hosts=names, brokers=brokers or (), days=days)
    credentials = files.directory / CREDENTIALS_FILE
    shared = authentication_settings(credentials)
    settings = {broker: files.broker_settings(broker) | shared for broker in brokers or (None,)}
    bootstrap = ",".join(str(Address(host, PORT_DEFAULT)) for host in names)
    profile = write_profile(files.directory / PROFILE_FILE, files, credentials, bootstrap)
    variables = {profiles.VARIABLE: str(profile)}
    if as_json:
        found: dict[str, object] = {"environment": variables}
        if brokers:
            found["brokers"] = {str(broker): each for broker, each in settings.items()}
        else:
            found["broker"] = settings[None]
        output.print_json(found)
        return
    for broker, each in settings.items():
        click.echo(
            "Settings of each broker:" if broker is None else f"Settings of broker {broker}:"
        )
        for key, value in each.items():
            click.echo(f"  {key} = {output.to_json(value)}")
    click.echo("Environment of clients:")
    for key, value in variables.items():
        click.echo(f"  export {key}={value}")
