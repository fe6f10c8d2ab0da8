"""Nemeses: the kinds of fault, how they are injected here, and how they are healed."""
