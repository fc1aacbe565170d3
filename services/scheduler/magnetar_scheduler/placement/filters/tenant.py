"""What is somebody's: no more than the tenant's cap; and what is kept for one below its floor, or for another model."""

from magnetar_common.quotas import TENANT_FLOOR, TENANT_QUOTA
from magnetar_scheduler import tenants
from magnetar_scheduler.kept import CLAIMED, RESERVED, rule_of
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

CAP = {TENANT_QUOTA: "not asked, for the tenant is at its cap"}
KEPT = {
    TENANT_FLOOR: "kept for a tenant that waits below its floor",
    CLAIMED: "being cleared for a model of higher priority",
    RESERVED: "reserved for a model that was overtaken there",
}

TENANTS = frozenset((*CAP, *KEPT))
"""Rules that say nothing against a server: what they turn down waits, and has not failed."""


def against_all(ask: Ask) -> str:
    """Compare what the tenant has with its cap; 0 = none. What exactly is too much is left at the ask."""
    if not ask.told:
        ask.told = tenants.over_cap(ask.draft, ask.model, ask.version)
    return TENANT_QUOTA if ask.told else ""


def against(site: Site) -> str:
    """Look for who goes before."""
    return rule_of(site.ask.kept, site.server, site.ask.spec)


TENANT_CAP = Filter(Scope.CLUSTER, CAP, against_all, when=lambda ask: ask.draft.state.tenants)
TENANT_KEPT = Filter(Scope.SERVER, KEPT, against, when=lambda ask: ask.kept)
