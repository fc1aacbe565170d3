"""Only a server with as many devices as the replica spans, of an acceptable type, that can be read.

A GPU split into MIG instances is none, and without ``devices`` host memory is the one.
"""

from magnetar_common.fleet import HOST_MEMORY
from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site

RULES = {"devices": "with too few devices"}


def against(site: Site) -> str:
    """Find them, and count them."""
    spec, devices = site.ask.spec, site.server.devices
    if not spec.devices:
        host = devices.get(HOST_MEMORY)
        if host is None or host.error:
            return "devices"
        site.devices = [host]
        return ""
    parents = {device.parent for device in devices.values() if device.parent}
    site.devices = [
        device
        for device in devices.values()
        if device.kind != "cpu"
        and not device.error
        and device.uuid not in parents
        and (not spec.gpu_types or device.gpu_type in spec.gpu_types)
    ]
    return "devices" if len(site.devices) < site.ask.count else ""


DEVICES = Filter(Scope.SERVER, RULES, against)
