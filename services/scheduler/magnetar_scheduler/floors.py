"""Floors: which servers are kept for a tenant that waits below its floor. As many as it needs, and no more.

For each replica that it waits for, in the order of their turn and until it would have its floor, one server is kept: of
those that could have the replica if they were empty, the one of which the most is free already; the name breaks ties. So
where the least has still to leave, nobody else takes what does; and everywhere else the others go on.

What is kept follows from the state alone. It is found anew only when a server that is kept has changed, or another comes
before one that is: most decisions concern others.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from magnetar_common.fleet import room_for, suited_devices
from magnetar_common.quotas import NOTHING, Amount, Need, lacking, minus, once, tenant_of
from magnetar_common.state import Server, State
from magnetar_scheduler.draft import Draft

Place = tuple[str, bool]
"""(server, whether it is its accelerators)."""

Places = frozenset[Place]

_Rank = tuple[int, str]
"""(bytes that are free, below zero; server): who could have a replica soonest comes first."""


class _Shape(NamedTuple):
    """What a server must be to hold a replica, but for the size of its memory: all that are equal are looked for at once."""

    server: str
    runtime: str
    requirements: tuple[str, ...]
    devices: int
    gpu_types: tuple[str, ...]


class _Unserved(NamedTuple):
    """Of needs of one shape that found no server: the smallest, and the servers that none of them could have."""

    memory: int
    without: frozenset[str]


class _Choice:
    """Servers as they are chosen for one need after the other.

    Args:
        state: only read.
        taken: what is kept already: nobody else's is chosen twice, as long as there are others.

    Attributes:
        last: shape → the last server by rank that was chosen for it.
        least: shape → the smallest memory that was looked for.
        unserved: shape → what found too few.
    """

    def __init__(self, state: State, taken: Iterable[Place] = ()) -> None:
        self._state = state
        self.taken = set(taken)
        self._free: dict[_Shape, list[tuple[_Rank, int]]] = {}
        self.last: dict[_Shape, _Rank] = {}
        self.least: dict[_Shape, int] = {}
        self.unserved: dict[_Shape, _Unserved] = {}

    def choose(self, needs: Iterable[Need], lacks: Amount) -> tuple[Places, Amount]:
        """Choose servers for the needs of one tenant, the first first; return them, and what it would still lack of its floor."""
        kept: set[tuple[str, bool]] = set()
        for need in needs:
            missing, on_devices = need.missing, need.devices > 0
            shape = _Shape(need.server, need.runtime, need.requirements, need.devices, need.gpu_types)
            self.least[shape] = min(need.memory, self.least.get(shape, need.memory))
            free, at = self._in_order(shape), 0
            while missing and lacks != NOTHING and at < len(free):
                rank, capacity = free[at]
                if (rank[1], on_devices) in self.taken:
                    del free[at]
                elif capacity < need.memory or rank[1] in need.without:
                    at += 1
                else:
                    del free[at]
                    kept.add((rank[1], on_devices))
                    self.taken.add((rank[1], on_devices))
                    self.last[shape] = max(rank, self.last.get(shape, rank))
                    lacks, missing = _less(lacks, once(need)), missing - 1
            if lacks == NOTHING:
                break
            if missing:
                known = self.unserved.get(shape, _Unserved(need.memory, need.without))
                self.unserved[shape] = _Unserved(min(known.memory, need.memory), known.without & need.without)
        return frozenset(kept), lacks

    def _in_order(self, shape: _Shape) -> list[tuple[_Rank, int]]:
        if shape not in self._free:
            servers, found = self._state.servers, list[tuple[_Rank, int]]()
            for key, rooms in self._state.fleet.rooms(self._state).items():
                capacity = _capacity(servers[key], shape)
                if capacity >= 0:
                    found.append(((-room_for(rooms, shape.devices), key), capacity))
            self._free[shape] = sorted(found)
        return self._free[shape]


class _Known(NamedTuple):
    """What was found out, and what of the state it follows from."""

    asked: list[tuple[str, Amount, dict[str, tuple[Need, ...]]]]
    kept: dict[str, tuple[Places, Amount]]
    choice: _Choice

    def changed_by(self, state: State, key: str) -> bool:
        """Whether a server that has changed may be another reason to choose."""
        choice, rooms = self.choice, state.fleet.rooms(state).get(key)
        if (key, False) in choice.taken or (key, True) in choice.taken:
            return True
        if rooms is None:
            return False
        server = state.servers[key]
        return any(
            (-room_for(rooms, shape.devices), key) < last and _capacity(server, shape) >= choice.least[shape]
            for shape, last in choice.last.items()
        ) or any(
            key not in unserved.without and _capacity(server, shape) >= unserved.memory
            for shape, unserved in choice.unserved.items()
        )


def kept_for_others(draft: Draft) -> Places:
    """Return what is kept for tenants that wait below their floor, from whoever has its own."""
    kept = draft.kept
    if kept is None:
        kept = draft.kept = dict(_before(draft.state))
    if draft.fresh:
        _add_fresh(draft, kept)
    return Places().union(*(places for name, (places, _) in kept.items() if draft.is_short(name)))


def _before(state: State) -> dict[str, tuple[Places, Amount]]:
    """Return what is kept for each tenant that waits below its floor, as things stand before a draft."""
    needs = state.quotas.needs
    asked = [
        (name, lacks, needs[name])
        for name in sorted(needs.keys() & state.tenants.keys())
        if (lacks := lacking(state.tenants[name], state.quotas.use(name))) != NOTHING
    ]
    if not asked:
        return {}
    known, moved = state.fleet.kept(state)
    if known is None or known.asked != asked or any(known.changed_by(state, key) for key in moved):
        choice = _Choice(state)
        kept = {name: choice.choose(_in_turn(each), lacks) for name, lacks, each in asked}
        known = _Known([(name, lacks, dict(each)) for name, lacks, each in asked], kept, choice)
    state.fleet.keep(known)
    return known.kept


def _in_turn(needs: dict[str, tuple[Need, ...]]) -> list[Need]:
    """Return a tenant's needs, the one first whose turn is first: the higher priority, the older wish, the name."""
    ordered = sorted(
        (-need.priority, need.position, key, n) for key, each in needs.items() for n, need in enumerate(each)
    )
    return [needs[key][n] for _, _, key, n in ordered]


