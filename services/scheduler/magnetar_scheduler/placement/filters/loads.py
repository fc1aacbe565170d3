"""No more loads at a time than the policy allows, on one server and in all. What waits for one is tried when one ends.

Counted is what was commanded and is not answered; a reading of the server's own count would be older.
"""

from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

IN_CLUSTER = {"loads-in-cluster": "waiting for a load to end: the cluster is at its limit of loads in progress"}
ON_SERVER = {"loads-on-server": "at its limit of loads in progress"}

LOADS = frozenset((*IN_CLUSTER, *ON_SERVER))
"""Rules that stop applying when a load ends."""


def against_all(ask: Ask) -> str:
    """Compare the loads on all servers with the policy's limit; 0 = none."""
    loads = ask.draft.state.loading.total() + ask.draft.loading.total()
    return "loads-in-cluster" if loads >= ask.policy.loads_in_cluster else ""


def against(site: Site) -> str:
    """Compare the loads on the server with the policy's limit; 0 = none."""
    draft = site.ask.draft
    loads = draft.state.loading[site.key] + draft.loading[site.key]
    return "loads-on-server" if loads >= site.ask.policy.loads_per_server else ""


LOADS_IN_CLUSTER = Filter(Scope.CLUSTER, IN_CLUSTER, against_all, when=lambda ask: ask.policy.loads_in_cluster)
LOADS_ON_SERVER = Filter(Scope.SERVER, ON_SERVER, against, when=lambda ask: ask.policy.loads_per_server)
