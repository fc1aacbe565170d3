"""Reports to the scheduler: numbered, in order, none lost while the broker is away."""

import threading
import time
from collections import deque
from collections.abc import Callable

import structlog
from magnetar_common.bus import Bus, Producer
from magnetar_common.errors import BusError, BusRefused
from magnetar_common.topics import AGENT_EVENTS
from magnetar_events import AGENT_EVENT, AgentEvent, schemas
from magnetar_events.reports import ReportKind

_log = structlog.get_logger(__name__)

MAX_WAITING = 10_000
"""Reports kept while the broker is away. Beyond it the oldest are dropped, and the inventory is reported instead."""

RETRY_S = 0.5


class Reporter:
    """Sends reports from a thread of its own; a send that may have failed is repeated, which changes nothing.

    Args:
        bus: where to.
        envelope: makes the event of (number, report).
        overflowed: told when reports had to be dropped.
    """

    def __init__(
        self, bus: Bus, envelope: Callable[[int, ReportKind], AgentEvent], overflowed: Callable[[], None]
    ) -> None:
        self._bus = bus
        self._envelope = envelope
        self._overflowed = overflowed
        self._waiting: deque[AgentEvent] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._dropped = False
        self.number = 0
        """Of the last report."""
        self.error = ""
        """Why the last send failed; empty when it did not."""
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def report(self, report: ReportKind) -> int:
        """Queue a report; return its number."""
        with self._changed:
            self.number += 1
            self._waiting.append(self._envelope(self.number, report))
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self._dropped = True
            self._changed.notify()
            return self.number

    def close(self, timeout: float = 5.0) -> None:
        """Send what waits, for at most ``timeout`` seconds, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        producer: Producer | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                event = self._waiting[0]
            try:
                producer = producer or self._bus.producer(
                    AGENT_EVENTS.name, schema=schemas.schema_json(AGENT_EVENTS.schema), name="magnetar-agent"
                )
                producer.send(AGENT_EVENT.encode(event), key=event.server_key, properties=AGENT_EVENT.properties)
                self.error = ""
            except BusRefused as error:  # this very report, for ever: let it go, loudly
                self.error = str(error)
                _log.error(
                    "a report was refused", number=event.number, kind=type(event.report).__name__, error=str(error)
                )
            except BusError as error:
                self.error = str(error)
                if self._closing:
                    _log.warning(
                        "reports could not be sent before the end", waiting=len(self._waiting), error=str(error)
                    )
                    break
                time.sleep(RETRY_S)
                continue
            with self._changed:
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
                recovered, self._dropped = self._dropped and not self._waiting, self._dropped and bool(self._waiting)
            if recovered:
                self._overflowed()
        if producer is not None:
            producer.close()
