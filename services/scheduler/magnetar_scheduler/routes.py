"""The routes topic, kept as the state says: what changed is published, and once a minute all of it is compared.

It is compared when the view of it has just been made anew, which is when it shows what is missing: had the two a clock
each, what was deleted could stay away for twice as long.
"""

import threading
from collections.abc import Container

from magnetar_common.bus import Bus, Message
from magnetar_common.routing import content, route_of
from magnetar_common.state import Replica, State
from magnetar_common.table_view import TableView
from magnetar_common.topics import ROUTES
from magnetar_events import ROUTE
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.models import served_name
from magnetar_scheduler.outbox import Outbox

COMPARE_S = 60.0
"""The topic is read anew and compared with the state this often (seconds, ± 10 %)."""

LOST_S = 1.0
"""… and this soon (seconds) after a route could not be published."""

PIECE = 100
"""Models compared at a time, so that inputs are not kept waiting."""


class Routes:
    """Publishes routes, each when it is another one than what was published last. For the leader's thread.

    Args:
        state: the leader's; only read.
        outbox: sends.
        lost: set when a route could not be sent.
    """

    def __init__(self, state: State, outbox: Outbox, lost: threading.Event) -> None:
        self._state = state
        self._outbox = outbox
        self._lost = lost
        self._known: dict[str, bytes] = {}
        self._to_compare: list[str] = []
        self._next = 0.0
        self._passes = 0
        self._view: TableView[Message] | None = None

    def start(self, bus: Bus) -> None:
        """Follow what is on the topic. It is decoded when it is compared: most of it is our own, and soon replaced."""
        self._view = TableView(bus, ROUTES.name, lambda message: message, sweep_s=COMPARE_S)

    def publish(self, key: str) -> None:
        """Publish a model's route, or that it has none any more, if that is news."""
        model = self._state.models.get(key)
        route = None if model is None or (model.deleted and not model.traffic) else route_of(self._state, model)
        if route is None:
            if self._known.pop(key, None) is None and not self._may_be_there(key):
                return
        else:
            said = content(route)
            if said == self._known.get(key):
                return
            self._known[key] = said
        payload = ROUTE.encode(route) if route is not None else b""
        self._outbox.send(ROUTES.name, ROUTES.schema, payload, key=key, properties=ROUTE.properties)

    def _may_be_there(self, key: str) -> bool:
        """Whether the topic may hold a model's route that we did not publish: an earlier leader's."""
        return self._view is None or not self._view.passes or key in self._view

    def left(self, replica: Replica) -> bool:
        """Whether the topic, as far as it has been read back, sends nobody to a replica any more.

        A route that is decided is not one that is stored: the broker may be slow, or not take it at all.
        """
        if self._view is None or not self._view.passes:
            return False
        found = self._view.get(replica.model)
        if found is None:
            return True
        try:
            route = ROUTE.decode(found.payload, found.properties.get(FINGERPRINT, ""))
        except Undecodable:
            return True  # nobody follows it
        place = (replica.server, served_name(replica.model, replica.generation))
        return all(place != (e.server, e.served_name) for target in route.targets for e in target.endpoints)

    def due(self, now: float) -> bool:
        """Whether there is something to compare."""
        if self._lost.is_set():
            self._lost.clear()
            self._next = min(self._next, now + LOST_S)
        if self._view is None or not self._view.passes:
            return False
        return bool(self._to_compare) or self._view.passes > self._passes or now >= self._next

    def check(self) -> tuple[bool, str]:
        """Return (followed, why), for ``/readyz``."""
        return self._view.check() if self._view is not None else (True, "routes are not followed yet")

    def compare(self, now: float, changing: Container[str]) -> None:
        """Compare the next piece of the topic with the state, and publish the difference; only when it is due.

        Args:
            now: monotonic seconds.
            changing: models whose newest entry is not known to be stored; they are left alone.
        """
        view = self._view
        assert view is not None
        if not self._to_compare:
            self._passes = view.passes
            self._next = now + 2 * COMPARE_S  # the next pass comes first
            self._to_compare = sorted({*view.keys(), *self._state.models})
        piece, self._to_compare = self._to_compare[-PIECE:], self._to_compare[:-PIECE]
        for key in piece:
            if key not in changing:
                self._known.pop(key, None)
                if (found := view.get(key)) is not None:
                    self._known[key] = _said(found)
                self.publish(key)

    def close(self) -> None:
        """Stop following."""
        if self._view is not None:
            self._view.close()


def _said(message: Message) -> bytes:
    """Return what a route on the topic says; nothing of ours, if it cannot be read."""
    try:
        return content(ROUTE.decode(message.payload, message.properties.get(FINGERPRINT, "")))
    except Undecodable:
        return b""
