"""Checkers of a history. Pure, single passes, with evidence for every anomaly."""
