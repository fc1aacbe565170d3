"""A simulated Pulsar: topics, exclusive holds, compaction, and connections that may fail in every way that was measured.

Accepting a message fixes its place; storing it comes a little later, and only then do readers see it and is it
acknowledged. So what a dead leader had sent lands after its successor has read to the end (DESIGN, "Taking over").
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from magnetar_common.bus.base import EARLIEST, LATEST, Message, MessageId
from magnetar_common.errors import BusError, BusRefused, Fenced, TopicHeld
from tests.simulation.runtime import Hub

if TYPE_CHECKING:
    from tests.simulation.bus import SimBus
    from tests.simulation.endpoints import Sending, SimProducer, SimReader

KEEP_ALIVE_S = (5.0, 10.0)
"""A connection that says nothing is dropped after a time between these (seconds): ``keepAliveIntervalSeconds=5``."""

MAX_MESSAGE_BYTES = 5 * 2**20


_Packet = tuple[Callable[..., object], tuple[Any, ...]]


class _Way:
    """One direction of a connection: what is sent arrives in order, later than usual while nothing passes."""

    def __init__(self, session: "Session", deliver: Callable[..., object]) -> None:
        self._session = session
        self._deliver = deliver
        self._packets: deque[_Packet] = deque()
        self._at = 0.0
        self._held = 0

    def send(self, fn: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._packets.append((fn, arguments))
        self._travel()

    def resume(self) -> None:
        """Packets pass again: what waited travels anew."""
        held, self._held = self._held, 0
        for _ in range(held):
            self._travel()

    def _travel(self) -> None:
        hub = self._session.broker.hub
        self._at = max(self._at, hub.now + self._session.bus.latency())
        hub.at(self._at, self._arrive)

    def _arrive(self) -> None:
        """One packet more has had the time to arrive: it is the oldest, whichever set out."""
        if self._session.reachable:
            fn, arguments = self._packets.popleft()
            self._deliver(fn, *arguments)
        else:
            self._held += 1


class Session:
    """One connection, as the broker sees it. What is sent through it arrives in order, or not at all."""

    def __init__(self, broker: "Broker", bus: "SimBus") -> None:
        self.broker = broker
        self.bus = bus
        self.closed = False
        self.producers: dict[SimProducer, Topic] = {}
        self.readers: dict[SimReader, _Cursor] = {}
        self._up = _Way(self, self._unless_closed)
        self._down = _Way(self, bus.process.deliver)
        self._silence = 0

    @property
    def reachable(self) -> bool:
        """Whether packets pass."""
        return self.broker.reachable and not self.bus.cut

    def up(self, fn: Callable[..., object], *arguments: Any) -> None:
        """Have the broker do something once this packet has arrived."""
        self._up.send(fn, arguments)

    def down(self, fn: Callable[..., object], *arguments: Any) -> None:
        """Have the client do something once this packet has arrived."""
        self._down.send(fn, arguments)

    def _unless_closed(self, fn: Callable[..., object], *arguments: Any) -> None:
        if not self.closed:
            fn(*arguments)

    def healed(self) -> None:
        """Packets pass again: what waited is sent anew, in order; a connection that the broker dropped is reset."""
        if self.closed:
            self.down(self.bus.reset, self)
        else:
            self._up.resume()
        self._down.resume()
        if self.bus.session is not self:
            self.up(
                self.broker.drop, self
            )  # who gave it up while nothing passed answers the broker's ping with a reset

    def watch_silence(self) -> None:
        """Drop the connection unless its client is heard again within the keep-alive."""
        self._silence += 1
        delay = self.broker.random.uniform(*KEEP_ALIVE_S)
        self.broker.hub.after(delay, self._if_silent, self._silence)

    def _if_silent(self, silence: int) -> None:
        process = self.bus.process
        if silence == self._silence and not self.closed and (process.frozen or not process.alive or not self.reachable):
            self.broker.drop(self)
            if self.reachable:
                self.down(self.bus.reset, self)


class Topic:
    """Messages in order, those that are accepted and not stored yet, and who writes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[Message] = []
        self.compacted: list[Message] = []
        self.horizon = 0
        self.pending: deque[tuple[Session, SimProducer, Sending]] = deque()
        self.holder: SimProducer | None = None
        self.epoch = 0
        self.storing = False
        self.producers: dict[SimProducer, Session] = {}
        self.cursors: list[_Cursor] = []
        self.ledger = 0
        self.next_entry = 0

    def index_after(self, place: MessageId) -> int:
        """Return the index of the first message after a place."""
        if place == EARLIEST:
            return 0
        return bisect_right(self.messages, place, key=lambda message: message.id)


class _Cursor:
    """A reader, as the broker sees it: what it was sent so far."""

    def __init__(self, session: Session, reader: "SimReader", topic: Topic, after: MessageId) -> None:
        self.session = session
        self.reader = reader
        self.topic = topic
        self.index = topic.index_after(after)
        self.compacted: list[Message] = []
        if reader.compacted and self.index < topic.horizon:
            first = bisect_right(topic.compacted, after, key=lambda message: message.id)
            self.compacted = topic.compacted[first:]
            self.index = topic.horizon
        self.stalled_until = 0.0
        self.pushing = False


