"""HTTP port of a broker, in its event loop: health, metrics.

Imported only by a broker with ``http.listen``: the libraries take memory and start-up time.
"""
