"""Only where each device has room: enough that is free and not promised, and enough of it in one block.

The promise of over-commit counts as free. Two rules: what is in the way of the one goes away with any unload, and of the
other perhaps only with a restart.
"""

from magnetar_scheduler.placement.filters.filter import Filter, Scope
from magnetar_scheduler.placement.site import Site, room_after

RULES = {
    "memory": "without enough free memory",
    "largest-block": "with enough free memory, and no block of it large enough",
}


def against(site: Site) -> str:
    """Find the devices with room, and count them; if too few, those that would have it if what is free were one block."""
    ask, server = site.ask, site.server
    draft, memory = ask.draft, ask.size
    rooms = [(room_after(draft, server, device), device.uuid, device.total) for device in site.idle]
    rooms = [room for room in rooms if room[0] >= memory]
    if len(rooms) >= ask.count:
        rooms.sort()
        site.rooms = rooms
        return ""
    enough = sum(room_after(draft, server, device, device.free) >= memory for device in site.idle)
    return "largest-block" if enough >= ask.count else "memory"


MEMORY = Filter(Scope.SERVER, RULES, against)
