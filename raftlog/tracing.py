"""Traces after OpenTelemetry: ``TracedProducer``, ``TracedAsyncProducer``, ``process``. Names only.

Requires the extra ``trace``.
"""

from raftlog.client.tracing import TracedAsyncProducer, TracedProducer, context_of, process

__all__ = ["TracedAsyncProducer", "TracedProducer", "context_of", "process"]
