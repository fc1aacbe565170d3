"""Sending effects: commands to agents, routes to whoever follows them.

Effects are a level: what is lost here is sent again by the leader's timer. So a failed send is counted and logged, and
never retried on the spot. Producers are opened lazily, on a thread of their own: opening one blocks, sending does not.
"""

import queue
import threading
import time

import structlog

from magnetar_common.bus import Bus, MessageId, Producer
from magnetar_common.errors import BusError
from magnetar_common.metrics import EFFECTS
from magnetar_events import schemas

_log = structlog.get_logger(__name__)

_SENT = EFFECTS.labels("sent")

REOPEN_S = 1.0
"""After a topic could not be opened, effects for it are dropped for this long (seconds)."""


class Outbox:
    """One sender for every topic that a leader writes besides the log. ``send`` is for one thread.

    Args:
        bus: where to.
        exclusive: topics that are held exclusively.
    """

    def __init__(self, bus: Bus, exclusive: frozenset[str]) -> None:
        self._bus = bus
        self._exclusive = exclusive
        self._producers: dict[str, Producer] = {}
        self._opening: set[str] = set()
        self._refused: dict[str, float] = {}
        self._waiting: queue.SimpleQueue[tuple[str, str, str, bytes, dict[str, str]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._open_and_send, name="outbox", daemon=True)
        self._thread.start()

    def send(self, topic: str, contract: str, payload: bytes, *, key: str, properties: dict[str, str]) -> None:
        """Send one message, after those sent to this topic before."""
        with self._lock:
            producer = self._producers.get(topic) if topic not in self._opening else None
            if producer is None:
                self._opening.add(topic)
                self._waiting.put((topic, contract, key, payload, properties))
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
            if not isinstance(result, BusError):
                _SENT.inc()
            else:
                EFFECTS.labels("failed").inc()
                _log.warning(
                    "an effect was not stored, and is sent again later", topic=producer.topic, error=str(result)
                )

        producer.send_async(payload, stored, key=key, properties=properties)

    def _open_and_send(self) -> None:
        while (item := self._waiting.get()) is not None:
            topic, contract, key, payload, properties = item
            producer = self._producers.get(topic) or self._open(topic, contract)
            if producer is not None:
                self._producers[topic] = producer
                self._send(producer, key, payload, properties)
            if self._waiting.empty():
                with self._lock:
                    if self._waiting.empty():
                        self._opening.clear()

    def _open(self, topic: str, contract: str) -> Producer | None:
        if time.monotonic() - self._refused.get(topic, -REOPEN_S) < REOPEN_S:
            EFFECTS.labels("dropped").inc()
            return None
        try:
            exclusive = topic in self._exclusive
            return self._bus.producer(
                topic, schema=schemas.schema_json(contract), exclusive=exclusive, name="magnetar-scheduler"
            )
        except BusError as error:
            self._refused[topic] = time.monotonic()
            EFFECTS.labels("dropped").inc()
            _log.warning(
                "cannot write to a topic; what is outstanding is sent again later", topic=topic, error=str(error)
            )
            return None
