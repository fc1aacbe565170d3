"""Only the server that was asked for by name, and its replicas."""

from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {"server": "not the server that was asked for"}


def against(site: Site) -> str:
    """Compare names."""
    return "" if site.info.server == site.ask.spec.server else "server"


PINNED = Filter(Scope.SERVER, RULES, against, when=lambda ask: ask.spec.server)
