"""What is opened on a simulated bus: producers that queue and send again, readers that come back, anchors."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from greenlet import GreenletExit

from magnetar_common.bus.base import EARLIEST, LATEST, Message, MessageId, SendCallback
from magnetar_common.errors import BusError, BusUnavailable, Fenced, SendTimedOut
from tests.simulation.broker import Session
from tests.simulation.runtime import EPOCH_S, Task

if TYPE_CHECKING:
    from tests.simulation.bus import SimBus

TIMEOUT_S = 10.0
"""Of opening something, and of a send (not on the log)."""

COME_AGAIN_S = (0.02, 0.6)
"""After the broker let go of a topic, its client comes again after a time between these (seconds)."""

MAX_PENDING = 10_000
"""Messages that may wait for an acknowledgement before a producer blocks."""


class Sending:
    """A message on its way."""

    __slots__ = ("answer", "callback", "key", "payload", "properties", "publish_ms", "waiting")

    def __init__(
        self, payload: bytes, callback: SendCallback | None, key: str, properties: dict[str, str], publish_ms: int
    ) -> None:
        self.payload = payload
        self.callback = callback
        self.key = key
        self.properties = properties
        self.publish_ms = publish_ms
        self.answer: MessageId | BusError | None = None
        self.waiting: Task | None = None


class SimProducer:
    """Writes to one topic."""

    def __init__(self, bus: "SimBus", topic: str, *, exclusive: bool, log: bool) -> None:
        self.topic = topic
        self.exclusive = exclusive
        self.epoch = 0
        self.session: Session | None = None
        self.bus = bus
        self._log = log
        self._closed = False
        self._fenced = False
        self._unanswered: deque[Sending] = deque()

    @property
    def is_connected(self) -> bool:
        return not (self._closed or self._fenced) and self.session is not None and self.session is self.bus.session

    def send(self, payload: bytes, *, key: str = "", properties: Mapping[str, str] | None = None) -> MessageId:
        hub = self.bus.hub
        sending = self._queue(payload, None, key, properties)
        sending.waiting = hub.task
        end = hub.now + TIMEOUT_S
        while sending.answer is None:
            left = end - hub.now
            if left <= 0:
                sending.waiting = None
                self._give_up(sending)
                raise SendTimedOut(f"{self.topic}: not acknowledged in {TIMEOUT_S} s")
            hub.park(left)
        sending.waiting = None
        if isinstance(sending.answer, BusError):
            raise sending.answer
        return sending.answer

    def send_async(
        self, payload: bytes, callback: SendCallback, *, key: str = "", properties: Mapping[str, str] | None = None
    ) -> None:
        sending = self._queue(payload, callback, key, properties)
        if not self._log:
            self.bus.process.later(TIMEOUT_S, self._give_up, sending)

    def _queue(
        self, payload: bytes, callback: SendCallback | None, key: str, properties: Mapping[str, str] | None
    ) -> Sending:
        bus = self.bus
        bus.hub.step()
        wall = int((EPOCH_S + bus.hub.now + bus.process.skew) * 1000)
        sending = Sending(payload, callback, key, dict(properties or {}), wall)
        for told in bus.broker.on_sent:
            told(self, sending)
        while len(self._unanswered) >= MAX_PENDING:
            bus.hub.park(0.01)
        if self._closed:
            self._tell(sending, BusUnavailable(f"{self.topic}: the producer is closed"))
        elif self._fenced:
            self._tell(sending, Fenced(f"{self.topic}: another producer holds the topic now"))
        else:
            self._unanswered.append(sending)
            if self.session is not None:
                self.session.up(bus.broker.publish, self.session, self, sending)
        return sending

    def answered(self, sending: Sending, answer: MessageId | BusError) -> None:
        """The broker has answered; an answer to what was given up, or answered before, is none."""
        if sending in self._unanswered:
            self._unanswered.remove(sending)
            self._tell(sending, answer)

    def _give_up(self, sending: Sending) -> None:
        if sending in self._unanswered:
            self._unanswered.remove(sending)
            self._tell(sending, SendTimedOut(f"{self.topic}: not acknowledged in time"))

    def _tell(self, sending: Sending, answer: MessageId | BusError) -> None:
        sending.answer = answer
        if sending.callback is not None:
            self.bus.call_back(sending.callback, answer)
        elif sending.waiting is not None:
            self.bus.hub.wake(sending.waiting)

    def flush(self) -> None:
        """Nothing is batched here."""

    def close(self) -> None:
        bus = self.bus
        bus.hub.maybe_step()
        if self._closed:
            return
        if self.session is not None and self.session is bus.session:
            self.session.up(bus.broker.close_producer, self.session, self)
        bus._producers.remove(self)
        self.bus_closed()

    def bus_closed(self) -> None:
        """Whatever waits is told so."""
        self._closed, self.session = True, None
        while self._unanswered:
            self._tell(self._unanswered.popleft(), BusUnavailable(f"{self.topic}: the producer is closed"))

    def detached(self, session: Session) -> None:
        """The broker let go of it, and may take it again."""
        if self.bus.session is session:
            self.session = None
            delay = self.bus.random.uniform(*COME_AGAIN_S)
            self.bus.process.later(delay, self._come_again, session)

    def _come_again(self, session: Session) -> None:
        if self.bus.session is session and not self._closed and self.session is None:
            session.up(self.reattach, session)

    def reattach(self, session: Session) -> None:
        """Ask to write again (on the broker)."""
        if not self._closed and not self._fenced:
            session.down(self._reattached, session, self.bus.broker.attach_producer(session, self))

    def _reattached(self, session: Session, answer: BusError | None) -> None:
        if self._closed or self.bus.session is not session:
            return
        if answer is None:
            self.session = session
            for sending in self._unanswered:
                session.up(self.bus.broker.publish, session, self, sending)
        elif isinstance(answer, Fenced):
            self._fenced = True
            while self._unanswered:
                self._tell(self._unanswered.popleft(), answer)
        else:
            self.bus.process.later(self.bus.random.uniform(0.1, 1.0), self._come_again, session)


class SimReader:
    """Reads one topic; reconnects by itself, after the last message that it handed out.

    One opened at the end that has handed out nothing yet reconnects at what is the end by then, as Pulsar's does.
    """

    def __init__(self, bus: "SimBus", topic: str, after: MessageId, *, compacted: bool) -> None:
        self.topic = topic
        self.after = after
        self.compacted = compacted
        self.session: Session | None = None
        self._bus = bus
        self._closed = False
        self._buffer: deque[Message] = deque()
        self._waiting: Task | None = None

    @property
    def is_connected(self) -> bool:
        return not self._closed and self.session is not None and self.session is self._bus.session

    def read(self, timeout: float) -> Message | None:
        hub = self._bus.hub
        if hub.closing:
            raise GreenletExit
        hub.maybe_step()
        end = hub.now + timeout
        while not self._closed:
            while self._buffer:
                message = self._buffer.popleft()
                if self.after == LATEST or message.id > self.after:
                    self.after = message.id
                    return message
            if hub.now >= end:
                return None
            self._waiting = hub.task
            hub.park(end - hub.now)
            self._waiting = None
        raise BusUnavailable(f"{self.topic}: the reader is closed")

    def at_end(self) -> bool:
        if not self.is_connected:
            return False
        if self._buffer:
            self._bus.hub.step()
            return False
        try:
            return not self._bus._ask(lambda _: self._bus.broker.is_more(self, self.after), self.topic)
        except BusUnavailable:
            return False

    def close(self) -> None:
        bus = self._bus
        bus.hub.maybe_step()
        if self._closed:
            return
        if self.session is not None and self.session is bus.session:
            self.session.up(bus.broker.detach_reader, self.session, self)
        bus._readers.remove(self)
        self.bus_closed()

    def bus_closed(self) -> None:
        """Nothing comes any more."""
        self._closed = True
        self._buffer.clear()
        if self._waiting is not None:
            self._bus.hub.wake(self._waiting)

    def arrived(self, session: Session, messages: list[Message]) -> None:
        """Messages are here."""
        if self.session is session and not self._closed:
            self._buffer.extend(messages)
            if self._waiting is not None:
                self._bus.hub.wake(self._waiting)

    def detached(self, session: Session) -> None:
        """The broker let go of it: come again."""
        if self.session is session:
            self.session = None
            self._bus.process.later(self._bus.random.uniform(0.05, 0.5), self._come_again, session)

    def _come_again(self, session: Session) -> None:
        if self._bus.session is session and not self._closed and self.session is None:
            session.up(self.reattach, session)

    def reattach(self, session: Session) -> None:
        """Ask for what comes after the last message that was handed out (on the broker)."""
        if not self._closed:
            session.down(self._reattached, session)

    def _reattached(self, session: Session) -> None:
        if not self._closed and self._bus.session is session and self.session is not session:
            self._buffer.clear()
            self.session = session
            self._bus.broker.attach_reader(session, self, self.after)


class SimAnchor:
    """A durable subscription: what was let go of is never needed again."""

    def __init__(self, bus: "SimBus", topic: str) -> None:
        self._bus = bus
        self._topic = topic
        self.at = EARLIEST

    def advance(self, to: MessageId) -> None:
        self.at = max(self.at, to)

    def close(self) -> None:
        return