class Broker:
    """The broker; everything here runs on the hub.

    Attributes:
        reachable: whether anybody reaches it.
        slow_s: what storing a message takes besides its usual time (seconds), at most.
        on_stored: told of every message once it is stored, and who wrote it.
        on_sent: told of every message when its producer takes it.
    """

    def __init__(self, hub: Hub, seed: str) -> None:
        self.hub = hub
        self.random = Random(f"{seed}/broker")
        self.id = f"simulated-{self.random.getrandbits(32):08x}"
        self.reachable = True
        self.slow_s = 0.0
        self.topics: dict[str, Topic] = {}
        self.sessions: list[Session] = []
        self.on_stored: list[Callable[[Message, SimProducer], None]] = []
        self.on_sent: list[Callable[[SimProducer, Sending], None]] = []

    def topic(self, name: str) -> Topic:
        """Return a topic, made on first use."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name)
        return topic

    # --- connections ------------------------------------------------------------------------------------------------------

    def open(self, bus: "SimBus") -> Session:
        """Accept a connection."""
        session = Session(self, bus)
        self.sessions.append(session)
        return session

    def drop(self, session: Session) -> None:
        """Let go of a connection and of all that it holds; what was accepted is stored all the same."""
        if session.closed:
            return
        session.closed = True
        self.sessions.remove(session)
        for producer in list(session.producers):
            self.close_producer(session, producer)
        for cursor in session.readers.values():
            cursor.topic.cursors.remove(cursor)
        session.readers.clear()

    # --- writing ----------------------------------------------------------------------------------------------------------

    def attach_producer(self, session: Session, producer: "SimProducer") -> BusError | None:
        """Let a producer write, or say why not; one that held the topic gets back in only if nobody held it since."""
        topic = self.topic(producer.topic)
        if producer.exclusive:
            if producer.epoch and producer.epoch != topic.epoch:
                return Fenced(f"{topic.name}: another producer has held the topic since")
            others = [other for other in topic.producers if other is not producer]
            if topic.holder not in (None, producer) or others:
                return TopicHeld(f"{topic.name} is held exclusively by another producer")
            topic.holder = producer
            if not producer.epoch:
                topic.epoch += 1
                producer.epoch = topic.epoch
        elif topic.holder is not None:
            return TopicHeld(f"{topic.name} is held exclusively by another producer")
        before = topic.producers.get(producer)
        if before is not None:
            before.producers.pop(producer, None)
        topic.producers[producer] = session
        session.producers[producer] = topic
        return None

    def close_producer(self, session: Session, producer: "SimProducer") -> None:
        """It writes no more; its hold is free."""
        topic = session.producers.pop(producer, None)
        if topic is not None and topic.producers.get(producer) is session:
            del topic.producers[producer]
            if topic.holder is producer:
                topic.holder = None

    def publish(self, session: Session, producer: "SimProducer", sending: "Sending") -> None:
        """Accept a message: its place is fixed from here on."""
        topic = session.producers.get(producer)
        if topic is None:
            return  # the topic was unloaded meanwhile: the client sends again once it is back
        if len(sending.payload) > MAX_MESSAGE_BYTES:
            refused = BusRefused(f"{topic.name}: {len(sending.payload)} bytes are more than {MAX_MESSAGE_BYTES}")
            session.down(producer.answered, sending, refused)
            return
        topic.pending.append((session, producer, sending))
        if not topic.storing:
            self._store_soon(topic)

    def _store_soon(self, topic: Topic) -> None:
        topic.storing = True
        delay = self.random.uniform(0.0002, 0.003)
        if self.slow_s:
            delay += self.random.uniform(0.0, self.slow_s)
        self.hub.after(delay, self._store, topic, topic.ledger)

    def _store(self, topic: Topic, ledger: int) -> None:
        if topic.ledger != ledger:
            return
        topic.storing = False
        # One write of the ledger takes all that has gathered: Pulsar's batches do the same.
        gathered = list(topic.pending) if len(topic.pending) < 20 else [topic.pending[i] for i in range(20)]
        for session, producer, sending in gathered:
            topic.pending.popleft()
            self._append(topic, session, producer, sending)
        for cursor in topic.cursors:
            self._push_soon(cursor)
        if topic.pending:
            self._store_soon(topic)

    def _append(self, topic: Topic, session: Session, producer: "SimProducer", sending: "Sending") -> None:
        place = MessageId(topic.ledger, topic.next_entry)
        topic.next_entry += 1
        message = Message(topic.name, place, sending.key, sending.payload, sending.properties, sending.publish_ms)
        topic.messages.append(message)
        short = topic.name.rpartition("/")[2]
        self.hub.note("broker", "stored", topic=short, id=place, key=sending.key, shown=short != "service-registry")
        for told in self.on_stored:
            told(message, producer)
        if not session.closed:
            session.down(producer.answered, sending, place)

    def last_id(self, topic: str) -> MessageId:
        """Return the place of the last message that is stored."""
        messages = self.topic(topic).messages
        return messages[-1].id if messages else EARLIEST

    # --- reading ----------------------------------------------------------------------------------------------------------

    def attach_reader(self, session: Session, reader: "SimReader", after: MessageId) -> None:
        """Begin to send what comes after a place."""
        topic = self.topic(reader.topic)
        if after == LATEST:
            after = self.last_id(reader.topic)
        self.detach_reader(session, reader)
        if session.closed:
            return
        cursor = _Cursor(session, reader, topic, after)
        session.readers[reader] = cursor
        topic.cursors.append(cursor)
        self._push_soon(cursor)

    def detach_reader(self, session: Session, reader: "SimReader") -> None:
        """Send nothing more to a reader."""
        cursor = session.readers.pop(reader, None)
        if cursor is not None:
            cursor.topic.cursors.remove(cursor)

    def is_more(self, reader: "SimReader", after: MessageId) -> bool:
        """Whether something is stored after a place."""
        topic = self.topic(reader.topic)
        if reader.compacted and topic.index_after(after) < topic.horizon:
            if topic.compacted and topic.compacted[-1].id > after:
                return True
            return len(topic.messages) > topic.horizon
        return bool(topic.messages) and topic.messages[-1].id > after

    def stall(self, cursor: _Cursor, seconds: float) -> None:
        """Send a reader nothing for a while."""
        cursor.stalled_until = self.hub.now + seconds
        self.hub.after(seconds, self._push_soon, cursor)

    def _push_soon(self, cursor: _Cursor) -> None:
        if not cursor.pushing and cursor.stalled_until <= self.hub.now:
            cursor.pushing = True
            self.hub.after(0.0001, self._push, cursor)

    def _push(self, cursor: _Cursor) -> None:
        cursor.pushing = False
        if cursor.session.closed or cursor.session.readers.get(cursor.reader) is not cursor:
            return
        messages = cursor.compacted + cursor.topic.messages[cursor.index :]
        cursor.compacted, cursor.index = [], len(cursor.topic.messages)
        if messages:
            cursor.session.down(cursor.reader.arrived, cursor.session, messages)

    # --- faults -----------------------------------------------------------------------------------------------------------

    def outage(self, seconds: float) -> None:
        """Nobody reaches the broker for a while; connections are dropped as their silence is noticed."""
        self.reachable = False
        self.hub.note("broker", "out of reach", seconds=round(seconds, 1))
        for session in self.sessions:
            session.watch_silence()
            session.bus.watch_silence(session)
        self.hub.after(seconds, self._back)

    def crash(self, seconds: float) -> None:
        """``kill -9``: what was accepted and not acknowledged may be lost, every connection breaks; back after a while."""
        self.reachable = False
        self.hub.note("broker", "killed", seconds=round(seconds, 1))
        for topic in self.topics.values():
            self._close_ledger(topic)
        for session in list(self.sessions):
            self.drop(session)
            self.hub.after(self.random.uniform(0.0, 0.01), session.bus.process.deliver, session.bus.reset, session)
        self.hub.after(seconds, self._back)

    def _back(self) -> None:
        self.reachable = True
        self.hub.note("broker", "back")
        for process in self.hub.processes:
            for bus in process.connections:
                bus.mended()

    def unload(self, name: str) -> None:
        """Close a topic and open it again: every producer and reader of it reconnects, in any order."""
        topic = self.topic(name)
        self.hub.note("broker", "unloads", topic=name.rpartition("/")[2])
        self._close_ledger(topic)
        for producer, session in list(topic.producers.items()):
            self.close_producer(session, producer)
            session.down(producer.detached, session)
        for cursor in list(topic.cursors):
            self.detach_reader(cursor.session, cursor.reader)
            cursor.session.down(cursor.reader.detached, cursor.session)

    def _close_ledger(self, topic: Topic) -> None:
        """Store some of what was accepted, without its acknowledgement, and forget the rest."""
        for _ in range(int(self.random.random() * (len(topic.pending) + 1))):
            _, producer, sending = topic.pending.popleft()
            self._append(topic, _NOBODY, producer, sending)
        topic.pending.clear()
        topic.storing = False
        topic.ledger, topic.next_entry = topic.ledger + 1, 0
        for cursor in topic.cursors:
            self._push_soon(cursor)

    def compact(self, name: str) -> None:
        """Compact what is stored now: compacted readers get the last message of each key, and no key that is gone."""
        topic = self.topic(name)
        self.hub.note("broker", "compacts", topic=name.rpartition("/")[2], messages=len(topic.messages))
        last = {message.key: message for message in topic.messages if message.key}
        topic.compacted = sorted((m for m in last.values() if m.payload), key=lambda m: m.id)
        topic.horizon = len(topic.messages)


class _Closed:
    closed = True


_NOBODY: Any = _Closed()
