"""Nemeses: the kinds of fault, how they are injected, and how they are healed."""
