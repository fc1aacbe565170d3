"""What the facts about memory that is to be given back do to the state; see :mod:`magnetar_common.memory`."""

from collections.abc import Callable, Iterable
from typing import Any

from magnetar_common.indexes import book_held
from magnetar_common.memory import Awaited, AwaitedKey, Level
from magnetar_common.state import RETURN_TIMER, Server, State
from magnetar_events import facts as f


def level_off(state: State, server: Server, taken: Iterable[f.Booking]) -> None:
    """Lower the levels of devices by what a load that finished takes."""
    for booking in taken if state.levels else ():
        level = state.levels.get((server.info.host, booking.device))
        if level is not None:
            level.free, level.since = level.free - booking.bytes, state.at


def rearm(state: State, server: Server) -> None:
    """Index when what a server is to give back is looked at."""
    state.set_timer(server.return_due, generation=RETURN_TIMER, server=server.key)


def forget_returns(state: State, server: Server) -> None:
    """Let go of all that a server was to give back: the life that held it is over, or it is elsewhere."""
    for held in (server.awaited, server.leaked):
        for each in held.values():
            book_held(state, server, each, -1)
            _count(state, server, each, awaited=-(held is server.awaited), leaked=-(held is server.leaked))
        held.clear()


def _awaited(state: State, fact: f.MemoryAwaited) -> None:
    server, key = state.servers.get(fact.server), AwaitedKey(fact.model, fact.generation, fact.position)
    if server is None or key in server.leaked or len(fact.bookings) != len(fact.expected):
        state.illegal += 1
        return
    known = server.awaited.pop(key, None)
    if known is None:
        known = Awaited(*key, fact.bookings, fact.expected, state.at, fact.due)
        _begin(state, server, known, {each.device: each.bytes for each in fact.free})
        book_held(state, server, known, +1)
    known.due = fact.due
    server.awaited[key] = known
    rearm(state, server)


def _begin(state: State, server: Server, held: Awaited, free: dict[str, int]) -> None:
    """Set the levels of its devices, unless something is awaited there: then they are known better than by a reading."""
    for device in {booking.device for booking in held.bookings}:
        level = state.levels.get((server.info.host, device))
        if level is None:
            level = state.levels[server.info.host, device] = Level(server.info.host, device, 0)
        if not level.awaited:
            read = server.devices.get(device)
            level.free = free.get(device, read.free if read else 0)
        level.awaited += 1


def _returned(state: State, fact: f.MemoryReturned) -> None:
    server, key = state.servers.get(fact.server), AwaitedKey(fact.model, fact.generation, fact.position)
    held = None if server is None else server.awaited if key in server.awaited else server.leaked
    if server is None or held is None or key not in held:
        state.illegal += 1
        return
    each = held.pop(key)
    for booking in fact.returned:
        level = state.levels.get((server.info.host, booking.device))
        if level is not None:
            level.free += booking.bytes
    book_held(state, server, each, -1)
    _count(state, server, each, awaited=-(held is server.awaited), leaked=-(held is server.leaked))
    rearm(state, server)
    state.room += 1


def _leaked(state: State, fact: f.MemoryLeaked) -> None:
    server, key = state.servers.get(fact.server), AwaitedKey(fact.model, fact.generation, fact.position)
    if server is None or key not in server.awaited:
        state.illegal += 1
        return
    each = server.leaked[key] = server.awaited.pop(key)
    _count(state, server, each, awaited=-1, leaked=+1)
    rearm(state, server)


def _count(state: State, server: Server, held: Awaited, *, awaited: int, leaked: int) -> None:
    for device in {booking.device for booking in held.bookings}:
        level = state.levels[server.info.host, device]
        level.awaited += awaited
        level.leaked += leaked
        if not (level.awaited or level.leaked):
            del state.levels[server.info.host, device]


MEMORY_FOLDS: dict[type, Callable[[State, Any], None]] = {
    f.MemoryAwaited: _awaited,
    f.MemoryReturned: _returned,
    f.MemoryLeaked: _leaked,
}
"""Fact about memory → what it does to the state."""
