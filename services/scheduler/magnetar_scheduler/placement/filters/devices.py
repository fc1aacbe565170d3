"""Only a server with as many devices as the replica spans, of an acceptable type, that can be read.

A GPU split into MIG instances is none, and without ``devices`` host memory is the one.
"""

from magnetar_common.fleet import suited_devices
from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {"devices": "with too few devices"}


def against(site: Site) -> str:
    """Find them, and count them."""
    spec = site.ask.spec
    site.devices = suited_devices(site.server, spec.devices, spec.gpu_types)
    return "devices" if len(site.devices) < site.ask.count else ""


DEVICES = Filter(Scope.SERVER, RULES, against)
