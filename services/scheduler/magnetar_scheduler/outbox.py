"""Sending effects: commands to agents, routes to whoever follows them.

Effects are a level: what is lost here is sent again by the leader's timer. So a failed send is counted and logged, and
never retried on the spot. Producers are opened lazily, and closed after a failure, on threads of their own: that blocks,
and sending does not.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from magnetar_common.bus import Bus, MessageId, Producer
from magnetar_common.errors import BusError
from magnetar_common.metrics import EFFECTS
from magnetar_events import schemas

_log = structlog.get_logger(__name__)

_SENT = EFFECTS.labels("sent")

REOPEN_S = 1.0
"""After a topic could not be opened, effects for it are dropped for this long (seconds)."""

OPENERS = 8
"""Topics that are opened at a time. Opening is a few round trips, and a new fleet of 1,000 servers has 1,000 topics."""


class _Effect(NamedTuple):
    key: str
    payload: bytes
    properties: dict[str, str]


class _ToOpen(NamedTuple):
    topic: str
    contract: str


class Outbox:
    """One sender for every topic that a leader writes besides the log. ``send`` is for one thread.

    Args:
        bus: where to.
        exclusive: the topic that is held exclusively: that of the routes.
        lost: told, on any thread, that something for this topic was not sent.
    """

    def __init__(self, bus: Bus, exclusive: str, lost: Callable[[], object]) -> None:
        self._bus = bus
        self._exclusive = exclusive
        self._lost = lost
        self._lock = threading.Lock()
        self._producers: dict[str, Producer] = {}
        self._waiting: dict[str, list[_Effect]] = {}
        self._refused: dict[str, float] = {}
        self._closing = False
        self._to_do: queue.SimpleQueue[_ToOpen | Producer | None] = queue.SimpleQueue()
        self._openers = [threading.Thread(target=self._run, name="outbox", daemon=True) for _ in range(OPENERS)]
        for opener in self._openers:
            opener.start()

    def opening(self, topic: str) -> bool:
        """Whether what was sent to this topic still waits for it to be opened."""
        return topic in self._waiting

    def send(self, topic: str, contract: str, payload: bytes, *, key: str, properties: dict[str, str]) -> None:
        """Send one message, after those sent to this topic before."""
        effect = _Effect(key, payload, properties)
        with self._lock:
            producer = self._producers.get(topic)
            if producer is None:
                if topic not in self._waiting:
                    self._waiting[topic] = []
                    self._to_do.put(_ToOpen(topic, contract))
                self._waiting[topic].append(effect)
                return
        self._send(producer, effect)

    def close(self) -> None:
        """Close every producer; what was not sent is dropped."""
        self._closing = True
        for _ in self._openers:
            self._to_do.put(None)
        for opener in self._openers:
            opener.join(10)
        with self._lock:
            producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer.close()

    def _send(self, producer: Producer, effect: _Effect) -> None:
        def stored(result: MessageId | BusError) -> None:
            if isinstance(result, BusError):
                EFFECTS.labels("failed").inc()
                self._failed(producer, result)
            else:
                _SENT.inc()

        producer.send_async(effect.payload, stored, key=effect.key, properties=effect.properties)

    def _failed(self, producer: Producer, error: BusError) -> None:
        """Take note of a send that failed (on the client's thread): only the first failure of a producer is news."""
        topic = producer.topic
        with self._lock:
            news = self._producers.get(topic) is producer
            if news:
                del self._producers[topic]
        if news:
            self._to_do.put(producer)
            _log.warning("an effect was not stored, and is sent again later", topic=topic, error=str(error))
        self._drop(topic)

    def _drop(self, topic: str) -> None:
        if topic == self._exclusive:
            self._lost()

    def _run(self) -> None:
        while (item := self._to_do.get()) is not None and not self._closing:
            if not isinstance(item, _ToOpen):
                item.close()
                continue
            producer = self._open(item)
            while (effects := self._taken(item.topic, producer)) is not None:
                if producer is None:
                    EFFECTS.labels("dropped").inc(len(effects))
                    self._drop(item.topic)
                else:
                    for effect in effects:
                        self._send(producer, effect)

    def _taken(self, topic: str, producer: Producer | None) -> list[_Effect] | None:
        """Return what waits for a topic that was opened (or was not); None once nothing does, and then it is in use.

        So what is sent to it from now on does not overtake what waited.
        """
        with self._lock:
            effects = self._waiting[topic]
            if effects:
                self._waiting[topic] = []
                return effects
            del self._waiting[topic]
            if producer is not None:
                self._producers[topic] = producer
            return None

    def _open(self, wanted: _ToOpen) -> Producer | None:
        topic = wanted.topic
        if time.monotonic() - self._refused.get(topic, -REOPEN_S) < REOPEN_S:
            return None
        try:
            return self._bus.producer(
                topic,
                schema=schemas.schema_json(wanted.contract),
                exclusive=topic == self._exclusive,
                batching=topic == self._exclusive,  # a burst changes many routes; a command is one of its topic
                name="magnetar-scheduler",
            )
        except BusError as error:
            self._refused[topic] = time.monotonic()
            _log.warning(
                "cannot write to a topic; what is outstanding is sent again later", topic=topic, error=str(error)
            )
            return None
