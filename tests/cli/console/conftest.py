"""The console of the shared broker, without a server: requests go to the application."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from raftlog.config import Address, BrokerConfig
from raftlog.testing import Cluster
from raftlog_cli.console.app import Console

LOOPBACK = Address("127.0.0.1", 9200)


class Browser:
    """Sends requests as a browser does that shows the console's own pages."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, path: str, status: int = 200) -> str:
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return response.text

    def token(self) -> str:
        found = re.search(r'name="token" value="([^"]+)"', self.get("/new-topic"))
        assert found is not None
        return found[1]

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        """Status and text; of a change that was made, 303 and where the browser continues."""
        response = self.client.post(
            path,
            data={"token": self.token(), **fields},
            headers={"origin": str(self.client.base_url)},
            follow_redirects=False,
        )
        moved = response.headers.get("location")
        return response.status_code, response.text if moved is None else moved


Consoles = Callable[..., Browser]


@pytest.fixture(scope="session")
def consoles(broker: Cluster) -> Iterator[Consoles]:
    """``consoles(listen, read_only)``: a console of the shared broker."""
    with ExitStack() as stack:

        def make(
            listen: Address = LOOPBACK,
            *,
            read_only: bool = False,
            avro_schemas: str = "",
            bootstrap: str = broker.bootstrap,
        ) -> Browser:
            config = BrokerConfig(
                data_dir=".",
                http_listen=listen,
                http_console_read_only=read_only,
                http_console_avro_schemas=avro_schemas,
            )
            made = Console(bootstrap, config)
            stack.callback(lambda: asyncio.run(made.close()))
            app = Starlette(routes=made.routes())
            client = TestClient(app, base_url=f"http://{listen}", raise_server_exceptions=True)
            return Browser(stack.enter_context(client))

        yield make


@pytest.fixture(scope="session")
def browser(consoles: Consoles) -> Browser:
    return consoles()
