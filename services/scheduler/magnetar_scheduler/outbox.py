"""Sending effects: commands to agents, routes to whoever follows them.

Effects are a level: what is lost here is sent again by the leader's timer. So a failed send is counted and logged, and
never retried on the spot; its producer is not used again. Producers are opened lazily, and closed, on a thread of their
own: that blocks, and sending does not.
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

REOPEN_S = 1.0
"""After a topic could not be opened, effects for it are dropped for this long (seconds)."""


class _Effect(NamedTuple):
    topic: str
    contract: str
    key: str
    payload: bytes
    properties: dict[str, str]


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
        self._producers: dict[str, Producer] = {}
        self._opening: set[str] = set()
        self._refused: dict[str, float] = {}
        self._waiting: queue.SimpleQueue[_Effect | Producer | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._open_and_send, name="outbox", daemon=True)
        self._thread.start()

    def send(self, topic: str, contract: str, payload: bytes, *, key: str, properties: dict[str, str]) -> None:
        """Send one message, after those sent to this topic before."""
        with self._lock:
            producer = self._producers.get(topic) if topic not in self._opening else None
            if producer is None:
                self._opening.add(topic)
                self._waiting.put(_Effect(topic, contract, key, payload, properties))
                return
        self._send(producer, key, payload, properties)

    def close(self) -> None:
        """Close every producer; what was not sent is dropped."""
        self._waiting.put(None)
        self._thread.join(10)
        for producer in self._producers.values():
            producer.close()

    def _send(self, producer: Producer, key: str, payload: bytes, properties: dict[str, str]) -> None:
        def stored(result: MessageId | BusError) -> None:
            EFFECTS.labels("failed" if isinstance(result, BusError) else "sent").inc()
            if isinstance(result, BusError):
                self._failed(producer, result)

        producer.send_async(payload, stored, key=key, properties=properties)

    def _failed(self, producer: Producer, error: BusError) -> None:
        """Take note of a send that failed (on the client's thread): only the first failure of a producer is news."""
        topic = producer.topic
        with self._lock:
            if self._producers.get(topic) is not producer:
                return
            del self._producers[topic]
        self._waiting.put(producer)
        _log.warning("an effect was not stored, and is sent again later", topic=topic, error=str(error))
        self._drop(topic)

    def _drop(self, topic: str) -> None:
        if topic == self._exclusive:
            self._lost()

    def _open_and_send(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not isinstance(item, _Effect):
                item.close()
                continue
            producer = self._producers.get(item.topic) or self._open(item.topic, item.contract)
            if producer is not None:
                self._send(producer, item.key, item.payload, item.properties)
            if self._waiting.empty():
                with self._lock:
                    if self._waiting.empty():
                        self._opening.clear()

    def _open(self, topic: str, contract: str) -> Producer | None:
        if time.monotonic() - self._refused.get(topic, -REOPEN_S) >= REOPEN_S:
            try:
                producer = self._bus.producer(
                    topic,
                    schema=schemas.schema_json(contract),
                    exclusive=topic == self._exclusive,
                    name="magnetar-scheduler",
                )
            except BusError as error:
                self._refused[topic] = time.monotonic()
                _log.warning(
                    "cannot write to a topic; what is outstanding is sent again later", topic=topic, error=str(error)
                )
            else:
                with self._lock:
                    self._producers[topic] = producer
                return producer
        EFFECTS.labels("dropped").inc()
        self._drop(topic)
        return None
