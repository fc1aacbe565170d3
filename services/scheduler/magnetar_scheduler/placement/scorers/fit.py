"""Tightest memory fit among those that are equally loaded: large blocks stay whole for large models."""

from magnetar_scheduler.placement.scorers.scorer import Scorer
from magnetar_scheduler.placement.site import Site


def score(site: Site) -> float:
    """Return the share of its memory, 0 to 1, that would be left on the emptiest device that is taken."""
    ask, promise = site.ask, site.info.over_commit_percent
    memory, slack = ask.size, 0.0
    for room, _, total in site.rooms[: ask.count]:
        left = (room - memory) / ((total + total * promise // 100) or 1)
        if left > slack:
            slack = left
    return slack


FIT = Scorer("fit", "less memory left over on its devices: 0 to 1", score)
