"""The broker process: event loop, sockets, threads and waits."""
