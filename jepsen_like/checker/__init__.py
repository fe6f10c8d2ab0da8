"""Checkers: judge a history. Pure, single passes, with evidence for every anomaly."""
