"""Reports to the scheduler: numbered, in order, none lost while the broker is away."""

import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from magnetar_agent.threads import Failed, guarded
from magnetar_common.bus import Bus, Producer
from magnetar_common.bus.follower import Backoff
from magnetar_common.errors import BusError, BusRefused
from magnetar_common.metrics import REPORTS_DROPPED, REPORTS_WAITING
from magnetar_common.topics import AGENT_EVENTS
from magnetar_events import AGENT_EVENT, AgentEvent, schemas, versions
from magnetar_events.cloudevents import of_report
from magnetar_events.codec import FINGERPRINT
from magnetar_events.reports import ModelLoading, ModelUnloading, ReportKind

MAX_WAITING = 10_000
"""Reports kept while the broker is away. Beyond it the oldest are dropped, and the inventory is reported instead."""

BEGUN_S = 0.25
"""What is over within this time (seconds) is reported once, when it is: that it had begun would be news for nobody."""

_log = structlog.get_logger(__name__)


class Reporter:
    """Sends reports from a thread of its own; a send that may have failed is repeated, which changes nothing.

    Args:
        bus: where to.
        envelope: makes the event of (number, report).
        overflowed: told, once reports are through again, that some had to be dropped.
        failed: told of what ended the thread.
    """

    def __init__(
        self,
        bus: Bus,
        envelope: Callable[[int, ReportKind], AgentEvent],
        overflowed: Callable[[], object],
        failed: Failed,
    ) -> None:
        self._bus = bus
        self._envelope = envelope
        self._overflowed = overflowed
        self._waiting: deque[AgentEvent] = deque()
        self._begun: dict[object, tuple[float, ReportKind]] = {}
        """Command → when it is to be said that it was taken up (monotonic seconds), and how."""
        self._changed = threading.Condition()
        self._closing = False
        self.dropped = 0
        """Reports of this outage that were dropped, the oldest first: more waited than may."""
        self._backoff = Backoff()
        self.number = 0
        """Of the last report."""
        self.schema = versions.reports_schema(1)
        """Fingerprint of the schema in which reports are written: that of whoever reads them."""
        self.error = ""
        """Why the last send failed; empty when it did not."""
        self._thread = guarded("reporter", self._run, failed)
        self._thread.start()

    def report(self, report: ReportKind) -> int:
        """Queue a report; return its number."""
        with self._changed:
            self._begun.pop(_command_of(report), None)
            self._queue(report)
            self._changed.notify_all()
            return self.number

    def begun(self, report: ModelLoading | ModelUnloading) -> None:
        """Queue a report in a while, unless what it says has begun is over by then."""
        with self._changed:
            self._begun[_command_of(report)] = (time.monotonic() + BEGUN_S, report)
            self._changed.notify_all()

    def check(self) -> tuple[bool, str]:
        """Return whether reports reach the broker, and what is lost if not, for ``/readyz``."""
        if dropped := self.dropped:
            why = f"; last: {self.error}" if self.error else ""
            return False, f"{MAX_WAITING} reports wait, which is the limit, and {dropped} older ones were dropped{why}"
        return not self.error, self.error or f"{self.number} reports"

    def close(self, timeout: float = 5.0) -> None:
        """Send what waits, for at most ``timeout`` seconds, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        producer: Producer | None = None
        while (event := self._next()) is not None:
            try:
                producer = producer or self._open()
            except BusError as error:
                if not self._try_again(error):
                    return
                continue
            try:
                schema = self.schema
                properties = {**of_report(event), FINGERPRINT: schema}
                producer.send(AGENT_EVENT.encode(event, schema), key=key_of(event), properties=properties)
                self.error = ""
            except BusRefused as error:  # this very report, for ever: let it go, loudly
                kind = type(event.report).__name__
                _log.error("a report was refused", number=event.number, kind=kind, error=str(error))
            except BusError as error:
                producer.close()  # to open another one may work sooner, and if it does not, it says why
                producer = None
                if not self._try_again(error):
                    return
                continue
            self._backoff.reset()
            self._done(event)
        if producer is not None:
            producer.close()

    def _open(self) -> Producer:
        schema = schemas.schema_json(AGENT_EVENTS.schema)
        return self._bus.producer(AGENT_EVENTS.name, schema=schema, name="magnetar-agent")

    def _next(self) -> AgentEvent | None:
        """Wait for a report; None once there is none and no more will come. It stays in the queue until it is sent."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait(self._until_begun())
            return self._waiting[0] if self._waiting else None

    def _until_begun(self) -> float | None:
        """Queue what has begun and lasts; return the seconds until there may be more, None if there is none."""
        now = time.monotonic()
        for command, (due, report) in list(self._begun.items()):
            if due > now:
                return due - now
            del self._begun[command]
            self._queue(report)
        return 0 if self._waiting else None

    def _queue(self, report: ReportKind) -> None:
        self.number += 1
        self._waiting.append(self._envelope(self.number, report))
        if len(self._waiting) > MAX_WAITING:
            self._drop_oldest()
        REPORTS_WAITING.set(len(self._waiting))

    def _drop_oldest(self) -> None:
        lost = self._waiting.popleft()
        self.dropped += 1
        REPORTS_DROPPED.inc()
        if self.dropped == 1:  # the first is news; how many they are in the end is said when it is over
            _log.error(
                "as many reports wait as may: the oldest are dropped, and the inventory will be reported instead",
                limit=MAX_WAITING,
                number=lost.number,
                kind=type(lost.report).__name__,
                error=self.error,
            )

    def _done(self, event: AgentEvent) -> None:
        with self._changed:
            if self._waiting and self._waiting[0] is event:  # else it was dropped while it was being sent
                self._waiting.popleft()
            REPORTS_WAITING.set(len(self._waiting))
            if self._waiting or not self.dropped:
                return
            dropped, self.dropped = self.dropped, 0
        _log.error("reports were dropped while the broker was away", dropped=dropped)
        self._overflowed()

    def _try_again(self, error: BusError) -> bool:
        """Wait a little after a failure; return False if this is the end."""
        self.error = str(error)
        with self._changed:
            if self._changed.wait_for(lambda: self._closing, self._backoff.seconds()):
                _log.warning("reports could not be sent before the end", waiting=len(self._waiting), error=self.error)
                return False
        return True


def key_of(event: AgentEvent) -> str:
    """Return the key of a report's message: the model that it is about, else the server."""
    return getattr(event.report, "model", "") or event.server_key


def _command_of(report: ReportKind) -> object:
    """Return what names the command that a report answers: of those in one entry all have its position."""
    return tuple(getattr(report, name, None) for name in ("position", "model", "generation"))
