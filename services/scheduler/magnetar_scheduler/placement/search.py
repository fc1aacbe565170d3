"""The search: a few servers are looked at, whatever the size of the fleet."""

from collections.abc import Iterable
from heapq import merge, nlargest
from math import inf
from typing import NamedTuple

from magnetar_common.amounts import counted
from magnetar_common.fleet import Rank, room_for
from magnetar_common.state import Model, Server, Version
from magnetar_events.facts import Booking, Candidate, Count, PlacementRefused
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.kept import but_for_replacements, replaces
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters import PASSING, RULES, Sieve
from magnetar_scheduler.placement.scorers import Scale
from magnetar_scheduler.placement.scorers.spread import HOST, of_zone
from magnetar_scheduler.placement.site import Site, room_after

BEST = 5
"""Candidates that a decision keeps as evidence; so many that are equally good are compared, the first by name."""

LOOKS = 50
"""Servers with room that are looked at, at most, where those that come first are on the wrong hosts."""

OF_MEMORY = frozenset({"memory", "largest-block"})
"""Rules that turn a server down for what is free on its devices."""

EXAMPLES = 10
"""Servers that a refusal keeps as evidence."""


class Placed(NamedTuple):
    """A server for the replica, what to reserve on it, and the best candidates."""

    server: str
    bookings: tuple[Booking, ...]
    best: tuple[Candidate, ...]


class Refused(NamedTuple):
    """No server takes it: how many each rule turned down, and examples."""

    refusals: tuple[Count, ...]
    examples: tuple[Candidate, ...]
    message: str

    @property
    def passing(self) -> bool:
        """Whether a rule that stops applying by itself is among those in the way."""
        return any(count.rule in PASSING for count in self.refusals)


_Found = tuple[float, str, Site]
"""(score, key, itself) of a server that would take it."""


def place(draft: Draft, model: Model, version: Version) -> Placed | Refused:
    """Find a server for one more replica of a version, as things stand after the draft's facts."""
    before = version.refused if version.refused is not None and _for_memory(version.refused) else None
    if before is not None and not draft.state.tenants and _outgrown(draft, version):
        return _as_before(before)
    ask = Ask(draft, model, version)
    search = Search(ask)
    if rule := search.sieve.against_all():
        return Refused((Count(rule, len(draft.state.servers)),), (), ask.told or RULES[rule])
    if before is not None and not ask.kept and _outgrown(draft, version):
        return _as_before(before)
    found = search.find()
    if not found:
        return _refuse(ask, search.sieve)
    _, server, site = found[0]
    return Placed(server, site.bookings(), tuple(Candidate(key, score, "") for score, key, _ in found[:BEST]))


def _as_before(refused: PlacementRefused) -> Refused:
    return Refused(refused.refusals, refused.examples, refused.message)


def _for_memory(refused: PlacementRefused) -> bool:
    """Whether memory was in the way, and nothing that passes by itself: any other reason is looked at anew."""
    rules = {count.rule for count in refused.refusals}
    return not OF_MEMORY.isdisjoint(rules) and PASSING.isdisjoint(rules)


def rule_against(draft: Draft, model: Model, version: Version, server: Server) -> str:
    """Return the rule by which one server is turned down for one more replica of a version, or an empty string.

    Args:
        draft: so far.
        model: of which one more replica is to be placed.
        version: of it.
        server: any.
    """
    ask = Ask(draft, model, version)
    ask.apart = ask.apart and ask.policy.anti_affinity != "soft"
    return Sieve(ask).against(Site(ask, server))


