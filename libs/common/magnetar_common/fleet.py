"""The fleet in order: schedulable servers by class and load, so that a placement looks at a few servers and not at all.

Servers of one class can serve the same models (capabilities, kind of runtime, accelerator types). Within a class they
are kept sorted by (replicas, key): least load first, ties always the same way. Of each is known how much one more replica
could take at most, so that the full ones of a nearly full fleet are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sortedcontainers  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def _class_of(info: ServerInfo) -> ServerClass:
    gpu_types = frozenset(device.gpu_type for device in info.devices if device.kind != "cpu")
    return ServerClass(info.runtime.kind, frozenset(info.capabilities), gpu_types)


def room_on(state: State, server: Server, device: Device) -> int:
    """Return the bytes that one more replica may take on a device: what is not promised, and not taken by others either.

    What is booked counts whether or not a reading shows it yet; what strangers took shows in the reading.
    """
    info = server.info
    key = (info.host, device.uuid)
    promise = device.total * info.over_commit_percent // 100
    unpromised = device.total + promise - state.booked.get(key, 0)
    untaken = min(device.free, device.largest_free) + promise - state.arriving.get(key, 0)
    return min(unpromised, untaken)


def _largest(state: State, server: Server) -> tuple[int, int]:
    """Return what one more replica may take at most per device, in host memory and on accelerators; -1 = nothing."""
    info = server.info
    if info.max_models and len(server.replicas) >= info.max_models:
        return -1, -1
    host = accelerator = -1
    for device in server.devices.values():
        if device.uuid == HOST_MEMORY:
            host = room_on(state, server, device)
        elif device.kind != "cpu":
            accelerator = max(accelerator, room_on(state, server, device))
    if info.memory_bytes:
        left = info.memory_bytes * (100 + info.over_commit_percent) // 100 - server.booked
        host, accelerator = min(host, left), min(accelerator, left)
    return host, accelerator


class _Place(NamedTuple):
    kind: ServerClass
    rank: Rank
    host: str
    name: str


class Fleet:
    """The index. It is derived, and no part of the state; servers that changed are sorted in when somebody looks."""

    __slots__ = ("_by_name", "_changed", "_classes", "_hosts", "_kinds", "_places", "_refusals", "_rooms")

    def __init__(self) -> None:
        self._classes: dict[ServerClass, Any] = {}
        self._places: dict[str, _Place] = {}
        self._rooms: dict[str, tuple[int, int]] = {}
        self._hosts: dict[str, dict[str, Server]] = {}
        self._by_name: dict[str, set[str]] = {}
        self._changed: dict[str, Server | None] = {}
        self._kinds: dict[str, tuple[ServerInfo, ServerClass]] = {}
        self._refusals: dict[object, Any] = {}

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

    def classes(self, state: State) -> list[tuple[ServerClass, Iterable[Rank]]]:
        """Return every class with its schedulable servers, least loaded first."""
        self._settle(state)
        return list(self._classes.items())

    def named(self, state: State, name: str) -> list[Rank]:
        """Return the schedulable servers of this name (its replicas), least loaded first."""
        self._settle(state)
        return sorted(self._places[key].rank for key in self._by_name.get(name, ()))

    def rooms(self, state: State) -> dict[str, tuple[int, int]]:
        """Return what one more replica may take of each schedulable server, at most: (host memory, per accelerator)."""
        self._settle(state)
        return self._rooms

    def refusals(self, state: State) -> dict[object, Any]:
        """Return where a placement keeps what it found out about the whole fleet; empty again once that has changed."""
        self._settle(state)
        return self._refusals

    def class_of(self, server: Server) -> ServerClass:
        """Return a server's class, made anew only when it says something else of itself."""
        known = self._kinds.get(server.key)
        if known is None or known[0] is not server.info:
            known = self._kinds[server.key] = (server.info, _class_of(server.info))
        return known[1]

    def _settle(self, state: State) -> None:
        if not self._changed:
            return
        for key, server in self._changed.items():
            self._sort_in(state, key, server if server is not None and server.schedulable else None)
        self._changed.clear()
        self._refusals.clear()

    def _sort_in(self, state: State, key: str, server: Server | None) -> None:
        old, new = self._places.get(key), None
        if server is not None:
            info = server.info
            new = _Place(self.class_of(server), (len(server.replicas), key), info.host, info.server)
            self._rooms[key] = _largest(state, server)
            self._hosts.setdefault(info.host, {})[key] = server
        if old == new:
            return
        if old is not None:
            ranks = self._classes[old.kind]
            ranks.remove(old.rank)
            if not ranks:
                del self._classes[old.kind]
            if new is None or new.host != old.host:
                del self._hosts[old.host][key]
        if new is not None:
            if new.kind not in self._classes:
                self._classes[new.kind] = sortedcontainers.SortedList()  # pyright: ignore[reportUnknownMemberType]
            self._classes[new.kind].add(new.rank)
            self._by_name.setdefault(new.name, set()).add(key)
            self._places[key] = new
        elif old is not None:
            self._by_name[old.name].discard(key)
            del self._places[key], self._rooms[key]
