"""The rules that are in force."""

from dataclasses import dataclass

from magnetar_events.policy import Policy


@dataclass(slots=True)
class PolicySet:
    """These rules are in force."""

    policy: Policy
