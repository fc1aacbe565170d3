"""The client of the simulated broker: a ``Bus`` that queues, reconnects and sends again as Pulsar's client does."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import GreenletExit

from magnetar_common.bus.base import EARLIEST, MessageId, SendCallback
from magnetar_common.errors import BusError, BusUnavailable
from tests.simulation.broker import Broker, Session
from tests.simulation.endpoints import TIMEOUT_S, SimAnchor, SimProducer, SimReader
from tests.simulation.runtime import Hub, Process, Task

RECONNECT_S = (0.1, 3.0)
"""Between two tries to reconnect: from, doubling up to (seconds)."""

NOTICED_S = (30.0, 60.0)
"""A client notices a connection that died silently after a time between these (seconds)."""


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
    ) -> SimProducer:
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

    def reader(self, topic: str, after: MessageId = EARLIEST, *, compacted: bool = False, name: str = "") -> SimReader:
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

    def last_id(self, topic: str) -> MessageId:
        return self._ask(lambda session: self.broker.last_id(topic), f"end of {topic}")

    def anchor(self, topic: str, name: str) -> SimAnchor:
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
