"""A server as a place for one more replica: what filters and scorers look at."""

from magnetar_common.fleet import room_on
from magnetar_common.state import Server
from magnetar_events.facts import Booking
from magnetar_events.records import Device
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.placement.ask import Ask

Room = tuple[int, str, int]
"""(bytes that one more replica may take, uuid, total) of a device."""


class Site:
    """One server, seen with one question in mind.

    Attributes:
        load: replicas here.
        devices: those that the replica may take, whatever is free; ``filters.devices`` finds them.
        idle: those of them that are not too busy; ``filters.busy`` finds them.
        rooms: those of them with room for it, the tightest first; ``filters.memory`` finds them.
    """

    __slots__ = ("ask", "devices", "idle", "info", "key", "load", "rooms", "server")

    devices: list[Device]
    idle: list[Device]
    rooms: list[Room]

    def __init__(self, ask: Ask, server: Server) -> None:
        self.ask = ask
        self.server = server
        self.info = server.info
        self.key = key = server.key
        self.load = len(server.replicas) + ask.draft.placed.get(key, 0)

    def bookings(self) -> tuple[Booking, ...]:
        """Return what to reserve on a server that takes it: the devices where it fits most tightly."""
        return tuple(Booking(uuid, self.ask.size) for _, uuid, _ in self.rooms[: self.ask.count])


def room_after(draft: Draft, server: Server, device: Device, free: int | None = None) -> int:
    """Return the bytes that one more replica may take on a device after the draft's facts; see ``fleet.room_on``."""
    room = room_on(draft.state, server, device, free)
    return room - draft.reserved.get((server.info.host, device.uuid), 0) if draft.reserved else room
