"""Sending effects: commands to agents, routes to whoever follows them.

Effects are a level: what is lost here is sent again by the leader's timer. So a failed send is counted and logged, and
never retried on the spot. Producers are opened lazily, on a thread of their own: opening one blocks, sending does not.
"""

import queue
import threading
import time
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


class Outbox:
    """One sender for every topic that a leader writes besides the log. ``send`` is for one thread.

    Args:
        bus: where to.
        exclusive: topics that are held exclusively.
    """

    def __init__(self, bus: Bus, exclusive: frozenset[str]) -> None:
        self._bus = bus
        self._exclusive = exclusive
        self._lock = threading.Lock()
        self._producers: dict[str, Producer] = {}
        self._waiting: dict[str, list[_Effect]] = {}
        self._refused: dict[str, float] = {}
        self._closing = False
        self._to_open: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
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
                    self._to_open.put((topic, contract))
                self._waiting[topic].append(effect)
                return
        self._send(producer, effect)

    def close(self) -> None:
        """Close every producer; what was not sent is dropped."""
        self._closing = True
        for _ in self._openers:
            self._to_open.put(None)
        for opener in self._openers:
            opener.join(10)
        for producer in self._producers.values():
            producer.close()

    def _send(self, producer: Producer, effect: _Effect) -> None:
        def stored(result: MessageId | BusError) -> None:
            if not isinstance(result, BusError):
                _SENT.inc()
                return
            EFFECTS.labels("failed").inc()
            _log.warning("an effect was not stored, and is sent again later", topic=producer.topic, error=str(result))

        producer.send_async(effect.payload, stored, key=effect.key, properties=effect.properties)

    def _run(self) -> None:
        while (item := self._to_open.get()) is not None and not self._closing:
            topic, contract = item
            producer = self._open(topic, contract)
            with self._lock:  # until all are sent: nothing may overtake them
                effects = self._waiting.pop(topic)
                if producer is None:
                    EFFECTS.labels("dropped").inc(len(effects))
                    continue
                self._producers[topic] = producer
                for effect in effects:
                    self._send(producer, effect)

    def _open(self, topic: str, contract: str) -> Producer | None:
        if time.monotonic() - self._refused.get(topic, -REOPEN_S) < REOPEN_S:
            return None
        try:
            exclusive = topic in self._exclusive
            return self._bus.producer(
                topic, schema=schemas.schema_json(contract), exclusive=exclusive, name="magnetar-scheduler"
            )
        except BusError as error:
            self._refused[topic] = time.monotonic()
            _log.warning(
                "cannot write to a topic; what is outstanding is sent again later", topic=topic, error=str(error)
            )
            return None