class Search:
    """Looks for servers for one ask, and takes care that they are few.

    Args:
        ask: what for. If nothing else helps, a soft ``apart`` of it is given up, and what is ``kept`` from all but a
            replacement of what its tenant already had.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.sieve = Sieve(ask)
        self.scale = Scale(ask)
        self._found: list[_Found] = []

    def find(self) -> list[_Found]:
        """Return servers that would take it, the best first."""
        ask = self._ask
        self._look_around()
        if not self._found and ask.apart and ask.policy.anti_affinity == "soft":
            ask.apart = False
            self._look_around()
        if not self._found and ask.kept and replaces(ask.draft.state, ask.model, ask.version):
            ask.kept = but_for_replacements(ask.kept)
            self._look_around()
        self._found.sort()
        return self._found

    def _look_around(self) -> None:
        """Look at the servers that the draft has changed, those that a scorer prefers, and then all in order.

        The order is by the least that a server can score. It ends when no other can be better than what was found; but
        of those that come out equal only a few are looked at.
        """
        ask = self._ask
        draft, devices = ask.draft, ask.spec.devices
        first = list(ask.cached)
        if draft.loading and ask.policy.loads_per_server:  # of a load that this draft ended the fleet does not know
            first += [key for key, begun in draft.loading.items() if begun < 0]
        looked = {*draft.placed, *first} if first else draft.placed
        taken, generation = ask.model.replicas, ask.version.generation
        for key in looked:
            if (generation, key) in taken:
                continue  # in a wish for a thousand replicas it is most of them
            server = draft.state.servers[key]
            if server.schedulable and not self.sieve.against_class(draft.state.fleet.pool_of(server).kind):
                self._look(key)
        rooms = draft.state.fleet.rooms(draft.state)
        # What a draft takes away may make room on any server of that host, of which the fleet does not know.
        least = -inf if draft.reserved and min(draft.reserved.values()) < 0 else ask.size
        level, equal, before = inf, 0, len(self._found)
        on_devices, kept = devices > 0, ask.kept
        for floor, key in self._in_order():
            if floor > level or equal >= BEST or len(self._found) - before >= LOOKS:
                break
            if room_for(rooms[key], devices) < least or key in looked or (key, on_devices) in kept:
                continue
            site = self._look(key)
            if site is not None:
                reached = floor + HOST * ask.hosts.get(site.info.host, 0) if ask.hosts else floor
                level, equal = (reached, 1) if reached < level else (level, equal + (reached == level))

    def _look(self, key: str) -> Site | None:
        site = Site(self._ask, self._ask.draft.state.servers[key])
        if self.sieve.against_site(site):
            return None
        self._found.append((self.scale.total(site), key, site))
        return site

    def _in_order(self) -> Iterable[tuple[float, str]]:
        """Return (the least that it can score, key) of the servers of which the class and the name are right, in order."""
        ask, state = self._ask, self._ask.draft.state
        fleet = state.fleet
        if ask.spec.server:
            named = fleet.named(state, ask.spec.server)
            pools = ((fleet.pool_of(state.servers[rank[1]]), (rank,)) for rank in named)
        else:
            pools = fleet.pools(state)
        eligible = [
            _farther(ranks, of_zone(ask, pool.zone)) if pool.zone in ask.zones else ranks
            for pool, ranks in pools
            if not self.sieve.against_class(pool.kind)
        ]
        return eligible[0] if len(eligible) == 1 else merge(*eligible)


def _farther(ranks: Iterable[Rank], by: float) -> Iterable[tuple[float, str]]:
    return ((load + by, key) for load, key in ranks)


def _outgrown(draft: Draft, version: Version) -> bool:
    """Whether what waited needs more than any server has left: one look at the fleet serves a whole piece of them."""
    devices = version.spec.devices
    if devices not in draft.largest_room:
        servers = (server for server in draft.state.servers.values() if server.schedulable)
        draft.largest_room[devices] = max((_most(draft, server, devices) for server in servers), default=-1)
    return version.size > draft.largest_room[devices] and min(draft.reserved.values(), default=0) >= 0


def _most(draft: Draft, server: Server, devices: int) -> int:
    """Return the most that a replica of so many accelerators (0 = host memory) could have on each of a server's; or -1."""
    suited = (device for device in server.devices.values() if (device.kind != "cpu") == (devices > 0))
    rooms = nlargest(devices or 1, (room_after(draft, server, device) for device in suited))
    return rooms[-1] if len(rooms) >= (devices or 1) else -1


def _refuse(ask: Ask, sieve: Sieve) -> Refused:
    """Say why no server takes it. The answer to one is the answer to all that ask for the same of the same fleet."""
    if not ask.alone:
        return _refused(ask, sieve)
    spec, policy, state = ask.spec, ask.policy, ask.draft.state
    known = state.fleet.refusals(state)
    asked = (spec.server, spec.runtime.kind, spec.requirements, spec.devices, spec.gpu_types, ask.size)
    asked = (*asked, policy.utilisation_limit, policy.loads_per_server, frozenset(ask.kept.items()))
    if asked not in known:
        known[asked] = _refused(ask, sieve)
    return known[asked]


def _refused(ask: Ask, sieve: Sieve) -> Refused:
    counts: dict[str, int] = {}
    examples: list[Candidate] = []
    servers = ask.draft.state.servers
    for key in sorted(servers):
        rule = sieve.against(Site(ask, servers[key]))
        counts[rule] = counts.get(rule, 0) + 1
        if len(examples) < EXAMPLES:
            examples.append(Candidate(key, 0.0, rule))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if ordered:
        told = "; ".join(f"{n} {RULES[rule]}" for rule, n in ordered)
        message = f"fits on none of {counted(len(servers), 'server')}: {told}"
    else:
        message = "there is no server yet"
    return Refused(tuple(Count(rule, n) for rule, n in ordered), tuple(examples), message)
