"""The console: pages of a broker's HTTP port for browsers, rendered on the server.

``app`` has the paths, ``guard`` decides which requests are refused, ``pages`` and ``records`` query
the cluster, ``decoding`` makes bytes readable. Imported only by a broker with ``http.listen``.
"""
