"""Not where a load of the version failed for good, until the version is revived."""

from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {"failed-here": "where loading it failed before"}


def against(site: Site) -> str:
    """Look into the version's list of places."""
    return "failed-here" if site.key in site.ask.version.places else ""


FAILED_HERE = Filter(Scope.SERVER, RULES, against, when=lambda ask: ask.version.places)
