"""Reservations: what becomes free where others overtook a version is kept for it, so that none waits for ever.

What needs much would be overtaken without end by what needs less: each place that becomes free is too small for it, and goes
to one of those. A version was overtaken on a server where it would fit if nothing had come there since it was wanted. Once
it is as old as the policy's ``reserveAfterMs`` the one of these servers where the least has still to leave is reserved for it.

It stays reserved as long as more becomes free there, and again for as long as that went on. Where nothing does it is over: for
as long as it lasted the server is reserved for nobody, and then the version has the next one in that order, for longer. So a
wish that never fits holds nobody up for ever, and no wish depends on a server whose replicas never leave.
"""

from collections import Counter
from typing import NamedTuple

from magnetar_common.fleet import memory_limit, room_on, suited_devices
from magnetar_common.state import Model, Server, State, Version
from magnetar_events import facts as f
from magnetar_events.policy import Policy
from magnetar_events.versions import SINCE
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.kept import rule_of
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters import Sieve
from magnetar_scheduler.placement.filters.loads import LOADS
from magnetar_scheduler.placement.site import Site
from magnetar_scheduler.preemption import ROOM, could_do

SHARE = 20
"""One in so many of all servers, and of those that could hold a version, is reserved at a time; and always one may be."""

LONGEST = 144
"""A reservation to which nothing more becomes free lasts so many times ``reserveAfterMs``, at most: a day of ten minutes."""

DOUBLINGS = LONGEST.bit_length()
"""From this attempt on it lasts longest; until then twice as long each time."""

LOOKS = 300
"""Servers that one entry looks at for who was overtaken, or all of them once: some milliseconds."""

OF_ROOM = ROOM | {"largest-block"}
"""Rules that turn a server down for what is on it."""

FOR_NOW = LOADS | {"busy"}
"""Rules that stop applying by themselves: they hide whether there is room, and are no reason against a server."""

_WORTH_WAITING = OF_ROOM | FOR_NOW


class _Waiting(NamedTuple):
    """A version that may have a server reserved; the smallest has waited longest."""

    since: int
    model: str
    generation: int


class _Held(NamedTuple):
    """Servers that are reserved, and those that were in vain not long ago."""

    now: set[str]
    before: set[str]


