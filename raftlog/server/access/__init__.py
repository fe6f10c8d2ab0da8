"""Access control of a broker: who may send which request, and how much."""