def _add_fresh(draft: Draft, kept: dict[str, tuple[Places, Amount]]) -> None:
    """Keep servers for what found no place in this draft, beside those that are kept already."""
    fresh, draft.fresh = draft.fresh, []
    for key, need in fresh:
        name = tenant_of(key)
        if key in draft.state.quotas.needs.get(name, ()) or not draft.is_short(name):
            continue
        servers, lacks = kept.get(name) or (Places(), lacking(draft.state.tenants[name], draft.use(name)))
        taken: AbstractSet[Place] = Places().union(*(each for each, _ in kept.values()))
        more, lacks = _Choice(draft.state, taken).choose((need,), lacks)
        kept[name] = servers | more, lacks


def _less(lacks: Amount, amount: Amount) -> Amount:
    return Amount(*(max(0, each) for each in minus(lacks, amount)))


def _capacity(server: Server, shape: _Shape) -> int:
    """Return the bytes per device that a replica could have on a server, were it empty; -1 = it could not be there."""
    info = server.info
    if (shape.server and info.server != shape.server) or (shape.runtime and info.runtime.kind != shape.runtime):
        return -1
    if not set(shape.requirements).issubset(info.capabilities):
        return -1
    count, whole = max(1, shape.devices), 100 + info.over_commit_percent
    totals = sorted((device.total for device in suited_devices(server, shape.devices, shape.gpu_types)), reverse=True)
    if len(totals) < count:
        return -1
    capacity = totals[count - 1] * whole // 100
    return min(capacity, info.memory_bytes * whole // 100 // count) if info.memory_bytes else capacity
