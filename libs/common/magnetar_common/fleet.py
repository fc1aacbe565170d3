"""The fleet in order: schedulable servers by class and load, so that a placement looks at a few servers and not at all.

Servers of one class can serve the same models (capabilities, kind of runtime, accelerator types). Within a class they
are kept sorted by (replicas, key): least load first, ties always the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sortedcontainers  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from magnetar_common.state import Server


class ServerClass(NamedTuple):
    """What makes servers interchangeable for the question which models they could serve."""

    runtime: str
    capabilities: frozenset[str]
    gpu_types: frozenset[str]


def class_of(server: Server) -> ServerClass:
    """Return a server's class."""
    info = server.info
    return ServerClass(
        info.runtime.kind,
        frozenset(info.capabilities),
        frozenset(device.gpu_type for device in server.devices.values() if device.kind != "cpu"),
    )


class Fleet:
    """The index. It is derived: ``put`` and ``drop`` follow the state, and it is no part of it."""

    __slots__ = ("_classes", "_places")

    def __init__(self) -> None:
        self._classes: dict[ServerClass, Any] = {}
        self._places: dict[str, tuple[ServerClass, tuple[int, str]]] = {}

    def put(self, server: Server) -> None:
        """Index a server as it is now, or drop it if it is not schedulable."""
        place = self._places.get(server.key)
        if not server.schedulable:
            self.drop(server.key)
            return
        kind = class_of(server)
        rank = (len(server.replicas), server.key)
        if place == (kind, rank):
            return
        self.drop(server.key)
        ranks: Any = self._classes.get(kind)
        if ranks is None:
            ranks = self._classes[kind] = sortedcontainers.SortedList()  # pyright: ignore[reportUnknownMemberType]
        ranks.add(rank)
        self._places[server.key] = (kind, rank)

    def reload(self, server: Server) -> None:
        """Put a server, of whom nothing changed but what it holds, in its new place."""
        place = self._places.get(server.key)
        if place is None:
            return
        kind, rank = place
        ranks = self._classes[kind]
        ranks.remove(rank)
        rank = (len(server.replicas), server.key)
        ranks.add(rank)
        self._places[server.key] = (kind, rank)

    def drop(self, key: str) -> None:
        """Take a server out."""
        place = self._places.pop(key, None)
        if place is None:
            return
        kind, rank = place
        ranks = self._classes[kind]
        ranks.remove(rank)
        if not ranks:
            del self._classes[kind]

    def classes(self) -> list[tuple[ServerClass, Iterable[tuple[int, str]]]]:
        """Return every class with its servers as (replicas, key), least loaded first."""
        return list(self._classes.items())

    def ranked(self) -> Iterator[tuple[int, str]]:
        """Yield every schedulable server as (replicas, key), class by class."""
        for ranks in self._classes.values():
            yield from ranks

    def __len__(self) -> int:
        return len(self._places)
