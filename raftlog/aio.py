"""raftlog for asyncio: ``AsyncProducer``, ``AsyncConsumer``, ``AsyncAdmin``. Names only.

Same arguments as ``raftlog.Producer``, ``Consumer`` and ``Admin``, and the same methods as
coroutines. Compatible event loops, such as uvloop, are supported.

A class is imported at its first use, so that a program that only consumes does not import the
administration of clusters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.lazy import lazy_names

if TYPE_CHECKING:
    from raftlog.client.administration.admin import AsyncAdmin
    from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
    from raftlog.client.transactions import AsyncTransaction

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncProducer", "AsyncTransaction"]

__getattr__ = lazy_names(
    __name__,
    {
        "AsyncAdmin": "raftlog.client.administration.admin",
        "AsyncConsumer": "raftlog.client.aio.clients",
        "AsyncProducer": "raftlog.client.aio.clients",
        "AsyncTransaction": "raftlog.client.transactions",
    },
)


def __dir__() -> list[str]:
    return __all__
