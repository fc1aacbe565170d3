"""The client of the simulated broker: a ``Bus`` that queues, reconnects and sends again as Pulsar's client does."""

from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from greenlet import GreenletExit

from magnetar_common.bus.base import EARLIEST, LATEST, Message, MessageId, SendCallback
from magnetar_common.errors import BusError, BusUnavailable, Fenced, SendTimedOut
from tests.simulation.broker import Broker, Session
from tests.simulation.runtime import EPOCH_S, Hub, Process, Task

TIMEOUT_S = 10.0
"""Of opening something, and of a send (not on the log)."""

RECONNECT_S = (0.1, 3.0)
"""Between two tries to reconnect: from, doubling up to (seconds)."""

NOTICED_S = (30.0, 60.0)
"""A client notices a connection that died silently after a time between these (seconds)."""

MAX_PENDING = 10_000


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


class _Question:
    """Something asked of the broker, and who waits for the answer."""

    def __init__(self, task: Task | None) -> None:
        self.task = task
        self.answer: list[Any] = []

    def answered(self, answer: Any) -> None:
        self.answer.append(answer)
        if self.task is not None:
            Hub.current.wake(self.task)


class SimBus:
    """A connection of one simulated process.

    Attributes:
        cut: the network between it and the broker is down.
        session: the connection as it is now; None while there is none.
    """

    kind = "simulated"
    fences = True

    def __init__(self, broker: Broker, process: Process) -> None:
        self.broker = broker
        self.process = process
        self.hub: Hub = broker.hub
        self.cut = False
        self.closed = False
        self.session: Session | None = None
        self.random: Random = broker.random
        self._delay = self.random.uniform(0.0002, 0.002)
        self._backoff = RECONNECT_S[0]
        self._connecting = False
        self._producers: list[SimProducer] = []
        self._readers: list[SimReader] = []
        self._callbacks: deque[tuple[SendCallback, MessageId | BusError]] = deque()
        self._io: Task | None = None
        self._idle = False
        process.connections.append(self)

    def latency(self) -> float:
        """Return how long a packet travels (seconds): usually about the same, now and then much longer."""
        spread = self.random.random()
        return self._delay * (0.7 + 0.6 * spread) if spread < 0.98 else self._delay + self.random.uniform(0, 0.05)

    def cluster_id(self) -> str:
        self._ask(lambda session: None, "the cluster")
        return self.broker.id

    def producer(
        self, topic: str, *, schema: str = "", exclusive: bool = False, batching: bool = False, name: str = ""
    ) -> "SimProducer":
        producer = SimProducer(self, topic, exclusive=exclusive, log=exclusive or batching)

        def attach(session: Session) -> tuple[Session, BusError | None]:
            return session, self.broker.attach_producer(session, producer)

        session, refusal = self._ask(attach, f"producer on {topic}")
        if refusal is not None:
            raise refusal
        self._producers.append(producer)
        if self.session is session:
            producer.session = session
        elif self.session is not None:  # reconnected before the answer was heard
            self.session.up(producer.reattach, self.session)
        return producer

    def reader(
        self, topic: str, after: MessageId = EARLIEST, *, compacted: bool = False, name: str = ""
    ) -> "SimReader":
        reader = SimReader(self, topic, after, compacted=compacted)

        def attach(session: Session) -> None:
            if reader.session is not session:
                reader.session = session
                self.broker.attach_reader(session, reader, reader.after)

        self._readers.append(reader)
        try:
            self._ask(attach, f"reader on {topic}")
        except BusError:
            self._readers.remove(reader)
            raise
        return reader

    def anchor(self, topic: str, name: str) -> "SimAnchor":
        self._ask(lambda session: None, f"subscription on {topic}")
        return SimAnchor(self, topic)

    def close(self) -> None:
        self.hub.maybe_step()
        if not self.closed:
            self.closed = True
            self.abandoned()
            self.process.connections.remove(self)
            for opened in (*self._producers, *self._readers):
                opened.bus_closed()

    # --- the connection -------------------------------------------------------------------------------------------------

    def abandoned(self) -> None:
        """Nobody uses it any more: what was sent arrives, and then the end of the connection."""
        if self.session is not None:
            if not self.session.reachable:
                self.session.watch_silence()
            self.session.up(self.broker.drop, self.session)
            self.session = None

    def silenced(self) -> None:
        """Its process stands still, or the network is down: both ends will notice."""
        if self.session is not None:
            self.session.watch_silence()

    def watch_silence(self, session: Session) -> None:
        """Notice, in the end, that a connection is dead."""
        self.process.later(self.random.uniform(*NOTICED_S), self._if_dead, session)

    def _if_dead(self, session: Session) -> None:
        if not session.reachable:
            self.reset(session)

    def sever(self, *, noticed: bool) -> None:
        """Cut the network; :meth:`heal` joins it again.

        Args:
            noticed: the client is told at once (a reset), instead of finding out by itself.
        """
        self.cut = True
        if self.session is not None:
            session = self.session
            session.watch_silence()
            if noticed:
                self.process.deliver(self.reset, session)
            else:
                self.watch_silence(session)

    def heal(self) -> None:
        """Join the network again."""
        self.cut = False
        self.mended()

    def mended(self) -> None:
        """Packets pass again: those of a connection that was abandoned meanwhile, too."""
        for session in [session for session in self.broker.sessions if session.bus is self]:
            session.healed()
        if self.session is not None and self.session.closed:
            self.session.healed()

    def reset(self, session: Session) -> None:
        """The connection is gone: reconnect, and send again what is not acknowledged."""
        if self.session is not session:
            return
        self.session = None
        if not session.closed:
            if session.reachable:
                session.up(self.broker.drop, session)
            else:
                session.watch_silence()
        self._backoff = RECONNECT_S[0]
        self._reconnect_later()

    def _reconnect_later(self) -> None:
        if not self._connecting and not self.closed:
            self._connecting = True
            self.process.later(self._backoff * self.random.uniform(0.5, 1.0), self._reconnect)
            self._backoff = min(2 * self._backoff, RECONNECT_S[1])

    def _reconnect(self) -> None:
        self._connecting = False
        if self.closed or self.session is not None:
            return
        if self.cut or not self.broker.reachable:
            self._reconnect_later()
            return
        self._connect()

    def _connect(self) -> Session:
        session = self.session = self.broker.open(self)
        self._backoff = RECONNECT_S[0]
        for producer in self._producers:
            session.up(producer.reattach, session)
        for reader in self._readers:
            session.up(reader.reattach, session)
        return session

    def _ask(self, question: Callable[[Session], Any], what: str) -> Any:
        """Ask the broker something and wait for the answer."""
        hub = self.hub
        hub.step()
        if hub.closing:
            raise GreenletExit
        end = hub.now + TIMEOUT_S
        while not self.closed:
            if self.session is None and not (self.cut or not self.broker.reachable):
                self._connect()
            session = self.session
            if session is not None:
                asking = _Question(hub.task)
                session.up(lambda session=session, asking=asking: session.down(asking.answered, question(session)))
                while not asking.answer and self.session is session and hub.now < end and not self.closed:
                    hub.park(min(0.5, end - hub.now))
                asking.task = None
                if asking.answer:
                    return asking.answer[0]
            if hub.now >= end:
                break
            hub.park(0.1)
        raise BusUnavailable(f"{what}: {'the bus is closed' if self.closed else f'not reached in {TIMEOUT_S} s'}")

    # --- its own thread, on which callbacks come ------------------------------------------------------------------------

    def call_back(self, callback: SendCallback, answer: MessageId | BusError) -> None:
        """Have a callback called on the client's thread."""
        self._callbacks.append((callback, answer))
        if self._io is None:
            self._io = self.process.spawn("client", self._run_callbacks)
        elif self._idle:
            self.hub.wake(self._io)

    def _run_callbacks(self) -> None:
        while True:
            while self._callbacks:
                callback, answer = self._callbacks.popleft()
                try:
                    callback(answer)
                except Exception as error:
                    self.hub.note(self.process.name, "send callback failed", error=repr(error))
            self._idle = True
            self.hub.park()
            self._idle = False


class SimProducer:
    """Writes to one topic."""

    def __init__(self, bus: SimBus, topic: str, *, exclusive: bool, log: bool) -> None:
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
            delay = self.bus.random.uniform(*RECONNECT_S) / 5
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

    def __init__(self, bus: SimBus, topic: str, after: MessageId, *, compacted: bool) -> None:
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

    def __init__(self, bus: SimBus, topic: str) -> None:
        self._bus = bus
        self._topic = topic
        self.at = EARLIEST

    def advance(self, to: MessageId) -> None:
        self.at = max(self.at, to)

    def close(self) -> None:
        return
