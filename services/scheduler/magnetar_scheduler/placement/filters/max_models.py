"""Not more replicas than the server says that it takes."""

from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {"max-models": "at its limit of models"}


def against(site: Site) -> str:
    """Compare the load with the server's limit; 0 = none."""
    limit = site.info.max_models
    return "max-models" if limit and site.load >= limit else ""


MAX_MODELS = Filter(Scope.SERVER, RULES, against)