def reserve(draft: Draft) -> None:
    """Reserve servers for versions that were overtaken. Of very many that wait some are looked at, others the next time."""
    if not draft.policy.reserve_after_ms or draft.state.version < SINCE[f.ServerReserved]:
        return
    queue, held = _queue(draft)
    looks = max(1, LOOKS // max(1, len(draft.state.servers)))
    if len(queue) > looks:
        first = draft.state.position % len(queue)
        queue = (queue[first:] + queue[:first])[:looks]
    most = max(1, len(draft.state.fleet.rooms(draft.state)) // SHARE)
    for each in queue:
        model = draft.model(each.model)
        if draft.large or model is None or len(held.now) >= most:
            return
        _reserve(draft, model, model.versions[each.generation], held)


def look_again(draft: Draft, model: Model, version: Version) -> None:
    """Go on with a reservation that is due if more has become free there meanwhile; otherwise end it."""
    last, state = version.reservation, draft.state
    assert last is not None
    server = state.servers.get(last.server)
    free = _free(version, _rooms(state, version, server)) if server is not None else -1
    if free > last.free and draft.policy.reserve_after_ms and version.refused and version.generation in model.kept():
        due = draft.at + max(_hold(draft.policy, last.attempt), draft.at - last.since)
        draft.emit(f.ServerReserved(model.key, version.generation, last.server, free, last.attempt, last.since, due))
    else:
        draft.emit(f.ReservationEnded(model.key, version.generation, last.server))


def _hold(policy: Policy, attempt: int) -> int:
    return policy.reserve_after_ms * (2 ** (attempt - 1) if 0 < attempt < DOUBLINGS else LONGEST)


def _queue(draft: Draft) -> tuple[list[_Waiting], _Held]:
    """Return the versions that wait for room, are old enough, and have nothing reserved, in order; and what is held."""
    found, held = list[_Waiting](), _Held(set(), set())
    for key in draft.state.waiting:
        model = draft.seen(key)
        if model is None:
            continue
        for version in (model.versions[generation] for generation in model.kept()):
            if version.refused is None:
                continue
            last, since, due = version.reservation, version.at, version.at + draft.policy.reserve_after_ms
            if version.claim and not (version.reserved and _is_gone(draft, version.claim)):
                if version.reserved:
                    held.now.add(version.claim)
                continue
            if last is not None:
                since, over = last.due, bool(version.claim) or _got_one(version, model, last)
                due = 0 if over else last.due + (last.due - last.since)
                if due > draft.at:
                    held.before.add(last.server)
            if due <= draft.at and not _WORTH_WAITING.isdisjoint(count.rule for count in version.refused.refusals):
                found.append(_Waiting(since, key, version.generation))
    return sorted(found), held


def _is_gone(draft: Draft, key: str) -> bool:
    server = draft.server(key)
    return server is None or server.lost or server.closed


def _got_one(version: Version, model: Model, last: f.ServerReserved) -> bool:
    return (version.generation, last.server) in model.replicas


def _reserve(draft: Draft, model: Model, version: Version, held: _Held) -> None:
    servers, last = _overtaken(draft, model, version, held), version.reservation
    if servers:
        attempt = 1 if last is None or _got_one(version, model, last) else last.attempt + 1
        free, server = servers[(attempt - 1) % len(servers)]
        due = draft.at + _hold(draft.policy, attempt)
        draft.emit(f.ServerReserved(model.key, version.generation, server, -free, attempt, draft.at, due))
        held.now.add(server)


def _overtaken(draft: Draft, model: Model, version: Version, held: _Held) -> list[tuple[int, str]]:
    """Return (bytes free, below zero; server) of those where a version was overtaken, the most free first.

    None if it need not wait, or if as many servers as may be are reserved of those that could hold it.
    """
    ask, state = Ask(draft, model, version), draft.state
    ask.apart = ask.apart and draft.policy.anti_affinity != "soft"
    sieve, found, could = Sieve(ask), list[tuple[int, str]](), list[str]()
    if sieve.against_all() not in ("", *LOADS):
        return []
    for key in state.fleet.rooms(state):
        server = state.servers[key]
        rule = sieve.against_class(state.fleet.pool_of(server).kind) or sieve.against_site(Site(ask, server))
        if (rule and rule not in _WORTH_WAITING) or not could_do(ask, server):
            continue
        could.append(key)
        rooms = _rooms(state, version, server)
        if not rule or (rule in FOR_NOW and min(rooms, default=-1) >= version.size):
            return []
        if key in held.before or rule_of(ask.kept, server, ask.spec):
            continue
        if min(_rooms(state, version, server, alone=True), default=-1) >= version.size:
            found.append((-_free(version, rooms), key))
    return sorted(found) if len(held.now.intersection(could)) < max(1, len(could) // SHARE) else []


def _free(version: Version, rooms: list[int]) -> int:
    """Return how much of what a replica needs is free, in bytes per device; -1 = it could not be there."""
    return sum(max(0, min(room, version.size)) for room in rooms) // len(rooms) if rooms else -1


def _rooms(state: State, version: Version, server: Server, *, alone: bool = False) -> list[int]:
    """Return the bytes that a replica could have on each of its devices on a server before this draft; none = it could not.

    Args:
        state: has the books.
        version: whose devices count.
        server: any.
        alone: as if nothing of other models were there that came after it, nor what is to give its memory back.
    """
    spec, info, freed, booked, held = version.spec, server.info, Counter[str](), server.booked, len(server.replicas)
    for neighbour in state.fleet.neighbours(state, server) if alone else ():
        there = [replica for replica in neighbour.replicas.values() if replica.model != spec.key]
        later = [replica for replica in there if replica.position > version.position]
        held -= len(later) if neighbour is server else 0
        for booking in (booking for each in (*later, *neighbour.awaited.values()) for booking in each.bookings):
            freed[booking.device] += booking.bytes
            booked -= booking.bytes if neighbour is server else 0
    devices, count = suited_devices(server, spec.devices, spec.gpu_types), spec.devices or 1
    rooms = sorted((room_on(state, server, device) + freed[device.uuid] for device in devices), reverse=True)
    if len(rooms) < count or 0 < info.max_models <= held:
        return []
    promised = memory_limit(info)
    return [min(room, (promised - booked) // count) if promised else room for room in rooms[:count]]
