"""The fleet in order: schedulable servers by class and load, so that a placement looks at a few servers and not at all.

Servers of one class can serve the same models (capabilities, kind of runtime, accelerator types). Within a class they
are kept sorted by (replicas, key): least load first, ties always the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sortedcontainers  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar_common.state import Server
    from magnetar_events.records import ServerInfo


class ServerClass(NamedTuple):
    """What makes servers interchangeable for the question which models they could serve."""

    runtime: str
    capabilities: frozenset[str]
    gpu_types: frozenset[str]


def class_of(server: Server) -> ServerClass:
    """Return a server's class."""
    info = server.info
    gpu_types = frozenset(device.gpu_type for device in info.devices if device.kind != "cpu")
    return ServerClass(info.runtime.kind, frozenset(info.capabilities), gpu_types)


class Fleet:
    """The index. It is derived, and no part of the state; servers that changed are sorted in when somebody looks."""

    __slots__ = ("_changed", "_classes", "_kinds", "_places")

    def __init__(self) -> None:
        self._classes: dict[ServerClass, Any] = {}
        self._places: dict[str, tuple[ServerClass, tuple[int, str]]] = {}
        self._changed: dict[str, Server | None] = {}
        self._kinds: dict[str, tuple[ServerInfo, ServerClass]] = {}

    def touch(self, server: Server) -> None:
        """Take note that a server is another than it was."""
        self._changed[server.key] = server

    def drop(self, key: str) -> None:
        """Take a server out."""
        self._changed[key] = None

    def classes(self) -> list[tuple[ServerClass, Iterable[tuple[int, str]]]]:
        """Return every class with its schedulable servers as (replicas, key), least loaded first."""
        for key, server in self._changed.items():
            self._sort_in(key, server if server is not None and server.schedulable else None)
        self._changed.clear()
        return list(self._classes.items())

    def _sort_in(self, key: str, server: Server | None) -> None:
        old = self._places.get(key)
        new = (self._class_of(server), (len(server.replicas), key)) if server is not None else None
        if old == new:
            return
        if old is not None:
            kind, rank = old
            self._classes[kind].remove(rank)
            if not self._classes[kind]:
                del self._classes[kind]
            del self._places[key]
        if new is not None:
            kind, rank = new
            ranks: Any = self._classes.get(kind)
            if ranks is None:
                ranks = self._classes[kind] = sortedcontainers.SortedList()  # pyright: ignore[reportUnknownMemberType]
            ranks.add(rank)
            self._places[key] = new

    def _class_of(self, server: Server) -> ServerClass:
        """Return a server's class, made anew only when it says something else of itself."""
        known = self._kinds.get(server.key)
        if known is None or known[0] is not server.info:
            known = self._kinds[server.key] = (server.info, class_of(server))
        return known[1]
