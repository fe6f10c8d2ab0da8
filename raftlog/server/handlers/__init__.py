"""Request handlers: one module per request family. A handler never imports another."""
