"""Benchmarks: what raftlog does, next to the least that the same machine could do in the same run.

Machines differ and are shared, so a figure by itself says little. Each benchmark alternates rounds
of the *floor* (``floor``: the same bytes, sockets, writes and fdatasyncs with no log logic) with
rounds of the product, and reports the medians and their ratio. Nothing here is a test: tests are
not timed.
"""
