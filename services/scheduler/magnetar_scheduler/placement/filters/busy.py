"""Not on accelerators that are busier than the policy's ``utilisationLimit``; host memory never is."""

from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {"busy": "with devices too busy"}


def against(site: Site) -> str:
    """Find those that are not, and count them."""
    ask = site.ask
    if not ask.spec.devices:
        site.idle = site.devices
        return ""
    limit = ask.policy.utilisation_limit
    site.idle = [device for device in site.devices if device.utilisation < limit]
    return "busy" if len(site.idle) < ask.count else ""


BUSY = Filter(Scope.SERVER, RULES, against)
