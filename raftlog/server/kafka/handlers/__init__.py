"""Handlers of Kafka's requests: one module per family of APIs. A handler never imports another."""
