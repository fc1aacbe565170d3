"""What a scorer is."""

from collections.abc import Callable
from dataclasses import dataclass

from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.site import Site


@dataclass(frozen=True, slots=True)
class Scorer:
    """What one thing counts for or against a server.

    Attributes:
        name: of it.
        said: for people: what is better.
        score: in replicas on the server; the lower the better.
        when: whether it can tell servers apart for this ask; None = it can. Asked once a placement.
    """

    name: str
    said: str
    score: Callable[[Site], float]
    when: Callable[[Ask], object] | None = None
