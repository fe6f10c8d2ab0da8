"""Benchmarks of raftlog, compared with a baseline on the same machine in the same run.

Machines differ and are shared, so absolute results are hard to compare. Each benchmark alternates
rounds of the baseline (``floor``: the same bytes, sockets, writes and fdatasyncs without the code
of the log) with rounds of the product, and reports the medians and their ratio. Benchmarks are not
tests: tests measure no durations.
"""
