"""``raftlog ready``: wait until a broker is ready, or can be restarted. For scripts."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, Final

import click

from raftlog_cli import options, output
from raftlog_cli.main import Failed, describe_os_error

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
    type=click.FloatRange(min=0),
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
