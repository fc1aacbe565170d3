"""Apart from the version's other replicas, by zone and by host: what fails together should not hold all of them."""

from magnetar_common.fleet import Zone
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.scorers.scorer import Scorer
from magnetar_scheduler.placement.site import Site

ZONE = 10.0
"""A replica in the same zone weighs as much as so many replicas of anything on the server."""

HOST = 10.0
"""A replica on the same host weighs so much in addition, where the policy does not rule it out."""


def of_zone(ask: Ask, zone: Zone) -> float:
    """Return what every server of a zone gets."""
    return ZONE * ask.zones.get(zone, 0)


def score(site: Site) -> float:
    """Return what the replicas in the same zone and on the same host weigh."""
    ask = site.ask
    return of_zone(ask, (site.info.region, site.info.zone)) + HOST * ask.hosts.get(site.info.host, 0)


SPREAD = Scorer(
    "spread",
    "fewer replicas of the version in the zone, and on the host: 10 for each",
    score,
    when=lambda ask: ask.hosts,
)
