"""A beacon: one key of a topic whose newest value is kept published.

Only the newest value matters, so nothing is buffered: each attempt asks for the value anew. After an outage everybody
comes back at a moment of his own (full jitter), not all at once.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Self

import structlog

from magnetar_common.bus.base import Bus, Producer
from magnetar_common.errors import BusError, MagnetarError
from magnetar_common.metrics import BEACONS

_FIRST_RETRY_S = 0.1
_JOIN_S = 1.0
_REJOIN_S = 1.0
"""Whoever publishes at no interval comes back within this time (seconds) after the broker has."""

_log = structlog.get_logger(__name__)


class Beacon:
    """Publishes one key from a thread of its own, on demand and at an interval. Safe to use from several threads.

    Args:
        bus: where to.
        topic: full name.
        key: the key.
        value: makes the payload and its properties, anew for each attempt, on the beacon's thread. If it raises, that
            attempt has failed, and is counted, logged and retried.
        schema: Avro schema to register with the topic.
        interval_s: publish at least this often (up to 20 % oftener, so that a fleet spreads); None = only when woken.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        key: str,
        value: Callable[[], tuple[bytes, dict[str, str]]],
        *,
        schema: str = "",
        interval_s: float | None = None,
    ) -> None:
        self.key = key
        self.failures = 0
        """Attempts that failed since the last good one."""
        self.error = ""
        """What the last of them said."""
        self.last_published: float | None = None
        """Monotonic time of the last acknowledgement."""
        self._bus = bus
        self._topic = topic
        self._value = value
        self._schema = schema
        self._interval = interval_s
        self._pid = os.getpid()
        self._producer: Producer | None = None
        self._changed = threading.Condition()
        self._wanted = 0
        self._published = 0
        self._hurry = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"beacon {key}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs, in this process: it does not survive a fork."""
        return self._thread.is_alive() and os.getpid() == self._pid

    def start(self) -> Self:
        """Begin. At once if there is an interval, else when first woken."""
        if self._interval is not None:
            self._wanted = 1
        self._thread.start()
        return self

    def wake(self, *, hurry: bool = False) -> int:
        """Publish the value now, or during an outage at the next attempt; return a ticket for :meth:`wait`.

        Args:
            hurry: even during an outage try now: for a last word.

        Raises:
            MagnetarError: we are in a fork, where neither thread nor connection exist.
        """
        if os.getpid() != self._pid:
            raise MagnetarError(
                f"{self.key} belongs to process {self._pid} and does not survive a fork: make a new one"
            )
        with self._changed:
            self._wanted += 1
            self._hurry |= hurry
            self._changed.notify_all()
            return self._wanted

    def wait(self, ticket: int, timeout: float) -> bool:
        """Whether a value made after the ticket was given is acknowledged within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._published >= ticket, timeout)

    def close(self) -> None:
        """Stop, without a last word. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self.alive and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)  # a send to a broker that is gone may take longer: the thread is a daemon

    def _run(self) -> None:
        wait: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(self._due, wait)
                if self._closing:
                    break
                ticket, hurry, self._hurry = self._wanted, self._hurry, False
            wait = self._attempt(ticket, hurry=hurry)
        self._drop_producer()

    def _due(self) -> bool:
        return self._closing or self._hurry or (not self.failures and self._wanted > self._published)

    def _attempt(self, ticket: int, *, hurry: bool) -> float | None:
        """Publish once; return the seconds until the next attempt, unless woken before."""
        try:
            payload, properties = self._value()
            if self._producer is None:
                self._producer = self._bus.producer(self._topic, schema=self._schema, name=self.key)
                if self.failures and not hurry:  # the broker is back, as everybody sees at the same moment
                    return random.uniform(0.0, self._interval or _REJOIN_S)  # noqa: S311 - jitter
            self._producer.send(payload, key=self.key, properties=properties)
        except Exception as error:  # noqa: BLE001 - whatever it is, the beacon goes on, and says so
            return self._failed(error)
        if self.failures:
            _log.info("published again", key=self.key, after_failures=self.failures)
        with self._changed:
            self.failures, self.error, self.last_published = 0, "", time.monotonic()
            self._published = max(self._published, ticket)
            self._changed.notify_all()
        BEACONS.labels("published").inc()
        return None if self._interval is None else self._interval * random.uniform(0.8, 1.0)  # noqa: S311 - jitter

    def _failed(self, error: Exception) -> float:
        self.failures += 1
        self.error = f"{type(error).__name__}: {error}"
        BEACONS.labels("failed").inc()
        if isinstance(error, BusError):
            _log.warning("not published", key=self.key, failures=self.failures, error=self.error)
            self._drop_producer()
        else:
            _log.error("not published", key=self.key, failures=self.failures, exc_info=error)
        longest = min(self._interval or 5.0, _FIRST_RETRY_S * 2 ** min(self.failures, 16))
        return random.uniform(0.0, longest)  # noqa: S311 - jitter

    def _drop_producer(self) -> None:
        if self._producer is not None:
            try:
                self._producer.close()
            except BusError as error:
                _log.info("producer did not close", key=self.key, error=str(error))
            self._producer = None
