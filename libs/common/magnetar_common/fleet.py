"""The fleet in order: schedulable servers by class, zone and load, so that a placement looks at a few and not at all.

Servers of one class can serve the same models (capabilities, kind of runtime, accelerator types). Those of a class in one
zone are a pool, kept sorted by (replicas, key): least load first, ties always the same way. Of each is known how much one
more replica could take at most, so that the full ones of a nearly full fleet are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sortedcontainers  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from magnetar_common.state import Server, State
    from magnetar_events.records import Device, ServerInfo

HOST_MEMORY = "cpu"
"""The device of a replica that needs no accelerator."""

Rank = tuple[int, str]
"""(replicas, key) of a server."""


class ServerClass(NamedTuple):
    """What makes servers interchangeable for the question which models they could serve."""

    runtime: str
    capabilities: frozenset[str]
    gpu_types: frozenset[str]


Zone = tuple[str, str]
"""(region, zone) of a server; empty names where it does not say."""


class Pool(NamedTuple):
    """Servers of one class in one zone."""

    kind: ServerClass
    zone: Zone


def _class_of(info: ServerInfo) -> ServerClass:
    gpu_types = frozenset(device.gpu_type for device in info.devices if device.kind != "cpu")
    return ServerClass(info.runtime.kind, frozenset(info.capabilities), gpu_types)


def suited_devices(server: Server, count: int, gpu_types: Container[str]) -> list[Device]:
    """Return the devices that a replica which spans so many accelerators (0 = host memory) may take, whatever is free.

    One that cannot be read is none, and a GPU split into MIG instances neither. No ``gpu_types`` = any.
    """
    if not count:
        host = server.devices.get(HOST_MEMORY)
        return [host] if host is not None and not host.error else []
    parents = {device.parent for device in server.devices.values() if device.parent}
    return [
        device
        for device in server.devices.values()
        if device.kind != "cpu"
        and not device.error
        and device.uuid not in parents
        and (not gpu_types or device.gpu_type in gpu_types)
    ]


def room_on(state: State, server: Server, device: Device, free: int | None = None) -> int:
    """Return the bytes that one more replica may take on a device: what is not promised, and not taken by others either.

    What is booked counts whether or not a reading shows it yet; what strangers took shows in the reading.

    Args:
        state: has the books.
        server: whose promise of over-commit counts.
        device: of its host.
        free: what is free, if that is another amount than the largest block.
    """
    info = server.info
    key = (info.host, device.uuid)
    if free is None:
        free = min(device.free, device.largest_free)
    unpromised, untaken = device.total - state.booked.get(key, 0), free - state.arriving.get(key, 0)
    room = min(untaken, unpromised)
    return room + device.total * info.over_commit_percent // 100 if info.over_commit_percent else room


def memory_limit(info: ServerInfo) -> int:
    """Return the bytes for all models together that a server gives, and promises on top; 0 = it says no limit."""
    return info.memory_bytes * (100 + info.over_commit_percent) // 100


Rooms = tuple[int, ...]
"""The bytes per device that one more replica on a server may take at most: in host memory, on its roomiest accelerator, on
the second roomiest, … So the n-th is the most that a replica which spans n accelerators can have."""


def room_for(rooms: Rooms, devices: int) -> int:
    """Return the bytes per device that a replica of so many accelerators (0 = host memory) may have; -1 = nothing."""
    return rooms[devices] if devices < len(rooms) else -1


def _rooms_of(state: State, server: Server) -> Rooms:
    info, limit = server.info, state.policy.loads_per_server
    if info.max_models and len(server.replicas) >= info.max_models:
        return ()
    if limit and state.loading[server.key] >= limit:
        return ()
    host, accelerators = -1, list[int]()
    for device in server.devices.values():
        if device.uuid == HOST_MEMORY:
            host = room_on(state, server, device)
        elif device.kind != "cpu":
            accelerators.append(room_on(state, server, device))
    accelerators.sort(reverse=True)
    if info.memory_bytes:
        left = memory_limit(info) - server.booked
        return min(host, left), *(min(room, left // n) for n, room in enumerate(accelerators, 1))
    return host, *accelerators


class _Place(NamedTuple):
    pool: Pool
    rank: Rank
    host: str
    name: str


class Fleet:
    """The index. It is derived, and no part of the state; servers that changed are sorted in when somebody looks."""

    __slots__ = (
        "_by_name", "_changed", "_hosts", "_kept", "_kinds", "_moved", "_places", "_pools", "_refusals", "_rooms",
    )  # fmt: skip

    def __init__(self) -> None:
        self._pools: dict[Pool, Any] = {}
        self._places: dict[str, _Place] = {}
        self._rooms: dict[str, Rooms] = {}
        self._hosts: dict[str, dict[str, Server]] = {}
        self._by_name: dict[str, set[str]] = {}
        self._changed: dict[str, Server | None] = {}
        self._kinds: dict[str, tuple[ServerInfo, Pool]] = {}
        self._refusals: dict[object, Any] = {}
        self._kept: Any = None
        self._moved: set[str] = set()

    def touch(self, server: Server) -> None:
        """Take note that a server is another than it was."""
        self._changed[server.key] = server

    def touch_host(self, host: str) -> None:
        """Take note that what is booked on a host's devices is: all servers there share them."""
        for key, server in self._hosts.get(host, {}).items():
            self._changed.setdefault(key, server)

    def drop(self, key: str) -> None:
        """Take a server out."""
        self._changed[key] = None

    def pools(self, state: State) -> list[tuple[Pool, Iterable[Rank]]]:
        """Return every pool with its schedulable servers, least loaded first."""
        self._settle(state)
        return list(self._pools.items())

    def named(self, state: State, name: str) -> list[Rank]:
        """Return the schedulable servers of this name (its replicas), least loaded first."""
        self._settle(state)
        return sorted(self._places[key].rank for key in self._by_name.get(name, ()))

    def rooms(self, state: State) -> dict[str, Rooms]:
        """Return what one more replica may take of each schedulable server, at most."""
        self._settle(state)
        return self._rooms

    def refusals(self, state: State) -> dict[object, Any]:
        """Return where a placement keeps what it found out about the whole fleet; empty again once that has changed."""
        self._settle(state)
        return self._refusals

    def kept(self, state: State) -> tuple[Any, set[str]]:
        """Return what :meth:`keep` was given last, and the servers that have changed since."""
        self._settle(state)
        return self._kept, self._moved

    def keep(self, found: object) -> None:
        """Keep what was found out about the whole fleet as it is."""
        self._kept, self._moved = found, set()

    def neighbours(self, state: State, server: Server) -> Iterable[Server]:
        """Return the schedulable servers of a server's host, itself among them if it is one: they share its devices."""
        self._settle(state)
        return self._hosts.get(server.info.host, {}).values()

    def pool_of(self, server: Server) -> Pool:
        """Return a server's class and zone, made anew only when it says something else of itself."""
        known = self._kinds.get(server.key)
        if known is None or known[0] is not server.info:
            info = server.info
            known = self._kinds[server.key] = (info, Pool(_class_of(info), (info.region, info.zone)))
        return known[1]

    def _settle(self, state: State) -> None:
        if not self._changed:
            return
        for key, server in self._changed.items():
            self._sort_in(state, key, server if server is not None and server.schedulable else None)
        if self._kept is not None:
            self._moved.update(self._changed)
        self._changed.clear()
        self._refusals.clear()

    def _sort_in(self, state: State, key: str, server: Server | None) -> None:
        old, new = self._places.get(key), None
        if server is not None:
            info = server.info
            new = _Place(self.pool_of(server), (len(server.replicas), key), info.host, info.server)
            self._rooms[key] = _rooms_of(state, server)
            self._hosts.setdefault(info.host, {})[key] = server
        if old == new:
            return
        if old is not None:
            ranks = self._pools[old.pool]
            ranks.remove(old.rank)
            if not ranks:
                del self._pools[old.pool]
            if new is None or new.host != old.host:
                del self._hosts[old.host][key]
        if new is not None:
            if new.pool not in self._pools:
                self._pools[new.pool] = sortedcontainers.SortedList()  # pyright: ignore[reportUnknownMemberType]
            self._pools[new.pool].add(new.rank)
            self._by_name.setdefault(new.name, set()).add(key)
            self._places[key] = new
        elif old is not None:
            self._by_name[old.name].discard(key)
            del self._places[key], self._rooms[key]
