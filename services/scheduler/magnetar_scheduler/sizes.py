"""What a version really takes: learnt from its loads, the failed ones too, and from later looks; see docs/memory.md.

What is known only grows, and never falls below what was declared. The replica that was looked at is booked with what it
was seen to take, each by itself; new replicas of its version with the largest that is known.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from magnetar_common.state import Replica, Server
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.records import Device
from magnetar_events.versions import SINCE
from magnetar_scheduler.draft import Draft

LOAD_FAIL_MEMORY = "LOAD_FAIL_MEMORY"
"""An agent's code of a load for which the memory did not suffice."""

HELD = (R.LOADED, R.AVAILABLE, R.UNROUTE_REQUESTED)
"""States in which a replica is in memory, and nothing is done to it."""

OF_THE_SIZE = 10
"""A later look is worth a fact when it shows a tenth of the size on top, or ``readingDelta`` of the device."""

MORE_THAN_FREE = 20
"""A load that failed needs more than there was: by a twentieth of it, as far as anybody can say."""

GROWTH = 2
"""One failed load makes the known size so many times what it was, at most: the limit that it met may be another one."""

_LOADED = attrgetter("storage_uri", "artifact_digest", "devices", "runtime", "memory")
"""What of two specifications must be the same for both to need the same memory."""


def learns(draft: Draft) -> bool:
    """Whether the log can hold what is learnt."""
    return draft.state.version >= SINCE[f.SizeLearnt]


def measured(draft: Draft, replica: Replica, memory: Iterable[r.DeviceMemory]) -> None:
    """Take up what a load was seen to take."""
    _learn(draft, replica, {each.device: each.measured for each in memory}, "its load took", later=False)


def observed(draft: Draft, server: Server, memory: Iterable[r.ModelMemory]) -> None:
    """Take up what versions were seen to hold later."""
    seen: dict[tuple[str, int], dict[str, int]] = {}
    for each in memory:
        seen.setdefault((each.model, each.generation), {})[each.device] = each.observed
    for (key, generation), devices in seen.items():
        model = draft.model(key) if not draft.full and (key, generation) in server.replicas else None
        replica = model.replicas.get((generation, server.key)) if model else None
        if replica is not None and replica.state in HELD:
            _learn(draft, replica, devices, "it was seen to hold", later=True)


def _learn(draft: Draft, replica: Replica, seen: Mapping[str, int], how: str, *, later: bool) -> None:
    server, model = draft.server(replica.server), draft.model(replica.model)
    if server is None or model is None or not learns(draft):
        return
    bookings: list[f.Booking] = []
    largest = 0
    for booking in replica.bookings:
        device = server.devices.get(booking.device)
        takes = min(seen.get(booking.device, 0), device.total) if device else 0  # more than there is, nothing takes
        if device is not None and takes > booking.bytes + _passed_over(draft, device, booking.bytes, later=later):
            bookings.append(f.Booking(booking.device, takes))
            largest = max(largest, takes)
        else:
            bookings.append(booking)
    if not largest:
        return
    draft.emit(f.ReplicaBooked(*replica.key, tuple(bookings), f"{how} more than was reserved"))
    version = model.versions.get(replica.generation)
    if version is not None and largest > version.size:
        reason = f"{how} {largest} bytes on {replica.server}, {version.size} were known"
        draft.emit(f.SizeLearnt(model.key, version.generation, largest, reason))


def _passed_over(draft: Draft, device: Device, size: int, *, later: bool) -> int:
    """Return the bytes on top of what is reserved that are not worth a fact.

    The first model that a server loads into host memory brings the libraries of its kind along, and an allocator takes
    more than it is asked for: there a load counts when it is off by more than what moves anyway.
    """
    moves = int(draft.policy.reading_delta * device.total)
    if device.kind == "cpu":
        return moves
    return min(moves, size // OF_THE_SIZE) if later else 0


def not_enough(draft: Draft, replica: Replica, free: Iterable[r.DeviceFree]) -> None:
    """Take up that a load failed for memory where so much was free."""
    model = draft.model(replica.model)
    version = model.versions.get(replica.generation) if model else None
    told = {each.device: each.free for each in free}
    there = [told[booking.device] for booking in replica.bookings if booking.device in told]
    if model is None or version is None or not there or len(there) < len(replica.bookings) or not learns(draft):
        return
    needs = min(min(there) + min(there) // MORE_THAN_FREE, version.size * GROWTH)
    if needs > version.size:
        reason = f"{min(there)} free bytes were not enough on {replica.server}, {version.size} were known"
        draft.emit(f.SizeLearnt(model.key, version.generation, needs, reason))


def inherit(draft: Draft, key: str) -> None:
    """Let the wanted version, just taken up, begin with what one that is alive was found to need, if it loads the same.

    Whoever declares another size knows better: that begins with what it declares.
    """
    model = draft.model(key)
    if model is None or not learns(draft):
        return
    target = model.target
    known = max(
        (each.learnt for each in model.versions.values() if _LOADED(each.spec) == _LOADED(target.spec)), default=0
    )
    if known > target.size:
        reason = f"a version before it, which loads the same, was found to need {known} bytes"
        draft.emit(f.SizeLearnt(key, target.generation, known, reason))
