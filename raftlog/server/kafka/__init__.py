"""Kafka's protocol on the broker's port: the handlers of Kafka's requests, by ``dispatch``.

A handler translates between Kafka's messages and plain values; ``raftlog.server.requests`` contains
what it shares with the handlers of raftlog's protocol.
"""
