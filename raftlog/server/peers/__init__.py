"""The other brokers: links to them, and what is known of those who come in."""
