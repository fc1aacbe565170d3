"""Memory that an unloaded replica is to give back: booked until its accelerators show it.

A device says how much is free, not whose the rest is. So of each device on which something is awaited the *level* is
kept: what would be free there if none of it came back. Whatever a later reading shows above the level has come back. It
counts for what is still waited for before what has leaked, and for the largest that it suffices for: what is left then
is as little more than what was really kept as models can tell. A load that finishes lowers the level by what it takes.

Only accelerators are waited for. Host memory is shared with everything else on the machine, and an allocator keeps what
it was given back for the next model: that nothing is seen of it says nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from magnetar_events.facts import Booking
from magnetar_events.records import Device

if TYPE_CHECKING:
    from magnetar_common.state import Server, State


class AwaitedKey(NamedTuple):
    """A version may be awaited more than once on a server: the position of the unload tells them apart."""

    model: str
    generation: int
    position: int


@dataclass(slots=True)
class Awaited:
    """What an unloaded replica is still to give back.

    Attributes:
        model: key.
        generation: version.
        position: of the entry that unloaded it.
        bookings: what stays reserved.
        expected: what is to be seen of it per device; 0 bytes = what it took is not known.
        at: log time (ms) of the unload.
        due: log time (ms) at which it has leaked.
    """

    model: str
    generation: int
    position: int
    bookings: tuple[Booking, ...]
    expected: tuple[Booking, ...]
    at: int
    due: int

    @property
    def key(self) -> AwaitedKey:
        """What names it on its server."""
        return AwaitedKey(self.model, self.generation, self.position)


@dataclass(slots=True)
class Level:
    """What a device would have free if nothing that is awaited there came back.

    Attributes:
        host: of the device.
        device: uuid.
        free: bytes; may fall below 0 when loads finish that take more than there was.
        since: log time (ms) at which a load last finished there: a reading may be of before.
        awaited: entries that are waited for.
        leaked: entries that are no longer.
    """

    host: str
    device: str
    free: int
    since: int = 0
    awaited: int = 0
    leaked: int = 0


def total(held: Iterable[Awaited]) -> int:
    """Return the bytes that stay reserved for what is not given back."""
    return sum(booking.bytes for each in held for booking in each.bookings)


def shown(
    state: "State", server: "Server", devices: Iterable[Device], at: int
) -> list[tuple[Awaited, tuple[Booking, ...]]]:
    """Return what of that which a server is to give back a reading shows, with the bytes that count for it.

    Less than ``readingDelta`` of a device cannot be told from what moves anyway. A reading may be as old as
    ``readingStaleMs``: what depends on its being of after some event waits for so long.
    """
    if not (server.awaited or server.leaked):
        return []
    policy, host = state.policy, server.info.host
    read = {device.uuid: device for device in devices if not device.error}
    free = {uuid: state.levels[host, uuid].free for uuid in read if (host, uuid) in state.levels}
    found: list[tuple[Awaited, tuple[Booking, ...]]] = []
    for each in (*_largest_first(server.awaited.values()), *_largest_first(server.leaked.values())):
        counts: list[Booking] = []
        for booking, expected in zip(each.bookings, each.expected, strict=True):
            device = read.get(booking.device)
            if device is None:
                break
            level, above = state.levels[host, device.uuid], device.free - free[device.uuid]
            since = level.since if expected.bytes else max(level.since, each.at)
            if at - since < policy.reading_stale_ms and since:
                break
            if expected.bytes and above < expected.bytes - policy.reading_delta * device.total:
                break
            seen = expected.bytes or min(max(above, 0), booking.bytes)
            counts.append(Booking(device.uuid, seen))
        else:
            for booking in counts:
                free[booking.device] += booking.bytes
            found.append((each, tuple(counts)))
    return found


def _largest_first(held: Iterable[Awaited]) -> list[Awaited]:
    return sorted(held, key=lambda each: -sum(booking.bytes for booking in each.expected))
