"""The broker: wiring, sockets, waiting. What is decided is decided below; here it is performed."""
