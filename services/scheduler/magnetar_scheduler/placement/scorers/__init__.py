"""The scorers. To add one: a file beside these, and a line in the table.

A server's score is their sum; the lowest is taken. The unit is one replica on the server. The search ends once the load
and the zone alone are too much: a scorer that is below 0 for some servers has them looked at first, as ``artifact`` does.
"""

from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.scorers.artifact import ARTIFACT
from magnetar_scheduler.placement.scorers.fit import FIT
from magnetar_scheduler.placement.scorers.load import LOAD
from magnetar_scheduler.placement.scorers.scorer import Scorer
from magnetar_scheduler.placement.scorers.spread import SPREAD
from magnetar_scheduler.placement.site import Site

__all__ = ["SCORERS", "Scale", "Scorer"]

SCORERS: tuple[Scorer, ...] = (LOAD, FIT, SPREAD, ARTIFACT)
"""Every scorer, in the order in which they are added."""


class Scale:
    """The scorers, as far as they can tell servers apart for one ask."""

    __slots__ = ("_scorers",)

    def __init__(self, ask: Ask) -> None:
        self._scorers = [each for each in SCORERS if each.when is None or each.when(ask)]

    def total(self, site: Site) -> float:
        """Return the score of a server that passed the filters; lower is better."""
        total = 0.0
        for scorer in self._scorers:
            total += scorer.score(site)
        return total

    def each(self, site: Site) -> dict[str, float]:
        """Return what each scorer adds to it."""
        return {scorer.name: scorer.score(site) for scorer in self._scorers}
