"""Decide on memory that unloaded replicas are to give back: it is free again when the devices show it."""

from collections.abc import Iterable

from magnetar_common.memory import shown
from magnetar_common.state import Replica, Server
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.records import ServerInfo
from magnetar_events.versions import SINCE
from magnetar_scheduler.draft import Draft


def await_return(draft: Draft, replica: Replica, free: Iterable[r.DeviceFree]) -> None:
    """Keep reserved what an unloaded replica took on accelerators; of one that never was loaded there is nothing.

    Args:
        draft: takes the fact.
        replica: as it was before it was unloaded.
        free: what its agent says was free before the unload; without it, no reading can say what came back.
    """
    server = draft.server(replica.server)
    if server is None or not replica.measured or draft.state.version < SINCE[f.MemoryAwaited]:
        return
    bookings = tuple(
        booking
        for booking in replica.bookings
        if booking.bytes and (device := server.devices.get(booking.device)) is not None and device.kind != "cpu"
    )
    if not bookings:
        return
    took = {each.device: each.bytes for each in replica.measured}
    before = {each.device: each.free for each in free}
    expected = tuple(f.Booking(b.device, took.get(b.device, 0) if b.device in before else 0) for b in bookings)
    told = tuple(f.Booking(b.device, before[b.device]) for b in bookings if b.device in before)
    due = draft.at + draft.policy.memory_return_ms
    draft.emit(f.MemoryAwaited(*replica.key, draft.state.position + 1, bookings, expected, told, due))


def on_devices(draft: Draft, server: Server, info: ServerInfo) -> None:
    """Let go of what a reading shows; on another machine there is nothing to be given back."""
    if info.host != server.info.host:
        return
    for held, seen in shown(draft.state, server, info.devices, draft.at):
        if draft.full:
            return  # the next reading shows it, too
        draft.emit(f.MemoryReturned(held.model, held.generation, server.key, held.position, seen))


def on_due(draft: Draft, server: Server) -> None:
    """Mark as leaked what was not given back in time, unless nobody can say: then wait for as long again."""
    state, policy = draft.state, draft.policy
    for held in server.awaited.values():
        if held.due > draft.at or draft.full:
            return
        places = [(server.info.host, booking.device) for booking in held.bookings]
        unclear = server.stale or any(
            state.arriving.get(place) or draft.at - state.levels[place].since < policy.reading_stale_ms
            for place in places
        )
        names = (held.model, held.generation, server.key, held.position)
        if unclear:
            due = draft.at + policy.memory_return_ms
            draft.emit(f.MemoryAwaited(*names, held.bookings, held.expected, (), due))
        else:
            draft.emit(f.MemoryLeaked(*names, held.bookings))
