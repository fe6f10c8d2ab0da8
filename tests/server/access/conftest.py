"""A broker for the tests of this package."""

from tests.server.conftest import broker, client, clock, disk

__all__ = ["broker", "client", "clock", "disk"]
