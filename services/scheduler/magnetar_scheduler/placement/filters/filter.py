"""What a filter is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from magnetar_scheduler.placement.ask import Ask


class Scope(StrEnum):
    """What a filter tells of: the wider, the fewer times it is asked."""

    CLUSTER = "cluster"
    """All servers at once; ``against(ask)``."""
    ALIVE = "alive"
    """A server by itself, whatever is asked for: the fleet's index holds no other; ``against(server)``."""
    CLASS = "class"
    """All servers of a class; ``against(ask, kind)``."""
    SERVER = "server"
    """A server and what is asked for; ``against(site)``."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Rules on one subject, and what finds the one that turns a server down.

    Attributes:
        scope: what ``against`` takes.
        rules: rule → what it says of a server: "it is …".
        against: returns a rule, or an empty string.
        when: whether it can turn any server down, whatever the server; None = it can. Asked once a placement.
    """

    scope: Scope
    rules: Mapping[str, str]
    against: Callable[..., Any]
    when: Callable[[Ask], object] | None = None
