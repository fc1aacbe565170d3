"""Not more memory for all models together than the server says that it gives, and promises on top."""

from magnetar_common.fleet import memory_limit
from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {"memory-limit": "at its limit of memory"}


def against(site: Site) -> str:
    """Compare what is booked over all devices with the server's limit; 0 = none."""
    info, ask = site.info, site.ask
    if not info.memory_bytes:
        return ""
    booked = site.server.booked + ask.draft.bytes.get(site.key, 0)
    return "memory-limit" if booked + ask.count * ask.size > memory_limit(info) else ""


MEMORY_LIMIT = Filter(Scope.SERVER, RULES, against)
