"""Never two replicas of a version on one server; and not on one host, if the policy's ``antiAffinity`` says so.

A version beside another of the same model is right: the new one loads before the old one leaves. On the host, those that
are leaving do not count.
"""

from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {
    "beside": "already holding this version",
    "same-host": "on a host that already has this version",
}


def against(site: Site) -> str:
    """Look for another replica of the version."""
    ask = site.ask
    if (ask.version.generation, site.key) in ask.model.replicas:
        return "beside"
    return "same-host" if ask.apart and site.info.host in ask.hosts else ""


BESIDE = Filter(Scope.SERVER, RULES, against)
