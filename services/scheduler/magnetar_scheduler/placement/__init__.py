"""Placement: which server takes one more replica of a version, or why none does.

Filters turn servers down, each by a rule with a sentence that reaches the user (:mod:`~magnetar_scheduler.placement.filters`).
Scorers put those that are left in order (:mod:`~magnetar_scheduler.placement.scorers`): the lowest sum is taken, and the
name breaks ties, so that the same state always gives the same answer.
"""

from magnetar_scheduler.placement.filters import RULES
from magnetar_scheduler.placement.search import Placed, Refused, place, rule_against

__all__ = ["RULES", "Placed", "Refused", "place", "rule_against"]
