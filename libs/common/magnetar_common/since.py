"""Fold versions since which a fact means more than it did: an older log is folded as it always was."""

BOUNDED = 2
"""What is remembered of the past has limits; version 1 remembers everything."""

DRAINS = 2
"""What is found on a draining server drains, too."""
