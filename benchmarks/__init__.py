"""Comparisons of raftlog with other systems."""
