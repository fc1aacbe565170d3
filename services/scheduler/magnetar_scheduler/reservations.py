"""Reservations: what becomes free on a server is kept for a version that has waited long, so that none waits for ever.

One that needs much is overtaken otherwise for as long as there are others that need less: each place that becomes free is
too small for it, and goes to one of those. So once it has waited for the policy's ``reserveAfterMs``, the server where the
least has still to leave is reserved for it. It stays so as long as more becomes free there; where nothing has, the next in
that order is tried, each time for longer: none depends on a server whose replicas never leave.

Who has a higher priority, or replaces what its tenant had, is not kept off; and few servers are reserved at a time.
"""

from dataclasses import replace
from typing import NamedTuple

from magnetar_common.fleet import room_for
from magnetar_common.state import Model, Version
from magnetar_events import facts as f
from magnetar_events.versions import SINCE
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters import Sieve
from magnetar_scheduler.placement.site import Site
from magnetar_scheduler.preemption import ROOM, could_do
from magnetar_scheduler.tenants import kept

SHARE = 20
"""One schedulable server in so many is reserved at most, and one always may be: the others serve those that come."""

FREED = ROOM | {"largest-block"}
"""Rules that turn a server down for what is on it."""


class _Waiting(NamedTuple):
    """A version that has waited long and has nothing reserved; the smallest has a server first."""

    less: int
    since: int
    model: str
    generation: int


def waits_since(draft: Draft, version: Version, missing: int) -> int:
    """Return since when (log time, ms) a version waits of which so many replicas fit nowhere now; 0 = an old log says not.

    Who has got a replica meanwhile has waited no longer than who begins to.
    """
    if draft.state.version < SINCE[f.ServerReserved]:
        return 0
    before = version.refused
    return draft.at if before is None or missing < before.missing else before.since or version.at


def reserve(draft: Draft) -> None:
    """Reserve servers for those that have waited longest of all that have waited long, as many as may be."""
    if not draft.policy.reserve_after_ms or draft.state.version < SINCE[f.ServerReserved]:
        return
    left, queue = _queue(draft)
    for each in sorted(queue):
        if left <= 0 or draft.full:
            return
        model = draft.model(each.model)
        assert model is not None
        version = model.versions[each.generation]
        left -= _reserve(draft, model, version, version.reservation.attempt + 1 if version.reservation else 1)


def renew(draft: Draft, model: Model, version: Version) -> None:
    """Look again at a reservation that is due: go on, try the next server, or let another version go first."""
    before, refused = version.reservation, version.refused
    if before is None or refused is None or version.generation not in model.kept():
        draft.emit(f.PlacementSettled(model.key, version.generation))
        return
    attempt, server = before.attempt, before.server
    if _free(draft, version, server) <= before.free:
        attempt, server = attempt + 1, ""
    left, queue = _queue(draft)
    its_turn = server or not queue or left > 0
    if not (draft.policy.reserve_after_ms and its_turn and _reserve(draft, model, version, attempt, server)):
        draft.emit(replace(refused, since=draft.at))
        reserve(draft)


def _queue(draft: Draft) -> tuple[int, list[_Waiting]]:
    """Return how many more servers may be reserved, and for whom."""
    schedulable = draft.state.fleet.rooms(draft.state)
    left, queue = max(1, len(schedulable) // SHARE), list[_Waiting]()
    before = draft.at - draft.policy.reserve_after_ms
    for key in draft.state.waiting:
        model = draft.seen(key)
        for version in [model.versions[generation] for generation in model.kept()] if model is not None else ():
            refused = version.refused
            if refused is None:
                continue
            if version.claim and (not version.reserved or version.claim in schedulable):
                left -= version.reserved
                continue
            since = refused.since or version.at
            if since <= before and not FREED.isdisjoint(count.rule for count in refused.refusals):
                queue.append(_Waiting(-version.spec.priority, since, key, version.generation))
    return left, queue


def _reserve(draft: Draft, model: Model, version: Version, attempt: int, server: str = "") -> bool:
    """Reserve a server, by default the one whose turn it is at this attempt; return whether there is one."""
    servers = _in_order(draft, model, version)
    if server not in servers:
        server = servers[(attempt - 1) % len(servers)] if servers else ""
    if server:
        free, due = _free(draft, version, server), draft.at + attempt * draft.policy.reserve_after_ms
        draft.emit(f.ServerReserved(model.key, version.generation, server, free, attempt, due))
    return bool(server)


def _in_order(draft: Draft, model: Model, version: Version) -> list[str]:
    """Return the servers that would take a replica if others left, most free first; none if it needs to wait for nobody."""
    ask, servers, found = Ask(draft, model, version), draft.state.servers, list[tuple[int, str]]()
    ask.apart = ask.apart and draft.policy.anti_affinity != "soft"
    sieve = Sieve(ask)
    if sieve.against_all():
        return []
    for key in draft.state.fleet.rooms(draft.state):
        rule = sieve.against(Site(ask, servers[key]))
        if not rule:
            return []
        if rule in FREED and could_do(ask, servers[key]) and not kept(draft, model, version, servers[key], ask.kept):
            found.append((-_free(draft, version, key), key))
    return [key for _, key in sorted(found)]


def _free(draft: Draft, version: Version, server: str) -> int:
    """Return the bytes per device that a replica could have on a server before this draft; -1 = none."""
    return room_for(draft.state.fleet.rooms(draft.state).get(server, ()), version.spec.devices)
