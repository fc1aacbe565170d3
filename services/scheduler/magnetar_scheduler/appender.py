"""Appending to the log: pipelined, in order, and fatal on the first failure."""

import threading
import time
from collections import deque
from collections.abc import Callable

from magnetar_common.bus import EARLIEST, MessageId, Producer
from magnetar_common.errors import BusError, Deposed

FRESH_S = 5.0
"""No effect is sent unless an append that was begun within this time (seconds) is acknowledged."""

ACK_TIMEOUT_S = 10.0
"""An append unacknowledged for this long (seconds) ends the leadership."""


class Appender:
    """Sends entries through the exclusive producer, and knows how far they are acknowledged.

    Nothing is ever retried: to go on after a failed pipelined send punches holes into the log (measured). So the first
    failure, or an append unanswered for 10 s, deposes this process for good.

    Args:
        producer: exclusive on the log, batching.
        on_acknowledged: told, on a thread of the client's, that ``acknowledged`` moved or that something failed; once,
            until :meth:`check` is called.
    """

    def __init__(self, producer: Producer, on_acknowledged: Callable[[], None]) -> None:
        self._producer = producer
        self._on_acknowledged = on_acknowledged
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, float]] = deque()
        self._failure: BusError | None = None
        self._told = False
        self._place = EARLIEST
        self._turned: tuple[int, MessageId] | None = None
        self.acknowledged = -1
        """Position of the last entry that is stored."""
        self.proven = time.monotonic()
        """When the newest acknowledged append was begun (monotonic seconds): then, at least, the log was ours. An
        acknowledgement may have waited for us, as when this process was stopped, and proves nothing of when it is read.
        """

    def append(self, position: int, payload: bytes, properties: dict[str, str]) -> None:
        """Queue one entry; blocks while the client's queue is full.

        Raises:
            Deposed: an earlier append failed.
        """
        with self._lock:
            self._check()
            self._pending.append((position, time.monotonic()))

        def stored(result: MessageId | BusError) -> None:
            with self._lock:
                if isinstance(result, BusError):
                    self._failure = self._failure or result
                elif self._failure is None:
                    _, self.proven = self._pending.popleft()
                    if result.ledger != self._place.ledger and self._turned is None and self._place != EARLIEST:
                        self._turned = self.acknowledged, self._place
                    self.acknowledged, self._place = position, result
                told, self._told = self._told, True
            if not told:
                self._on_acknowledged()

        self._producer.send_async(payload, stored, properties=properties)

    def turned(self) -> tuple[int, MessageId] | None:
        """Return the last position, and its place, before the broker began another ledger, once; None if it did not.

        It does so now and then, when it lets go of the topic, and for a topic that was deleted and made anew.
        """
        with self._lock:
            turned, self._turned = self._turned, None
            return turned

    def flush(self) -> None:
        """Send now what waits to be batched."""
        self._producer.flush()

    @property
    def idle_s(self) -> float:
        """Seconds since the newest acknowledged append was begun."""
        return time.monotonic() - self.proven

    @property
    def fresh(self) -> bool:
        """Whether the log has proven to be ours a moment ago."""
        return self.idle_s <= FRESH_S

    @property
    def waiting(self) -> bool:
        """Whether an append is not acknowledged yet."""
        return bool(self._pending)

    def check(self) -> None:
        """See that the leadership still stands; what is acknowledged from now on is told again.

        Raises:
            Deposed: an append failed, or was not acknowledged in time.
        """
        with self._lock:
            self._told = False
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise Deposed(f"an append to the log failed, so this leadership is over: {self._failure}")
        if self._pending and time.monotonic() - self._pending[0][1] > ACK_TIMEOUT_S:
            position = self._pending[0][0]
            raise Deposed(f"the append of position {position} was not acknowledged within {ACK_TIMEOUT_S} s")
