"""Only a server that is up, has said what it holds, and whose readings are recent. The fleet's index holds no other."""

from magnetar_common.state import Server
from magnetar_scheduler.placement.filters.filter import Filter, Scope

STALE = "stale"

RULES = {
    "lost": "not answering",
    "draining": "draining",
    "cordoned": "cordoned",
    "starting": "not yet heard from in full",
    STALE: "readings too old to trust",
}


def against(server: Server) -> str:
    """Say why nothing at all is placed here; empty exactly where ``server.schedulable``."""
    if server.lost:
        return "lost"
    if server.closed:
        return "draining" if server.draining else "cordoned"
    if server.record.status != "UP" or not server.inventory:
        return "starting"
    return STALE if server.stale else ""


ALIVE = Filter(Scope.ALIVE, RULES, against)
