"""Least loaded first: the number of replicas on the server. What the other scorers add is counted in replicas, too."""

from magnetar_scheduler.placement.scorers.scorer import Scorer
from magnetar_scheduler.placement.site import Site


def score(site: Site) -> float:
    """Return the number of replicas."""
    return site.load


LOAD = Scorer("load", "fewer replicas on the server", score)
