"""Kafka's protocol on the broker's port: the handlers of Kafka's requests, by ``dispatch``.

A handler translates between Kafka's messages and the plain values of the operations in
``raftlog.server.apis``.
"""
