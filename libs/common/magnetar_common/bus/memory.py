"""A broker in memory that behaves as Pulsar does, made for tests: Magnetar's own and its users'.

It keeps Pulsar's sharp edges: a compacted read that was paused across a compaction never sees the tombstone, sends
queue while the connection is down, and a deposed producer can never write again.
"""

import threading
import time
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from magnetar_common.bus.base import EARLIEST, LATEST, Message, MessageId, SendCallback
from magnetar_common.errors import BusError, BusRefused, BusUnavailable, Fenced, SendTimedOut, TopicHeld

MAX_MESSAGE_BYTES = 5 * 2**20
"""Pulsar's default limit for one message."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Topic:
    messages: list[Message] = field(default_factory=list[Message])
    compacted: list[Message] = field(default_factory=list[Message])
    horizon: int = 0
    """How many messages the compacted list stands for."""
    holder: "MemoryProducer | None" = None


class MemoryBroker:
    """Topics that several `MemoryBus` share. Safe to use from several threads."""

    def __init__(self) -> None:
        self.id = f"memory-{uuid.uuid4().hex}"
        self.changed = threading.Condition(threading.RLock())
        self._topics: dict[str, _Topic] = {}

    def topic(self, name: str) -> _Topic:
        """Return a topic, created on first use. Hold `changed` while using it."""
        return self._topics.setdefault(name, _Topic())

    def compact(self, topic: str) -> None:
        """Compact what is stored now: compacted readers get the last message of each key, and no key that is gone."""
        with self.changed:
            here = self.topic(topic)
            last = {message.key: message for message in here.messages if message.key}
            here.compacted = sorted((m for m in last.values() if m.payload), key=lambda m: m.id)
            here.horizon = len(here.messages)

    def fence(self, topic: str) -> None:
        """Depose whoever holds the topic exclusively, as a broker does that believes it dead."""
        with self.changed:
            here = self.topic(topic)
            if here.holder is not None:
                here.holder.fenced = True
                here.holder = None

    def disconnect(self, bus: "MemoryBus") -> None:
        """Cut one bus off: its sends wait, its readers get nothing. Its exclusive holds stay until `fence`."""
        with self.changed:
            bus.connected = False
            self.changed.notify_all()

    def reconnect(self, bus: "MemoryBus") -> None:
        """Join it again; what it queued is stored (or refused, if it was fenced meanwhile)."""
        with self.changed:
            bus.connected = True
            self.changed.notify_all()
        for producer in bus.producers():
            producer.drain()


class MemoryBus:
    """A connection to a `MemoryBroker`."""

    kind = "memory"
    fences = True

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self.connected = True
        self._closed = False
        self._opened: set[MemoryProducer | MemoryReader] = set()

    def producers(self) -> "list[MemoryProducer]":
        """Return those that are open."""
        return [opened for opened in self._opened if isinstance(opened, MemoryProducer)]

    def forget(self, closed: "MemoryProducer | MemoryReader") -> None:
        """Drop what was closed."""
        self._opened.discard(closed)

    def cluster_id(self) -> str:
        """Return the broker's id."""
        self._reach("the cluster")
        return self.broker.id

    def producer(
        self, topic: str, *, schema: str = "", exclusive: bool = False, batching: bool = False, name: str = ""
    ) -> "MemoryProducer":
        """Open a producer; see :class:`magnetar_common.bus.base.Bus`."""
        del schema, batching, name
        with self.broker.changed:
            self._reach(topic)
            here = self.broker.topic(topic)
            if here.holder is not None:
                raise TopicHeld(f"{topic} is held exclusively by another producer")
            producer = MemoryProducer(self, topic)
            if exclusive:
                here.holder = producer
            self._opened.add(producer)
            return producer

    def reader(
        self, topic: str, after: MessageId = EARLIEST, *, compacted: bool = False, name: str = ""
    ) -> "MemoryReader":
        """Open a reader; see :class:`magnetar_common.bus.base.Bus`."""
        del name
        with self.broker.changed:
            self._reach(topic)
            if after == LATEST:
                after = self.last_id(topic)
            reader = MemoryReader(self, topic, after, compacted=compacted)
            self._opened.add(reader)
            return reader

    def last_id(self, topic: str) -> MessageId:
        """Return the place of the last message."""
        with self.broker.changed:
            self._reach(topic)
            messages = self.broker.topic(topic).messages
            return messages[-1].id if messages else EARLIEST

    def anchor(self, topic: str, name: str) -> "MemoryAnchor":
        """Open an anchor, which holds nothing here: memory forgets nothing."""
        del name
        self._reach(topic)
        return MemoryAnchor()

    def close(self) -> None:
        """Close what was opened from here."""
        self._closed = True
        self.connected = False
        for opened in tuple(self._opened):
            opened.close()
        with self.broker.changed:
            self.broker.changed.notify_all()

    def _reach(self, what: str) -> None:
        if not self.connected:
            raise BusUnavailable(f"{what}: the bus is {'closed' if self._closed else 'not connected'}")


