"""Kafka's protocol without I/O: messages, frames and connections. Independent of the broker.

``table`` contains the facts of Kafka's public message definitions, ``schema`` parses them, and
``codec`` creates readers and writers from them on first use. ``frame`` separates requests,
``connection`` is the state machine of a connection, ``api`` lists what a broker can serve.
"""
