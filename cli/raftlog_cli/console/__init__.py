"""The console: pages of a broker's HTTP port for browsers, rendered on the server.

``app`` has the routes, ``guard`` rejects requests, ``pages`` and ``records`` query the cluster,
``decoding`` converts bytes to text. Only a broker with ``http.listen`` imports this package.
"""
