"""``raftlog console``: open the console of a broker in the browser."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from raftlog_cli import options, output
from raftlog_cli.main import Failed, describe_os_error
from raftlog_cli.up import certificates_of, console_urls

TIMEOUT_S: Final = 3.0


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="raftlog-data",
    show_default=True,
    help="Data directory of `raftlog up`, whose cluster.json has the addresses.",
)
@click.option(
    "--url",
    metavar="URL",
    callback=options.parsed(options.http_url),
    help="Address of the console: http:// or https://HOST:PORT of a broker's http.listen.",
)
@options.ca_file
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@options.as_json
def console(
    data_dir: Path, url: str | None, ca_file: str | None, no_browser: bool, as_json: bool
) -> None:
    """Open the console of a cluster in the browser, and print its URL.

    For a cluster of `raftlog up`, this is the console of the first broker that responds. Other
    brokers have a console if http.listen is set: pass it with --url. If clients must authenticate,
    the browser requests the name and the password of a user.

    \b
    Example:
      raftlog console --data-dir raftlog-data --no-browser
      raftlog console --url http://10.0.0.1:9200
    """
    certificates = None if url else certificates_of(data_dir)
    ca = str(certificates.ca) if certificates is not None and ca_file is None else ca_file
    found = first_that_responds([url] if url else _recorded(data_dir), tls=options.https(ca))
    output.report({"url": found}, found, as_json=as_json)
    if not no_browser and not webbrowser.open(found):
        output.note("raftlog: no browser was found. Open the URL in a browser")


def _recorded(directory: Path) -> list[str]:
    urls = console_urls(directory)
    if not urls:
        raise Failed(
            f"{directory} has no cluster of `raftlog up`. Pass its --data-dir, or --url with the "
            "http.listen of a broker"
        )
    return urls


def first_that_responds(urls: Sequence[str], *, tls: ssl.SSLContext | None = None) -> str:
    """Return the first URL whose broker responds to /healthz. Raises ``Failed`` if none does."""
    problem = ""
    for url in urls:
        try:
            with urllib.request.urlopen(  # noqa: S310 - only http and https
                f"{url.rstrip('/')}/healthz", timeout=TIMEOUT_S, context=tls
            ):
                return f"{url.rstrip('/')}/"
        except OSError as error:
            problem = describe_os_error(error)
        except http.client.HTTPException:
            problem = "the response is not that of a broker's http.listen"
    raise Failed(f"no broker responds at {', '.join(urls)} ({problem}). Is the cluster running?")