@dataclass(slots=True)
class _Waiting:
    payload: bytes
    callback: SendCallback
    key: str
    properties: dict[str, str]


class MemoryProducer:
    """Writes to one topic of a `MemoryBroker`."""

    def __init__(self, bus: MemoryBus, topic: str) -> None:
        self.topic = topic
        self.fenced = False
        self._bus = bus
        self._closed = False
        self._waiting: deque[_Waiting] = deque()
        self._order = threading.RLock()  # callbacks come in the order of the messages

    @property
    def is_connected(self) -> bool:
        """Whether the bus is connected and this producer was neither fenced nor closed."""
        return self._bus.connected and not self.fenced and not self._closed

    def send(self, payload: bytes, *, key: str = "", properties: Mapping[str, str] | None = None) -> MessageId:
        """Store one message. Without a connection it times out at once, and is not stored."""
        with self._order:
            if not self._bus.connected and not self._closed and not self.fenced:
                raise SendTimedOut(f"{self.topic}: the bus is not connected")
            answer = self._store(_Waiting(payload, _ignore, key, dict(properties or {})))
        if isinstance(answer, BusError):
            raise answer
        return answer

    def send_async(
        self, payload: bytes, callback: SendCallback, *, key: str = "", properties: Mapping[str, str] | None = None
    ) -> None:
        """Store one message and call back, on this thread; without a connection both wait for it."""
        with self._order:
            self._waiting.append(_Waiting(payload, callback, key, dict(properties or {})))
            self.drain()

    def drain(self) -> None:
        """Store what waits, if the bus is connected (or say that it never will be)."""
        with self._order:
            while self._waiting and (self._bus.connected or self._closed or self.fenced):
                waiting = self._waiting.popleft()
                answer = self._store(waiting)
                try:
                    waiting.callback(answer)
                except Exception:  # noqa: BLE001 - as Pulsar's client does: the sender must not pay for it
                    _log.exception("send callback failed", topic=self.topic)

    def flush(self) -> None:
        """Do nothing: nothing is batched."""

    def close(self) -> None:
        """Release the topic; what still waits is told so."""
        with self._bus.broker.changed:
            self._closed = True
            here = self._bus.broker.topic(self.topic)
            if here.holder is self:
                here.holder = None
            self._bus.forget(self)
        self.drain()

    def _store(self, waiting: _Waiting) -> MessageId | BusError:
        with self._bus.broker.changed:
            here = self._bus.broker.topic(self.topic)
            if self._closed:
                return BusUnavailable(f"{self.topic}: the producer is closed")
            if self.fenced or here.holder not in (None, self):
                return Fenced(f"{self.topic}: another producer holds the topic now")
            if len(waiting.payload) > MAX_MESSAGE_BYTES:
                return BusRefused(f"{self.topic}: {len(waiting.payload)} bytes are more than {MAX_MESSAGE_BYTES}")
            place = MessageId(0, len(here.messages))
            here.messages.append(
                Message(
                    self.topic, place, waiting.key, waiting.payload, waiting.properties, time.time_ns() // 1_000_000
                )
            )
            self._bus.broker.changed.notify_all()
            return place


class MemoryReader:
    """Reads one topic of a `MemoryBroker`."""

    def __init__(self, bus: MemoryBus, topic: str, after: MessageId, *, compacted: bool) -> None:
        self.topic = topic
        self._bus = bus
        self._after = after
        self._compacted = compacted
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the bus is connected and this reader open."""
        return self._bus.connected and not self._closed

    def read(self, timeout: float) -> Message | None:
        """Return the next message, or None when none came in time or the bus is cut off."""
        deadline = time.monotonic() + timeout
        with self._bus.broker.changed:
            while True:
                if self._closed:
                    raise BusUnavailable(f"{self.topic}: the reader is closed")
                message = self._next() if self._bus.connected else None
                left = deadline - time.monotonic()
                if message is not None:
                    self._after = message.id
                    return message
                if left <= 0:
                    return None
                self._bus.broker.changed.wait(left)

    def at_end(self) -> bool:
        """Whether nothing more is stored right now."""
        with self._bus.broker.changed:
            return self.is_connected and self._next() is None

    def close(self) -> None:
        """Stop reading."""
        with self._bus.broker.changed:
            self._closed = True
            self._bus.forget(self)
            self._bus.broker.changed.notify_all()

    def _next(self) -> Message | None:
        here = self._bus.broker.topic(self.topic)
        following = bisect_right(here.messages, self._after, key=lambda message: message.id)
        if self._compacted and following < here.horizon:
            index = bisect_right(here.compacted, self._after, key=lambda message: message.id)
            if index < len(here.compacted):
                return here.compacted[index]
            following = here.horizon
        return here.messages[following] if following < len(here.messages) else None


class MemoryAnchor:
    """Stands for a durable subscription."""

    def advance(self, to: MessageId) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _ignore(_: MessageId | BusError) -> None:
    return
