"""raftlog for asyncio: ``AsyncProducer``, ``AsyncConsumer``, ``AsyncAdmin``. Names only.

The same arguments, and the same methods as coroutines, as ``raftlog.Producer``, ``Consumer`` and
``Admin`` have. Other event loops of asyncio's kind, uvloop among them, work as well.
"""

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.client.aio.consumer import AsyncConsumer
from raftlog.client.aio.producer import AsyncProducer

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncProducer"]
