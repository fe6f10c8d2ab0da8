"""raftlog for asyncio: ``AsyncProducer``, ``AsyncConsumer``, ``AsyncAdmin``. Names only.

Same arguments as ``raftlog.Producer``, ``Consumer`` and ``Admin``, and the same methods as
coroutines. Compatible event loops, such as uvloop, are supported.
"""

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.client.aio.consumer import AsyncConsumer
from raftlog.client.aio.producer import AsyncProducer

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncProducer"]
